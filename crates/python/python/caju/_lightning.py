"""Datasets that Lightning's trainer reads.

Lightning fetches the batches of a loader without a length one ahead of the training loop, to know which one is the last. It
asks for an epoch that it does not read when it checks a loader and when it restores a checkpoint, and it loads no state where
it takes the epoch as finished. A loader gets no notice of it, so it is read from the frames that call it.
"""

from __future__ import annotations

import json
import sys
import weakref
from collections.abc import Iterator
from types import FrameType
from typing import Any, NamedTuple

from ._errors import FailedPrecondition
from ._iterator import DatasetIterator, record_final_state

PACKAGES = ("lightning.pytorch", "pytorch_lightning")
"""The two names under which Lightning is installed."""

ROOTS = ("lightning.", "pytorch_lightning.", "lightning_fabric.")
"""How the names of Lightning's modules begin."""

LOADERS = ("torch.utils.data", "torchdata.")
"""How the names of modules of loaders begin."""


class Restored(NamedTuple):
    """Where a checkpoint left the epochs of the training loop."""

    finished: int
    """The number of epochs that are finished."""
    batches: int
    """The batches of the next one that the loop got; 0 if it was not begun."""


class Caller(NamedTuple):
    """What asks for an epoch: a data fetcher of Lightning."""

    fetcher: Any
    collates: bool
    """Whether a loader in between makes batches of the elements."""
    is_stateful: bool
    """Whether a loader in between keeps the position of its iterator."""
    restored: Restored | None
    """What the training loop restored from a checkpoint, where it sets up its loaders."""


def caller() -> Caller | None:
    """The data fetcher that asks for an epoch; None if another loop does."""
    fetchers = _classes("loops.fetchers", "_DataFetcher")
    if not fetchers:
        return None
    loops = _classes("loops.fit_loop", "_FitLoop")
    fetcher, collates, is_stateful = None, False, False
    frame = sys._getframe(2)  # the caller of the dataset
    while frame is not None:
        owner = frame.f_locals.get("self")
        if fetcher is None:
            if isinstance(owner, fetchers):
                fetcher = owner
            collates = collates or getattr(owner, "_auto_collation", False) is True
            is_stateful = is_stateful or hasattr(owner, "load_state_dict")
        elif isinstance(owner, loops) and frame.f_code.co_name == "setup_data":
            return Caller(fetcher, collates, is_stateful, _restored(owner))
        frame = frame.f_back  # type: ignore[assignment]
    return None if fetcher is None else Caller(fetcher, collates, is_stateful, None)


def is_loader_check() -> bool:
    """Whether Lightning asks for an epoch that it does not read, only to check that a dataset is iterable."""
    return sys._getframe(2).f_code.co_name == "_check_dataloader_iterable"


def is_checkpoint() -> bool:
    """Whether Lightning asks for a state for a checkpoint. It asks all ranks, and saves only what rank 0 returns."""
    frame = sys._getframe(2)
    inner = frame.f_back if frame.f_code.co_name == "<listcomp>" else frame
    return inner is not None and inner.f_code.co_name == "_state_dicts"


def asks_for_length() -> bool:
    """Whether Lightning asks for a length: of a dataset, or of a loader around it."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and _module(frame).startswith(LOADERS):
        frame = frame.f_back
    return frame is not None and _module(frame).startswith(ROOTS)


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _classes(module: str, name: str) -> tuple[type, ...]:
    """A class of Lightning under the names of the package that are imported."""
    modules = [sys.modules.get(f"{package}.{module}") for package in PACKAGES]
    return tuple(getattr(m, name) for m in modules if hasattr(m, name))


def _restored(loop: Any) -> Restored | None:
    if not getattr(loop, "_loaded_from_state_dict", False):
        return None
    epochs, batches = loop.epoch_progress.current, loop.epoch_loop.batch_progress
    begun = batches.current.ready if epochs.started > epochs.processed else 0
    if begun and batches.is_last_batch:
        return Restored(epochs.processed + 1, 0)
    return Restored(epochs.processed, begun)


def no_position(restored: Restored) -> Iterator[Any]:
    """Refuses to go on within an epoch without a position. Lightning reports only errors of elements well."""
    raise FailedPrecondition(
        f"Lightning goes on {restored.batches} batches into epoch {restored.finished}, and its checkpoint has no position of this "
        "dataset: rows of the epoch would come again, and as many others never. Pass ds.torch() itself to the trainer, not a "
        "DataLoader around it: then checkpoints have the position. To begin an epoch again, call set_epoch() before fit()"
    )
    yield


class Feed(Iterator[Any]):
    """One epoch for a data fetcher of Lightning. Its state is the position of the training loop.

    An element that the fetcher holds back, because it reads one ahead, is not part of the state.
    """

    def __init__(self, caller: Caller, iterator: DatasetIterator[Any]) -> None:
        self._fetcher = weakref.ref(caller.fetcher)
        self._collates = caller.collates
        self._iterator = iterator
        self._taken = 0
        self._before: str | None = None  # the position before an element that the fetcher holds back
        self._first: Any = None  # the first element, while the fetcher holds it back
        self._again: list[Any] = []  # the element that is given once more
        self._ended: list[dict[str, Any] | Exception] | None = None

    def __next__(self) -> Any:
        if self._again:
            return self._again.pop()
        iterator = self._iterator
        before = iterator._position() if self._reads_ahead() and iterator._reader is not None else None
        try:
            element = next(iterator)
        except StopIteration:
            self._before = self._first = None
            raise
        self._taken += 1
        self._before = before
        self._first = element if before is not None and self._taken == 1 else None
        return element

    def _reads_ahead(self) -> bool:
        """Whether the fetcher reads one element ahead of the training loop."""
        fetcher = self._fetcher()
        return fetcher is not None and fetcher.length is None and getattr(fetcher, "prefetch_batches", 0) > 0

    def rewind(self, caller: Caller) -> bool:
        """Begins again for a fetcher that asks for the epoch once more, before the training loop got any of it."""
        if self._fetcher() is not caller.fetcher or self._taken != (0 if self._before is None else 1):
            return False
        if self._iterator._opened is None or json.loads(self._before or self._iterator._position())["elements"]:
            return False
        if self._before is not None:
            self._again = [self._first]
        return True

    def state_dict(self) -> dict[str, Any]:
        """The position of the training loop, as `DatasetIterator.state_dict`."""
        if self._before is None:
            return self._iterator.state_dict()
        fetcher = self._fetcher()
        ahead = 1 if fetcher is None else fetcher.prefetch_batches
        if self._collates or ahead > 1:
            what = f"holds back {ahead} batches" if ahead > 1 else "holds back a batch, which a DataLoader made of several elements"
            raise FailedPrecondition(
                f"the position of the training loop is not known: Lightning {what}; pass ds.batch(n).torch() itself to the trainer"
            )
        return self._iterator._state_of(self._before)

    def load_state_dict(self, state: Any, **arguments: Any) -> None:
        """Moves to another position, as `DatasetIterator.load_state_dict`."""
        self._iterator.load_state_dict(state, **arguments)
        self._taken, self._before, self._first, self._again = 0, None, None, []

    def __getattr__(self, name: str) -> Any:
        if name == "_iterator":
            raise AttributeError(name)
        return getattr(self._iterator, name)

    def __del__(self) -> None:
        record_final_state(self, getattr(self, "_ended", None))


__all__ = ["Caller", "Feed", "asks_for_length", "caller", "is_checkpoint", "is_loader_check", "no_position"]
