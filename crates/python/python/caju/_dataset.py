"""The dataset: an immutable pipeline definition, which is read epoch by epoch."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from . import _caju
from ._bounds import Size
from ._cardinality import Cardinality, of_consumer
from ._cluster import address_of, configured_bounds
from ._epochs import Epochs
from ._errors import InvalidPipeline
from ._iterator import DatasetIterator
from ._limits import ReaderLimits
from ._memory import inline
from ._schema import Schema
from ._service import Service, consumers_of, precedence_of, sharing_of
from ._stages import Stages, given, names_of, plain, refuse_not_finite

if TYPE_CHECKING:
    from ._save import Save
    from ._views import ArrowView, JaxView, TorchDataset


class Dataset(Stages, Epochs):
    """A source and stages. Every method that adds a stage returns a new dataset.

    Iterating reads one epoch: dicts of NumPy arrays after `batch`, dicts of single values before it. Each new iteration
    is the next epoch, in which everything random draws again. Without `distribute` the rows are computed in this process.

    Libraries that read Arrow data take a dataset as it is, without copies: `polars.DataFrame(ds)`, `pyarrow.table(ds)`,
    `duckdb.sql("SELECT * FROM ds")`.
    """

    def __init__(
        self, source: dict[str, Any], rows: int | None = None, tables: Mapping[str, _caju.InlineTable] | None = None
    ) -> None:
        self._source = source
        self._rows = rows
        # Rows in memory that the definition refers to. They live as long as a dataset that refers to them.
        self._tables: dict[str, _caju.InlineTable] = dict(tables or {})
        self._steps: tuple[dict[str, Any], ...] = ()
        self._options: dict[str, Any] = {}
        self._service: Service | None = None
        self._policy = ""
        self._fresh()

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        # Connections and clusters belong to this process.
        state.update(_client=None, _cluster=None, _job=None)
        return state

    # ---- whole datasets ----------------------------------------------------------------------------------------

    def concatenate(self, *others: Dataset) -> Dataset:
        """This dataset, then the others."""
        from ._sources import concatenate

        return concatenate(self, *others)

    def with_options(
        self,
        *,
        name: str | None = None,
        seed: int | None = None,
        on_error: str | Mapping[str, Any] | None = None,
        deterministic: bool | None = None,
        reorder: bool | Mapping[str, Any] | None = None,
    ) -> Dataset:
        """Settings of the whole pipeline: a name for display, the seed, `on_error` (`"fail"`, `"skip"` or
        `{"skip": {"limit": 100}}`), whether the order of rows is the same in every run, and whether stages that shrink rows
        may run earlier than they are written, where both orders give the same rows. `explain()` names the order.
        """
        out = self._copy()
        out._options = self._options | given(
            name=name, seed=seed, on_error=on_error, deterministic=deterministic, reorder=reorder
        )
        out._check()
        return out

    def distribute(
        self,
        service: Any,
        *,
        job_name: str | None = None,
        epochs: int | None = None,
        processing_mode: str = "dynamic",
        seed: int | None = None,
        num_consumers: int | None = None,
        consumer_index: int | None = None,
        uneven: str | None = None,
        sharing: str | None = None,
        trainer_id: str | None = None,
        priority: int | None = None,
        weight: float | None = None,
        balance: str | None = None,
        policy: str | None = None,
        encoding: str | None = None,
        lost_readers: str = "fail",
        target_workers: str | None = None,
        local_workers: int | str | None = None,
        compression: str | None = None,
        data_transfer_protocol: str | None = None,
        connect_timeout: float = 10.0,
        open_timeout: float = 120.0,
        worker_wait: float = 60.0,
        dispatcher_timeout: float = 60.0,
        stall_timeout: float = 300.0,
        dial_timeout: float = 5.0,
        worker_silence: float = 30.0,
        prefetch: Size = "64MiB",
        max_frame: Size | None = None,
    ) -> Dataset:
        """Computes the dataset on a service: `"caju://host:7070"`, a `LocalCluster` or `start_dispatcher()`.

        Readers with the same `job_name` share each epoch: every row goes to one of them. Without a name this dataset reads
        alone. `epochs` is the number of epochs that will be read, which helps to decide what is worth storing.
        `processing_mode` is "dynamic" (every row once), "off" (all rows from every worker), or "file", "data",
        "file_or_data" or "hint": worker k of the n that the dispatcher is configured with has shard k of n. `seed` replaces
        that of the pipeline. `policy` and `encoding` are those of `caju run`: who decides where rows are stored, and how new parts are
        written.

        A reader of the job that is killed, or silent for the dispatcher's `--client-timeout`, is lost. The rows that it had
        used are not delivered again, so the epoch ends with a `FailedPrecondition` for the other readers, unless they accept
        the loss with `lost_readers="allow"`. Rows that it had not used go to the other readers in any case.

        With `num_consumers=N` the job has N readers, each with a `consumer_index` from 0 to N - 1, and all of them get the
        same number of elements in each epoch, however fast they are. What is left when all have had equally many is dropped
        (`uneven="drop"`, the default), or delivered with copies for the others (`uneven="pad"`; `stats` counts them). A
        consumer that leaves early or vanishes ends the epoch of all with an `Unavailable`. With `uneven` or `balance`, the
        number or the index that is not given is the rank of this process in `torch.distributed` or `jax.distributed`, where
        one of them is initialised.

        With `sharing="exact"` jobs that run at the same time and compute the same rows, down to a common `autocache` hint or to
        their last stage above `shuffle` and `batch`, compute them once per worker. Each job still gets each row of its epochs
        exactly once, whenever it begins and however fast it is: rows that a worker holds no more are computed for it. With
        `sharing="relaxed"` such rows are left out, if another job computed them in the same epoch: rows are lost on purpose, and
        the job's status counts them. Trainers
        that read one `job_name` with different `trainer_id`s get all rows each, as jobs of different names do.

        `priority` (0) and `weight` (1) belong to the job. Where the dispatcher may ask for too few workers for all jobs, its
        status serves jobs of a higher priority first, and divides the rest by weight. Workers divide their CPU threads
        accordingly among the jobs that want them at the same time.

        `balance` says what the n-th elements of all consumers, a round, have in common. "bucket": they are of one worker and
        one class of `bucket_by_length`, and their padded lists have one length. "tokens": rows are packed so that they have
        nearly the same number of items. Then the consumers read at the same time, each in a process or thread of its own:
        a round is delivered when all have received it, and `stats.consumer_wait_s` is how long this one waited for others.

        `target_workers="local"` reads only from the workers of this process (`start_worker`), without a socket; a dispatcher
        elsewhere still assigns the rows. When the last of them stops, the epoch fails with `Cancelled`. "any" reads from all
        workers. "auto", the default, reads from all except workers of other processes that have the tag `COLOCATED`. All
        readers of a job say the same.

        `local_workers=N` starts a worker on N cores in this process when the dataset is first used; "auto" takes
        the cores that are spare: those that are neither busy nor needed by the training processes of the host. Datasets of this
        process with the same number share it, and it stops with the last of them. Its rows reach this process without a
        socket, and the dispatcher's target has only the workers that are needed beyond it.

        `compression` is how rows travel over sockets: None, "lz4", "zstd", or "auto": lz4 from workers on other machines. Rows
        that hardly shrink are sent as they are. `data_transfer_protocol` is "framed" (over TCP), "local" (from workers of this
        process, as they are) or "auto", the default, which takes the one that fits each worker: workers of this machine give
        large batches in shared memory, where that works.

        Every wait ends, with an error that names who was waited for. The times are in seconds: `connect_timeout` for a
        dispatcher that does not answer at the beginning, `open_timeout` for one that plans the pipeline and lists its
        source, `worker_wait` for the first worker, `dispatcher_timeout` for a dispatcher that is away during an epoch, `stall_timeout` for an epoch that does not end although nothing is left to
        read, `dial_timeout` for the connection to a worker, and `worker_silence` for a worker that sends nothing; behind the
        last two, its rows are asked of others. Up to `prefetch` bytes of rows are on their way or wait for this reader, and
        an element of more than `max_frame` bytes (2 GiB by default) is refused before memory is asked for. Sizes may be text
        such as `"4GiB"`.
        """
        consumer = consumers_of(job_name, num_consumers, consumer_index, uneven, balance)
        shares = sharing_of(job_name, sharing, trainer_id, consumer)
        if self._service is not None:
            raise InvalidPipeline(
                f"this dataset is distributed already, to {self._service.address}, and a second `distribute` would "
                "drop what the first one was given; give all arguments to one call, on the dataset as it was before"
            )
        limits = ReaderLimits.of(
            max_frame, prefetch, connect_timeout=connect_timeout, open_timeout=open_timeout, worker_wait=worker_wait, dial_timeout=dial_timeout,
            dispatcher_timeout=dispatcher_timeout, stall_timeout=stall_timeout, worker_silence=worker_silence,
        )
        out = self._copy()
        out._service = Service.of(
            service, job_name, epochs, processing_mode, seed, policy, encoding, lost_readers,
            target_workers, consumer, shares, compression, data_transfer_protocol, limits, local_workers,
            precedence_of(job_name, priority, weight),
        )
        return out

    def save(
        self,
        url: Any,
        service: Any = None,
        *,
        wait: bool = True,
        encoding: str | None = None,
        chunk_bytes: int | None = None,
    ) -> Save:
        """Stores the rows under a URL of their own, for `caju.load`. A save that was interrupted continues where it stopped.

        The service of `distribute` stores them, or the service given here, or this process. With `wait=False` this returns
        when the save has started. Stages that only order or group rows (`shuffle`, `batch`, `prefetch`) are not stored:
        add them after the load. A chunk is loaded as a whole; it holds about `chunk_bytes` of rows, by default the rows of
        a split. `encoding` is "arrow/none" by default. A finished save keeps its encoding and its chunks.
        """
        from ._save import save

        return save(self, url, service, wait=wait, encoding=encoding, chunk_bytes=chunk_bytes)

    # ---- the definition ----------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """The definition as the tree of a pipeline file, including rows in memory, up to 8 MiB."""
        whole: dict[str, Any] = json.loads(self._whole())
        return whole

    def _tree(self) -> dict[str, Any]:
        return self._options | {"source": self._source, "steps": list(self._steps)}

    def _json(self) -> str:
        """The definition for this process, which has the rows in memory that it refers to."""
        return json.dumps(self._tree())

    def _whole(self) -> str:
        """The definition for any process."""
        return json.dumps(inline(self._tree(), self._tables) if self._tables else self._tree())

    def register(self, service: Any, dataset_id: str | bytes | None = None) -> str:
        """Registers the definition at a service, for `from_dataset_id`. Returns its id, by default the fingerprint."""
        named = "" if dataset_id is None else dataset_id_of(dataset_id)
        return _caju.Client(address_of(service)).register(self._whole(), named)[0]

    def to_yaml(self) -> str:
        """The definition as a pipeline file, with all defaults."""
        return _caju.to_yaml(self._whole())

    @property
    def fingerprint(self) -> str:
        """A digest of what is computed, which is the same from Python, YAML and Rust, on every machine."""
        return _caju.fingerprint(self._json())

    @property
    def schema(self) -> Schema:
        """The columns of the elements. This process reads the schema of the source."""
        last = self._columns()[-1]
        assert last is not None
        return last

    def _columns(self) -> Sequence[Schema | None]:
        """The columns after the source and after each stage, where they are known."""
        return [Schema(s) for s in _caju.bind(self._json(), configured_bounds())]

    def explain(self) -> str:
        """A description of the stages with the columns after each, and of the hints with their fingerprints."""
        definition = self._json()
        lines = _caju.describe(definition)
        schemas = self._columns()
        out = [f"fingerprint  {_caju.fingerprint(definition)}"]
        before: dict[str, str] | None = None
        for i, line in enumerate(lines):
            out.append(line)
            # The first lines are the source and the stages. Those of a combinator's datasets follow.
            columns = schemas[i] if i < len(schemas) else None
            if columns is not None and dict(columns) != before:
                before = dict(columns)
                out.append("            -> " + ", ".join(f"{k}: {v}" for k, v in before.items()))
        out += _caju.stage_order(definition, configured_bounds())
        for name, stage, fingerprint, random in _caju.prefix_fingerprints(definition):
            note = "; random stages above it: storing it freezes their draws" if random else ""
            out.append(f"hint {name!r} at step {stage}: {fingerprint}{note}")
        return "\n".join(out)

    def __repr__(self) -> str:
        names = [next(iter(self._source)), *(next(iter(s)) for s in self._steps)]
        where = f" on {self._service.address}" if self._service else ""
        return f"<caju.Dataset {' > '.join(names)}{where}>"

    def __len__(self) -> int:
        """The number of elements of an epoch, where it follows from the definition. Elsewhere a `TypeError` says why not. Each
        consumer (`num_consumers`) has its own elements alone.
        """
        mode = self._service.mode if self._service else "dynamic"
        if mode != "dynamic":
            raise TypeError(f"under processing_mode=\"{mode}\" the number of elements depends on the workers")
        elements = Cardinality.of(self._rows, self._tree(), is_alone=self._service is None).elements()
        consumer = self._service.consumer if self._service else None
        return elements if consumer is None else of_consumer(elements, consumer)

    def __bool__(self) -> bool:
        return True

    # ---- views -------------------------------------------------------------------------------------------------

    def torch(self, **options: Any) -> TorchDataset:
        """The dataset as a `torch.utils.data.IterableDataset` of tensors. `options` are `copy`, `pin_memory`, `rank`,
        `world_size` and `replication` of `TorchDataset`.
        """
        from ._torch import TorchDataset

        return TorchDataset(self, **options)

    def jax(self, device: Any = None, *, world_size: int | None = None) -> JaxView:
        """The dataset as dicts of JAX arrays on a device. `world_size=1`: this process reads all rows of the dataset, whatever other
        processes `jax.distributed` has.
        """
        from ._views import JaxView

        return JaxView(self, device, world_size=world_size)

    def arrow(self) -> ArrowView:
        """The dataset as pyarrow record batches, over the same memory."""
        from ._views import ArrowView

        return ArrowView(self)

    # ---- changes ------------------------------------------------------------------------------------------------

    def _copy(self) -> Dataset:
        out = copy.copy(self)
        out._fresh()
        return out

    def _with(self, step: dict[str, Any]) -> Dataset:
        if "autocache" in step:
            from ._functions import draws_of

            for name, source in draws_of(self._tree()):
                raise InvalidPipeline(
                    f"a hint here would store one draw of function `{name}`, which draws from {source}, for all epochs; "
                    "put the hint above it, or draw from caju.rng(), or say random=True where it is added, if draws may "
                    "be frozen (random=False: it does not draw, or seeds itself by the row)"
                )
        out = self._copy()
        out._steps = (*self._steps, plain(step))
        out._check()
        if has_known_columns(out._source):
            _caju.bind(out._json(), configured_bounds())
        return out

    def _python(
        self,
        kind: str,
        function: Callable[..., Any],
        batched: bool,
        version: str | None,
        schema: Any = None,
        timeout: float | None = None,
        random: bool | None = None,
        reads: Sequence[str] | None = None,
        keeps: Sequence[str] | None = None,
    ) -> Dataset:
        """Adds a stage that runs a function of the user."""
        from ._functions import stage

        row, _ = self._form()
        if not row:
            raise InvalidPipeline(
                f"{kind} with a Python function works on rows: put it above `batch`; batched=True hands it many rows "
                "at a time"
            )
        reads, keeps = names_of("reads", reads), names_of("keeps", keeps)
        given = self if reads is None else self.select(reads)
        arguments = stage(kind, function, batched, version, schema, timeout, random, given._first_rows)
        if reads is not None:
            arguments["reads"] = reads
        if keeps is not None:
            arguments["keeps"] = keeps
        return self._with({"python": arguments})

    def _first_rows(self, batch: int = 0) -> Iterator[dict[str, Any]]:
        """The first rows, computed in this process: one by one, or in batches of the given number of rows."""
        out = self.batch(batch) if batch else self._copy()
        out._service, out._policy = None, "compute"
        return iter(out)

    def _check(self) -> None:
        """Checks the stages and their order. The source is left out, as it may be large."""
        for i, step in enumerate(self._steps):
            refuse_not_finite(step, f"steps[{i}]")
        try:
            definition = json.dumps(self._options | {"source": {"range": 1}, "steps": list(self._steps)})
        except TypeError as e:
            raise InvalidPipeline(f"{next(iter(self._steps[-1]))}: {e}") from None
        _caju.check(definition)


def dataset_id_of(given: Any) -> str:
    """The id of a registered dataset, given as text or as its UTF-8 bytes."""
    if isinstance(given, bytes):
        try:
            return given.decode()
        except UnicodeDecodeError as e:
            raise InvalidPipeline(f"dataset_id={given!r} is not UTF-8: {e.reason} at byte {e.start}") from None
    if not isinstance(given, str):
        raise InvalidPipeline(f"dataset_id={given!r} must be a string or bytes")
    return given


def has_known_columns(source: Mapping[str, Any]) -> bool:
    """Whether the columns of a source are known without reading anything: `range`, and rows in memory."""
    [(kind, arguments)] = source.items()
    if kind in ("range", "memory"):
        return True
    if kind not in ("concatenate", "zip", "sample"):
        return False
    datasets = arguments["datasets"] if kind == "sample" else arguments
    return all(has_known_columns(d["source"]) for d in datasets)


__all__ = ["Dataset", "DatasetIterator"]
