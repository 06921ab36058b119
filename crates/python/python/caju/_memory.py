"""Rows in Python's memory, which definitions refer to by a digest of their content."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from . import _caju
from ._errors import FailedPrecondition, InvalidPipeline

if TYPE_CHECKING:
    from ._dataset import Dataset

INLINE_BYTES = 8 << 20
"""The most bytes of rows in a definition, on its way to a server or in a pipeline file. A dispatcher keeps every definition
in memory and in its journal."""

PART_BYTES = 8 << 20
"""Bytes of arrays that are copied at a time, to bound the memory of copies."""


def from_arrow(data: Any, *, copy: bool = True) -> Dataset:
    """Rows of any library that exports Arrow data by the PyCapsule interface: a polars or pandas data frame, a DuckDB
    relation, a pyarrow table, record batch or reader, another dataset. pyarrow is not needed.

    The rows are read to their end and copied once, so later changes of the data have no effect. With `copy=False` a dataset
    that is computed in this process reads the memory of `data`, which must not be changed from then on: stored rows would
    be those from before the change. Views of strings and bytes become plain strings and bytes, which are copies in any case.
    On the way to a server, and in a pipeline file, the rows are part of the definition, up to 8 MiB. The fingerprint of the
    dataset depends on their content.

    `InvalidPipeline` for an object without `__arrow_c_stream__` and `__arrow_c_array__`.
    """
    table = _caju.register_arrow(data, copy)
    if table is None:
        raise InvalidPipeline(
            f"from_arrow takes an object with Arrow data (`__arrow_c_stream__` or `__arrow_c_array__`), such as a polars, "
            f"pandas or pyarrow table, not {type(data).__name__}; for a dict of arrays or lists use caju.from_numpy"
        )
    return _dataset_of(table)


def from_numpy(columns: Mapping[str, Any]) -> Dataset:
    """Rows from arrays by name. The first dimension counts rows, further ones make tensors. As `from_arrow` otherwise.

    Masked values, NaT and None among objects are null. Give bytes that may end in 0 as lists or arrays of objects: NumPy's
    own type of bytes drops zeros at the end. The values are copied, so later changes of the arrays have no effect.
    """
    from ._column import BadRow
    from ._columns import columns_of_arrays

    try:
        if (size := _plain_bytes(columns)) > PART_BYTES:
            return _dataset_of(_copied(columns, size))
        parts = columns_of_arrays(columns)
    except BadRow as e:
        where = "" if e.row is None else f" (row {e.row})"
        raise InvalidPipeline(f"from_numpy takes arrays of one length by name, not {e}{where}") from None
    # A column of None alone needs a type.
    named = [c._replace(kind="string", values=[None] * c.shape[0]) if c.kind == "null" else c for c in parts]
    return _dataset_of(_caju.register_columns(named))


def _plain_bytes(columns: Mapping[str, Any]) -> int:
    """The bytes of arrays of numbers of one length, which can be copied in parts; 0 for other values."""
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


def _copied(columns: Mapping[str, Any], size: int) -> _caju.InlineTable:
    """Copies plain arrays in parts, so that memory holds one copy of the rows besides the arrays."""
    from ._columns import columns_of_arrays

    count = len(next(iter(columns.values())))
    row_bytes = size // count
    rows = _caju.message_rows(row_bytes)
    step = rows * max(1, PART_BYTES // (rows * max(1, row_bytes)))
    builder = _caju.InlineTableBuilder(size, rows)
    for at in range(0, count, step):
        builder.add(columns_of_arrays({name: array[at : at + step] for name, array in columns.items()}))
    return builder.register()


def _dataset_of(table: _caju.InlineTable) -> Dataset:
    from ._dataset import Dataset

    return Dataset({"memory": {"sha256": table.sha256}}, table.num_rows, {table.sha256: table})


def inline(tree: dict[str, Any], tables: Mapping[str, _caju.InlineTable]) -> dict[str, Any]:
    """The definition with the rows themselves in place of their digests."""
    size = sum(rows.num_bytes for rows in tables.values())
    if size > INLINE_BYTES:
        raise FailedPrecondition(
            f"{size / 2**20:.0f} MiB of rows in memory cannot be part of a definition, whose limit is "
            f"{INLINE_BYTES >> 20} MiB: write them to storage that the servers reach (pyarrow.parquet.write_table(table, "
            "path)) and read them from there (caju.read_parquet(path)), or compute in this process, without "
            "distribute or on a LocalCluster"
        )

    def dataset(tree: dict[str, Any]) -> dict[str, Any]:
        return tree | {"source": source(tree["source"])}

    def source(tree: dict[str, Any]) -> dict[str, Any]:
        [(kind, arguments)] = tree.items()
        if kind == "memory" and "sha256" in arguments:
            return {"memory": {"ipc": base64.b64encode(tables[arguments["sha256"]].ipc()).decode("ascii")}}
        if isinstance(arguments, list):
            return {kind: [dataset(d) for d in arguments]}
        if "datasets" in arguments:
            return {kind: arguments | {"datasets": [dataset(d) for d in arguments["datasets"]]}}
        return tree

    return dataset(tree)
