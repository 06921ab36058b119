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
