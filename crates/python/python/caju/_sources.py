"""Sources: files, numbers, and combinations of datasets."""

from __future__ import annotations

import base64
import json
import math
import operator
import os
from collections.abc import Mapping, Sequence
from typing import Any, SupportsIndex, Union

from . import _caju
from ._dataset import Dataset, dataset_id_of
from ._errors import InvalidPipeline
from ._schema import Schema
from ._service import Service
from ._stages import refuse_not_finite

Paths = Union[str, "os.PathLike[str]", Sequence[Union[str, "os.PathLike[str]"]]]
"""A path or URL, which may hold patterns, or a list of them."""


def range(*args: SupportsIndex) -> Dataset:  # noqa: A001  # tf.data's name
    """Consecutive integers in the column `id`: `range(end)`, `range(start, end)` or `range(start, end, step)`."""
    import builtins

    try:
        whole = [operator.index(a) for a in args]
    except TypeError:
        whole = []
    if not 1 <= len(whole) <= 3:
        raise InvalidPipeline("range takes one to three integers: range(end), range(start, end), range(start, end, step)")
    start, end, step = (0, whole[0], 1) if len(whole) == 1 else (whole[0], whole[1], whole[2] if len(whole) == 3 else 1)
    out = _source({"range": {"start": start, "end": end, "step": step}})
    out._rows = len(builtins.range(start, end, step))
    return out


def read_tfrecord(paths: Paths, *, compression: str = "auto", **files: Any) -> Dataset:
    """TFRecord files; one column `record` (bytes), usually followed by `parse_example`."""
    return _files("tfrecord", paths, files, compression=compression)


def read_parquet(paths: Paths, *, columns: Sequence[str] | None = None, **files: Any) -> Dataset:
    """Parquet files: their columns, or those named."""
    return _files("parquet", paths, files, columns=columns)


def read_arrow(paths: Paths, *, columns: Sequence[str] | None = None, **files: Any) -> Dataset:
    """Arrow IPC files: their columns, or those named."""
    return _files("arrow", paths, files, columns=columns)


def read_webdataset(
    paths: Paths, *, columns: Sequence[str] | None = None, compression: str = "auto", **files: Any
) -> Dataset:
    """Tar files of samples: `__key__` and one column (bytes) per extension."""
    return _files("webdataset", paths, files, columns=columns, compression=compression)


def read_csv(
    paths: Paths,
    *,
    header: bool = True,
    delimiter: str = ",",
    schema: Mapping[str, str] | None = None,
    compression: str = "auto",
    **files: Any,
) -> Dataset:
    """Files of comma-separated values. Without `schema`, names and types are inferred from the first rows."""
    schema = None if schema is None else dict(schema)
    return _files("csv", paths, files, header=header, delimiter=delimiter, schema=schema, compression=compression)


def read_json(
    paths: Paths, *, schema: Mapping[str, str] | None = None, compression: str = "auto", **files: Any
) -> Dataset:
    """Files of one JSON object per line. Without `schema`, names and types are inferred from the first rows."""
    schema = None if schema is None else dict(schema)
    return _files("json", paths, files, schema=schema, compression=compression)


def read_images(paths: Paths, **files: Any) -> Dataset:
    """One row per image file: `path`, `image` (bytes), `label` (the folder's name)."""
    return _files("images", paths, files)


def concatenate(*datasets: Dataset) -> Dataset:
    """The datasets one after another."""
    children = [_child(d) for d in datasets]
    rows = [d._rows if not d._steps else None for d in datasets]
    out = _combined({"concatenate": children}, datasets)
    out._rows = sum(r for r in rows if r is not None) if None not in rows else None
    return out


def zip(*datasets: Dataset) -> Dataset:  # noqa: A001  # tf.data's name
    """Rows with the columns of all datasets. The datasets must have the same rows in the same splits."""
    return _combined({"zip": [_child(d) for d in datasets]}, datasets)


def sample_from_datasets(
    datasets: Sequence[Dataset], weights: Sequence[float] | None = None, seed: int | None = None
) -> Dataset:
    """Rows drawn from the datasets by weight (equal weights by default) until all datasets are at their end.

    A dataset may end with `repeat`, also without a count, if the rows of its splits are known before they are read.
    """
    given = list(weights) if weights is not None else [1] * len(datasets)
    for i, weight in enumerate(given):
        if not isinstance(weight, (int, float)) and not hasattr(weight, "__float__"):
            raise InvalidPipeline(f"weights[{i}]={weight!r} is not a number")
        if not (math.isfinite(weight) and weight > 0):
            raise InvalidPipeline(f"weights[{i}]={weight!r} must be a positive number, and finite")
    arguments = {"datasets": [_child(d) for d in datasets], "weights": given}
    return _combined({"sample": arguments | ({} if seed is None else {"seed": seed})}, datasets)


def from_yaml(text: str, base: str | os.PathLike[str] | None = None) -> Dataset:
    """A dataset from the text of a pipeline file. Relative paths are resolved against `base`, by default the working folder."""
    return _definition(text, os.getcwd() if base is None else os.path.abspath(base))


def read_yaml(file: str | os.PathLike[str]) -> Dataset:
    """A dataset from a pipeline file. Relative paths are resolved against its folder."""
    with open(file, encoding="utf-8") as f:
        return _definition(f.read(), os.path.dirname(os.path.abspath(file)))


def from_dataset_id(service: Any, dataset_id: str | bytes, **distribute: Any) -> Dataset:
    """The dataset that was registered at a service under this id. Further arguments are those of `distribute`."""
    return _Registered(dataset_id_of(dataset_id)).distribute(service, **distribute)


class _Registered(Dataset):
    """A dataset of which this process knows only the id."""

    def __init__(self, dataset_id: str) -> None:
        super().__init__({"registered": dataset_id})
        self._id = dataset_id
        self._registered: tuple[str, bytes, str] | None = None

    def _lookup(self) -> tuple[str, bytes, str]:
        """The fingerprint, the schema and the definition that the service has."""
        if self._registered is None:
            if self._service is None:
                raise InvalidPipeline(
                    f"only the id `{self._id}` is known here, and no service to ask: caju.from_dataset_id(address, "
                    f"{self._id!r})"
                )
            self._registered = self._connect(self._service).dataset(self._id)
        return self._registered

    def _tree(self) -> dict[str, Any]:
        tree: dict[str, Any] = json.loads(self._lookup()[2])
        return tree

    @property
    def fingerprint(self) -> str:
        """A digest of what is computed, from the service."""
        return self._lookup()[0]

    def _columns(self) -> Sequence[Schema | None]:
        # Only the service may reach the source. It has the columns of the elements.
        return [None] * len(self._tree()["steps"]) + [Schema(self._lookup()[1])]

    def _schema_of_epochs(self) -> Schema:
        return self.schema

    def _with(self, step: dict[str, Any]) -> Dataset:
        raise self._fixed("given further stages")

    def with_options(self, **options: Any) -> Dataset:
        """Refused: the service has the options of the dataset with its definition."""
        raise self._fixed("given other options", "; only the seed can be given here: caju.from_dataset_id(..., seed=7)")

    def _fixed(self, what: str, possible: str = "") -> InvalidPipeline:
        """The error of a change to what the service has."""
        return InvalidPipeline(
            f"the registered dataset `{self._id}` cannot be {what}{possible}; build the pipeline from its definition: "
            "caju.from_yaml(dataset.to_yaml())"
        )

    def _read(
        self,
        client: _caju.Client,
        service: Service,
        epoch: int,
        states: Mapping[str, Any] | None = None,
    ) -> _caju.Reader:
        return client.read(None, dataset_id=self._id, **self._request(service, epoch), **(states or {}))

    def __repr__(self) -> str:
        where = self._service.address if isinstance(self._service, Service) else "?"
        return f"<caju.Dataset {self._id} on {where}>"


def _files(kind: str, paths: Paths, files: Mapping[str, Any], **arguments: Any) -> Dataset:
    unknown = set(files) - {"split", "version"}
    if unknown:
        raise InvalidPipeline(f"read_{kind} has no argument {', '.join(sorted(unknown))}; arguments of all files are split and version")
    given = {name: value for name, value in (arguments | dict(files)).items() if value is not None}
    if "columns" in given:
        given["columns"] = list(given["columns"])
    many = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    where = [_absolute(os.fspath(p)) for p in many]
    return _source({kind: {"path": where[0] if len(where) == 1 else where, **given}})


def _absolute(path: str) -> str:
    # An empty path would be the working folder. It is refused with the others.
    return path if "://" in path or not path.strip() else os.path.abspath(path)


def _child(dataset: Dataset) -> dict[str, Any]:
    if not isinstance(dataset, Dataset):
        listed = isinstance(dataset, (list, tuple)) and all(isinstance(d, Dataset) for d in dataset)
        hint = "; give the datasets as arguments of their own: `*datasets`" if listed else ""
        raise InvalidPipeline(f"{dataset!r} is not a caju.Dataset{hint}")
    if isinstance(dataset, _Registered):
        raise dataset._fixed("combined with other datasets")
    if dataset._service is not None:
        raise InvalidPipeline(
            f"a dataset of the combination is distributed, to {dataset._service.address}, and the combined dataset would not be; call "
            "distribute on the combined dataset, and combine the datasets as they were before"
        )
    kept = {k: v for k, v in dataset._tree().items() if k in ("name", "source", "steps")}
    lost = set(dataset._options) - {"name"} - _DEFAULTS
    if lost:
        raise InvalidPipeline(
            f"{', '.join(sorted(lost))}: an option of a whole pipeline; give it to the combined dataset by with_options"
        )
    return kept


# Options that a dataset from YAML always has. Their defaults hold in a combined dataset too.
_DEFAULTS = {"on_error", "deterministic"}


def _combined(source: dict[str, Any], datasets: Sequence[Dataset]) -> Dataset:
    out = _source(source)
    for dataset in datasets:
        out._tables |= dataset._tables
    return out


def _source(source: dict[str, Any]) -> Dataset:
    out = Dataset(source)
    refuse_not_finite(source, "source")
    # With all defaults. Paths and names are checked here, at the line of the user that gives them.
    out._source = json.loads(_caju.check(out._json()))["source"]
    return out


def _definition(text: str, base: str) -> Dataset:
    """A dataset from the text of a pipeline file."""
    whole = json.loads(_caju.from_yaml(text, base))
    source, steps = whole.pop("source"), whole.pop("steps")
    out = Dataset(source, _rows_of(source))
    out._steps, out._options = tuple(steps), whole
    return out


def _rows_of(source: dict[str, Any]) -> int | None:
    """The number of rows of a source, if its definition has it."""
    import builtins

    [(kind, arguments)] = source.items()
    if kind == "range":
        return len(builtins.range(arguments["start"], arguments["end"], arguments["step"]))
    if kind == "memory" and "ipc" in arguments:
        return _caju.ipc_rows(base64.b64decode(arguments["ipc"]))
    return None
