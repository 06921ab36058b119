"""Datasets whose elements are of other libraries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._errors import InvalidPipeline
from ._iterator import DatasetIterator
from ._ranks import check_counted, check_shared, completed, known_rank

if TYPE_CHECKING:
    import pyarrow

    from ._caju import Reader
    from ._dataset import Dataset
    from ._torch import TorchDataset

__all__ = ["ArrowView", "JaxView", "TorchDataset"]


class ArrowView:
    """Elements as pyarrow record batches, over the same memory. Each iteration is the next epoch.

    Libraries that read Arrow streams take it like the dataset itself: `polars.DataFrame(ds)`.
    """

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset

    def __iter__(self) -> DatasetIterator[pyarrow.RecordBatch]:
        import pyarrow

        def take(reader: Reader) -> pyarrow.RecordBatch | None:
            batch = reader.next_batch()
            return None if batch is None else pyarrow.record_batch(batch)

        return self._dataset._open(take)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """As that of the dataset."""
        return self._dataset.__arrow_c_stream__(requested_schema)

    def __len__(self) -> int:
        return len(self._dataset)


class JaxView:
    """Elements as dicts of JAX arrays, on a device. Each iteration is the next epoch.

    Strings, bytes and dates stay NumPy; ragged columns are lists of arrays. As everywhere in JAX, 64-bit numbers become
    32-bit ones unless `jax_enable_x64` is set.

    Several processes of `jax.distributed` (or `torch.distributed`) need a service and the same `job_name`: otherwise each would
    read all rows, which is refused unless it says `world_size=1`.
    """

    def __init__(self, dataset: Dataset, device: Any = None, *, world_size: int | None = None) -> None:
        self._dataset = dataset
        self._device = device
        self._world_size = world_size

    def _ranks(self) -> tuple[int, int]:
        """The rank of this process, and how many there are."""
        return completed(None, self._world_size, known_rank() if self._world_size is None else None)

    def __iter__(self) -> DatasetIterator[dict[str, Any]]:
        import jax

        service = self._dataset._service
        if service is None or not service.job_name:
            check_shared(False, *self._ranks())

        def put(name: str, value: Any) -> Any:
            if isinstance(value, dict):
                return {n: put(f"{name}.{n}", v) for n, v in value.items()}
            refuse_nulls(name, value)
            kind = value.dtype.kind if hasattr(value, "dtype") else "U"
            if kind == "O" and len(value) and all(hasattr(v, "dtype") for v in value):
                return [put(name, v) for v in value]
            return jax.device_put(value, self._device) if kind in "biuf" else value

        row, dense = self._dataset._form()

        def take(reader: Reader) -> dict[str, Any] | None:
            element = reader.next_numpy(row, dense)
            return None if element is None else {name: put(name, value) for name, value in element.items()}

        return self._dataset._open(take)

    def __len__(self) -> int:
        service = self._dataset._service
        if service is not None and service.job_name and service.consumer is None:
            check_counted(False, self._ranks()[1])
        return len(self._dataset)


def refuse_nulls(name: str, value: Any) -> None:
    """Raises `InvalidPipeline` for a column with nulls, which tensors cannot represent."""
    import numpy as np

    if value is None or isinstance(value, np.ma.MaskedArray):
        raise InvalidPipeline(
            f'column `{name}` has nulls, which tensors cannot represent; fill them: coalesce("{name}", 0)'
        )


def __getattr__(name: str) -> Any:
    # torch is imported only where its dataset is made.
    if name == "TorchDataset":
        from ._torch import TorchDataset

        return TorchDataset
    raise AttributeError(name)
