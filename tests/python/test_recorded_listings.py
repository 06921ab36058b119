"""The listing of a source that is recorded in a cache is that of the source, whatever stages chose among its splits."""

import itertools
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import caju as cj

STEPS = {
    "all": [],
    "take": [{"take": 1000}],
    "less": [{"take": 700}],
    "half": [{"take": 500}],
    "skip": [{"skip": 1000}],
    "shard": [{"shard": {"num_shards": 800, "index": 1}}],
    "repeat": [{"repeat": 2}],
    "both": [{"skip": 300}, {"take": 2100}],
}
WANT = {
    "all": range(3000),
    "take": range(1000),
    "less": range(700),
    "half": range(500),
    "skip": range(1000, 3000),
    "shard": range(1, 3000, 800),
    "repeat": sorted([*range(3000), *range(3000)]),
    "both": range(300, 2400),
}


@pytest.fixture
def read(tmp_path):
    """Reads 3,000 rows of two files, in splits of 500 rows."""
    source = tmp_path / "data"
    source.mkdir()
    for name, begin in [("a", 0), ("b", 1500)]:
        table = pa.table({"id": range(begin, begin + 1500)})
        pq.write_table(table, source / f"{name}.parquet", row_group_size=500)

    def read(name, cache_only=False, policy="hint:h", cache="cache"):
        definition = {
            "source": {"parquet": {"path": str(source / "*.parquet"), "split": "1KiB"}},
            "steps": [{"autocache": "h"}, *STEPS[name]],
            "cache_only": cache_only,
        }
        with cj.LocalCluster(cache=str(tmp_path / cache)) as cluster:
            dataset = cj.from_yaml(json.dumps(definition)).distribute(cluster, policy=policy)
            return sorted(int(element["id"]) for element in dataset)

    return read


@pytest.mark.parametrize("first,then", list(itertools.permutations(STEPS, 2)), ids="-".join)
def test_a_listing_is_of_the_source_and_not_of_the_rows_that_stages_chose(read, first, then):
    assert read(first) == list(WANT[first])
    assert read(then, policy="compute") == list(WANT[then])
    assert read(first) == list(WANT[first])


def test_stages_below_the_hint_choose_rows_also_without_the_source(read):
    assert read("all") == list(WANT["all"])
    for name in ["all", "take", "skip", "shard", "repeat"]:
        assert read(name, cache_only=True) == list(WANT[name]), name
    # Parts are whole splits, and a split of which a `take` needs the first rows alone is computed.
    with pytest.raises(cj.NotFound, match="not stored at the hint"):
        read("less", cache_only=True)


def test_a_take_that_needs_no_more_is_enough_for_itself_alone(read):
    assert read("take") == list(WANT["take"])
    assert read("take", cache_only=True) == list(WANT["take"])
    for name in ["all", "half", "skip"]:
        with pytest.raises(cj.NotFound, match="does not know what this source held"):
            read(name, cache_only=True)
    assert read("all") == list(WANT["all"])
    assert read("half", cache_only=True) == list(WANT["half"])
