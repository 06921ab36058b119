"""The files of processes that run functions of users: their rows, and the functions as they were sent. None of them stays."""

import os
import pathlib
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest
from conftest import PATIENCE_S, wait_for

import caju as cj
from caju import _caju

FUNCTION = b"the function"


def rows_of(table):
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


ROWS = rows_of(pa.table({"x": [1, 2, 3]}))


class Interpreter:
    """An interpreter that is stopped before it reads a function. It notes its processes and their folders first."""

    def __init__(self, folder):
        self.path, self.seen = folder / "interpreter", folder / "seen"
        self.seen.touch()
        ready = '{"ready": true, "gives_back": true, "reads_files": true}'
        self.path.write_text(f"#!/bin/sh\nprintf '%s %s\\n' \"$$\" \"$4\" >>'{self.seen}'\necho '{ready}'\nkill -STOP $$\n")
        self.path.chmod(0o700)

    def processes(self):
        return noted(self.seen)

    def stopped(self, number):
        """This process once it is stopped and has been sent a function, and its folder."""
        pid, folder = wait_for("process", lambda: self.processes()[number:])[0]
        wait_for("stopped process", lambda: state(pid) == "T")
        file = folder / "function-0"
        wait_for("file of the function", lambda: file.exists() and file.read_bytes() == FUNCTION)
        return pid, folder


def noted(file):
    """The processes that noted themselves in a file, each with the folder of its files."""
    lines = [line.split() for line in file.read_text().splitlines()]
    return [(int(pid), pathlib.Path(mark).parent) for pid, mark in lines]


def state(pid):
    """The state of a process as one letter: T is stopped, Z has ended."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return "Z"


def test_a_process_that_is_killed_before_it_reads_its_function_leaves_no_file(tmp_path):
    interpreter = Interpreter(tmp_path)
    pool = _caju.FunctionPool(str(interpreter.path), 1, float(PATIENCE_S), "f", "map", False, FUNCTION)
    with ThreadPoolExecutor(1) as threads:
        call = threads.submit(pool.call, ROWS)
        for number in range(2):
            pid, _ = interpreter.stopped(number)
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(cj.ResourceExhausted, match="run twice.*SIGKILL"):
            call.result(PATIENCE_S)
    folders = [folder for _, folder in interpreter.processes()]
    assert len(set(folders)) == 2 and not any(folder.exists() for folder in folders)


def test_a_process_that_is_stopped_for_too_long_leaves_no_file(tmp_path):
    interpreter = Interpreter(tmp_path)
    pool = _caju.FunctionPool(str(interpreter.path), 1, 0.3, "f", "map", False, FUNCTION)
    with pytest.raises(cj.DeadlineExceeded, match="run twice.*hangs"):
        pool.call(ROWS)
    processes = interpreter.processes()
    assert len(processes) == 2 and not any(folder.exists() for _, folder in processes)
    assert [state(pid) for pid, _ in processes] == ["Z", "Z"]


def test_what_a_killed_parent_of_a_stopped_process_leaves_is_removed_by_the_next(tmp_path):
    interpreter = Interpreter(tmp_path)
    code = f"""
from caju import _caju
pool = _caju.FunctionPool({str(interpreter.path)!r}, 1, {PATIENCE_S}.0, "f", "map", False, {FUNCTION!r})
pool.call({ROWS!r})
"""
    parent = subprocess.Popen([sys.executable, "-c", code])
    try:
        pid, folder = interpreter.stopped(0)
    finally:
        parent.kill()
        parent.wait(PATIENCE_S)
    try:
        # A process that is stopped does not notice that its parent has ended, and the folder is not its own.
        assert state(pid) == "T"
        assert [int(row["id"]) for row in cj.range(3).map(lambda row: {"id": row["id"]}, schema={"id": "int64"})] == [0, 1, 2]
        assert not folder.exists()
    finally:
        os.kill(pid, signal.SIGKILL)


def held(seen, go):
    """A function that stays at the row 3 until the file `go` exists. It notes its process first."""

    def f(row):
        if row["id"] == 3:
            with open("/proc/self/cmdline") as command, open(seen, "a") as file:
                file.write(f"{os.getpid()} {command.read().split(chr(0))[-2]}\n")
            until = time.monotonic() + PATIENCE_S
            while not go.exists():
                if time.monotonic() >= until:
                    raise TimeoutError("the file `go` does not come")
                time.sleep(0.005)
        return {"id": row["id"]}

    return f


@pytest.mark.parametrize("closes", [False, True])
@pytest.mark.parametrize("kills", [False, True])
def test_an_epoch_in_the_middle_of_which_a_process_ends_leaves_no_file(tmp_path, closes, kills):
    seen, go = tmp_path / "seen", tmp_path / "go"
    seen.touch()
    with cj.LocalCluster(cpu_threads=2) as cluster:
        rows = cj.range(10).map(held(seen, go), schema={"id": "int64"}, timeout=PATIENCE_S)
        epoch = iter(rows.distribute(cluster))
        taken = [int(next(epoch)["id"])]
        pid, folder = wait_for("process at the row", lambda: noted(seen))[0]
        assert (folder / "rows").exists() and not list(folder.glob("function-*")), "the function has been read"
        if kills:
            os.kill(pid, signal.SIGSTOP)
        if closes:
            epoch.close()
        if kills:
            os.kill(pid, signal.SIGKILL)
        go.touch()
        if not closes:
            taken += [int(row["id"]) for row in epoch]
            assert sorted(taken) == list(range(10))
    wait_for("end of the processes", lambda: not any(of.exists() for _, of in noted(seen)))
    assert state(pid) == "Z"
