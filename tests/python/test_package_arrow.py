"""Arrow's PyCapsule interface, both ways: other libraries read datasets, and datasets read theirs, without pyarrow."""

import gc
import pickle
import subprocess
import sys
import threading

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import caju as cj

PATIENCE_S = 60


def squares(count=1000):
    return cj.range(count).map(id="id", square="id * id", name="concat('n', id)")


def expected(count=1000):
    return [{"id": i, "square": i * i, "name": f"n{i}"} for i in range(count)]


def by_id(rows):
    return sorted(rows, key=lambda row: row["id"])


def test_what_is_below_a_null_is_null_whether_rows_are_computed_or_stored(tmp_path):
    """pyarrow writes values below null structs and lists. Rows that were stored as Parquet would have lost them."""
    x = pa.array([7, 1, None], pa.int64())
    st = pa.StructArray.from_arrays([x], ["x"], mask=pa.array([True, False, False]))
    items = pa.ListArray.from_arrays(pa.array([0, 2, 3, 4], pa.int32()), pa.array([5, 6, 7, 8]), mask=pa.array([True, False, False]))
    with pa.OSFile(str(tmp_path / "rows.arrow"), "wb") as file, pa.ipc.new_file(file, pa.schema([("st", st.type), ("l", items.type)])) as to:
        to.write_batch(pa.record_batch([st, items], ["st", "l"]))
    rows = cj.read_arrow(str(tmp_path / "rows.arrow")).autocache("h")
    kept = rows.filter("st.x is null and (l is null or l[1] > 6)").map(x="st.x", first="l[1]")
    with cj.LocalCluster(cache=tmp_path / "cache") as cluster:
        epochs = kept.distribute(cluster, job_name="j", policy="full", encoding="parquet/none")
        for _ in range(2):
            assert [row for row in epochs] == [{"x": None, "first": None}, {"x": None, "first": 8}]


# ---- other libraries read datasets ---------------------------------------------------------------------------------


def read_polars(ds):
    return pl.DataFrame(ds).to_dicts()


def read_pyarrow(ds):
    return pa.table(ds).to_pylist()


def read_pandas(ds):
    return pd.DataFrame.from_arrow(ds).to_dict("records")


def read_duckdb(ds):
    relation = duckdb.sql("SELECT id, square, name FROM ds WHERE id >= 0")
    return [dict(zip(("id", "square", "name"), row, strict=True)) for row in relation.fetchall()]


READERS = [read_polars, read_pyarrow, read_pandas, read_duckdb]


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("build", [lambda: squares(), lambda: squares().batch(64), lambda: squares().batch(64).arrow()],
                         ids=["rows", "batches", "view"])  # fmt: skip
def test_other_libraries_read_a_dataset(read, build):
    assert by_id(read(build())) == expected()


def test_a_query_of_duckdb_may_aggregate_a_dataset():
    ds = squares().batch(100)
    [row] = duckdb.sql("SELECT count(*), sum(square), max(name) FROM ds").fetchall()
    assert row == (1000, sum(i * i for i in range(1000)), "n999")


def test_nothing_of_pyarrow_is_imported():
    code = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "pyarrow":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
import caju, polars as pl, duckdb
ds = caju.range(10).map(x="id * 2").batch(4)
frame = pl.DataFrame(ds)
print(sorted(frame["x"].to_list()), duckdb.sql("SELECT sum(x) FROM ds").fetchall()[0][0])
for data in (frame, duckdb.sql("SELECT 3 AS x"), ds):
    print(sum(int(row["x"]) for row in caju.from_arrow(data)))
print(dict(caju.range(3).map(lambda row: {"y": 1}, schema=caju.range(3).map(y="id").schema).schema))
print("pyarrow" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "[0, 2, 4, 6, 8, 10, 12, 14, 16, 18] 90", "90", "3", "90", "{'y': 'int64'}", "False",
    ]  # fmt: skip


def test_each_reading_is_the_next_epoch_and_asking_for_the_columns_is_none():
    ds = cj.range(100).shuffle(100).batch(10)
    stream = pa.RecordBatchReader.from_stream(ds)
    assert stream.schema.names == ["id"]
    del stream                                                # released without a batch: no epoch was opened
    assert iter(ds).epoch == 0
    first, second = (pl.DataFrame(ds)["id"].to_list() for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(100)) and first != second
    assert iter(ds).epoch == 3


def test_a_stream_is_the_epoch_of_its_loop():
    def build():
        return cj.range(1000).shuffle(200, seed=3).map(id="id", z="normal()").batch(32).with_options(deterministic=True)

    looped = np.concatenate([b["z"] for b in build()])
    assert pl.DataFrame(build())["z"].to_list() == looped.tolist()


def test_the_consumer_reads_the_memory_of_caju():
    values = np.arange(4096, dtype="i8")
    ds = cj.from_numpy({"x": values})
    [rows] = ds._tables.values()
    batches = list(pa.RecordBatchReader.from_stream(ds))
    again = list(pa.RecordBatchReader.from_stream(ds))
    addresses = [[b.column("x").buffers()[1].address for b in epoch] for epoch in (batches, again)]
    assert addresses[0] == addresses[1], "two epochs of rows in memory share it"
    assert sum(b.num_rows for b in batches) == rows.num_rows == 4096


def test_memory_outlives_dataset_and_cluster():
    with cj.LocalCluster() as cluster:
        table = pa.table(squares().distribute(cluster))
    gc.collect()
    assert by_id(table.to_pylist()) == expected()
    reader = pa.RecordBatchReader.from_stream(squares())      # nobody else has the dataset
    gc.collect()
    assert by_id(reader.read_all().to_pylist()) == expected()


TYPES = pa.table({
    "b": pa.array([True, None, False]),
    "half": pa.array(np.array([1, 2, 3], "f2")),
    "s": pa.array(["a", None, "ç"]),
    "bin": pa.array([b"a", b"", None]),
    "day": pa.array([1, None, 3], pa.date32()),
    "t": pa.array([1, None, 3], pa.timestamp("us", "UTC")),
    "l": pa.array([[1, None], None, []]),
    "fixed": pa.array([[1, 2], [3, 4], None], pa.list_(pa.int32(), 2)),
    "struct": pa.array([{"a": 1, "b": ["x"]}, None, {"a": None, "b": []}]),
    "d": pa.array(["x", "y", "x"]).dictionary_encode(),
    "dec": pa.array([1, 2, None]).cast(pa.decimal128(30, 3)),
})  # fmt: skip


def test_types_pass_both_ways():
    assert pa.table(cj.from_arrow(TYPES)).to_pylist() == TYPES.to_pylist()
    assert pa.table(cj.from_arrow(TYPES).batch(2)).to_pylist() == TYPES.to_pylist()
    tensors = cj.from_numpy({"image": np.arange(24, dtype="u1").reshape(2, 3, 4)})
    column = pa.table(tensors)["image"]
    assert column.type == pa.fixed_shape_tensor(pa.uint8(), [3, 4])
    [batch] = cj.from_arrow(pa.table(tensors)).batch(2)
    assert batch["image"].tolist() == np.arange(24).reshape(2, 3, 4).tolist()


def test_a_requested_schema_is_cast_to():
    wanted = pa.schema([("id", pa.int16()), ("square", pa.float64()), ("name", pa.large_string())])
    table = pa.RecordBatchReader.from_stream(squares(100), schema=wanted).read_all()
    assert table.schema == wanted and by_id(table.to_pylist()) == expected(100)
    with pytest.raises(cj.InvalidPipeline, match=r"columns \[\"idd\"\].*dataset has \[\"id\"\]"):
        pa.RecordBatchReader.from_stream(cj.range(3), schema=pa.schema([("idd", pa.int64())]))
    with pytest.raises(cj.InvalidPipeline, match="column `id`: .* cannot be cast"):
        pa.RecordBatchReader.from_stream(cj.range(3), schema=pa.schema([("id", pa.struct([("a", pa.int64())]))]))
    with pytest.raises(pa.ArrowInvalid, match="300"):
        pa.RecordBatchReader.from_stream(cj.range(300, 301), schema=pa.schema([("id", pa.int8())])).read_all()


def test_an_error_of_the_epoch_is_one_of_the_consumer():
    bad = cj.range(10).map(x="1 / (id - 5)")
    for read in (pa.table, pl.DataFrame):
        with pytest.raises(Exception, match="[dD]ivide by zero"):
            read(bad)
    stream = pa.RecordBatchReader.from_stream(bad)
    for _ in range(2):                                        # an epoch that failed has no end
        with pytest.raises(pa.ArrowInvalid, match="[dD]ivide by zero"):
            stream.read_all()
    with pytest.raises(cj.NotFound, match="no_such"):      # known before the stream: the package's own class
        pl.DataFrame(cj.read_csv("/nowhere/no_such.csv").filter("no_such > 1"))


def test_a_stream_whose_cluster_stops_is_an_error():
    slow = "source: { range: 10000000 }\nsteps: [ { sleep: { per_row: 10us } } ]"
    with cj.LocalCluster() as cluster:
        stream = pa.RecordBatchReader.from_stream(cj.from_yaml(slow).distribute(cluster))
        assert stream.read_next_batch().num_rows > 0
    with pytest.raises(pa.ArrowInvalid, match="was closed while it was read"):
        stream.read_all()


def test_the_columns_of_a_dataset_on_servers_come_from_there(cluster):
    address = cluster(workers=1).dispatcher.address
    ds = squares(100).distribute(address, job_name="arrow")
    assert by_id(pl.DataFrame(ds).to_dicts()) == expected(100)
    squares(50).register(address, "squares")
    known = cj.from_dataset_id(address, "squares")
    assert by_id(duckdb.sql("FROM known").pl().to_dicts()) == expected(50)


def test_ctrl_c_ends_a_stream():
    code = """
import signal, threading, time
import caju, pyarrow as pa
signal.signal(signal.SIGINT, signal.default_int_handler)      # ignored in what a shell runs in the background
slow = caju.from_yaml("source: { range: 100 }\\nsteps: [ { sleep: { per_row: 10s } } ]")
threading.Timer(1.0, lambda: signal.raise_signal(signal.SIGINT)).start()
start = time.monotonic()
try:
    try:
        pa.table(slow)
    except pa.ArrowInvalid as e:
        print("interrupted" in str(e))
        threading.Event().wait(20)                            # what the consumer raised, Ctrl-C follows
except KeyboardInterrupt:
    print(time.monotonic() - start < 8)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split() in (["True"], ["True", "True"]), done.stdout + done.stderr


def test_a_stream_may_be_read_by_another_thread():
    reader, rows = pa.RecordBatchReader.from_stream(squares()), []
    thread = threading.Thread(target=lambda: rows.extend(reader.read_all().to_pylist()))
    thread.start()
    thread.join(PATIENCE_S)
    assert by_id(rows) == expected()


# ---- schemas -------------------------------------------------------------------------------------------------------


def test_schemas_pass_both_ways():
    schema = squares().schema
    assert pa.schema(schema) == schema.arrow()
    assert {f.name: f.type for f in pa.schema(schema)} == {"id": pa.int64(), "square": pa.int64(), "name": pa.string()}

    class Foreign:
        def __arrow_c_schema__(self):
            return pa.schema([("y", pa.float32())]).__arrow_c_schema__()

    given = cj.range(3).map(lambda row: {"y": row["id"]}, schema=Foreign())
    assert dict(given.schema) == {"y": "float32"}
    assert pa.table(given).schema == pa.schema([("y", pa.float32())])


# ---- datasets read other libraries ---------------------------------------------------------------------------------

FRAME = pl.DataFrame({"id": range(1000), "square": [i * i for i in range(1000)], "name": [f"n{i}" for i in range(1000)]})


@pytest.mark.parametrize("data", [
    lambda: FRAME,
    lambda: pl.concat([FRAME[:3], FRAME[3:700], FRAME[700:]], rechunk=False),
    lambda: FRAME.to_pandas(),
    lambda: FRAME.to_arrow(),
    lambda: pa.RecordBatchReader.from_stream(FRAME),
    lambda: FRAME.to_arrow(compat_level=pl.CompatLevel.oldest()).combine_chunks().to_batches()[0],
    lambda: duckdb.sql("SELECT range AS id, range * range AS square, 'n' || range AS name FROM range(1000)"),
    lambda: squares(),
    lambda: squares().batch(7).arrow(),
], ids=["polars", "chunks", "pandas", "table", "reader", "batch", "duckdb", "dataset", "view"])  # fmt: skip
def test_a_dataset_reads_other_libraries(data):
    ds = cj.from_arrow(data())
    assert len(ds) == 1000
    rows = [{"id": int(r["id"]), "square": int(r["square"]), "name": r["name"]} for r in ds]
    assert by_id(rows) == expected()


def test_an_object_with_an_array_alone_is_read():
    class Batch:
        def __arrow_c_array__(self, requested_schema=None):
            return pa.record_batch({"id": [1, 2, 3]}).__arrow_c_array__(requested_schema)

    assert [int(r["id"]) for r in cj.from_arrow(Batch())] == [1, 2, 3]


def test_the_fingerprint_is_of_the_rows_and_not_of_their_batches():
    whole = cj.from_arrow(FRAME)
    parts = cj.from_arrow(pl.concat([FRAME[:1], FRAME[1:999], FRAME[999:]], rechunk=False))
    assert whole.fingerprint == parts.fingerprint != cj.from_arrow(FRAME[:999]).fingerprint
    table = FRAME.to_arrow()
    noted = table.replace_schema_metadata({"writer": "another version"})
    assert cj.from_arrow(noted).fingerprint == cj.from_arrow(table).fingerprint


def test_what_happens_to_the_frame_later_changes_nothing():
    values = np.arange(10)
    ds = cj.from_arrow(pa.table({"x": values}))
    values[:] = 7
    assert sorted(int(r["x"]) for r in ds) == list(range(10))


def test_no_rows_are_rows_with_columns():
    ds = cj.from_arrow(FRAME[:0])
    assert len(ds) == 0 and list(ds) == [] and ds.schema.names == ["id", "square", "name"]
    assert pl.DataFrame(ds).columns == ["id", "square", "name"]


def test_a_dataset_reads_the_memory_of_the_data_if_it_may():
    values = np.arange(50_000, dtype=np.float64)
    table = pa.table({"x": values, "id": np.arange(50_000)})
    shared = cj.from_arrow(table, copy=False)
    assert shared.fingerprint == cj.from_arrow(table).fingerprint and len(shared) == 50_000
    with cj.LocalCluster(workers=1) as cluster:
        served = shared.distribute(cluster, job_name="shared")
        assert sorted(pl.DataFrame(served)["x"]) == list(range(50_000))
    # What the documentation warns of shows that there is no copy.
    values[7] = -1.0
    assert pl.DataFrame(shared).filter(pl.col("id") == 7)["x"].to_list() == [-1.0]
    copied = cj.from_arrow(table)
    values[7] = -2.0
    assert pl.DataFrame(copied).filter(pl.col("id") == 7)["x"].to_list() == [-1.0]
    with pytest.raises(cj.FailedPrecondition, match="were changed after a dataset was made of them without a copy"):
        pickle.dumps(shared)


@pytest.mark.parametrize("copy", [True, False])
def test_rows_of_any_library_are_equal_with_a_copy_and_without(copy):
    frame = pl.DataFrame({"id": range(10_000), "word": [f"w{i % 7}" if i % 11 else None for i in range(10_000)]})
    for data in (frame, frame.to_arrow(), frame.to_pandas(), duckdb.sql("SELECT * FROM frame")):
        ds = cj.from_arrow(data, copy=copy)
        assert pl.DataFrame(ds).sort("id").equals(frame)


@pytest.mark.parametrize("data", [{"x": [1, 2]}, [1, 2], 3, np.arange(3)])
def test_what_has_no_arrow_data_is_reported_the_way(data):
    with pytest.raises(cj.InvalidPipeline, match="__arrow_c_stream__.*from_numpy"):
        cj.from_arrow(data)


def test_columns_of_rows_are_what_is_read():
    with pytest.raises(cj.InvalidPipeline, match="schema|columns"):
        cj.from_arrow(pa.chunked_array([[1, 2]]))
    with pytest.raises(cj.InvalidPipeline, match="not columns of rows"):
        cj.from_arrow(pa.array([1, 2]))

    class Raises:
        def __arrow_c_stream__(self, requested_schema=None):
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        cj.from_arrow(Raises())

    def fails():
        yield pa.record_batch({"x": [1]})
        raise ValueError("in the middle")

    with pytest.raises(cj.InvalidPipeline, match="in the middle"):
        cj.from_arrow(pa.RecordBatchReader.from_batches(pa.schema([("x", pa.int64())]), fails()))


@pytest.mark.parametrize("encoding", [None, "arrow/none", "parquet/zstd"])
def test_an_image_with_null_samples_is_an_error_of_its_row(tmp_path, encoding):
    """What lies in the place of a null differs: Parquet does not store it, and Arrow does."""
    samples = pa.array(np.arange(48, dtype=np.uint8), mask=np.arange(48) == 17)
    kind = pa.fixed_shape_tensor(pa.uint8(), [2, 2, 3])
    images = pa.ExtensionArray.from_storage(kind, pa.FixedSizeListArray.from_arrays(samples, 12))
    table = pa.table({"id": pa.array(range(4), pa.int64()), "image": images})
    with pa.ipc.new_file(tmp_path / "x.arrow", table.schema) as file:
        file.write_table(table)
    data = cj.read_arrow(str(tmp_path / "x.arrow"))
    if encoding is not None:
        data.save(str(tmp_path / "save"), encoding=encoding)
        data = cj.load(str(tmp_path / "save"))
    data = data.with_columns(x="normalize(image)", y="image_height(image)")
    for _ in range(2):
        with pytest.raises(cj.DataLoss, match="1 of the 12 samples of an image are null"):
            list(data)
    kept = list(data.with_options(on_error="skip"))
    assert sorted(int(row["id"]) for row in kept) == [0, 2, 3]
    assert all(int(row["y"]) == 2 for row in kept)
