"""Random draws are those of the row, whatever cuts or divides the rows."""

import numpy as np
import pandas as pd
import pytest

import caju as cj


def test_draws_below_a_shard_and_a_filter_are_the_same_for_each_number_of_shards(tmp_path):
    data = cj.range(3000)

    def draws(shards):
        found = {}
        for index in range(shards):
            rows = data.shard(shards, index).filter("id % 3 = 0").with_columns(r="uniform()")
            found.update({int(row["id"]): float(row["r"]) for row in rows})
        return found

    one = draws(1)
    assert len(one) == 1000 and len(set(one.values())) == 1000
    assert draws(2) == one == draws(5)


MULTIPLIED_ROWS = 1200
"""Rows before each becomes three: those of two splits."""


def thrice(row):
    return [{"id": row["id"], "k": k} for k in range(3)]


def drawn(row):
    return {"id": row["id"], "k": row["k"], "r": cj.rng().random()}


def multiplied(order, shard=(1, 0)):
    """Rows that a `flat_map` multiplied, of this shard, with a draw each."""
    rows = cj.range(MULTIPLIED_ROWS)
    for stage in order.split(", "):
        if stage == "shard":
            rows = rows.shard(*shard)
        elif stage == "function":
            rows = rows.flat_map(thrice, schema={"id": "int64", "k": "int64"})
        elif stage == "shuffle":
            rows = rows.shuffle(100)
        elif stage == "rng":
            return rows.map(drawn, schema={"id": "int64", "k": "int64", "r": "float64"})
        else:
            rows = rows.flat_map(k="[0, 1, 2]")
    return rows.with_columns(r="uniform()")


def draws_of(rows, cluster, **job):
    found = {(int(row["id"]), int(row["k"])): float(row["r"]) for row in rows.distribute(cluster, **job)}
    assert len(found) == len(set(found.values())), "two rows have the same draw"
    return found


MULTIPLYING = pytest.mark.parametrize("order", ["shard, flat_map", "flat_map, shard", "shard, function"])


@MULTIPLYING
def test_draws_of_a_shard_of_multiplied_rows_are_the_same_for_each_number_of_workers(order):
    shards = [multiplied(order, (2, index)) for index in range(2)]
    with cj.LocalCluster(cpu_threads=1) as one, cj.LocalCluster(workers=3, cpu_threads=2) as three:
        draws = [draws_of(rows, one) for rows in shards]
        assert [draws_of(rows, three) for rows in shards] == draws
    assert len(draws[0] | draws[1]) == 3 * MULTIPLIED_ROWS, "each row is in one shard"


@MULTIPLYING
def test_draws_of_multiplied_rows_are_the_same_for_each_number_of_shards(order):
    with cj.LocalCluster(cpu_threads=1) as cluster:
        whole = draws_of(multiplied(order), cluster)
        assert draws_of(multiplied(order, (2, 0)), cluster) | draws_of(multiplied(order, (2, 1)), cluster) == whole


@pytest.mark.parametrize("order", ["flat_map", "function", "flat_map, rng"])
def test_multiplied_rows_of_mode_data_draw_for_themselves_and_the_same_on_each_number_of_workers(order):
    """Under `dynamic` they draw by their place among all rows of the split, which a worker with some of them does not know."""
    draws = []
    for workers in (2, 3):
        with cj.LocalCluster(workers=workers, cpu_threads=1) as cluster:
            draws.append(draws_of(multiplied(order), cluster, processing_mode="data"))
    assert len(draws[0]) == 3 * MULTIPLIED_ROWS and draws[0] == draws[1]


def test_rows_below_a_shuffle_draw_the_same_in_each_processing_mode():
    rows = cj.range(MULTIPLIED_ROWS).shuffle(100).with_columns(k="0", r="uniform()")
    with cj.LocalCluster(workers=2, cpu_threads=1) as cluster:
        assert draws_of(rows, cluster, processing_mode="data") == draws_of(rows, cluster)


@pytest.mark.parametrize("order", ["flat_map, shuffle", "function, shuffle, rng"])
def test_multiplied_rows_below_a_shuffle_draw_for_themselves_in_each_shard(order):
    with cj.LocalCluster(workers=2, cpu_threads=1) as cluster:
        first, again = (draws_of(multiplied(order), cluster, processing_mode="data") for _ in range(2))
    assert len(first) == 3 * MULTIPLIED_ROWS and first == again


def jitter(batch):
    return {"id": batch["id"], "x": cj.rng().random(len(batch["id"]))}


def test_draws_for_whole_batches_are_no_function_of_the_row():
    with pytest.warns(UserWarning, match="caju.rng\\(\\) for whole batches"):
        data = cj.range(100).map(jitter, batched=True)
    with pytest.raises(cj.InvalidPipeline, match="caju.rng\\(\\) for whole batches"):
        data.autocache("behind")
    epoch = iter(data)
    next(epoch)
    with pytest.raises(cj.Unimplemented, match="for whole batches"):
        epoch.state_dict()
    accepted = cj.range(100).map(jitter, batched=True, random=True).autocache("behind")
    assert len(list(accepted)) == 100


def test_categories_of_whole_numbers_keep_their_digits_beside_nulls():
    large = 2**53 + 1
    values = pd.Series([large, None, 7], dtype="Int64").astype("category")
    rows = list(cj.from_numpy({"k": values}))
    assert [None if row["k"] is None or np.ma.is_masked(row["k"]) else int(row["k"]) for row in rows] == [large, None, 7]
