"""Arrays: which ones columns become, and what comes back of what was given."""

import datetime
import gc
import pathlib

import numpy as np
import pyarrow as pa
import pytest

import caju as cj
from caju import _caju


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


def in_memory_of_the_user(dataset):
    """Batches as `ds.torch()` takes them: large columns are copied to memory that the user makes."""
    made, iterator = [], iter(dataset)

    def allocate(shape, dtype):
        made.append((tuple(shape), dtype))
        array = np.empty(shape, dtype)
        return array, array.reshape(-1).view(np.uint8)

    while (batch := iterator._reader.next_copied(False, allocate)) is not None:
        yield batch
    assert made


@pytest.mark.parametrize("rows", [16_000, 40_000])
def test_batches_that_are_copied_are_those_that_are_not(rows):
    ids = np.arange(40_000)
    columns = {"id": ids, "half": ids.astype("f2"), "byte": ids.astype("u1"), "bool": ids % 2 == 0, "tensor": np.arange(480_000.0).reshape(-1, 3, 4),
               "text": np.array([f"row {i}" for i in ids])}
    # A shuffled batch has rows of many chunks. Nulls in one of them are nulls of the batch.
    dataset = lambda: cj.from_numpy(columns).with_columns(null="CASE WHEN id = 7 THEN NULL ELSE id END", nan="CASE WHEN id = 9 THEN NULL ELSE half END")
    shuffled = lambda: dataset().shuffle(3000).batch(rows).with_options(deterministic=True)
    pairs = list(zip(shuffled(), in_memory_of_the_user(shuffled()), strict=True))
    assert sum(len(ours["id"]) for _, ours in pairs) == 40_000
    for theirs, ours in pairs:
        assert list(theirs) == list(ours)
        for name, array in theirs.items():
            assert (type(ours[name]), ours[name].dtype, ours[name].shape) == (type(array), array.dtype, array.shape)
            np.testing.assert_array_equal(np.ma.filled(ours[name], -1) if name == "null" else ours[name],
                                          np.ma.filled(array, -1) if name == "null" else array)


def test_memory_of_another_size_is_refused():
    iterator = iter(cj.range(40_000).batch(40_000))
    with pytest.raises(SystemError, match="8 bytes of memory for \\[40000\\] values of int64, which have 320000"):
        iterator._reader.next_copied(False, lambda shape, dtype: (None, np.zeros(8, np.uint8)))
    constant = np.frombuffer(b"x" * 320_000, np.uint8)
    with pytest.raises(SystemError, match="not writeable"):
        iter(cj.range(40_000).batch(40_000))._reader.next_copied(False, lambda shape, dtype: (None, constant))


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
