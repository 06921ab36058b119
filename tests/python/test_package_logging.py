"""What caju has to tell reaches `logging`, from any thread, without waiting for the interpreter."""

import logging
import os
import subprocess
import sys
import threading

import pytest

import caju as cj
from caju import _caju, _logging


def python(code, **env):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False,
                          env=os.environ | env)
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(autouse=True)
def level():
    yield
    logging.getLogger("caju").setLevel(logging.NOTSET)
    _logging.sync_level()


def test_events_carry_name_level_message_and_fields(caplog):
    logging.getLogger("caju").setLevel(logging.DEBUG)
    with caplog.at_level(logging.DEBUG), cj.LocalCluster() as cluster:
        list(cj.range(100).batch(10).distribute(cluster, job_name="told"))
    records = [r for r in caplog.records if r.name.startswith("caju.")]
    assert records and all(r.levelno in (5, 10, 20, 30, 40) for r in records)
    names = {r.name.split(".")[1] for r in records}
    assert "dispatcher" in names and not any("::" in r.name for r in records)
    assert all(abs(r.created - records[0].created) < 100 for r in records)


def test_by_default_only_warnings_are_made(caplog):
    with cj.LocalCluster() as cluster:
        list(cj.range(100).batch(10).distribute(cluster))
    assert [r for r in caplog.records if r.name.startswith("caju") and r.levelno < logging.WARNING] == []


def test_a_replaced_process_is_reported(caplog, tmp_path):
    mark = str(tmp_path / "mark")

    def once(row):
        if not os.path.exists(mark):
            open(mark, "w").close()
            os._exit(3)
        return {"y": row["id"]}

    assert len(list(cj.range(10).map(once, schema={"y": "int64"}))) == 10
    [told] = [r for r in caplog.records if r.name.startswith("caju.functions")]
    assert told.levelno == logging.WARNING and "replaced" in told.getMessage() and "once" in told.getMessage()


@pytest.mark.parametrize("on", ["here", "cluster"])
def test_a_file_that_was_cut_between_two_epochs_is_reported(on, caplog, tmp_path):
    """The rows are fewer, and nothing else is wrong: neither the number of files nor that of splits."""
    files = [tmp_path / f"{name}.csv" for name in "ab"]
    for file in files:
        file.write_text("\n".join(["id", *map(str, range(100))]) + "\n")

    def epochs(dataset):
        first = sum(len(b["id"]) for b in dataset)
        again = sum(len(b["id"]) for b in dataset)
        files[1].write_text("\n".join(["id", *map(str, range(50))]) + "\n")
        return first, again, sum(len(b["id"]) for b in dataset)

    dataset = cj.read_csv(f"{tmp_path}/*.csv").batch(10)
    if on == "here":
        assert epochs(dataset) == (200, 200, 150)
    else:
        with cj.LocalCluster() as cluster:
            assert epochs(dataset.distribute(cluster, job_name="cut")) == (200, 200, 150)
    [changed] = [r for r in caplog.records if "source" in r.name and r.levelno == logging.WARNING]
    assert "files of the source are others than in epoch 1, in 2 splits as before" in changed.getMessage()


def test_a_reader_that_finds_its_epoch_read_is_reported(caplog):
    with cj.LocalCluster() as cluster:
        def epoch(rows):
            return iter(cj.range(rows).batch(10).distribute(cluster, job_name=f"of-{rows}"))

        first = epoch(100)
        assert len([next(first) for _ in range(4)]) == 4
        state = first.state_dict()
        assert len(list(first)) == 6
        late = epoch(100)
        late.load_state_dict(state)
        assert len(list(late)) == 6
        assert list(epoch(0)) == [] and list(epoch(0)) == [], "there were no rows"
        assert "gave this reader nothing" not in caplog.text
        assert list(epoch(100)) == []
    [warned] = [r for r in caplog.records if "gave this reader nothing" in r.getMessage()]
    assert warned.levelno == logging.WARNING and "epoch 0 of job `of-100`" in warned.getMessage()


def test_what_a_loop_raises_is_not_reported_twice():
    done = python("""
import caju
try:
    list(caju.range(10).map(x="1 / (id - 5)"))
except caju.CajuError as e:
    print("raised")
""")
    assert done.stdout == "raised\n" and done.stderr == ""


def test_servers_tell_while_nobody_calls():
    # A worker is killed: the dispatcher of this process notices by itself, while this thread waits for something else.
    seen, heard = threading.Event(), []

    class Handler(logging.Handler):
        def emit(self, record):
            heard.append(record)
            seen.set()

    handler = Handler()
    logging.getLogger("caju").addHandler(handler)
    logging.getLogger("caju").setLevel(logging.INFO)
    try:
        with cj.start_dispatcher() as dispatcher:
            with cj.start_worker(dispatcher):
                assert seen.wait(30), "nothing is told of a worker that registers"
            assert any("log" in t.name for t in threading.enumerate())
        assert not any(t.name == "caju-log" for t in threading.enumerate())
    finally:
        logging.getLogger("caju").removeHandler(handler)


def test_handlers_may_use_caju(caplog):
    class Handler(logging.Handler):
        rows = None

        def emit(self, record):
            if self.rows is None:
                self.rows = 0
                self.rows = len(list(cj.range(3)))

    handler, logger = Handler(), logging.getLogger("caju")
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        with cj.LocalCluster() as cluster:
            assert len(list(cj.range(5).distribute(cluster))) == 5
        assert handler.rows == 3
    finally:
        logger.removeHandler(handler)


def test_a_handler_may_stop_the_cluster_while_a_worker_starts():
    """What another thread may do, too, and a signal handler: here it comes for certain before the worker is one of the cluster's."""

    class Handler(logging.Handler):
        workers = None

        def emit(self, record):
            if self.workers is None:
                self.workers = cluster.workers
                cluster.stop()

    cluster = cj.LocalCluster()
    before = cluster.workers
    handler, logger = Handler(), logging.getLogger("caju")
    logger.setLevel(logging.DEBUG)
    _logging.sync_level()
    logger.addHandler(handler)
    try:
        with pytest.raises(cj.FailedPrecondition, match="the cluster was stopped"):
            cluster.add_worker()
    finally:
        logger.removeHandler(handler)
    assert len(before) == 1 and handler.workers == before, "those of before"
    assert cluster.workers == []
    with pytest.raises(cj.FailedPrecondition, match="the cluster was stopped"):
        cluster.add_worker()
    with pytest.raises(cj.Unavailable):
        list(cj.range(3).distribute(cluster, connect_timeout=0.2))


def test_more_events_than_are_kept_are_counted(caplog):
    logging.getLogger("caju").setLevel(1)
    _caju.log_level(1)
    with cj.LocalCluster(workers=2) as cluster:
        for _ in range(3):
            list(cj.range(2000).batch(1).distribute(cluster))
    events, lost = _caju.take_records()
    assert len(events) <= 1000 and lost >= 0


@pytest.mark.parametrize("code", [
    "import caju, logging; logging.basicConfig(level=1); d = caju.start_dispatcher(); w = caju.start_worker(d); print('end')",
    "import caju, logging; logging.basicConfig(level=1); it = iter(caju.range(10**7).batch(2)); next(it); print('end')",
    "import caju, logging, sys; logging.basicConfig(level=1); d = caju.start_dispatcher(); print('end'); sys.exit(0)",
])
def test_the_end_of_a_process_that_logs_needs_no_help(code):
    assert python(code).stdout == "end\n"


def test_a_child_of_a_fork_is_silent_and_alive():
    done = python("""
import caju, logging, os
logging.basicConfig(level=10)
with caju.start_dispatcher() as d, caju.start_worker(d):
    list(caju.range(10).distribute(d))
    pid = os.fork()
    if pid == 0:
        try:
            list(caju.range(3))
        except caju.FailedPrecondition:
            os._exit(0)
        os._exit(1)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
""")
    assert done.stdout == "0\n"
