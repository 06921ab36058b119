"""Fields of `caju.run/v1` and `caju.status/v1`, each compared with a number that is known from elsewhere."""

import contextlib
import threading

import pytest
from conftest import PATIENCE_S, wait_for
from metrics import Metrics
from s3_server import S3Server

import caju as cj


def of_job(servers, name):
    """What the status says of the last epoch of a job."""
    return max((job for job in servers.status()["jobs"] if job["job"] == name), key=lambda job: job["epoch"])


@pytest.fixture
def s3(caju):
    """An S3 server that all processes of the binary find."""
    server, before = S3Server(), caju.env
    caju.env = before | server.environment
    yield server
    caju.env = before
    server.close()


# ---- splits --------------------------------------------------------------------------------------------------------


def test_splits_whose_parts_cannot_be_written_fell_back(caju, cluster, tmp_path, s3):
    """The store takes objects of 100 kB at most. The parts of two of five files are larger."""
    s3.max_bytes = 100_000
    for n, rows in enumerate([10, 30_000, 20, 40_000, 30]):
        (tmp_path / f"{n}.csv").write_text("x,y\n" + "".join(f"{i},{i * i}\n" for i in range(rows)))
    definition = {"source": {"csv": {"path": str(tmp_path / "*.csv")}}, "steps": [{"autocache": "h"}, {"batch": 100}]}
    first, second = ({"compute": 2, "put": 3, "get": 0, "fell_back": 2}, {"compute": 2, "put": 0, "get": 3, "fell_back": 2})
    [epoch] = caju.report("run", definition, tmp_path, "--cache", "s3://bucket/run", "--policy", "hint:h")["epochs"]
    assert (epoch["rows"], epoch["splits"]) == (70_060, first)

    servers = cluster(1, "--cache", "s3://bucket/cluster")
    epochs = servers.report(definition, tmp_path, "--job", "train", "--policy", "hint:h", "--epochs", "2")["epochs"]
    assert [epoch["splits"] for epoch in epochs] == [first, second]
    modes = [job["modes"] for job in sorted(servers.status()["jobs"], key=lambda job: job["epoch"])]
    assert [{name: of_epoch[name] for name in first} for of_epoch in modes] == [first, second]
    # A store that takes all objects: the parts that are missing are stored, and the field is absent.
    s3.max_bytes = 1 << 40
    [epoch] = servers.report(definition, tmp_path, "--job", "again", "--policy", "hint:h")["epochs"]
    assert epoch["splits"] == {"compute": 0, "put": 2, "get": 3}
    assert of_job(servers, "again")["modes"]["fell_back"] == 0


# ---- the window of rows that jobs share ----------------------------------------------------------------------------


def test_splits_that_left_the_window_unread_are_those_that_the_slow_job_computes(cluster, tmp_path):
    """A job is blocked while another one reads everything. Then it opens the splits that left the window, and no others."""
    splits, rows = 30, 20_000
    for n in range(splits):
        (tmp_path / f"{n:02}.csv").write_text("x\n" + "".join(f"{n * rows + i}\n" for i in range(rows)))
    servers = cluster(workers=0)
    # The window holds the rows of six splits of 160 kB. The queues of a job hold less than one.
    servers.add_worker("--sharing-window", "1MiB", "--sharing-backlog", "0", "--split-readers", "1", "--buffer", "64KiB",
                       "--sharing-wait", "300ms")
    dataset = cj.read_csv(tmp_path / "*.csv").batch(500)

    def read(job):
        settings = {"job_name": job, "sharing": "exact", "policy": "compute", "prefetch": "64KiB"}
        return iter(dataset.distribute(servers.dispatcher.address, **settings))

    with read("slow") as slow, read("fast") as fast:
        taken = len(next(slow)["x"])
        assert sum(len(batch["x"]) for batch in fast) == splits * rows
        wait_for("report of the end", lambda: of_job(servers, "fast")["tasks"] == 0)
        opened = of_job(servers, "slow")["served"]["source_opens"]
        window = servers.status()["workers"][0]["usage"]["sharing"]
        assert opened < splits and window["limit_bytes"] == 1 << 20
        assert taken + sum(len(batch["x"]) for batch in slow) == splits * rows
        wait_for("report of the end", lambda: of_job(servers, "slow")["tasks"] == 0)
    served = of_job(servers, "slow")["served"]
    after = servers.status()["workers"][0]["usage"]["sharing"]
    # Each split that left the window unread is opened by the slow job, which opened others before.
    assert 0 < window["evicted_unread"] <= after["evicted_unread"] <= served["source_opens"]
    shared = served["shared"]
    assert served["source_opens"] + shared["window_hits"] - shared["taken_over"] == splits


# ---- workers that are wanted ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def user(servers, job, per_row, step_s):
    """A reader in a thread, whose user works on each element of ten rows for `step_s` seconds."""
    text = f"source: {{ range: 1000000 }}\nsteps: [ {{ sleep: {{ per_row: {per_row} }} }}, {{ batch: 10 }} ]"
    ended, failures = threading.Event(), []

    def read():
        try:
            with iter(cj.from_yaml(text).distribute(servers.dispatcher.address, job_name=job)) as epoch:
                while not ended.is_set():
                    next(epoch)
                    ended.wait(step_s)
        except Exception as e:
            failures.append(e)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(PATIENCE_S)
    assert not failures, failures


@pytest.mark.parametrize("per_row, step_s, workers", [("16ms", 0.058, 3), ("4ms", 0.08, 1)], ids=["starved", "busy"])
def test_the_workers_that_a_job_wants_are_the_quotient_of_two_speeds(cluster, per_row, step_s, workers):
    """A worker takes 160 ms for an element and its user 58 ms: 2.8 workers. Or 40 ms and 80 ms: half of one."""
    servers = cluster(0, "--http-listen", "127.0.0.1:0", "--scaling-interval", "500ms")
    servers.add_worker("--split-readers", "1")
    with user(servers, "train", per_row, step_s):
        def wanted():
            """What is wanted after ten elements: the first ones take longer."""
            jobs = servers.status()["jobs"]
            return jobs and jobs[0]["readers"] and jobs[0]["readers"][0]["elements"] >= 10 and jobs[0]["workers_wanted"]

        wait_for(f"{workers} workers that are wanted", lambda: wanted() == workers)
        # The target takes the same two speeds, of the last seconds.
        Metrics(servers.dispatcher).wait_for({("caju_job_target_workers", "train"): workers})
        wait_for("such a status", lambda: [job["workers"] for job in servers.status()["scaling"]["jobs"]] == [workers])
    # Nobody reads any more: it is not known.
    wait_for("end", lambda: not of_job(servers, "train")["readers"])
    assert of_job(servers, "train")["workers_wanted"] is None


# ---- blocks that workers hold --------------------------------------------------------------------------------------


def test_the_memory_tier_holds_the_parts_that_were_read_from_a_remote_store(cluster, tmp_path, s3):
    servers = cluster(1, "--cache", "s3://bucket/cache")
    definition = {"source": {"range": 20_000}, "steps": [{"with_columns": {"x": "id * 2"}}, {"autocache": "h"}, {"batch": 100}]}

    def usage(**expected):
        """The usage of the worker, once it is as expected."""
        def probe():
            found = servers.status()["workers"][0]["usage"]
            return found and all(found[name] == value for name, value in expected.items()) and found

        return wait_for(f"usage {expected}", probe)

    usage(memory_tier_bytes=0, memory_tier_limit=0, disk_tier_bytes=0, disk_tier_limit=0)   # no root is open
    epochs = servers.report(definition, tmp_path, "--job", "train", "--policy", "full", "--epochs", "3")["epochs"]
    # What the third epoch reads is in memory.
    assert epochs[0]["splits"]["put"] == epochs[2]["splits"]["get"] > 0 and epochs[2]["cache_bytes_read"] == 0
    parts = sum(len(data) for key, data in s3.objects.items() if key.endswith(".arrow"))
    assert parts > 16 * 20_000
    usage(memory_tier_bytes=parts, memory_tier_limit=256 << 20, disk_tier_bytes=0, disk_tier_limit=0)


def test_blocks_of_a_remote_store_are_read_from_the_local_disk_once_they_are_there(cluster, tmp_path, s3):
    servers, disk = cluster(0, "--cache", "s3://bucket/cache"), tmp_path / "disk"
    definition = {"source": {"range": 20_000}, "steps": [{"with_columns": {"x": "id * 2"}}, {"autocache": "h"}, {"batch": 100}]}

    def read(job):
        report = servers.report(definition, tmp_path, "--job", job, "--policy", "full")
        [epoch] = report["epochs"]
        return epoch

    def usage():
        return servers.status()["workers"][-1]["usage"]

    storing = servers.add_worker("--cache-disk", disk)
    want = read("one")
    assert want["splits"]["put"] > 0
    assert read("two")["splits"]["get"] > 0

    def held():
        return sum(file.stat().st_size for file in disk.iterdir())

    wait_for("usage", lambda: usage() and usage()["disk_tier_bytes"] == held() > 16 * 20_000)
    assert usage()["disk_tier_limit"] == 16 << 30
    storing.stop()
    # Another process with the folder reads no part from the store. One with too small a bound holds less, and reads them.
    parts = [key for key in s3.objects if key.endswith(".arrow")]
    second = servers.add_worker("--cache-disk", disk)
    s3.reads.clear()
    epoch = read("three")
    assert (epoch["rows"], epoch["rows_checksum"], epoch["splits"]["put"]) == (20_000, want["rows_checksum"], 0)
    assert not [key for key in s3.reads if key in parts]
    second.stop()
    servers.add_worker("--cache-disk", disk, "--cache-disk-size", "200KiB")
    s3.reads.clear()
    assert read("four")["rows_checksum"] == want["rows_checksum"]
    assert [key for key in s3.reads if key in parts]
    assert sum(file.stat().st_size for file in disk.iterdir()) <= 200 << 10
    wait_for("usage", lambda: usage() and usage()["disk_tier_limit"] == 200 << 10)


def test_parts_in_a_local_folder_are_mapped_and_in_no_tier(cluster, tmp_path):
    servers = cluster(1, "--cache", tmp_path / "cache")
    definition = {"source": {"range": 20_000}, "steps": [{"autocache": "h"}, {"batch": 100}]}
    epochs = servers.report(definition, tmp_path, "--job", "train", "--policy", "full", "--epochs", "2")["epochs"]
    assert epochs[1]["cache_bytes_read"] > 0
    usage = servers.status()["workers"][0]["usage"]
    assert {name: usage[name] for name in usage if "tier" in name} == {
        "memory_tier_bytes": 0, "memory_tier_limit": 0, "disk_tier_bytes": 0, "disk_tier_limit": 0,
    }
