"""Functions of users: how they travel, what they draw from, and how their rows become columns."""

from __future__ import annotations

import contextvars
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ._errors import FailedPrecondition, InvalidPipeline

if TYPE_CHECKING:
    import numpy as np

    Column = tuple[str, str, list[int], Any]

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
    from ._codehash import _own_module

    own = [
        m
        for name, m in list(sys.modules.items())
        if name not in ("__main__", "__mp_main__") and name.split(".")[0] != "caju" and _is_module(m) and _own_module(m)
    ]
    registered = []
    for module in own:
        try:
            cloudpickle.register_pickle_by_value(module)
            registered.append(module)
        except ValueError:  # it has no name of its own any more
            continue
    try:
        return bytes(cloudpickle.dumps(function))
    except Exception as e:
        raise InvalidPipeline(f"{name_of(function)} cannot be sent to workers: {e}") from e
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
    rows: Callable[[], Iterator[dict[str, Any]]],
) -> dict[str, Any]:
    """The stage's arguments: the function by its code, packed, and the columns that it makes."""
    import base64

    from ._codehash import code_fingerprint, draws

    code = code_fingerprint(function, version=version)
    if kind == "filter":
        made = b""
    else:
        made = probe(kind, function, batched, rows) if schema is None else ipc_of(schema)
    return {
        "kind": kind,
        "name": name_of(function),
        "code": code,
        "batched": batched,
        "random": draws(function),
        "payload": base64.b64encode(pack(function)).decode("ascii"),
        "schema": base64.b64encode(made).decode("ascii"),
    }


def ipc_of(schema: Any) -> bytes:
    """Columns as a dict of types, a `caju.Schema` or a pyarrow one, as an Arrow IPC stream."""
    from . import _caju
    from ._schema import Schema

    if isinstance(schema, Schema):
        return schema._ipc
    if isinstance(schema, Mapping) and all(isinstance(kind, str) for kind in schema.values()):
        return _caju.schema_of([(str(name), kind) for name, kind in schema.items()])
    if hasattr(schema, "empty_table"):
        import io

        import pyarrow.ipc

        sink = io.BytesIO()
        with pyarrow.ipc.new_stream(sink, schema):
            pass
        return sink.getvalue()
    raise InvalidPipeline(
        f"schema={schema!r} must name columns and their types, such as {{\"id\": \"int64\", \"words\": \"list of "
        "string\"}, or be a pyarrow schema"
    )


def probe(
    kind: str, function: Callable[..., Any], batched: bool, rows: Callable[[], Iterator[dict[str, Any]]]
) -> bytes:
    """The schema of what a function makes, found by running it on the first rows, as an Arrow IPC stream."""
    import numpy as np

    from . import _caju

    seed = _seed.set(0)
    try:
        for i, row in enumerate(rows()):
            if batched:
                made = function({name: np.asarray([value]) for name, value in row.items()})
                if not isinstance(made, Mapping):
                    raise InvalidPipeline(f"{name_of(function)} returned {type(made).__name__}, not a dict of arrays")
                out = [column(name, values) for name, values in made.items()]
            else:
                made = function(row)
                first = list(itertools.islice(made, 1)) if kind == "flat_map" else [made]
                if not first and i < PROBED:
                    continue
                if not first:
                    break
                if not isinstance(first[0], Mapping):
                    raise InvalidPipeline(
                        f"{name_of(function)} returned {type(first[0]).__name__}, not a dict of columns"
                    )
                out = columns_of(first)
            return _caju.ipc_schema(_caju.ipc_from_columns(out))
    finally:
        _seed.reset(seed)
    raise InvalidPipeline(f"{name_of(function)} made no row of the first {PROBED}, so its columns are not known")


# Rows that a flat_map may make nothing of before its columns count as unknown.
PROBED = 100


# ---- rows and columns ------------------------------------------------------------------------------------------


def row_of(columns: Mapping[str, Any], i: int) -> dict[str, Any]:
    """The i-th row of a dict of arrays, as elements before `batch` are."""
    import numpy as np

    out: dict[str, Any] = {}
    for name, values in columns.items():
        if isinstance(values, dict):
            out[name] = row_of(values, i)
        else:
            value = values[i]
            out[name] = None if value is np.ma.masked else value
    return out


def columns_of(rows: Sequence[Mapping[str, Any]]) -> list[Column]:
    """Rows as columns; all rows have the names of the first."""
    import numpy as np

    names = list(rows[0])
    for i, row in enumerate(rows):
        if list(row) != names and set(row) != set(names):
            raise BadRow(i, f"a row of {sorted(row)} after rows of {sorted(names)}")
    out = []
    for name in names:
        values = [row[name] for row in rows]
        if all(isinstance(v, (str, type(None))) for v in values) or all(
            isinstance(v, (bytes, type(None))) for v in values
        ):
            out.append((name, "objects", [len(values)], values))
            continue
        arrays = [np.asarray(v) for v in values]
        kinds = {(a.dtype, a.shape) for a in arrays}
        if len(kinds) == 1:
            out.append(column(name, np.stack(arrays)))
        elif all(a.ndim == 1 for a in arrays):
            out.append(_ragged(name, arrays))
        elif all(a.ndim == 0 for a in arrays):
            out.append(column(name, np.asarray(values)))  # numbers of several types become the widest
        else:
            shapes = ", ".join(sorted({f"{a.dtype}{list(a.shape)}" for a in arrays})[:4])
            raise InvalidPipeline(f"column `{name}` has values of several shapes: {shapes}; give all rows one")
    return out


def column(name: str, values: Any) -> Column:
    """An array as a column, its first dimension counting rows."""
    import numpy as np

    array = np.asarray(values)
    if array.dtype.kind == "O" and array.ndim == 1 and len(array) and all(np.ndim(v) == 1 for v in array):
        return _ragged(name, [np.asarray(v) for v in array])
    if array.dtype.kind in "OUST":
        items = array.ravel().tolist()
        kinds = {type(v) for v in items if v is not None}
        if not kinds <= {str} and not kinds <= {bytes}:
            raise InvalidPipeline(f"column `{name}`: objects that are neither all strings nor all bytes")
        return (name, "objects", list(array.shape), items)
    native = array.astype(array.dtype.newbyteorder("="), order="C", copy=False)
    return (name, native.dtype.name, list(array.shape), native.tobytes())


def _ragged(name: str, arrays: Sequence[Any]) -> Column:
    import numpy as np

    offsets = [0, *np.cumsum([len(a) for a in arrays]).tolist()]
    filled = [a for a in arrays if len(a)] or list(arrays[:1])
    _, dtype, shape, values = column(name, np.concatenate(filled))
    return (name, "ragged", [len(arrays)], (dtype, shape, values, offsets))


class BadRow(Exception):
    """What a function returned for a row is none."""

    def __init__(self, row: int, why: str) -> None:
        super().__init__(why)
        self.row = row
