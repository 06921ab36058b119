"""A short run of the mutation harness: damaged files of every format are an error that names them, or all their rows.

`python3 tests/mutation/run.py` runs some thousand; a violation prints the command that repeats it.
"""

import pathlib
import subprocess
import sys

import pytest

HARNESS = pathlib.Path(__file__).resolve().parents[1] / "mutation"
# Every kind of damage meets a cluster in the long run; here each format does once, and its parts and saves in turn.
SOURCES = ["parquet-plain", "parquet-dictionary", "parquet-delta", "parquet-delta-lz4", "parquet-crc", "parquet-nested",
           "arrow", "arrow-lz4", "arrow-zstd", "arrow-nested", "tfrecord", "tfrecord-gz", "csv", "csv-gz", "json",
           "json-gz", "tar", "tar-gz", "png", "jpeg"]
# Other forms of the same formats.
FORMS = ["parquet-nested-crc", "arrow-nested-zstd", "tfrecord-zst", "csv-zst", "csv-zst-unchecked", "json-zst",
         "json-nested", "tar-pax", "tar-zst", "png-16", "jpeg-progressive", "webp", "webp-lossless"]
STORED = ["cache-arrow-none", "cache-arrow-lz4", "cache-parquet-zstd", "cache-set-arrow-none", "cache-nested-arrow-zstd",
          "save-arrow-zstd", "save-parquet-none", "save-nested-parquet-zstd"]


def harness(caju, folder, *args):
    command = [sys.executable, "-B", str(HARNESS / "run.py"), "--binary", caju.binary, "--violations", str(folder), *args]
    done = subprocess.run(command, env=caju.env, capture_output=True, text=True, timeout=200)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("only, count, ways", [(SOURCES, 2, "run,cluster"), (FORMS, 2, "run,cluster"),
                                               (STORED, 2, "run,cluster")], ids=["sources", "forms", "stored"])
def test_damaged_files_are_errors_or_all_rows(caju, tmp_path, only, count, ways):
    code, table = harness(caju, tmp_path / "kept", "--count", str(count), "--only", ",".join(only), "--ways", ways)
    assert code == 0, table
    assert all(name in table for name in only), table


def test_what_breaks_a_promise_is_kept_and_counted(caju, tmp_path):
    """A reader that delivers a good file whatever it is given breaks the promise of a format with checksums."""
    good = tmp_path / "good.jsonl"
    liar = tmp_path / "liar"
    liar.write_text(f"""#!{sys.executable}
import json, pathlib, subprocess, sys
pipeline = pathlib.Path(sys.argv[2])
definition = json.loads(pipeline.read_text())
path = definition["source"]["json"]["path"]
good = pathlib.Path({str(good)!r})
if good.exists():
    pathlib.Path(path).write_bytes(good.read_bytes() + b'{{"id": 1}}\\n')
else:
    good.write_bytes(pathlib.Path(path).read_bytes())
sys.exit(subprocess.run([{caju.binary!r}, *sys.argv[1:]]).returncode)
""")
    liar.chmod(0o755)
    kept = tmp_path / "kept"
    caju_that_lies = type(caju)(liar)
    code, table = harness(caju_that_lies, kept, "--count", "2", "--only", "json", "--ways", "run", "--jobs", "1")
    assert code == 1 and "2 violations" in table, table
    assert "--only json --replay 0" in (kept / "json-1-0-run/violation.txt").read_text()
