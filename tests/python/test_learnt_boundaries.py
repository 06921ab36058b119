"""Boundaries of `bucket_by_length` that are learnt from the first rows: the same for all epochs, readers and services."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import caju as cj

RANKS = 3


def rows(count: int) -> cj.Dataset:
    """Rows of lengths 1 to 97."""
    return cj.range(count).with_columns(n="id * 7919 % 97 + 1")


def learnt(count: int = 2_000, classes: int = 4) -> list[int]:
    """The boundaries of these rows."""
    lengths = sorted(i * 7919 % 97 + 1 for i in range(count))
    return [lengths[k * count // classes] for k in range(1, classes)]


def class_of(n: int) -> int:
    return int(np.searchsorted(learnt(), n, side="right"))


def classes(batch: dict[str, np.ndarray]) -> set[int]:
    return {class_of(int(n)) for n in batch["n"]}


def bucketed(count: int) -> cj.Dataset:
    return rows(count).shuffle(100).bucket_by_length("n", cj.quantiles(4, rows=2_000), 8, pad=False)


def test_batches_are_of_one_class_in_every_epoch():
    dataset = bucketed(3_000)
    for _ in range(2):
        batches = list(dataset)
        assert all(len(classes(batch)) == 1 for batch in batches)
        assert {c for batch in batches for c in classes(batch)} == {0, 1, 2, 3}
        assert sorted(int(i) for batch in batches for i in batch["id"]) == list(range(3_000))
    given = rows(3_000).shuffle(100).bucket_by_length("n", learnt(), 8, pad=False)
    assert iter(dataset).fingerprint == iter(given).fingerprint == given.fingerprint


def test_cor_03_all_ranks_have_batches_of_one_learnt_class():
    got: list[list[dict[str, np.ndarray]]] = [[] for _ in range(RANKS)]
    with cj.LocalCluster(workers=2) as cluster:

        def read(rank: int) -> None:
            dataset = bucketed(3_000).distribute(
                cluster, job_name="train", num_consumers=RANKS, consumer_index=rank, balance="bucket", uneven="pad"
            )
            got[rank] = list(dataset)

        threads = [threading.Thread(target=read, args=(rank,)) for rank in range(RANKS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert len({len(batches) for batches in got}) == 1 and got[0]
    for batches in zip(*got, strict=True):
        assert len({c for batch in batches for c in classes(batch)}) == 1
    assert {int(i) for batches in got for batch in batches for i in batch["id"]} == set(range(3_000))


def test_a_state_is_read_on_at_another_service():
    dataset = bucketed(3_000)
    with cj.LocalCluster(workers=1) as cluster:
        first = iter(dataset.distribute(cluster))
        taken = [int(i) for _ in range(50) for i in next(first)["id"]]
        state = first.state_dict()
    with cj.LocalCluster(workers=2) as cluster:
        second = iter(dataset.distribute(cluster))
        second.load_state_dict(state)
        batches = list(second)
        other = iter(rows(3_000).bucket_by_length("n", learnt(), 8, pad=False).distribute(cluster))
        with pytest.raises(cj.InvalidPipeline, match="the state is of the dataset"):
            next(other)
            other.load_state_dict(state)
    assert all(len(classes(batch)) == 1 for batch in batches)
    assert sorted(taken + [int(i) for batch in batches for i in batch["id"]]) == list(range(3_000))


def test_functions_and_rows_in_memory_are_learnt_from():
    def longer(row):
        return {"words": list(range(int(row["id"]) % 10 + 1))}

    table = cj.from_numpy({"id": np.arange(400)})
    for dataset in (cj.range(400), table):
        batches = list(dataset.map(longer).bucket_by_length("array_length(words)", cj.quantiles(2), 4))
        assert all(len({bool(n > 5) for n in (batch["words"] != 0).sum(axis=1) + 1}) == 1 for batch in batches)
        assert sum(len(batch["words"]) for batch in batches) == 400


def test_what_cannot_be_learnt_says_which_stage():
    bad = cj.range(100).with_columns(n="1 / (id - 5)").bucket_by_length("n", cj.quantiles(4), 2, pad=False)
    with pytest.raises(cj.CajuError, match=r"steps\[1\].bucket_by_length: its boundaries could not be learnt"):
        list(bad)
    with pytest.raises(cj.InvalidPipeline, match="one batch size for all classes"):
        list(cj.range(9).bucket_by_length("id", cj.quantiles(2), [1, 2]))
    with pytest.raises(cj.InvalidPipeline, match="boundaries.quantiles: expected an integer from 2 to 1000"):
        list(cj.range(9).bucket_by_length("id", cj.quantiles(1), 2))


def test_the_definition_is_that_of_a_pipeline_file():
    text = """
source: { range: 10 }
steps:
  - bucket_by_length: { length: id, boundaries: { quantiles: 4, rows: 100 }, batch_sizes: 2, pad: false }
"""
    here = cj.range(10).bucket_by_length("id", cj.quantiles(4, rows=100), 2, pad=False)
    assert here.fingerprint == cj.from_yaml(text).fingerprint
    assert cj.from_yaml(here.to_yaml()).fingerprint == here.fingerprint
