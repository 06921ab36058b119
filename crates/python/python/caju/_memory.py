"""Rows that Python has in memory: held by the extension module, and named in definitions by their content."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from . import _caju
from ._errors import FailedPrecondition, InvalidPipeline

if TYPE_CHECKING:
    from ._dataset import Dataset

INLINE_BYTES = 8 << 20
"""Rows that travel within a definition: to servers, into pipeline files. More belongs into storage."""

PIECE_BYTES = 8 << 20
"""Rows of arrays that are copied at once."""


def from_arrow(data: Any) -> Dataset:
    """Rows that pyarrow (or anything that speaks Arrow's C stream) has in memory.

    Datasets that are computed in this process read them there. To servers, and into pipeline files, they travel
    within the definition, up to 8 MiB. The dataset is named by their content.
    """
    import pyarrow as pa

    if isinstance(data, pa.RecordBatch):
        data = pa.Table.from_batches([data])
    elif not isinstance(data, pa.Table):
        data = pa.table(data)
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, data.schema) as writer:
        writer.write_table(data, max_chunksize=8192)
    return _held(_caju.hold(sink.getvalue()))


def from_numpy(columns: Mapping[str, Any]) -> Dataset:
    """Rows from arrays: the first dimension counts rows, further ones make tensors; as `from_arrow` otherwise.

    Masked values, NaT and None among objects are null. Bytes whose last byte may be 0 belong into lists or arrays of
    objects: NumPy's own type of bytes drops it. The values are copied: what happens to the arrays later changes nothing.
    """
    from ._columns import BadRow, columns_of_arrays

    try:
        if (size := _plain_bytes(columns)) > PIECE_BYTES:
            return _held(_copied(columns, size))
        parts = columns_of_arrays(columns)
    except BadRow as e:
        where = "" if e.row is None else f" (row {e.row})"
        raise InvalidPipeline(f"from_numpy takes arrays of one length by name, not {e}{where}") from None
    # Columns of nothing but None have to be of some type.
    named = [c._replace(kind="string", values=[None] * c.shape[0]) if c.kind == "null" else c for c in parts]
    return _held(_caju.hold_columns(named))


def _plain_bytes(columns: Mapping[str, Any]) -> int:
    """Bytes of arrays of numbers of one length, whose rows can be copied piece by piece; 0 for all others."""
    import numpy as np

    from ._columns import TYPED

    if not isinstance(columns, Mapping) or not columns:
        return 0
    lengths = set()
    for array in columns.values():
        if type(array) is not np.ndarray or array.dtype.kind not in TYPED or array.ndim == 0:
            return 0
        lengths.add(len(array))
    return sum(array.nbytes for array in columns.values()) if len(lengths) == 1 else 0


def _copied(columns: Mapping[str, Any], size: int) -> _caju.Rows:
    """The rows of plain arrays, piece by piece: one copy of them all is made, not one after another."""
    from ._columns import columns_of_arrays

    count = len(next(iter(columns.values())))
    row_bytes = size // count
    rows = _caju.message_rows(row_bytes)
    step = rows * max(1, PIECE_BYTES // (rows * max(1, row_bytes)))
    builder = _caju.RowsBuilder(size, rows)
    for at in range(0, count, step):
        builder.add(columns_of_arrays({name: array[at : at + step] for name, array in columns.items()}))
    return builder.hold()


def _held(rows: _caju.Rows) -> Dataset:
    from ._dataset import Dataset

    return Dataset({"memory": {"sha256": rows.sha256}}, rows.num_rows, {rows.sha256: rows})


def inline(tree: dict[str, Any], held: Mapping[str, _caju.Rows]) -> dict[str, Any]:
    """The definition with the rows themselves in place of their names."""
    size = sum(rows.num_bytes for rows in held.values())
    if size > INLINE_BYTES:
        raise FailedPrecondition(
            f"{size / 2**20:.0f} MiB of rows in memory cannot travel within a definition, whose limit is "
            f"{INLINE_BYTES >> 20} MiB: write them to storage that the servers reach (pyarrow.parquet.write_table(table, "
            "path)) and read them from there (caju.read_parquet(path)), or compute in this process, without "
            "distribute or on a LocalCluster"
        )

    def dataset(tree: dict[str, Any]) -> dict[str, Any]:
        return tree | {"source": source(tree["source"])}

    def source(tree: dict[str, Any]) -> dict[str, Any]:
        [(kind, arguments)] = tree.items()
        if kind == "memory" and "sha256" in arguments:
            return {"memory": {"ipc": base64.b64encode(held[arguments["sha256"]].ipc()).decode("ascii")}}
        if isinstance(arguments, list):
            return {kind: [dataset(d) for d in arguments]}
        if "datasets" in arguments:
            return {kind: arguments | {"datasets": [dataset(d) for d in arguments["datasets"]]}}
        return tree

    return dataset(tree)
