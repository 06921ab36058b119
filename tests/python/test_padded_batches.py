"""Stages below a `padded_batch` see each batch as it is delivered, whatever workers share the epoch."""

import numpy as np
import pyarrow as pa
import pytest

import caju as cj

LENGTHS = [1 + i % 7 for i in range(22)]


def rows():
    return cj.from_arrow(pa.table({
        "id": pa.array(range(22), pa.int64()),
        "l": pa.array([list(range(n)) for n in LENGTHS], pa.list_(pa.int64())),
    }))


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("fixed", [False, True])
def test_stages_that_compute_on_padded_lists_see_the_batches_that_are_delivered(cluster, deterministic, fixed):
    data = rows().repeat(3).padded_batch(4, {"l": 9} if fixed else None, {"l": -1})
    data = data.with_columns(n="array_length(l)", last="l[-1]", copy="l").with_options(deterministic=deterministic)
    ids = []
    for batch in data.distribute(cluster(workers=3).dispatcher.address):
        width = batch["l"].shape[1]
        assert width == (9 if fixed else max(LENGTHS[i] for i in batch["id"]))
        assert (batch["n"] == width).all(), "computed of the batch before it was put together"
        assert np.array_equal(batch["copy"], batch["l"]), "another padding under another name"
        assert np.array_equal(batch["last"], batch["l"][:, -1])
        for i, row in zip(batch["id"], batch["l"], strict=True):
            assert row.tolist() == [*range(LENGTHS[i]), *[-1] * (width - LENGTHS[i])]
        ids += batch["id"].tolist()
    assert sorted(ids) == sorted([*range(22)] * 3)


def test_without_such_stages_the_short_batches_of_workers_are_merged(cluster):
    data = rows().repeat(3).padded_batch(4).distribute(cluster(workers=3).dispatcher.address)
    assert sorted(len(batch["id"]) for batch in data) == [2, *[4] * 16]


def test_rounds_of_one_shape_refuse_stages_that_compute_on_padded_lists(cluster):
    data = rows().bucket_by_length("array_length(l)", [4], 2).with_columns(n="array_length(l)")
    data = data.distribute(cluster(workers=1).dispatcher.address, job_name="j", num_consumers=1, consumer_index=0, balance="bucket")
    with pytest.raises(cj.InvalidPipeline, match="`with_columns` computes on lists that `bucket_by_length` has padded"):
        next(iter(data))


@pytest.mark.parametrize("remote", [False, True])
def test_a_bad_row_that_is_skipped_below_a_batch_leaves_its_batch(cluster, remote):
    data = cj.range(10).batch(4).with_columns(y="10 / id").with_options(on_error="skip", deterministic=True)
    if remote:
        data = data.distribute(cluster(workers=1).dispatcher.address)
    assert [batch["id"].tolist() for batch in data] == [[1, 2, 3], [4, 5, 6, 7], [8, 9]]
    data = cj.range(3).batch(1).with_columns(y="10 / id").with_options(on_error="skip", deterministic=True)
    if remote:
        data = data.distribute(cluster(workers=1).dispatcher.address)
    assert [batch["id"].tolist() for batch in data] == [[1], [2]]
