"""A slow row holds back itself alone: rows before and behind it leave, and every row comes once."""

import os
import signal
import sys
import time

import pytest

import caju as cj

ROWS = 60
PATIENCE_S = 90
HELD_S = 60
"""How long a row is held at most, in seconds: shorter than the timeout of its function, after which the row would run again."""


def held_at(rows, go, pid_file=None):
    """A function that stays at these rows until the file `go` exists, and fails if it does not come. A test makes that file once
    it has the rows that do not wait. The worker's process id goes to `pid_file`.
    """

    def f(row):
        if int(row["id"]) in rows:
            if pid_file is not None:
                pid_file.write_text(str(os.getppid()))
            until = time.monotonic() + HELD_S
            while not go.exists():
                if time.monotonic() >= until:
                    raise TimeoutError(f"row {int(row['id'])} was held for {HELD_S} s")
                time.sleep(0.005)
        return {"id": row["id"]}

    return f


def take(epoch, n):
    return [int(next(epoch)["id"]) for _ in range(n)]


@pytest.fixture(scope="module")
def cluster():
    with cj.LocalCluster(cpu_threads=4) as cluster:
        yield cluster


@pytest.mark.parametrize("slow", [[0], [17], [ROWS - 1], [3, 30]])
def test_slow_rows_hold_back_nobody_else(cluster, tmp_path, slow):
    go = tmp_path / "go"
    rows = cj.range(ROWS).map(held_at(slow, go), schema={"id": "int64"}, timeout=PATIENCE_S)
    epoch = iter(rows.distribute(cluster))
    first = take(epoch, ROWS - len(slow))
    assert sorted(first + slow) == list(range(ROWS)), "the others come while the slow ones are computed"
    before = [i for i in first if i < slow[0]]
    assert before == sorted(before), "the rows before the first slow one leave in their order"
    go.touch()
    assert sorted(take(epoch, len(slow))) == slow
    assert list(epoch) == []


def test_functions_of_several_stages(cluster, tmp_path):
    go = tmp_path / "go"
    twice = {"id": "int64", "y": "int64"}
    rows = (cj.range(ROWS).map(held_at([9], go), schema={"id": "int64"}, timeout=PATIENCE_S).with_columns(x="id + 1")
              .map(lambda row: {"id": row["id"], "y": row["x"] * 2}, schema=twice))
    epoch = iter(rows.distribute(cluster))
    first = [next(epoch) for _ in range(ROWS - 1)]
    assert all(int(row["y"]) == 2 * (int(row["id"]) + 1) for row in first)
    go.touch()
    assert sorted([int(row["id"]) for row in first] + take(epoch, 1)) == list(range(ROWS)) and list(epoch) == []


@pytest.mark.parametrize("kind", ["filter", "flat_map"])
def test_where_rows_are_numbered_those_before_a_slow_one_leave(cluster, tmp_path, kind):
    go = tmp_path / "go"
    held = held_at([40], go)
    rows = cj.range(ROWS)
    if kind == "filter":
        rows = rows.filter(lambda row: int(held(row)["id"]) % 2 == 0, timeout=PATIENCE_S)
        wanted = list(range(0, ROWS, 2))
    else:
        rows = rows.flat_map(lambda row: [held(row)] * (int(row["id"]) % 3), schema={"id": "int64"}, timeout=PATIENCE_S)
        wanted = [i for i in range(ROWS) for _ in range(i % 3)]
    epoch = iter(rows.distribute(cluster))
    before = [i for i in wanted if i < 40]
    assert take(epoch, len(before)) == before
    go.touch()
    assert take(epoch, len(wanted) - len(before)) == wanted[len(before):] and list(epoch) == []


SPLIT_ROWS = 1024
"""The rows of a split of `range`, at least."""


@pytest.mark.parametrize("kind", ["filter", "flat_map", "stored", "skips bad rows", "shared"])
def test_where_rows_are_numbered_a_slow_one_holds_back_its_own_split_alone(cluster, tmp_path, kind):
    go, rows, job = tmp_path / "go", cj.range(2 * SPLIT_ROWS), {}
    held = held_at([40], go)
    if kind == "filter":
        rows = rows.filter(lambda row: int(held(row)["id"]) % 2 == 0, timeout=PATIENCE_S)
    elif kind == "flat_map":
        rows = rows.flat_map(lambda row: [held(row)] * (int(row["id"]) % 2), schema={"id": "int64"}, timeout=PATIENCE_S)
    else:
        rows = rows.map(held, schema={"id": "int64"}, timeout=PATIENCE_S)
        if kind == "stored":
            rows = rows.cache("stored")
        elif kind == "shared":
            job = {"job_name": "shares", "sharing": "exact", "policy": "compute"}
        else:
            rows = rows.with_options(on_error="skip")
    drops = kind in ("filter", "flat_map")
    wanted = [i for i in range(2 * SPLIT_ROWS) if not drops or i % 2 == (kind == "flat_map")]
    epoch = iter(rows.distribute(cluster, **job))
    free = [i for i in wanted if i < 40 or i >= SPLIT_ROWS]
    first = take(epoch, len(free))
    assert sorted(first) == free, "rows before the slow one and those of the other split do not wait"
    go.touch()
    # A row that was held for too long is skipped, or is an error: then one is missing here.
    assert sorted(first + take(epoch, len(wanted) - len(first))) == wanted
    assert list(epoch) == []


@pytest.mark.parametrize("kind", ["map", "filter", "flat_map"])
@pytest.mark.parametrize("bad", [[40], [7, 40], [7, 39, 41], [1000]])
def test_bad_rows_before_and_behind_a_slow_one_are_skipped_alone(cluster, tmp_path, kind, bad):
    go = tmp_path / "go"
    held, schema = held_at([40], go), {"id": "int64"}

    def f(row):
        held(row)
        if int(row["id"]) in bad:
            raise ValueError("a bad row")
        return {"id": row["id"]}

    rows = cj.range(SPLIT_ROWS)
    if kind == "map":
        rows = rows.map(f, schema=schema, timeout=PATIENCE_S)
    elif kind == "filter":
        rows = rows.filter(lambda row: bool(f(row)), timeout=PATIENCE_S)
    else:
        rows = rows.flat_map(lambda row: [f(row)], schema=schema, timeout=PATIENCE_S)
    epoch = iter(rows.with_options(on_error="skip").distribute(cluster))
    before = [i for i in range(40) if i not in bad]
    assert take(epoch, len(before)) == before, "they do not wait for the slow row"
    go.touch()
    assert [int(row["id"]) for row in epoch] == [i for i in range(40, SPLIT_ROWS) if i not in bad]
    assert epoch.skipped.rows == len(bad)


def test_with_deterministic_the_order_is_kept(cluster, tmp_path):
    go = tmp_path / "go"
    rows = cj.range(ROWS).map(held_at([20], go), schema={"id": "int64"}, timeout=PATIENCE_S)
    epoch = iter(rows.with_options(deterministic=True).distribute(cluster))
    assert take(epoch, 20) == list(range(20))
    go.touch()
    assert take(epoch, ROWS - 20) == list(range(20, ROWS)) and list(epoch) == []


def test_an_error_behind_a_slow_row_names_its_row(cluster, tmp_path):
    go = tmp_path / "go"
    held = held_at([4], go)

    def f(row):
        if int(row["id"]) == 50:
            raise ValueError("the fiftieth")
        return held(row)

    epoch = iter(cj.range(ROWS).map(f, schema={"id": "int64"}, timeout=PATIENCE_S).distribute(cluster))
    with pytest.raises(cj.InvalidPipeline, match=r"row 50 of it(.|\n)*the fiftieth"):
        while True:
            if int(next(epoch)["id"]) == 49:
                go.touch()
    go.touch()


def test_a_worker_that_is_killed_at_a_slow_row_loses_and_doubles_nothing(caju, tmp_path):
    from conftest import Server

    go, pid_file = tmp_path / "go", tmp_path / "pid"
    python = ("--allow-python", sys.executable)
    dispatcher = Server(caju, tmp_path, "dispatcher", "--heartbeat", "100ms", "--worker-timeout", "1s", *python)
    workers = [Server(caju, tmp_path, "worker", "--dispatcher", dispatcher.address, "--cpu-threads", "2", *python)
               for _ in range(2)]
    try:
        rows = cj.range(ROWS).map(held_at([7], go, pid_file), schema={"id": "int64"}, timeout=PATIENCE_S)
        epoch = iter(rows.distribute(f"caju://{dispatcher.address}"))
        first = take(epoch, ROWS - 1)
        assert sorted(first + [7]) == list(range(ROWS))
        os.kill(int(pid_file.read_text()), signal.SIGKILL)
        go.touch()
        assert take(epoch, 1) == [7] and list(epoch) == []
    finally:
        for server in [*workers, dispatcher]:
            server.kill()
