"""Functions of users: how they travel, what they draw from, and which columns they make."""

from __future__ import annotations

import contextvars
import itertools
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ._errors import FailedPrecondition, InvalidPipeline

if TYPE_CHECKING:
    import numpy as np

    from ._columns import Column

_seed: contextvars.ContextVar[Any] = contextvars.ContextVar("caju_seed", default=None)


def rng() -> np.random.Generator:
    """A random generator for the present row: the same draws for the same row, seed and epoch, wherever it runs.

    To be called within a function that is given to `map`, `filter` or `flat_map`; each call begins anew, so draw
    from one. With `batched=True` there is one for the batch, which its first row stands for.
    """
    import numpy as np

    seed = _seed.get()
    if seed is None:
        raise FailedPrecondition(
            "caju.rng() draws for a row: call it within a function that is given to map, filter or flat_map"
        )
    return np.random.Generator(np.random.Philox(key=int(seed)))


def pack(function: Callable[..., Any]) -> bytes:
    """The function with all it needs of the user's own modules, for another process, perhaps on another machine."""
    try:
        import cloudpickle
    except ImportError:
        raise FailedPrecondition(
            "Python functions travel by cloudpickle, which is not installed: pip install cloudpickle"
        ) from None
    from ._copies import packed
    from ._fingerprint import is_own_module

    own = [
        m
        for name, m in list(sys.modules.items())
        if name not in ("__main__", "__mp_main__") and name.split(".")[0] != "caju" and _is_module(m) and is_own_module(m)
    ]
    registered = []
    for module in own:
        try:
            cloudpickle.register_pickle_by_value(module)
            registered.append(module)
        except ValueError:  # it has no name of its own any more
            continue
    try:
        return packed(function)
    except Exception as e:
        raise InvalidPipeline(
            f"{name_of(function)} cannot be sent to workers: {e}; make locks, open files, connections and the like inside "
            "the function, or in a module of an installed package that it imports: then every worker makes its own, and "
            "version= alone does not help"
        ) from e
    finally:
        for module in registered:
            cloudpickle.unregister_pickle_by_value(module)


def _is_module(value: Any) -> bool:
    import types

    return isinstance(value, types.ModuleType)


def name_of(function: Any) -> str:
    """The name of a function for messages."""
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return str(name)


def stage(
    kind: str,
    function: Callable[..., Any],
    batched: bool,
    version: str | None,
    schema: Any,
    timeout: float | None,
    random: bool | None,
    rows: Callable[[int], Iterator[dict[str, Any]]],
) -> tuple[dict[str, Any], str | None]:
    """The stage's arguments: the function by its code, packed, and the columns that it makes. And what it draws random
    numbers from besides `caju.rng()`, unless `random` says whether it does.

    `rows` gives the first rows, or, for a number other than 0, batches of so many.
    """
    import base64

    from ._copies import copy_of
    from ._fingerprint import inspect_code

    # All of the function as it is before it is tried, and the trial with a copy: it may count, or remember rows.
    report, packed = inspect_code(function, version), pack(function)
    undeclared = _undeclared(report.foreign_draws, random)
    patience = _patience(timeout)
    if kind == "filter":
        made = b""
    elif schema is None:
        made = probe(kind, copy_of(packed, name_of(function)), batched, rows)
    else:
        made = ipc_of(schema)
    arguments = {
        "kind": kind,
        "name": name_of(function),
        "code": report.fingerprint,
        "batched": batched,
        "random": report.draws or bool(random) or undeclared is not None,
        "payload": base64.b64encode(packed).decode("ascii"),
        "schema": base64.b64encode(made).decode("ascii"),
        **patience,
    }
    if undeclared is not None:
        warn_of_draws(name_of(function), undeclared)
    return arguments, undeclared


def _undeclared(foreign_draws: Sequence[str], random: Any) -> str | None:
    """What a function draws from besides `caju.rng()`, if its user has not said that it does, or does not."""
    if random is not None and not isinstance(random, bool):
        raise InvalidPipeline(f"random={random!r} says whether a function draws random numbers: True or False")
    return foreign_draws[0] if foreign_draws and random is None else None


_warned: set[tuple[str, str]] = set()


def warn_of_draws(name: str, source: str) -> None:
    """Warns, once for each function, that what it draws cannot be drawn again."""
    if (name, source) in _warned:
        return
    _warned.add((name, source))
    # At the line of the user's that called `map`, `filter` or `flat_map`.
    warnings.warn(
        f"function `{name}` draws random numbers from {source}: draws differ from run to run, and a row that is computed "
        "again gets others; draw from caju.rng(), or say random=True (draw as it does) or random=False (it does not, or "
        "seeds itself by the row)",
        UserWarning,
        stacklevel=5,
    )


def _patience(timeout: Any) -> dict[str, str]:
    if timeout is None:
        return {}
    seconds = 0.0 if isinstance(timeout, (bool, str)) or not hasattr(timeout, "__float__") else float(timeout)
    if not 0.001 <= seconds <= 86400:
        raise InvalidPipeline(f"timeout={timeout!r} must be a number of seconds, from 0.001 to 86400")
    exact = round(seconds * 1e6)
    return {"timeout": f"{exact}us" if exact % 1_000_000 else f"{exact // 1_000_000}s"}


def ipc_of(schema: Any) -> bytes:
    """A schema (a dict of types, a `caju.Schema`, or any object with `__arrow_c_schema__`) as an Arrow IPC stream."""
    from . import _caju
    from ._schema import Schema

    if isinstance(schema, Schema):
        return schema._ipc
    if isinstance(schema, Mapping) and schema and all(isinstance(kind, str) for kind in schema.values()):
        return _caju.schema_of([(str(name), kind) for name, kind in schema.items()])
    if hasattr(schema, "__arrow_c_schema__"):
        return _caju.schema_from_arrow(schema)
    raise InvalidPipeline(
        f"schema={schema!r} must name columns and their types, such as {{\"id\": \"int64\", \"words\": \"list of "
        "string\"}, or be a schema of pyarrow or another library with `__arrow_c_schema__`"
    )


# Rows that are looked at to see whether what is of one length in the first is so in others.
LOOKED_AT = 8

# Rows that may make nothing, or nothing that has a type, before columns count as unknown.
PROBED = 100


def probe(
    kind: str, function: Callable[..., Any], batched: bool, rows: Callable[[int], Iterator[dict[str, Any]]]
) -> bytes:
    """The schema of what a function makes, found by running it on the first rows, as an Arrow IPC stream.

    How many rows these are depends on what they hold, never on the time that it takes.
    """
    from . import _caju
    from ._columns import BadRow, unknown

    name, seed = name_of(function), _seed.set(0)
    try:
        made = _probed_batch(function, rows(LOOKED_AT)) if batched else _probed_rows(kind, function, rows(0))
        if made is None:
            raise InvalidPipeline(
                f"function `{name}` made no row of the first {PROBED}, so its columns are not known; say them: "
                'schema={"id": "int64", "words": "list of string"}'
            )
        for one in made:
            if unknown(one):
                raise InvalidPipeline(
                    f"function `{name}` made only None or empty lists in column `{one.name}` of the first rows, so its "
                    f'type is not known; say it: schema={{"{one.name}": "int64", ...}}, or "list of string", and so on'
                )
        return _caju.ipc_schema(_caju.ipc_from_columns(made), True)
    except BadRow as e:
        where = "" if e.row is None else f" for row {e.row}"
        raise InvalidPipeline(f"function `{name}` returned{where} {e}") from None
    finally:
        _seed.reset(seed)


def _probed_batch(function: Callable[..., Any], batches: Iterator[dict[str, Any]]) -> list[Column] | None:
    from ._columns import BadRow, columns_of_arrays

    for batch in batches:
        made = function(batch)
        if not isinstance(made, Mapping):
            raise BadRow(None, f"{type(made).__name__}, not a dict of arrays")
        return columns_of_arrays(made)
    return None


def _probed_rows(
    kind: str, function: Callable[..., Any], rows: Iterator[dict[str, Any]]
) -> list[Column] | None:
    from ._columns import columns_of

    made: list[Mapping[str, Any]] = []
    for i, row in enumerate(rows):
        try:
            made += itertools.islice(made_of(kind, function(row), i), LOOKED_AT)
        except Exception:
            if made:  # the first row tells enough; this one is reported, or skipped, when its turn comes
                break
            raise
        if made and not _open_questions(made) or i + 1 >= PROBED:
            break
    return columns_of(made) if made else None


def made_of(kind: str, made: Any, i: int) -> Iterator[Mapping[str, Any]]:
    """The rows in what a function returned for row `i`; a generator makes them only now."""
    from ._columns import BadRow

    if kind == "map":
        many: Iterable[Any] = (made,)
    elif isinstance(made, (Mapping, str, bytes)) or not isinstance(made, Iterable):
        raise BadRow(i, f"{type(made).__name__}, and flat_map takes any number of dicts: a list of them, or yield each")
    else:
        many = made
    for one in many:
        if not isinstance(one, Mapping):
            raise BadRow(i, f"{type(one).__name__}, not a dict of columns")
        yield one


def _open_questions(made: Sequence[Mapping[str, Any]]) -> bool:
    """Whether more rows would tell more: what is None or empty has no type yet, and lengths may differ."""
    few = len(made) < LOOKED_AT
    columns = ([row[name] for row in made if name in row] for name in made[0])
    return any(all(_untyped(v) for v in values) or (few and any(map(_of_some_length, values))) for values in columns)


def _untyped(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_untyped, value))
    return value is None or (isinstance(value, Mapping) and any(map(_untyped, value.values())))


def _of_some_length(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_of_some_length, value.values()))
    return isinstance(value, (list, tuple)) or getattr(value, "ndim", 0) > 0
