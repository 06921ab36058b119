"""Values of user functions: what a function gives is what the dataset holds, or an error that names row and column."""

import datetime as dt
import decimal
import os
import time

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import caju as cj


def column(dataset, name="x", size=4096):
    """A column of all rows, as Arrow has it."""
    batches = list(dataset.batch(size).arrow())
    return [v for b in batches for v in b.column(name).to_pylist()]


def halves(row):
    return {"x": row["id"] / 2 if row["id"] else 0}


# ---- numbers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", [
    lambda d: d.map(halves),
    lambda d: d.flat_map(lambda row: [halves(row)]),
    lambda d: d.map(halves, schema={"x": "int64"}),
])  # fmt: skip
def test_numbers_are_never_cut_off(stage):
    with pytest.raises(cj.InvalidPipeline) as e:
        list(stage(cj.range(4)).batch(4))
    text = str(e.value)
    assert "row 1" in text and "column `x`" in text and "float64" in text and "int64" in text and "0.5" in text
    assert '"float64"' in text and "float(...)" in text and "steps[0].python" in text


def test_batches_of_numbers_are_never_cut_off():
    def f(b):
        return {"x": b["id"] if b["id"][0] == 0 and len(b["id"]) <= 8 else b["id"] / 2}

    with pytest.raises(cj.InvalidPipeline, match=r"row 1\b.*column `x`(.|\n)*0\.5 has no place"):
        list(cj.range(100).map(f, batched=True).batch(4))


@pytest.mark.parametrize("schema,value,shown", [
    ("int64", 1.9, "1.9"), ("bool", 2, "2"), ("float32", 1e300, "1e300"), ("uint8", 256, "256"), ("uint64", -1, "-1"),
    ("float64", 2**53 + 1, "9007199254740993"), ("int64", 2**63, "9223372036854775808"), ("int64", float("nan"), "NaN"),
    ("int64", "5", '"5"'), ("string", 5, "5"), ("bytes", "a", '"a"'), ("timestamp", 5, "5"),
])  # fmt: skip
def test_what_a_type_cannot_hold_is_refused(schema, value, shown):
    dataset = cj.range(3).map(lambda row: {"x": value if row["id"] == 1 else None}, schema={"x": schema})
    with pytest.raises(cj.InvalidPipeline, match=r"row 1\b") as e:
        list(dataset.batch(3))
    assert f": {shown} has no place there" in str(e.value)


@pytest.mark.parametrize("schema,value,kept", [
    ("float64", 2, 2.0), ("int64", np.int32(7), 7), ("int64", np.float32(3.0), 3), ("float32", 0.1, np.float32(0.1)),
    ("bool", 1, True), ("uint64", 2**64 - 1, 2**64 - 1), ("float32", float("inf"), float("inf")),
    ("float64[2]", [1, 2], [1.0, 2.0]), ("list of float64", np.arange(2), [0.0, 1.0]), ("int64", np.array(5), 5),
])  # fmt: skip
def test_what_is_the_same_in_another_type_passes(schema, value, kept):
    assert column(cj.range(2).map(lambda row: {"x": value}, schema={"x": schema})) == [kept, kept]


def test_bad_values_can_be_skipped():
    dataset = cj.range(6).map(halves, schema={"x": "int64"}).with_options(on_error="skip")
    assert sorted(column(dataset)) == [0, 1, 2]


def test_integers_among_floats_are_exact_or_refused():
    assert column(cj.range(2).map(lambda r: {"x": 3 if r["id"] else 0.5})) == [0.5, 3.0]
    with pytest.raises(cj.InvalidPipeline, match=r"row 1\b.*(.|\n)*9007199254740993.*exactly"):
        list(cj.range(2).map(lambda r: {"x": 2**53 + 1 if r["id"] else 0.5}))


def test_numpys_numbers_do_not_wrap_around_among_each_other():
    def f(row):
        return {"x": np.uint64(2**63 + 1) if row["id"] == 0 else np.int64(-1)}

    with pytest.raises(cj.InvalidPipeline, match="fits neither int64 nor uint64|has no place"):
        list(cj.range(2).map(f))


# ---- nulls ---------------------------------------------------------------------------------------------------------

NULLS = pa.table({
    "int": pa.array([1, None, 3], pa.int64()),
    "small": pa.array([None, 2, 3], pa.uint8()),
    "float": pa.array([1.5, None, float("nan")], pa.float64()),
    "half": pa.array([1.5, None, 2.5], pa.float32()),
    "bool": pa.array([True, None, False]),
    "string": pa.array(["a", None, ""]),
    "bytes": pa.array([b"a\0", None, b""]),
    "list": pa.array([[1, 2], None, []], pa.list_(pa.int64())),
    "items": pa.array([[1, None], [None], []], pa.list_(pa.int64())),
    "floats": pa.array([[1.0, None], [], [float("nan")]], pa.list_(pa.float64())),
    "words": pa.array([["a", None], None, []], pa.list_(pa.string())),
    "tensor": pa.array([[1, 2], None, [5, 6]], pa.list_(pa.int32(), 2)),
    "when": pa.array([dt.datetime(2024, 1, 2, 3, 4, 5, 6), None, dt.datetime(1969, 1, 1)], pa.timestamp("us")),
    "day": pa.array([dt.date(2024, 1, 2), None, dt.date(1900, 1, 1)], pa.date32()),
    "span": pa.array([dt.timedelta(seconds=1, microseconds=2), None, dt.timedelta(-1)], pa.duration("us")),
    "struct": pa.array([{"a": 1, "b": "x"}, None, {"a": None, "b": None}], pa.struct({"a": pa.int64(), "b": pa.string()})),
})  # fmt: skip


def rows_of(dataset):
    return pa.Table.from_batches(list(dataset.batch(2).arrow())).to_pylist()


def same(a, b):
    """Equal, NaN too."""
    return repr(a) == repr(b)


@pytest.mark.parametrize("identity", [
    lambda d: d.map(lambda row: row),
    lambda d: d.map(lambda row: dict(row), schema=d.schema),
    lambda d: d.map(lambda b: b, batched=True),
    lambda d: d.map(lambda b: {n: v[:] if not isinstance(v, dict) else v for n, v in b.items()}, batched=True, schema=d.schema),
    lambda d: d.flat_map(lambda row: [row]),
    lambda d: d.filter(lambda row: True),
    lambda d: d.filter(lambda b: np.ones(len(b["int"]), bool), batched=True),
])  # fmt: skip
def test_the_identity_changes_nothing(identity):
    for name in NULLS.column_names:
        dataset = cj.from_arrow(NULLS.select([name, "int"] if name != "int" else ["int"]))
        assert same(rows_of(identity(dataset)), rows_of(dataset)), name


def test_nulls_are_what_the_documentation_says():
    def f(row):
        none = ("int", "bool", "string", "bytes", "list", "words", "struct", "tensor")
        nat = ("when", "day", "span")
        return {"x": [row[n] is None for n in none] + [bool(np.isnat(row[n])) for n in nat] + [bool(np.isnan(row["float"]))]}

    there, null, _ = column(cj.from_arrow(NULLS).map(f))
    assert not any(there) and all(null)


def test_nan_that_was_computed_is_no_null():
    table = pa.table({"a": pa.array([1.0, None, -1.0])})
    out = column(cj.from_arrow(table).map(lambda r: {"x": r["a"] * 1.0}), size=3)
    assert repr(out) == "[1.0, nan, -1.0]"
    masked = column(cj.from_arrow(table).map(lambda b: {"x": b["a"] * 2}, batched=True))
    assert masked == [2.0, None, -2.0]


def test_none_from_a_function_is_null():
    def f(row):
        i = int(row["id"])
        return {"x": i if i % 2 else None, "t": np.zeros(2) if i % 2 else None, "w": ["a"] * i if i % 3 else None}

    rows = rows_of(cj.range(4).map(f))
    assert [r["x"] for r in rows] == [None, 1, None, 3]
    assert [r["t"] for r in rows] == [None, [0, 0], None, [0, 0]]
    assert [r["w"] for r in rows] == [None, ["a"], ["a", "a"], None]


def test_what_is_only_none_at_first_asks_for_a_type():
    with pytest.raises(cj.InvalidPipeline, match=r"column `x`.*schema=\{\"x\": \"int64\""):
        cj.range(200).map(lambda row: {"x": None})
    late = cj.range(200).map(lambda row: {"x": int(row["id"]) if row["id"] > 50 else None})
    assert dict(late.schema) == {"x": "int64"} and column(late)[-1] == 199


def test_masked_arrays_and_none_come_into_memory_as_nulls():
    dataset = cj.from_numpy({
        "m": np.ma.array([1, 2, 3], mask=[0, 1, 0]), "f": np.ma.array([1.0, 2, 3], mask=[1, 0, 0]),
        "w": np.array(["a", None, "c"], object), "n": [1, None, 3],
        "t": np.ma.array([[1, 2], [3, 4], [5, 6]], mask=[[0, 1], [0, 0], [1, 1]]),
        "d": np.array(["2024-01-01", "NaT", "2024-01-03"], "M8[D]"),
    })
    rows = rows_of(dataset)
    assert [r["m"] for r in rows] == [1, None, 3] == [r["n"] for r in rows] and [r["f"] for r in rows] == [None, 2.0, 3.0]
    assert [r["t"] for r in rows] == [[1, None], [3, 4], [None, None]] and rows[1]["w"] is rows[1]["d"] is None


def test_a_null_struct_is_none():
    dataset = cj.from_arrow(pa.table({"s": pa.array([{"a": 1, "b": {"c": 1.0}}, None], pa.struct(
        {"a": pa.int64(), "b": pa.struct({"c": pa.float64()})}))}))  # fmt: skip
    assert [r["s"] for r in dataset][1] is None and [r["s"] for r in dataset][0] == {"a": 1, "b": {"c": 1.0}}
    [batch] = dataset.batch(2)
    assert batch["s"]["a"].tolist() == [1, None] and np.isnan(batch["s"]["b"]["c"][1])


# ---- bytes, lists, dates -------------------------------------------------------------------------------------------


def test_bytes_are_exact():
    def packed(i):
        return int(i).to_bytes(8, "little")

    want = [packed(i) for i in range(3)]
    assert column(cj.range(3).map(lambda b: {"x": [packed(i) for i in b["id"]]}, batched=True)) == want
    assert column(cj.range(3).map(lambda r: {"x": packed(r["id"])})) == want
    assert column(cj.range(3).map(lambda r: {"x": bytearray(packed(r["id"]))})) == want
    assert column(cj.range(3).map(lambda r: {"x": [packed(r["id"]), b"\0"]})) == [[w, b"\0"] for w in want]
    assert column(cj.range(3).flat_map(lambda r: [{"x": packed(r["id"])}])) == want
    assert column(cj.from_numpy({"x": [b"ab\0\0", b"c\0"]})) == [b"ab\0\0", b"c\0"]
    assert column(cj.from_numpy({"x": np.array([b"ab\0\0", None, b"c\0"], object)})) == [b"ab\0\0", None, b"c\0"]


@pytest.mark.parametrize("f,kind,row", [
    (lambda r: {"x": np.arange(r["id"] + 1)}, "list of int64", [0, 1, 2]),
    (lambda r: {"x": list(range(int(r["id"]) + 1))}, "list of int64", [0, 1, 2]),
    (lambda r: {"x": ["w"] * int(r["id"])}, "list of string", ["w", "w"]),
    (lambda r: {"x": np.array(["w"] * int(r["id"]))}, "list of string", ["w", "w"]),
    (lambda r: {"x": [[1.5] * int(r["id"])]}, "list of list of float64", [[1.5, 1.5]]),
    (lambda r: {"x": np.ones((int(r["id"]), 2), "f4")}, "list of float32[2]", [[1, 1], [1, 1]]),
    (lambda r: {"x": [1, 2]}, "int64[2]", [1, 2]),
    (lambda r: {"x": np.zeros((2, 1))}, "float64[2, 1]", [0, 0]),
])  # fmt: skip
def test_lengths_that_differ_make_lists(f, kind, row):
    dataset = cj.range(20).map(f)
    assert dict(dataset.schema) == {"x": kind}
    assert column(dataset, size=1)[2] == row and column(dataset)[2] == row     # batches of one length, and mixed ones


def test_lists_over_batches():
    def ragged(b):
        out = np.empty(len(b["id"]), object)
        out[:] = [np.arange(i) for i in b["id"]]
        return {"x": out, "w": [["w"] * int(i) for i in b["id"]]}

    dataset = cj.range(5).map(ragged, batched=True)
    assert dict(dataset.schema) == {"x": "list of int64", "w": "list of string"}
    assert column(dataset)[3] == [0, 1, 2] and column(dataset, "w")[2] == ["w", "w"]


def test_a_length_that_differs_late_says_the_way_out():
    def f(row):
        return {"x": np.zeros(3 if row["id"] < 50 else 4)}

    with pytest.raises(cj.InvalidPipeline) as e:
        list(cj.range(100).map(f))
    assert 'schema={"x": "list of float64"}' in str(e.value) and "row 50" in str(e.value)
    assert len(column(cj.range(100).map(f, schema={"x": "list of float64"}))) == 100


def test_how_many_rows_are_tried_depends_on_what_they_hold(tmp_path):
    def trying(f):
        file = tmp_path / os.urandom(4).hex()

        def counted(row):
            with open(file, "a") as out:
                out.write("x")
            return f(row)

        cj.range(1000).map(counted)
        return len(file.read_text())

    assert trying(lambda row: {"x": 1, "w": "a"}) == 1
    assert trying(lambda row: {"x": np.zeros(3)}) == 8
    assert trying(lambda row: {"x": None if row["id"] < 20 else 1}) == 21

    def later(row):
        if row["id"] == 3:
            raise KeyError("late")
        return {"x": np.zeros(3)}

    assert trying(later) == 4                                 # the fourth is for the loop to report


@pytest.mark.parametrize("value,kept", [
    (dt.datetime(2024, 1, 2, 3, 4, 5, 6), dt.datetime(2024, 1, 2, 3, 4, 5, 6)),
    (dt.date(2024, 1, 2), dt.date(2024, 1, 2)),
    (dt.timedelta(days=1, microseconds=1), dt.timedelta(days=1, microseconds=1)),
    (np.datetime64("2024-01-02"), dt.date(2024, 1, 2)),
    (np.datetime64("2024-01-02T03", "h"), dt.datetime(2024, 1, 2, 3)),
    (np.timedelta64(5, "ms"), dt.timedelta(milliseconds=5)),
    (dt.datetime(2024, 1, 2, 3, tzinfo=dt.timezone(dt.timedelta(hours=1))), dt.datetime(2024, 1, 2, 2, tzinfo=dt.timezone.utc)),
])  # fmt: skip
def test_dates_times_and_durations(value, kept):
    got = column(cj.range(2).map(lambda row: {"x": value}))
    assert got == [kept, kept]
    assert column(cj.range(2).map(lambda b: {"x": [value] * len(b["id"])}, batched=True)) == got


def test_days_of_numpy_come_into_memory():
    days = np.array(["2024-01-01", "NaT", "1900-01-01"], "M8[D]")
    assert column(cj.from_numpy({"x": days})) == [dt.date(2024, 1, 1), None, dt.date(1900, 1, 1)]
    assert column(cj.from_numpy({"x": np.array([1, 2], "m8[s]")})) == [dt.timedelta(seconds=1), dt.timedelta(seconds=2)]


# ---- what is no value ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value,words", [
    (5, r"5 \(int\) after 'a' \(str\).*one type"),
    (b"a", r"b'a' \(bytes\) after 'a' \(str\)"),
    (["a"], "list.*after 'a'"),
    (object(), "object, which a column cannot hold; return"),
    (decimal.Decimal(1), r"Decimal.*return float\(\.\.\.\) or str"),
    ({1, 2}, "set.*return list"),
    (dt.time(1), "return a timedelta"),
    (1j, "complex"),
])  # fmt: skip
def test_values_of_several_types_or_of_none_are_reported(value, words):
    def f(row):
        return {"x": value if row["id"] == 20 else "a"}

    with pytest.raises(cj.InvalidPipeline, match=r"row 20\b(.|\n)*column `x`(.|\n)*" + words):
        list(cj.range(30).map(f))


@pytest.mark.parametrize("made,words", [
    ({}, "empty dict.*at least one column.*filter"), ({1: 2}, "column named 1, and names are strings"),
    ({("a", "b"): 1}, "names are strings"), (5, "int, not a dict"), (None, "NoneType, not a dict"),
    ({"x": {}}, "empty dict"),
])  # fmt: skip
def test_what_is_no_row_is_reported_at_once(made, words):
    with pytest.raises(cj.InvalidPipeline, match=words):
        cj.range(3).map(lambda row: made)
    start = time.monotonic()
    with pytest.raises(cj.InvalidPipeline, match=r"row 0\b(.|\n)*" + words):
        list(cj.range(3).map(lambda row: made, schema={"x": "int64"}))
    assert time.monotonic() - start < 30


@pytest.mark.parametrize("made,words", [
    ({}, "empty dict"), ({1: [1, 2, 3]}, "names are strings"), ({"x": 5}, "single value"), ([1], "list, not a dict"),
    ({"x": [1, 2, 3], "y": [1]}, "several lengths"), ({"x": [1]}, "1 rows for a batch of 3"),
    ({"x": [1, "a", 2]}, "'a' .str. after 1"),
])  # fmt: skip
def test_batches_that_are_none_are_reported(made, words):
    with pytest.raises(cj.InvalidPipeline, match=words):
        list(cj.range(3).map(lambda b: made, batched=True))


def test_the_batch_that_a_function_fails_is_named():
    def raises(batch):
        if batch["id"][0] >= 3000:
            raise ValueError("bad")
        return batch

    for answer in [raises, lambda b: {"y": b["id"][(1 if b["id"][0] >= 3000 else 0):]}]:
        with pytest.raises(cj.InvalidPipeline, match=r"python: \d+ rows from source rows \d+\.\.\d+ \(row 0 of it\) on: function"):
            list(cj.range(10_000).map(answer, batched=True))


FAR = [np.datetime64("2020-01-01T00:00:00.000000001"), np.datetime64("3000-01-01")]


@pytest.mark.parametrize("times", [
    FAR, [dt.timedelta.max], [np.timedelta64(2**62, "s"), np.timedelta64(1, "ns")], np.array([2**60], "M8[h]"),
    np.array([2**62], "m8[W]"), [dt.datetime(1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=5)))],
])  # fmt: skip
def test_times_that_a_column_cannot_hold_do_not_wrap(times):
    with pytest.raises(cj.InvalidPipeline, match="column `t`: .*beyond what"):
        cj.from_numpy({"t": times})


def test_a_time_that_wraps_in_the_unit_of_other_rows_names_its_row():
    with pytest.raises(cj.InvalidPipeline, match=r"row 1 of it\).*3000.* reaches beyond what datetime64\[ns\] can hold"):
        list(cj.range(2).map(lambda row: {"t": FAR[row["id"]]}))


BIG = 2**62 + 1


def test_integers_with_nulls_of_other_libraries_keep_their_digits():
    big = [2**53 + 1, None]
    arrays = [pa.array(big), pa.chunked_array([big]), pa.array(big, pa.uint64())]
    arrays += [pd.array(big, dtype="Int64"), pd.Series(big, dtype="Int64"), pl.Series(big)]
    for array in arrays:
        [batch] = cj.from_numpy({"x": array}).batch(2).arrow()
        assert batch.column("x").to_pylist() == big, array
    [batch] = cj.range(1).map(lambda row: {"x": pa.array([2**53 + 1, None])}).batch(1).arrow()
    assert batch.column("x").to_pylist() == [big]


NESTED = [
    (pa.array([[BIG, None], None, [1]], pa.list_(pa.int64())), [[BIG, None], None, [1]]),
    (pa.array([[BIG, None], None, [1, 2]], pa.list_(pa.int64(), 2)), [[BIG, None], None, [1, 2]]),
    (pa.array([[[BIG], None], [[None]], []], pa.large_list(pa.list_(pa.int64()))), [[[BIG], None], [[None]], []]),
    (pa.array([{"a": BIG}, {"a": None}, None], pa.struct({"a": pa.int64()})), [{"a": BIG}, {"a": None}, None]),
    (pa.array([[{"a": BIG}], [{"a": None}], None], pa.list_(pa.struct({"a": pa.int64()}))), [[{"a": BIG}], [{"a": None}], None]),
    (pa.array([BIG, None, 1]).dictionary_encode(), [BIG, None, 1]),
    (pa.chunked_array([[BIG, None], [1]]), [BIG, None, 1]),
    (pa.array([1.5, None, float("inf")]), [1.5, None, float("inf")]),
    (pa.array([1.5, None, 2.5], pa.float32()), [1.5, None, 2.5]),
    (pa.array([True, None, False]), [True, None, False]),
    (pl.Series([1.5, None, 2.5]), [1.5, None, 2.5]),
    (pl.Series([[BIG, None], None, [1]]), [[BIG, None], None, [1]]),
    (pa.array([[BIG, None], None, [1]], pa.list_view(pa.int64())), [[BIG, None], None, [1]]),
    (pd.Series([1.5, None, 2.5], dtype="Float64"), [1.5, None, 2.5]),
    (pd.Series([1.5, None, 2.5], dtype="double[pyarrow]"), [1.5, None, 2.5]),
]


@pytest.mark.parametrize("values,kept", NESTED)
def test_nulls_of_pyarrow_are_nulls_at_any_depth(values, kept):
    assert column(cj.from_numpy({"x": values})) == kept
    assert column(cj.range(3).map(lambda b: {"x": values[int(b["id"][0]) : int(b["id"][-1]) + 1]}, batched=True)) == kept
    whole = cj.range(3).map(lambda row: {"x": values})
    assert column(whole) == [kept] * 3


def test_objects_of_polars_are_values_and_no_addresses():
    assert column(cj.from_numpy({"x": pl.Series(["x", "y"], dtype=pl.Object)})) == ["x", "y"]
    assert column(cj.range(1).map(lambda row: {"x": pl.Series([row["id"]], dtype=pl.Object)})) == [[0]]


def test_a_missing_time_first_hides_no_time_zone():
    noon = pd.Timestamp("2024-01-01 12:00", tz="America/New_York")
    times = [pd.NaT, pd.NaT, noon]
    made = cj.range(3).map(lambda row: {"x": times[row["id"]]})
    assert column(made) == [None, None, noon.to_pydatetime()]


def test_narrow_types_of_pyarrow_with_nulls_stay_narrow():
    for of in (pa.int8(), pa.uint16(), pa.float32(), pa.bool_()):
        [batch] = cj.from_numpy({"x": pa.array([1, None], pa.int8()).cast(of)}).batch(2).arrow()
        assert batch.schema.field("x").type == of


def test_negative_integers_among_those_above_int64_are_refused():
    with pytest.raises(cj.InvalidPipeline, match="fits neither int64 nor uint64"):
        cj.from_numpy({"x": [-1, 2**63]})


def test_categories_of_several_batches_are_one_column():
    words = [f"w{i}" for i in range(200)]
    chunks = [pa.array(words[:100]), pa.array(words[100:])]
    narrow = [pa.DictionaryArray.from_arrays(c.dictionary_encode().indices.cast(pa.int8()), c.dictionary_encode().dictionary) for c in chunks]
    table = pa.table({"x": pa.chunked_array(narrow)})
    assert column(cj.from_arrow(table)) == words


def test_slices_of_nested_structs_are_read():
    nested = pa.array([{"a": {"c": i}, "f": [{"c": i}, {"c": -i}]} for i in range(20)], pa.struct({
        "a": pa.struct({"c": pa.int64()}), "f": pa.list_(pa.struct({"c": pa.int64()}), 2),
    }))  # fmt: skip
    absent = pa.array([{"a": {"c": i}} if i % 3 else None for i in range(20)])
    lists = pa.array([[{"a": {"c": i}}] * (i % 3) for i in range(20)])
    fixed = pa.array([[{"c": i}, {"c": -i}] for i in range(20)], pa.list_(pa.struct({"c": pa.int64()}), 2))
    table = pa.table({"x": nested, "y": absent, "l": lists, "f": fixed})
    for offset, length in [(0, 20), (0, 5), (1, 3), (7, 2), (8, 12)]:
        part = table.slice(offset, length)
        read = cj.from_arrow(part)
        for name in table.column_names:
            assert column(read, name) == part.column(name).to_pylist(), (name, offset, length)
    parts = pa.concat_tables([table.slice(3, 4), table.slice(9, 9)])
    assert column(cj.from_arrow(parts)) == parts.column("x").to_pylist()
    [batch] = table.slice(3, 4).to_batches()
    assert column(cj.from_arrow(batch)) == batch.column("x").to_pylist()


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/New_York"])
def test_times_with_a_zone_are_compared_as_instants(zone):
    hours = [dt.datetime(2020, 1, 1, h, tzinfo=dt.timezone.utc) for h in range(6)]
    table = pa.table({"x": pa.array(hours, pa.timestamp("us", zone)), "id": list(range(6))})
    for least in (hours[3], hours[3].astimezone(dt.timezone(dt.timedelta(hours=5))), pd.Timestamp(hours[3])):
        assert column(cj.from_arrow(table).filter(cj.col("x") >= least), "id") == [3, 4, 5]


@pytest.mark.parametrize("value", [np.float64(1.5), np.float32(1.5), np.array([1.0, 2.0]).mean(), np.int64(1)])
def test_numbers_of_numpy_stand_in_expressions(value):
    assert column(cj.range(3).filter(cj.col("id") > value), "id") == [i for i in range(3) if i > value]


def test_a_zone_that_a_function_lost_comes_back_with_the_schema():
    times = pa.array([dt.datetime(2020, 1, 1, 12, tzinfo=dt.timezone.utc)], pa.timestamp("us", "Europe/Berlin"))
    dataset = cj.from_arrow(pa.table({"x": times}))

    def type_of(made):
        [batch] = made.batch(1).arrow()
        assert batch.column("x").cast(pa.int64()).to_pylist() == times.cast(pa.int64()).to_pylist()
        return batch.schema.field("x").type

    assert type_of(dataset) == times.type
    assert type_of(dataset.map(lambda row: dict(row))) == pa.timestamp("us")
    assert type_of(dataset.map(lambda row: dict(row), schema=dataset.schema)) == times.type


def test_texts_with_other_quotes_are_other_expressions(tmp_path):
    one, two = (cj.range(3).map({"x": cj.lit(text)}).autocache("h") for text in ("it''s", "it's"))
    assert one.fingerprint != two.fingerprint
    with cj.LocalCluster(workers=1, cache=str(tmp_path)) as cluster:
        for dataset, text in ((one, "it''s"), (two, "it's"), (one, "it''s")):
            rows = dataset.distribute(cluster, policy="hint:h")
            assert [row["x"] for row in rows] == [text] * 3


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_times_of_pandas_with_a_zone_are_exact_in_each_unit(unit):
    times = pd.Series(pd.to_datetime(["2024-01-01 12:00", None])).dt.tz_localize("America/New_York").astype(f"datetime64[{unit}, America/New_York]")
    noon = dt.datetime(2024, 1, 1, 17, tzinfo=dt.timezone.utc)
    for values in (times, list(times)):
        assert column(cj.from_numpy({"x": values})) == [noon, None]


def reuses(kind):
    """Functions that change what they returned for earlier rows."""
    out, buffer, items, inner, whole = {}, np.zeros(3), [0, [0]], {}, np.array(0)

    def row(r):
        out["x"] = int(r["id"])
        return out

    def array(r):
        buffer[:] = r["id"]
        return {"x": buffer}

    def view(r):
        buffer[:] = r["id"]
        return {"x": [buffer[:1], buffer[1:]]}

    def nested(r):
        items[1][0] = int(r["id"])
        return {"x": items[1:]}

    def fields(r):
        inner["a"] = int(r["id"])
        return {"x": inner}

    def number(r):
        whole[...] = r["id"]
        return {"x": whole}

    def memory(r):
        buffer[:] = r["id"]
        return {"x": memoryview(buffer).cast("B")[:8]}

    def rows(r):
        for i in range(2):
            out["x"], buffer[:] = i, i
            out["y"] = buffer
            yield out

    return locals()[kind]


@pytest.mark.parametrize("kind", ["row", "array", "view", "nested", "fields", "number", "memory"])
def test_a_function_may_return_one_object_again(kind):
    expected = {
        "row": lambda i: i, "array": lambda i: [i] * 3, "view": lambda i: [[i], [i, i]], "nested": lambda i: [i],
        "fields": lambda i: {"a": i}, "number": lambda i: i, "memory": lambda i: np.float64(i).tobytes(),
    }  # fmt: skip
    assert column(cj.range(6).map(reuses(kind), version="1")) == [expected[kind](i) for i in range(6)]


def test_a_generator_may_yield_one_object_again():
    rows = cj.range(3).flat_map(reuses("rows"), version="1")
    assert column(rows) == [0, 1] * 3
    assert column(rows, "y") == [[0.0] * 3, [1.0] * 3] * 3


def test_columns_that_were_not_promised_are_not_dropped():
    with pytest.raises(cj.InvalidPipeline, match="made a column `y`.*promised: x"):
        list(cj.range(3).map(lambda row: {"x": 1, "y": 2}, schema={"x": "int64"}))
    with pytest.raises(cj.InvalidPipeline, match="must name columns"):
        cj.range(3).map(lambda row: {"x": 1}, schema={})


def test_from_numpy_names_what_it_does_not_take():
    for columns, words in [({}, "empty dict"), ({1: [1]}, "names are strings"), ({"a": [1], "b": [1, 2]}, "a 1, b 2"),
                           ({"a": 5}, "single value"), ({"a": ["x", 5]}, "'x' .str.")]:  # fmt: skip
        with pytest.raises(cj.InvalidPipeline, match=words):
            cj.from_numpy(columns)


def test_times_of_numpy_stand_in_expressions():
    [batch] = cj.range(1).map({"t": cj.lit(FAR[0])}).batch(1).arrow()
    assert batch.column("t").cast("int64").to_pylist() == [1_577_836_800_000_000_001]
    with pytest.raises(cj.InvalidPipeline, match="cannot stand in an expression"):
        cj.lit(np.timedelta64(1, "ns"))


def test_a_list_of_structs_comes_as_a_dict_of_arrays_and_a_list_of_dicts_becomes_one():
    kind = pa.list_(pa.struct([("a", pa.int64()), ("b", pa.string())]))
    ds = cj.from_arrow(pa.table({"x": pa.array([[{"a": 1, "b": "u"}], [{"a": 2, "b": "v"}, {"a": 3, "b": "w"}]], kind)}))
    row = list(ds)[1]["x"]
    assert row["a"].tolist() == [2, 3] and row["b"].tolist() == ["v", "w"]
    [first, second] = list(ds.batch(2))[0]["x"]
    assert first["a"].tolist() == [1] and second["b"].tolist() == ["v", "w"]

    def again(row):
        return {"x": [{"a": a, "b": b} for a, b in zip(row["x"]["a"].tolist(), row["x"]["b"].tolist(), strict=True)]}

    assert next(iter(ds.map(again).arrow())).schema.field("x").type == kind
    same = next(iter(ds.map(lambda row: row).arrow())).schema.field("x").type
    assert pa.types.is_struct(same) and pa.types.is_list(same.field("a").type), "a struct of lists"


def test_a_dictionary_of_a_dictionary_is_refused_as_what_it_is():
    inner = pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int32()), pa.array(["a", "b"]))
    outer = pa.DictionaryArray.from_arrays(pa.array([0, 1, 0], pa.int8()), inner)
    with pytest.raises(cj.Unimplemented, match="cast the column"):
        cj.from_arrow(pa.table({"x": outer}))
