"""Passes over one handle, by their ids in docs/conformance.md."""

import itertools

import caju as cj


def values(epoch):
    return [int(row["id"]) for row in epoch]


def test_ops_03_one_handle_gives_ten_ordered_passes(cluster):
    dataset = cj.range(3).distribute(cluster(workers=1).dispatcher.address)
    assert [values(dataset) for _ in range(10)] == [[0, 1, 2]] * 10


def test_job_06_each_epoch_of_a_named_handle_is_full(cluster):
    for workers in (1, 2):
        dataset = cj.range(10).distribute(cluster(workers=workers).dispatcher.address, job_name="named")
        for _ in range(5):
            assert sorted(values(dataset)) == list(range(10))


def test_dyn_07_no_value_of_an_endless_repeat_starves(cluster):
    servers = cluster(workers=2)
    epoch = iter(cj.range(20).repeat().distribute(servers.dispatcher.address))
    ids = values(itertools.islice(epoch, 1000))
    epoch.close()
    assert len(ids) == 1000
    assert all(ids.count(i) > 25 for i in range(20)), ids
