"""The same elements in other clothes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._iterator import DatasetIterator

if TYPE_CHECKING:
    import pyarrow

    from ._caju import Reader
    from ._dataset import Dataset
    from ._torch import TorchDataset

__all__ = ["ArrowView", "JaxView", "TorchDataset"]


class ArrowView:
    """Elements as pyarrow record batches, over the same memory. Each iteration is the next epoch."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset

    def __iter__(self) -> DatasetIterator[pyarrow.RecordBatch]:
        from ._arrow import record_batch
        from ._schema import Schema

        schema: Any = None

        def take(reader: Reader) -> pyarrow.RecordBatch | None:
            nonlocal schema
            batch = reader.next_batch()
            if batch is None:
                return None
            if schema is None:
                schema = Schema(reader.schema_ipc).arrow()
            return record_batch(batch, schema)

        return self._dataset._open(take)

    def __len__(self) -> int:
        return len(self._dataset)


class JaxView:
    """Elements as dicts of JAX arrays, on a device; strings stay NumPy. Each iteration is the next epoch."""

    def __init__(self, dataset: Dataset, device: Any = None) -> None:
        self._dataset = dataset
        self._device = device

    def __iter__(self) -> DatasetIterator[dict[str, Any]]:
        import jax

        def put(value: Any) -> Any:
            if isinstance(value, dict):
                return {name: put(v) for name, v in value.items()}
            return jax.device_put(value, self._device) if value.dtype.kind in "biuf" else value

        row, dense = self._dataset._form()

        def take(reader: Reader) -> dict[str, Any] | None:
            element = reader.next_numpy(row, dense)
            return None if element is None else put(element)

        return self._dataset._open(take)

    def __len__(self) -> int:
        return len(self._dataset)


def __getattr__(name: str) -> Any:
    # torch is imported only where its dataset is made.
    if name == "TorchDataset":
        from ._torch import TorchDataset

        return TorchDataset
    raise AttributeError(name)
