"""The numbers that a worker tunes while it runs, unless they are given by hand."""

from __future__ import annotations

from typing import Any, NamedTuple

from ._bounds import size_of
from ._numbers import whole

NAMES = ("split_readers", "buffer", "buffer_memory")
"""The arguments that give these numbers, which are those of `caju worker` (`--split-readers` and so on)."""

MAX_READERS = 2**32 - 1


class Tuned(NamedTuple):
    """The numbers of each worker of a process. None: the worker tunes the number, or has the default memory."""

    split_readers: int | None = None
    """Splits that each task reads concurrently."""
    buffer: int | None = None
    """Bytes of finished elements that each task may hold until readers take them, and that each `prefetch` may hold."""
    buffer_memory: int | None = None
    """The most bytes that all these queues of a worker hold together, and one element of each; 1 GiB by default."""

    @classmethod
    def of(cls, split_readers: Any, buffer: Any, buffer_memory: Any) -> Tuned:
        """The arguments of a user, checked."""
        return cls(
            whole("split_readers", split_readers, 1, MAX_READERS),
            size_of("buffer", buffer),
            size_of("buffer_memory", buffer_memory),
        )
