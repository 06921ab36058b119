"""Checks of what functions of users return: the answers of filters, and how much one row may become."""

from __future__ import annotations

import itertools
import reprlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ._column import MAX_TEXT_BYTES, BadRow

BOOLEANS = frozenset({bool, np.bool_})
"""The types of answers that need no further check."""

SIZE_CHECK_ROWS = 256
"""The number of rows of one input row after which their size is checked. Fewer rows are collected without this cost."""


def keeps_row(answer: Any, i: int) -> bool:
    """Whether a filter keeps row `i`.

    Raises `BadRow` for an answer that is not a boolean: a forgotten `return` would drop all rows, and NaN would keep its row.
    """
    if type(answer) in BOOLEANS:
        return bool(answer)
    value = answer.as_py() if hasattr(answer, "as_py") else _element(answer)  # `as_py`: a scalar of pyarrow
    if type(value) in BOOLEANS:
        return bool(value)
    raise BadRow(i, f"{_shown(answer)}, not a boolean; return True or False, or wrap it in bool(...)")


def kept_rows(answers: Any, count: int) -> list[int]:
    """The rows that a batched filter keeps, of a batch of `count` rows. Raises `BadRow` unless there is a boolean for each."""
    if not isinstance(answers, (list, tuple)):
        array = None if isinstance(answers, np.generic) else _array(answers)
        if array is None or array.ndim != 1 or array.dtype.kind not in "bO":
            what = "return a boolean array, or a list of True and False"
            raise BadRow(None, f"{_shown(answers)}, not one boolean per row; {what}")
        if np.ma.is_masked(array):
            null = int(np.flatnonzero(np.ma.getmaskarray(array))[0])
            raise BadRow(null, "a null (a masked value), not a boolean; return the array's .filled(False) or .filled(True)")
        if array.dtype.kind == "b":
            _check_count(len(array), count)
            kept: list[int] = np.flatnonzero(array).tolist()
            return kept
        answers = array.tolist()
    _check_count(len(answers), count)
    return [i for i, answer in enumerate(answers) if keeps_row(answer, i)]


def collected(rows: Iterator[Mapping[str, Any]], i: int) -> list[Mapping[str, Any]]:
    """The rows that were made of row `i`. Raises `BadRow` once they have more text than a column takes."""
    made = list(itertools.islice(rows, SIZE_CHECK_ROWS))
    if len(made) < SIZE_CHECK_ROWS:
        return made
    sizes: dict[str, int] = {}
    more = made
    while more:
        for row in more:
            for name, value in row.items():
                if type(value) is str or type(value) is bytes:
                    sizes[name] = sizes.get(name, 0) + len(value)
        for name, size in sizes.items():
            if size > MAX_TEXT_BYTES:
                shown = f"over {MAX_TEXT_BYTES} bytes (2 GiB) of text or bytes for one row"
                raise BadRow(i, f"column `{name}`: {shown}, and a column takes at most that; make less of one row")
        more = list(itertools.islice(rows, SIZE_CHECK_ROWS))
        made += more
    return made


def _check_count(answers: int, count: int) -> None:
    if answers != count:
        raise BadRow(None, f"{answers} answers for a batch of {count} rows; return one boolean per row")


def _element(answer: Any) -> Any:
    """The value of an array without dimensions; None for others, and for a null."""
    array = _array(answer)
    return None if array is None or array.ndim != 0 or np.ma.is_masked(array) else array[()]


def _array(answer: Any) -> Any:
    """The answer as an array, if its type is one of arrays (of NumPy, Arrow, pandas, torch and others)."""
    if isinstance(answer, np.ndarray):
        return answer
    if not hasattr(answer, "__array__"):
        return None
    try:
        return np.asarray(answer)
    except Exception:  # on a GPU, for example
        return None


def _shown(answer: Any) -> str:
    """A short text of the value, and its type."""
    if isinstance(answer, np.ndarray) and answer.ndim > 0:
        return f"an array of {answer.dtype}{list(answer.shape)}"
    text = " ".join(reprlib.repr(answer).split())
    return f"{text if len(text) <= 40 else text[:37] + '...'} ({type(answer).__name__})"
