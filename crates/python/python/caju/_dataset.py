"""The dataset: an immutable pipeline definition, which is read epoch by epoch."""

from __future__ import annotations

import copy
import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Union

from . import _caju
from ._cardinality import Cardinality
from ._cluster import address_of, configured_bounds, embedded
from ._errors import FailedPrecondition, InvalidPipeline
from ._iterator import DatasetIterator, connected
from ._logging import sync_level
from ._memory import inline
from ._schema import Schema
from ._service import Service, consumers_of
from ._stages import Stages, given, plain, refuse_not_finite

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ._save import Save
    from ._views import ArrowView, JaxView, TorchDataset

    Array = Union[NDArray[Any], dict[str, Any]]
    Element = dict[str, Any]


class Dataset(Stages):
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
        # Functions that draw random numbers and do not declare it: the source of the draws, by the function's name.
        self._draws: dict[str, str] = {}
        self._fresh()

    def _fresh(self) -> None:
        self._epochs = 0
        self._client: _caju.Client | None = None
        self._cluster: Any = None
        self._job: str | None = None

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
    ) -> Dataset:
        """Settings of the whole pipeline: a name for display, the seed, `on_error` (`"fail"`, `"skip"` or
        `{"skip": {"limit": 100}}`), and whether the order of rows is the same in every run.
        """
        out = self._copy()
        out._options = self._options | given(
            name=name, seed=seed, on_error=on_error, deterministic=deterministic
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
        policy: str | None = None,
        encoding: str | None = None,
        lost_readers: str = "fail",
        target_workers: str | None = None,
        connect_timeout: float = 10.0,
    ) -> Dataset:
        """Computes the dataset on a service: `"caju://host:7070"`, a `LocalCluster` or `start_dispatcher()`.

        Readers with the same `job_name` share each epoch: every row goes to one of them. Without a name this dataset reads
        alone. `epochs` is the number of epochs that will be read, which helps to decide what is worth storing.
        `processing_mode` is "dynamic" (every row once), "off" (all rows from every worker), or "file", "data",
        "file_or_data" or "hint": worker k of the n that the dispatcher is configured with has shard k of n. `seed` replaces
        that of the pipeline. `policy` and `encoding` are those of `caju run`: who decides where rows are stored, and how new parts are
        written. A dispatcher that is absent is looked for during `connect_timeout` seconds.

        A reader of the job that is killed, or silent for the dispatcher's `--client-timeout`, is lost. The rows that it had
        used are not delivered again, so the epoch ends with a `FailedPrecondition` for the other readers, unless they accept
        the loss with `lost_readers="allow"`. Rows that it had not used go to the other readers in any case.

        With `num_consumers=N` the job has N readers, each with a `consumer_index` from 0 to N - 1, and all of them get the
        same number of elements in each epoch, however fast they are. What is left when all have had equally many is dropped
        (`uneven="drop"`, the default), or delivered with copies for the others (`uneven="pad"`; `stats` counts them). A
        consumer that leaves early or vanishes ends the epoch of all with an `Unavailable`.

        `target_workers="local"` reads only from the workers of this process (`start_worker`), without a socket; a dispatcher
        elsewhere still deals the rows. When the last of them stops, the epoch fails with `Cancelled`. "any" reads from all
        workers. "auto", the default, reads from all except workers of other processes that have the tag `COLOCATED`. All
        readers of a job say the same.
        """
        consumer = consumers_of(job_name, num_consumers, consumer_index, uneven)
        if self._service is not None:
            raise InvalidPipeline(
                f"this dataset is distributed already, to {self._service.address}, and a second `distribute` would "
                "drop what the first one was given; give all arguments to one call, on the dataset as it was before"
            )
        out = self._copy()
        out._service = Service.of(
            service, job_name, epochs, processing_mode, seed, policy, encoding, connect_timeout, lost_readers,
            target_workers, consumer,
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
        for name, stage, fingerprint, random in _caju.prefix_fingerprints(definition):
            note = "; random stages above it: storing it freezes their draws" if random else ""
            out.append(f"hint {name!r} at step {stage}: {fingerprint}{note}")
        return "\n".join(out)

    def __repr__(self) -> str:
        names = [next(iter(self._source)), *(next(iter(s)) for s in self._steps)]
        where = f" on {self._service.address}" if self._service else ""
        return f"<caju.Dataset {' > '.join(names)}{where}>"

    def __len__(self) -> int:
        """The number of elements of an epoch, where it follows from the definition. Elsewhere a `TypeError` says why not."""
        mode = self._service.mode if self._service else "dynamic"
        if mode != "dynamic":
            raise TypeError(f"under processing_mode=\"{mode}\" the number of elements depends on the workers")
        return Cardinality.of(self._rows, self._tree()).elements()

    def __bool__(self) -> bool:
        return True

    # ---- reading -----------------------------------------------------------------------------------------------

    def __iter__(self) -> DatasetIterator[Element]:
        row, dense = self._form()
        return self._open(lambda reader: reader.next_numpy(row, dense))

    def as_numpy_iterator(self) -> DatasetIterator[Element]:
        """The next epoch: tf.data's name for `iter(ds)`."""
        return iter(self)

    def progress(self, **bar: Any) -> Iterator[Element]:
        """The next epoch with a progress bar of tqdm, which has to be installed. `bar` are arguments for tqdm."""
        try:
            from tqdm.auto import tqdm
        except ImportError as e:
            raise FailedPrecondition(
                f"progress() shows an epoch with tqdm, which cannot be imported ({e}): pip install tqdm, or iterate over "
                "the dataset itself"
            ) from e
        return self._progress(tqdm, bar)

    def _progress(self, tqdm: Callable[..., Any], bar: dict[str, Any]) -> Iterator[Element]:
        try:
            total: int | None = len(self)
        except TypeError:
            total = None
        with iter(self) as epoch, tqdm(**{"total": total, "unit": "batch", "desc": f"epoch {epoch.epoch}"} | bar) as shown:
            for element in epoch:
                yield element
                shown.update()
                if epoch.bottleneck is not None:
                    shown.set_postfix_str(f"bottleneck {epoch.bottleneck}", refresh=False)

    def torch(self, **options: Any) -> TorchDataset:
        """The dataset as a `torch.utils.data.IterableDataset` of tensors. `options` are `copy`, `pin_memory`, `rank` and
        `world_size` of `TorchDataset`.
        """
        from ._torch import TorchDataset

        return TorchDataset(self, **options)

    def jax(self, device: Any = None) -> JaxView:
        """The dataset as dicts of JAX arrays on a device."""
        from ._views import JaxView

        return JaxView(self, device)

    def arrow(self) -> ArrowView:
        """The dataset as pyarrow record batches, over the same memory."""
        from ._views import ArrowView

        return ArrowView(self)

    def register(self, service: Any, dataset_id: str | None = None) -> str:
        """Registers the definition at a service, for `from_dataset_id`. Returns its id, by default the fingerprint."""
        client = _caju.Client(address_of(service))
        return client.register(self._whole(), dataset_id or "")[0]

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The rows of the next epoch as an Arrow stream, by the PyCapsule interface. The consumer reads caju's memory.

        Rows come in batches as workers send them, whatever elements they form. The epoch is opened when the first of them
        is read. An error of the epoch is an error of the consumer, with the same message. If the consumer gives a
        `requested_schema`, the columns are cast to its types.
        """
        opened: list[DatasetIterator[Any]] = []

        def open_epoch() -> _caju.Reader:
            opened.append(self._open(lambda reader: reader.next_batch()))  # alive as long as this function
            return opened[0]._last

        return _caju.epoch_stream(self._schema_of_epochs()._ipc, open_epoch, requested_schema)

    def _schema_of_epochs(self) -> Schema:
        """The columns of the elements. A service tells those of sources that only its workers reach."""
        service = self._service
        if service is None or service.is_here:
            return self.schema
        client = self._connect(service)
        return Schema(client.dataset(client.register(self._whole())[0])[1])

    def _form(self) -> tuple[bool, bool]:
        """Whether elements are single rows, and whether their lists are padded."""
        batched = padded = False
        for step in self._tree()["steps"]:
            [(name, arguments)] = step.items()
            if name in ("batch", "padded_batch", "bucket_by_length"):
                batched, padded = True, name != "batch" and arguments.get("pad", True)
            elif name == "unbatch":
                batched = padded = False
        return not batched, padded

    def _open(
        self,
        take: Callable[[_caju.Reader], Any],
        epoch: int | None = None,
        moved: Callable[[int], None] | None = None,
        num_readers: int = 0,
    ) -> DatasetIterator[Any]:
        """Opens an epoch, the next by default. `moved` is called with the epoch of a state that is loaded. `num_readers`: of
        the job, where that is known.
        """
        service = self._service or self._embedded()
        sync_level()
        if epoch is None:
            epoch, self._epochs = self._epochs, self._epochs + 1

        def reopen(at: int, states: Sequence[str], of_all: bool) -> _caju.Reader | None:
            if not service.job_name:
                # Other iterators may have read epochs of this dataset's own job, and a job's epoch is read once.
                self._job = None
            if moved is None:
                self._epochs = at + 1
            else:
                moved(at)
            if not states:
                return None
            # A reader that gives its own state waits for those of all others.
            wanted = 0 if of_all else num_readers
            given = {"states": states, "num_states": wanted, "states_of_all": of_all}
            return self._read(self._connect(service), service, at, given)

        def skipped(iteration: int) -> tuple[int, list[str]] | None:
            return self._connect(service).skipped(iteration)

        return DatasetIterator(
            self._read(self._connect(service), service, epoch),
            take,
            service.keep,
            epoch,
            reopen,
            self._not_exact(),
            bool(service.job_name),
            skipped if self._tree().get("on_error", "fail") != "fail" else None,
        )

    def _not_exact(self) -> str | None:
        """Why a position within an epoch cannot be restored; None if it can."""
        for name, source in self._draws.items():
            return (
                f"function `{name}` draws from {source}, and would draw other rows; draw from caju.rng(), or say random=True "
                "where it is added, if that does not matter"
            )
        return None

    def _embedded(self) -> Service:
        # The cluster lives as long as datasets that have used it, with the profiles of their jobs.
        self._cluster = self._cluster or embedded()
        return Service(self._cluster.address, self._cluster)

    def _connect(self, service: Service) -> _caju.Client:
        client = self._client
        if client is None:
            client = self._client = _caju.Client(service.address, service.connect_timeout)
            connected(self)
        return client

    def _read(
        self,
        client: _caju.Client,
        service: Service,
        epoch: int,
        states: Mapping[str, Any] | None = None,
    ) -> _caju.Reader:
        definition = self._json() if service.is_here else self._whole()
        request = self._request(service, epoch)
        return client.read(definition, **request, **(states or {}))

    def _request(self, service: Service, epoch: int) -> dict[str, Any]:
        if self._job is None:
            # A unique name: the epochs of this dataset are one job, which no other dataset joins.
            self._job = service.job_name or f"python-{uuid.uuid4().hex[:16]}"
        return {
            "job": self._job,
            "epoch": epoch,
            "seed": service.seed,
            "mode": service.mode,
            "policy": service.policy or self._policy,
            "encoding": service.encoding,
            "epochs": service.epochs or 0,
            "lost_readers": service.lost_readers,
            "target_workers": service.target_workers,
            "consumer": service.consumer,
        }

    # ---- changes ------------------------------------------------------------------------------------------------

    def _copy(self) -> Dataset:
        out = copy.copy(self)
        out._fresh()
        return out

    def _with(self, step: dict[str, Any]) -> Dataset:
        if "autocache" in step:
            for name, source in self._draws.items():
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
    ) -> Dataset:
        """Adds a stage that runs a function of the user."""
        from ._functions import stage

        row, _ = self._form()
        if not row:
            raise InvalidPipeline(
                f"{kind} with a Python function works on rows: put it above `batch`; batched=True hands it many rows "
                "at a time"
            )
        arguments, draws = stage(kind, function, batched, version, schema, timeout, random, self._first_rows)
        out = self._with({"python": arguments})
        if draws is not None:
            out._draws = self._draws | {arguments["name"]: draws}
        return out

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
