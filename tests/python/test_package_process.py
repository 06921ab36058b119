"""The package in a process: signals, threads, forks, the end, imports; its examples and types."""

import doctest
import multiprocessing
import os
import pathlib
import runpy
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import caju as cj

ROOT = pathlib.Path(__file__).resolve().parents[2]
SLOW = "source: { range: 100 }\nsteps: [ { sleep: { per_row: 10s } }, { batch: 2 } ]"


def ids(dataset):
    """The ids of an epoch, in the order of arrival."""
    return [int(i) for element in dataset for i in np.atleast_1d(element["id"])]


def python(code, *, code_is=0):
    """Runs code in a process of its own; what it printed."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code_is, done.stderr
    return done.stdout


def test_ctrl_c_stops_at_once():
    # A run in the background of a shell ignores the signal from the start.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        timer = threading.Timer(0.7, lambda: os.kill(os.getpid(), signal.SIGINT))
        dataset, start = cj.from_yaml(SLOW), time.monotonic()
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            list(dataset)
        assert time.monotonic() - start < 5
    finally:
        signal.signal(signal.SIGINT, before)


def test_others_run_while_a_loop_waits():
    ticks, over = [0], threading.Event()

    def tick():
        while not over.wait(0.01):
            ticks[0] += 1

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        list(cj.from_yaml("source: { range: 4 }\nsteps: [ { sleep: { per_row: 200ms } } ]"))
    finally:
        over.set()
        thread.join()
    assert ticks[0] > 20


def test_nothing_is_left_behind():
    assert python("""
import gc, os, numpy, caju
def state():
    names = sorted(open(f"/proc/self/task/{t}/comm").read().strip() for t in os.listdir("/proc/self/task"))
    sockets = sum(os.readlink(f"/proc/self/fd/{f}").startswith("socket") for f in os.listdir("/proc/self/fd")
                  if os.path.lexists(f"/proc/self/fd/{f}"))
    return [n for n in names if n.startswith("caju")], sockets
next(iter(caju.range(1)))          # what is there once for the process: one pair of sockets for signals
gc.collect()
before = state()
assert not before[0]
dataset = caju.range(1000).batch(10)
for _ in dataset: pass
assert state()[0], "threads while the dataset lives"
del dataset, _
with caju.LocalCluster(2) as cluster:
    epoch = iter(caju.range(1000).distribute(cluster))
    next(epoch)
del cluster, epoch
gc.collect()
print(state() == before, caju._caju.runtime_alive())
""").split() == ["True", "False"]


def test_the_end_of_the_process_needs_no_help():
    start = time.monotonic()
    out = python("import caju\nepoch = iter(caju.range(10**7).batch(2))\nnext(epoch)\ncluster = caju.LocalCluster()\nprint('end')")
    assert out == "end\n" and time.monotonic() - start < 30


def child(queue, dataset):
    try:
        queue.put(ids(dataset))
    except cj.CajuError as e:
        queue.put((type(e).__name__, str(e)))


def in_child(method, dataset):
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    process = context.Process(target=child, args=(queue, dataset))
    process.start()
    answer = queue.get(timeout=60)
    process.join(60)
    assert process.exitcode == 0
    return answer


def test_a_fork_while_threads_run_is_explained():
    dataset = cj.range(10).batch(2)
    list(dataset)
    kind, message = in_child("fork", dataset)
    assert kind == "FailedPrecondition" and "spawn" in message
    assert in_child("spawn", dataset) == list(range(10))
    assert ids(dataset) == list(range(10))                   # the parent goes on


def test_children_that_are_forked_in_a_busy_process_end():
    # A child drops the connection that it inherited. A thread of its parent may have held a lock of the runtime at the fork, which
    # nobody opens in the child: 5 to 8 of these children hung.
    assert python("""
import os, select, threading, time, caju
over = threading.Event()
def busy():
    # Short pauses: the threads of the runtime go idle and are woken, which needs the lock.
    while not over.is_set():
        for _ in caju.range(50).batch(1): time.sleep(0.0005)
threads = [threading.Thread(target=busy) for _ in range(2)]
for thread in threads: thread.start()

dataset = caju.range(100).batch(10)
list(dataset)
# A pipe that is at its end when no child is left that holds it open.
all_ended, held_open = os.pipe()
children = []
for _ in range(1000):
    pid = os.fork()
    if pid == 0:
        del dataset
        os._exit(0)
    children.append(pid)
os.close(held_open)
stuck = not select.select([all_ended], [], [], 20)[0]
for pid in children:
    if stuck: os.kill(pid, 9)
    os.waitpid(pid, 0)
over.set()
for thread in threads: thread.join()
print(int(stuck))
""") == "0\n"


def test_a_child_ends_without_a_word_about_what_it_inherited():
    out = python("""
import caju, os, sys
rows = iter(caju.range(100).batch(10))
next(rows)
cluster = caju.LocalCluster()
pid = os.fork()
if pid == 0:
    os.dup2(1, 2)
    print(repr(cluster), flush=True)
    sys.exit(0)
print(os.waitpid(pid, 0)[1])
""")
    assert out.replace("inprocess://", "").count("\n") == 2 and out.startswith("LocalCluster(") and out.endswith("\n0\n"), out


def test_a_fork_before_anything_runs_is_fine():
    assert python("""
import os, caju
dataset = caju.range(10).batch(5)
dataset.schema
pid = os.fork()
total = sum(int(b["id"].sum()) for b in dataset)
if pid == 0: os._exit(0 if total == 45 else 1)
print(total, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
""") == "45 0\n"


def test_importing_is_quick_and_imports_little():
    out = python("""
import sys, time
start = time.perf_counter()
import caju
took = time.perf_counter() - start
heavy = {"torch", "jax", "pyarrow", "numpy"} & set(sys.modules)
print(took, sorted(heavy))
""")
    took, heavy = out.split(" ", 1)
    assert heavy.strip() == "[]"
    assert float(took) < 1.0                                 # 0.1 s where nothing else runs; see benches


@pytest.mark.parametrize("example,arguments,good", [
    ("tabular", ["--rows", "3000", "--epochs", "2"], lambda losses: losses[1] < losses[0] < 0.7),
    ("text_bucketed", ["--rows", "400"], lambda shares: shares[1] < shares[0] * 0.7),
    ("hyperparameter_sweep", ["--rows", "600"], lambda times: all(t < times[0][0] / 2 for t in times[1] + times[2])),
    ("hyperparameter_sweep", ["--rows", "60", "--together"], lambda times: [len(t) for t in times] == [2, 2, 2]),
])  # fmt: skip
def test_examples_run(example, arguments, good, caju):
    assert good(runpy.run_path(str(ROOT / f"examples/{example}.py"))["main"](arguments))


def test_trainers_of_the_sweep_share_rows(cluster):
    running = cluster(1)
    example = runpy.run_path(str(ROOT / "examples/hyperparameter_sweep.py"))
    times = example["main"](["--rows", "2000", "--together", "--dispatcher", running.dispatcher.address])
    assert [len(t) for t in times] == [2, 2, 2]
    # Heartbeats of the worker say it.
    deadline = time.monotonic() + 30
    while True:
        [worker] = running.status()["workers"]
        window = worker["usage"]["sharing"]
        if window["hits"] >= window["misses"] > 0:
            break
        assert time.monotonic() < deadline, window
        time.sleep(0.2)


def test_doctests():
    import caju._expr

    for module in (cj, caju._expr):
        assert doctest.testmod(module).failed == 0


def test_types_are_strict():
    done = subprocess.run([sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), "--cache-dir",
                           str(ROOT / "target/mypy")], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
