"""Converts Python values to columns, exactly: a value that a column cannot hold is an error."""

from __future__ import annotations

import bisect
import datetime
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ._column import BadRow, Column, surrogate, unknown
from ._foreign import as_array

TYPED = "biuf"
"""Kinds of arrays whose bytes are the values of a column."""

TIMES = {"M": {"D", "s", "ms", "us", "ns"}, "m": {"s", "ms", "us", "ns"}}
# Units that Arrow does not have, and the next finer unit.
_FINER = {"Y": "D", "M": "D", "W": "D", "D": "s", "h": "s", "m": "s"}

MAX_TICKS = 2**63 - 1
"""The largest number of units in a time of NumPy."""

ATTOSECONDS = {"as": 1, "fs": 10**3, "ps": 10**6, "ns": 10**9, "us": 10**12, "ms": 10**15} | {
    unit: seconds * 10**18
    for unit, seconds in {"s": 1, "m": 60, "h": 3600, "D": 86400, "W": 604800, "M": 31 * 86400, "Y": 366 * 86400}.items()
}
"""The most attoseconds that a unit of NumPy has."""

NAN = {np.dtype(t): t("nan") for t in (np.float16, np.float32, np.float64)}
"""The NaN objects that represent null floats in rows. A returned value is recognised as null by its identity."""

_NULL_IDS = frozenset(map(id, NAN.values()))

def row_of(columns: Mapping[str, Any], i: int) -> dict[str, Any]:
    """The i-th row of a dict of arrays, as elements before `batch` are."""
    out: dict[str, Any] = {}
    for name, values in columns.items():
        if isinstance(values, dict):
            mask = getattr(values, "mask", None)
            out[name] = None if mask is not None and mask[i] else row_of(values, i)
        else:
            value = values[i]
            out[name] = NAN.get(values.dtype) if value is np.ma.masked else value
    return out


def columns_of(rows: Sequence[Mapping[str, Any]]) -> list[Column]:
    """Rows as columns; all rows have the names of the first."""
    names = list(rows[0])
    known = rows[0].keys()
    _check_names(names, 0)
    for i, row in enumerate(rows):
        if row.keys() != known:
            raise BadRow(i, f"a row with the columns {sorted(map(str, row))} after rows with {sorted(names)}")
    return [of_values(name, [row[name] for row in rows]) for name in names]


def columns_of_arrays(arrays: Mapping[str, Any]) -> list[Column]:
    """A dict of arrays as columns of one length."""
    _check_names(list(arrays), None)
    out = [column(name, values) for name, values in arrays.items()]
    lengths = {c.shape[0] for c in out}
    if len(lengths) > 1:
        raise BadRow(None, "arrays of several lengths: " + ", ".join(f"{c.name} {c.shape[0]}" for c in out))
    return out


def _check_names(names: list[Any], row: int | None) -> None:
    if not names:
        raise BadRow(row, "an empty dict, and a row has at least one column; to drop rows, use filter")
    for name in names:
        if not isinstance(name, str):
            raise BadRow(row, f"a column named {name!r}, and names are strings: {str(name)!r}")
        if not name.isascii() and surrogate(name) is not None:
            raise BadRow(row, f"a column named {ascii(name)}, which is not valid text")


def column(name: str, values: Any) -> Column:
    """A column from an array or a sequence with one value per row, or from a dict of these."""
    if isinstance(values, Mapping):
        _check_names(list(values), None)
        fields = [column(field, v) for field, v in values.items()]
        mask = getattr(values, "mask", None)
        return Column(name, "struct", [fields[0].shape[0]], fields, None if mask is None else _bytes_of(mask))
    if isinstance(values, (list, tuple)):
        return of_values(name, list(values))
    array = as_array(values)
    if isinstance(array, list):
        return of_values(name, array)
    if array.ndim == 0:
        raise BadRow(None, f"column `{name}`: a single value ({_short(values)}), not an array with one value per row")
    return _of_array(name, array)


def of_values(name: str, values: list[Any]) -> Column:
    """A column from one Python value per row."""
    kinds = set(map(type, values))
    if any(kind is np.ma.core.MaskedConstant or kind.__name__ == "NaTType" for kind in kinds):
        # A missing time of pandas is an instance of datetime without a time zone.
        values = [None if v is np.ma.masked or type(v).__name__ == "NaTType" else v for v in values]
        kinds = set(map(type, values))
    kinds.discard(type(None))
    if not kinds:
        return Column(name, "null", [len(values)], None)
    if all(issubclass(k, str) for k in kinds):
        return Column(name, "string", [len(values)], values)
    if all(issubclass(k, (bytes, bytearray, memoryview)) for k in kinds):
        exact = values if kinds == {bytes} else [None if v is None else bytes(v) for v in values]
        return Column(name, "bytes", [len(values)], exact)
    for is_one, make in _MAKERS:
        if all(map(is_one, kinds)):
            return make(name, values, kinds)
    return _of_others(name, values)


def _is_time(kind: type) -> bool:
    return issubclass(kind, (np.datetime64, np.timedelta64, datetime.date, datetime.timedelta))


def _is_number(kind: type) -> bool:
    return issubclass(kind, (int, float, np.number, np.bool_)) and not issubclass(kind, np.timedelta64)


# ---- single values ---------------------------------------------------------------------------------------------


def _numbers(name: str, values: list[Any], kinds: set[type]) -> Column:
    dtype = np.result_type(*(_dtype(k) for k in kinds))
    whole = all(issubclass(k, (int, np.integer, np.bool_)) for k in kinds)
    present = [v for v in values if v is not None]
    absent = None
    if len(present) < len(values):
        absent = np.fromiter((v is None for v in values), bool, len(values))
    if whole and dtype.kind != "b":
        array = _integers(name, values, present, dtype if len(kinds) == 1 else None)
    elif dtype.kind == "f":
        array = _floats(name, values, present, kinds, dtype)
    else:
        array = np.array(present, dtype)
    array = _filled(array, absent, len(values))
    if dtype.kind == "f" and not _NULL_IDS.isdisjoint(map(id, present)):
        absent = np.fromiter((v is None or id(v) in _NULL_IDS for v in values), bool, len(values))
    return _typed(name, array, absent)


def _dtype(kind: type) -> np.dtype[Any]:
    if issubclass(kind, np.generic):
        return np.dtype(kind)
    return np.dtype(bool if issubclass(kind, bool) else np.int64 if issubclass(kind, int) else np.float64)


def _integers(name: str, values: list[Any], present: list[Any], dtype: np.dtype[Any] | None) -> Any:
    # NumPy integers of several types would wrap around when they are combined.
    exact = present if dtype is not None else [int(v) for v in present]
    for one in (dtype or np.dtype(np.int64), np.dtype(np.uint64)):
        if one.kind == "u" and any(v < 0 for v in exact):
            continue  # NumPy 1 wraps
        try:
            return np.array(exact, one)
        except OverflowError:
            continue
    else:
        least = min(int(v) for v in present)
        top = (1 << 64) if least >= 0 else (1 << 63)
        row = next(i for i, v in enumerate(values) if v is not None and not -(1 << 63) <= int(v) < top)
        raise BadRow(row, f"column `{name}`: {_short(values[row])} fits neither int64 nor uint64 with its column")


def _floats(name: str, values: list[Any], present: list[Any], kinds: set[type], dtype: np.dtype[Any]) -> Any:
    mixed = any(issubclass(k, (int, np.integer)) and not issubclass(k, bool) for k in kinds)
    for i, v in enumerate(values) if mixed else ():
        if isinstance(v, (int, np.integer)) and not _fits(int(v), dtype):
            raise BadRow(
                i,
                f"column `{name}`: {_short(v)} among floats, and {dtype} does not hold it exactly; give all rows one type",
            )
    return np.array(present, dtype)


def _fits(value: int, dtype: np.dtype[Any]) -> bool:
    try:
        return int(dtype.type(value)) == value
    except OverflowError:
        return False


def _times(name: str, values: list[Any], kinds: set[type]) -> Column:
    aware = [v.tzinfo is not None for v in values if isinstance(v, datetime.datetime)]
    if any(aware) and (not all(aware) or len(aware) < sum(v is not None for v in values)):
        raise BadRow(None, f"column `{name}`: times with a time zone and others without; give all one")
    exact = [None if v is None else _time(name, i, v) for i, v in enumerate(values)]
    spans = [v.dtype.kind == "m" for v in exact if v is not None]
    if any(spans) and not all(spans):
        raise BadRow(None, f"column `{name}`: times and durations; give all rows one type")
    nat = np.timedelta64("NaT") if any(spans) else np.datetime64("NaT")
    dtypes = {v.dtype for v in exact if v is not None}
    if len(dtypes) > 1:
        # NumPy takes the finest unit, and wraps around.
        finest = np.result_type(*dtypes)
        row = next((i for i, v in enumerate(exact) if v is not None and _is_beyond(v, finest)), None)
        if row is not None:
            raise BadRow(row, f"column `{name}`: {_short(values[row])} reaches beyond what {finest} can hold; give all rows one unit")
    made = _typed(name, np.array([nat if v is None else v for v in exact]), None)
    return made._replace(kind=made.kind.replace("]", ", UTC]")) if any(aware) else made


def _time(name: str, row: int, value: Any) -> Any:
    try:
        return _exact_time(value)
    except OverflowError as e:
        raise BadRow(row, f"column `{name}`: {_short(value)} reaches beyond what times of microseconds can hold") from e


def _exact_time(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value
    finer = getattr(value, "to_datetime64", None) or getattr(value, "to_timedelta64", None)  # pandas has nanoseconds
    if finer is not None:
        return finer()
    if isinstance(value, datetime.datetime):
        utc = value if value.tzinfo is None else value.astimezone(datetime.timezone.utc).replace(tzinfo=None)
        return np.datetime64(utc, "us")
    if isinstance(value, datetime.date):
        return np.datetime64(value, "D")
    micros = value // datetime.timedelta(microseconds=1)
    if abs(micros) > MAX_TICKS:
        raise OverflowError
    return np.timedelta64(micros, "us")


# ---- arrays, lists and dicts of values -------------------------------------------------------------------------


def _arrays(name: str, values: list[Any], _: set[type]) -> Column:
    present = [v for v in values if v is not None]
    ranks = {a.ndim for a in present}
    if len(ranks) > 1:
        first = present[0].ndim
        row = next(i for i, v in enumerate(values) if v is not None and v.ndim != first)
        shown = f"an array of {values[row].ndim} dimensions after one of {first}"
        raise BadRow(row, f"column `{name}`: {shown}; give all rows one shape")
    if ranks == {0}:
        return of_values(name, [None if v is None else v[()] for v in values])
    if ranks == {1} and any(a.dtype.kind not in TYPED + "mM" for a in present):
        return _lists(name, [None if v is None else v.tolist() for v in values], set())
    shapes = {a.shape for a in present}
    if len(shapes) == 1:
        return _stacked(name, values, present)
    if len({s[1:] for s in shapes}) == 1:
        filled = [a for a in present if len(a)] or present[:1]
        return _ragged(name, values, _of_array(name, _joined(name, filled)))
    shown = ", ".join(sorted({f"{a.dtype}{list(a.shape)}" for a in present})[:4])
    row = next(i for i, v in enumerate(values) if v is not None and v.shape[1:] != present[0].shape[1:])
    raise BadRow(
        row,
        f"column `{name}`: values of several shapes: {shown}; give all rows one, or return array.ravel() and the shape "
        "as columns of their own",
    )


def _stacked(name: str, values: list[Any], present: list[Any]) -> Column:
    """A tensor column from arrays of one shape."""
    first = present[0]
    shape = [len(values), *first.shape]
    one = all(a.dtype == first.dtype for a in present)
    masked = any(isinstance(a, np.ma.MaskedArray) for a in present)
    if one and not masked and len(present) == len(values) and first.dtype.kind in TYPED and first.dtype.isnative:
        # Each value is copied once.
        return Column(name, first.dtype.name, shape, b"".join(np.ascontiguousarray(a).data for a in present))
    stacked = _joined(name, [a[np.newaxis] for a in present])
    if len(present) == len(values):
        return _of_array(name, stacked)
    absent = np.fromiter((v is None for v in values), bool, len(values))
    whole = (np.ma.zeros if masked else np.zeros)((len(values), *first.shape), stacked.dtype)
    whole[~absent] = stacked
    return _of_array(name, whole)._replace(absent=_bytes_of(absent))


def _joined(name: str, arrays: list[Any]) -> Any:
    """The arrays concatenated, in a type that holds all their values exactly."""
    dtypes = {a.dtype for a in arrays}
    join = np.ma.concatenate if any(isinstance(a, np.ma.MaskedArray) for a in arrays) else np.concatenate
    if len(dtypes) > 1:
        widest = np.result_type(*dtypes)
        for a in arrays:
            if a.dtype.kind in "iu" and widest.kind == "f" and not (a.astype(widest).astype(object) == a).all():
                shown = f"{a.dtype} among {widest}, which does not hold it exactly"
                raise BadRow(None, f"column `{name}`: {shown}; give all rows one type")
            # NumPy wraps times that a finer unit does not hold.
            if a.dtype.kind in "mM" and not ((a.astype(widest).astype(a.dtype) == a) | np.isnat(a)).all():
                shown = f"{a.dtype} among {widest}, which does not hold it"
                raise BadRow(None, f"column `{name}`: {shown}; give all rows one unit")
    return join(arrays)


def _ragged(name: str, values: list[Any], flat: Column) -> Column:
    offsets = [0, *itertools.accumulate(0 if v is None else len(v) for v in values)]
    absent = _bytes_of([v is None for v in values]) if any(v is None for v in values) else None
    return Column(name, "ragged", [len(values)], (flat, offsets), absent)


def _lists(name: str, values: list[Any], _: set[type]) -> Column:
    present = [v for v in values if v is not None]
    try:
        flat = of_values(name, list(itertools.chain.from_iterable(present)))
    except BadRow as e:
        if e.row is None:
            raise
        ends = list(itertools.accumulate(0 if v is None else len(v) for v in values))
        raise BadRow(bisect.bisect_right(ends, e.row), str(e)) from None
    lengths = {len(v) for v in present}
    regular = len(lengths) == 1 and lengths != {0} and isinstance(flat.values, bytes) and flat.absent is None
    if not regular:
        return _ragged(name, values, flat)
    # Numbers in lists of one length are a tensor, like the same numbers in arrays.
    shape = [len(values), *lengths, *flat.shape[1:]]
    if len(present) == len(values):
        return Column(name, flat.kind, shape, flat.values)
    absent = np.fromiter((v is None for v in values), bool, len(values))
    whole = np.zeros((len(values), len(flat.values) // len(present)), np.uint8)
    whole[~absent] = np.frombuffer(flat.values, np.uint8).reshape(len(present), -1)
    return Column(name, flat.kind, shape, whole.tobytes(), _bytes_of(absent))


def _structs(name: str, values: list[Any], _: set[type]) -> Column:
    first = next(v for v in values if v is not None)
    _check_names(list(first), values.index(first))
    for i, v in enumerate(values):
        if v is not None and v.keys() != first.keys():
            raise BadRow(i, f"column `{name}`: a dict of {sorted(map(str, v))} after dicts of {sorted(first)}")
    fields = [of_values(field, [None if v is None else v[field] for v in values]) for field in first]
    absent = _bytes_of([v is None for v in values]) if any(v is None for v in values) else None
    return Column(name, "struct", [len(values)], fields, absent)


_MAKERS: list[tuple[Callable[[type], bool], Callable[[str, list[Any], set[type]], Column]]] = [
    (_is_number, _numbers),
    (lambda k: issubclass(k, np.ndarray), _arrays),
    (lambda k: issubclass(k, (list, tuple)), _lists),
    (lambda k: issubclass(k, Mapping), _structs),
    (_is_time, _times),
]


def _of_others(name: str, values: list[Any]) -> Column:
    """Values of other types, or of several types."""
    plain = []
    for i, v in enumerate(values):
        if hasattr(v, "__array__") or hasattr(v, "__array_interface__"):
            v = v if isinstance(v, (np.ndarray, np.generic)) else as_array(v)
            v = v[()] if isinstance(v, np.ndarray) and v.ndim == 0 else v
        if v is not None and _family(type(v)) == _NONE:
            shown = f"{_short(v)} is {type(v).__name__}, which a column cannot hold"
            raise BadRow(i, f"column `{name}`: {shown}; {_instead(v)}")
        plain.append(v)
    if any(isinstance(v, np.ndarray) for v in plain) and any(isinstance(v, (list, tuple)) for v in plain):
        plain = [v.tolist() if isinstance(v, np.ndarray) else v for v in plain]
    if any(a is not b for a, b in zip(plain, values)):
        return of_values(name, plain)
    first = next(v for v in values if v is not None)
    family = _family(type(first))
    row = next(i for i, v in enumerate(values) if v is not None and _family(type(v)) != family)
    raise BadRow(
        row,
        f"column `{name}`: {_short(values[row])} ({type(values[row]).__name__}) after {_short(first)} "
        f"({type(first).__name__}); give all rows one type",
    )


_NONE = -1


def _family(kind: type) -> int:
    for i, types in enumerate([(str,), (bytes, bytearray, memoryview)]):
        if issubclass(kind, types):
            return i
    return next((2 + i for i, (is_one, _) in enumerate(_MAKERS) if is_one(kind)), _NONE)


def _instead(value: Any) -> str:
    known = {
        "Decimal": "return float(...) or str(...)",
        "time": "return a timedelta",
        "set": "return list(...)",
        "generator": "return list(...)",
        "complex": "return its real and imaginary parts as columns",
    }
    rest = "return numbers, booleans, strings, bytes, dates, NumPy arrays, or lists and dicts of these"
    return known.get(type(value).__name__, rest)


# ---- whole arrays ----------------------------------------------------------------------------------------------


def _of_array(name: str, array: Any) -> Column:
    mask = np.ma.getmaskarray(array) if np.ma.is_masked(array) else None
    plain = np.ma.getdata(array) if isinstance(array, np.ma.MaskedArray) else array
    kind = plain.dtype.kind
    if kind in TYPED + "mM":
        return _typed(name, plain, mask)
    if kind not in "OUST":
        rest = "give arrays of numbers, strings, bytes or dates, or lists"
        raise BadRow(None, f"column `{name}`: an array of {plain.dtype}; {rest}")
    items = plain.ravel().tolist()
    if mask is not None:
        items = [None if absent else v for v, absent in zip(items, mask.ravel().tolist())]
    flat = of_values(name, items)
    if array.ndim == 1:
        return flat
    if len(flat.shape) > 1 or flat.kind in ("ragged", "struct"):
        shown = f"an array of {array.ndim} dimensions that holds arrays"
        raise BadRow(None, f"column `{name}`: {shown}; give one of 1 dimension")
    return flat._replace(shape=list(array.shape))


def _typed(name: str, array: Any, mask: Any) -> Column:
    """A column from an array of numbers or times, and the mask of its nulls."""
    if array.dtype.kind in "mM":
        array = _known_unit(name, array)
        absent = np.isnat(array)
        mask = absent if mask is None else mask | absent
    native = array.astype(array.dtype.newbyteorder("="), order="C", copy=False)
    values: Any = native.tobytes()
    if mask is not None and mask.any():
        values = (values, _bytes_of(mask))
    return Column(name, native.dtype.name, list(array.shape), values)


def _is_beyond(times: Any, dtype: np.dtype[Any]) -> bool:
    """Whether times may have no value in another unit. NumPy wraps around, also where it compares."""
    (unit, count), (into, steps) = np.datetime_data(times.dtype), np.datetime_data(dtype)
    present = np.atleast_1d(times)[~np.isnat(np.atleast_1d(times))].astype("i8")
    if not len(present) or unit == "generic" or into == "generic":
        return False
    far = max(abs(int(present.min())), abs(int(present.max())))
    return far * count * ATTOSECONDS[unit] // (steps * ATTOSECONDS[into]) > MAX_TICKS


def _known_unit(name: str, array: Any) -> Any:
    """Times in a unit that Arrow has."""
    letter = array.dtype.kind
    unit, count = np.datetime_data(array.dtype)
    if unit == "generic" and np.isnat(array).all():
        return array.astype(f"{letter}8[us]")
    if unit in TIMES[letter]:
        into = unit
    elif unit in _FINER and not (letter == "m" and unit in "YM"):
        into = _FINER[unit] if letter == "M" else "s"
    else:
        shown = f"{array.dtype} is in a unit that columns do not have"
        raise BadRow(None, f"column `{name}`: {shown}; use .astype(\"{letter}8[us]\")")
    whole = array.astype(f"{letter}8[{into}]")
    if _is_beyond(array, whole.dtype) or (whole != array)[~np.isnat(array)].any():
        raise BadRow(None, f"column `{name}`: {array.dtype} reaches beyond what {whole.dtype} can hold")
    return whole


def _filled(array: Any, absent: Any, count: int) -> Any:
    if absent is None:
        return array
    whole = np.zeros(count, array.dtype)
    whole[~absent] = array
    return whole


def _bytes_of(mask: Any) -> bytes:
    return np.asarray(mask, bool).tobytes()


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
