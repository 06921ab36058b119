"""`len` of a dataset is the number of elements that an epoch gives, or an error."""

import pyarrow as pa
import pytest

import caju as cj


def ragged():
    return cj.from_arrow(pa.table({"x": [list(range(n % 5 + 1)) for n in range(70)]}))


PIPELINES = {
    "repetitions share batches": lambda: cj.range(10).batch(4).repeat(3),
    "a take counts batches": lambda: cj.range(10).batch(4).repeat(3).take(100),
    "a take ends early": lambda: cj.range(10).batch(4).repeat(3).take(5),
    "a skip counts batches": lambda: cj.range(10).batch(4).repeat(3).skip(1),
    "dropped remainders of each repetition": lambda: cj.range(10).batch(4, drop_remainder=True).repeat(3).take(100),
    "rows of full batches": lambda: cj.range(10).batch(4, drop_remainder=True).repeat(3).unbatch(),
    "rows of all batches": lambda: cj.range(10).batch(4).repeat(3).unbatch(),
    "a dropped remainder": lambda: cj.range(70).batch(32, drop_remainder=True).unbatch(),
    "a planned take": lambda: cj.range(100).take(50).batch(8).repeat(2),
    "a take below a shuffle": lambda: cj.range(100).shuffle(10).take(50).batch(8).repeat(2),
    "stages on padded rows": lambda: ragged().padded_batch(32).with_columns(n="array_length(x)").repeat(2),
    "padded rows": lambda: ragged().padded_batch(32).repeat(2),
    "a shard of each repetition": lambda: cj.range(10).batch(4).shard(2, 0).repeat(2),
    "a shard of all repetitions": lambda: cj.range(10).batch(4).repeat(2).shard(2, 1),
    "a shard of full batches": lambda: cj.range(10).batch(4, drop_remainder=True).shard(2, 0).repeat(2),
    "repetitions fill a batch": lambda: cj.range(3).batch(4, drop_remainder=True).repeat(4),
    "an order that is promised": lambda: cj.range(10).with_options(deterministic=True).batch(4).repeat(3),
}


@pytest.fixture(scope="module")
def cluster():
    with cj.LocalCluster(workers=2) as cluster:
        yield cluster


@pytest.mark.parametrize("name", PIPELINES)
def test_len_is_the_number_of_elements_that_come(name, cluster):
    dataset = PIPELINES[name]()
    assert len(dataset) == len(list(dataset))
    shared = dataset.distribute(cluster)
    try:
        known = len(shared)
    except TypeError as e:
        assert "each worker ends with a short batch of its own" in str(e)
    else:
        assert known == len(list(shared))


def test_repetitions_that_fill_batches_together_are_endless():
    with pytest.raises(TypeError, match="endless"):
        len(cj.range(3).batch(4, drop_remainder=True).repeat())
