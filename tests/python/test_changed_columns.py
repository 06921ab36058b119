"""Files of combined datasets that were rewritten with other columns: a new job on the same workers gets them under their names."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import caju as cj


def values(column, version):
    begin = 1000 * version + 100 * "xyuv".index(column)
    return list(range(begin, begin + 50))


def write(folder, version):
    """The first version has the columns in the order of the alphabet, and the second one in the opposite order."""
    for name, columns in {"a": "xy", "b": "xy", "c": "uv"}.items():
        names = sorted(columns, reverse=version > 1)
        file = folder / f"{name}.parquet"
        file.unlink(missing_ok=True)
        pq.write_table(pa.table({column: values(column, version) for column in names}), file)


def rows(cluster, source):
    return list(cj.from_yaml(json.dumps({"source": source})).distribute(cluster))


@pytest.mark.parametrize("kind,files,columns", [("concatenate", "ab", "xy"), ("sample", "ab", "xy"), ("zip", "ac", "xyuv")])
def test_rewritten_files_of_combined_datasets_come_under_the_names_that_they_have_now(tmp_path, kind, files, columns):
    datasets = [{"source": {"parquet": str(tmp_path / f"{name}.parquet")}} for name in files]
    source = {kind: {"datasets": datasets, "weights": [0.5, 0.5]} if kind == "sample" else datasets}
    with cj.LocalCluster() as cluster:
        for version in [1, 2]:
            write(tmp_path, version)
            found = rows(cluster, source)
            for column in columns:
                want = values(column, version) * (1 if kind == "zip" else 2)
                assert sorted(row[column] for row in found) == sorted(want), (version, column)


def test_rewritten_text_files_of_a_concatenate_have_the_types_that_are_found_now(tmp_path):
    file = tmp_path / "a.csv"
    source = {"concatenate": [{"source": {"csv": str(file)}}, {"source": {"csv": str(file)}}]}
    with cj.LocalCluster() as cluster:
        for text, want, kind in [("x\n0.5\n1.5\n", [0.5, 1.5], "f"), ("x\n7\n8\n9\n", [7, 8, 9], "i")]:
            file.write_text(text)
            found = [row["x"] for row in rows(cluster, source)]
            assert sorted(found) == sorted(want * 2)
            assert {np.asarray(value).dtype.kind for value in found} == {kind}
