"""Passes over one handle, by their ids in docs/conformance.md."""

import itertools

import pytest

import caju as cj


def values(epoch):
    return [int(row["id"]) for row in epoch]


def test_ops_03_one_handle_gives_ten_ordered_passes(cluster):
    dataset = cj.range(3).distribute(cluster(workers=1).dispatcher.address)
    assert [values(dataset) for _ in range(10)] == [[0, 1, 2]] * 10


def test_ops_04_one_handle_gives_five_ordered_passes(cluster):
    dataset = cj.range(10).distribute(cluster(workers=1).dispatcher.address, job_name="five", epochs=5)
    assert [value for _ in range(5) for value in values(dataset)] == list(range(10)) * 5


def test_job_06_each_epoch_of_a_named_handle_is_full(cluster):
    for workers in (1, 2):
        dataset = cj.range(10).distribute(cluster(workers=workers).dispatcher.address, job_name="named")
        for _ in range(5):
            assert sorted(values(dataset)) == list(range(10))


@pytest.mark.parametrize("deterministic", [False, True], ids=["as_they_come", "deterministic"])
@pytest.mark.parametrize("workers", [0, 1, 4], ids=["in_process", "one_worker", "four_workers"])
def test_det_02_source_order_without_shuffle(cluster, tmp_path, workers, deterministic):
    """117 rows in nine splits, which several workers share."""
    ranges = [(13 * i, 13 * (i + 1)) for i in range(9)]
    servers = cluster(workers=workers) if workers else None
    if servers:
        parts = [{"source": {"range": {"start": start, "end": end}}} for start, end in ranges]
        epoch = servers.report({"source": {"concatenate": parts}}, tmp_path)["epochs"][0]
        assert epoch["splits"]["compute"] == 9
    rows = cj.concatenate(*(cj.range(*part) for part in ranges)).with_options(deterministic=deterministic)
    for size, drop, count in [(1, False, 117), (1, True, 117), (4, False, 117), (4, True, 116)]:
        data = rows.batch(size, drop_remainder=drop)
        lengths = [size] * (count // size) + [1] * (count % size)
        assert len(data) == len(lengths)
        batches = [batch["id"].tolist() for batch in (data.distribute(servers.dispatcher.address) if servers else data)]
        given = [i for batch in batches for i in batch]
        if deterministic:
            assert [len(batch) for batch in batches] == lengths and given == list(range(count))
        else:
            assert sorted(len(batch) for batch in batches) == sorted(lengths)
            assert len(set(given)) == count and set(given) <= set(range(117))


def test_dyn_07_no_value_of_an_endless_repeat_starves(cluster):
    servers = cluster(workers=2)
    epoch = iter(cj.range(20).repeat().distribute(servers.dispatcher.address))
    ids = values(itertools.islice(epoch, 1000))
    epoch.close()
    assert len(ids) == 1000
    assert all(ids.count(i) > 25 for i in range(20)), ids
