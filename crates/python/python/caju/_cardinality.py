"""The number of elements of an epoch, where it follows from the definition."""

from __future__ import annotations

from typing import Any

KEEP = {"map", "with_columns", "select", "sleep", "burn", "inflate", "autocache", "shuffle", "prefetch", "parse_example"}


def of_consumer(elements: int, consumer: tuple[int, int, str, str]) -> int:
    """The number of elements of each consumer of a job whose epochs have `elements`. `consumer`: the number of consumers, which
    one it is, `uneven` and `balance`.
    """
    count, _, uneven, balance = consumer
    if balance != "none":
        raise TypeError(f'under balance="{balance}" the number of elements depends on the lengths of the rows')
    return -(-elements // count) if uneven == "pad" else elements // count


class Cardinality:
    """The number of elements after each stage, and below a batch the number of their rows."""

    def __init__(self, elements: int | None, why: str) -> None:
        self.count = elements
        self.rows: int | None = None
        self.why = why
        self.endless = False
        self.ordered = False
        # While elements are batches: the rows before the batch, its size, and whether its remainder is dropped.
        self.batched: tuple[int, int, bool] | None = None

    @staticmethod
    def of(rows: int | None, definition: dict[str, Any]) -> Cardinality:
        """The cardinality of a definition whose source has `rows` rows; None if that is not known."""
        source = next(iter(definition["source"]))
        out = Cardinality(rows, f"the rows of {source} are not counted before they are read")
        out.ordered = bool(definition.get("deterministic", False))
        if definition.get("on_error", "fail") != "fail":
            out.unknown("on_error may skip rows")
        for step in definition["steps"]:
            [(name, arguments)] = step.items()
            out.step(name, arguments)
        return out

    def unknown(self, why: str) -> None:
        """Sets the number to unknown, with the reason."""
        if self.count is not None or self.endless:
            self.count, self.why, self.endless = None, why, False

    def elements(self) -> int:
        """The number of elements. Raises a TypeError that says why it is not known."""
        if self.endless:
            raise TypeError("the dataset is endless: `repeat` without a count; end it with `take`")
        if self.count is None:
            raise TypeError(f"the number of elements is not known: {self.why}")
        return self.count

    def step(self, name: str, arguments: Any) -> None:
        """Applies a stage."""
        value: Any = next(iter(arguments.values()), None) if isinstance(arguments, dict) else arguments
        if name in KEEP:
            return
        rows, self.rows = self.rows, None
        batched, self.batched = self.batched, None
        if name == "repeat":
            self.repeat(value, batched)
        elif name == "take" and (self.endless or self.count is not None):
            self.count = int(value) if self.count is None else min(self.count, int(value))
            self.endless = False
        elif name == "skip" and self.count is not None:
            self.count = max(0, self.count - int(value))
        elif name == "shard" and "HINT" in arguments.values():
            self.unknown("a `shard` with HINT has as many elements as the worker's shard")
        elif name == "shard" and self.count is not None:
            self.count = max(0, -(-(self.count - int(arguments["index"])) // int(arguments["num_shards"])))
        elif name in ("take", "skip", "shard"):
            return
        elif name in ("batch", "padded_batch") and not self.endless:
            self.batch(arguments)
        elif name == "unbatch" and rows is not None:
            self.count = rows
        elif not (self.endless and name in ("batch", "padded_batch", "bucket_by_length", "unbatch")):
            self.unknown(f"how many elements `{name}` gives depends on the rows")

    def repeat(self, count: int | None, batched: tuple[int, int, bool] | None) -> None:
        """Applies `repeat`, which is endless without a count. Without `deterministic`, repetitions share their last batches."""
        if count is None:
            self.endless = self.endless or self.count != 0
            self.count = None if self.endless else 0
        elif batched is not None and not self.ordered:
            rows, size, drop = batched
            self.fill(rows * count, size, drop)
        elif self.count is not None:
            self.count *= count

    def fill(self, rows: int, size: int, drop: bool) -> None:
        """Sets the number to that of the batches of `rows` rows."""
        self.batched = (rows, size, drop)
        self.rows = rows - rows % size if drop else rows
        self.count = -(-self.rows // size)

    def batch(self, arguments: dict[str, Any]) -> None:
        """Applies a stage that makes batches of one size."""
        if self.count is None:
            return
        self.fill(self.count, arguments["size"], bool(arguments.get("drop_remainder")))
