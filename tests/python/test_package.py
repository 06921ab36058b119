"""The Python package as a person uses it: definitions, expressions, clusters in the process, errors."""

import datetime
import io
import json
import pickle
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

import caju as cj
from caju import col, fn


def ids(dataset):
    """The ids of an epoch, in the order of arrival."""
    return [int(i) for element in dataset for i in np.atleast_1d(element["id"])]


# ---- reading -------------------------------------------------------------------------------------------------------


def test_three_lines_are_enough():
    batches = [b["id"].tolist() for b in cj.range(10).batch(3)]
    assert batches == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]


def test_before_batch_a_row_is_an_element():
    rows = list(cj.range(3).map(id="id", s="concat('n', id)", f="CAST(id AS float) / 2", b="id > 0"))
    assert rows[1] == {"id": 1, "s": "n1", "f": 0.5, "b": True}
    assert isinstance(rows[1]["id"], np.int64) and isinstance(rows[1]["f"], np.float32) and type(rows[1]["s"]) is str


def test_every_iteration_is_the_next_epoch():
    shuffled = cj.range(100).shuffle(100)
    first, second = ids(shuffled), ids(shuffled)
    assert sorted(first) == sorted(second) == list(range(100))
    assert first != second
    assert ids(cj.range(100).shuffle(100)) == first          # another dataset begins at epoch 0


def test_epochs_side_by_side():
    dataset = cj.range(20).batch(5)
    one, two = iter(dataset), iter(dataset)
    assert (one.epoch, two.epoch) == (0, 1)
    for a, b in zip(one, two, strict=True):
        assert a["id"].tolist() == b["id"].tolist()


def test_an_iterator_reports_what_it_did():
    with iter(cj.range(100).batch(10)) as epoch:
        next(epoch)
        assert epoch.stats.rows >= 10
        for _ in epoch:
            pass
        assert (epoch.stats.rows, epoch.stats.elements) == (100, 10)
        assert epoch.stats.elapsed_s > 0 and epoch.fingerprint == cj.range(100).batch(10).fingerprint
        assert next(epoch, None) is None


def test_progress_shows_the_epoch():
    pytest.importorskip("tqdm")
    shown = io.StringIO()
    assert len(list(cj.range(100).batch(10).progress(file=shown))) == 10
    assert "epoch 0: 100%" in shown.getvalue() and "10/10" in shown.getvalue()


def test_a_closed_iterator_is_over():
    epoch = iter(cj.range(100).batch(10))
    next(epoch)
    epoch.close()
    epoch.close()
    with pytest.raises(cj.Cancelled, match="epoch 0 was closed after 1 elements"):
        next(epoch)


# ---- one definition, one fingerprint -------------------------------------------------------------------------------


def everything():
    return (
        cj.range(0, 1000, 1)
        .map(id="id", x=fn.ln(col("id") + 1), y=col("id") % 10 < 5)
        .autocache("first")
        .with_columns(z="x * 2")
        .filter(col("y") & (col("id") >= 0))
        .select("id", "z")
        .autocache()
        .shuffle(100, seed=7)
        .repeat(2)
        .skip(3)
        .take(500)
        .batch(16, drop_remainder=True)
        .prefetch(2)
        .with_options(name="all", seed=3, deterministic=True)
    )


def test_yaml_and_back():
    text = everything().to_yaml()
    again = cj.from_yaml(text)
    assert again.to_yaml() == text and again.fingerprint == everything().fingerprint
    assert len(everything().fingerprint) == 32


def test_the_binary_finds_the_same_fingerprint(caju, tmp_path):
    file = tmp_path / "pipeline.yaml"
    file.write_text(everything().to_yaml())
    assert everything().fingerprint in caju("check", file).stdout
    report = tmp_path / "report.json"
    caju("run", file, "--report", report, "--quiet")
    assert json.loads(report.read_text())["fingerprint"] == everything().fingerprint
    assert cj.read_yaml(file).fingerprint == everything().fingerprint


def test_the_packages_command_is_the_binarys(caju, tmp_path):
    def package(*args):
        return subprocess.run([sys.executable, "-m", "caju", *map(str, args)], capture_output=True, text=True, timeout=120,
                              check=False)

    assert package("--version").stdout == caju("--version").stdout
    wrong = package("check", tmp_path / "nothing.yaml")
    assert wrong.returncode == 2 and "no such pipeline file" in wrong.stderr


def test_explain_shows_stages_columns_and_hints():
    text = everything().explain()
    for part in ("fingerprint", "0  map", "-> id: int64, x: float64, y: bool", "hint 'first'", "hint 'hint-1'"):
        assert part in text
    assert list(everything().schema.items()) == [("id", "int64"), ("z", "float64")]
    assert everything().schema.arrow().names == ["id", "z"]


@pytest.mark.parametrize("build,length", [
    (lambda: cj.range(10), 10),
    (lambda: cj.range(10, 0, -3), 4),
    (lambda: cj.range(10).batch(3), 4),
    (lambda: cj.range(10).batch(3, drop_remainder=True), 3),
    (lambda: cj.range(10).batch(3).unbatch(), 10),
    (lambda: cj.range(10).repeat(3).skip(4).take(100).shuffle(5), 26),
    (lambda: cj.range(10).repeat().take(25), 25),
    (lambda: cj.range(10).repeat().batch(4).take(3), 3),
    (lambda: cj.from_numpy({"a": np.arange(7)}).map(b="a"), 7),
    (lambda: cj.range(3).concatenate(cj.range(4)), 7),
    (lambda: cj.range(10).padded_batch(4), 3),
    # Without a promised order the remainders of repetitions share batches.
    (lambda: cj.range(10).batch(4).repeat(3), 8),
    (lambda: cj.range(10).batch(4, drop_remainder=True).repeat(3), 7),
    (lambda: cj.range(10).batch(4).repeat(3).with_options(deterministic=True), 9),
    (lambda: cj.range(10).batch(4, drop_remainder=True).repeat(3).with_options(deterministic=True), 6),
])  # fmt: skip
def test_length_is_what_arrives(build, length):
    assert len(build()) == length == len(list(build()))


@pytest.mark.parametrize("build,why", [
    (lambda: cj.range(10).filter("id > 2"), "filter"),
    (lambda: cj.range(10).repeat(), "endless"),
    (lambda: cj.range(10).with_options(on_error="skip"), "on_error"),
    (lambda: cj.read_parquet("/data/*.parquet"), "parquet"),
])  # fmt: skip
def test_no_length_where_nobody_knows(build, why):
    with pytest.raises(TypeError, match=why):
        len(build())
    assert build()  # a dataset is true all the same


# ---- expressions ---------------------------------------------------------------------------------------------------


def test_operators_make_sql():
    e = (col('a"b') + 1) * -col("x") / 2 - (3 - col("y")) % 4
    assert str(e) == '(((("a""b" + 1) * (- "x")) / 2) - ((3 - "y") % 4))'
    assert str(~(col("a") == "it's") | (col("b") != 5)) == "((NOT (\"a\" = 'it''s')) OR (\"b\" <> 5))"
    assert str(fn.random_flip(col("image"), key="crop")) == "random_flip(\"image\", key => 'crop')"
    assert str(col("d") < datetime.date(2020, 1, 2)) == "(\"d\" < CAST('2020-01-02' AS date))"
    assert str(col("x").is_in([1, np.int64(2)])) == '("x" IN (1, 2))'
    assert str(col("x").cast("double")) == 'CAST("x" AS double)'


def test_operators_compute():
    out = list(cj.range(4).map(a=col("id") * 2 + 1, b=(col("id") > 1) | ~col("id").is_null(), c=cj.lit("x")).batch(4))[0]
    assert out["a"].tolist() == [1, 3, 5, 7] and out["b"].all() and out["c"].tolist() == ["x"] * 4


def test_comparisons_with_none_name_is_null():
    dataset = cj.from_arrow(pa.table({"x": [1, None, 3]}))
    for make in (lambda: col("x") == None, lambda: None != col("x"), lambda: col("x") < cj.lit(None)):  # noqa: E711
        with pytest.raises(cj.InvalidPipeline, match=r"col\('x'\)\.is_null\(\) for == None, and col\('x'\)\.is_not_null\(\)"):
            dataset.filter(make())
    with pytest.raises(cj.InvalidPipeline, match=r"finds no None.*is_null\(\)"):
        dataset.filter(col("x").is_in([1, None]))
    assert len(list(dataset.filter(col("x").is_null()))) == 1 and len(list(dataset.filter(col("x").is_not_null()))) == 2


def test_whole_numbers_of_numpy_are_whole_numbers():
    three = np.int64(3)
    assert cj.range(three).fingerprint == cj.range(3).fingerprint and len(cj.range(np.uint8(1), three)) == 2
    dataset = cj.range(20).shuffle(np.int32(5)).repeat(np.int16(2)).skip(np.int64(1)).take(np.uint64(30)).batch(three)
    assert dataset.to_dict() == cj.range(20).shuffle(5).repeat(2).skip(1).take(30).batch(3).to_dict()
    for bad in (3.0, "3", None):
        with pytest.raises(cj.InvalidPipeline, match="range takes one to three integers"):
            cj.range(bad)


def test_expressions_have_no_truth():
    with pytest.raises(TypeError, match="use & | ~"):
        bool(col("x") > 1)
    with pytest.raises(cj.InvalidPipeline, match="is not an expression"):
        cj.range(1).map(x=[1])


# ---- clusters ------------------------------------------------------------------------------------------------------


def test_a_local_cluster():
    with cj.LocalCluster(workers=2) as cluster:
        assert len(cluster.workers) == 2
        assert sorted(ids(cj.range(100).batch(7).distribute(cluster))) == list(range(100))
        cluster.add_worker()
        assert len(cluster.workers) == 3
        off = cj.range(10).distribute(cluster, processing_mode="off")
        assert sorted(ids(off)) == sorted(list(range(10)) * 3)
        # The two workers of the beginning have a shard each.
        for mode in ("data", "file_or_data"):
            assert sorted(ids(cj.range(10).distribute(cluster, processing_mode=mode))) == list(range(10))
        ordered = cj.range(10).shard("HINT", "HINT").with_options(deterministic=True)
        assert ids(ordered.distribute(cluster, processing_mode="hint")) == list(range(10))
        with pytest.raises(cj.NotFound, match="unshardable source"):
            ids(cj.range(10).distribute(cluster, processing_mode="file"))
        with pytest.raises(TypeError, match="depends on the workers"):
            len(cj.range(10).distribute(cluster, processing_mode="data"))
        with pytest.raises(TypeError, match="HINT"):
            len(ordered)
    cluster.stop()
    with pytest.raises(cj.Unavailable):
        ids(cj.range(3).distribute(cluster, connect_timeout=0.2))


def test_a_cluster_that_stops_ends_its_readers():
    with cj.LocalCluster() as cluster:
        epoch = iter(cj.range(1000).batch(2).distribute(cluster))
        next(epoch)
    with pytest.raises(cj.Cancelled, match="was stopped"):
        next(epoch)


def test_readers_of_a_job_share_its_rows():
    with cj.LocalCluster(workers=2) as cluster:
        readers = [iter(cj.range(1000).batch(10).distribute(cluster, job_name="shared")) for _ in range(2)]
        # First come, first served: the second one may have all of them already.
        one = next(readers[0], {"id": np.array([], np.int64)})
        seen = one["id"].tolist()
        for r in readers:
            for batch in r:
                seen += batch["id"].tolist()
        assert sorted(seen) == list(range(1000))


def test_dispatcher_and_worker_of_this_process():
    with cj.start_dispatcher() as dispatcher, cj.start_worker(dispatcher, tags=["t"]) as worker:
        assert worker.address and dispatcher.address
        assert ids(cj.range(5).distribute(f"caju://{dispatcher.address}", job_name="j", epochs=2)) == [0, 1, 2, 3, 4]
        assert worker.drain(10)


def test_the_same_dataset_on_servers(cluster):
    servers = cluster(workers=2)
    dataset = cj.range(1000).with_columns(x="id * 2").batch(64)
    remote = dataset.distribute(f"caju://{servers.dispatcher.address}", job_name="a", epochs=2)
    for _ in range(2):
        assert sorted(ids(remote)) == list(range(1000))
    assert sorted(ids(pickle.loads(pickle.dumps(dataset)))) == list(range(1000))


def test_registered_datasets(cluster):
    service = f"caju://{cluster(workers=1).dispatcher.address}"
    name = cj.range(10).batch(4).register(service, "ten")
    assert name == "ten"
    assert ids(cj.from_dataset_id(service, "ten")) == list(range(10))
    with pytest.raises(cj.NotFound, match="eleven"):
        ids(cj.from_dataset_id(service, "eleven"))


# ---- errors --------------------------------------------------------------------------------------------------------


NEVER_CALLED = "h:1"


@pytest.mark.parametrize("build", [
    lambda **job: cj.range(3).distribute(NEVER_CALLED, **job),
    lambda **job: cj.from_dataset_id(NEVER_CALLED, "ten", **job),
])  # fmt: skip
def test_arg_01_and_02_a_job_name_is_text_that_is_not_empty(build):
    with pytest.raises(cj.InvalidPipeline, match="job_name.*must not be empty"):
        build(job_name="")
    for wrong in (3, 1.5, ["x"], b"x"):
        with pytest.raises(cj.InvalidPipeline, match="job_name.*must be a string"):
            build(job_name=wrong)


@pytest.mark.parametrize("build", [
    lambda address: cj.range(3).distribute(address),
    lambda address: cj.from_dataset_id(address, "ten"),
    lambda address: cj.range(3).register(address),
    lambda address: cj.range(3).save("/tmp/never-written", service=address),
])  # fmt: skip
def test_arg_03_an_address_is_text_that_is_not_empty(build):
    with pytest.raises(cj.InvalidPipeline, match="must not be empty"):
        build("")
    with pytest.raises(cj.InvalidPipeline, match="must be a string"):
        build(1)


@pytest.mark.parametrize("build,kind,words", [
    (lambda: cj.range(3).batch(0), ValueError, "positive"),
    (lambda: cj.range(3).batch(2).filter("id > 1"), cj.InvalidPipeline, "above `batch`"),
    (lambda: cj.range(3).map(x="idd + 1").schema, cj.InvalidPipeline, "did you mean `id`"),
    (lambda: list(cj.range(3).filter("suffle(id)")), cj.InvalidPipeline, "suffle"),
    (lambda: list(cj.read_parquet("/nowhere/*.parquet")), FileNotFoundError, "/nowhere"),
    (lambda: cj.read_parquet("x", colums=["a"]), cj.InvalidPipeline, "colums"),
    (lambda: cj.from_yaml("source: { range: 1 }\nsteps: [ suffle: 2 ]"), cj.InvalidPipeline, "did you mean `shuffle`"),
    (lambda: cj.range(3).distribute(""), cj.InvalidPipeline, "must not be empty"),
    (lambda: cj.range(3).distribute(1), ValueError, "must be a string"),
    (lambda: cj.range(3).distribute("h:1", job_name=""), ValueError, "must not be empty"),
    (lambda: cj.range(3).distribute("h:1", job_name=3), ValueError, "must be a string"),
    (lambda: cj.range(3).distribute("h:1", processing_mode="of"), ValueError, "'of' is not one of dynamic, off"),
    (lambda: cj.range(3).distribute("h:1", num_consumers=2), ValueError, "needs consumer_index="),
    (lambda: cj.range(3).distribute("h:1", num_consumers=2, consumer_index=1, uneven="pad"), ValueError, "needs job_name="),
    (lambda: cj.range(3).distribute("h:1", num_consumers=2, consumer_index=2), ValueError, "not one of the 2 consumers"),
    (lambda: cj.range(3).distribute("h:1", num_consumers=0), ValueError, "from 1 to 65536"),
    (lambda: cj.range(3).distribute("h:1", num_consumers=2, uneven="dorp"), ValueError, "not one of drop, pad"),
    (lambda: cj.range(3).distribute("h:1", consumer_index=0), ValueError, "belong to num_consumers"),
    (lambda: cj.range(3).distribute("h:1", uneven="drop"), ValueError, "neither torch.distributed nor jax.distributed is"),
    (lambda: cj.range(3).distribute("h:1", num_consumers=2, balance="tokesn"), ValueError, "not one of none, bucket, tokens"),
    (lambda: cj.range(3).distribute("h:1", balance="bucket"), ValueError, "belong to num_consumers"),
    (lambda: cj.range(3).batch(2).map(lambda row: row), cj.InvalidPipeline, "above `batch`"),
    (lambda: list(cj.range(3).distribute("127.0.0.1:1", connect_timeout=0.2)), ConnectionError, "127.0.0.1:1"),
    (lambda: cj.from_numpy({"a": np.arange(3), "b": np.arange(2)}), cj.InvalidPipeline, "one length"),
    (lambda: cj.from_numpy({"a": np.array([1j])}), cj.InvalidPipeline, "complex128"),
])  # fmt: skip
def test_errors_are_classes_with_the_way_out(build, kind, words):
    with pytest.raises(kind, match=words) as e:
        build()
    assert isinstance(e.value, cj.CajuError)


def test_bad_rows_name_themselves():
    with pytest.raises(cj.CajuError, match="map"):
        list(cj.range(10).map(x="1 / (id - 5)"))
    rest = ids(cj.range(10).with_columns(x="1 / (id - 5)").with_options(on_error="skip"))
    assert rest == [0, 1, 2, 3, 4, 6, 7, 8, 9]
