"""The dataset: a definition that grows stage by stage, with tf.data's verbs."""

from __future__ import annotations

import copy
import json
import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Union

from . import _caju
from ._cardinality import Cardinality
from ._cluster import address_of, embedded
from ._errors import InvalidPipeline, Unimplemented
from ._expr import ExprLike, expression
from ._iterator import DatasetIterator
from ._schema import Schema

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ._views import ArrowView, JaxView, TorchDataset

    Array = Union[NDArray[Any], dict[str, Any]]
    Element = dict[str, Any]

MODES = ("dynamic", "off")


class Service:
    """Where a dataset is computed, and as which job."""

    __slots__ = ("address", "connect_timeout", "encoding", "epochs", "job_name", "keep", "mode", "policy", "seed")

    def __init__(
        self,
        address: str,
        keep: Any,
        job_name: str,
        epochs: int | None,
        mode: str,
        seed: int | None,
        policy: str,
        encoding: str,
        connect_timeout: float,
    ) -> None:
        self.address = address
        self.keep = keep
        self.job_name = job_name
        self.epochs = epochs
        self.mode = mode
        self.seed = seed
        self.policy = policy
        self.encoding = encoding
        self.connect_timeout = connect_timeout

    def __getstate__(self) -> dict[str, Any]:
        # Another process has the address; the cluster's object stays here.
        return {name: None if name == "keep" else getattr(self, name) for name in self.__slots__}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)


class Dataset:
    """Rows, and what happens to them: a source and stages. Every verb gives a new dataset.

    Iterating reads one epoch: dicts of NumPy arrays after `batch`, dicts of single values before it. Each new
    iteration is the next epoch, for which everything random draws anew. Without `distribute` the rows are computed
    in this process.
    """

    def __init__(self, source: dict[str, Any], rows: int | None = None) -> None:
        self._source = source
        self._rows = rows
        self._steps: tuple[dict[str, Any], ...] = ()
        self._options: dict[str, Any] = {}
        self._service: Service | None = None
        self._policy = ""
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

    # ---- verbs: what happens to one row ------------------------------------------------------------------------

    def map(
        self,
        columns: Mapping[str, ExprLike] | Callable[..., Any] | None = None,
        /,
        *,
        batched: bool = False,
        version: str | None = None,
        **more: ExprLike,
    ) -> Dataset:
        """The row becomes these expressions: `ds.map(x="ln(x + 1)", y=col("label") < 100)`.

        Or what a Python function makes of it, which gets and gives a dict (`batched=True`: a dict of arrays). It is
        tried on the first row here, to see which columns it makes. `version` names a function in place of its code.
        """
        if callable(columns):
            return self._python("map", columns, batched, version)
        return self._with({"map": _expressions("map", columns, more)})

    def with_columns(self, columns: Mapping[str, ExprLike] | None = None, /, **more: ExprLike) -> Dataset:
        """Adds these expressions to the row, or replaces columns of the same name."""
        return self._with({"with_columns": _expressions("with_columns", columns, more)})

    def select(self, *columns: str | Sequence[str]) -> Dataset:
        """Keeps these columns, in this order."""
        names = [n for c in columns for n in ([c] if isinstance(c, str) else c)]
        return self._with({"select": {"columns": names}})

    def filter(
        self, predicate: ExprLike | Callable[..., Any], *, batched: bool = False, version: str | None = None
    ) -> Dataset:
        """Keeps the rows for which the expression is true, or a Python function says so; as `map` otherwise."""
        if callable(predicate):
            return self._python("filter", predicate, batched, version)
        return self._with({"filter": {"expr": expression(predicate, "filter")}})

    def flat_map(
        self,
        columns: Mapping[str, ExprLike] | Callable[..., Any] | None = None,
        /,
        *,
        version: str | None = None,
        **more: ExprLike,
    ) -> Dataset:
        """One row per value of a list expression, as a new column: `ds.flat_map(token="tokenize(text)")`.

        Or one per dict that a Python function yields for a row; as `map` otherwise.
        """
        if callable(columns):
            return self._python("flat_map", columns, False, version)
        lists = _expressions("flat_map", columns, more)
        if len(lists) != 1:
            raise InvalidPipeline(f"flat_map takes one column, such as token=\"tokenize(text)\", not {len(lists)}")
        [(name, expr)] = lists.items()
        return self._with({"flat_map": {"name": name, "expr": expr}})

    def unnest(self, column: str) -> Dataset:
        """One row per value of a list column; a null or empty list gives none."""
        return self._with({"unnest": {"column": column}})

    def parse_example(self, features: Mapping[str, Any], column: str = "record") -> Dataset:
        """The row becomes these features of the tf.train.Example in `column`.

        A feature is `"int64"`, `"float32[4]"`, `"bytes[]"` or a dict of dtype and shape.
        """
        return self._with({"parse_example": {"column": column, "features": dict(features)}})

    def inflate(self, column: str, factor: float) -> Dataset:
        """Repeats a column's values until they are so much longer; for experiments."""
        return self._with({"inflate": {"column": column, "factor": factor}})

    # ---- verbs: hints ------------------------------------------------------------------------------------------

    def autocache(self, name: str | None = None) -> Dataset:
        """A hint: for the model, reuse is acceptable here. Whether it is worth it is measured."""
        return self._with({"autocache": {} if name is None else {"name": name}})

    def cache(self, name: str | None = None) -> Dataset:
        """A hint that is not left to the measurement: rows are stored here, and read from there."""
        hints = sum("autocache" in step for step in self._steps)
        out = self.autocache(name)
        out._policy = f"hint:{name or f'hint-{hints}'}"
        return out

    # ---- verbs: the stream -------------------------------------------------------------------------------------

    def shuffle(self, buffer_size: int, seed: int | None = None, max_bytes: int | str | None = None) -> Dataset:
        """Permutes elements within a buffer, and the order of splits; anew each epoch."""
        return self._with({"shuffle": _given(buffer=buffer_size, seed=seed, max_bytes=max_bytes)})

    def repeat(self, count: int | None = None) -> Dataset:
        """Repeats everything above it; for ever without a count (or with -1)."""
        return self._with({"repeat": _given(count=None if count == -1 else count)})

    def take(self, count: int) -> Dataset:
        """The first elements, in the order of files and rows."""
        return self._with({"take": {"count": count}})

    def skip(self, count: int) -> Dataset:
        """All but the first elements."""
        return self._with({"skip": {"count": count}})

    def batch(self, batch_size: int, drop_remainder: bool = False) -> Dataset:
        """So many rows become one element: a dict of arrays."""
        return self._with({"batch": {"size": batch_size, "drop_remainder": drop_remainder}})

    def padded_batch(
        self,
        batch_size: int,
        padded_shapes: Mapping[str, int | None] | None = None,
        padding_values: Mapping[str, Any] | None = None,
        drop_remainder: bool = False,
    ) -> Dataset:
        """So many rows become one element; list columns are padded to the longest, or to a length of `padded_shapes`."""
        lengths = {name: n for name, n in (padded_shapes or {}).items() if n is not None}
        step = {"size": batch_size, "drop_remainder": drop_remainder}
        return self._with({"padded_batch": step | _given(lengths=lengths or None, values=padding_values or None)})

    def bucket_by_length(
        self,
        length: ExprLike,
        boundaries: Sequence[int],
        batch_sizes: int | Sequence[int],
        drop_remainder: bool = False,
        pad: bool = True,
    ) -> Dataset:
        """Rows are collected by length; each class makes batches of its own size, one class more than boundaries."""
        step = {
            "length": expression(length, "bucket_by_length"),
            "boundaries": list(boundaries),
            "batch_sizes": batch_sizes if isinstance(batch_sizes, int) else list(batch_sizes),
            "drop_remainder": drop_remainder,
            "pad": pad,
        }
        return self._with({"bucket_by_length": step})

    def unbatch(self) -> Dataset:
        """Batches become rows."""
        return self._with({"unbatch": {}})

    def prefetch(self, buffer_size: int) -> Dataset:
        """So many elements are computed ahead."""
        return self._with({"prefetch": {"buffer": buffer_size}})

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
        """Settings of the whole: a name for people, the seed, `on_error` (`"fail"`, `"skip"` or
        `{"skip": {"limit": 100}}`), and whether the order of rows is promised.
        """
        out = self._copy()
        out._options = self._options | _given(
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
        policy: str | None = None,
        encoding: str | None = None,
        connect_timeout: float = 10.0,
    ) -> Dataset:
        """Computes the dataset on a service: `"caju://host:7070"`, a `LocalCluster` or `start_dispatcher()`.

        Readers of one `job_name` share each epoch: every row goes to one of them. Without a name this dataset reads
        alone. `epochs` says how many epochs will be read, which helps to decide what is worth storing. `policy` and
        `encoding` are those of `caju run`: who decides where rows are stored, and how new parts are written.
        """
        if job_name is not None and not isinstance(job_name, str):
            raise InvalidPipeline(f"job_name {job_name!r} must be a string")
        if job_name is not None and not job_name.strip():
            raise InvalidPipeline("job_name must not be empty; leave it out to read alone")
        if processing_mode not in MODES:
            raise InvalidPipeline(
                f"processing_mode {processing_mode!r} is none of {', '.join(MODES)}; say \"dynamic\" for each row "
                "once, \"off\" for all rows from every worker"
            )
        if epochs is not None and (not isinstance(epochs, int) or epochs < 1):
            raise InvalidPipeline(f"epochs={epochs!r} must be a positive number")
        if num_consumers is not None or consumer_index is not None:
            raise Unimplemented(
                "coordinated reads (num_consumers=) are not offered yet; ranks that share a job_name share its rows"
            )
        address = address_of(service)
        keep = None if service is address else service
        out = self._copy()
        out._service = Service(
            address, keep, job_name or "", epochs, processing_mode, seed, policy or "", encoding or "", connect_timeout
        )
        return out

    # ---- the definition ----------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """The definition as the tree of a pipeline file."""
        return self._options | {"source": self._source, "steps": list(self._steps)}

    def _json(self) -> str:
        return json.dumps(self.to_dict())

    def to_yaml(self) -> str:
        """The definition as a pipeline file, with all defaults spelt out."""
        return _caju.to_yaml(self._json())

    @property
    def fingerprint(self) -> str:
        """The name of what is computed: the same from Python, YAML and Rust, on every machine."""
        return _caju.fingerprint(self._json())

    @property
    def schema(self) -> Schema:
        """The columns of the elements. Looks into the source, from this process."""
        return Schema(_caju.bind(self._json())[-1])

    def explain(self) -> str:
        """The stages in words, with the columns after each, and the hints with their fingerprints."""
        definition = self._json()
        lines = _caju.describe(definition)
        schemas = [Schema(s) for s in _caju.bind(definition)]
        out = [f"fingerprint  {_caju.fingerprint(definition)}"]
        before: dict[str, str] | None = None
        for i, line in enumerate(lines):
            out.append(line)
            # The first lines are the source and the stages; the datasets of a combinator follow.
            if i < len(schemas) and dict(schemas[i]) != before:
                before = dict(schemas[i])
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
        """The number of elements of an epoch, where the definition alone says it.

        A `TypeError` says why it does not.
        """
        off = self._service is not None and self._service.mode == "off"
        if off:
            raise TypeError("under processing_mode=\"off\" the number of elements depends on the workers")
        return Cardinality.of(self._rows, self.to_dict()).elements()

    def __bool__(self) -> bool:
        return True

    # ---- reading -----------------------------------------------------------------------------------------------

    def __iter__(self) -> DatasetIterator[Element]:
        row, dense = self._form()
        return self._open(lambda reader: reader.next_numpy(row, dense))

    def as_numpy_iterator(self) -> DatasetIterator[Element]:
        """The next epoch, by tf.data's name for `iter(ds)`."""
        return iter(self)

    def progress(self, **bar: Any) -> Iterator[Element]:
        """The next epoch under a progress bar of tqdm, which has to be installed; `bar` are tqdm's own arguments."""
        from tqdm.auto import tqdm

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
        """The same as a `torch.utils.data.IterableDataset` of tensors; see `caju.TorchDataset`."""
        from ._torch import TorchDataset

        return TorchDataset(self, **options)

    def jax(self, device: Any = None) -> JaxView:
        """The same as JAX arrays."""
        from ._views import JaxView

        return JaxView(self, device)

    def arrow(self) -> ArrowView:
        """The same as pyarrow record batches, over the same memory."""
        from ._views import ArrowView

        return ArrowView(self)

    def register(self, service: Any, dataset_id: str | None = None) -> str:
        """Registers the definition at a service, for `from_dataset_id`; its id (the fingerprint by default)."""
        client = _caju.Client(address_of(service))
        return client.register(self._json(), dataset_id or "")[0]

    def _form(self) -> tuple[bool, bool]:
        """Whether elements are single rows, and whether the lists in them are padded."""
        batched = padded = False
        for step in self._steps:
            [(name, arguments)] = step.items()
            if name in ("batch", "padded_batch", "bucket_by_length"):
                batched, padded = True, name != "batch" and arguments.get("pad", True)
            elif name == "unbatch":
                batched = padded = False
        return not batched, padded

    def _open(self, take: Callable[[_caju.Reader], Any], epoch: int | None = None) -> DatasetIterator[Any]:
        service = self._service or self._embedded()
        if self._client is None:
            self._client = _caju.Client(service.address, service.connect_timeout)
        if epoch is None:
            epoch, self._epochs = self._epochs, self._epochs + 1
        return DatasetIterator(self._read(self._client, service, epoch), take, service.keep, epoch)

    def _embedded(self) -> Service:
        # It lives as long as datasets that have used it: what it has learnt of a job is worth keeping.
        self._cluster = self._cluster or embedded()
        return Service(self._cluster.address, self._cluster, "", None, "dynamic", None, "", "", 10.0)

    def _read(self, client: _caju.Client, service: Service, epoch: int) -> _caju.Reader:
        return client.read(self._json(), **self._request(service, epoch))

    def _request(self, service: Service, epoch: int) -> dict[str, Any]:
        if self._job is None:
            # A name of its own: the epochs of this dataset are one job, and nobody else's.
            self._job = service.job_name or f"python-{uuid.uuid4().hex[:16]}"
        return {
            "job": self._job,
            "epoch": epoch,
            "seed": service.seed,
            "mode": service.mode,
            "policy": service.policy or self._policy,
            "encoding": service.encoding,
            "epochs": service.epochs or 0,
        }

    # ---- within ------------------------------------------------------------------------------------------------

    def _copy(self) -> Dataset:
        out = copy.copy(self)
        out._fresh()
        return out

    def _with(self, step: dict[str, Any]) -> Dataset:
        out = self._copy()
        out._steps = (*self._steps, step)
        out._check()
        return out

    def _python(self, kind: str, function: Callable[..., Any], batched: bool, version: str | None) -> Dataset:
        """A stage that runs a function of the user's own."""
        import base64

        from ._codehash import code_fingerprint, draws
        from ._functions import name_of, pack, probe

        row, _ = self._form()
        if not row:
            raise InvalidPipeline(
                f"{kind} with a Python function works on rows: put it above `batch`; batched=True hands it many rows "
                "at a time"
            )
        code = code_fingerprint(function, version=version)
        made = b"" if kind == "filter" else probe(kind, function, batched, self._first_rows)
        step = {
            "kind": kind,
            "name": name_of(function),
            "code": code,
            "batched": batched,
            "random": draws(function),
            "payload": base64.b64encode(pack(function)).decode("ascii"),
            "schema": base64.b64encode(made).decode("ascii"),
        }
        return self._with({"python": step})

    def _first_rows(self) -> Iterator[dict[str, Any]]:
        """The first rows, computed in this process."""
        out = self._copy()
        out._service, out._policy = None, "compute"
        return iter(out)

    def _check(self) -> None:
        """Whether the stages may stand in this order; the source, which may be large, is left out."""
        try:
            definition = json.dumps(self._options | {"source": {"range": 1}, "steps": list(self._steps)})
        except TypeError as e:
            raise InvalidPipeline(f"{next(iter(self._steps[-1]))}: {e}") from None
        _caju.check(definition)


def _given(**arguments: Any) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if value is not None}


def _expressions(
    stage: str, columns: Mapping[str, ExprLike] | None, more: Mapping[str, ExprLike]
) -> dict[str, str]:
    if columns is not None and not isinstance(columns, Mapping):
        raise InvalidPipeline(
            f"{stage} takes columns by name, such as {stage}(x=\"x + 1\") or {stage}({{\"x\": \"x + 1\"}}), "
            f"not {type(columns).__name__}"
        )
    both = {**(columns or {}), **more}
    return {name: expression(value, f"{stage} `{name}`") for name, value in both.items()}


def read_definition(text: str, base: str | os.PathLike[str] | None) -> Dataset:
    """A dataset from the text of a pipeline file."""
    whole = json.loads(_caju.from_yaml(text, None if base is None else os.fspath(base)))
    return from_tree(whole)


def from_tree(whole: dict[str, Any]) -> Dataset:
    """A dataset from a checked tree."""
    source, steps = whole.pop("source"), whole.pop("steps")
    out = Dataset(source, rows_of(source))
    out._steps, out._options = tuple(steps), whole
    return out


def rows_of(source: dict[str, Any]) -> int | None:
    """The rows of a source that says it itself."""
    [(kind, arguments)] = source.items()
    if kind == "range":
        return len(range(arguments["start"], arguments["end"], arguments["step"]))
    if kind == "memory":
        import base64

        return _caju.ipc_rows(base64.b64decode(arguments["ipc"]))
    return None


__all__ = ["Dataset", "DatasetIterator", "Iterator"]
