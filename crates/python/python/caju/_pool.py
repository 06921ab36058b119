"""One process of the pool that runs functions of users: `python -m caju._pool`, started by workers.

It hears lines of JSON on standard input and answers each call with one on what was standard output; rows are in files
in memory, as Arrow. What user code prints goes to standard error.
"""

from __future__ import annotations

import json
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
from ._functions import BadRow, _seed, column, columns_of, row_of

SEED = "__caju_seed"

WATCH_S = 2.0
"""How often a process looks whether who started it is still there."""


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
    sys.stdin = open(os.devnull, encoding="utf-8")
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    # A terminal's Ctrl-C reaches every process; the one that started this one decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
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
        _tell(say, _answer(functions[number], order["rows"], order["answer"]))


def _end_with(parent: int) -> None:
    """Ends with the process that started this one, whatever user code is doing: it may have been killed."""
    while os.getppid() == parent:
        time.sleep(WATCH_S)
    os._exit(1)


def _tell(say: Any, answer: Mapping[str, Any]) -> None:
    say.write(json.dumps(answer) + "\n")
    say.flush()


def _answer(f: Function, rows: str, answer: str) -> dict[str, Any]:
    try:
        columns = _caju.read_rows(rows)
        out, kept = run(f, columns)
        with open(answer, "wb") as file:
            file.write(_caju.ipc_from_columns(out))
        return {} if kept is None else {"rows": kept}
    except Raised as e:
        cause = e.__cause__
        assert cause is not None
        return {"error": _told(cause), "row": e.row}
    except BadRow as e:
        return {"error": f"no exception, but returned {e}", "row": e.row}
    except Exception as e:
        return {"error": _told(e)}


def _told(e: BaseException) -> str:
    """The exception and the user's part of its traceback."""
    frames = [f for f in traceback.extract_tb(e.__traceback__) if os.path.dirname(f.filename) != os.path.dirname(__file__)]
    last = "".join(traceback.format_exception_only(type(e), e)).strip()
    return "\n".join([last, *(line.rstrip() for line in traceback.format_list(frames))])


def run(f: Function, columns: dict[str, Any]) -> tuple[list[Any], list[int] | None]:
    """What the function makes of a batch: columns, and the input row of each output row where they differ."""
    seeds = columns.pop(SEED, None)
    count = _length(columns)
    if f.batched:
        return _batch(f, columns, count, None if seeds is None else seeds[0])
    results = []
    for i in range(count):
        _seed.set(None if seeds is None else seeds[i])
        try:
            results.append(f.call(row_of(columns, i)))
        except Exception as e:
            raise Raised(i) from e
    _seed.set(None)
    if f.kind == "filter":
        kept = [i for i, keep in enumerate(results) if keep]
        return _taken(columns, kept), kept
    if f.kind == "map":
        for i, r in enumerate(results):
            _check_row(i, r)
        return columns_of(results), None
    kept, flat = [], []
    for i, made in enumerate(results):
        for r in made:
            _check_row(i, r)
            kept.append(i)
            flat.append(r)
    if not flat:
        return [], []
    return columns_of(flat), kept


def _batch(f: Function, columns: dict[str, Any], count: int, seed: Any) -> tuple[list[Any], list[int] | None]:
    _seed.set(seed)
    try:
        result = f.call(dict(columns))
    except Exception as e:
        raise Raised(None) from e
    finally:
        _seed.set(None)
    if f.kind == "filter":
        if len(result) != count:
            raise ValueError(f"returned {len(result)} answers for a batch of {count} rows")
        kept = [i for i, keep in enumerate(result) if keep]
        return _taken(columns, kept), kept
    if not isinstance(result, Mapping):
        raise TypeError(f"returned {type(result).__name__}, not a dict of arrays")
    out = [column(name, values) for name, values in result.items()]
    if f.kind == "map" and any(shape[0] != count for _, _, shape, _ in out):
        raise ValueError(f"returned {[shape[0] for _, _, shape, _ in out]} rows for a batch of {count}")
    # Which input row a row of a batch comes from only the function knows: the last one stands for all.
    return out, None if f.kind == "map" else [count - 1] * (out[0][2][0] if out else 0)


def _check_row(i: int, row: Any) -> None:
    if not isinstance(row, Mapping):
        raise BadRow(i, f"{type(row).__name__}, not a dict of columns")


def _length(columns: Mapping[str, Any]) -> int:
    first = next(iter(columns.values()))
    return _length(first) if isinstance(first, dict) else len(first)


def _taken(columns: Mapping[str, Any], kept: list[int]) -> list[Any]:
    # The worker has the rows; which of them stay is all that it needs.
    return [("kept", "int64", [len(kept)], b"".join(i.to_bytes(8, sys.byteorder) for i in kept))]


if __name__ == "__main__":
    main()
