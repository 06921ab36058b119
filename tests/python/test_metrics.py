"""The metrics of `GET /metrics`, each compared with a number that is known from elsewhere: the rows that a test wrote and read,
files, and what the system says of the processes.
"""

import contextlib
import math
import os
import pathlib
import re
import signal
import sys
import time

import pytest
from conftest import wait_for
from metrics import Metrics
from s3_server import S3Server

import caju as cj


@pytest.fixture
def monitored(cluster):
    """Starts a dispatcher with metrics: the servers, the dispatcher and the metrics."""

    def start(*args):
        servers = cluster(workers=0)
        servers.dispatcher.kill()
        dispatcher = servers.dispatcher = servers.start("dispatcher", "--http-listen", "127.0.0.1:0", "--heartbeat", "100ms", *args)
        return servers, Metrics(dispatcher)

    return start


def test_metrics_of_ended_epochs_and_of_the_cache(caju, monitored, tmp_path):
    before = time.monotonic()
    servers, metrics = monitored("--cache", tmp_path / "cache", "--cache-budget", "50MiB")
    started = time.monotonic()
    servers.add_worker()
    values = metrics.values()
    version = caju("--version").stdout.split()[-1]
    assert values["caju_build_info", version] == 1 and version == cj.__version__
    assert not any("job" in name or "epoch_" in name for name in map(str, values) if name != "caju_epochs_active")

    # Rows 3 and 7 of each file are bad.
    for name in "abc":
        (tmp_path / f"{name}.csv").write_text("n\n" + "".join("x\n" if i in (3, 7) else f"{i}\n" for i in range(10)))
    skips = {"source": {"csv": {"path": str(tmp_path / "*.csv"), "schema": {"n": "int64"}}}, "on_error": "skip",
             "steps": [{"autocache": "h"}, {"batch": 5}]}
    sums = {"source": {"range": 10_000}, "steps": [{"with_columns": {"x": "id * 2"}}, {"autocache": "h"}, {"batch": 300}]}
    servers.report(skips, tmp_path, "--job", "skips", "--policy", "full")
    servers.report(sums, tmp_path, "--job", "sums", "--policy", "full", "--epochs", "3")
    expected = {}
    for job, epoch, splits, rows, size, columns in [("skips", 0, 3, 24, 5, 1), ("sums", 2, None, 10_000, 300, 2)]:
        splits = splits or next(j["splits_total"] for j in servers.status()["jobs"] if j["job"] == job)
        states = {"waiting": 0, "leased": 0, "sent": 0, "done": splits}
        expected |= {("caju_job_splits", job, state): n for state, n in states.items()} | {
            ("caju_job_epoch", job): epoch, ("caju_job_state", job, "finished"): 1,
            ("caju_job_readers", job): 0, ("caju_job_tasks", job): 0,
            ("caju_epoch_rows_total", str(epoch), job): rows,
            ("caju_epoch_elements_total", str(epoch), job): math.ceil(rows / size),
            # Each value has eight bytes.
            ("caju_epoch_bytes_total", str(epoch), job): 8 * rows * columns,
        }
    expected |= {("caju_job_skipped_rows", "skips"): 6, ("caju_job_skipped_rows", "sums"): 0, "caju_epochs_active": 0,
                 "caju_workers": 1, "caju_local_workers": 0, "caju_cache_budget_bytes": 50 << 20}
    metrics.wait_for(expected)

    asked = time.monotonic()
    uptime = metrics.values()["caju_uptime_seconds"]
    assert asked - started <= uptime <= time.monotonic() - before


def test_the_rate_of_a_job_without_readers_is_zero_without_a_sign(monitored, tmp_path):
    servers, metrics = monitored()
    servers.add_worker()
    servers.report({"source": {"range": 10}}, tmp_path, "--job", "ended")
    metrics.wait_for({("caju_job_readers", "ended"): 0, ("caju_job_rows_per_second", "ended"): 0})
    assert 'caju_job_rows_per_second{job="ended"} 0.0' in metrics.text().splitlines()


def test_the_size_of_the_cache_is_that_of_its_files(monitored, tmp_path):
    root = tmp_path / "cache"
    servers, _ = monitored("--cache", root)
    servers.add_worker()
    for job in ("id * 2", "id * 3"):
        definition = {"source": {"range": 10_000}, "steps": [{"with_columns": {"x": job}}, {"autocache": "h"}, {"batch": 300}]}
        servers.report(definition, tmp_path, "--policy", "full")
    # Its first listing is made now.
    _, metrics = monitored("--cache", root)
    wait_for("listing", lambda: "caju_cache_bytes" in metrics.values())
    values = metrics.values()
    # Workers write their leases again and again.
    sizes = [f.stat().st_size for f in root.rglob("*") if f.is_file() and f.parent.name != "writers"]
    assert values["caju_cache_snapshots"] == 2 and values["caju_cache_budget_bytes"] == 0
    assert sum(sizes) > 2 * 16 * 10_000 and sum(sizes) <= values["caju_cache_bytes"] <= sum(sizes) + 4096


def sample_files(folder, count, rows):
    """CSV files with `rows` integers each."""
    for n in range(count):
        (folder / f"{n:02}.csv").write_text("x\n" + "".join(f"{n * rows + i}\n" for i in range(rows)))
    return folder / "*.csv"


def resident_bytes(process):
    status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
    return 1024 * int(re.search(r"VmRSS:\s+(\d+) kB", status)[1])


def memory_files(process):
    """The bytes of the files in memory that a process has open."""
    total = 0
    for file in pathlib.Path(f"/proc/{process.pid}/fd").iterdir():
        # A file may be closed meanwhile.
        with contextlib.suppress(OSError):
            if os.readlink(file).startswith("/memfd:caju"):
                total += file.stat().st_size
    return total


@pytest.mark.skipif(sys.platform != "linux", reason="/proc, and rows in shared memory")
def test_metrics_of_workers_and_of_epochs_whose_readers_take_nothing(monitored, tmp_path):
    servers, metrics = monitored("--worker-timeout", "1min")
    spill = tmp_path / "spill"
    spill.mkdir()
    args = ["--sharing-window", "1MiB", "--sharing-backlog", "0", "--sharing-lag", "spill", "--sharing-spill-dir", spill,
            "--sharing-wait", "50ms", "--split-readers", "1", "--buffer", "64KiB"]
    worker = servers.add_worker(*args)
    splits, rows = 30, 20_000
    files = cj.read_csv(sample_files(tmp_path, splits, rows)).batch(500)

    def jobs():
        return {job["job"]: job for job in servers.status()["jobs"]}

    with contextlib.ExitStack() as open_epochs:
        def read(dataset, job, **options):
            """An epoch of which one element is taken."""
            epoch = open_epochs.enter_context(iter(dataset.distribute(servers.dispatcher.address, job_name=job, **options)))
            next(epoch)
            return epoch

        # One job takes nothing while another one, which shares its rows, reads everything.
        sharing = {"sharing": "exact", "policy": "compute", "prefetch": "64KiB"}
        read(files, "behind", **sharing)
        assert sum(len(batch["x"]) for batch in read(files, "ahead", **sharing)) == splits * rows - 500
        # All rows of this job are with its reader.
        read(cj.range(3_000).batch(10), "sent")
        wait_for("end of its task", lambda: jobs()["sent"]["tasks"] == 0)
        metrics.wait_for({("caju_job_tasks", job): n for job, n in {"behind": 1, "ahead": 0, "sent": 0}.items()} |
                         {("caju_worker_tasks", worker.address): 1, "caju_workers": 1, "caju_epochs_active": 2})
        # A split is leased before it is opened. One that was taken over was a hit, and was opened too.
        behind = jobs()["behind"]["served"]
        begun = behind["source_opens"] + behind["shared"]["window_hits"] - behind["shared"]["taken_over"]
        assert 0 < begun <= splits

        def leased_splits():
            """The splits that the job behind has, once the metrics agree about all of them."""
            values = metrics.values()
            leased, waiting = (values["caju_job_splits", "behind", state] for state in ("leased", "waiting"))
            return begun <= leased == splits - waiting and int(leased)

        leased = wait_for("splits of the job behind", leased_splits)
        metrics.wait_for({
            ("caju_job_splits", "behind", "sent"): 0, ("caju_job_splits", "behind", "done"): 0,
            ("caju_job_splits", "sent", "waiting"): 0, ("caju_job_splits", "sent", "leased"): 0,
            ("caju_job_splits", "sent", "sent"): jobs()["sent"]["splits_total"], ("caju_job_splits", "sent", "done"): 0,
            ("caju_job_splits", "ahead", "done"): splits, ("caju_job_splits", "ahead", "leased"): 0,
            ("caju_job_readers", "behind"): 1, ("caju_job_readers", "ahead"): 0, ("caju_job_readers", "sent"): 1,
            ("caju_job_state", "behind", "running"): 1, ("caju_job_state", "ahead", "finished"): 1,
            ("caju_epoch_rows_total", "0", "ahead"): splits * rows,
            ("caju_epoch_bytes_total", "0", "ahead"): 8 * splits * rows,
        })

        # What the job behind has not read is in the window, a split of 160 kB or a part of it, and in files.
        values = metrics.values()
        in_files = [f.stat().st_size for f in spill.rglob("*.arrows")]
        assert in_files and values["caju_worker_sharing_disk_bytes", worker.address] == sum(in_files)
        in_memory = values["caju_worker_sharing_bytes", worker.address] / (8 * rows)
        assert splits - leased <= len(in_files) + in_memory <= splits - behind["rows"] // rows and in_memory >= 1
        counts = [job["served"] for job in (jobs()["ahead"], jobs()["behind"])]
        assert values["caju_worker_sharing_hits_total", worker.address] == sum(c["shared"]["window_hits"] for c in counts)
        # Of a split that was taken over, the first rows came from the window, and the source was opened for the others.
        computed = sum(c["source_opens"] - c["shared"]["taken_over"] for c in counts)
        assert values["caju_worker_sharing_misses_total", worker.address] == computed
        assert values["caju_worker_cpu_threads", worker.address] == values["caju_worker_split_readers", "", worker.address] == 1

        # Two equal jobs get batches of 320 kB in shared memory. One of them takes nothing.
        big = cj.range(480_000).batch(40_000).with_options(deterministic=True)
        assert metrics.values()["caju_worker_shared_memory_bytes", worker.address] == 0
        read(big, "maps", sharing="exact", prefetch="1MiB")
        epoch = iter(big.distribute(servers.dispatcher.address, job_name="reads", sharing="exact"))
        assert sum(len(batch["id"]) for batch in epoch) == 480_000
        size = wait_for("rows in shared memory", lambda: memory_files(worker.process))
        metrics.wait_for({("caju_worker_shared_memory_bytes", worker.address): size, ("caju_worker_tasks", worker.address): 2})
        assert size >= 320_000
        resident = metrics.values()["caju_worker_memory_bytes", worker.address]
        assert abs(resident / resident_bytes(worker.process) - 1) < 0.1

        # A second worker works for a job whose two readers wait for rows.
        slow = cj.from_yaml("source: { range: 1000000 }\nsteps: [ { sleep: { per_row: 2ms } }, { batch: 10 } ]")
        read(slow, "slow"), read(slow, "slow")
        other = servers.add_worker()
        metrics.wait_for({("caju_job_tasks", "slow"): 2, ("caju_job_readers", "slow"): 2, "caju_workers": 2})
        values = metrics.values()
        tasks = {address: values["caju_worker_tasks", address] for address in (worker.address, other.address)}
        assert sum(tasks.values()) == sum(values["caju_job_tasks", job] for job in jobs()), values

        # A worker that is stopped is silent from its last heartbeat on.
        stopped = time.monotonic()
        os.kill(other.process.pid, signal.SIGSTOP)
        try:
            silent = ("caju_worker_silent_seconds", other.address)
            wait_for("silence", lambda: metrics.values()[silent] >= 2)
            asked = time.monotonic()
            values = metrics.values()
            # Its last heartbeat may have been sent before it was stopped, and may have arrived after that.
            assert asked - stopped - 1 <= values[silent] <= time.monotonic() - stopped + 1
            assert values["caju_worker_silent_seconds", worker.address] < 1
        finally:
            os.kill(other.process.pid, signal.SIGCONT)


def test_the_metric_of_the_tiers_is_the_parts_that_a_worker_holds(caju, monitored, tmp_path, monkeypatch):
    server = S3Server()
    try:
        monkeypatch.setattr(caju, "env", caju.env | server.environment)
        servers, metrics = monitored("--cache", "s3://bucket/cache")
        worker = servers.add_worker()
        definition = {"source": {"range": 20_000}, "steps": [{"with_columns": {"x": "id * 2"}}, {"autocache": "h"}, {"batch": 100}]}
        servers.report(definition, tmp_path, "--policy", "full", "--epochs", "2")
        parts = sum(len(data) for key, data in server.objects.items() if key.endswith(".arrow"))
        assert parts > 16 * 20_000
        tiers = {"memory": parts, "disk": 0}
        metrics.wait_for({("caju_worker_tier_bytes", tier, worker.address): size for tier, size in tiers.items()})
    finally:
        server.close()
