"""caju on Ray's own autoscaler, over nodes that Ray fakes on this machine. Left out where Ray is not installed.

A file of its own: starting such a cluster ends every Ray on the machine.
"""

import os
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("ray")

PATIENCE_S = 300
"""No wait is longer. A fake node starts in seconds, and in tens of seconds on a busy machine."""

SCRIPT = """
import json, os, pathlib, signal, subprocess, sys, threading, time

import ray

import caju, caju.ray

PATIENCE_S = 120
folder = pathlib.Path(sys.argv[1])
# The head has no room for a worker, which takes two CPUs.
CONFIG = {
    "cluster_name": "fake",
    "max_workers": 3,
    "idle_timeout_minutes": 0.1,
    "provider": {
        "type": "fake_multinode", "use_node_id_as_ip": True, "disable_node_updaters": True,
        "disable_launch_config_check": True,
    },
    "head_node_type": "ray.head.default",
    "available_node_types": {
        "ray.head.default": {"resources": {"CPU": 1}, "node_config": {}, "max_workers": 0},
        "of_two": {"resources": {"CPU": 2}, "node_config": {}, "min_workers": 0, "max_workers": 3},
    },
    # Fields that Ray's own launcher would add.
    "upscaling_speed": 1.0, "auth": {}, "docker": {}, "file_mounts": {}, "file_mounts_sync_continuously": False,
    **{field: [] for field in (
        "cluster_synced_files", "rsync_exclude", "rsync_filter", "initialization_commands", "setup_commands",
        "head_setup_commands", "worker_setup_commands", "head_start_ray_commands", "worker_start_ray_commands",
    )},
}


def ray_command(*arguments):
    environment = {**os.environ, "AUTOSCALER_UPDATE_INTERVAL_S": "1", "RAY_FAKE_CLUSTER": "1"}
    subprocess.run([pathlib.Path(sys.executable).parent / "ray", *arguments], check=True, env=environment)


def alive():
    return {n["NodeID"] for n in ray.nodes() if n["Alive"] and n["Resources"].get("CPU") == 2}


def until(what, wanted):
    end = time.monotonic() + PATIENCE_S
    while not (answer := wanted()):
        assert time.monotonic() < end, f"never: {what}: {alive()} {cluster.status}"
        threading.Event().wait(0.2)
    return answer


def on():
    return {w.node for w in cluster.status.workers if w.state == "running"}


def kill(node):
    \"\"\"Kills the node's Ray process; its workers end with it.\"\"\"
    killed = 0
    for process in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = process.read_bytes().split(b"\\0")
        except OSError:
            continue
        if command[0].endswith(b"/raylet") and any(node.encode() in part for part in command):
            os.kill(int(process.parent.name), signal.SIGKILL)
            killed += 1
    assert killed == 1, (node, killed)


config = folder / "autoscaler.json"
config.write_text(json.dumps(CONFIG))
ray_command("stop", "--force")
ray_command("start", "--head", "--num-cpus=1", "--port=6379", "--include-dashboard=false", f"--autoscaling-config={config}")
try:
    ray.init("auto", log_to_driver=False)
    assert not alive()
    cluster = caju.ray.start_cluster(max_workers=3, worker_cpus=2, scaling_interval=2.0, scale_down_after=4.0)
    first = until("a node for the first worker", alive)
    assert len(first) == 1, first
    rows = caju.from_yaml(
        f"source: {{ csv: {{ path: '{folder}/*.csv' }} }}\\nsteps: [ {{ sleep: {{ per_row: 20ms }} }}, {{ batch: 10 }} ]")
    seen, most, lost = [], 0, None
    for batch in rows.distribute(cluster, job_name="autoscaled"):
        seen += batch["id"].tolist()
        if len(seen) % 100 == 0:
            most = max(most, len(alive()))
            if lost is None and len(on()) >= 2:
                lost = min(on())
                kill(lost)
    assert sorted(seen) == list(range(ROWS)), f"{len(seen)} rows"
    assert most >= 2, "a reader that waits gets more nodes"
    assert lost is not None
    until("the loss is noticed", lambda: cluster.status.lost >= 1 and lost not in alive())
    until("nodes go when no job reads", lambda: len(alive()) == 1 and len(on()) == 1)
    cluster.stop()
    until("the last node goes with the cluster", lambda: not alive())
finally:
    ray.shutdown()
    ray_command("stop", "--force")
"""
ROWS = 6000


@pytest.mark.skipif(sys.platform != "linux", reason="Ray fakes nodes on Linux")
def test_the_target_becomes_nodes_and_one_is_killed(tmp_path):
    for i in range(60):
        ids = range(ROWS * i // 60, ROWS * (i + 1) // 60)
        (tmp_path / f"{i:04}.csv").write_text("id\n" + "".join(f"{n}\n" for n in ids))
    script = SCRIPT.replace("range(ROWS)", f"range({ROWS})")
    environment = {**os.environ, "PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=4 * PATIENCE_S, env=environment
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-6000:]
