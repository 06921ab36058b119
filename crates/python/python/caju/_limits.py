"""How long a reader waits, and how much it holds."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from ._bounds import Size, size_of
from ._errors import InvalidPipeline

MIN_FRAME = 2**20
"""The smallest bound of a frame, in bytes: a worker sends small elements in frames of some hundred KiB."""


class ReaderLimits(NamedTuple):
    """The times, in seconds, and the sizes, in bytes, that bound a reader. None is the default of `caju read`."""

    connect_timeout: float | None = None
    open_timeout: float | None = None
    worker_wait: float | None = None
    dispatcher_timeout: float | None = None
    stall_timeout: float | None = None
    dial_timeout: float | None = None
    worker_silence: float | None = None
    prefetch: int | None = None
    max_frame: int | None = None

    @classmethod
    def of(cls, max_frame: Size | None, prefetch: Size | None, **times: Any) -> ReaderLimits:
        """The arguments of a user, checked."""
        frame = size_of("max_frame", max_frame)
        if frame is not None and frame < MIN_FRAME:
            raise InvalidPipeline(f"max_frame={max_frame!r} must be at least 1 MiB: a worker sends small elements together")
        seconds = {name: _seconds(name, time) for name, time in times.items()}
        return cls(**seconds, prefetch=size_of("prefetch", prefetch), max_frame=frame)


def _seconds(name: str, value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0 or math.isinf(value):
        raise InvalidPipeline(f"{name}={value!r} must be a number of seconds, 0 or more")
    return float(value)
