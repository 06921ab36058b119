"""Every option of the package does what its docstring says: each of these fails when the option is ignored.

Options with tests of their own: bounds (test_package_bounds), functions (test_package_functions, test_package_function_stages), saves
(test_package_save), states (test_package_state), views of PyTorch and JAX (test_package_torch, test_package_jax).
"""

import gzip
import io
import json
import os
import pathlib
import signal
import subprocess
import sys
import tarfile
import threading
import time
import tomllib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import free_port

import caju as cj
from caju import _cluster

ROOT = pathlib.Path(__file__).resolve().parents[2]
PATIENCE_S = 60


def wait_until(true, why):
    until = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < until, why
        threading.Event().wait(0.02)


def values(dataset, name="id"):
    return [int(row[name]) for row in dataset]


# ---- sources -------------------------------------------------------------------------------------------------------


def compressed(folder, name, text):
    """A gzip file whose name does not say so."""
    file = folder / name
    file.write_bytes(gzip.compress(text))
    return file


def test_compression_of_text(tmp_path):
    csv, jsonl = compressed(tmp_path, "a.csv", b"id\n1\n2\n"), compressed(tmp_path, "a.jsonl", b'{"id": 1}\n{"id": 2}\n')
    assert values(cj.read_csv(csv, compression="gzip")) == values(cj.read_json(jsonl, compression="gzip")) == [1, 2]
    for read, file in ((cj.read_csv, csv), (cj.read_json, jsonl)):
        with pytest.raises(cj.CajuError):
            list(read(file, compression="none"))
    plain = tmp_path / "b.csv.gz"
    plain.write_text("id\n1\n2\n")
    assert values(cj.read_csv(plain, compression="none")) == [1, 2]


def test_compression_of_archives_and_records(tmp_path, data):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, text in (("a.txt", b"one"), ("a.cls", b"1")):
            info = tarfile.TarInfo(name)
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text))
    tar = compressed(tmp_path, "a.tar", out.getvalue())
    [row] = cj.read_webdataset(tar, compression="gzip")
    assert (row["__key__"], row["txt"], row["cls"]) == ("a", b"one", b"1")
    [row] = cj.read_webdataset(tar, compression="gzip", columns=["cls"])
    assert set(row) == {"__key__", "cls"}
    records = sorted((data / "images/tfrecord").glob("*.tfrecord"))[0].read_bytes()
    file = compressed(tmp_path, "a.tfrecord", records)
    count = len(list(cj.read_tfrecord(file, compression="gzip")))
    assert count > 0
    for read, packed in ((cj.read_webdataset, tar), (cj.read_tfrecord, file)):
        with pytest.raises(cj.CajuError):
            list(read(packed, compression="none"))


def test_options_of_csv_and_json(tmp_path):
    file = tmp_path / "a.csv"
    file.write_text("1;x\n2;y\n")
    rows = list(cj.read_csv(file, header=False, delimiter=";", schema={"id": "float64", "name": "string"}))
    assert [(float(r["id"]), r["name"]) for r in rows] == [(1.0, "x"), (2.0, "y")] and rows[0]["id"].dtype == np.float64
    assert len(list(cj.read_csv(file, delimiter=";"))) == 1   # the first line is the header
    assert len(cj.read_csv(file, header=False).schema) == 1   # without the delimiter one column
    lines = tmp_path / "a.jsonl"
    lines.write_text('{"id": 1, "name": "x"}\n')
    assert dict(cj.read_json(lines).schema)["id"] == "int64"
    assert dict(cj.read_json(lines, schema={"id": "float32"}).schema) == {"id": "float"} or dict(
        cj.read_json(lines, schema={"id": "float32"}).schema) == {"id": "float32"}


def test_columns_of_tables(tmp_path):
    table = pa.table({"id": [1, 2], "x": [3.0, 4.0], "s": ["a", "b"]})
    pq.write_table(table, tmp_path / "t.parquet")
    with pa.ipc.new_file(tmp_path / "t.arrow", table.schema) as writer:
        writer.write_table(table)
    for read, file in ((cj.read_parquet, "t.parquet"), (cj.read_arrow, "t.arrow")):
        assert list(read(tmp_path / file).schema) == ["id", "x", "s"] and values(read(tmp_path / file)) == [1, 2]
        assert list(read(tmp_path / file, columns=["s", "id"]).schema) == ["s", "id"]


def test_split_and_version_of_files(tmp_path):
    (tmp_path / "a.csv").write_text("id\n" + "".join(f"{i}\n" for i in range(2000)))

    def splits(**options):
        with iter(cj.read_csv(tmp_path / "a.csv", **options)) as epoch:
            assert sorted(int(r["id"]) for r in epoch) == list(range(2000))
            return epoch.splits[1]

    assert splits() == 1 and splits(split="1KiB") > 4 and splits(split=1024) == splits(split="1KiB")
    assert "version: content" in cj.read_csv(tmp_path / "a.csv", version="content").to_yaml()
    with pytest.raises(cj.InvalidPipeline, match="contnet"):
        cj.read_csv(tmp_path / "a.csv", version="contnet")


def test_paths_of_pipeline_files(tmp_path, monkeypatch):
    folder = tmp_path / "below"
    folder.mkdir()
    (folder / "a.csv").write_text("id\n7\n")
    text = "source: { csv: a.csv }"
    (folder / "p.yaml").write_text(text)
    assert values(cj.from_yaml(text, base=folder)) == values(cj.read_yaml(folder / "p.yaml")) == [7]
    monkeypatch.chdir(folder)
    assert values(cj.from_yaml(text)) == [7]


# ---- combinations --------------------------------------------------------------------------------------------------


def test_zip_and_concatenate_and_samples():
    pairs = cj.zip(cj.range(5), cj.range(5).map(x="id * 2"))
    assert [(int(r["id"]), int(r["x"])) for r in pairs.with_options(deterministic=True)] == [(i, 2 * i) for i in range(5)]
    assert values(cj.concatenate(cj.range(3), cj.range(2)).with_options(deterministic=True)) == [0, 1, 2, 0, 1]
    assert values(cj.range(3).concatenate(cj.range(2)).with_options(deterministic=True)) == [0, 1, 2, 0, 1]

    def early(weights, seed=None):
        """How many of the first 200 rows are of the second dataset."""
        ds = cj.sample_from_datasets([cj.range(1000), cj.range(1000, 2000)], weights, seed).take(200)
        return [i >= 1000 for i in values(ds.with_options(deterministic=True))]

    assert 60 < sum(early(None)) < 140 and sum(early([1, 9])) > 150 and sum(early([9, 1])) < 50
    assert early(None, seed=1) == early(None, seed=1) != early(None, seed=2)


# ---- stages --------------------------------------------------------------------------------------------------------

LISTS = pa.table({"id": range(6), "l": [[1], [1, 2], [1, 2, 3], [1], [1, 2], [1, 2, 3]]})


def test_stages_of_rows(data):
    lists = cj.from_arrow(LISTS).with_options(deterministic=True)
    assert values(lists.unnest("l"), "l") == [v for l in LISTS["l"].to_pylist() for v in l]
    assert values(lists.flat_map(v="l"), "v") == values(lists.unnest("l"), "l")
    assert list(lists.select("l", "id").schema) == ["l", "id"] == list(lists.select(["l", "id"]).schema)
    text = cj.range(2).map(s="concat('ab', id)").inflate("s", 3)
    assert [len(r["s"]) for r in text] == [9, 9]
    records = cj.read_tfrecord(data / "images/tfrecord/*.tfrecord").take(3)
    features = {"image/class/label": "int64"}
    parsed = records.parse_example(features)
    renamed = records.map(other="record").parse_example(features, column="other")
    assert sorted(values(parsed, "image/class/label")) == sorted(values(renamed, "image/class/label"))
    with pytest.raises(cj.InvalidPipeline, match="record"):
        list(records.map(other="record").parse_example(features))


def test_columns_are_named_by_a_dict_or_by_keywords():
    ds = cj.range(2).map({"id": "id", "x y": "id + 1"})
    assert list(ds.schema) == ["id", "x y"] and values(ds, "x y") == [1, 2]
    added = ds.with_columns({"z": "id + 5"}, w="id + 6")
    assert list(added.schema) == ["id", "x y", "z", "w"] and (values(added, "z"), values(added, "w")) == ([5, 6], [6, 7])
    lists = cj.from_arrow(LISTS).with_options(deterministic=True)
    assert values(lists.flat_map({"v w": "l"}), "v w") == values(lists.flat_map(v="l"), "v") == values(lists.unnest("l"), "l")


def test_hints_have_the_names_given():
    ds = cj.range(3).autocache("one").autocache().with_columns(x="id")
    assert "hint 'one'" in ds.explain() and "hint 'hint-1'" in ds.explain()
    assert cj.range(3).autocache().cache("two")._policy == "hint:two" and cj.range(3).autocache().cache()._policy == "hint:hint-1"
    with pytest.raises(cj.InvalidPipeline, match="at the hint 'one' are stored already"):
        cj.range(3).cache("one").cache("two")


def test_stages_of_the_stream():
    ordered = cj.range(100).with_options(deterministic=True)
    assert values(ordered.skip(10).take(5)) == [10, 11, 12, 13, 14]
    assert sorted(values(ordered.repeat(2))) == sorted(list(range(100)) * 2) and len(values(ordered.repeat().take(250))) == 250
    assert len(values(ordered.repeat(-1).take(250))) == 250
    seeded = [values(ordered.shuffle(50, seed=s)) for s in (1, 1, 2)]
    assert seeded[0] == seeded[1] != seeded[2]
    small = values(cj.range(1000).shuffle(2, seed=1).with_options(deterministic=True))
    assert small != list(range(1000)) and max(abs(a - i) for i, a in enumerate(small)) < 100   # a small buffer mixes little
    assert [len(b["id"]) for b in ordered.batch(30)] == [30, 30, 30, 10]
    assert [len(b["id"]) for b in ordered.batch(30, drop_remainder=True)] == [30, 30, 30]
    assert values(ordered.batch(30).unbatch()) == list(range(100))
    assert values(ordered.shard(30, 7)) == [7, 37, 67, 97] and len(ordered.shard(30, 7)) == 4
    assert len(ordered.shard(30, 10)) == 3 and len(cj.range(5).shard(9, 7)) == 0
    assert ordered.prefetch(3).to_dict()["steps"] == [{"prefetch": {"buffer": 3}}]


def test_batches_of_lists():
    lists = cj.from_arrow(LISTS).with_options(deterministic=True)
    assert [b["l"].shape for b in lists.padded_batch(4)] == [(4, 3), (2, 3)]
    assert [b["l"].shape for b in lists.padded_batch(4, drop_remainder=True)] == [(4, 3)]
    [whole] = lists.padded_batch(6, {"l": 4}, {"l": -7})
    assert whole["l"].shape == (6, 4) and whole["l"][0].tolist() == [1, -7, -7, -7]
    [free] = lists.padded_batch(6, {"l": None})
    assert free["l"].shape == (6, 3)

    def buckets(*arguments, **options):
        return lists.bucket_by_length("CAST(array_length(l) AS bigint)", *arguments, **options)

    assert sorted(len(b["id"]) for b in buckets([2], [1, 3])) == [1, 1, 1, 3]
    assert sorted(len(b["id"]) for b in buckets([2], 4)) == [2, 4]
    assert sorted(len(b["id"]) for b in buckets([2], 4, drop_remainder=True)) == [4]
    padded, ragged = buckets([2], 4), buckets([2], 4, pad=False)
    assert all(b["l"].dtype != object for b in padded) and any(b["l"].dtype == object for b in ragged)


# ---- options of the whole ------------------------------------------------------------------------------------------


def test_options_of_the_whole(tmp_path):
    assert cj.range(3).with_options(name="mine").to_dict()["name"] == "mine"
    drawn = [[float(r["z"]) for r in cj.range(5).map(z="normal()").with_options(seed=s, deterministic=True)] for s in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    file = tmp_path / "a.csv"
    file.write_text("n\n1\nbad\nbad\n4\n")
    rows = cj.read_csv(file, schema={"n": "int64"})
    with pytest.raises(cj.CajuError, match="line 3"):
        list(rows)
    assert values(rows.with_options(on_error="skip"), "n") == [1, 4]
    with pytest.raises(cj.CajuError, match="limit|more than 1|skipped"):
        list(rows.with_options(on_error={"skip": {"limit": 1}}))
    with pytest.raises(cj.CajuError, match="line 3"):
        list(rows.with_options(on_error="fail"))


# ---- distribute ----------------------------------------------------------------------------------------------------


def parts(folder):
    return sorted(f.suffix for f in pathlib.Path(folder).rglob("*") if f.suffix in (".arrow", ".parquet"))


def test_policy_and_encoding(tmp_path):
    rows = cj.range(100).map(x="id * 2").autocache("h")
    for name, options, found in [
        ("compute", {"policy": "compute"}, set()), ("full", {"policy": "full"}, {".arrow"}),
        ("parquet", {"policy": "hint:h", "encoding": "parquet/zstd"}, {".parquet"}),
    ]:  # fmt: skip
        with cj.LocalCluster(cache=tmp_path / name) as cluster:
            assert len(list(rows.distribute(cluster, **options))) == 100
        assert set(parts(tmp_path / name)) == found, name
    with cj.LocalCluster() as cluster, pytest.raises(cj.InvalidPipeline, match="ful"):
        list(rows.distribute(cluster, policy="ful"))


def test_seed_of_a_job():
    rows = cj.range(50).shuffle(50).with_options(deterministic=True, seed=3)
    with cj.LocalCluster() as cluster:
        by_seed = {s: values(rows.distribute(cluster, seed=s)) for s in (None, 3, 4)}
        epoch = iter(rows.distribute(cluster, seed=4))
        assert epoch.state_dict()["seed"] == 4
    assert by_seed[None] == by_seed[3] == values(rows) != by_seed[4]


def test_the_number_of_epochs_decides_what_is_worth_storing(tmp_path):
    slow = cj.from_yaml("source: { range: 600 }\nsteps: [ { burn: { per_row: 1ms } }, { autocache: h }, { batch: 50 } ]")
    for epochs, stored in ((1, False), (50, True)):
        folder = tmp_path / str(epochs)
        with cj.LocalCluster(cache=folder) as cluster:
            ds = slow.distribute(cluster, job_name="j", epochs=epochs)
            for _ in range(min(epochs, 3)):
                assert sum(len(b["id"]) for b in ds) == 600
        assert bool(parts(folder)) == stored, epochs


def test_a_dispatcher_that_is_away_is_looked_for_as_long_as_said():
    start = time.monotonic()
    with pytest.raises(cj.Unavailable):
        list(cj.range(3).distribute("127.0.0.1:1", connect_timeout=1.5))
    assert 1 < time.monotonic() - start < 8
    start = time.monotonic()
    with pytest.raises(cj.Unavailable):
        list(cj.range(3).distribute("127.0.0.1:1", connect_timeout=0))
    assert time.monotonic() - start < 1


def test_a_job_has_the_name_given():
    with cj.LocalCluster() as cluster:
        with iter(cj.range(3).distribute(cluster, job_name="mine")) as epoch:
            assert epoch.job == "mine"
        with iter(cj.range(3).distribute(cluster)) as epoch:
            assert epoch.job.startswith("python-")


def test_the_priority_and_the_weight_of_a_job(caju):
    slow = cj.from_yaml("source: { range: 1000000 }\nsteps: [ { sleep: { per_row: 2ms } }, { batch: 20 } ]")
    with cj.start_dispatcher(max_workers=1, scaling_interval=2.0) as dispatcher, cj.start_worker(dispatcher):
        def epoch(job, **options):
            return iter(slow.distribute(dispatcher, job_name=job, **options))

        def jobs():
            """The priority, the weight and the share of the target of each job."""
            status = json.loads(caju("status", "--dispatcher", dispatcher.address, "--format", "json").stdout)
            return {j["job"]: (j["priority"], j["weight"], j["share"]) for j in status["scaling"]["jobs"]}

        with epoch("train", priority=1, weight=2.5) as train, epoch("sweep", priority=-1) as sweep:
            until = time.monotonic() + PATIENCE_S
            # Each needs more than the one worker that is allowed. By weight alone the shares would be 0.71 and 0.29.
            while jobs() != {"train": (1, 2.5, 1.0), "sweep": (-1, 1.0, 0.0)}:
                for _ in range(10):
                    next(train), next(sweep)
                assert time.monotonic() < until, jobs()
            for options, words in [({"priority": 2}, "has the priority 1, not 2"), ({"weight": 2}, "has the weight 2.5, not 2")]:
                with pytest.raises(cj.CajuError, match=words):
                    epoch("train", **options)


READER = """
import caju, sys
slow = "source: { range: 100000 }\\nsteps: [ { burn: { per_row: 50us } }, { batch: 100 } ]"
for i, batch in enumerate(caju.from_yaml(slow).distribute(sys.argv[1], job_name="lost")):
    if i == 100:
        print("taken", flush=True)
"""


def test_an_epoch_that_lost_a_reader_is_incomplete_unless_that_is_allowed(cluster, caju):
    servers = cluster(workers=0)
    dispatcher = servers.start("dispatcher", "--heartbeat", "100ms", "--client-timeout", "1s").address
    for _ in range(2):
        servers.start("worker", "--dispatcher", dispatcher, "--cpu-threads", "1")

    def clients():
        [job] = json.loads(caju("status", "--dispatcher", dispatcher, "--format", "json").stdout)["jobs"]
        return job["clients"]

    first = subprocess.Popen([sys.executable, "-c", READER, dispatcher], stdout=subprocess.PIPE, text=True)
    assert first.stdout.readline() == "taken\n"
    first.send_signal(signal.SIGKILL)
    first.wait(PATIENCE_S)
    wait_until(lambda: clients() == 0, "the dispatcher does not notice that the reader is gone")
    slow = "source: { range: 100000 }\nsteps: [ { burn: { per_row: 50us } }, { batch: 100 } ]"
    rows = cj.from_yaml(slow)
    for options in ({}, {"lost_readers": "fail"}):
        with pytest.raises(cj.FailedPrecondition, match='incomplete(.|\n)*lost_readers="allow"'):
            list(rows.distribute(dispatcher, job_name="lost", **options))
    rest = [int(i) for b in rows.distribute(dispatcher, job_name="lost", lost_readers="allow") for i in b["id"]]
    assert 0 < len(rest) == len(set(rest)) < 100_000
    with pytest.raises(cj.InvalidPipeline, match="lost_readers='alow' is not one of fail, allow"):
        rows.distribute(dispatcher, lost_readers="alow")


# ---- clusters ------------------------------------------------------------------------------------------------------


def processes(on):
    """The processes that run a function."""
    return {int(r["pid"]) for r in on(cj.range(400).map(lambda row: {"pid": __import__("os").getpid()}, schema={"pid": "int64"}))}


def test_threads_and_workers(caju):
    with cj.LocalCluster(workers=3, cpu_threads=1, listen="127.0.0.1:0") as cluster:
        assert len(cluster.workers) == 3 and all(w.startswith("127.0.0.1:") for w in cluster.workers)
        assert len(processes(lambda ds: ds.distribute(cluster))) == 1
        status = json.loads(caju("status", "--dispatcher", cluster.address, "--format", "json").stdout)
        assert [w["cores"] for w in status["workers"]] == [1, 1, 1]
        assert cluster.add_worker() in cluster.workers and len(cluster.workers) == 4


def test_configure_sets_workers_threads_and_cache(tmp_path):
    try:
        cj.configure(workers=2, cpu_threads=1, cache=tmp_path / "cache")
        assert len(_cluster.embedded().workers) == 2 and len(processes(lambda ds: ds)) == 1
        assert len(list(cj.range(100).cache("h"))) == 100 and parts(tmp_path / "cache")
        cj.configure(workers=1)                               # what is not given stays
        assert _cluster._settings["cpu_threads"] == 1 and len(_cluster.embedded().workers) == 1
    finally:
        _cluster._settings.clear()
        _cluster._shared = None


def test_bytes_that_workers_have_read(tmp_path):
    (tmp_path / "a.csv").write_text("id\n" + "1\n" * 10_000)
    with cj.LocalCluster() as cluster:
        assert cluster.bytes_read == 0
        assert len(list(cj.read_csv(tmp_path / "a.csv").batch(1000).distribute(cluster))) == 10
        assert cluster.bytes_read >= 20_000


def test_a_dispatcher_with_a_state_folder_survives(tmp_path):
    for state_dir, kept in ((tmp_path / "state", True), (None, False)):
        with cj.start_dispatcher(state_dir=state_dir) as dispatcher:
            cj.range(10).register(dispatcher, "ten")
        with cj.start_dispatcher(state_dir=state_dir) as dispatcher, cj.start_worker(dispatcher):
            if kept:
                assert values(cj.from_dataset_id(dispatcher, "ten")) == list(range(10))
            else:
                with pytest.raises(cj.NotFound, match="ten"):
                    list(cj.from_dataset_id(dispatcher, "ten"))


def test_servers_listen_where_they_are_asked_to(tmp_path, caju):
    port, worker_port = free_port(), free_port()
    with cj.start_dispatcher(f"127.0.0.1:{port}", cache=tmp_path / "cache") as dispatcher:
        assert dispatcher.address == f"127.0.0.1:{port}"
        with cj.start_worker(dispatcher, listen=f"127.0.0.1:{worker_port}", advertise=f"localhost:{worker_port}",
                             cpu_threads=3, tags=["gpu", "fast"]) as worker:  # fmt: skip
            assert worker.address == f"localhost:{worker_port}"
            [known] = json.loads(caju("status", "--dispatcher", dispatcher.address, "--format", "json").stdout)["workers"]
            assert (known["address"], known["cores"], known["tags"]) == (worker.address, 3, ["gpu", "fast"])
            assert len(list(cj.range(10).autocache("h").distribute(dispatcher, policy="full"))) == 10
    assert parts(tmp_path / "cache")


def test_a_worker_drains_within_its_time():
    endless = "source: { range: 1000 }\nsteps: [ { sleep: { per_batch: 1h } }, { batch: 10 } ]"
    with cj.start_dispatcher() as dispatcher:
        idle = cj.start_worker(dispatcher)
        assert idle.drain(30)
        with cj.start_worker(dispatcher) as busy:
            epoch = iter(cj.from_yaml(endless).distribute(dispatcher))
            reading = threading.Thread(target=lambda: list(epoch))
            reading.start()
            wait_until(lambda: epoch.splits[0] > 0, "nothing is computed")
            start = time.monotonic()
            assert not busy.drain(0.5) and time.monotonic() - start < 20
            epoch.close()
            reading.join(PATIENCE_S)


# ---- what is told --------------------------------------------------------------------------------------------------


def test_an_iterator_describes_its_epoch():
    with iter(cj.range(3000).batch(100)) as epoch:
        for _ in epoch:
            pass
        stats = epoch.stats
        assert (stats.rows, stats.elements) == (3000, 30) and stats.bytes >= 24_000
        assert 0 < stats.first_batch_s <= stats.elapsed_s and 0 <= stats.wait_s <= stats.elapsed_s
        assert epoch.splits[0] == epoch.splits[1] > 0 and epoch.epoch == 0 and epoch.skipped == cj.Skipped(0, [])


def test_the_bottleneck_of_a_slow_stage_is_named():
    slow = cj.from_yaml("source: { range: 100000 }\nsteps: [ { burn: { per_row: 2ms } }, { batch: 20 } ]")
    with iter(slow) as epoch:
        wait_until(lambda: next(epoch) is not None and "burn" in (epoch.bottleneck or ""), "the bottleneck is not named")


def test_constants_and_sql():
    import datetime

    literals = {"i": 1, "f": 0.5, "s": "it's", "b": b"\x00\xff", "t": True, "n": None, "d": datetime.date(2020, 1, 2),
                "dt": datetime.datetime(2020, 1, 2, 3, 4, 5), "np": np.float32(2)}  # fmt: skip
    [row] = cj.range(1).map({name: cj.lit(v) for name, v in literals.items()})
    assert (row["i"], row["f"], row["s"], row["b"], bool(row["t"]), row["n"]) == (1, 0.5, "it's", b"\x00\xff", True, None)
    assert str(row["d"]) == "2020-01-02" and str(row["dt"]).startswith("2020-01-02T03:04:05") and row["np"] == 2
    assert values(cj.range(3).map(id=cj.sql("id + 1") * 2)) == [2, 4, 6]


def test_a_version_replaces_the_fingerprint_of_code():
    one, other = lambda row: {"x": 1}, lambda row: {"x": 2}  # noqa: E731
    assert cj.code_fingerprint(one) != cj.code_fingerprint(other)
    assert cj.code_fingerprint(one, version="a") == cj.code_fingerprint(other, version="a") != cj.code_fingerprint(one, version="b")
    assert cj.range(3).map(one, version="a").fingerprint == cj.range(3).map(other, version="a").fingerprint


# ---- what the documentation says of the package --------------------------------------------------------------------


def test_numpy_is_the_only_dependency_and_versions_are_those_of_the_documentation():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    workspace = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]
    text = (ROOT / "docs/python/README.md").read_text()
    assert [d.split(">")[0] for d in project["dependencies"]] == ["numpy"]
    assert f"Rust {workspace['rust-version']} or newer" in text
    assert f"CPython {project['requires-python'].removeprefix('>=')} or newer" in text
    for extra in project["optional-dependencies"]:
        assert f"[{extra}]" in text or extra == "progress", extra


def test_importing_caju_imports_no_other_library():
    code = "import sys, caju; print(sorted({m.split('.')[0] for m in sys.modules} & {'numpy', 'pyarrow', 'torch', 'jax', 'tqdm'}))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True,
                         env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"}).stdout
    assert out == "[]\n"
