"""Processes around a service: ranks of one job, forks, what stays when servers stop, and what is told meanwhile."""

import logging
import os
import subprocess
import sys
import threading
import time

import pytest
from conftest import Server, free_port

import caju as cj

PATIENCE_S = 60


def python(code, *arguments, **env):
    """A script of its own that has to end well; what it prints."""
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=2 * PATIENCE_S,
                          env=os.environ | env, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def wait_until(true, why):
    start = time.monotonic()
    while not true():
        assert time.monotonic() - start < PATIENCE_S, why
        threading.Event().wait(0.02)


@pytest.fixture(scope="module")
def service():
    with cj.start_dispatcher(allow_python=True) as dispatcher:
        with cj.start_worker(dispatcher, allow_python=True, cpu_threads=1):
            yield dispatcher


# ---- ranks ---------------------------------------------------------------------------------------------------------

RANK = """
import dataclasses, sys
import caju

@dataclasses.dataclass
class Scale:
    by: int = 3
    def __call__(self, row):
        return {"id": row["id"], "x": row["id"] * self.by}

class Tag:
    def __init__(self, kinds):
        self.kinds = kinds
    def __call__(self, row):
        return {**row, "tag": str(row["id"] % 3) in self.kinds or str(row["id"]) in {"1", "2", "5", "7"}}

def even(row):
    return row["tag"] in {True, False, None}

ds = (caju.range(300).map(Scale()).map(Tag({"0", "1", "x", "y"})).filter(even)
      .batch(10).distribute(sys.argv[1], job_name="ranks"))
epoch = iter(ds)
print(ds.fingerprint, flush=True)
sys.stdin.readline()
print(*[int(i) for batch in epoch for i in batch["id"]])
"""


def test_ranks_with_hash_seeds_of_their_own_share_a_job(service):
    ranks = [subprocess.Popen([sys.executable, "-c", RANK, service.address], text=True, stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ | {"PYTHONHASHSEED": seed})
             for seed in ("0", "1", "4711")]                   # fmt: skip
    try:
        names = [rank.stdout.readline() for rank in ranks]
        assert len(set(names)) == 1 and names[0].strip(), [rank.communicate("\n")[1] for rank in ranks]
        told = [rank.communicate("\n", timeout=PATIENCE_S) for rank in ranks]
        assert [rank.returncode for rank in ranks] == [0, 0, 0], told
        assert sorted(int(i) for out, _ in told for i in out.split()) == list(range(300))
    finally:
        for rank in ranks:
            rank.kill()


# ---- registered datasets -------------------------------------------------------------------------------------------


def test_a_registered_dataset_is_described_by_the_service(service):
    whole = cj.range(10).map(x="id * 2").autocache("h").batch(4)
    whole.register(service, "described")
    known = cj.from_dataset_id(service.address, "described")
    assert known.fingerprint == whole.fingerprint and dict(known.schema) == dict(whole.schema)
    assert known.to_yaml() == whole.to_yaml()
    text = known.explain()
    assert whole.fingerprint in text and "hint 'h'" in text and "-> x: int64" in text
    with pytest.raises(cj.NotFound, match="did you mean `described`"):
        cj.from_dataset_id(service.address, "descibed").schema
    with pytest.raises(cj.Unavailable, match="127.0.0.1:1"):
        cj.from_dataset_id("127.0.0.1:1", "described", connect_timeout=0.1).explain()


# ---- forks ---------------------------------------------------------------------------------------------------------

# What a child of a fork finds: nothing of the parent's, told at once, and no lock that nobody gives back.
CHILD = """
import gc, os, signal, sys, threading
import caju
def in_child(it):
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    signal.alarm(20)
    told = 0
    for ask in (lambda: next(it), lambda: it.stats, lambda: it.splits, lambda: it.bottleneck):
        try:
            ask()
        except caju.FailedPrecondition:
            told += 1
    it.close()
    del it
    gc.collect()
    os._exit(told)
"""


def test_a_child_gets_no_row_that_was_at_hand():
    out = python(CHILD + """
it = iter(caju.range(1000).batch(10))
first = next(it)
threading.Event().wait(0.5)          # rows come meanwhile, and lie at hand
print(in_child(it), 10 + sum(len(batch["id"]) for batch in it))
""")
    assert out.split() == ["4", "1000"]


def test_a_child_is_reported_though_another_thread_was_reading():
    out = python(CHILD + """
slow = "source: {range: {start: 0, end: 1000}}\\nsteps: [{sleep: {per_batch: 1h}}, {batch: 10}]"
it = iter(caju.from_yaml(slow))
thread = threading.Thread(target=lambda: list(it), daemon=True)
thread.start()
told = []
for _ in range(5):
    threading.Event().wait(0.03)
    told.append(in_child(it))
print(*told)
it.close()
thread.join(20)
print(thread.is_alive())
""")
    assert out.split() == ["4"] * 5 + ["False"]


# ---- servers that stop ---------------------------------------------------------------------------------------------


def test_servers_that_are_stopped_leave_no_threads_and_files():
    out = python("""
import gc, os, numpy, sys, time
import caju
def state():
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))
def settled(before):
    until = time.monotonic() + 20
    while state() > before and time.monotonic() < until:
        time.sleep(0.02)
    return state()[0] <= before[0] and state()[1] <= before[1]
next(iter(caju.range(1)))          # what is there once for the process
gc.collect()
before = state()
with caju.LocalCluster(workers=2) as cluster:
    dataset = caju.range(1000).batch(10).distribute(cluster)
    epoch = iter(dataset)
    rows = list(epoch)
    half = iter(dataset)
    next(half)
print(settled(before))
dispatcher = caju.start_dispatcher()
worker = caju.start_worker(dispatcher)
served = caju.range(1000).batch(10).distribute(dispatcher)
rows = list(served)
worker.drain()
worker.stop()
dispatcher.stop()
print(settled(before))
cluster.stop()
""")
    assert out.split() == ["True", "True"]


def test_a_reader_says_that_its_dispatcher_is_away(caplog):
    dispatcher = cj.start_dispatcher()
    with cj.start_worker(dispatcher):
        slow = "source: {range: {start: 0, end: 1000}}\nsteps: [{sleep: {per_batch: 1h}}, {batch: 10}]"
        epoch = iter(cj.from_yaml(slow).distribute(dispatcher.address))
        ended = []

        def read():
            try:
                ended.append(list(epoch))
            except cj.CajuError as e:
                ended.append(type(e))

        reading = threading.Thread(target=read)
        reading.start()
        dispatcher.stop()

        def told():
            words = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
            return any(dispatcher.address in w and "gives up" in w and "60s" in w for w in words)

        wait_until(told, "nobody says that the dispatcher is away")
        epoch.close()
        reading.join(PATIENCE_S)
        assert ended == [cj.Cancelled]


def test_logging_that_is_just_being_imported_is_waited_for(tmp_path):
    real = logging.__file__
    (tmp_path / "logging.py").write_text(
        "import threading\nthreading.Event().wait(0.5)\n"
        f"__path__ = [{os.path.dirname(real)!r}]\nexec(compile(open({real!r}).read(), {real!r}, 'exec'))\n"
    )
    out = python("""
import sys, threading
import caju
assert "logging" not in sys.modules
sys.path.insert(0, sys.argv[1])
def other():
    import logging
thread = threading.Thread(target=other)
thread.start()
while "logging" not in sys.modules:
    pass
caju._logging.sync_level()
thread.join()
print("fine")
""", str(tmp_path))
    assert out == "fine\n"


# ---- arguments -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call,words", [
    (lambda: cj.configure(workers="2"), "workers='2' must be"),
    (lambda: cj.configure(workers=-1), "workers=-1 must be"),
    (lambda: cj.configure(cpu_threads=1.5), "cpu_threads=1.5 must be"),
    (lambda: cj.configure(cache=3), "cache=3 must be a folder or a URL"),
    (lambda: cj.LocalCluster(workers="2"), "workers='2' must be"),
    (lambda: cj.start_worker("h:1", cpu_threads="2"), "cpu_threads='2' must be"),
    (lambda: cj.range(3).distribute("h:1", seed=-1), "seed=-1 must be"),
    (lambda: cj.range(3).distribute("h:1", seed=2**64), "seed=.* must be"),
    (lambda: cj.range(3).distribute("h:1", seed="7"), "seed='7' must be"),
    (lambda: cj.range(3).distribute("h:1", epochs=True), "epochs=True must be"),
    (lambda: cj.range(3).distribute("h:1", policy=3), "policy=3 must be a string"),
    (lambda: cj.range(3).distribute("h:1", connect_timeout="1"), "connect_timeout='1' must be"),
    (lambda: cj.range(3).distribute("h:1", num_consumers="2"), "num_consumers='2' must be"),
    (lambda: cj.range(3).distribute("h:1", max_frame="1KiB"), "max_frame='1KiB' must be at least 1 MiB"),
    (lambda: cj.range(3).distribute("h:1", max_frame=1.5), "max_frame=1.5 must be"),
])  # fmt: skip
def test_arguments_that_cannot_be_are_named(call, words):
    with pytest.raises(cj.InvalidPipeline, match=words):
        call()


def test_an_element_above_max_frame_is_refused(cluster):
    address = cluster(workers=1).dispatcher.address
    batches = cj.range(300_000).batch(300_000)
    with pytest.raises(cj.ResourceExhausted, match="more than the bound of 1048576 bytes"):
        list(batches.distribute(address, max_frame="1MiB"))
    assert len(list(batches.distribute(address, max_frame=4 << 20))) == 1


def test_a_loop_that_could_not_begin_is_not_counted_as_an_epoch(caju, tmp_path):
    port = free_port()
    data = cj.range(8).distribute(f"caju://127.0.0.1:{port}", job_name="later", connect_timeout=0.2)
    for _ in range(2):
        with pytest.raises(cj.Unavailable):
            iter(data)
    servers = [Server(caju, tmp_path, "dispatcher", "--listen", f"127.0.0.1:{port}")]
    try:
        servers.append(Server(caju, tmp_path, "worker", "--listen", "127.0.0.1:0", "--dispatcher", f"127.0.0.1:{port}"))
        for epoch in range(2):
            with iter(data) as rows:
                assert rows.epoch == epoch
                assert sorted(int(row["id"]) for row in rows) == list(range(8))
    finally:
        for server in servers:
            server.kill()
