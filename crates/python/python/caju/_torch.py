"""Datasets for PyTorch."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from ._errors import InvalidPipeline
from ._views import refuse_nulls

if TYPE_CHECKING:
    from ._caju import Reader
    from ._dataset import Dataset

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
    """

    def __init__(
        self,
        dataset: Dataset,
        *,
        copy: bool = True,
        pin_memory: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        super().__init__()
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            rank = torch.distributed.get_rank() if rank is None else rank
            world_size = torch.distributed.get_world_size() if world_size is None else world_size
        service = dataset._service
        if (world_size or 1) > 1 and (service is None or not service.job_name):
            raise InvalidPipeline(
                f"rank {rank or 0} of {world_size}: every rank would read all rows; share them by "
                'distribute("caju://host:7070", job_name="...") with the same name on every rank'
            )
        if service is not None and not service.job_name:
            # The workers of the loader need a common job.
            dataset = dataset._copy()
            dataset._service = service.renamed(f"torch-{uuid.uuid4().hex[:12]}")
        self._dataset = dataset
        self._copy = copy
        self._pin = pin_memory
        self._epochs = torch.zeros(PROCESSES, dtype=torch.int64).share_memory_()

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of the next iteration. Without a call, epochs are counted from 0.

        A job's epoch is read once: on a service, an epoch that was read has no rows left.
        """
        self._epochs.fill_(epoch)
        if self._dataset._service is None:
            self._dataset = self._dataset._copy()  # a new job, of which no epoch has been read

    def __iter__(self) -> Iterator[dict[str, Any]]:
        info = get_worker_info()
        place = 0 if info is None else 1 + info.id
        epoch = int(self._epochs[place])
        self._epochs[place] += 1
        if info is not None and info.id > 0 and self._dataset._service is None:
            return iter(())
        row, dense = self._dataset._form()

        def take(reader: Reader) -> dict[str, Any] | None:
            element = reader.next_numpy(row, dense)
            return None if element is None else {n: self._tensor(n, v) for n, v in element.items()}

        def moved(at: int) -> None:
            self._epochs[place] = at + 1

        return self._dataset._open(take, epoch, moved)

    def __len__(self) -> int:
        return len(self._dataset)

    def _tensor(self, name: str, value: Any) -> Any:
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
