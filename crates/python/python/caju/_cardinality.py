"""How many elements a definition has, where it alone says so."""

from __future__ import annotations

from typing import Any

KEEP = {"map", "with_columns", "select", "sleep", "burn", "inflate", "autocache", "shuffle", "prefetch", "parse_example"}


class Cardinality:
    """Elements so far; below a batch also the rows they hold."""

    def __init__(self, elements: int | None, why: str) -> None:
        self.count = elements
        self.rows: int | None = None
        self.why = why
        self.endless = False
        self.ordered = False
        # Rows in front of a batch, its size, and whether its remainder is dropped: as long as elements are these batches.
        self.batched: tuple[int, int, bool] | None = None

    @staticmethod
    def of(rows: int | None, definition: dict[str, Any]) -> Cardinality:
        """The cardinality of a definition whose source has so many rows."""
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
        """From here on nobody knows."""
        if self.count is not None or self.endless:
            self.count, self.why, self.endless = None, why, False

    def elements(self) -> int:
        """The number of elements, or a TypeError that says why there is none."""
        if self.endless:
            raise TypeError("the dataset is endless: `repeat` without a count; end it with `take`")
        if self.count is None:
            raise TypeError(f"the number of elements is not known: {self.why}")
        return self.count

    def step(self, name: str, arguments: Any) -> None:
        """What a stage does to the number."""
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
        elif name in ("take", "skip"):
            return
        elif name in ("batch", "padded_batch") and not self.endless:
            self.batch(arguments)
        elif name == "unbatch" and rows is not None:
            self.count = rows
        elif not (self.endless and name in ("batch", "padded_batch", "bucket_by_length", "unbatch")):
            self.unknown(f"it depends on the rows what `{name}` lets through")

    def repeat(self, count: int | None, batched: tuple[int, int, bool] | None) -> None:
        """Repeats; for ever without a count. Where no order is promised, remainders of repetitions share batches."""
        if count is None:
            self.endless = self.endless or self.count != 0
            self.count = None if self.endless else 0
        elif batched is not None and not self.ordered:
            rows, size, drop = batched
            self.fill(rows * count, size, drop)
        elif self.count is not None:
            self.count *= count

    def fill(self, rows: int, size: int, drop: bool) -> None:
        """So many rows in batches."""
        self.batched = (rows, size, drop)
        self.rows = rows - rows % size if drop else rows
        self.count = -(-self.rows // size)

    def batch(self, arguments: dict[str, Any]) -> None:
        """Rows become batches."""
        if self.count is None:
            return
        self.fill(self.count, arguments["size"], bool(arguments.get("drop_remainder")))
