"""Datasets for PyTorch."""

from __future__ import annotations

import json
import uuid
import weakref
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from ._errors import FailedPrecondition, InvalidPipeline
from ._iterator import _copy_of
from ._lightning import Caller, Feed, asks_for_length, caller, is_checkpoint, is_loader_check, no_position
from ._ranks import check_counted, check_shared, completed, of_torch
from ._replicas import Replicas
from ._views import refuse_nulls

if TYPE_CHECKING:
    from ._caju import Reader
    from ._dataset import Dataset
    from ._iterator import DatasetIterator

RANK = "rank-"
"""The names of ranks in states begin so."""

PROCESSES = 1 + 1024
"""Processes that count epochs: the main one, and the most workers of a DataLoader that are supported."""


class TorchDataset(IterableDataset[dict[str, Any]]):  # type: ignore[misc, unused-ignore]  # torch may be absent
    """The elements of a dataset as dicts of tensors, for a loop or a `DataLoader(..., batch_size=None)`.

    Each iteration is the next epoch. Strings and bytes are lists, ragged columns are lists of tensors, dates stay NumPy.

    With worker processes and a service, the workers of the loader share each epoch: every row goes to one of them. Without
    a service (no `distribute`), the first worker reads everything, since caju computes on all cores anyway. Ranks of
    `torch.distributed` need a service and the same `job_name`.

    Tensors are copies by default, which may be modified. `copy=False` gives tensors over caju's memory, which must not be
    modified. `pin_memory=True` copies into page-locked memory, from which `.to("cuda", non_blocking=True)` is asynchronous.

    `replication=N` gives each group of N consecutive ranks the same elements in the same order: the first rank of a group
    reads, and sends every element to the others. `num_consumers` and `consumer_index` of the service then count groups.
    """

    def __init__(
        self,
        dataset: Dataset,
        *,
        copy: bool = True,
        pin_memory: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
        replication: int = 1,
    ) -> None:
        super().__init__()
        self._given = rank, world_size
        self._rank, self._world_size = completed(rank, world_size, of_torch(torch))
        service = dataset._service
        self._is_shared = service is not None and bool(service.job_name)
        check_shared(self._is_shared, self._rank, self._world_size)
        if service is None:
            # Epochs are counted here, from 0: those that loops over the dataset itself have read, or other objects, are no part of them.
            dataset = dataset._copy()
        elif not service.job_name:
            # The workers of the loader need a common job.
            dataset = dataset._copy()
            dataset._service = service.renamed(f"torch-{uuid.uuid4().hex[:12]}")
        self._replicas = Replicas(replication, self._rank, self._world_size)
        self._dataset = dataset
        self._copy = copy
        self._pin = pin_memory
        self._epochs = torch.zeros(PROCESSES, dtype=torch.int64).share_memory_()
        self._placed_at = 0  # the epoch at which worker processes begin
        self._current: weakref.ref[DatasetIterator[Any] | Feed] | None = None
        self._ended: list[dict[str, Any] | Exception] = []
        self._to_load: dict[str, str] = {}
        self._is_placed = False  # the user or a checkpoint said where the next loop begins
        self._is_restored = False  # a state was loaded, and no loop has begun since
        self._attempt: str | None = None

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of the next iteration. Without a call, epochs are counted from 0.

        A job's epoch is read once: on a service, an epoch that was read has no rows left.
        """
        self._epochs.fill_(epoch)
        self._placed_at = epoch
        self._is_placed, self._is_restored = True, bool(self._to_load)
        if self._dataset._service is None:
            self._dataset = self._dataset._copy()  # a new job, of which no epoch has been read

    def _look_up_ranks(self) -> None:
        """`torch.distributed` may have been initialised since this dataset was made. A worker process of a loader, where it is not,
        has the ranks of its parent.
        """
        group = of_torch(torch)
        if group is None or not self._replicas.is_alone:
            return
        ranks = completed(*self._given, group)
        if ranks != (self._rank, self._world_size):
            self._rank, self._world_size = ranks
            self._replicas = Replicas(1, *ranks)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if is_loader_check():
            return iter(())
        self._look_up_ranks()
        check_shared(self._is_shared, self._rank, self._world_size)
        info = get_worker_info()
        place = 0 if info is None else 1 + info.id
        trainer = caller() if info is None else None
        if trainer is not None:
            last = self._current() if self._current is not None else None
            if isinstance(last, Feed) and last.rewind(trainer):
                return self._shared(last, place, int(self._epochs[place]) - 1)
        epoch, is_placed = int(self._epochs[place]), self._is_placed
        try:
            return self._begin(place, epoch, trainer)
        except BaseException:
            self._not_begun(place, epoch)
            self._is_placed = is_placed
            raise

    def _begin(self, place: int, epoch: int, trainer: Caller | None) -> Iterator[dict[str, Any]]:
        """Opens an epoch, or goes on from the states that were loaded."""
        info = get_worker_info()
        if info is not None and self._is_restored:
            # Each loop has new worker processes, and each of them would go on from the state again.
            raise FailedPrecondition(
                "a state was loaded into this dataset, and the worker processes of a DataLoader cannot go on from it: use "
                "num_workers=0 (caju computes on all cores without them), or torchdata's StatefulDataLoader, which has states "
                "of its worker processes"
            )
        is_placed, self._is_placed = self._is_placed, False
        restored = None if trainer is None else trainer.restored
        if trainer is not None and restored is not None and restored.batches and not (is_placed or trainer.is_stateful):
            return no_position(restored)
        if restored is not None and not restored.batches and not self._to_load:
            epoch = max(epoch, restored.finished)
        self._epochs[place] = epoch + 1
        if info is not None and info.id > 0 and self._dataset._service is None:
            return iter(())
        if info is not None and not self._replicas.is_alone:
            raise InvalidPipeline("replication needs a loader with num_workers=0: ranks exchange elements in their main processes")
        if not self._replicas.reads:
            self._to_load, self._is_restored, self._current, self._ended = {}, False, None, []
            return self._shared(None, place, epoch)
        try:
            stream = self._open(place, epoch, trainer)
        except Exception as e:
            if self._replicas.is_alone:
                raise
            # The other ranks wait for this one.
            return self._replicas.fail(e, lambda: self._not_begun(place, epoch))
        return self._shared(stream, place, epoch)

    def _not_begun(self, place: int, epoch: int) -> None:
        """The loop of this epoch could not begin: the next one is of the same epoch."""
        self._epochs[place] = epoch

    def _open(self, place: int, epoch: int, trainer: Caller | None) -> DatasetIterator[Any] | Feed:
        """The epoch, or what follows the states that were loaded."""
        info = get_worker_info()
        restored = None if trainer is None else trainer.restored
        row, dense = self._dataset._form()

        copies = (self._copy or self._pin) and not row

        def take(reader: Reader) -> dict[str, Any] | None:
            element = reader.next_copied(dense, self._allocate) if copies else reader.next_numpy(row, dense)
            return None if element is None else {n: self._tensor(n, v) for n, v in element.items()}

        def moved(at: int) -> None:
            self._epochs[place] = at + 1

        readers = self._replicas.num_readers * (1 if info is None else info.num_workers)
        states = [json.loads(text) for text in self._to_load.values()]
        iterator = self._dataset._open(take, epoch, moved, readers)
        if states:
            iterator.load_state_dict(states if len(states) > 1 else states[0], attempt=self._attempt)
            # Lightning finishes an epoch at its length, or at `limit_train_batches`, and asks for no end.
            is_finished = restored is not None and not restored.batches and iterator._elements > 0
            if iterator._exhausted or is_finished:
                iterator = self._dataset._open(take, iterator.epoch + 1, moved, readers)
                moved(iterator.epoch)
        stream = iterator if trainer is None else Feed(trainer, iterator)
        self._to_load, self._is_restored, self._current = {}, False, weakref.ref(stream)
        self._ended = stream._ended = []
        return stream

    def _shared(self, stream: Iterator[dict[str, Any]] | None, place: int, epoch: int) -> Iterator[dict[str, Any]]:
        if stream is not None and self._replicas.is_alone:
            return stream
        return self._replicas.share(stream, lambda: self._not_begun(place, epoch))

    def state_dict(self) -> dict[str, Any]:
        """The position of the loop over this dataset in this process, by rank: for `torch.distributed.checkpoint`, Lightning,
        and loaders without worker processes.

        The states of several ranks have different keys, so a checkpoint of all ranks keeps them all. Workers of a
        `DataLoader` have positions of their own, which torchdata's `StatefulDataLoader` collects.

        Lightning saves only what rank 0 returns, and asks all ranks. For its checkpoints each rank returns the states of all.
        """
        self._look_up_ranks()
        if not (is_checkpoint() and self._world_size > 1 and torch.distributed.is_initialized()):
            return self._state()
        own: dict[str, Any] | Exception
        try:
            own = self._state()
        except Exception as e:
            own = e.with_traceback(None)  # the other ranks get it, too
        states: list[Any] = [None] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(states, own)
        for state in [own, *states]:
            if isinstance(state, Exception):
                raise state
        assert isinstance(own, dict)
        return {name: value for state in states for name, value in state.items()} | own

    def _state(self) -> dict[str, Any]:
        """The position of this rank."""
        if get_worker_info() is not None:
            return {}  # in a worker process the position is that of its iterator
        if (self._epochs[1:] != self._placed_at).any():
            raise FailedPrecondition(
                "worker processes of a DataLoader read this dataset, and their positions are not known here: use torchdata's "
                "StatefulDataLoader, or num_workers=0 (caju computes on all cores without them)"
            )
        if self._to_load:
            return {"epoch": int(self._epochs[0])} | self._to_load
        # A loop that was left has closed its iterator.
        current = self._current() if self._current is not None else None
        if not self._replicas.reads:
            return {"epoch": int(self._epochs[0])}
        name = f"{RANK}{self._rank}"
        if current is None and self._is_placed:
            return {"epoch": int(self._epochs[0]), name: ""}
        states = self._ended if current is None else [current.state_dict()]
        if not states:
            if self._current is not None:
                raise FailedPrecondition("the last loop over this dataset left no position")
            return {"epoch": int(self._epochs[0]), name: ""}
        state = states[0]
        if isinstance(state, Exception):
            raise _copy_of(state) from None
        return {"epoch": state["epoch"], name: json.dumps(state)}

    def load_state_dict(self, state: Mapping[str, Any], *, attempt: str | None = None) -> None:
        """Goes on from a position with the next loop. `attempt` is that of `DatasetIterator.load_state_dict`.

        With the states of several ranks, as the dicts of `state_dict` of all ranks merged into one, this rank continues from
        all of them: then the number of ranks may be another one, provided that every rank loads the same.
        """
        if state == {}:
            return
        if not isinstance(state, Mapping) or not isinstance(state.get("epoch"), int):
            raise InvalidPipeline(f"this is not a state of a caju dataset for PyTorch: {state!r}")
        self._to_load = {name: text for name, text in state.items() if name.startswith(RANK) and text}
        self._attempt = attempt
        self._is_placed = self._is_restored = True
        self._epochs.zero_()
        self._placed_at = 0
        self._epochs[0] = state["epoch"]
        self._current, self._ended = None, []
        if self._dataset._service is None:
            self._dataset = self._dataset._copy()  # a new job, of which no epoch has been read

    def __len__(self) -> int:
        self._look_up_ranks()
        service = self._dataset._service
        consumer = None if service is None else service.consumer
        if consumer is not None and consumer[0] > 1 and asks_for_length():
            raise TypeError(
                "Lightning ends an epoch at its length without asking for its end, and one of several consumers that leaves before "
                "the end makes the others wait for it; give max_steps= where Lightning needs the number of steps"
            )
        check_counted(consumer is not None, self._replicas.num_readers)
        return len(self._dataset)

    def __getstate__(self) -> dict[str, Any]:
        self._look_up_ranks()
        # A loop of this process stays here.
        return self.__dict__ | {"_current": None, "_ended": []}

    def _allocate(self, shape: list[int], dtype: str) -> tuple[torch.Tensor, np.ndarray[Any, Any]]:
        """A tensor, and its memory as bytes."""
        if self._pin:
            tensor = torch.empty(shape, dtype=_dtype(np.dtype(dtype)), pin_memory=True)
            return tensor, tensor.numpy().reshape(-1).view(np.uint8)
        # NumPy asks the system for huge pages, and torch does not: a large array of fresh memory takes a third of the time.
        array = np.empty(shape, dtype)
        return torch.from_numpy(array), array.reshape(-1).view(np.uint8)

    def _tensor(self, name: str, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value
        if isinstance(value, dict):
            return {n: self._tensor(f"{name}.{n}", v) for n, v in value.items()}
        refuse_nulls(name, value)
        if not isinstance(value, np.ndarray):
            return torch.as_tensor(value) if isinstance(value, np.generic) and value.dtype.kind in "biuf" else value
        if value.dtype.kind == "O":
            return [self._tensor(name, v) if isinstance(v, np.ndarray) else v for v in value]
        if value.dtype.kind not in "biuf":
            return value
        if self._pin:
            pinned = torch.empty(value.shape, dtype=_dtype(value.dtype), pin_memory=True)
            np.copyto(pinned.numpy(), value)
            return pinned
        return torch.from_numpy(value.copy() if self._copy else np.asarray(_Writeable(value)))


class _Writeable:
    """The same memory without the read-only flag, which torch does not support and warns of."""

    def __init__(self, array: Any) -> None:
        self._array = array  # keeps the memory alive
        interface = dict(array.__array_interface__)
        interface["data"] = (interface["data"][0], False)
        self.__array_interface__ = interface


def _dtype(dtype: np.dtype[Any]) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype)).dtype
