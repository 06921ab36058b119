"""What a process refuses to exceed, whatever a pipeline or the data say."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Union

from . import _caju
from ._errors import InvalidPipeline
from ._numbers import whole

Size = Union[int, str]
"""A number of bytes, also as text: `"64MiB"`."""

NAMES = ("chunk_memory", "max_record", "row_group_memory", "max_pixels", "bind_timeout")
"""The arguments that set bounds, which are those of the `caju` command (`--chunk-memory` and so on)."""


class Bounds(NamedTuple):
    """The bounds of a cluster, a server or a check. None is the default."""

    chunk_memory: int | None = None
    """Bytes that a stage may ask for while it works on one chunk of rows; 1 GiB by default."""
    max_record: int | None = None
    """Bytes of the largest record of a source: a line, a record, a file of an archive; 256 MiB by default."""
    row_group_memory: int | None = None
    """Bytes of the largest row group of a Parquet file, in the columns that are read; 2 GiB by default."""
    max_pixels: int | None = None
    """Pixels of the largest image; 100,000,000 by default."""
    bind_timeout: float | None = None
    """Seconds that checking and planning a pipeline may take; 10 by default."""

    @classmethod
    def of(
        cls, chunk_memory: Any, max_record: Any, row_group_memory: Any, max_pixels: Any, bind_timeout: Any
    ) -> Bounds:
        """The arguments of a user, checked."""
        return cls(
            size_of("chunk_memory", chunk_memory),
            size_of("max_record", max_record),
            size_of("row_group_memory", row_group_memory),
            whole("max_pixels", max_pixels, 1),
            _seconds("bind_timeout", bind_timeout),
        )


def size_of(name: str, value: Any) -> int | None:
    """A number of bytes, also as text, checked."""
    if not isinstance(value, str):
        return whole(name, value, 1, text="a number of bytes, or text such as \"64MiB\"")
    try:
        return _caju.size_bytes(value)
    except InvalidPipeline as e:
        raise InvalidPipeline(f"{name}={value!r}: {e}") from None


def _seconds(name: str, value: Any) -> float | None:
    if value is None:
        return None
    seconds = 0.0 if isinstance(value, (bool, str)) or not hasattr(value, "__float__") else float(value)
    if not (math.isfinite(seconds) and seconds > 0):
        raise InvalidPipeline(f"{name}={value!r} must be a positive number of seconds")
    return seconds
