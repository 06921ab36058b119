"""A process of the pool that runs functions of users: `python -m caju._pool`, started by workers.

It reads requests as lines of JSON from the original standard input, and answers each call with a line on the original standard
output. Rows are in files in memory, as Arrow. Output of user code goes to standard error.
"""

from __future__ import annotations

import json
import mmap
import os
import pathlib
import pickle
import signal
import sys
import threading
import time
import traceback
from bisect import bisect_left
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from . import _caju
from ._answers import BOOLEANS, collected, kept_rows, keeps_row
from ._column import BadRow, Column, ipc_of_columns
from ._columns import columns_of, columns_of_arrays, row_of
from ._returned import copied_row
from ._functions import _seed, end_fork, made_of

SEED = "__caju_seed"

PARENT_CHECK_INTERVAL_S = 2.0
"""How often a process checks that its parent runs, in seconds. It bounds how long it outlives a parent that was killed."""

NO_ROW = (1 << 64) - 1
"""The value of the mark while no row is processed."""


SLOW_CHECK_INTERVAL_S = 0.025
"""How often a process looks whether its call was called slow, in seconds. A check takes some microseconds."""


class Mark:
    """Two words of memory that the parent shares. The first one has the row that is processed: the parent reads it to see
    progress, and to name the row at which a process died or hangs. The parent sets the second one when a call is slow.
    """

    def __init__(self, path: str) -> None:
        with open(path, "r+b") as file:
            self._words = memoryview(mmap.mmap(file.fileno(), 0)).cast("Q")
        self._has_slow = len(self._words) > 1

    def row(self, i: int) -> None:
        self._words[0] = i

    def current(self) -> int | None:
        """The row that is processed."""
        i = self._words[0]
        return None if i == NO_ROW else i

    def is_slow(self) -> bool:
        """Whether the parent called the current call slow."""
        return self._has_slow and self._words[1] != 0

    def done(self) -> None:
        self.row(NO_ROW)


class Function(NamedTuple):
    """A function that the parent sent."""

    name: str
    kind: str
    batched: bool
    call: Callable[[Any], Any]


class Call:
    """The rows of a call that runs row by row. If the call is slow, another thread sends the rows that are ready, and gives
    those back that are not begun: the slow row then holds back itself alone.
    """

    def __init__(self, function: Function, answers: Answers, part: str, mark: Mark) -> None:
        self.function = function
        self.answers = answers
        self.part = part
        self.mark = mark
        self.rows: list[Mapping[str, Any]] = []
        self.kept: list[int] = []
        self.is_stopped = False
        """Whether no further row may begin."""
        self.sent = 0
        """The number of input rows that were sent already."""
        self.began = time.perf_counter()
        self._lock = threading.Lock()
        self._is_over = False

    def give_back(self) -> None:
        """Sends the rows before the current one, and gives those behind it back. Called by another thread than the rest."""
        with self._lock:
            if self._is_over or self.is_stopped:
                return
            # In this order: the row that is read next is the last one that can begin.
            self.is_stopped = True
            row = self.mark.current()
            if row is None:
                return
            took = time.perf_counter() - self.began
            message: dict[str, Any] = {"ready": 0, "to": row + 1, "took": took}
            try:
                count = bisect_left(self.kept, row)
                if row > 0:
                    columns, kept = self.columns(0, count, row)
                    with open(self.part, "wb") as file:
                        file.write(ipc_of_columns(columns))
                    message |= {"ready": row} if kept is None else {"ready": row, "rows": kept}
                    self.sent = row
            except BaseException:
                # The end of the call has the same error, and names the row.
                pass
            self.answers.send(message)

    def finish(self, end: int) -> tuple[list[Column], list[int] | None, int]:
        """What was not sent, of rows before `end`: columns, input rows, and the first of the input rows."""
        with self._lock:
            self._is_over = True
        first = bisect_left(self.kept, self.sent)
        columns, kept = self.columns(first, len(self.kept), end)
        return columns, kept, self.sent

    def close(self) -> None:
        """The answer is about to be sent: nothing is given back any more."""
        with self._lock:
            self._is_over = True

    def columns(self, start: int, stop: int, end: int) -> tuple[list[Column], list[int] | None]:
        """Columns of some output rows, and their input rows where these differ. All input rows are before `end`."""
        kept = self.kept[start:stop]
        if self.function.kind == "filter":
            return _taken(kept), kept
        rows = self.rows[start:stop]
        try:
            out = columns_of(rows) if rows else []
        except BadRow as e:
            raise BadRow(None if e.row is None else kept[e.row], str(e)) from None
        return out, None if self.function.kind == "map" else kept


class Answers:
    """The lines to the parent, from two threads. A process that user code forked sends none."""

    def __init__(self, file: Any) -> None:
        self.process = os.getpid()
        self._file = file
        self._lock = threading.Lock()

    def send(self, answer: Mapping[str, Any]) -> None:
        end_fork(self.process)
        try:
            with self._lock:
                self._file.write(json.dumps(answer) + "\n")
                self._file.flush()
        except BrokenPipeError:
            # The parent is gone, after Ctrl-C for example. Python would report the closed pipe once more when it exits.
            os._exit(0)


class Raised(Exception):
    """User code raised an exception, at this row if one is known."""

    def __init__(self, row: int | None) -> None:
        super().__init__()
        self.row = row


class Pool:
    """What the threads of this process share."""

    def __init__(self, answers: Answers, mark: Mark) -> None:
        self.answers = answers
        self.mark = mark
        self.call: Call | None = None
        """The call that may be slow: one that runs row by row."""

    def watch(self, parent: int) -> None:
        """Gives rows of slow calls back, and ends this process when its parent has ended, whatever user code is doing. The
        parent may have been killed.
        """
        checks = max(1, round(PARENT_CHECK_INTERVAL_S / SLOW_CHECK_INTERVAL_S))
        while True:
            for _ in range(checks):
                time.sleep(SLOW_CHECK_INTERVAL_S)
                call = self.call
                if call is not None and not call.is_stopped and self.mark.is_slow():
                    call.give_back()
            if os.getppid() != parent:
                os._exit(1)


def main() -> None:
    """Serves requests until standard input ends."""
    # Descriptors that other programs do not inherit: one that a function starts might read the next request.
    requests_fd, answers_fd, nothing = os.dup(0), os.dup(1), os.open(os.devnull, os.O_RDWR)
    requests = os.fdopen(requests_fd, "rb")
    answers = Answers(os.fdopen(answers_fd, "w", encoding="utf-8"))
    os.dup2(nothing, 0)
    os.dup2(2, 1)

    def detach() -> None:
        """A process that user code forks keeps the pipes of this one neither open nor in use."""
        for fd in (requests_fd, answers_fd):
            os.dup2(nothing, fd, inheritable=False)

    os.register_at_fork(after_in_child=detach)
    # The process may outlive its job: output of a function should appear at once.
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    sys.stdin = open(os.devnull, encoding="utf-8")
    pool = Pool(answers, Mark(sys.argv.pop(1)))
    threading.Thread(target=pool.watch, args=(os.getppid(),), daemon=True).start()
    # Ctrl-C in a terminal reaches every process. The parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    functions: dict[int, Function] = {}
    broken: dict[int, str] = {}
    answers.send({"ready": True, "gives_back": True, "reads_files": True})
    while line := _next_line(requests, answers.process):
        request = json.loads(line)
        if "define" in request:
            try:
                call = pickle.loads(_payload(request, requests))
                functions[request["define"]] = Function(request["name"], request["kind"], request["batched"], call)
            except BaseException:  # a module may end the interpreter when it is imported
                end_fork(answers.process)
                broken[request["define"]] = f"while it was unpickled:\n{traceback.format_exc()}"
            continue
        number = request["call"]
        if number in broken:
            answers.send({"error": broken[number]})
            continue
        answers.send(_answer(functions[number], request["rows"], request["answer"], pool))


def _payload(request: dict[str, Any], requests: Any) -> bytes:
    """The pickled function of a request: in a file, or behind the request where an older version of caju sends it."""
    if "payload_file" not in request:
        payload: bytes = requests.read(request["payload"])
        return payload
    path = pathlib.Path(request["payload_file"])
    payload = path.read_bytes()
    path.unlink()
    return payload


def _next_line(requests: Any, process: int) -> bytes:
    """The next request; nothing at the end of them. A process that user code forked reads none."""
    end_fork(process)
    line: bytes = requests.readline()
    return line


def _answer(f: Function, rows: str, answer: str, pool: Pool) -> dict[str, Any]:
    try:
        columns = _caju.read_rows(rows)
        seeds = columns.pop(SEED, None)
        count = _length(columns)
        began = time.perf_counter()
        if f.batched:
            out, kept = _batch(f, columns, count, None if seeds is None else seeds[0], pool.answers.process)
            first, end = 0, count
        else:
            call = pool.call = Call(f, pool.answers, answer + "-part", pool.mark)
            end = _run(call, columns, count, seeds)
            out, kept, first = call.finish(end)
        took = time.perf_counter() - began
        try:
            written = ipc_of_columns(out)
        except BadRow as e:
            at = None if e.row is None else first + e.row if kept is None else kept[e.row]
            raise BadRow(at, str(e)) from None
        with open(answer, "wb") as file:
            file.write(written)
        return {"from": first, "to": end, "took": took, **({} if kept is None else {"rows": kept})}
    except Raised as e:
        cause = e.__cause__
        assert cause is not None
        return {"error": f"raised {_traceback(cause)}", "row": e.row}
    except BadRow as e:
        return {"error": _text(f"returned {e}"), "row": e.row}
    except BaseException as e:
        return {"error": f"raised {_traceback(e)}"}
    finally:
        if pool.call is not None:
            pool.call.close()
        pool.call = None
        pool.mark.done()


def _traceback(e: BaseException) -> str:
    """The exception and the frames of its traceback that are the user's."""
    frames = [f for f in traceback.extract_tb(e.__traceback__) if os.path.dirname(f.filename) != os.path.dirname(__file__)]
    last = "".join(traceback.format_exception_only(type(e), e)).strip()
    return _text("\n".join([last, *(line.rstrip() for line in traceback.format_list(frames))]))


def _text(message: str) -> str:
    """The message as valid text: an answer cannot have surrogates."""
    return message.encode("utf-8", "backslashreplace").decode("utf-8")


def _run(call: Call, columns: dict[str, Any], count: int, seeds: Any) -> int:
    """Applies the function row by row. Returns the first row that was not begun."""
    f, mark, kind = call.function, call.mark, call.function.kind
    process, current_process = call.answers.process, os.getpid
    try:
        for i in range(count):
            mark.row(i)
            # The first row always begins: a call makes progress.
            if call.is_stopped and i > 0:
                return i
            if seeds is not None:
                _seed.set(seeds[i])
            try:
                made = f.call(row_of(columns, i))
                if kind == "flat_map":
                    # A generator computes its rows only now, so its errors belong to this row.
                    made = collected(made_of(kind, made, i), i)
            except BadRow:
                end_fork(process)
                raise
            except BaseException as e:
                end_fork(process)
                raise Raised(i) from e
            if current_process() != process:
                end_fork(process)
            if kind == "filter":
                if made if type(made) in BOOLEANS else keeps_row(made, i):
                    call.kept.append(i)
            elif kind == "map":
                call.rows.append(copied_row(made) if type(made) is dict else next(made_of(kind, made, i)))
                call.kept.append(i)
            else:
                call.rows += made
                call.kept += [i] * len(made)
    finally:
        _seed.set(None)
    mark.done()
    return count


def _batch(f: Function, columns: dict[str, Any], count: int, seed: Any, process: int) -> tuple[list[Column], list[int] | None]:
    _seed.set(seed)
    try:
        result = f.call(dict(columns))
    except BaseException as e:
        end_fork(process)
        raise Raised(None) from e
    finally:
        _seed.set(None)
    end_fork(process)
    if f.kind == "filter":
        kept = kept_rows(result, count)
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
