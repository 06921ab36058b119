"""What is said about rows that were skipped, about the order of rows, and about what was read."""

import json
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import Cluster

import caju as cj

# ---- skipped rows --------------------------------------------------------------------------------------------------

SCHEMA = {"n": "int64", "s": "string"}


@pytest.fixture
def bad_rows(tmp_path):
    """Two files of ten rows; rows 3 and 7 of each are bad."""
    for name in "ab":
        rows = [f"{'x' if i in (3, 7) else i},row {i}" for i in range(10)]
        (tmp_path / f"{name}.csv").write_text("n,s\n" + "\n".join(rows) + "\n")
    return tmp_path / "*.csv"


def test_an_iterator_reports_which_rows_were_skipped(bad_rows):
    rows = cj.read_csv(bad_rows, schema=SCHEMA).with_options(on_error="skip").batch(4)
    for _ in range(2):
        epoch = iter(rows)
        next(epoch)
        with pytest.raises(cj.FailedPrecondition, match="not at its end"):
            epoch.skipped
        for _ in epoch:
            pass
        assert epoch.skipped.rows == 4 and epoch.stats.rows == 16
        assert sorted(line.rsplit("/", 1)[1].split(": `")[0] for line in epoch.skipped.first) == [
            f"{name}.csv: line {line}: column `n`" for name in "ab" for line in (5, 9)
        ]
    clean = iter(cj.range(3))
    list(clean)
    assert clean.skipped == cj.Skipped(0, [])


def test_rows_that_a_stage_skips_are_reported_with_stage_and_row():
    rows = cj.range(10).map(x="decode_image(CAST(concat('x', id) AS bytea))")
    epoch = iter(rows.with_options(on_error="skip"))
    assert list(epoch) == [] and epoch.skipped.rows == 10
    assert all(line.startswith("steps[0].map") for line in epoch.skipped.first)


def test_reports_summaries_and_logs_tell_which_rows_were_skipped(caju, bad_rows, tmp_path):
    definition = {"source": {"csv": {"path": str(bad_rows), "schema": SCHEMA}}, "on_error": "skip"}
    file = tmp_path / "p.yaml"
    file.write_text(json.dumps(definition))
    out = tmp_path / "report.json"
    done = caju("run", file, "--report", out)
    epoch = json.loads(out.read_text())["epochs"][0]
    assert epoch["rows_skipped"] == 4 and len(epoch["first_skips"]) == 4
    said = " ".join(done.stdout.split())
    assert "4 rows skipped" in said and "a.csv: line 5: column `n`" in said, said
    cluster = Cluster(caju, tmp_path, 1)
    try:
        epoch = cluster.report(definition, tmp_path)["epochs"][0]
        assert epoch["rows_skipped"] == 4 and len(epoch["first_skips"]) == 4
        assert "bad rows were skipped" in cluster.workers[0].errors()
    finally:
        cluster.kill()


# ---- order, and what is read ---------------------------------------------------------------------------------------

ORDER = """
import sys, caju
rows = caju.read_csv(sys.argv[1]).shuffle(50).with_options(deterministic=True)
print([[int(r["n"]) for r in rows] for _ in range(2)])
"""


def test_the_promised_order_is_that_of_every_run(tmp_path):
    for i in range(12):
        (tmp_path / f"{i}.csv").write_text("n\n" + "".join(f"{i * 10 + k}\n" for k in range(10)))
    run = [sys.executable, "-c", ORDER, str(tmp_path / "*.csv")]
    told = {subprocess.run(run, capture_output=True, text=True, timeout=120, check=True).stdout for _ in range(3)}
    assert len(told) == 1
    first, second = json.loads(told.pop())
    assert first != second and sorted(first) == sorted(second) == list(range(120))


def test_epochs_that_are_stored_read_no_row_of_the_source(caju, tmp_path):
    pq.write_table(pa.table({"id": range(50_000), "x": np.random.default_rng(0).random(50_000)}), tmp_path / "t.parquet")
    size = (tmp_path / "t.parquet").stat().st_size
    args = ["--cache", tmp_path / "cache", "--policy", "full", "--epochs", "2"]

    def read(steps, **options):
        definition = {"source": {"parquet": {"path": str(tmp_path / "t.parquet")}}, "steps": ["autocache", *steps]}
        epochs = caju.report("run", definition | options, tmp_path, *args)["epochs"]
        return [e["source_bytes_read"] for e in epochs if e["splits"]["put"] == e["splits"]["compute"] == 0]

    assert read([]) == [0]
    # What listing takes: footers.
    assert all(n < size / 4 for n in read([{"filter": "id >= 0"}], deterministic=True))
    assert read([{"with_columns": {"y": "x + 1"}}])[-1] == 0


# ---- rows in memory ------------------------------------------------------------------------------------------------


def test_rows_of_arrays_are_the_same_however_they_are_copied(monkeypatch):
    from caju import _memory

    many = {
        "id": np.arange(20_001), "x": np.arange(80_004, dtype=np.float32).reshape(20_001, 2, 2),
        "ok": np.arange(20_001) % 3 == 0, "big": np.arange(20_001, dtype=">i4"),
    }
    wide = {"image": np.arange(40 * 700_000, dtype=np.uint8).reshape(40, 700_000)}
    for arrays in (many, wide):
        at_once = _memory._dataset_of(_memory._caju.register_columns(_columns(arrays)))
        for piece in (1, 1 << 20, 1 << 40):
            monkeypatch.setattr(_memory, "PART_BYTES", piece)
            in_pieces = cj.from_numpy(arrays)
            assert in_pieces.fingerprint == at_once.fingerprint and len(in_pieces) == len(at_once)
    read = {name: np.concatenate([b[name] for b in cj.from_numpy(many).batch(5000).with_options(deterministic=True)])
            for name in many}
    assert all((read[name] == many[name]).all() for name in many)


def _columns(arrays):
    from caju._columns import columns_of_arrays

    return columns_of_arrays(arrays)


MEMORY = """
import resource, numpy as np, caju
caju.from_numpy({"x": np.zeros(4_000)})
array = np.ones((400_000, 128), np.float32)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
rows = caju.from_numpy({"x": array})
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 / array.nbytes)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in KiB on Linux")
def test_rows_of_arrays_are_copied_once():
    out = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, timeout=300, check=True).stdout
    assert float(out) < 1.2, out
