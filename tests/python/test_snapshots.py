"""Snapshots as foreign programs see them: their parts are files that pyarrow and DuckDB read as they are."""

import io
import json
import math

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from foreign import column, read_flight
from PIL import Image
from rows_checksum import rows_checksum

ENCODINGS = ["arrow/none", "arrow/lz4", "arrow/zstd", "parquet/none", "parquet/snappy", "parquet/lz4", "parquet/zstd"]
ROWS = 90
SHAPE = [6, 8, 3]


def png(seed):
    out = io.BytesIO()
    px = np.random.default_rng(seed).integers(0, 255, (12, 16, 3), np.uint8)
    Image.fromarray(px).save(out, "PNG")
    return out.getvalue()


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A Parquet file of three row groups with nearly every kind of column, and a picture in each row."""
    every = lambda n, f: [f(i) if i % n else None for i in range(ROWS)]
    columns = {
        "id": pa.array(range(ROWS), pa.int64()),
        "name": pa.array(every(4, lambda i: "cajú " * (i % 3)), pa.string()),
        "tags": pa.array(every(5, lambda i: [None if k == 1 else f"{i}-{k}" for k in range(i % 4)]), pa.list_(pa.string())),
        "boxes": pa.array([[i / 7, -i, math.inf] for i in range(ROWS)], pa.list_(pa.float32())),
        "x": pa.array([math.nan if i % 6 == 0 else i / 3 for i in range(ROWS)], pa.float64()),
        "raw": pa.array(every(7, lambda i: bytes([i]) * (i % 5)), pa.binary()),
        "ok": pa.array(every(3, lambda i: i % 2 == 0), pa.bool_()),
        "pair": pa.array(every(8, lambda i: {"a": i, "b": f"b{i}"}), pa.struct([("a", pa.int32()), ("b", pa.string())])),
        "kind": pa.array([["red", "green", None][i % 3] for i in range(ROWS)], pa.string()).dictionary_encode(),
        "png": pa.array([png(i) for i in range(ROWS)], pa.binary()),
    }
    file = tmp_path_factory.mktemp("table") / "rows.parquet"
    pq.write_table(pa.table(columns), file, row_group_size=ROWS // 3)
    return file


def stored(caju, folder, table, encoding):
    """Stores the table's rows with a tensor in each; the report of the epoch that read them back, and the parts."""
    definition = {
        "source": {"parquet": {"path": str(table), "split": "1KiB"}},
        "steps": [{"with_columns": {"png": f"resize(decode_image(png), {SHAPE[0]}, {SHAPE[1]})"}}, "autocache"],
    }
    args = ["--cache", folder / "cache", "--policy", "full", "--encoding", encoding, "--epochs", "2"]
    report = caju.report("run", definition, folder, *args)
    assert [e["splits"] for e in report["epochs"]] == [{"compute": 0, "put": 3, "get": 0}, {"compute": 0, "put": 0, "get": 3}]
    manifest = max((folder / "cache/v1").glob("*/manifest-*.json"))
    parts = json.loads(manifest.read_text())["parts"]
    files = sorted(folder / "cache/v1" / p["path"] for p in parts)
    assert files == sorted((folder / "cache/v1").glob(f"*/parts/*.{encoding.split('/')[0]}"))
    assert sum(p["rows"] for p in parts) == ROWS
    return report, files


def read_part(file):
    if file.suffix == ".parquet":
        return pq.read_table(file)
    with pa.memory_map(str(file)) as source:
        return pa.ipc.open_file(source).read_all()


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_pyarrow_reads_parts_as_they_are(caju, tmp_path, table, encoding):
    report, files = stored(caju, tmp_path, table, encoding)
    parts = [read_part(f) for f in files]
    names = pq.read_schema(table).names
    for part in parts:
        assert sorted(part.schema.names) == sorted(names)
        tensor = part.schema.field("png").type
        assert isinstance(tensor, pa.FixedShapeTensorType), tensor
        assert (tensor.shape, tensor.value_type) == (SHAPE, pa.uint8())
        assert part.column("png").combine_chunks().to_numpy_ndarray().shape == (len(part), *SHAPE)
        assert part.schema.field("name").type == pa.string() and part.schema.field("tags").type.value_type == pa.string()
        assert part.column("name").null_count > 0 and part.column("tags").null_count > 0
    batches = [b for part in parts for b in part.select(names).to_batches()]
    found = rows_checksum(batches)
    assert [e["rows_checksum"] for e in report["epochs"]] == [found, found]


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_folder_of_parts_is_a_data_set(caju, tmp_path, table, encoding):
    _, files = stored(caju, tmp_path, table, encoding)
    found = pyarrow.dataset.dataset(files[0].parent, format=encoding.split("/")[0]).to_table()
    assert found.num_rows == ROWS
    assert sorted(found.column("id").to_pylist()) == sorted(i for f in files for i in read_part(f).column("id").to_pylist())


def plain(value):
    """A value as DuckDB and pyarrow both give it; NaN equals itself."""
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    if isinstance(value, (list, tuple, np.ndarray)):
        return [plain(v) for v in value]
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    return value.item() if isinstance(value, np.generic) else value


def rows_of(table):
    """By id; tensors as flat lists."""
    flat = [(f.name, c.combine_chunks()) for f, c in zip(table.schema, table.columns)]
    storage = {n: c.storage if isinstance(c, pa.ExtensionArray) else c for n, c in flat}
    rows = pa.table(storage).to_pylist()
    return sorted(({k: plain(v) for k, v in r.items()} for r in rows), key=lambda r: r["id"])


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_duckdb_reads_parts_as_they_are(caju, tmp_path, table, encoding):
    _, files = stored(caju, tmp_path, table, encoding)
    want = rows_of(pa.concat_tables([read_part(f) for f in files]))
    with duckdb.connect() as db:
        if encoding.startswith("parquet"):
            source = f"read_parquet('{files[0].parent}/*.parquet')"
        else:
            # DuckDB scans Arrow memory where it lies: the mapped files, tensors as the lists that they are kept in.
            tables = [read_part(f) for f in files]
            stripped = [pa.table({n: storage(t.column(n)) for n in t.schema.names}) for t in tables]
            db.register("parts", pa.concat_tables(stripped))
            source = "parts"
        count, names, some = db.execute(f"SELECT count(*), count(name), sum(id) FROM {source}").fetchone()
        assert (count, names, some) == (ROWS, sum(r["name"] is not None for r in want), sum(range(ROWS)))
        found = db.execute(f"SELECT * FROM {source} ORDER BY id")
        columns = [c[0] for c in found.description]
        rows = [{n: plain(v) for n, v in zip(columns, row)} for row in found.fetchall()]
    assert [r["id"] for r in rows] == list(range(ROWS))
    for mine, theirs in zip(rows, want):
        assert mine == theirs


def storage(column_):
    column_ = column_.combine_chunks()
    return column_.storage if isinstance(column_, pa.ExtensionArray) else column_


def cached(cluster, folder, workers=1):
    """A cluster with a cache."""
    c = cluster(workers=0)
    c.dispatcher = c.start("dispatcher", "--heartbeat", "100ms", "--cache", folder)
    c.workers = [c.add_worker() for _ in range(workers)]
    return c


def read_as(c, folder, job, definition, policy="full"):
    """Epoch 0 by `caju read`, which says the job's policy; what became of its splits."""
    return c.report(definition, folder, "--job", job, "--policy", policy)["epochs"][0]["splits"]


def test_snp_12_a_snapshot_read_with_shuffling(cluster, tmp_path):
    c = cached(cluster, tmp_path / "cache", workers=2)
    definition = {
        "source": {"range": 5000},
        "steps": [{"with_columns": {"x": "id * 2"}}, "autocache", {"shuffle": {"buffer": 500, "seed": 123456}}, {"batch": 64}],
        "deterministic": True,
    }
    assert read_as(c, tmp_path, "first", definition)["put"] == 5
    assert read_as(c, tmp_path, "second", definition)["get"] == 5
    read = lambda job: column(read_flight(c.dispatcher.address, definition, job=job, epoch=1)[1], "x")
    first, second = read("first"), read("second")
    assert first == second, "one seed, one order, whoever reads"
    assert first[:5] != [0, 2, 4, 6, 8]
    assert sorted(first) == list(range(0, 10_000, 2))


def test_sto_09_values_are_in_order_computed_stored_and_read(cluster, tmp_path):
    c = cached(cluster, tmp_path / "cache", workers=2)
    definition = {
        "source": {"range": 10_000},
        "steps": [{"with_columns": {"text": "concat('value ', id)"}}, "autocache", {"batch": 100}],
        "deterministic": True,
    }
    want = [f"value {i}" for i in range(10_000)]
    values = lambda job, epoch: column(read_flight(c.dispatcher.address, definition, job=job, epoch=epoch)[1], "text")
    assert read_as(c, tmp_path, "computing", definition, "compute")["compute"] > 5
    assert values("computing", 1) == want
    splits = read_as(c, tmp_path, "storing", definition)
    assert splits["put"] > 5 and splits["get"] == 0
    assert values("storing", 1) == want, "from the snapshot"
    again = cached(cluster, tmp_path / "cache")
    assert read_as(again, tmp_path, "later", definition)["get"] == splits["put"]
    assert column(read_flight(again.dispatcher.address, definition, job="later", epoch=1)[1], "text") == want
