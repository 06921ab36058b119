"""The columns of a dataset."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow


class Schema(Mapping[str, str]):
    """Column names and their types, in order: `int64`, `string`, `list of int64`, `float32[224, 224, 3]`."""

    __slots__ = ("_ipc", "_types")

    def __init__(self, ipc: bytes) -> None:
        from . import _caju

        self._ipc = ipc
        self._types = dict(_caju.type_names(ipc))

    def __getitem__(self, name: str) -> str:
        return self._types[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._types)

    def __len__(self) -> int:
        return len(self._types)

    def __repr__(self) -> str:
        return "Schema(" + ", ".join(f"{name}: {kind}" for name, kind in self._types.items()) + ")"

    @property
    def names(self) -> list[str]:
        """The names of the columns, in order."""
        return list(self._types)

    def __arrow_c_schema__(self) -> object:
        """The schema for other libraries, by Arrow's PyCapsule interface: `pyarrow.schema(ds.schema)`."""
        from . import _caju

        return _caju.ipc_schema_capsule(self._ipc)

    def arrow(self) -> pyarrow.Schema:
        """The schema of pyarrow, which has to be installed."""
        import pyarrow

        return pyarrow.schema(self)
