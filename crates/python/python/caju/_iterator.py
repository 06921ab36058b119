"""The iterator over one epoch."""

from __future__ import annotations

import copy
import json
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from ._caju import Reader
    from ._epochs import Epochs

from ._caju import union_states
from ._errors import Cancelled, FailedPrecondition, InvalidPipeline, Unimplemented

T = TypeVar("T")

EMPTY = "AQAAAA=="
"""The taken rows of a state without rows."""

MAX_POSITION = 2**63 - 1
"""The largest epoch, and the largest number of elements, in a state: integers of Rust have 64 bits."""

_open: weakref.WeakSet[DatasetIterator[Any]] = weakref.WeakSet()
_connected: weakref.WeakSet[Epochs] = weakref.WeakSet()


def stop_readers(of: Any = None) -> None:
    """Closes the iterators that read from a cluster of this process, which is about to stop, and the connections of its
    datasets. Without a cluster, closes all.
    """
    for iterator in list(_open):
        if of is None or iterator._keep is of:
            iterator._stop(f"{of or 'caju'} was stopped while the dataset was read")
    for dataset in list(_connected):
        if of is None or of in (dataset._cluster, dataset._service and dataset._service.keep):
            dataset._client = None
            _connected.discard(dataset)


def forget_readers() -> None:
    """In a child of a fork: the parent closes its readers."""
    _open.clear()
    _connected.clear()


def connected(dataset: Epochs) -> None:
    """Registers the connection of a dataset, which `stop_readers` closes."""
    _connected.add(dataset)


class Stats(NamedTuple):
    """What an iterator has delivered so far."""

    rows: int
    """The number of rows."""
    elements: int
    """The number of elements: rows, or batches after `batch`."""
    bytes: int
    """Bytes of the rows."""
    wait_s: float
    """Seconds for which the loop waited for rows."""
    first_batch_s: float
    """Seconds from opening the epoch to the first rows; 0 until then."""
    elapsed_s: float
    """Seconds from opening the epoch until now, or until its end."""
    padded_elements: int = 0
    """Elements of those that repeat what another consumer of the job got (`uneven="pad"`)."""
    consumer_wait_s: float = 0.0
    """Of `wait_s`: an element was there, and other consumers of the job did not have theirs of the same round (`balance=`)."""
    received_bytes: int = 0
    """Bytes of rows that came over sockets, as they came."""
    mapped_bytes: int = 0
    """Bytes of rows that came in memory shared with a worker of this machine, without a copy."""


class Skipped(NamedTuple):
    """Rows that were skipped under `on_error`, for all readers of the job together."""

    rows: int
    """Their number."""
    first: list[str]
    """File, row and reason of the first ones, at most 100."""


class DatasetIterator(Iterator[T], Generic[T]):
    """One epoch of a dataset, element by element.

    It leaves the job when it is exhausted, closed or garbage collected. Rows that were not taken by then go to the job's
    other readers, if there are any. A read after a close is `Cancelled`: a loop in another thread must not mistake it for the
    end of the epoch.

    `state_dict` and `load_state_dict` are the protocol of torchdata's `StatefulDataLoader`.
    """

    def __init__(
        self,
        reader: Reader | FailedPrecondition,
        take: Callable[[Reader], T | None],
        keep: Any,
        epoch: int,
        reopen: Callable[[int, Sequence[str], bool, str | None, bool], Reader | None],
        shared: bool,
        skipped: Callable[[int], tuple[int, list[str]] | None] | None,
    ) -> None:
        # An epoch that cannot be read fails with its first element: until then a state of another one may be loaded.
        refused = reader if isinstance(reader, FailedPrecondition) else None
        self._reader: Reader | None = None if isinstance(reader, FailedPrecondition) else reader
        self._opened = self._reader
        self._take = take
        self._keep = keep  # alive: the cluster, if it is in this process
        self._epoch = epoch
        self._reopen = reopen
        self._shared = shared  # the job may have other readers
        self._loaded: dict[str, Any] | None = None  # the state of an epoch's end that was loaded
        self._ended: list[dict[str, Any] | Exception] | None = None  # gets the state when the iterator is dropped
        self._ask_skipped = skipped  # None if no row may be skipped
        self._skipped: Skipped | None = None
        self._elements = 0
        self._elements_before = 0  # those of them that came before the reader was opened
        self._exhausted = False
        self._stopped: str | None = None
        self._failure: Exception | None = refused
        _open.add(self)

    @property
    def _last(self) -> Reader:
        """The reader that was opened last."""
        if self._opened is None:
            failure = self._failure or FailedPrecondition(f"epoch {self._epoch} was not opened")
            raise _copy_of(failure) from failure
        return self._opened

    def __iter__(self) -> DatasetIterator[T]:
        return self

    def __next__(self) -> T:
        reader = self._reader
        if reader is None:
            # An epoch that failed has no end. A loop that continues must not mistake it for a short epoch.
            if self._failure is not None:
                raise _copy_of(self._failure) from self._failure
            if self._stopped is not None:
                raise Cancelled(self._stopped)
            raise StopIteration
        elements = self._elements
        try:
            element = self._take(reader)
            if element is not None:
                self._elements, self._loaded = elements + 1, None
                return element
        except Exception as e:
            self._give_back(reader, elements)
            self._failure = e
            self.close()
            raise
        except BaseException as e:  # Ctrl-C: no long waits
            self._give_back(reader, elements)
            self._stopped = f"epoch {self._epoch} was interrupted ({type(e).__name__}) after {elements} elements"
            self._leave(0.2)
            raise
        if self._stopped is not None:  # closed by another thread meanwhile
            raise Cancelled(self._stopped)
        self._exhausted = True
        keep = self._keep
        self.close()
        if self._ask_skipped is not None:
            said = self._ask_skipped(reader.iteration)
            self._skipped = None if said is None else Skipped(*said)
        del keep  # the cluster has to answer until here
        raise StopIteration

    def _give_back(self, reader: Reader, elements: int) -> None:
        """A call failed before the loop got its element. If the reader had taken one by then, no state counts it."""
        reader.give_back(elements - self._elements_before)
        self._elements = elements

    def state_dict(self) -> dict[str, Any]:
        """The position of this iterator, for `load_state_dict` of an iterator of the same dataset, also in another process.

        The elements that `next` has returned are before it, and what is left of the epoch behind it, whatever the order of
        the elements. If `next` raised, its element is behind it. It consists of plain values, and does not depend on workers,
        ranks, batches or the cache. In a job of several readers, such as ranks, the states of all of them at the same step are
        needed to go on.

        Functions of the dataset that draw from generators which are not caju's raise `Unimplemented` within an epoch.
        """
        return dict(self._loaded) if self._loaded is not None else self._state_of(self._position())

    def _position(self) -> str:
        """The position of the reader, which `_state_of` makes a state of."""
        return self._last.state()

    def _state_of(self, position: str) -> dict[str, Any]:
        """The state of a position. Refused if the dataset could not continue from it exactly."""
        state: dict[str, Any] = json.loads(position)
        not_exact = self._last.not_exact
        if not_exact is not None and state["elements"] and not state["exhausted"]:
            raise Unimplemented(
                f"a state after {state['elements']} elements of epoch {self._epoch} could not be continued exactly: "
                f"{not_exact}; or take it at an epoch's end"
            )
        return state

    def load_state_dict(
        self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]], *, attempt: str | None = None
    ) -> None:
        """Moves to the position of another iterator, or goes back to an earlier one of this iterator.

        A job of several readers continues from the states of all of them at one step: each reader loads its own, or each
        loads the states of all as a list. With the list, the number of readers may differ from before. The epoch begins
        when all states were given. Rows that readers of this job took after the state are read again.

        `attempt` names the launch of the program that restores the states: all of its processes give the same name, and a
        later launch gives another one. A process that comes late then goes on with the others, also when they have read the
        epoch to its end. Without a name it is the launch by torchrun or Slurm, if there is one.

        After the state of an exhausted iterator this one is exhausted too, and the next iterator reads the next epoch.
        """
        if not isinstance(state, Iterable) or isinstance(state, (str, bytes)):
            raise InvalidPipeline(f"{state!r} is not a state of a caju reader; give a dict of `state_dict()`, or a list of them")
        states = [state] if isinstance(state, Mapping) else list(state)
        if len(states) == 1 and isinstance(states[0], Mapping) and states[0].get("version") == 1:
            self._load_version_1(states[0])
            return
        try:
            texts = [json.dumps(dict(s)) for s in states]
        except (TypeError, ValueError) as e:
            raise InvalidPipeline(f"this is not a state of a caju reader: {e}") from None
        union: dict[str, Any] = json.loads(union_states(texts))
        self._check_place(union["fingerprint"], union["seed"])
        exhausted = union["exhausted"]
        # The other readers of a job need the rows of this state, also if nothing is left for this reader.
        alone = exhausted and not self._shared
        self._begin_again(union["epoch"], [] if alone else texts, not isinstance(state, Mapping), attempt, exhausted)
        # Within the epoch the reader has the state. Once another reader of the job has taken rows since, it names that reader.
        self._elements = self._elements_before = union["elements"]
        self._exhausted, self._loaded = exhausted, union if exhausted else None
        if exhausted:
            self.close()

    def _begin_again(
        self,
        epoch: int,
        states: Sequence[str],
        of_all: bool = False,
        attempt: str | None = None,
        exhausted: bool = False,
    ) -> None:
        self._leave(5.0, keep=True)
        self._failure = self._stopped = None
        try:
            reader = self._reopen(epoch, states, of_all, attempt, exhausted)
        except Exception as e:
            self._failure = e
            raise
        self._epoch = epoch
        if reader is not None:
            self._reader = self._opened = reader
            _open.add(self)

    def _check_place(self, fingerprint: Any, seed: Any) -> None:
        if self._opened is None:
            return  # the dispatcher compares them
        for what, was, here in [("dataset", fingerprint, self.fingerprint), ("seed", seed, self._last.seed)]:
            if was != here:
                raise InvalidPipeline(f"the state is of the {what} {was}, and this iterator reads {here}")

    def _load_version_1(self, state: Mapping[str, Any]) -> None:
        """Loads a state of caju 0.1, which counts the elements of a promised order: they are computed again and skipped."""
        try:
            fingerprint, seed = state["fingerprint"], state["seed"]
            epoch, elements, exhausted = state["epoch"], state["elements"], state["exhausted"]
        except KeyError as e:
            raise InvalidPipeline(f"this is not a state of a caju reader: {e!r} in {state!r}") from None
        for name, value in (("epoch", epoch), ("elements", elements)):
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_POSITION:
                raise InvalidPipeline(
                    f"this is not a state of a caju reader: `{name}` is {value!r}, not an integer from 0 to {MAX_POSITION}"
                )
        if not isinstance(exhausted, bool):
            raise InvalidPipeline(f"this is not a state of a caju reader: `exhausted` is {exhausted!r}, not True or False")
        self._check_place(fingerprint, seed)
        if exhausted:
            self._begin_again(epoch, [], exhausted=True)
        elif epoch != self._epoch or self._reader is None or self._elements:
            # The state of a reader that has taken nothing.
            begin = json.loads(self._last.state()) | {
                "epoch": epoch, "elements": 0, "rows": 0, "exhausted": False, "readers": [], "all_readers": [],
                "taken": EMPTY, "checksum": None,
            }
            self._begin_again(epoch, [json.dumps(begin)])
        self._elements, self._elements_before, self._exhausted = elements, 0, exhausted
        if exhausted:
            self._loaded = json.loads(self._last.state()) | {"exhausted": True, "elements": elements, "checksum": None}
            self.close()
            return
        try:
            for skipped in range(elements):
                if self._last.next_batch() is None:
                    raise InvalidPipeline(
                        f"the state is {elements} elements into epoch {epoch}, which has {skipped}: the data have changed"
                    )
        except Exception as e:
            self._failure = e
            self.close()
            raise

    @property
    def epoch(self) -> int:
        """The epoch, counted from 0."""
        return self._epoch

    @property
    def job(self) -> str:
        """The job's name, which is generated if none was given."""
        return self._last.job

    @property
    def fingerprint(self) -> str:
        """The dataset's fingerprint, from the dispatcher."""
        return self._last.fingerprint

    @property
    def stats(self) -> Stats:
        """What this iterator has delivered so far."""
        return Stats(*self._last.stats)

    @property
    def skipped(self) -> Skipped:
        """The rows that were skipped under `on_error`. Known when the epoch was read to its end; before that, and where
        the dispatcher has forgotten the job, a `FailedPrecondition`.
        """
        if self._ask_skipped is None:
            return Skipped(0, [])
        if self._skipped is None:
            why = "the dispatcher has forgotten the job" if self._exhausted else "the epoch is not at its end"
            raise FailedPrecondition(f"the number of rows that epoch {self._epoch} skipped is not known: {why}")
        return self._skipped

    @property
    def bottleneck(self) -> str | None:
        """The current bottleneck: `consumer`, or a stage; None while it is not known."""
        return self._last.bottleneck

    @property
    def splits(self) -> tuple[int, int]:
        """The number of splits that were assigned to workers, and of all splits (0 until the source is listed)."""
        return self._last.splits

    def close(self) -> None:
        """Leaves the job. A second call does nothing. Before the end of the epoch, a later read is `Cancelled`."""
        if self._reader is not None and not self._exhausted and self._stopped is None:
            self._stopped = f"epoch {self._epoch} was closed after {self._elements} elements"
        self._leave(5.0)

    def _leave(self, timeout: float, keep: bool = False) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close(timeout)
        if not keep:
            self._keep = None

    def _stop(self, why: str) -> None:
        if self._reader is not None:
            self._stopped = why
            self.close()

    def __del__(self) -> None:
        record_final_state(self, getattr(self, "_ended", None))

    def __enter__(self) -> DatasetIterator[T]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def record_final_state(iterator: Any, ended: list[dict[str, Any] | Exception] | None) -> None:
    """Appends the state of an iterator that is dropped to `ended`, or the error that says why it has none.

    The error is raised when the state is asked for. A state that nobody asks for raises nothing.
    """
    if ended is None or sys.is_finalizing():
        return
    try:
        ended.append(iterator.state_dict())
    except Exception as e:
        error = _copy_of(e)
        # The frames of a traceback hold the iterator.
        error.__traceback__ = error.__cause__ = error.__context__ = None
        ended.append(error)


def _copy_of(error: Exception) -> Exception:
    """A copy of an error without its traceback; the error itself if it cannot be copied."""
    try:
        again = copy.copy(error)
    except Exception:
        return error
    return again if type(again) is type(error) else error
