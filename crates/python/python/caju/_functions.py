"""Functions of users: their pickling, their random draws, and the columns that they return."""

from __future__ import annotations

import contextvars
import itertools
import os
import sys
import traceback
import types
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ._errors import FailedPrecondition, InvalidPipeline

if TYPE_CHECKING:
    import numpy as np

    from ._column import Column

_seed: contextvars.ContextVar[Any] = contextvars.ContextVar("caju_seed", default=None)


def rng() -> np.random.Generator:
    """A random generator for the current row, with the same draws for the same row, seed and epoch on every machine.

    To be called within a function that is given to `map`, `filter` or `flat_map`. Every call for a row returns the same
    generator in its initial state, so call it once per row. With `batched=True` there is one generator for the batch, that
    of its first row.
    """
    import numpy as np

    seed = _seed.get()
    if seed is None:
        raise FailedPrecondition(
            "caju.rng() draws for a row: call it within a function that is given to map, filter or flat_map"
        )
    return np.random.Generator(np.random.Philox(key=int(seed)))


def pack(function: Callable[..., Any]) -> bytes:
    """The pickled function, with everything that it needs of the user's own modules, for processes on any machine."""
    try:
        import cloudpickle
    except ImportError:
        raise FailedPrecondition(
            "Python functions are sent by cloudpickle, which is not installed: pip install cloudpickle"
        ) from None
    from ._copies import packed
    from ._fingerprint import is_own_module

    own = [
        m
        for name, m in list(sys.modules.items())
        if name not in ("__main__", "__mp_main__") and name.split(".")[0] != "caju" and _is_module(m) and is_own_module(m)
    ]
    registered = []
    # A module may be there under two names, and the user may have registered it.
    known = set(cloudpickle.list_registry_pickle_by_value())
    for module in own:
        if module.__name__ in known:
            continue
        try:
            cloudpickle.register_pickle_by_value(module)
        except ValueError:  # it was removed from `sys.modules`
            continue
        registered.append(module)
        known.add(module.__name__)
    try:
        return packed(function)
    except Exception as e:
        raise InvalidPipeline(
            f"{name_of(function)} cannot be sent to workers: {e}; create locks, open files, connections and the like inside "
            "the function, or in a module of an installed package that it imports: then every worker creates its own; "
            "version= does not help"
        ) from e
    finally:
        for module in registered:
            cloudpickle.unregister_pickle_by_value(module)


def _is_module(value: Any) -> bool:
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
) -> dict[str, Any]:
    """The stage's arguments: the function's fingerprint, the pickled function, its columns, and the source of its random draws
    other than `caju.rng()`, unless `random` says whether there is one.

    `rows(0)` iterates over the first rows, `rows(n)` over batches of n rows.
    """
    import base64

    from ._copies import copy_of
    from ._fingerprint import inspect_code

    # The fingerprint and the pickle are of the function before the trial, and the trial calls a copy: the function may count
    # rows, or remember them.
    report, packed = inspect_code(function, version), pack(function)
    undeclared = _undeclared([*report.foreign_draws, *([OF_BATCHES] if batched and report.draws else [])], random)
    limit = _timeout(timeout)
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
        **limit,
    }
    if undeclared is not None:
        arguments["draws_from"] = undeclared
        warn_of_draws(name_of(function), undeclared)
    return arguments


def draws_of(definition: Any) -> Iterator[tuple[str, str]]:
    """The functions of a definition that draw random numbers and do not declare it, each with the source of the draws."""
    if isinstance(definition, dict):
        if isinstance(definition.get("payload"), str) and isinstance(definition.get("draws_from"), str):
            yield definition["name"], definition["draws_from"]
        for value in definition.values():
            yield from draws_of(value)
    elif isinstance(definition, (list, tuple)):
        for value in definition:
            yield from draws_of(value)


OF_BATCHES = "caju.rng() for whole batches (batched=True), which are cut elsewhere when rows are computed again"
"""A source of random draws: a generator for a batch draws other numbers for a row when the batch has other rows."""


def _undeclared(foreign_draws: Sequence[str], random: Any) -> str | None:
    """A source of random draws other than `caju.rng()`, unless the user has said whether there is one."""
    if random is not None and not isinstance(random, bool):
        raise InvalidPipeline(f"random={random!r} says whether a function draws random numbers: True or False")
    return foreign_draws[0] if foreign_draws and random is None else None


_warned: set[tuple[str, str]] = set()


def warn_of_draws(name: str, source: str) -> None:
    """Warns, once for each function, that its random draws cannot be repeated."""
    if (name, source) in _warned:
        return
    _warned.add((name, source))
    # At the line of the user that called `map`, `filter` or `flat_map`.
    warnings.warn(
        f"function `{name}` draws random numbers from {source}: draws differ from run to run, and a row that is computed "
        "again gets others; draw from caju.rng() for each row, or give random=True (it draws, and may) or random=False (it does not draw, or "
        "seeds its generator by the row)",
        UserWarning,
        stacklevel=5,
    )


def _timeout(timeout: Any) -> dict[str, str]:
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


LENGTH_ROWS = 8
"""Rows of a trial that are compared where lists or arrays may differ in length. More rows cost time and rarely differ."""

TRIAL_ROWS = 100
"""The most rows of a trial, for functions that return only None, empty lists or no rows at first."""


def probe(
    kind: str, function: Callable[..., Any], batched: bool, rows: Callable[[int], Iterator[dict[str, Any]]]
) -> bytes:
    """The schema of what a function returns for the first rows, as an Arrow IPC stream.

    The number of these rows depends on their values, never on the time that they take.
    """
    from . import _caju
    from ._column import BadRow, ipc_of_columns, unknown

    name, seed, process = name_of(function), _seed.set(0), os.getpid()
    try:
        made = _probed_batch(function, rows(LENGTH_ROWS)) if batched else _probed_rows(kind, function, rows(0))
        if made is None:
            raise InvalidPipeline(
                f"function `{name}` returned no row for the first {TRIAL_ROWS}, so its columns are not known; give them: "
                'schema={"id": "int64", "words": "list of string"}'
            )
        for one in made:
            if unknown(one):
                raise InvalidPipeline(
                    f"function `{name}` returned only None or empty lists in column `{one.name}` for the first rows, so its "
                    f'type is not known; give it: schema={{"{one.name}": "int64", ...}}, or "list of string", and so on'
                )
        return _caju.ipc_schema(ipc_of_columns(made), True)
    except BadRow as e:
        where = "" if e.row is None else f" for row {e.row}"
        raise InvalidPipeline(f"function `{name}` returned{where} {e}") from None
    except (SystemExit, GeneratorExit, StopIteration) as e:
        end_fork(process)
        # Each would end something silently: the program, or a loop or a generator around this call.
        what = "".join(traceback.format_exception_only(type(e), e)).strip()
        raise InvalidPipeline(f"function `{name}` raised {what} for one of the first rows") from e
    finally:
        end_fork(process)
        _seed.reset(seed)


def end_fork(process: int) -> None:
    """Ends this process if a function of the user created it by a fork of `process`. It has everything of `process`, and would
    do the same work again. An exception that is being handled is printed, and is the reason for the exit status.
    """
    if os.getpid() == process:
        return
    e = sys.exc_info()[1]
    code = e.code if isinstance(e, SystemExit) else None if e is None else 1
    try:
        if e is not None and not isinstance(e, SystemExit):
            traceback.print_exception(type(e), e, e.__traceback__)
        sys.stderr.flush()
    finally:
        os._exit(0 if code is None else code & 0xFF if isinstance(code, int) else 1)


def _probed_batch(function: Callable[..., Any], batches: Iterator[dict[str, Any]]) -> list[Column] | None:
    from ._column import BadRow
    from ._columns import columns_of_arrays

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
            made += itertools.islice(made_of(kind, function(row), i), LENGTH_ROWS)
        except (Exception, SystemExit, GeneratorExit):
            if made:  # the rows before it have columns; this row is reported, or skipped, when the epoch reaches it
                break
            raise
        if made and not _undecided(made) or i + 1 >= TRIAL_ROWS:
            break
    return columns_of(made) if made else None


def made_of(kind: str, made: Any, i: int) -> Iterator[Mapping[str, Any]]:
    """Copies of the rows that a function returned for row `i`. A generator computes them only now."""
    from ._column import BadRow
    from ._returned import copied_row

    if kind == "map":
        many: Iterable[Any] = (made,)
    elif isinstance(made, (Mapping, str, bytes)) or not isinstance(made, Iterable):
        raise BadRow(i, f"{type(made).__name__}, and flat_map takes any number of dicts: a list of them, or yield each")
    elif isinstance(made, (list, tuple, types.GeneratorType)):
        many = made
    else:
        many = _checked(made)
    for one in many:
        if type(one) is not dict and not isinstance(one, Mapping):
            raise BadRow(i, f"{type(one).__name__}, not a dict of columns")
        yield copied_row(one)


def _checked(many: Iterable[Any]) -> Iterator[Any]:
    """The values of an iterator. In `map(f, values)` a StopIteration of `f` would end the rows as if they were complete."""
    values = iter(many)
    while True:
        try:
            one = next(values)
        except StopIteration as e:
            # The first frame is what the iterator called: its own end, that of an iterator below it, or a function.
            frames = traceback.extract_tb(e.__traceback__)[1:]
            if frames and frames[0].name not in ("__next__", "next"):
                at = f"line {frames[-1].lineno} in {frames[-1].name}"
                raise RuntimeError(f"a function in the returned iterator raised StopIteration: {at}") from e
            return
        yield one


def _undecided(made: Sequence[Mapping[str, Any]]) -> bool:
    """Whether more rows are needed: None and empty lists have no type, and lengths may differ."""
    few = len(made) < LENGTH_ROWS
    columns = ([row[name] for row in made if name in row] for name in made[0])
    return any(all(_untyped(v) for v in values) or (few and any(map(_of_some_length, values))) for values in columns)


def _untyped(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_untyped, value))
    is_missing = value is None or type(value).__name__ == "NaTType"  # of pandas, with a time zone or without
    return is_missing or (isinstance(value, Mapping) and any(map(_untyped, value.values())))


def _of_some_length(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_of_some_length, value.values()))
    return isinstance(value, (list, tuple)) or getattr(value, "ndim", 0) > 0
