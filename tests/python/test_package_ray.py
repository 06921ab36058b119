"""caju on Ray: a real local Ray, and one of several nodes. Left out where Ray is not installed."""

import faulthandler
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

ray = pytest.importorskip("ray")

import caju as cj  # noqa: E402
import caju.ray  # noqa: E402
from caju.ray import _head  # noqa: E402

PATIENCE_S = 180
"""No wait is longer. Processes of Ray start in seconds, and in tens of seconds on a busy machine."""


@pytest.fixture(autouse=True)
def deadline():
    """Whatever hangs ends the run with the stacks of all threads."""
    faulthandler.dump_traceback_later(3 * PATIENCE_S, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


def wait_until(what, wanted):
    """Asks until the answer is true; each question takes a call of an actor at least."""
    until = time.monotonic() + PATIENCE_S
    while not (answer := wanted()):
        assert time.monotonic() < until, f"never: {what}"
        threading.Event().wait(0.2)
    return answer


@pytest.fixture(scope="module")
def local_ray():
    ray.init(num_cpus=6, num_gpus=1, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def sleeping(folder, rows, files=60):
    for i in range(files):
        ids = range(rows * i // files, rows * (i + 1) // files)
        (folder / f"{i:04}.csv").write_text("id\n" + "".join(f"{n}\n" for n in ids))
    steps = "steps: [ { sleep: { per_row: 5ms } }, { batch: 10 } ]"
    return cj.from_yaml(f"source: {{ csv: {{ path: '{folder}/*.csv' }} }}\n{steps}")


def running(cluster):
    return [w for w in cluster.status.workers if w.state == "running"]


def test_the_target_becomes_actors_and_falls_again(local_ray, tmp_path):
    with caju.ray.start_cluster(max_workers=3, scaling_interval=2.0, scale_down_after=2.0) as cluster:
        seen, most = [], 0
        for batch in sleeping(tmp_path, 3000).distribute(cluster, job_name="waits"):
            seen += batch["id"].tolist()
            # A reader that waits all the time needs as many workers as are allowed.
            if len(seen) % 100 == 0:
                most = max(most, len(running(cluster)))
        assert sorted(seen) == list(range(3000))
        assert most > 1, cluster.status
        wait_until("one worker is left", lambda: len(cluster.status.workers) == 1)
        assert cluster.status.target == 1 and cluster.status.lost == 0
        [worker] = running(cluster)
        assert worker.node == ray.get_runtime_context().get_node_id()
    with pytest.raises(cj.Unavailable):
        list(cj.range(4).distribute(cluster, connect_timeout=0.2))


def test_a_worker_that_is_killed_is_replaced(local_ray, tmp_path):
    with caju.ray.start_cluster(2) as cluster:
        wait_until("two workers", lambda: len(running(cluster)) == 2)
        seen = []
        for batch in sleeping(tmp_path, 2000).distribute(cluster, job_name="killed"):
            if len(seen) == 100:
                os.kill(running(cluster)[0].process, signal.SIGKILL)
            seen += batch["id"].tolist()
        assert sorted(seen) == list(range(2000)), "each row once"
        wait_until("the third worker", lambda: cluster.status.lost == 1 and len(running(cluster)) == 2)
        assert cluster.status.last_failure


def test_workers_that_cannot_be_placed_are_pending(local_ray):
    with caju.ray.start_cluster(2, worker_resources={"nowhere": 1.0}) as cluster:
        wait_until("two actors", lambda: [w.state for w in cluster.status.workers] == ["pending"] * 2)
        assert cluster.status[:2] == (2, "")
        again = ray.cloudpickle.loads(ray.cloudpickle.dumps(cluster))
        assert again.address == cluster.address and len(again.status.workers) == 2


def test_workers_take_gpus(local_ray):
    with caju.ray.start_cluster(1, worker_resources={"GPU": 1}) as cluster:
        wait_until("a worker", lambda: running(cluster))
        assert ray.available_resources().get("GPU", 0) == 0
    with pytest.raises(cj.FailedPrecondition, match="this cluster of caju was stopped"):
        cluster.status  # noqa: B018
    cluster.stop()


def test_a_worker_with_a_reader_is_drained_for_drain_timeout(local_ray):
    endless = cj.from_yaml("source: { range: 1000 }\nsteps: [ { sleep: { per_batch: 1h } }, { batch: 10 } ]")
    cluster = caju.ray.start_cluster(1, drain_timeout=0.5)
    epoch = iter(endless.distribute(cluster, job_name="endless", dispatcher_timeout=0.5))
    with ThreadPoolExecutor() as threads:
        reading = threads.submit(next, epoch)
        wait_until("a split is leased", lambda: epoch.splits[0] > 0)
        start = time.monotonic()
        cluster.stop()
        assert time.monotonic() - start < 20, "30 s are the default"
        with pytest.raises(cj.CajuError):
            reading.result(PATIENCE_S)


def test_cache_state_and_functions_are_those_of_the_dispatcher(local_ray, tmp_path):
    folders = {"cache": tmp_path / "cache", "state_dir": tmp_path / "state"}
    function = cj.range(3).map(lambda row: {"x": row["id"]}, schema={"x": "int64"})
    with caju.ray.start_cluster(min_workers=2, max_workers=2, allow_python=True, **folders) as cluster:
        wait_until("two workers, though nobody reads", lambda: len(running(cluster)) == 2)
        rows = cj.range(100).map(x="id + 1").autocache("h").distribute(cluster, job_name="stores", policy="full")
        assert sorted(int(row["x"]) for row in rows) == list(range(1, 101))
        assert list(folders["cache"].rglob("*.arrow")) and list(folders["state_dir"].iterdir())
        # It is opened, and no more: processes of functions need an installed package, which these tests do not have.
        iter(function.distribute(cluster, job_name="function")).close()
    with caju.ray.start_cluster(1) as cluster, pytest.raises(cj.CajuError, match="allow.python"):
        iter(function.distribute(cluster, job_name="function"))


def test_workers_that_do_not_work_yet_leave_first_and_then_the_newest():
    """An actor that waits for resources may be older than one that works."""
    members = [SimpleNamespace(name=name, address=address, drained=None)
               for name, address in [("oldest", "h:1"), ("pending", ""), ("newer", "h:2"), ("newest", "h:3")]]
    head, left = _head.Head.__new__(_head.Head), []
    head._members, head._requested, head._not_before = members, 2, 0.0
    head._observe, head._leave = lambda: None, lambda member: left.append(member.name)
    head._step(2)
    assert left == ["pending", "newest"]


def test_a_failure_of_the_loop_is_in_the_status_and_does_not_end_it():
    head = _head.Head.__new__(_head.Head)
    head._stopping, head._stopped, head._last_failure = threading.Event(), threading.Event(), ""
    steps = []

    def step(wanted):
        steps.append(head._last_failure)
        if len(steps) == 1:
            raise ValueError("no such resource")
        head._stopping.set()

    head._wanted, head._step, head._end = lambda: (1, ""), step, lambda: None
    head._run()
    assert steps == ["", "ValueError: no such resource"] and head._stopped.is_set()


@pytest.mark.parametrize("arguments, part", [
    ({"workers": 0}, "workers"),
    ({"workers": "many"}, "workers"),
    ({"min_workers": 3, "max_workers": 2}, "min_workers=3 is more than max_workers=2"),
    ({"worker_cpus": 0}, "worker_cpus"),
    ({"worker_resources": {"CPU": 2}}, "the CPUs of a worker are worker_cpus="),
    ({"worker_resources": {"GPU": -1}}, "worker_resources=.*negative"),
    ({"worker_resources": {"disk": "much"}}, "worker_resources="),
    ({"placement": "near"}, "placement='near' is not one of spread, pack"),
    ({"scaling_interval": 1.0}, "at least 2 seconds"),
])
def test_mistakes(local_ray, arguments, part):
    with pytest.raises(cj.InvalidPipeline, match=part):
        caju.ray.start_cluster(**arguments)


def test_ray_data_reads_a_source_that_the_driver_does_not_reach(local_ray, monkeypatch):
    def schema(_):
        raise cj.NotFound("the driver does not reach the source")

    monkeypatch.setattr(cj.Dataset, "schema", property(schema))
    with caju.ray.start_cluster(1) as cluster:
        rows = caju.ray.read(cj.range(100).map(x="id * 2").batch(10).distribute(cluster), override_num_blocks=2)
        assert rows.schema().names == ["x"] and rows.sum("x") == 2 * sum(range(100))


def test_ray_data_reads_and_writes(local_ray, tmp_path):
    with pytest.raises(cj.InvalidPipeline, match="distribute"):
        caju.ray.read(cj.range(3))
    with caju.ray.start_cluster(2, placement="pack") as cluster:
        ds = cj.range(10_000).map(id="id", x="id * 2").batch(100).distribute(cluster, job_name="data")
        rows = caju.ray.read(ds, override_num_blocks=3)
        assert rows.schema().names == ["id", "x"]
        assert rows.sum("x") == 2 * sum(range(10_000))
        assert rows.count() == 10_000, "each execution reads all rows again"
        caju.ray.write(rows.map_batches(lambda batch: {"y": batch["x"] + 1}), tmp_path / "rows")
    back = caju.ray.load(tmp_path / "rows")
    assert sorted(row["y"].item() for row in back) == [2 * i + 1 for i in range(10_000)]
    with pytest.raises(cj.AlreadyExists, match="finished write"):
        caju.ray.write(ray.data.range(3), tmp_path / "rows")
    with pytest.raises(cj.NotFound, match="_parts.json"):
        caju.ray.load(tmp_path / "elsewhere")
    # A part of an attempt that failed is not listed.
    parts = json.loads((tmp_path / "rows/_parts.json").read_text())["parts"]
    (tmp_path / "rows/lost.parquet").write_bytes((tmp_path / "rows" / parts[0]).read_bytes())
    assert sum(1 for _ in caju.ray.load(tmp_path / "rows")) == 10_000


def test_the_source_and_the_sink_are_for_ray_data(local_ray, tmp_path):
    with caju.ray.start_cluster(2, placement="pack") as cluster:
        ds = cj.range(1_000).map(x="id * 3").batch(100).distribute(cluster, job_name="data")
        rows = ray.data.read_datasource(caju.ray.CajuDatasource(ds), override_num_blocks=2)
        assert rows.sum("x") == 3 * sum(range(1_000))
        rows.write_datasink(caju.ray.CajuDatasink(tmp_path / "rows"))
    assert sorted(row["x"].item() for row in caju.ray.load(tmp_path / "rows")) == [3 * i for i in range(1_000)]


def test_ray_train_gives_its_ranks_equal_shares(local_ray, tmp_path):
    pytest.importorskip("torch")
    train = pytest.importorskip("ray.train")
    from ray.train.torch import TorchTrainer

    def loop(config):
        import json as js
        import pathlib as pl

        import ray.train as rt

        import caju as c

        rows = c.range(5_000).shuffle(100).batch(50)
        data = rows.distribute(config["service"], job_name="train", uneven="drop").torch()
        seen = [int(i) for batch in data for i in batch["id"]]
        rank = rt.get_context().get_world_rank()
        (pl.Path(config["folder"]) / f"{rank}.json").write_text(js.dumps(seen))

    with caju.ray.start_cluster(2) as cluster:
        TorchTrainer(
            loop, train_loop_config={"service": cluster.address, "folder": str(tmp_path)},
            scaling_config=train.ScalingConfig(num_workers=2),
            run_config=train.RunConfig(storage_path=str(tmp_path / "results"), name="two"),
        ).fit()
    shares = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert [len(s) for s in shares] == [2500, 2500]
    assert sorted(shares[0] + shares[1]) == list(range(5_000))


# ---- several nodes: each test starts a Ray of its own, in a process of its own -----------------------------------------

NODES = """
import pathlib, sys, threading, time
import ray
import caju, caju.ray
from ray.cluster_utils import Cluster

PATIENCE_S = 180
nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
others = [nodes.add_node(num_cpus=2) for _ in range(2)]
nodes.wait_for_nodes()
ray.init(address=nodes.address, log_to_driver=False)

def until(what, wanted):
    end = time.monotonic() + PATIENCE_S
    while not wanted():
        assert time.monotonic() < end, f"never: {what}: {cluster.status}"
        threading.Event().wait(0.2)

def on():
    return sorted(w.node for w in cluster.status.workers if w.state == "running")

folder = pathlib.Path(sys.argv[1])
rows = caju.from_yaml(
    f"source: {{ csv: {{ path: '{folder}/*.csv' }} }}\\nsteps: [ {{ sleep: {{ per_row: 5ms }} }}, {{ batch: 10 }} ]")
"""

LOSS = NODES + """
cluster = caju.ray.start_cluster(2, worker_cpus=2)
until("two workers on two nodes", lambda: len(set(on())) == 2)
seen = []
for batch in rows.distribute(cluster, job_name="loss"):
    if len(seen) == 100:
        nodes.remove_node(others[0], allow_graceful=False)
        nodes.add_node(num_cpus=2)
    seen += batch["id"].tolist()
assert sorted(seen) == list(range(2000)), len(seen)
# Ray may put the first replacement on the node that has died, which it notices after some health checks.
until("another one elsewhere", lambda: cluster.status.lost >= 1 and len(set(on())) == 2 and others[0].node_id not in on())
cluster.stop()
"""

ON_THE_GROUPS_NODES = NODES + """
group = ray.util.placement_group([{"CPU": 1}] * 2, strategy="STRICT_SPREAD")
ray.get(group.ready())
group_nodes = set(ray.util.placement_group_table(group)["bundles_to_node_id"].values())
cluster = caju.ray.start_cluster(2, placement=group)
until("two workers", lambda: len(on()) == 2)
# A node with one CPU has no room next to the group: its worker is put elsewhere.
roomy = group_nodes & {n.node_id for n in others}
assert roomy and roomy & set(on()), (group_nodes, on())
cluster.stop()
"""


@pytest.mark.parametrize("script", [LOSS, ON_THE_GROUPS_NODES], ids=["a_node_is_lost", "next_to_the_trainers"])
def test_several_nodes(script, tmp_path):
    sleeping(tmp_path, 2000)
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=2 * PATIENCE_S)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
