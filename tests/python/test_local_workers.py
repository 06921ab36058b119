"""Workers in a reader's own process, on the cores that its trainer leaves free: `distribute(local_workers=...)`."""

import gc
import multiprocessing
import os
import sys

import pytest

import caju as cj
from caju import _local_workers


def own_workers(servers):
    """The active workers without a port."""
    workers = servers.status()["workers"]
    return [w for w in workers if w["address"].startswith("memory://") and w["state"] == "active"]


def test_a_local_worker_is_enough_for_its_process_and_ends_with_its_datasets(cluster):
    servers = cluster(workers=0)
    address = servers.dispatcher.address
    ds = cj.range(1000).distribute(address, local_workers=1, epochs=2)
    for _ in range(2):
        assert sorted(int(row["id"]) for row in ds) == list(range(1000))
    [worker] = own_workers(servers)
    assert worker["cores"] == 1
    # Another dataset of this process shares it.
    other = cj.range(10).distribute(address, local_workers=1)
    assert sorted(int(row["id"]) for row in other) == list(range(10))
    assert len(own_workers(servers)) == 1
    del ds, other
    gc.collect()
    assert own_workers(servers) == []


def test_local_workers_work_beside_those_of_the_cluster(cluster):
    servers = cluster(workers=1)
    ds = cj.range(20_000).map({"x": "id * 2"}).distribute(servers.dispatcher.address, local_workers=2)
    assert sorted(int(row["x"]) for row in ds) == list(range(0, 40_000, 2))
    [worker] = own_workers(servers)
    assert worker["cores"] == 2


def test_a_local_worker_runs_the_functions_of_its_dataset(cluster):
    servers = cluster(0, "--allow-python", sys.executable)
    ds = cj.range(10).map(lambda row: {"y": row["id"] + 1}).distribute(servers.dispatcher.address, local_workers=1)
    assert sorted(int(row["y"]) for row in ds) == list(range(1, 11))


def ids(dataset):
    return sorted(int(row["id"]) for row in dataset)


def test_a_process_that_gets_the_dataset_by_pickle_has_a_worker_of_its_own(cluster):
    # The cluster has no other worker, and that of another process cannot be reached.
    ds = cj.range(10).distribute(cluster(workers=0).dispatcher.address, local_workers=1)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(ids, (ds,)) == list(range(10))


@pytest.mark.parametrize(
    ("cores", "load", "ranks", "spare"),
    [(8, 0.0, None, 7), (8, 3.2, None, 4), (8, 3.2, "2", 2), (8, 1.0, "4(x2)", 1), (8, 9.5, None, 0), (1, 0.0, None, 0)],
)
def test_the_spare_cores_are_those_that_are_neither_busy_nor_of_a_training_process(monkeypatch, cores, load, ranks, spare):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    monkeypatch.setattr(_local_workers, "_allowed_cores", lambda: cores)
    monkeypatch.setattr(_local_workers, "_cores_of_host", lambda: cores)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    for name in _local_workers.RANKS_OF_HOST:
        monkeypatch.delenv(name, raising=False)
    if ranks is not None:
        monkeypatch.setenv("SLURM_NTASKS_PER_NODE", ranks)
    assert _local_workers.spare_cores() == spare


@pytest.mark.parametrize(("bound", "allowed", "load", "spare"), [(64, 4, 16.0, 3), (64, 4, 48.0, 1), (8, 64, 0.0, 7), (64, 64, 16.0, 48)])
def test_a_process_in_a_container_counts_the_cores_that_it_may_use(monkeypatch, bound, allowed, load, spare):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(bound)))
    monkeypatch.setattr(_local_workers, "_allowed_cores", lambda: allowed)
    monkeypatch.setattr(_local_workers, "_cores_of_host", lambda: 64)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    for name in _local_workers.RANKS_OF_HOST:
        monkeypatch.delenv(name, raising=False)
    assert _local_workers.spare_cores() == spare


def test_the_cores_of_this_process_are_known():
    assert 1 <= _local_workers._allowed_cores() <= (os.cpu_count() or 1)


def test_auto_without_a_spare_core_starts_no_worker(cluster, monkeypatch):
    monkeypatch.setattr(os, "getloadavg", lambda: (4096.0, 0.0, 0.0))
    servers = cluster(workers=1)
    ds = cj.range(10).distribute(servers.dispatcher.address, local_workers="auto")
    assert sorted(int(row["id"]) for row in ds) == list(range(10))
    assert own_workers(servers) == []


@pytest.mark.parametrize("wrong", ["all", -1, 1.5, True, 10_000])
def test_what_is_no_number_of_cores_is_refused(wrong):
    with pytest.raises(cj.InvalidPipeline, match="local_workers"):
        cj.range(10).distribute("h:1", local_workers=wrong)


def test_a_cluster_of_this_process_needs_none():
    with cj.LocalCluster() as here, pytest.raises(cj.InvalidPipeline, match="in this process already"):
        cj.range(10).distribute(here, local_workers=1)
