"""Copies of what a function returns. A function may change an object after it returned it, and return it again for the next row."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Mapping
from typing import Any

import numpy as np

from ._foreign import as_array

CONSTANT = frozenset(
    {type(None), bool, int, float, str, bytes, datetime.datetime, datetime.date, datetime.timedelta, decimal.Decimal}
    | {np.ma.core.MaskedConstant}
    | {t for t in np.sctypeDict.values() if not issubclass(t, (np.object_, np.void))}
)
"""Types whose values do not change."""


def copied_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row with values that later changes of the row and of its values leave as they are."""
    if type(row) is dict:
        if CONSTANT.issuperset(map(type, row.values())):  # the usual row, in half the time
            return row.copy()
        return {name: value if type(value) in CONSTANT else copied(value) for name, value in row.items()}
    return {name: copied(row[name]) for name in row}


def copied(value: Any) -> Any:
    """The value, copied where it can change. What a column cannot hold is given back: it is reported later."""
    if type(value) in CONSTANT:
        return value
    if isinstance(value, np.ndarray):
        if value.dtype.kind != "O":
            return value.copy()
        items = np.empty(value.shape, object)
        items.ravel()[:] = [copied(item) for item in np.ma.getdata(value).ravel()]
        return np.ma.array(items, mask=value.mask) if isinstance(value, np.ma.MaskedArray) else items
    if isinstance(value, (list, tuple)):
        return list(value) if CONSTANT.issuperset(map(type, value)) else [copied(item) for item in value]
    if isinstance(value, Mapping):
        return copied_row(value)
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    if hasattr(value, "__array__") or hasattr(value, "__array_interface__"):
        try:
            return copied(as_array(value))
        except Exception:
            return value
    return value
