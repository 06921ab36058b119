"""The methods of datasets that add a stage."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ._errors import InvalidPipeline
from ._expr import ExprLike, expression

if TYPE_CHECKING:
    from ._dataset import Dataset


class Stages:
    """Stages by the names of tf.data. Each method returns a new dataset."""

    _policy: str
    _steps: tuple[dict[str, Any], ...]

    def _with(self, step: dict[str, Any]) -> Dataset:
        """The dataset with one more stage."""
        raise NotImplementedError

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
        """The dataset with one more stage, which is a function of the user."""
        raise NotImplementedError

    # ---- stages of rows ------------------------------------------------------------------------

    def map(
        self,
        columns: Mapping[str, ExprLike] | Callable[..., Any] | None = None,
        /,
        *,
        batched: bool = False,
        version: str | None = None,
        schema: Any = None,
        timeout: float | None = None,
        random: bool | None = None,
        reads: Sequence[str] | None = None,
        keeps: Sequence[str] | None = None,
        **more: ExprLike,
    ) -> Dataset:
        """Replaces the columns by expressions: `ds.map(x="ln(x + 1)", y=col("label") < 100)`.

        Or by what a Python function returns, which takes and returns a dict (`batched=True`: a dict of arrays). It is
        called on the first rows here, to find its columns, unless `schema` gives them: a dict of types such as
        `{"id": "int64", "image": "float32[224, 224, 3]"}`, a `caju.Schema`, or a schema of pyarrow or another Arrow
        library. Values are converted to these types where only the last digits of floats change, and refused otherwise.
        `version` replaces the fingerprint of the function's code. `timeout` is the number of seconds that it may take for
        a row (`batched=True`: for a batch of about 1000 rows), 60 by default; after that its process is replaced.
        `random` says whether it draws random numbers by other means than `caju.rng()`; without it such draws are warned of.
        With `reads` the function gets these columns only. `keeps` names columns that it passes on unchanged, which is checked.
        With `with_options(reorder=True)` a filter on such a column may run before the function.
        """
        if callable(columns):
            return self._python("map", columns, batched, version, schema, timeout, random, reads, keeps)
        _no_schema(schema, timeout, random, reads, keeps)
        return self._with({"map": _expressions("map", columns, more)})

    def with_columns(self, columns: Mapping[str, ExprLike] | None = None, /, **more: ExprLike) -> Dataset:
        """Adds expressions as columns, or replaces columns of the same name."""
        return self._with({"with_columns": _expressions("with_columns", columns, more)})

    def select(self, *columns: str | Sequence[str]) -> Dataset:
        """Keeps the given columns, in the given order."""
        names = [n for c in columns for n in ([c] if isinstance(c, str) else c)]
        return self._with({"select": {"columns": names}})

    def filter(
        self,
        predicate: ExprLike | Callable[..., Any],
        *,
        batched: bool = False,
        version: str | None = None,
        timeout: float | None = None,
        random: bool | None = None,
        reads: Sequence[str] | None = None,
    ) -> Dataset:
        """Keeps the rows for which an expression or a Python function is true. Arguments are those of `map`."""
        if callable(predicate):
            return self._python("filter", predicate, batched, version, timeout=timeout, random=random, reads=reads)
        _no_schema(None, timeout, random, reads)
        return self._with({"filter": {"expr": expression(predicate, "filter")}})

    def flat_map(
        self,
        columns: Mapping[str, ExprLike] | Callable[..., Any] | None = None,
        /,
        *,
        version: str | None = None,
        schema: Any = None,
        timeout: float | None = None,
        random: bool | None = None,
        reads: Sequence[str] | None = None,
        keeps: Sequence[str] | None = None,
        **more: ExprLike,
    ) -> Dataset:
        """One row per value of a list expression, as a new column: `ds.flat_map(token="tokenize(text)")`.

        Or one row per dict that a Python function returns or yields. Arguments are those of `map`.
        """
        if callable(columns):
            return self._python("flat_map", columns, False, version, schema, timeout, random, reads, keeps)
        _no_schema(schema, timeout, random, reads, keeps)
        lists = _expressions("flat_map", columns, more)
        if len(lists) != 1:
            raise InvalidPipeline(f"flat_map takes one column, such as token=\"tokenize(text)\", not {len(lists)}")
        [(name, expr)] = lists.items()
        return self._with({"flat_map": {"name": name, "expr": expr}})

    def unnest(self, column: str) -> Dataset:
        """One row per value of a list column. A null or empty list gives no row."""
        return self._with({"unnest": {"column": column}})

    def parse_example(self, features: Mapping[str, Any], column: str = "record") -> Dataset:
        """Replaces the columns by features of the tf.train.Example in `column`.

        A feature is `"int64"`, `"float32[4]"`, `"bytes[]"` or a dict of dtype and shape.
        """
        return self._with({"parse_example": {"column": column, "features": dict(features)}})

    def inflate(self, column: str, factor: float) -> Dataset:
        """Makes the values of a column longer by a factor, by repeating them; for experiments."""
        return self._with({"inflate": {"column": column, "factor": factor}})

    # ---- hints ------------------------------------------------------------------------------------------

    def autocache(self, name: str | None = None) -> Dataset:
        """A hint: the model accepts that rows are reused from here. caju measures whether storing them is worth it."""
        return self._with({"autocache": {} if name is None else {"name": name}})

    def cache(self, name: str | None = None) -> Dataset:
        """A hint at which rows are stored and read in any case, without measurements. One point of a pipeline is stored, so it
        has one `cache`.
        """
        hints = sum("autocache" in step for step in self._steps)
        if self._policy.startswith("hint:"):
            raise InvalidPipeline(
                f"the rows at the hint {self._policy.removeprefix('hint:')!r} are stored already, and one point of a pipeline is: "
                "remove one `cache`, or put `autocache` in its place"
            )
        out = self.autocache(name)
        out._policy = f"hint:{name or f'hint-{hints}'}"
        return out

    # ---- stages of the stream -------------------------------------------------------------------------------------

    def shuffle(self, buffer_size: int, seed: int | None = None, max_bytes: int | str | None = None) -> Dataset:
        """Permutes elements within a buffer, and the order of splits, differently in each epoch."""
        return self._with({"shuffle": given(buffer=buffer_size, seed=seed, max_bytes=max_bytes)})

    def repeat(self, count: int | None = None) -> Dataset:
        """Repeats the elements `count` times; endlessly without a count, or with -1."""
        return self._with({"repeat": given(count=None if count == -1 else count)})

    def take(self, count: int) -> Dataset:
        """Keeps the first elements, in the order of files and rows."""
        return self._with({"take": {"count": count}})

    def skip(self, count: int) -> Dataset:
        """Drops the first elements, in the order of files and rows."""
        return self._with({"skip": {"count": count}})

    def shard(self, num_shards: int | str, index: int | str) -> Dataset:
        """Every `num_shards`-th element from element `index` on, in the order of files and rows.

        With "HINT" for both, worker k of n has shard k of n: that needs `processing_mode="hint"`.
        """
        return self._with({"shard": {"num_shards": num_shards, "index": index}})

    def batch(self, batch_size: int, drop_remainder: bool = False) -> Dataset:
        """Combines `batch_size` rows to one element: a dict of arrays."""
        return self._with({"batch": {"size": batch_size, "drop_remainder": drop_remainder}})

    def padded_batch(
        self,
        batch_size: int,
        padded_shapes: Mapping[str, int | None] | None = None,
        padding_values: Mapping[str, Any] | None = None,
        drop_remainder: bool = False,
    ) -> Dataset:
        """Combines `batch_size` rows to one element. Lists are padded to the longest one, or to the length in `padded_shapes`."""
        lengths = {name: n for name, n in (padded_shapes or {}).items() if n is not None}
        step = {"size": batch_size, "drop_remainder": drop_remainder}
        return self._with({"padded_batch": step | given(lengths=lengths or None, values=padding_values or None)})

    def bucket_by_length(
        self,
        length: ExprLike,
        boundaries: Sequence[int] | Quantiles,
        batch_sizes: int | Sequence[int],
        drop_remainder: bool = False,
        pad: bool = True,
    ) -> Dataset:
        """Combines rows of similar length to batches. There is one bucket more than boundaries, each with its batch size.

        With `caju.quantiles(4)` the boundaries are learnt from the first rows, and all buckets have one batch size.
        """
        step = {
            "length": expression(length, "bucket_by_length"),
            "boundaries": asdict(boundaries) if isinstance(boundaries, Quantiles) else list(boundaries),
            "batch_sizes": batch_sizes if isinstance(batch_sizes, int) else list(batch_sizes),
            "drop_remainder": drop_remainder,
            "pad": pad,
        }
        return self._with({"bucket_by_length": step})

    def unbatch(self) -> Dataset:
        """Splits batches into rows."""
        return self._with({"unbatch": {}})

    def prefetch(self, buffer_size: int) -> Dataset:
        """Computes up to `buffer_size` elements ahead of the stages below."""
        return self._with({"prefetch": {"buffer": buffer_size}})


@dataclass(frozen=True)
class Quantiles:
    """Boundaries that are learnt: see `quantiles`."""

    quantiles: int
    rows: int


def quantiles(classes: int, rows: int = 4096) -> Quantiles:
    """Boundaries of `bucket_by_length` that divide the first `rows` rows into at most `classes` classes of nearly equal size.

    One worker reads the lengths of these rows before the first epoch. All epochs, workers and readers use the same boundaries.
    """
    return Quantiles(classes, rows)


def given(**arguments: Any) -> dict[str, Any]:
    """The arguments that are not None."""
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


def _no_schema(schema: Any, timeout: Any, random: Any, reads: Any = None, keeps: Any = None) -> None:
    for name, value, meaning in (
        ("schema", schema, "the columns of a Python function"),
        ("timeout", timeout, "the time limit of a Python function"),
        ("random", random, "whether a Python function draws random numbers"),
        ("reads", reads, "the columns that a Python function gets"),
        ("keeps", keeps, "the columns that a Python function passes on"),
    ):
        if value is not None:
            raise InvalidPipeline(f'{name}= is for {meaning}; for a column of that name give a dict: {{"{name}": "..."}}')


def names_of(argument: str, names: Any) -> list[str] | None:
    """The names of columns that an argument gives; none if it is not given."""
    if names is None:
        return None
    if isinstance(names, str) or not all(isinstance(n, str) for n in names):
        raise InvalidPipeline(f"{argument}={names!r} must be a list of columns, such as [\"label\"]")
    return list(names)


def plain(value: Any) -> Any:
    """The value with integers of Python in place of those of NumPy and other libraries."""
    if isinstance(value, dict):
        return {name: plain(v) for name, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if value is None or isinstance(value, (str, int, float)):
        return value
    if hasattr(value, "__index__"):
        return operator.index(value)
    return value


def refuse_not_finite(tree: Any, place: str) -> None:
    """Refuses NaN and infinity, which JSON cannot represent."""
    if isinstance(tree, dict):
        for name, value in tree.items():
            refuse_not_finite(value, f"{place}.{name}")
    elif isinstance(tree, (list, tuple)):
        for i, value in enumerate(tree):
            refuse_not_finite(value, f"{place}[{i}]")
    elif isinstance(tree, float) and not math.isfinite(tree):
        raise InvalidPipeline(f"{place}: {tree!r} is not a finite number, and a definition holds no other numbers")
