"""Behaviours of docs/conformance.md under restarts of servers (killed, not stopped), and what is the same on every run."""

import json
import shutil

import numpy as np
import pytest
from conftest import free_port

import caju as cj

PATIENCE_S = 90


class Restartable:
    """A dispatcher with a state folder, and workers, which come back under their addresses after `kill -9`."""

    def __init__(self, caju, folder, workers=1, state=True):
        self.caju, self.folder, self.state = caju, folder, ["--state-dir", "state"] if state else []
        self.port = free_port()
        self.servers = {}
        self.start_dispatcher()
        for w in range(workers):
            self.start_worker(w)

    @property
    def address(self):
        return f"caju://127.0.0.1:{self.port}"

    def start_dispatcher(self):
        self.start("dispatcher", "dispatcher", self.port, "--heartbeat", "100ms", "--worker-timeout", "1s", *self.state)

    def start_worker(self, w=0):
        known = self.servers.get(w)
        port = known.address.rsplit(":", 1)[1] if known else 0
        self.start(w, "worker", port, "--dispatcher", f"127.0.0.1:{self.port}", "--cpu-threads", "1")

    def start(self, name, role, port, *args):
        from conftest import Server

        self.servers[name] = Server(self.caju, self.folder, role, "--listen", f"127.0.0.1:{port}", *args)

    def restart(self, name="dispatcher"):
        self.servers[name].kill()
        self.start_dispatcher() if name == "dispatcher" else self.start_worker(name)

    def status(self):
        return json.loads(self.caju("status", "--dispatcher", self.address, "--format", "json").stdout)

    def kill(self):
        for server in self.servers.values():
            server.kill()


@pytest.fixture
def servers(caju, tmp_path):
    started = []

    def start(**options):
        folder = tmp_path / f"servers-{len(started)}"
        folder.mkdir()
        started.append(Restartable(caju, folder, **options))
        return started[-1]

    yield start
    for s in started:
        s.kill()


def ids(dataset):
    return [int(row["id"]) for row in dataset]


def take(epoch, n):
    return [int(next(epoch)["id"]) for _ in range(n)]


# ---- restarts ------------------------------------------------------------------------------------------------------


def test_fto_01_what_a_worker_holds_comes_without_the_dispatcher(servers):
    s = servers()
    epoch = iter(cj.range(100).distribute(s.address, job_name="j"))
    first = take(epoch, 1)
    s.servers["dispatcher"].kill()
    assert first + take(epoch, 99) == list(range(100))
    del epoch


def test_fto_02_a_dispatcher_that_restarts_before_reading(servers):
    s = servers()
    assert cj.range(100).register(s.address, "hundred") == "hundred"
    s.restart()
    assert ids(cj.from_dataset_id(s.address, "hundred")) == list(range(100))


@pytest.mark.parametrize("mode", ["off", "dynamic"])
def test_fto_03_and_fto_04_a_dispatcher_that_restarts_in_mid_epoch(servers, mode):
    s = servers()
    slow = cj.from_yaml("source: { range: 300000 }\nsteps: [sleep: { per_row: 10us }]\ndeterministic: true")
    dataset = slow.distribute(s.address, job_name="j", processing_mode=mode)
    epoch = iter(dataset)
    seen = take(epoch, 50)
    leased = [j["splits_leased"] for j in s.status()["jobs"]]
    assert sum(leased) < 200, leased                          # of 293: the others are leased by the dispatcher that comes back
    s.restart()
    assert seen + [int(row["id"]) for row in epoch] == list(range(300_000))


def test_fto_06_a_dispatcher_that_restarts_between_epochs(servers):
    s = servers()
    dataset = cj.range(100).distribute(s.address, job_name="j", epochs=2)
    assert ids(dataset) == list(range(100))
    s.restart()
    assert ids(dataset) == list(range(100))


def test_fto_08_dispatcher_and_worker_restart_before_each_epoch(servers):
    s = servers()
    dataset = cj.range(100).distribute(s.address, job_name="j", epochs=2)
    for _ in range(2):
        s.restart()
        s.restart(0)
        assert ids(dataset) == list(range(100))


def test_states_from_before_and_from_after_the_loss_of_the_dispatchers_state_are_refused_together_elsewhere(servers):
    """What a reader took between its older state and the loss would be missing: the later states of the others have it."""
    s = servers(workers=2, state=False)
    rows = cj.range(200_000).batch(10)

    def readers(service, job):
        return [iter(rows.distribute(service, job_name=job)) for _ in range(2)]

    def refused():
        return pytest.raises(cj.FailedPrecondition, match="rows, and by the states of others it had")

    epochs = readers(s.address, "train")
    for epoch in epochs * 20:
        next(epoch)
    old = [epoch.state_dict() for epoch in epochs]
    for epoch in epochs * 10:
        next(epoch)
    s.restart()
    new = old
    while any(state["iteration"] == before["iteration"] for state, before in zip(new, old)):
        for epoch in epochs:
            next(epoch)
        new = [epoch.state_dict() for epoch in epochs]
    assert all(state["bases"] for state in new) and not any("bases" in state for state in old)
    taken = [state["rows"] for state in new]
    for epoch in epochs:
        epoch.close()
    with cj.LocalCluster(workers=1) as elsewhere:
        for n, (one, other) in enumerate([(old[0], new[1]), (new[0], old[1])]):
            first, second = readers(elsewhere, f"own-{n}")
            first.load_state_dict(one)
            with refused():
                second.load_state_dict(other)
            first.close()
            [both, _] = readers(elsewhere, f"all-{n}")
            with refused():
                both.load_state_dict([one, other])
        # All from one side go on.
        for states, had in [(old, 400), (new, sum(taken))]:
            first, second = readers(elsewhere, f"train-{had}")
            second.close()
            first.load_state_dict(states)
            assert sum(len(batch["id"]) for batch in first) == 200_000 - had


@pytest.mark.parametrize("state", [True, False], ids=["with_state", "without_state"])
def test_fto_15_a_large_definition_and_a_worker_that_comes_later(servers, state):
    s = servers(workers=0, state=state)
    large = np.frombuffer(np.random.default_rng(7).bytes(8_000_000), np.uint8).reshape(1, -1)
    epoch = iter(cj.from_numpy({"x": large}).distribute(s.address, job_name="j"))
    s.start_worker()
    rows = list(epoch)
    assert len(rows) == 1 and np.array_equal(np.asarray(rows[0]["x"]), large[0])


# ---- the same on every run -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [4, 7])
@pytest.mark.parametrize("workers", [2, 4])
def test_det_04_epochs_without_shuffle_are_equal(size, workers):
    first, second = cj.range(200), cj.range(200, 500)
    with cj.LocalCluster(workers=workers) as cluster:
        streams = cj.concatenate(first, second).batch(size).with_options(deterministic=True)
        dataset = streams.distribute(cluster, job_name="j", epochs=2)
        epochs = [[batch["id"].tolist() for batch in dataset] for _ in range(2)]
    assert epochs[0] == epochs[1]
    assert [i for batch in epochs[0] for i in batch] == list(range(500))


def test_det_12_workers_draw_differently_and_alike_on_every_run(caju, tmp_path):
    from conftest import Cluster
    from foreign import column, flight_info, read_parts

    def shuffles(run):
        folder = tmp_path / f"run-{run}"
        folder.mkdir()
        c = Cluster(caju, folder, 6)
        try:
            definition = {"source": {"range": 100}, "steps": [{"shuffle": {"buffer": 100, "seed": 7}}]}
            parts = read_parts(flight_info(c.dispatcher.address, definition, mode="off"), True)
            return [tuple(column(p, "id")) for p in parts]
        finally:
            c.kill()

    first, second = shuffles(1), shuffles(2)
    assert len(set(first)) == 6, "six workers, six draws"
    assert sorted(first) == sorted(second), "the draw is the slot's, not the address's or the time's"
    assert all(sorted(part) == list(range(100)) for part in first)


@pytest.mark.parametrize("seed", [3, 4])
def test_det_13_two_datasets_over_one_cache_that_is_wiped_between(tmp_path, seed):
    cache = tmp_path / "cache"

    def whole(seed):
        with cj.LocalCluster(workers=2, cache=cache) as cluster:
            dataset = cj.range(117).with_columns(x="id * 2").autocache("a").shuffle(50, seed=seed)
            return ids(dataset.distribute(cluster, job_name="j", policy="hint:a"))

    assert sorted(whole(3)) == list(range(117))
    shutil.rmtree(cache)
    assert sorted(whole(seed)) == list(range(117))
    assert sorted(whole(seed)) == list(range(117)), "from what the second one stored"


# ---- functions that are none ---------------------------------------------------------------------------------------


def test_a_function_that_depends_on_the_time_is_named_when_its_split_is_run_again(caju, tmp_path):
    import sys

    from conftest import Server

    def now(row):
        import time

        return {"id": row["id"], "at": time.time_ns()}

    # Large splits, so that the worker is killed in the middle of one.
    for i in range(2):
        ids = range(i * 10_000, (i + 1) * 10_000)
        (tmp_path / f"{i}.csv").write_text("\n".join(["id", *map(str, ids)]) + "\n")
    python = ["--allow-python", sys.executable, "--allow-read", str(tmp_path)]
    dispatcher = Server(caju, tmp_path, "dispatcher", "--heartbeat", "50ms", "--worker-timeout", "1s", *python)
    worker = ["worker", "--dispatcher", dispatcher.address, *python]
    workers = [Server(caju, tmp_path, *worker)]
    try:
        source = f"source: {{ csv: {{ path: '{tmp_path}/*.csv' }} }}"
        slow = cj.from_yaml(f"{source}\nsteps: [sleep: {{ per_row: 500us }}]")
        epoch = iter(slow.map(now).batch(10).distribute(dispatcher.address, job_name="j"))
        seen = sum(len(next(epoch)["id"]) for _ in range(400))
        assert seen == 4000
        workers.append(Server(caju, tmp_path, *worker))
        workers[0].kill()
        with pytest.raises(cj.CajuError, match="run again after its worker was lost") as e:
            for _ in epoch:
                pass
        assert "python gave another output for the same input" in str(e.value), e.value
    finally:
        for server in [*workers, dispatcher]:
            server.kill()
