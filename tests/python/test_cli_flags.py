"""Flags that several commands declare, each with what it does in one of them. tests/OPTIONS.md names the tests of the others."""

import contextlib
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import threading
import time

import pytest
from conftest import write_pipeline

PATIENCE_S = 90
# Rows of two columns behind a hint: about 100 KiB when they are stored.
STORED = {"source": {"range": 6000}, "steps": [{"with_columns": {"x": "id * 3"}}, "autocache", {"batch": 1000}]}


def wait_for(what, probe):
    """What `probe` returns once it is true."""
    until = time.monotonic() + PATIENCE_S
    while not (found := probe()):
        assert time.monotonic() < until, f"no {what}"
        threading.Event().wait(0.01)
    return found


class Running:
    """A command that runs, with its output in a file."""

    def __init__(self, caju, folder, args):
        self.output = folder / f"{args[0]}-{os.urandom(4).hex()}.log"
        with self.output.open("w") as log:
            self.process = subprocess.Popen([caju.binary, *map(str, args)], cwd=folder, env=caju.env,
                                            stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def wait_for_line(self, pattern):
        def probe():
            text = self.output.read_text()
            assert self.process.poll() is None or re.search(pattern, text), f"it ended without `{pattern}`: {text}"
            return re.search(pattern, text)

        return wait_for(f"line `{pattern}`", probe)

    def cpu_threads(self):
        """The number of threads of the pool that computes. Those for work that waits are named `caju-cpu-0s`."""
        names = []
        for file in pathlib.Path(f"/proc/{self.process.pid}/task").glob("*/comm"):
            # A thread may end meanwhile.
            with contextlib.suppress(OSError):
                names.append(file.read_text().strip())
        return sum(re.fullmatch(r"caju-cpu-\d+", name) is not None for name in names)

    def wait_for_cpu_threads(self, number):
        """Waits until the pool has these threads. On a busy machine some begin after the first rows."""
        wait_for(f"pool of {number} threads", lambda: self.cpu_threads() == number)


@contextlib.contextmanager
def running(caju, folder, *args):
    command = Running(caju, folder, args)
    try:
        yield command
    finally:
        command.process.kill()
        command.process.wait(PATIENCE_S)


@pytest.fixture
def silent():
    """The address of a dispatcher that accepts connections and does not answer."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield "127.0.0.1:{}".format(listener.getsockname()[1])


@pytest.mark.parametrize("command", [
    ["explain", "pipeline.yaml"],
    ["save", "pipeline.yaml", "--to", "saved"],
    ["worker", "drain", "1"],
], ids=lambda command: command[0])
def test_commands_give_up_a_silent_dispatcher_after_the_connect_timeout(caju, tmp_path, silent, command):
    write_pipeline(tmp_path, STORED)
    began = time.monotonic()
    done = caju(*command, "--dispatcher", silent, "--connect-timeout", "300ms", code=3, cwd=tmp_path)
    assert silent in done.stderr
    assert time.monotonic() - began < 8, "the default is 10 s"


def test_a_reader_ends_after_its_own_dispatcher_timeout(caju, cluster, tmp_path):
    servers = cluster(workers=1)
    file = write_pipeline(tmp_path, {"source": {"range": 1_000_000}, "steps": [{"sleep": {"per_row": "10ms"}}, {"batch": 1}]})
    args = ["read", file, "--dispatcher", servers.dispatcher.address, "--job", "train", "--dispatcher-timeout", "300ms"]
    with running(caju, tmp_path, *args) as reader:
        wait_for("rows", lambda: any(job["served"]["rows"] for job in servers.status()["jobs"]))
        servers.dispatcher.kill()
        # Tasks of the worker would continue for 60 s, and so would a reader with the default.
        assert reader.process.wait(40) == 3
    assert servers.dispatcher.address in reader.output.read_text()


def test_a_worker_misses_its_dispatcher_after_the_dispatcher_timeout(cluster):
    servers = cluster(workers=0)
    worker = servers.add_worker("--dispatcher-timeout", "300ms")
    servers.dispatcher.kill()
    began = time.monotonic()
    wait_for("warning", lambda: "the dispatcher has not answered for" in worker.errors())
    assert time.monotonic() - began < 40, "the default is 60 s"


@contextlib.contextmanager
def worker_of_a_dispatcher(caju, folder, *args):
    """What `caju status` says of the only worker of a dispatcher: (seconds since the dispatcher's start, the worker)."""
    with running(caju, folder, "dispatcher", "--listen", "127.0.0.1:0", *args) as dispatcher:
        address = dispatcher.wait_for_line(r"caju dispatcher listening on (\S+)")[1]

        def status():
            shown = json.loads(caju("status", "--dispatcher", address, "--format", "json").stdout)
            return shown["uptime_s"], shown["workers"][0]

        with running(caju, folder, "worker", "--dispatcher", address) as worker:
            worker.wait_for_line("caju worker listening on ")
            yield status


def test_workers_report_at_the_heartbeat_of_their_dispatcher(caju, tmp_path):
    # The other limits would refuse a heartbeat of 20 s.
    wide = ["--heartbeat", "20s", "--worker-timeout", "60s", "--scaling-interval", "0s"]
    with (worker_of_a_dispatcher(caju, tmp_path, "--heartbeat", "100ms") as often,
          worker_of_a_dispatcher(caju, tmp_path, *wide) as seldom):
        reports = []

        def eight_reports():
            now, worker = often()
            at = now - worker["silent_s"]
            # Two answers compute the time of one report with a small error.
            if not reports or at > reports[-1] + 0.02:
                reports.append(at)
            return len(reports) == 8

        wait_for("reports", eight_reports)
        assert reports[-1] - reports[0] < 5, "seven intervals of 100 ms, and not of the default, one second"
        wait_for("silence of two seconds", lambda: seldom()[1]["silent_s"] > 2)
        assert seldom()[1]["state"] == "active"


@pytest.mark.parametrize("command, event", [
    (["run", "pipeline.yaml", "--log", "info"], "task started"),
    (["profile", "pipeline.yaml", "--log", "info"], "task started"),
    (["save", "pipeline.yaml", "--to", "saved", "--log", "info"], "task started"),
    (["bench", "profiling-overhead", "pipeline.yaml", "--repeats", "1000000"], "round 1: "),
], ids=["run", "profile", "save", "profiling-overhead"])
def test_commands_compute_on_as_many_threads_as_they_are_given(caju, tmp_path, command, event):
    # The first three commands have long pauses, and the last one many rounds, so that they do not end meanwhile.
    pause = {"sleep": {"per_row": "1us" if command[0] == "bench" else "10ms"}}
    write_pipeline(tmp_path, {"source": {"range": 100_000 if command[0] != "bench" else 100}, "steps": [pause]})
    for threads in (3, 5):
        with running(caju, tmp_path, *command, "--cpu-threads", threads) as process:
            process.wait_for_line(event)
            process.wait_for_cpu_threads(threads)


def test_sample_data_is_made_on_as_many_threads_as_are_given(caju, tmp_path):
    for threads in (3, 5):
        out = tmp_path / str(threads)
        args = ["gen", "text", "--out", out, "--count", 10_000_000, "--format", "json", "--cpu-threads", threads]
        with running(caju, tmp_path, *args) as process:
            wait_for("sample data", lambda: any(out.glob("**/*")))
            process.wait_for_cpu_threads(threads)


def test_workers_of_up_have_the_threads_that_are_given(caju, tmp_path):
    for threads in (1, 3):
        args = ["up", "--listen", "127.0.0.1:0", "--workers", 2, "--cpu-threads", threads]
        with running(caju, tmp_path, *args) as up:
            address = up.wait_for_line(r"caju up listening on (\S+)")[1]
            up.wait_for_line("2 of 2 workers run")
            status = json.loads(caju("status", "--dispatcher", address, "--format", "json").stdout)
        assert [worker["cores"] for worker in status["workers"]] == [threads] * 2


@pytest.mark.parametrize("command", [
    ["profile", "pipeline.yaml"],
    ["save", "pipeline.yaml", "--to", "saved"],
    ["bench", "policies", "pipeline.yaml", "--policies", "full", "--epochs", 1, "--repeats", 1, "--cold-only"],
], ids=["profile", "save", "policies"])
def test_commands_have_as_many_workers_as_they_are_given(caju, tmp_path, command):
    write_pipeline(tmp_path, STORED)
    done = caju(*command, "--workers", 3, "--log", "info", cwd=tmp_path)
    assert len(re.findall(r"worker-\d+ at \S+ registered", done.stderr)) == 3, done.stderr


def profile(caju, folder, *args):
    return json.loads(caju("profile", "pipeline.yaml", *args, cwd=folder).stdout)


def test_a_profile_has_the_draws_of_its_seed_and_the_budget_of_its_cache(caju, tmp_path):
    steps = [{"filter": "uniform(0.0, 1.0) < 0.5"}, "autocache"]
    write_pipeline(tmp_path, {"source": {"range": 6000}, "steps": steps})

    def passed(*args):
        stages = profile(caju, tmp_path, *args)["stages"]
        return next(stage["out_rows_per_row"] for stage in stages if stage["name"] == "0.filter")

    draws = [passed("--seed", seed) for seed in (1, 2, 1)]
    assert draws[0] == draws[2] != draws[1]
    assert draws[0] != passed()
    assert profile(caju, tmp_path, "--cache-budget", "100KiB")["budget"] == {"snapshot_bytes": 100 << 10}
    assert profile(caju, tmp_path)["budget"] == {"snapshot_bytes": None}


def test_explain_finds_what_was_stored_with_its_seed(caju, tmp_path):
    steps = [{"with_columns": {"x": "uniform(0.0, 1.0)"}}, "autocache"]
    file = write_pipeline(tmp_path, {"source": {"range": 100}, "steps": steps})
    caju("run", file, "--seed", 7, "--policy", "full", "--cache", "cache", "--quiet", cwd=tmp_path)

    def state(*args):
        done = caju("explain", file, "--cache", "cache", "--format", "json", *args, cwd=tmp_path)
        return json.loads(done.stdout)["hints"][0]["state"]

    assert (state("--seed", 7), state("--seed", 8), state()) == ("hit", "miss", "miss")


def test_the_encoding_of_a_save_is_that_of_its_parts(caju, tmp_path):
    file = write_pipeline(tmp_path, STORED)
    for encoding, ending, other in [("parquet/zstd", "parquet", "arrow"), ("arrow/lz4", "arrow", "parquet")]:
        to = tmp_path / ending
        caju("save", file, "--to", to, "--encoding", encoding)
        assert any(to.glob(f"**/*.{ending}")) and not any(to.glob(f"**/*.{other}"))


def bench(caju, folder, *args):
    """The result of `caju bench policies` for one trial."""
    write_pipeline(folder, STORED)
    one = ["--policies", "full", "--repeats", 1, "--cold-only", "--quiet"]
    caju("bench", "policies", "pipeline.yaml", *one, "--out", "result.json", *args, cwd=folder)
    result = json.loads((folder / "result.json").read_text())
    [trial] = result["trials"]
    [line] = result["summary"]["lines"]
    return trial, line


def test_the_epochs_and_the_horizon_of_a_policy_bench(caju, tmp_path):
    trial, line = bench(caju, tmp_path, "--epochs", 3)
    measured_s = sum(epoch["wall_s"] for epoch in trial["epochs"])
    assert len(trial["epochs"]) == 3 and line["horizon_s"] == pytest.approx(measured_s)
    trial, line = bench(caju, tmp_path, "--epochs", 2, "--horizon", 100)
    [first, last] = [epoch["wall_s"] for epoch in trial["epochs"]]
    # Those that are not measured count like the last one.
    assert line["horizon_s"] == pytest.approx(first + 99 * last)


def test_the_encoding_and_the_budget_of_a_policy_bench(caju, tmp_path):
    plain, packed, full = (bench(caju, tmp_path, "--epochs", 2, *more)[0]
                           for more in ([], ["--encoding", "parquet/zstd"], ["--cache-budget", "40KiB"]))
    assert plain["stored_bytes"] > 90_000 and packed["stored_bytes"] < plain["stored_bytes"] / 2
    assert full["stored_bytes"] <= 40 << 10 and full["epochs"][1]["splits"]["compute"] > 0
    assert plain["epochs"][1]["splits"]["compute"] == 0


def test_a_policy_bench_draws_its_policies(caju, tmp_path):
    bench(caju, tmp_path, "--epochs", 1, "--plot", "plot.svg")
    picture = (tmp_path / "plot.svg").read_text()
    assert picture.startswith("<svg") and "time of 1 epochs under each policy" in picture and "full" in picture


def test_the_epochs_and_the_cache_of_quickstart(caju, tmp_path):
    args = ["quickstart", "--dir", "photos", "--count", 16, "--cache", "stored"]
    one, three = (caju(*args, "--epochs", epochs, cwd=tmp_path).stdout for epochs in (1, 3))
    assert "quickstart: 16 rows" in one and "quickstart: 48 rows" in three
    # Notes about the job are stored even if its rows are not.
    assert any((tmp_path / "stored").glob("**/*")) and not (tmp_path / "photos-cache").exists()


def test_the_line_of_quickstart_that_shows_the_stored_rows(caju, tmp_path):
    # What is decided is measured, so on a busy machine it may be to store nothing: then another run may differ.
    for attempt in range(4):
        args = ["quickstart", "--dir", "photos", "--count", 64, "--cache", f"stored-{attempt}"]
        shown = caju(*args, cwd=tmp_path).stdout
        line = re.search(r"^  python3 -c \"(.*)\"$", shown, re.MULTILINE)
        if line:
            break
    done = subprocess.run([sys.executable, "-c", line[1]], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "label" in done.stdout and "photos" in done.stdout and " rows" in done.stdout


@pytest.mark.parametrize("readers", [1, 4])
def test_the_readers_and_the_splits_of_a_state_bench(caju, tmp_path, readers):
    args = ["bench", "state", "--readers", readers, "--workers", 1]
    # Each takes a state after every twentieth of its part of the splits, and of few splits after each of them.
    for splits, states in [(400, 20 * readers), (8, 8)]:
        shown = caju(*args, "--splits", splits, cwd=tmp_path).stdout
        taken = int(re.search(r"([\d,]+) states while", shown)[1].replace(",", ""))
        # What a reader has read since its last state has none.
        assert states - readers < taken <= states, shown


def learnt(caju, folder, boundaries):
    steps = [{"bucket_by_length": {"length": "id", "boundaries": boundaries, "batch_sizes": 8, "pad": False}}]
    [learnt] = caju.report("run", {"source": {"range": 1000}, "steps": steps}, folder)["boundaries"]
    return learnt


def test_the_quantiles_and_the_rows_of_learnt_boundaries(caju, tmp_path):
    assert learnt(caju, tmp_path, {"quantiles": 2, "rows": 400})["boundaries"] == [200]
    assert learnt(caju, tmp_path, {"quantiles": 4, "rows": 400})["boundaries"] == [100, 200, 300]
    assert learnt(caju, tmp_path, {"quantiles": 2, "rows": 100})["boundaries"] == [50]


def test_the_type_the_shape_and_the_absence_of_a_feature(caju, data, tmp_path):
    def run(name, feature, expression, code=0):
        definition = {"source": {"tfrecord": str(data / "images/tfrecord/*.tfrecord")}, "steps": [
            {"parse_example": {"features": {name: feature}}},
            {"filter": expression.format(f'"{name}"')},
        ]}
        file = write_pipeline(tmp_path, definition)
        done = caju("run", file, "--report", tmp_path / "report.json", code=code)
        return done.stderr if code else json.loads((tmp_path / "report.json").read_text())["epochs"][0]["rows"]

    label, rows = "image/class/label", 60
    assert run(label, {"dtype": "int64"}, "{} >= 0") == rows
    assert "`parse_example` says float32" in run(label, {"dtype": "float32"}, "{} >= 0", code=2)
    # A list has a length, and one value has none.
    assert run(label, {"dtype": "int64", "shape": "list"}, "array_length({}) = 1") == rows
    assert run(label, {"dtype": "int64", "shape": "scalar"}, "{} >= 0") == rows
    assert "`parse_example` says 2;" in run(label, {"dtype": "int64", "shape": 2}, "array_length({}) = 2", code=2)
    # No record has the feature.
    assert run("absent", {"dtype": "int64", "optional": True}, "{} is null") == rows
    assert "feature `absent`" in run("absent", {"dtype": "int64", "optional": False}, "{} is null", code=2)
