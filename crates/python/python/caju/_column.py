"""A column that a Python function made: its parts, what it cannot hold, and its bytes as Arrow IPC."""

from __future__ import annotations

import bisect
from typing import Any, NamedTuple

MAX_TEXT_BYTES = (1 << 31) - 1
"""The most bytes of text, or of bytes, in a column of one answer: Arrow's offsets have 32 bits."""


class Column(NamedTuple):
    """A column for the extension module."""

    name: str
    kind: str
    """`string`, `bytes`, `ragged`, `struct`, `null` or the name of a dtype."""
    shape: list[int]
    """The first dimension counts rows; further ones make a tensor."""
    values: Any
    """For a dtype, the bytes, or a pair of these and a byte for each value, 1 where it is null. For strings and bytes, a
    list. For `ragged`, the column of all values and the offset of each row's first one. For `struct`, columns."""
    absent: bytes | None = None
    """A byte for each row, 1 where the whole row is null."""


class Fields(dict[str, Any]):
    """The columns of a struct of which some rows are null."""

    mask: Any = None
    """An array of booleans, true where a row is null."""


class BadRow(Exception):
    """A value that its column cannot hold."""

    def __init__(self, row: int | None, why: str) -> None:
        super().__init__(why)
        self.row = row


def ipc_of_columns(columns: list[Column]) -> bytes:
    """Columns as an Arrow IPC stream. Raises `BadRow` for text that a column cannot hold."""
    from . import _caju

    try:
        return _caju.ipc_from_columns(columns)
    except BaseException:  # also a panic of the extension module
        for made in columns:
            _check_text(made)
        raise


def _check_text(made: Column) -> None:
    """Raises `BadRow` for text with a surrogate, and at the row where text has more bytes than a column takes."""
    if made.kind == "ragged":
        flat, offsets = made.values
        try:
            _check_text(flat)
        except BadRow as e:
            raise BadRow(None if e.row is None else bisect.bisect_right(offsets, e.row) - 1, str(e)) from None
    elif made.kind == "struct":
        for field in made.values:
            _check_text(field)
    elif made.kind in ("string", "bytes"):
        size, per_row = 0, max(1, len(made.values) // max(1, made.shape[0]))
        for i, value in enumerate(made.values):
            if isinstance(value, str) and not value.isascii():
                at = surrogate(value)
                if at is not None:
                    shown = f"{ascii(value[max(0, at - 10) : at + 10])} has a surrogate at {at}, which is not valid text"
                    raise BadRow(i // per_row, f"column `{made.name}`: {shown}; return bytes, or replace it")
                size += len(value.encode())
            elif value is not None:
                size += len(value)
            if size > MAX_TEXT_BYTES:
                shown = f"over {MAX_TEXT_BYTES} bytes (2 GiB) of text or bytes in the rows up to this one"
                raise BadRow(
                    i // per_row, f"column `{made.name}`: {shown}, and a column takes at most that; return less per row"
                )


def surrogate(text: str) -> int | None:
    """The place of the first lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError as e:
        return e.start
    return None


def unknown(made: Column) -> bool:
    """Whether the type does not follow from the values: only None, or empty lists."""
    if made.kind == "ragged":
        return unknown(made.values[0])
    return made.kind == "null" or (made.kind == "struct" and any(map(unknown, made.values)))
