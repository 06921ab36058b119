"""One epoch, being read."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from ._caju import Reader

from ._errors import Cancelled

T = TypeVar("T")

_open: weakref.WeakSet[DatasetIterator[Any]] = weakref.WeakSet()


def stop_readers(of: Any = None) -> None:
    """Ends the iterators that read from a cluster of this process, which is about to stop; without one, all."""
    for iterator in list(_open):
        if of is None or iterator._keep is of:
            iterator._stop(f"{of or 'caju'} was stopped while the dataset was read")


class Stats(NamedTuple):
    """What was delivered so far."""

    rows: int
    """Rows."""
    elements: int
    """Elements: rows, or batches after `batch`."""
    bytes: int
    """Bytes of the rows."""
    wait_s: float
    """Seconds for which the loop waited for rows."""
    first_batch_s: float
    """Seconds from opening to the first rows; 0 until then."""
    elapsed_s: float
    """Seconds since opening, until now or the end of the epoch."""


class DatasetIterator(Iterator[T], Generic[T]):
    """One epoch of a dataset, element by element.

    It leaves the job when it is exhausted, closed or forgotten; what was not taken by then goes to the job's other
    readers, if there are any.
    """

    def __init__(self, reader: Reader, take: Callable[[Reader], T | None], keep: Any, epoch: int) -> None:
        self._reader: Reader | None = reader
        self._last = reader
        self._take = take
        self._keep = keep  # the cluster, if it is in this process
        self._epoch = epoch
        self._stopped: str | None = None
        _open.add(self)

    def __iter__(self) -> DatasetIterator[T]:
        return self

    def __next__(self) -> T:
        reader = self._reader
        if reader is None:
            if self._stopped is not None:
                raise Cancelled(self._stopped)
            raise StopIteration
        try:
            element = self._take(reader)
        except Exception:
            self.close()
            raise
        except BaseException:  # Ctrl-C: no waiting for anybody
            self._leave(0.2)
            raise
        if element is None:
            self.close()
            raise StopIteration
        return element

    @property
    def epoch(self) -> int:
        """The epoch that is read, from 0."""
        return self._epoch

    @property
    def job(self) -> str:
        """The job's name; made up if none was given."""
        return self._last.job

    @property
    def fingerprint(self) -> str:
        """The dataset's fingerprint, as the dispatcher has it."""
        return self._last.fingerprint

    @property
    def stats(self) -> Stats:
        """What was delivered so far."""
        return Stats(*self._last.stats)

    @property
    def bottleneck(self) -> str | None:
        """What holds the pipeline up at present: `consumer`, or a stage; None if nobody knows yet."""
        return self._last.bottleneck

    @property
    def splits(self) -> tuple[int, int]:
        """Splits handed out, and splits in all (0 while the listing goes on)."""
        return self._last.splits

    def close(self) -> None:
        """Leaves the job. Does nothing the second time."""
        self._leave(5.0)

    def _leave(self, patience: float) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close(patience)
        self._keep = None

    def _stop(self, why: str) -> None:
        if self._reader is not None:
            self._stopped = why
            self.close()

    def __enter__(self) -> DatasetIterator[T]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
