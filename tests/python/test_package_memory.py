"""Rows in memory: held by the process, named by their content, and what happens to many of them."""

import gc
import pickle
import subprocess
import sys
import time

import numpy as np
import pyarrow as pa
import pytest

import caju as cj
from caju import _caju

BIG = (1 << 20) + 3                                           # int64: more than may travel in a definition


def big(at=0):
    return cj.from_numpy({"id": np.arange(at, at + BIG)})


def test_many_rows_are_read_here_without_travelling():
    dataset = big().batch(1 << 16)
    assert len(dataset._json()) < 2000 and len(dataset) == 17
    assert sum(int(b["id"].sum()) for b in dataset) == BIG * (BIG - 1) // 2
    with cj.LocalCluster(workers=2) as cluster:
        assert sum(len(b["id"]) for b in big().batch(1 << 16).distribute(cluster)) == BIG


def test_batches_are_views_of_what_is_held():
    held = big()
    [rows] = held._tables.values()
    [batch] = held.take(8192).batch(8192)
    assert rows.num_rows == BIG and batch["id"].tolist() == list(range(8192))


def test_the_name_is_the_content():
    a, b, c = cj.from_numpy({"x": np.arange(5)}), cj.from_numpy({"x": np.arange(5)}), cj.from_numpy({"x": np.arange(6)})
    assert a.fingerprint == b.fingerprint != c.fingerprint
    text = a.to_yaml()
    assert "ipc:" in text and "sha256" not in text            # a pipeline file stands for itself
    inline = cj.from_yaml(text)
    assert inline.fingerprint == a.fingerprint and len(inline) == 5
    assert [int(r["x"]) for r in inline] == list(range(5))
    assert cj.from_arrow(pa.table({"x": np.arange(5)})).fingerprint == cj.from_arrow(pa.table({"x": np.arange(5)})).fingerprint


def test_a_snapshot_of_held_rows_is_found_by_a_pipeline_file(tmp_path, caju):
    dataset = cj.from_numpy({"x": np.arange(1000)}).with_columns(y="x * 2").cache("done").batch(100)
    cj.configure(cache=tmp_path / "cache")
    try:
        assert sum(len(b["y"]) for b in dataset) == 1000
    finally:
        from caju import _cluster

        _cluster._settings.clear()
        _cluster._shared = None
    del dataset
    gc.collect()
    again = cj.from_numpy({"x": np.arange(1000)}).with_columns(y="x * 2").cache("done").batch(100)
    file = tmp_path / "p.yaml"
    file.write_text(again.to_yaml())
    text = caju("explain", file, "--cache", tmp_path / "cache").stdout
    assert "hit" in text.lower(), text


def test_what_happens_to_the_arrays_later_changes_nothing():
    x = np.zeros(10, "i8")
    dataset = cj.from_numpy({"x": x})
    x[:] = 7
    assert [int(r["x"]) for r in dataset] == [0] * 10


def test_rows_live_as_long_as_their_datasets():
    dataset = cj.from_numpy({"x": np.arange(3)})
    [name] = dataset._tables
    derived = dataset.concatenate(cj.from_numpy({"x": np.arange(3, 5)})).batch(5)
    del dataset
    gc.collect()
    [batch] = derived
    assert sorted(batch["x"].tolist()) == [0, 1, 2, 3, 4] and name in derived._tables
    lost = cj.from_numpy({"x": np.arange(77)})._json()
    gc.collect()
    with pytest.raises(cj.FailedPrecondition, match="held by another process"):
        _caju.bind(lost)


def test_datasets_travel_to_other_processes_with_their_rows(tmp_path):
    file = tmp_path / "dataset"
    zipped = cj.zip(cj.from_numpy({"a": np.arange(4)}), cj.from_numpy({"b": np.arange(4) * 2}))
    file.write_bytes(pickle.dumps(zipped))
    out = subprocess.run([sys.executable, "-c", f"""
import pickle
dataset = pickle.load(open({str(file)!r}, "rb"))
print([(int(r["a"]), int(r["b"])) for r in dataset], dataset.fingerprint)
"""], capture_output=True, text=True, timeout=120, check=True).stdout
    assert out.strip() == f"{[(i, 2 * i) for i in range(4)]} {zipped.fingerprint}"


def test_servers_get_few_rows_in_the_definition_and_refuse_many(cluster):
    service = f"caju://{cluster(workers=2).dispatcher.address}"
    few = cj.from_numpy({"id": np.arange(1000)}).batch(64)
    assert sorted(int(i) for b in few.distribute(service) for i in b["id"]) == list(range(1000))
    with pytest.raises(cj.FailedPrecondition, match=r"8 MiB of rows.*limit is 8 MiB.*read_parquet"):
        next(iter(big().batch(64).distribute(service)))
    with pytest.raises(cj.FailedPrecondition, match="LocalCluster"):
        big().to_yaml()


def test_handing_over_many_rows_takes_little_time():
    pixels = np.zeros((600, 224, 224, 3), "u1")              # 90 MB
    start = time.perf_counter()
    dataset = cj.from_numpy({"image": pixels, "label": np.arange(600)})
    assert dataset.schema["image"] == "uint8[224, 224, 3]" and len(dataset.batch(64)) == 10
    assert time.perf_counter() - start < 10                   # base64 and JSON in a debug build took a minute
    assert sum(len(b["label"]) for b in dataset.batch(64)) == 600


@pytest.mark.parametrize("bad", [b"", b"no stream", b"\xff\xff\xff\xff\x10\x00"])
def test_what_is_no_stream_is_refused(bad):
    if bad:
        with pytest.raises(cj.InvalidPipeline, match="Arrow IPC"):
            _caju.register_rows(bad)
    else:
        assert _caju.register_rows(bad).num_rows == 0


def test_nested_lists_and_ragged_arrays_come_in():
    ragged = np.empty(3, object)
    ragged[:] = [np.arange(1), np.arange(0), np.arange(2)]
    [batch] = cj.from_numpy({"r": ragged}).batch(3)
    assert [v.tolist() for v in batch["r"]] == [[0], [], [0, 1]]
