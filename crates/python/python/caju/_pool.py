"""A process of the pool that runs functions of users: `python -m caju._pool`, started by workers.

It reads requests as lines of JSON from standard input, and answers each call with a line on the original standard output.
Rows are in files in memory, as Arrow. Output of user code goes to standard error.
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

PARENT_CHECK_INTERVAL_S = 2.0
"""How often a process checks that its parent runs, in seconds. It bounds how long it outlives a parent that was killed."""

NO_ROW = (1 << 64) - 1
"""The value of the mark while no row is processed."""


class Mark:
    """Eight bytes of shared memory with the row that is processed. The parent reads them to see progress, and to name the
    row at which a process died or hangs.
    """

    def __init__(self, path: str) -> None:
        with open(path, "r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 8)

    def row(self, i: int) -> None:
        self._memory[:] = i.to_bytes(8, "little")

    def done(self) -> None:
        self.row(NO_ROW)


class Function(NamedTuple):
    """A function that the parent sent."""

    name: str
    kind: str
    batched: bool
    call: Callable[[Any], Any]


class Raised(Exception):
    """User code raised an exception, at this row if one is known."""

    def __init__(self, row: int | None) -> None:
        super().__init__()
        self.row = row


def main() -> None:
    """Serves requests until standard input ends."""
    requests = sys.stdin.buffer
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    # The process may outlive its job: output of a function should appear at once.
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    sys.stdin = open(os.devnull, encoding="utf-8")
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    # Ctrl-C in a terminal reaches every process. The parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    mark = Mark(sys.argv.pop(1))
    functions: dict[int, Function] = {}
    broken: dict[int, str] = {}
    _send(answers, {"ready": True})
    while line := requests.readline():
        request = json.loads(line)
        if "define" in request:
            try:
                call = pickle.loads(requests.read(request["payload"]))
                functions[request["define"]] = Function(request["name"], request["kind"], request["batched"], call)
            except Exception:
                broken[request["define"]] = f"while it was unpickled:\n{traceback.format_exc()}"
            continue
        number = request["call"]
        if number in broken:
            _send(answers, {"error": broken[number]})
            continue
        _send(answers, _answer(functions[number], request["rows"], request["answer"], mark))


def _end_with(parent: int) -> None:
    """Ends this process when its parent has ended, whatever user code is doing. The parent may have been killed."""
    while os.getppid() == parent:
        time.sleep(PARENT_CHECK_INTERVAL_S)
    os._exit(1)


def _send(answers: Any, answer: Mapping[str, Any]) -> None:
    try:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    except BrokenPipeError:
        # The parent is gone, after Ctrl-C for example. Python would report the closed pipe once more when it exits.
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
        return {"error": f"raised {_traceback(cause)}", "row": e.row}
    except BadRow as e:
        return {"error": f"returned {e}", "row": e.row}
    except Exception as e:
        return {"error": f"raised {_traceback(e)}"}
    finally:
        mark.done()


def _traceback(e: BaseException) -> str:
    """The exception and the frames of its traceback that are the user's."""
    frames = [f for f in traceback.extract_tb(e.__traceback__) if os.path.dirname(f.filename) != os.path.dirname(__file__)]
    last = "".join(traceback.format_exception_only(type(e), e)).strip()
    return "\n".join([last, *(line.rstrip() for line in traceback.format_list(frames))])


def run(f: Function, columns: dict[str, Any], mark: Mark) -> tuple[list[Column], list[int] | None]:
    """Applies the function to a batch. Returns columns, and the input row of each output row where they differ."""
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
            # A generator computes its rows only now, so its errors belong to this row.
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
    # The worker has the rows, and needs only the numbers of those that stay.
    return [Column("kept", "int64", [len(kept)], b"".join(i.to_bytes(8, sys.byteorder) for i in kept))]


if __name__ == "__main__":
    main()
