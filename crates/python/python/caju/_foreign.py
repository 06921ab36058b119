"""Arrays of other libraries as arrays of NumPy, with all their digits and nulls."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np


def as_array(values: Any) -> Any:
    """An array of another library. NumPy makes floats of integers with nulls, which hold fewer digits, and NaN of null floats."""
    if isinstance(values, np.ndarray):
        return values
    if type(values).__module__.split(".")[0] == "polars" and _has_arrow_form(values):
        with contextlib.suppress(ImportError):
            values = values.to_arrow()
    of_pandas = str(getattr(values, "dtype", ""))
    if of_pandas in ("Float32", "Float64") or of_pandas.endswith("[pyarrow]") and not of_pandas.startswith("timestamp"):
        with contextlib.suppress(ImportError, AttributeError):
            values = getattr(values, "array", values).__arrow_array__()
    if hasattr(values, "to_pylist") and hasattr(values, "null_count"):
        return _of_arrow(values)
    of_codes = _of_categories(values)
    if of_codes is not None:
        return of_codes
    array = np.asarray(values)
    kind = str(getattr(values, "type", getattr(values, "dtype", ""))).lower()
    if array.ndim != 1 or array.dtype.kind not in "fO" or not kind.startswith(("int", "uint")):
        return array
    listed = getattr(values, "to_list", None) or values.tolist
    return [int(v) if isinstance(v, (int, np.integer)) else None for v in listed()]


def _of_categories(values: Any) -> list[Any] | None:
    """A categorical of pandas with whole numbers or truth values and nulls, by its codes. None for other values."""
    of = getattr(values, "cat", values)  # a series has the codes in its accessor
    categories, codes = getattr(of, "categories", None), getattr(of, "codes", None)
    if categories is None or codes is None:
        return None
    known, codes = as_array(getattr(categories, "array", categories)), np.asarray(codes)
    if not isinstance(known, np.ndarray) or known.dtype.kind not in "iub" or not (codes < 0).any():
        return None
    listed = known.tolist()
    return [listed[code] if code >= 0 else None for code in codes.tolist()]


def _has_arrow_form(series: Any) -> bool:
    """Whether pyarrow has the type of a series of Polars. It takes objects for bytes: the addresses at which they lie."""
    of = str(getattr(series, "dtype", "Object"))
    return not any(unknown in of for unknown in ("Object", "Int128", "UInt128"))


_NUMBERS = ("int", "uint", "halffloat", "float", "double", "bool")
_LISTS = ("list<", "large_list<", "fixed_size_list<")


def _of_arrow(values: Any) -> Any:
    """An array of pyarrow as one of NumPy, masked where numbers are null. Nested values with nulls are a list of these."""
    if hasattr(values, "combine_chunks"):
        values = values.combine_chunks()
    if hasattr(values, "chunks"):  # more bytes of text than one array holds
        return values.to_pylist()
    if hasattr(values, "dictionary_decode"):
        values = values.dictionary_decode()
    if hasattr(values, "storage"):
        values = values.storage
    of = str(values.type)
    if of.startswith(("list_view<", "large_list_view<", "run_end_encoded<")):
        return values.to_pylist()
    if of.startswith("struct<"):
        columns = zip((field.name for field in values.type), map(_of_arrow, values.flatten()))
        fields = dict(columns)
        return [{k: v[i] for k, v in fields.items()} if there.as_py() else None for i, there in enumerate(values.is_valid())]
    if of.startswith(_LISTS) and not _is_without_nulls(values.flatten()):
        return [None if row.values is None else _of_arrow(row.values) for row in values]
    if not values.null_count or not of.startswith(_NUMBERS):
        return np.asarray(values)  # times have NaT, and other values are objects
    present = values.fill_null(False if of == "bool" else 0).to_numpy(zero_copy_only=False)
    return np.ma.array(present, mask=values.is_null().to_numpy(zero_copy_only=False))


def _is_without_nulls(values: Any) -> bool:
    """Whether NumPy has an exact form of values, at any depth."""
    of = str(values.type)
    if of.startswith(_LISTS):
        return _is_without_nulls(values.flatten())
    return not values.null_count and not of.startswith(("struct<", "dictionary<", "extension<"))
