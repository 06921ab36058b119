"""How long a reader in Python waits, and how much it holds: the arguments of `distribute`, each with what it bounds."""

import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import Server

import caju as cj

SLOW = "source: { range: 100000 }\nsteps: [ { sleep: { per_row: 5ms } }, { batch: 10 } ]"


class Processes:
    """A dispatcher that misses workers late, and workers."""

    def __init__(self, caju, folder):
        self.caju, self.folder, self.servers = caju, folder, []
        self.dispatcher = self.start("dispatcher", "--worker-timeout", "90s")
        self.address = self.dispatcher.address

    def start(self, role, *args):
        listen = ("--listen", "127.0.0.1:0", "--allow", "/")
        self.servers.append(Server(self.caju, self.folder, role, *listen, *args))
        return self.servers[-1]

    def worker(self, *args):
        return self.start("worker", "--dispatcher", self.address, "--cpu-threads", "1", *args)


@pytest.fixture
def cluster(caju, tmp_path):
    processes = Processes(caju, tmp_path)
    yield processes
    for server in processes.servers:
        server.kill()


def test_a_reader_waits_for_the_first_worker_as_long_as_worker_wait(cluster):
    began = time.monotonic()
    with pytest.raises(cj.Unavailable, match="no worker registered .* within 300ms"):
        list(cj.range(3).distribute(cluster.address, worker_wait=0.3))
    assert time.monotonic() - began < 30, "60 s are the default"


def test_a_dispatcher_that_lists_a_silent_source_is_given_up_after_open_timeout(cluster):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        source = f"http://127.0.0.1:{silent.getsockname()[1]}/rows.csv"
        rows = cj.from_yaml(f"source: {{ csv: '{source}' }}")
        dispatcher = cluster.start("dispatcher", "--allow-read", source)
        # A call that is answered at once may take 2 s.
        with pytest.raises(cj.DeadlineExceeded, match=r"the dispatcher at .* did not answer within 2\.25s"):
            iter(rows.distribute(dispatcher.address, connect_timeout=0.1, open_timeout=0.25))


def test_a_dispatcher_that_died_is_missed_for_dispatcher_timeout(cluster):
    cluster.worker()
    epoch = iter(cj.from_yaml(SLOW).distribute(cluster.address, dispatcher_timeout=0.5))
    next(epoch)
    began = time.monotonic()
    cluster.dispatcher.kill()
    with pytest.raises(cj.Unavailable, match="the dispatcher has been away for"):
        for _ in epoch:
            pass
    assert time.monotonic() - began < 40, "60 s are the default"


def test_a_consumer_waits_for_the_others_as_long_as_stall_timeout(cluster):
    # Little is computed for a consumer that takes nothing.
    cluster.worker("--buffer", "64KiB")

    def consumer(index, **limits):
        ds = cj.range(4_000_000).batch(1000)
        return iter(ds.distribute(cluster.address, job_name="even", num_consumers=2, consumer_index=index, **limits))

    first, second = consumer(0, stall_timeout=1), consumer(1, prefetch="64KiB")
    with ThreadPoolExecutor() as threads:
        taken = threads.submit(next, second)
        next(first)
        taken.result()
        with pytest.raises(cj.DeadlineExceeded, match="consumer 0 of job `even` has waited for 1s"):
            for _ in first:
                pass
    second.close()


def test_a_worker_that_cannot_be_reached_is_dialled_for_dial_timeout(cluster):
    # The system accepts no connection here: its queue of one is full.
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, socket.create_connection(full.getsockname()):
        address = f"127.0.0.1:{full.getsockname()[1]}"
        cluster.worker("--advertise", address)
        began = time.monotonic()
        with pytest.raises(cj.Unavailable, match=address):
            list(cj.range(100).distribute(cluster.address, dial_timeout=0.1))
        assert time.monotonic() - began < 40, "ten attempts of 5 s are what it takes by default"


def test_a_worker_that_is_silent_is_lost_after_worker_silence(cluster, tmp_path):
    for file in range(100):
        (tmp_path / f"{file}.csv").write_text("id\n" + "".join(f"{file * 40 + row}\n" for row in range(40)))
    cluster.worker()
    silent = cluster.worker()
    ds = cj.from_yaml(f"source: {{ csv: '{tmp_path}/*.csv' }}\nsteps: [ {{ sleep: {{ per_row: 1ms }} }}, {{ batch: 10 }} ]")
    epoch = iter(ds.distribute(cluster.address, worker_silence=0.5))
    rows = [int(i) for _ in range(20) for i in next(epoch)["id"]]
    silent.process.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    for batch in epoch:
        rows.extend(int(i) for i in batch["id"])
    assert sorted(rows) == list(range(4000))
    assert time.monotonic() - began < 28, "30 s are the default"


def test_prefetch_bounds_what_waits_for_the_reader(cluster):
    cluster.worker()

    def received(prefetch):
        ds = cj.range(2_000_000).batch(1000)
        with iter(ds.distribute(cluster.address, prefetch=prefetch)) as epoch:
            next(epoch)
            while True:
                before = epoch.stats.received_bytes
                time.sleep(0.5)
                if epoch.stats.received_bytes == before:
                    return before

    # 2,000,000 numbers are 16 MB.
    assert received("64KiB") < 2 << 20
    assert received("64MiB") > 15_000_000


@pytest.mark.parametrize("name", ["open_timeout", "worker_wait", "dispatcher_timeout", "stall_timeout", "dial_timeout", "worker_silence"])
def test_times_are_checked(name):
    for value in (-1, float("nan"), float("inf"), "1s", True):
        with pytest.raises(cj.InvalidPipeline, match=f"{name}=.* must be a number of seconds"):
            cj.range(3).distribute("h:1", **{name: value})


def test_a_size_of_the_prefetch_is_checked():
    with pytest.raises(cj.InvalidPipeline, match="prefetch=-1 must be"):
        cj.range(3).distribute("h:1", prefetch=-1)


def some_of_two_readers(ds, **consumers):
    """The states of two readers of one job, which took ten batches each."""
    with cj.LocalCluster() as cluster:
        readers = [iter(ds.distribute(cluster, job_name="ranks", **{k: v(i) for k, v in consumers.items()})) for i in range(2)]
        for _ in range(10):
            for reader in readers:
                next(reader)
        return [reader.state_dict() for reader in readers]


def test_states_that_are_missing_are_named_by_reader_within_worker_wait():
    slow = cj.from_yaml("source: { range: 20000 }\nsteps: [ { sleep: { per_row: 100us } }, { batch: 16 } ]")
    states = some_of_two_readers(slow)
    with cj.LocalCluster() as cluster:
        alone = iter(slow.distribute(cluster, job_name="ranks", worker_wait=1))
        alone.load_state_dict(states[0])
        with pytest.raises(cj.DeadlineExceeded, match=r"\(job `ranks` epoch 0, of the reader that states name as \d+\)"):
            next(alone)


def test_states_that_are_missing_are_named_by_consumer_within_worker_wait():
    rows = cj.range(2000).batch(10)
    states = some_of_two_readers(rows, num_consumers=lambda _: 2, consumer_index=lambda i: i)
    with cj.LocalCluster() as cluster:
        alone = iter(rows.distribute(cluster, job_name="ranks", num_consumers=2, consumer_index=0, worker_wait=1))
        alone.load_state_dict(states[0])
        with pytest.raises(cj.DeadlineExceeded, match=r"\(job `ranks` epoch 0, of consumer 1\)"):
            next(alone)
