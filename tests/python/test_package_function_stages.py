"""Functions of users as stages of datasets: their rows, names, draws and errors, and what servers may run."""

import os
import sys
import time

import numpy as np
import pyarrow as pa
import pytest

import caju as cj


def test_stages_run_functions():
    factor = 3
    dataset = (
        cj.range(1000)
        .map(lambda row: {"id": row["id"], "y": row["id"] * factor, "s": f"n{row['id']}", "v": np.full(3, row["id"], "f4")})
        .filter(lambda row: row["id"] % 2 == 0)
        .batch(64)
    )
    assert dict(dataset.schema) == {"id": "int64", "y": "int64", "s": "string", "v": "float32[3]"}
    rows = [(int(i), int(y), s, v.tolist()) for b in dataset for i, y, s, v in zip(b["id"], b["y"], b["s"], b["v"])]
    assert rows == [(i, 3 * i, f"n{i}", [i] * 3) for i in range(0, 1000, 2)]


def test_a_slow_row_delays_no_other_split(tmp_path):
    """The row of one file waits until the test has the rows of all other files."""
    go = str(tmp_path / "go")
    files = [str(tmp_path / f"{i:02}.arrow") for i in range(40)]
    for i, file in enumerate(files):
        with pa.ipc.new_file(file, pa.schema([("id", pa.int64())])) as writer:
            writer.write_table(pa.table({"id": [i]}))

    def wait(row):
        deadline = time.monotonic() + 30
        while row["id"] == 3 and not os.path.exists(go) and time.monotonic() < deadline:
            time.sleep(0.01)
        return {"id": row["id"], "late": time.monotonic() >= deadline}

    for steps in (lambda ds: ds, lambda ds: ds.filter("id >= 0")):
        rows = iter(steps(cj.read_arrow(str(tmp_path / "*.arrow")).map(wait)))
        seen = [next(rows) for _ in range(39)]
        assert sorted(int(r["id"]) for r in seen) == [i for i in range(40) if i != 3]
        open(go, "w").close()
        last = list(rows)
        assert [int(r["id"]) for r in last] == [3] and not last[0]["late"]
        os.remove(go)


def test_batched_stages_and_flat_map():
    dataset = cj.range(100).map(lambda b: {"x": b["id"] * 2}, batched=True).filter(lambda b: b["x"] < 10, batched=True)
    assert [r["x"] for r in dataset] == [0, 2, 4, 6, 8]
    words = cj.range(4).flat_map(lambda row: ({"w": f"w{i}"} for i in range(row["id"])))
    assert [r["w"] for r in words] == ["w0", "w0", "w1", "w0", "w1", "w2"]


def test_rows_are_not_multiplied_below_stages_of_the_stream():
    def both(row):
        return [{"v": row["id"]}, {"v": -row["id"]}]

    schema, rows = {"v": "int64"}, cj.range(1000)
    twice = rows.flat_map(both, schema=schema)
    assert len(list(twice.shuffle(10))) == 2000
    drawn = cj.sample_from_datasets([rows, rows]).with_columns(v="make_array(id, 0 - id)")
    assert len(list(drawn.unnest("v"))) == 4000
    for below in (rows.shuffle(10), rows.repeat(2), rows.shuffle(10).take(900), rows.batch(4).unbatch()):
        with pytest.raises(cj.InvalidPipeline, match="rows cannot be multiplied below a stream stage"):
            list(below.flat_map(both, schema=schema))
    with pytest.raises(cj.InvalidPipeline, match="rows cannot be multiplied below a stream stage"):
        list(drawn.shard(2, 0).unnest("v"))


def test_functions_have_their_name_and_get_batches():
    def length(batch):
        return {"n": np.full(len(batch["id"]), len(batch["id"]))}

    dataset = cj.range(100).map(length, batched=True)
    name = dataset.to_dict()["steps"][0]["python"]["name"]
    assert name.endswith(".length") and f"map {name}" in dataset.explain()
    counts = [int(row["n"]) for row in dataset]
    assert len(counts) == 100 and max(counts) > 1
    with pytest.raises(TypeError, match="len"):               # of a number: a row is no batch
        list(cj.range(100).map(length))


def test_draws_depend_on_the_row_and_the_epoch_alone():
    def noisy(row):
        return {"id": row["id"], "z": cj.rng().random()}

    def draws(workers):
        with cj.LocalCluster(workers) as cluster:
            dataset = cj.range(200).map(noisy).distribute(cluster)
            return [{int(r["id"]): float(r["z"]) for r in dataset} for _ in range(2)]

    one, two = draws(1), draws(2)
    assert one == two and one[0] != one[1] and len(set(one[0].values())) == 200


def test_who_draws_is_found():
    from caju import rng
    from caju._fingerprint import inspect_code

    def draws(f):
        return inspect_code(f, None).draws

    def helper():
        return rng().random()

    def inside(row):
        import caju
        return caju.rng()

    assert draws(lambda row: helper()) and draws(inside) and draws(lambda row: cj.rng())
    assert not draws(lambda row: row) and not draws(lambda row: cj.col("x"))


def test_errors_of_stages_name_stage_and_row():
    def f(row):
        return {"y": 1 // (int(row["id"]) - 7)}

    with pytest.raises(cj.InvalidPipeline) as e:
        list(cj.range(100).map(f))
    assert "steps[0].python" in str(e.value) and "row 7" in str(e.value) and "1 // (int" in str(e.value)
    rest = list(cj.range(10).map(f).with_options(on_error="skip"))
    assert len(rest) == 9


def test_fingerprints_follow_the_code():
    def dataset(k):
        return cj.range(10).map(lambda row: {"y": row["id"] + k})

    assert dataset(1).fingerprint == dataset(1).fingerprint != dataset(2).fingerprint
    again = cj.from_yaml(dataset(1).to_yaml())
    assert again.fingerprint == dataset(1).fingerprint and [r["y"] for r in again] == list(range(1, 11))


def test_columns_that_change_are_reported():
    with pytest.raises(cj.InvalidPipeline, match="one type"):
        list(cj.range(10).map(lambda row: {"y": int(row["id"]) if row["id"] < 5 else "five"}).batch(1))


def test_servers_run_functions_only_if_allowed():
    dataset = cj.range(10).map(lambda row: {"y": row["id"] * 2})
    with cj.start_dispatcher() as dispatcher, cj.start_worker(dispatcher):
        with pytest.raises(cj.NotPermitted, match="--allow-python"):
            list(dataset.distribute(dispatcher))
    with cj.start_dispatcher(allow_python=True) as dispatcher, cj.start_worker(dispatcher, allow_python=True):
        assert sorted(r["y"] for r in dataset.distribute(dispatcher)) == list(range(0, 20, 2))


def test_the_binarys_servers_run_functions_only_if_allowed(cluster):
    dataset = cj.range(10).map(lambda row: {"y": row["id"] * 2})
    servers = cluster(workers=0)
    allowed = servers.start("dispatcher", "--allow-python", sys.executable)
    servers.start("worker", "--dispatcher", allowed.address, "--allow-python", sys.executable)
    assert sorted(r["y"] for r in dataset.distribute(allowed.address)) == list(range(0, 20, 2))
    with pytest.raises(cj.NotPermitted, match="--allow-python"):
        list(dataset.distribute(servers.dispatcher.address))


def test_functions_on_servers_see_the_variables_that_are_named(caju, cluster, monkeypatch):
    for name in ("CAJUTEST_NAMED", "CAJUTEST_OTHER"):
        monkeypatch.setitem(caju.env, name, "1")
    dataset = cj.range(1).map(lambda row: {"seen": ",".join(sorted(k for k in os.environ if k.startswith("CAJUTEST")))})
    servers = cluster(workers=0)
    allowed = servers.start("dispatcher", "--allow-python", sys.executable)
    servers.start("worker", "--dispatcher", allowed.address, "--allow-python", sys.executable, "--python-env", "CAJUTEST_NAMED")
    assert [row["seen"] for row in dataset.distribute(allowed.address)] == ["CAJUTEST_NAMED"]
