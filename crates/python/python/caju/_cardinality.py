"""The number of elements of an epoch, where it follows from the definition."""

from __future__ import annotations

from typing import Any

KEEP = {"map", "with_columns", "select", "sleep", "burn", "inflate", "autocache", "shuffle", "prefetch", "parse_example"}
# Stages that compute with the rows of a batch.
COMPUTE = {"map", "with_columns", "inflate"}


def of_consumer(elements: int, consumer: tuple[int, int, str, str]) -> int:
    """The number of elements of each consumer of a job whose epochs have `elements`. `consumer`: the number of consumers, which
    one it is, `uneven` and `balance`.
    """
    count, _, uneven, balance = consumer
    if balance != "none":
        raise TypeError(f'under balance="{balance}" the number of elements depends on the lengths of the rows')
    return -(-elements // count) if uneven == "pad" else elements // count


class Remainders:
    """Which short batches at the ends of repetitions and tasks are merged, as the engine's plan says (`SplitPlan::merges`)."""

    def __init__(self, steps: list[tuple[str, Any]], is_alone: bool) -> None:
        self.steps = [name for name, _ in steps]
        # One task sees all rows: some `take` or `skip` is not planned away.
        self.counts = False
        plannable = True
        for name in self.steps:
            if name in ("take", "skip"):
                self.counts = self.counts or not plannable
            else:
                plannable = plannable and name in KEEP and name != "shuffle"
        self.is_alone = is_alone

    def are_merged(self, at: int) -> bool:
        """Whether those of the batch stage at this place are."""
        below = self.steps[at + 1 :]
        pads = self.steps[at] == "padded_batch"
        counts = self.counts or "shard" in below
        return not (counts or "unbatch" in below or pads and not COMPUTE.isdisjoint(below))

    def are_known(self, at: int, drop: bool) -> bool:
        """Whether the number of batches does not depend on the number of tasks. Of batches that an `unbatch` takes apart, the number
        of rows has to be known.
        """
        unbatched = "unbatch" in self.steps[at + 1 :] and not drop
        return self.are_merged(at) or self.counts or "shard" in self.steps[at + 1 :] or self.is_alone or unbatched


class Cardinality:
    """The number of elements after each stage, and below a batch the number of their rows."""

    def __init__(self, elements: int | None, why: str) -> None:
        self.count = elements
        self.rows: int | None = None
        self.why = why
        self.endless = False
        self.ordered = False
        # While elements are batches whose remainders are merged: the rows before the batch, its size, and whether the last remainder
        # is dropped.
        self.batched: tuple[int, int, bool] | None = None

    @staticmethod
    def of(rows: int | None, definition: dict[str, Any], is_alone: bool) -> Cardinality:
        """The cardinality of a definition whose source has `rows` rows; None if that is not known. `is_alone`: one task reads all of
        it, in this process.
        """
        source = next(iter(definition["source"]))
        out = Cardinality(rows, f"the rows of {source} are not counted before they are read")
        out.ordered = bool(definition.get("deterministic", False))
        if definition.get("on_error", "fail") != "fail":
            out.unknown("on_error may skip rows")
        steps = [item for step in definition["steps"] for item in step.items()]
        remainders = Remainders(steps, is_alone)
        for at, (name, arguments) in enumerate(steps):
            if name in ("batch", "padded_batch") and not out.endless:
                out.batch(arguments, remainders, at)
            else:
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
            self.repeat(value, batched, rows)
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
        elif name == "unbatch" and rows is not None:
            self.count = rows
        elif not (self.endless and name in ("batch", "padded_batch", "bucket_by_length", "unbatch")):
            self.unknown(f"how many elements `{name}` gives depends on the rows")

    def repeat(self, count: int | None, batched: tuple[int, int, bool] | None, rows: int | None) -> None:
        """Applies `repeat`, which is endless without a count. `rows`: those of all batches. Repetitions share their last batches
        where remainders are merged, and have batches of their own elsewhere.
        """
        if count is None:
            some = batched[0] if batched is not None else self.count
            self.endless = self.endless or some != 0
            self.count = None if self.endless else 0
        elif batched is not None:
            before, size, drop = batched
            self.fill(before * count, size, drop)
            self.batched = (before * count, size, drop)
        elif self.count is not None:
            self.count *= count
            self.rows = None if rows is None else rows * count

    def fill(self, rows: int, size: int, drop: bool) -> None:
        """Sets the number to that of the batches of `rows` rows."""
        self.rows = rows - rows % size if drop else rows
        self.count = -(-self.rows // size)

    def batch(self, arguments: dict[str, Any], remainders: Remainders, at: int) -> None:
        """Applies the stage at this place, which makes batches of one size."""
        self.rows = self.batched = None
        if self.count is None:
            return
        rows, size, drop = self.count, arguments["size"], bool(arguments.get("drop_remainder"))
        if not (self.ordered or remainders.are_known(at, drop)):
            self.unknown("each worker ends with a short batch of its own, or drops it")
            return
        self.fill(rows, size, drop)
        if remainders.are_merged(at) and not self.ordered:
            self.batched = (rows, size, drop)
