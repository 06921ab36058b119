"""Datasets as sources and sinks of Ray Data."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import pyarrow
import pyarrow.fs
import pyarrow.parquet
import ray.data
from ray.data import Datasink, Datasource, ReadTask
from ray.data.block import BlockAccessor, BlockMetadata

from .._cluster import url_of
from .._dataset import Dataset
from .._errors import AlreadyExists, InvalidPipeline, NotFound
from .._sources import read_parquet

PARTS = "_parts.json"
"""The list of the parts of a finished write. A part that is not in it is of an attempt that failed."""


class CajuDatasource(Datasource):  # type: ignore[misc, unused-ignore]  # ray may be absent
    """The rows of a dataset on a service, for `ray.data.read_datasource`. See `read`."""

    def __init__(self, dataset: Dataset) -> None:
        super().__init__()
        service = dataset._service
        if service is None:
            raise InvalidPipeline(
                "Ray Data reads in many processes, which need a service: ds.distribute(cluster), with the cluster of "
                "caju.ray.start_cluster or an address"
            )
        if service.consumer is not None:
            raise InvalidPipeline("num_consumers= has no meaning for Ray Data, which decides itself which task gets a row")
        self._dataset = dataset
        # The driver may not reach the source.
        self._schema = dataset._schema_of_epochs().arrow()

    def get_name(self) -> str:
        """The name in Ray's plans."""
        return "caju"

    def estimate_inmemory_data_size(self) -> int | None:
        """Not known."""
        return None

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        """Readers of one job. Each execution is a job of its own: an epoch of a job is read once."""
        dataset = self._dataset._copy()
        service = self._dataset._service
        assert service is not None
        dataset._service = service.renamed(f"{service.job_name or 'ray-data'}-{uuid.uuid4().hex[:12]}")
        metadata = BlockMetadata(num_rows=None, size_bytes=None, input_files=None, exec_stats=None)
        task = ReadTask(
            partial(_read, dataset), metadata, schema=self._schema, per_task_row_limit=per_task_row_limit
        )
        return [task] * max(parallelism, 1)


def _read(dataset: Dataset) -> Iterator[pyarrow.Table]:
    for batch in dataset.arrow():
        yield pyarrow.Table.from_batches([batch])


def read(dataset: Dataset, **options: Any) -> ray.data.Dataset:
    """The rows of a dataset that is distributed to a service, as a dataset of Ray Data. Batches become their rows.

    The read tasks are readers of one job: each row goes to one of them. A read task that dies takes rows with it, so
    tasks are not repeated, and the read fails. `options` are those of `ray.data.read_datasource`: `override_num_blocks` is the
    number of readers.
    """
    remote = {"max_retries": 0} | options.pop("ray_remote_args", {})
    return ray.data.read_datasource(CajuDatasource(dataset), ray_remote_args=remote, **options)


class CajuDatasink(Datasink[list[str]]):  # type: ignore[misc, unused-ignore]  # ray may be absent
    """Writes rows of Ray Data for `load`, for `ray_dataset.write_datasink`. See `write`."""

    def __init__(self, url: Any) -> None:
        self._url = url_of(url)

    def get_name(self) -> str:
        """The name in Ray's plans."""
        return "caju"

    def prepare(self) -> None:
        """Makes the folder, and refuses one with finished rows."""
        files, folder = _place(self._url)
        if files.get_file_info(f"{folder}/{PARTS}").type != pyarrow.fs.FileType.NotFound:
            raise AlreadyExists(f"{self._url} has the rows of a finished write; write to another place, or remove it")
        files.create_dir(folder, recursive=True)

    def on_write_start(self, schema: Any = None) -> None:
        """Called by Ray before the first block."""
        self.prepare()

    def write(self, blocks: Iterable[Any], ctx: Any) -> list[str]:
        """Writes blocks as parts, under names of this attempt alone."""
        files, folder = _place(self._url)
        names = []
        for block in blocks:
            table = BlockAccessor.for_block(block).to_arrow()
            if table.num_rows:
                names.append(f"{uuid.uuid4().hex}.parquet")
                pyarrow.parquet.write_table(table, f"{folder}/{names[-1]}", filesystem=files)
        return names

    def on_write_complete(self, write_result: Any) -> None:
        """Lists the parts of the attempts that count."""
        files, folder = _place(self._url)
        parts = sorted(name for names in write_result.write_returns for name in names)
        with files.open_output_stream(f"{folder}/{PARTS}") as out:
            out.write(json.dumps({"schema": "caju.parts/v1", "parts": parts}).encode())


def write(dataset: ray.data.Dataset, url: Any) -> None:
    """Writes the rows of a dataset of Ray Data as Parquet files under a folder or URL, for `load`.

    The list of the files is written last: rows of tasks that failed and were repeated are there once.
    """
    sink = CajuDatasink(url)
    # Here, so that the error is not wrapped, and for a dataset without rows, which Ray does not start to write.
    sink.prepare()
    dataset.write_datasink(sink)


def load(url: Any) -> Dataset:
    """The rows that `write` has written, as a dataset of caju."""
    place = url_of(url)
    files, folder = _place(place)
    try:
        with files.open_input_stream(f"{folder}/{PARTS}") as listed:
            parts = json.loads(listed.read())["parts"]
    except FileNotFoundError:
        raise NotFound(f"{place} has no {PARTS}: no write of Ray Data was finished there") from None
    if not parts:
        raise NotFound(f"{place}: the write of Ray Data had no rows")
    return read_parquet([f"{place.rstrip('/')}/{name}" for name in parts])


def _place(url: str) -> tuple[Any, str]:
    """The file system of a URL, and the path there."""
    files, folder = pyarrow.fs.FileSystem.from_uri(url if "://" in url else f"file://{url}")
    return files, folder.rstrip("/")
