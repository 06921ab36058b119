"""Groups of ranks that get the same elements, for trainers that divide a model and not the data."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ._errors import CajuError, InvalidPipeline

ELEMENT, END, ERROR, NOT_BEGUN = range(4)
"""What a message of the rank that reads is. `NOT_BEGUN`: an error before the epoch was open."""


class Replicas:
    """One of the groups of `replication` consecutive ranks. Its first rank reads; the others get what it reads, in lock-step:
    each element goes to all of them before the next one is read.

    `torch.distributed` must be initialised, and every rank must make its replicas at the same point.
    """

    def __init__(self, replication: Any, rank: int, world_size: int) -> None:
        if not isinstance(replication, int) or isinstance(replication, bool) or replication < 1:
            raise InvalidPipeline(f"replication={replication!r} must be a number of ranks, 1 or more")
        if world_size % replication:
            raise InvalidPipeline(f"replication={replication} does not divide the {world_size} ranks into groups of equal size")
        self.num_readers = world_size // replication
        """How many ranks read."""
        self.first = rank - rank % replication
        """The rank of this group that reads."""
        self.reads = rank == self.first
        """Whether this rank does."""
        self.is_alone = replication == 1
        """Whether each rank has elements of its own."""
        self._group: Any = None
        if self.is_alone:
            return
        distributed = torch.distributed
        if not (distributed.is_available() and distributed.is_initialized()):
            raise InvalidPipeline(f"replication={replication} needs torch.distributed: call init_process_group before")
        # All ranks make all groups, in one order.
        for first in range(0, world_size, replication):
            group = distributed.new_group(list(range(first, first + replication)))
            if first == self.first:
                self._group = group

    def share(self, elements: Iterator[dict[str, Any]] | None, not_begun: Callable[[], None]) -> Iterator[dict[str, Any]]:
        """The elements for this rank: those that it reads, or those of the rank that reads for it (then `elements` is None).

        An error of the rank that reads is an error of all. `not_begun` is called before one that came before the epoch was open.
        """
        while True:
            kind, value = self._exchange(self._next(elements) if elements is not None else None)
            if kind == END:
                return
            if kind == NOT_BEGUN:
                not_begun()
            if kind != ELEMENT:
                raise value
            yield value

    def fail(self, error: Exception, not_begun: Callable[[], None]) -> Iterator[dict[str, Any]]:
        """What `share` is for a rank that reads and could not open the epoch: an iterator that gives the error to all."""
        self._exchange((NOT_BEGUN, _portable(error)))
        not_begun()
        raise error
        yield  # makes this a generator, like `share`: nothing is sent before the first element is wanted

    def _next(self, elements: Iterator[dict[str, Any]]) -> tuple[int, Any]:
        try:
            return ELEMENT, next(elements)
        except StopIteration:
            return END, None
        except Exception as e:
            return ERROR, _portable(e)

    def _exchange(self, message: tuple[int, Any] | None) -> tuple[int, Any]:
        box = [message]
        torch.distributed.broadcast_object_list(box, src=self.first, group=self._group)
        assert box[0] is not None
        return box[0]


def _portable(error: Exception) -> Exception:
    """The error, or one with its words if it cannot be sent to another process."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return CajuError(f"{type(error).__name__}: {error}")
    return error
