"""Consumers that read in rounds (`balance=`): the n-th batches of all ranks have something in common."""

import threading

import caju as cj
import pytest

PATIENCE_S = 120
RANKS = 4


def items(i):
    return 1 + i * 7919 % 97


def rows(count):
    return cj.range(count).with_columns(tokens="array_repeat(id, 1 + id * 7919 % 97)").shuffle(100, seed=5)


def ranks(dataset, balance, **more):
    """What each rank gets, each in a thread: its batches, and what its iterator counted."""
    got = [None] * RANKS

    def run(rank, address):
        mine = dataset.distribute(
            address, job_name="rounds", num_consumers=RANKS, consumer_index=rank, balance=balance, **more
        )
        epoch = iter(mine)
        got[rank] = (list(epoch), epoch.stats)

    with cj.LocalCluster(workers=2) as cluster:
        threads = [threading.Thread(target=run, args=(rank, cluster)) for rank in range(RANKS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
    assert None not in got
    return got


def test_cor_03_all_ranks_have_batches_of_one_class_and_one_shape():
    dataset = rows(4_000).bucket_by_length("array_length(tokens)", [32, 64], 8)
    got = ranks(dataset, "bucket", uneven="pad")
    assert len({len(batches) for batches, _ in got}) == 1
    for batches in zip(*(batches for batches, _ in got), strict=True):
        # Short batches at the ends of tasks have fewer rows.
        assert len({batch["tokens"].shape[1] for batch in batches}) == 1
        classes = {sum(items(int(i)) >= bound for bound in (32, 64)) for batch in batches for i in batch["id"]}
        assert len(classes) == 1
    assert {int(i) for batches, _ in got for batch in batches for i in batch["id"]} == set(range(4_000))
    assert all(0 <= stats.consumer_wait_s <= stats.wait_s for _, stats in got)


def test_tokens_gives_all_ranks_nearly_as_many_items_per_step():
    got = ranks(rows(6_400).batch(16), "tokens")
    assert [len(batches) for batches, _ in got] == [100] * RANKS
    ids = sorted(int(i) for batches, _ in got for batch in batches for i in batch["id"])
    assert ids == list(range(6_400))
    cost = [[sum(items(int(i)) for i in batch["id"]) for batch in batches] for batches, _ in got]
    slowest = sum(max(step) for step in zip(*cost, strict=True))
    assert slowest < 1.1 * sum(map(items, range(6_400))) / RANKS


def test_cor_05_an_endless_dataset_of_consumers_has_no_length():
    with cj.LocalCluster(workers=1) as cluster:
        endless = cj.range(10).repeat().distribute(
            cluster, job_name="endless", num_consumers=2, consumer_index=0, balance="bucket"
        )
        with pytest.raises(TypeError, match="endless"):
            len(endless)


def test_cor_06_local_workers_are_refused_for_consumers():
    with cj.LocalCluster(workers=1) as cluster:
        mine = cj.range(10).distribute(
            cluster, job_name="local", num_consumers=3, consumer_index=0, target_workers="local", balance="bucket"
        )
        with pytest.raises(ValueError, match="exclude each other"):
            iter(mine)
