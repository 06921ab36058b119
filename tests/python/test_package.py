"""The Python package as a person uses it: definitions, clusters in the process, arrays, errors, manners."""

import datetime
import doctest
import gc
import io
import json
import multiprocessing
import os
import pathlib
import pickle
import runpy
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pyarrow as pa
import pytest

import caju as cj
from caju import _caju, col, fn

ROOT = pathlib.Path(__file__).resolve().parents[2]
SLOW = "source: { range: 100 }\nsteps: [ { sleep: { per_row: 10s } }, { batch: 2 } ]"


def ids(dataset):
    """The ids of an epoch, in the order of arrival."""
    return [int(i) for element in dataset for i in np.atleast_1d(element["id"])]


def python(code, *, code_is=0):
    """Runs code in a process of its own; what it printed."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code_is, done.stderr
    return done.stdout


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


def test_an_iterator_tells_what_it_did():
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
    assert list(epoch) == []


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


# ---- arrays --------------------------------------------------------------------------------------------------------


def test_numbers_are_views_of_arrow_memory():
    [batch] = cj.range(1000).map(id="id", f="CAST(id AS float)").batch(1000)
    for array in batch.values():
        assert not array.flags.owndata and not array.flags.writeable and array.flags.c_contiguous
        assert isinstance(array.base, _caju.Buffer)
    kept = batch["id"]
    del batch
    gc.collect()
    assert kept.sum() == 499500


ARROW = {
    **{str(t): pa.array([1, 2, 3], t) for t in (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(),
                                                pa.uint32(), pa.uint64(), pa.float32(), pa.float64())},
    "half": pa.array(np.array([1, 2, 3], "f2")),
    "bool": pa.array([True, False, True]),
    "string": pa.array(["a", None, "ç"]),
    "large": pa.array(["a", "b", "c"], pa.large_string()),
    "binary": pa.array([b"a", b"", None]),
    "date": pa.array([datetime.date(2020, 1, 2), None, datetime.date(1969, 12, 31)]),
    "timestamp": pa.array([datetime.datetime(2020, 1, 2, 3), None, None], pa.timestamp("us")),
    "duration": pa.array([datetime.timedelta(seconds=5)] * 3, pa.duration("ms")),
    "nullable": pa.array([1, None, 3]),
    "float_null": pa.array([1.5, None, 3.0]),
    "list": pa.array([[1, 2], [], [3]]),
    "list_null": pa.array([[1, 2], None, [3]]),
    "words": pa.array([["a", "b"], ["c"], []]),
    "nested": pa.array([[[1], [2, 3]], [], [[4]]]),
    "fixed": pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int32(), 2)),
    "struct": pa.array([{"a": 1, "b": "x"}, {"a": 2, "b": "y"}, {"a": 3, "b": "z"}]),
}  # fmt: skip


@pytest.fixture(scope="module")
def typed():
    [batch] = cj.from_arrow(pa.table(ARROW)).batch(3)
    return batch


@pytest.mark.parametrize("name", [n for n, a in ARROW.items() if pa.types.is_integer(a.type) and not a.null_count
                                  or pa.types.is_floating(a.type) and not a.null_count])
def test_numbers_keep_their_type(typed, name):
    assert typed[name].tolist() == [1, 2, 3] and typed[name].dtype == ARROW[name].to_numpy(zero_copy_only=False).dtype


def test_other_types_have_the_documented_form(typed):
    assert typed["bool"].dtype == bool and typed["bool"].tolist() == [True, False, True]
    assert typed["string"].tolist() == ["a", None, "ç"] and typed["string"].dtype == object
    assert typed["large"].tolist() == ["a", "b", "c"]
    assert typed["binary"].tolist() == [b"a", b"", None]
    assert typed["date"].astype(str).tolist() == ["2020-01-02", "NaT", "1969-12-31"]
    assert typed["timestamp"].dtype == "M8[us]" and np.isnat(typed["timestamp"]).tolist() == [False, True, True]
    assert typed["duration"].tolist() == [datetime.timedelta(seconds=5)] * 3
    assert typed["nullable"].tolist() == [1, None, 3] and typed["nullable"].dtype == np.int64
    assert np.isnan(typed["float_null"]).tolist() == [False, True, False]
    assert [v.tolist() for v in typed["list"]] == [[1, 2], [], [3]]
    assert [v if v is None else v.tolist() for v in typed["list_null"]] == [[1, 2], None, [3]]
    assert [v.tolist() for v in typed["words"]] == [["a", "b"], ["c"], []]
    assert [[w.tolist() for w in v] for v in typed["nested"]] == [[[1], [2, 3]], [], [[4]]]
    assert typed["fixed"].shape == (3, 2) and typed["fixed"].tolist() == [[1, 2], [3, 4], [5, 6]]
    assert typed["struct"]["a"].tolist() == [1, 2, 3] and typed["struct"]["b"].tolist() == ["x", "y", "z"]


def test_rows_of_every_type():
    rows = list(cj.from_arrow(pa.table(ARROW)))
    assert rows[1]["nullable"] is None and rows[1]["string"] is None and rows[0]["list"].tolist() == [1, 2]
    assert rows[2]["struct"] == {"a": 3, "b": "z"} and rows[2]["fixed"].tolist() == [5, 6]


def test_slices_of_ragged_columns_are_the_right_rows():
    table = pa.table({"l": [[i] * (i % 5) for i in range(100)], "s": [str(i) for i in range(100)]})
    out = [(v.tolist(), s) for b in cj.from_arrow(table).batch(7) for v, s in zip(b["l"], b["s"])]
    assert out == [([i] * (i % 5), str(i)) for i in range(100)]


def test_padded_batches_are_whole_arrays():
    lists = cj.from_arrow(pa.table({"l": [[1], [2, 3], [4, 5, 6], []], "w": [["a"], ["b", "c"], [], []]}))
    one, two = lists.padded_batch(2)
    assert one["l"].tolist() == [[1, 0], [2, 3]] and two["l"].tolist() == [[4, 5, 6], [0, 0, 0]]
    assert one["w"].tolist() == [["a", ""], ["b", "c"]] and not one["l"].flags.owndata
    [fixed] = lists.select("l").padded_batch(4, {"l": 5}, {"l": -1})
    assert fixed["l"].shape == (4, 5) and fixed["l"][3].tolist() == [-1] * 5
    buckets = list(lists.bucket_by_length("CAST(coalesce(array_length(l), 0) AS bigint)", [2], [8, 8]))
    assert sorted(b["l"].shape for b in buckets) == [(2, 1), (2, 3)]


def test_registered_datasets_yield_what_their_definition_does():
    with cj.LocalCluster() as cluster:
        cj.range(3).register(cluster, "rows")
        assert [e["id"] for e in cj.from_dataset_id(cluster, "rows")] == [0, 1, 2]


@pytest.mark.parametrize("size", [3, 2])
def test_arrow_comes_back_as_it_went_in(size):
    table = pa.table({**ARROW, "d": pa.array(["x", "y", "x"]).dictionary_encode()})
    batches = list(cj.from_arrow(table).batch(size).arrow())
    back = pa.Table.from_batches(batches)
    for name in table.column_names:
        assert back[name].to_pylist() == table[name].to_pylist(), name
    for b in batches:
        b.validate(full=True)


def test_tensors_are_one_array():
    images = np.arange(2 * 3 * 4 * 3, dtype=np.uint8).reshape(2, 3, 4, 3)
    dataset = cj.from_numpy({"image": images, "label": np.array(["a", "b"])})
    assert dict(dataset.schema) == {"image": "uint8[3, 4, 3]", "label": "string"}
    [batch] = dataset.batch(2)
    assert batch["image"].shape == (2, 3, 4, 3) and (batch["image"] == images).all()
    assert next(iter(dataset))["image"].shape == (3, 4, 3)
    [arrow] = dataset.batch(2).arrow()
    assert arrow.schema.field("image").type == pa.fixed_shape_tensor(pa.uint8(), [3, 4, 3])


def test_images_decode_to_arrays(data):
    dataset = (
        cj.read_images(str(data / "images/files/**/*.jpg"))
        .map(image="random_crop(decode_image(image), 32, 48)", label="label")
        .batch(8)
    )
    assert dataset.schema["image"] == "uint8[32, 48, 3]"
    for batch in dataset:
        assert batch["image"].shape[1:] == (32, 48, 3) and not batch["image"].flags.owndata


def test_images_of_any_size_are_views(data):
    dataset = cj.read_parquet(data / "images/parquet/*.parquet").map(image="decode_image(image)").batch(4)
    for batch in dataset:
        assert all(i.ndim == 3 and i.shape[2] == 3 and i.dtype == np.uint8 for i in batch["image"])


def test_files_are_read_by_relative_paths_too(data, monkeypatch):
    monkeypatch.chdir(data)
    assert sum(len(b["I1"]) for b in cj.read_parquet("table/parquet/*.parquet").select("I1").batch(64)) == 4000
    assert len(list(cj.read_csv(pathlib.Path("table/csv/*.csv")).select(["label"]))) == 4000


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


# ---- manners -------------------------------------------------------------------------------------------------------


def test_ctrl_c_stops_at_once():
    # A run in the background of a shell ignores the signal from the start.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        timer = threading.Timer(0.7, lambda: os.kill(os.getpid(), signal.SIGINT))
        dataset, start = cj.from_yaml(SLOW), time.monotonic()
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            list(dataset)
        assert time.monotonic() - start < 5
    finally:
        signal.signal(signal.SIGINT, before)


def test_others_run_while_a_loop_waits():
    ticks, over = [0], threading.Event()

    def tick():
        while not over.wait(0.01):
            ticks[0] += 1

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        list(cj.from_yaml("source: { range: 4 }\nsteps: [ { sleep: { per_row: 200ms } } ]"))
    finally:
        over.set()
        thread.join()
    assert ticks[0] > 20


def test_nothing_is_left_behind():
    assert python("""
import gc, os, numpy, caju
def state():
    names = sorted(open(f"/proc/self/task/{t}/comm").read().strip() for t in os.listdir("/proc/self/task"))
    sockets = sum(os.readlink(f"/proc/self/fd/{f}").startswith("socket") for f in os.listdir("/proc/self/fd")
                  if os.path.lexists(f"/proc/self/fd/{f}"))
    return [n for n in names if n.startswith("caju")], sockets
next(iter(caju.range(1)))          # what is there once for the process: one pair of sockets for signals
gc.collect()
before = state()
assert not before[0]
dataset = caju.range(1000).batch(10)
for _ in dataset: pass
assert state()[0], "threads while the dataset lives"
del dataset, _
with caju.LocalCluster(2) as cluster:
    epoch = iter(caju.range(1000).distribute(cluster))
    next(epoch)
del cluster, epoch
gc.collect()
print(state() == before, caju._caju.runtime_alive())
""").split() == ["True", "False"]


def test_the_end_of_the_process_needs_no_help():
    start = time.monotonic()
    out = python("import caju\nepoch = iter(caju.range(10**7).batch(2))\nnext(epoch)\ncluster = caju.LocalCluster()\nprint('end')")
    assert out == "end\n" and time.monotonic() - start < 30


def child(queue, dataset):
    try:
        queue.put(ids(dataset))
    except cj.CajuError as e:
        queue.put((type(e).__name__, str(e)))


def in_child(method, dataset):
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    process = context.Process(target=child, args=(queue, dataset))
    process.start()
    answer = queue.get(timeout=60)
    process.join(60)
    assert process.exitcode == 0
    return answer


def test_a_fork_while_threads_run_is_explained():
    dataset = cj.range(10).batch(2)
    list(dataset)
    kind, message = in_child("fork", dataset)
    assert kind == "FailedPrecondition" and "spawn" in message
    assert in_child("spawn", dataset) == list(range(10))
    assert ids(dataset) == list(range(10))                   # the parent goes on


def test_a_fork_before_anything_runs_is_fine():
    assert python("""
import os, caju
dataset = caju.range(10).batch(5)
dataset.schema
pid = os.fork()
total = sum(int(b["id"].sum()) for b in dataset)
if pid == 0: os._exit(0 if total == 45 else 1)
print(total, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
""") == "45 0\n"


def test_importing_is_quick_and_imports_little():
    out = python("""
import sys, time
start = time.perf_counter()
import caju
took = time.perf_counter() - start
heavy = {"torch", "jax", "pyarrow", "numpy"} & set(sys.modules)
print(took, sorted(heavy))
""")
    took, heavy = out.split(" ", 1)
    assert heavy.strip() == "[]"
    assert float(took) < 1.0                                 # 0.1 s where nothing else runs; see benches


@pytest.mark.parametrize("example,arguments,good", [
    ("tabular", ["--rows", "3000", "--epochs", "2"], lambda losses: losses[1] < losses[0] < 0.7),
    ("text_bucketed", ["--rows", "400"], lambda shares: shares[1] < shares[0] * 0.7),
    ("hyperparameter_sweep", ["--rows", "600"], lambda times: all(t < times[0][0] / 2 for t in times[1] + times[2])),
    ("hyperparameter_sweep", ["--rows", "600", "--together"], lambda times: [len(t) for t in times] == [2, 2, 2]),
])  # fmt: skip
def test_examples_run(example, arguments, good, caju):
    assert good(runpy.run_path(str(ROOT / f"examples/{example}.py"))["main"](arguments))


def test_doctests():
    import caju._expr

    for module in (cj, caju._expr):
        assert doctest.testmod(module).failed == 0


def test_types_are_strict():
    done = subprocess.run([sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), "--cache-dir",
                           str(ROOT / "target/mypy")], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
