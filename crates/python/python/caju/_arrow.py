"""Batches for pyarrow, over the same memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow

    from ._caju import Batch


def record_batch(batch: Batch, schema: pyarrow.Schema) -> pyarrow.RecordBatch:
    """The batch as pyarrow's, without copying, but for types that buffers alone do not describe."""
    import pyarrow as pa

    parts = batch.parts()
    if parts is None:
        return pa.ipc.open_stream(batch.ipc()).read_next_batch()
    columns = [_array(field.type, part) for field, part in zip(schema, parts)]
    if not columns:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * batch.num_rows, pa.struct([])))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _array(kind: Any, part: tuple[Any, ...]) -> pyarrow.Array:
    import pyarrow as pa

    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, _array(kind.storage_type, part))
    length, nulls, offset, buffers, children = part
    memory = [None if b is None else pa.foreign_buffer(b.address, b.size, b) for b in buffers]
    fields = [kind.field(i).type for i in range(kind.num_fields)] if children else []
    below = [_array(f, child) for f, child in zip(fields, children)]
    if pa.types.is_null(kind):
        return pa.nulls(length)
    return pa.Array.from_buffers(kind, length, memory, nulls, offset, below)
