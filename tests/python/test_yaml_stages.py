"""Keys of stages in the YAML text of a pipeline file, run by `caju run`. The rows are those that the test computes itself, by their
checksum, and the definition is that of the same stages in Python, by its fingerprint.
"""

import os
import pathlib
import sys
import threading

import pyarrow as pa
import pytest
import yaml
from rows_checksum import rows_checksum

import caju as cj

WORDS = pa.table({"id": pa.array(range(6), pa.int64()), "l": [[1], [1, 2], [1, 2, 3], [4], [4, 5], [4, 5, 6]]})


def run(caju, folder, text, *args):
    """The fingerprint and the only epoch of the report of a pipeline file."""
    file, out = folder / "pipeline.yaml", folder / "report.json"
    file.write_text(text)
    caju("run", file, "--report", out, *args)
    report = yaml.safe_load(out.read_text())
    return report["fingerprint"], report["epochs"][0]


def checksum(**columns):
    return rows_checksum(pa.table(columns).to_batches())


def ids(*values):
    return {"id": pa.array(values, pa.int64())}


@pytest.mark.parametrize("step, stage, columns, batches", [
    ("flat_map: { name: v, expr: 'l' }", lambda ds: ds.flat_map(v="l"),
     {"id": pa.array([0, 1, 1, 2, 2, 2, 3, 4, 4, 5, 5, 5]), "l": [WORDS["l"][i].as_py() for i in (0, 1, 1, 2, 2, 2, 3, 4, 4, 5, 5, 5)],
      "v": [1, 1, 2, 1, 2, 3, 4, 4, 5, 4, 5, 6]}, 12),
    ("flat_map: { name: v, expr: 'array_slice(l, 2, 3)' }", lambda ds: ds.flat_map(v="array_slice(l, 2, 3)"),
     {"id": pa.array([1, 2, 2, 4, 5, 5]), "l": [WORDS["l"][i].as_py() for i in (1, 2, 2, 4, 5, 5)], "v": [2, 2, 3, 5, 5, 6]}, 6),
    ("repeat: { count: 3 }", lambda ds: ds.repeat(3),
     {"id": pa.array(list(range(6)) * 3), "l": WORDS["l"].to_pylist() * 3}, 18),
    ("shard: { num_shards: 4, index: 1 }", lambda ds: ds.shard(4, 1),
     {"id": pa.array([1, 5]), "l": [[1, 2], [4, 5, 6]]}, 2),
    # Padding is not part of the checksum: the next test checks lengths.
    ("padded_batch: { size: 4, lengths: { l: 5 } }", lambda ds: ds.padded_batch(4, {"l": 5}),
     {"id": WORDS["id"], "l": WORDS["l"]}, 2),
    ("bucket_by_length: { length: 'CAST(array_length(l) AS bigint)', boundaries: [2, 3], batch_sizes: [1, 2, 4] }",
     lambda ds: ds.bucket_by_length("CAST(array_length(l) AS bigint)", [2, 3], [1, 2, 4]),
     {"id": WORDS["id"], "l": WORDS["l"]}, 2 + 1 + 1),
    ("bucket_by_length: { length: 'CAST(array_length(l) AS bigint)', boundaries: [3], batch_sizes: 1 }",
     lambda ds: ds.bucket_by_length("CAST(array_length(l) AS bigint)", [3], 1), {"id": WORDS["id"], "l": WORDS["l"]}, 6),
], ids=lambda case: case.split(":")[0] if isinstance(case, str) else "")
def test_a_stage_of_a_pipeline_file_gives_its_rows(caju, tmp_path, step, stage, columns, batches):
    source = cj.from_arrow(WORDS)
    text = source.to_yaml().split("steps:")[0] + f"steps:\n- {step}\n"
    fingerprint, epoch = run(caju, tmp_path, text)
    assert fingerprint == stage(source).fingerprint != source.fingerprint
    assert (epoch["rows"], epoch["batches"]) == (len(columns["id"]), batches)
    columns = {name: pa.array(values, WORDS.schema.field("l").type) if name == "l" else values for name, values in columns.items()}
    assert epoch["rows_checksum"] == checksum(**columns)


def test_the_values_of_a_column_are_longer_by_the_factor(caju, tmp_path):
    for factor, text in ((3, "abc" * 3), (2, "abc" * 2), (2.5, "abcabcab")):
        # 7.5 bytes are rounded up.
        steps = f"[ {{ map: {{ s: \"concat('abc', '')\" }} }}, {{ inflate: {{ column: s, factor: {factor} }} }} ]"
        fingerprint, epoch = run(caju, tmp_path, f"source: {{ range: 2 }}\nsteps: {steps}\n")
        assert fingerprint == cj.range(2).map(s="concat('abc', '')").inflate("s", factor).fingerprint
        assert epoch["rows_checksum"] == checksum(s=[text] * 2)


def test_lists_are_padded_to_the_lengths_of_a_pipeline_file(caju, tmp_path):
    def text(lengths):
        return cj.from_arrow(WORDS).to_yaml().split("steps:")[0] + f"steps:\n- padded_batch: {{ size: 6, lengths: {lengths} }}\n"

    for lengths, shape in [("{ l: 5 }", (6, 5)), ("{ l: 3 }", (6, 3)), ("{}", (6, 3))]:
        [batch] = cj.from_yaml(text(lengths))
        assert batch["l"].shape == shape
        assert run(caju, tmp_path, text(lengths))[1]["rows"] == 6
    (tmp_path / "short.yaml").write_text(text("{ l: 2 }"))
    assert "steps[0].padded_batch" in caju("run", tmp_path / "short.yaml", code=2).stderr


# ---- functions -----------------------------------------------------------------------------------------------------


@pytest.fixture
def binary(caju, monkeypatch):
    """The binary, which finds the interpreter of the tests: `caju run` runs functions with `python3`."""
    folder = pathlib.Path(sys.executable).parent
    monkeypatch.setitem(caju.env, "PATH", f"{folder}{os.pathsep}{caju.env['PATH']}")
    return caju


def halves(row):
    """The columns that it gets are in the rows."""
    return {"id": row["id"], "seen": ",".join(sorted(row))}


def sizes(batch):
    return {"id": batch["id"] + len(batch["id"]) * 100}


def odd(row):
    return row["id"] % 2 == 1


def copies(row):
    return [{"id": row["id"] * 10 + i} for i in range(row["id"])]


@pytest.mark.parametrize("make, rows", [
    (lambda ds: ds.map(halves), {**ids(0, 1, 2, 3), "seen": ["id,x"] * 4}),
    (lambda ds: ds.map(halves, reads=["id"]), {**ids(0, 1, 2, 3), "seen": ["id"] * 4}),
    (lambda ds: ds.map(halves, reads=["id"], keeps=["id"]), {**ids(0, 1, 2, 3), "seen": ["id"] * 4}),
    (lambda ds: ds.map(halves, schema={"id": "float64", "seen": "string"}), {"id": pa.array([0.0, 1.0, 2.0, 3.0]), "seen": ["id,x"] * 4}),
    (lambda ds: ds.map(sizes, batched=True), ids(400, 401, 402, 403)),
    (lambda ds: ds.filter(odd), {**ids(1, 3), "x": pa.array([5, 15])}),
    (lambda ds: ds.flat_map(copies), ids(10, 20, 21, 30, 31, 32)),
], ids=["map", "reads", "keeps", "schema", "batched", "filter", "flat_map"])
def test_a_function_of_a_pipeline_file_gives_its_rows(binary, tmp_path, make, rows):
    dataset = make(cj.range(4).with_columns(x="id * 5"))
    fingerprint, epoch = run(binary, tmp_path, dataset.to_yaml())
    assert fingerprint == dataset.fingerprint
    assert epoch["rows_checksum"] == checksum(**rows), [dict(row) for row in dataset]


def increment(row):
    if row.get("x") == 7:
        raise ValueError("seven")
    if row.get("x") == 8:
        threading.Event().wait(60)
    return {"id": row["id"] + 1}


def test_keys_of_a_function_in_a_pipeline_file(binary, tmp_path):
    def text(x, **keys):
        definition = yaml.safe_load(cj.range(4).with_columns(x=f"CAST({x} AS bigint)").map(increment, schema={"id": "int64"}).to_yaml())
        definition["steps"][1]["python"].update(keys)
        return yaml.safe_dump(definition)

    def error(x, code=2, **keys):
        (tmp_path / "bad.yaml").write_text(text(x, **keys))
        return binary("run", tmp_path / "bad.yaml", code=code).stderr

    one, other, random = (run(binary, tmp_path, text(1, **keys)) for keys in ({}, {"code": "00"}, {"random": True}))
    assert len({fingerprint for fingerprint, _ in (one, other, random)}) == 3
    assert {epoch["rows_checksum"] for _, epoch in (one, other, random)} == {checksum(**ids(1, 2, 3, 4))}
    assert "function `another` raised ValueError: seven" in error(7, name="another")
    assert "function `increment` changes column `id`, and `keeps` says" in error(1, keeps=["id"])
    assert "it made no progress within 300.0 ms" in error(8, timeout="300ms", code=3)
