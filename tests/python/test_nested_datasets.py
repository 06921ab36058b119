"""Datasets inside of `concatenate`, `sample` and `zip` follow the rules of datasets that stand alone."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import caju as cj


def read(definition, **options):
    return list(cj.from_yaml(json.dumps({**definition, **options})))


def nested(kind, *datasets):
    return {"source": {kind: [{"source": source, "steps": steps} for source, steps in datasets]}}


def test_datasets_of_a_zip_draw_for_themselves():
    def dataset(name):
        return {"range": 200}, [{"map": {name: "uniform()"}}]

    rows = read(nested("zip", dataset("a"), dataset("b"), dataset("c")))
    columns = [[row[name] for row in rows] for name in "abc"]
    assert len(rows) == 200
    for one, other in [(0, 1), (0, 2), (1, 2)]:
        assert all(a != b for a, b in zip(columns[one], columns[other], strict=True))
    inner = nested("zip", dataset("a"), dataset("b"))["source"]
    renamed = {"zip": [{**d, "steps": [*d["steps"], {"map": {n: o}}]} for d, n, o in zip(inner["zip"], "cd", "ab", strict=True)]}
    rows = read(nested("zip", (inner, []), (renamed, [])))
    assert all(len({row[name] for name in "abcd"}) == 4 for row in rows)


@pytest.mark.parametrize("kind", ["concatenate", "sample"])
def test_bad_rows_of_a_leading_filter_are_skipped_one_by_one(tmp_path, kind):
    pq.write_table(pa.table({"x": [0, 1, 2]}), tmp_path / "a.parquet")
    dataset = {"source": {"parquet": str(tmp_path / "a.parquet")}, "steps": [{"filter": "10 / x > 2"}]}
    source = {"concatenate": [dataset]} if kind == "concatenate" else {"sample": {"datasets": [dataset], "weights": [1.0]}}
    with pytest.raises(cj.CajuError, match="[Dd]ivide by zero"):
        read({"source": source})
    assert sorted(row["x"] for row in read({"source": source}, on_error="skip")) == [1, 2]


def test_rows_that_need_too_much_memory_together_are_computed_apart():
    rows = read(nested("concatenate", ({"range": 10_000}, [{"map": {"n": "length(repeat('x', 200000 + id % 7))"}}])))
    assert sorted(row["n"] for row in rows) == sorted(200_000 + i % 7 for i in range(10_000))


@pytest.mark.parametrize("kind", ["concatenate", "zip"])
@pytest.mark.parametrize("stage", ["sleep", "burn"])
def test_stages_that_slow_a_pipeline_down_belong_below_the_combined_dataset(kind, stage):
    with pytest.raises(cj.InvalidPipeline, match="put it below the combined dataset"):
        read(nested(kind, ({"range": 5}, [{stage: {"per_row": "1us"}}])))


def tensors(shape):
    values = pa.array(np.arange(2 * np.prod(shape), dtype=np.int32))
    kind = pa.fixed_shape_tensor(pa.int32(), shape)
    return pa.table({"x": pa.ExtensionArray.from_storage(kind, pa.FixedSizeListArray.from_arrays(values, int(np.prod(shape))))})


@pytest.mark.parametrize("form", ["arrow", "parquet"])
def test_tensors_of_one_size_and_different_shapes_are_an_error(tmp_path, form):
    for name, shape in [("a", (2, 3)), ("b", (3, 2)), ("c", (2, 3))]:
        file = tmp_path / f"{name}.{form}"
        if form == "parquet":
            pq.write_table(tensors(shape), file)
        else:
            with pa.ipc.new_file(file, tensors(shape).schema) as writer:
                writer.write_table(tensors(shape))

    def source(*names):
        return {form: [str(tmp_path / f"{name}.{form}") for name in names]}

    assert [row["x"].shape for row in read({"source": source("a", "c")})] == [(2, 3)] * 4
    with pytest.raises(cj.InvalidPipeline, match=r"tensors of shape \[3, 2\] instead of tensors of shape \[2, 3\]"):
        read({"source": source("a", "b")})
    assert len(read(nested("concatenate", (source("a"), []), (source("c"), [])))) == 4
    with pytest.raises(cj.InvalidPipeline, match=r"has tensors of shape \[2, 3\] in dataset 0 and tensors of shape \[3, 2\]"):
        read(nested("concatenate", (source("a"), []), (source("b"), [])))


def test_classes_above_int64_are_errors_and_not_null(tmp_path):
    pq.write_table(pa.table({"label": pa.array([1, 2**64 - 1], pa.uint64())}), tmp_path / "a.parquet")
    for expression in ["one_hot(label, 10)", "random_int(0, label)"]:
        definition = {"source": {"parquet": str(tmp_path / "a.parquet")}, "steps": [{"map": {"y": expression}}]}
        with pytest.raises(cj.CajuError, match="18446744073709551615 is out of the range of Int64"):
            read(definition)
        assert len(read(definition, on_error="skip")) == 1
