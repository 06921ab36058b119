"""Checks of numbers that users give."""

from __future__ import annotations

import operator
from typing import Any

from ._errors import InvalidPipeline

MAX_INT = 2**63 - 1
"""The largest integer that an argument may be, if nothing else bounds it: those of Rust have 64 bits, signed or not."""


def whole(name: str, value: Any, least: int, most: int = MAX_INT, text: str | None = None) -> int | None:
    """An integer from `least` to `most`, also one of NumPy; None if none was given. `text` says what is expected."""
    if value is None:
        return None
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or not least <= number <= most:
        bounded = f"a whole number from {least} to {most}"
        kind = bounded if most != MAX_INT else "a positive number" if least == 1 else "a whole number, 0 or more"
        raise InvalidPipeline(f"{name}={value!r} must be {text or kind}")
    return number
