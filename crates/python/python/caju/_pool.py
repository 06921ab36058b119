"""One process of the pool that runs functions of users: `python -m caju._pool`, started by workers.

It hears lines of JSON on standard input and answers each call with one on what was standard output; rows are in files
in memory, as Arrow. What user code prints goes to standard error.
"""

from __future__ import annotations

import json
import mmap
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from . import _caju
from ._columns import BadRow, Column, columns_of, columns_of_arrays, row_of
from ._functions import _seed, made_of

SEED = "__caju_seed"

WATCH_S = 2.0
"""How often a process looks whether who started it is still there."""


NO_ROW = (1 << 64) - 1
"""What the mark says while no row is at work."""


class Mark:
    """Eight bytes that whoever started this process reads: the row that is at work. It stands for progress, and where
    the process dies or hangs it tells over which row.
    """

    def __init__(self, path: str) -> None:
        with open(path, "r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 8)

    def row(self, i: int) -> None:
        self._memory[:] = i.to_bytes(8, "little")

    def done(self) -> None:
        self.row(NO_ROW)


class Function(NamedTuple):
    """A function that was sent here."""

    name: str
    kind: str
    batched: bool
    call: Callable[[Any], Any]


class Raised(Exception):
    """User code raised; the row, if one is to blame."""

    def __init__(self, row: int | None) -> None:
        super().__init__()
        self.row = row


def main() -> None:
    """Serves until standard input ends."""
    hear = sys.stdin.buffer
    say = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    # A process lives on when its job is over: what a function prints is seen at once.
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    sys.stdin = open(os.devnull, encoding="utf-8")
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    # A terminal's Ctrl-C reaches every process; the one that started this one decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    mark = Mark(sys.argv.pop(1))
    functions: dict[int, Function] = {}
    broken: dict[int, str] = {}
    _tell(say, {"ready": True})
    while line := hear.readline():
        order = json.loads(line)
        if "define" in order:
            try:
                call = pickle.loads(hear.read(order["payload"]))
                functions[order["define"]] = Function(order["name"], order["kind"], order["batched"], call)
            except Exception:
                broken[order["define"]] = f"while it was unpacked:\n{traceback.format_exc()}"
            continue
        number = order["call"]
        if number in broken:
            _tell(say, {"error": broken[number]})
            continue
        _tell(say, _answer(functions[number], order["rows"], order["answer"], mark))


def _end_with(parent: int) -> None:
    """Ends with the process that started this one, whatever user code is doing: it may have been killed."""
    while os.getppid() == parent:
        time.sleep(WATCH_S)
    os._exit(1)


def _tell(say: Any, answer: Mapping[str, Any]) -> None:
    try:
        say.write(json.dumps(answer) + "\n")
        say.flush()
    except BrokenPipeError:
        # Whoever asked is gone, by Ctrl-C say. Python would report the pipe once more at its own end.
        os._exit(0)


def _answer(f: Function, rows: str, answer: str, mark: Mark) -> dict[str, Any]:
    try:
        columns = _caju.read_rows(rows)
        out, kept = run(f, columns, mark)
        with open(answer, "wb") as file:
            file.write(_caju.ipc_from_columns(out))
        return {} if kept is None else {"rows": kept}
    except Raised as e:
        cause = e.__cause__
        assert cause is not None
        return {"error": f"raised {_told(cause)}", "row": e.row}
    except BadRow as e:
        return {"error": f"returned {e}", "row": e.row}
    except Exception as e:
        return {"error": f"raised {_told(e)}"}
    finally:
        mark.done()


def _told(e: BaseException) -> str:
    """The exception and the user's part of its traceback."""
    frames = [f for f in traceback.extract_tb(e.__traceback__) if os.path.dirname(f.filename) != os.path.dirname(__file__)]
    last = "".join(traceback.format_exception_only(type(e), e)).strip()
    return "\n".join([last, *(line.rstrip() for line in traceback.format_list(frames))])


def run(f: Function, columns: dict[str, Any], mark: Mark) -> tuple[list[Column], list[int] | None]:
    """What the function makes of a batch: columns, and the input row of each output row where they differ."""
    seeds = columns.pop(SEED, None)
    count = _length(columns)
    if f.batched:
        return _batch(f, columns, count, None if seeds is None else seeds[0])
    rows: list[Mapping[str, Any]] = []
    kept: list[int] = []
    for i in range(count):
        mark.row(i)
        _seed.set(None if seeds is None else seeds[i])
        try:
            if f.kind == "filter":
                kept += [i] if f.call(row_of(columns, i)) else []
                continue
            # What a generator yields it computes only now, so it belongs to its row.
            made = list(made_of(f.kind, f.call(row_of(columns, i)), i))
        except BadRow:
            raise
        except Exception as e:
            raise Raised(i) from e
        finally:
            _seed.set(None)
        rows += made
        kept += [i] * len(made)
    mark.done()
    if f.kind == "filter":
        return _taken(kept), kept
    try:
        out = columns_of(rows) if rows else []
    except BadRow as e:
        raise BadRow(None if e.row is None else kept[e.row], str(e)) from None
    return out, None if f.kind == "map" else kept


def _batch(f: Function, columns: dict[str, Any], count: int, seed: Any) -> tuple[list[Column], list[int] | None]:
    _seed.set(seed)
    try:
        result = f.call(dict(columns))
    except Exception as e:
        raise Raised(None) from e
    finally:
        _seed.set(None)
    if f.kind == "filter":
        if len(result) != count:
            raise BadRow(None, f"{len(result)} answers for a batch of {count} rows")
        kept = [i for i, keep in enumerate(result) if keep]
        return _taken(kept), kept
    if not isinstance(result, Mapping):
        raise BadRow(None, f"{type(result).__name__}, not a dict of arrays")
    out = columns_of_arrays(result)
    if out[0].shape[0] != count:
        raise BadRow(None, f"{out[0].shape[0]} rows for a batch of {count}")
    return out, None


def _length(columns: Mapping[str, Any]) -> int:
    first = next(iter(columns.values()))
    return _length(first) if isinstance(first, dict) else len(first)


def _taken(kept: list[int]) -> list[Column]:
    # The worker has the rows; which of them stay is all that it needs.
    return [Column("kept", "int64", [len(kept)], b"".join(i.to_bytes(8, sys.byteorder) for i in kept))]


if __name__ == "__main__":
    main()
