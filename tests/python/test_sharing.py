"""Datasets of jobs that share: each gets all rows of its epochs, and rows are computed once for all of them."""

import ctypes
import pathlib
import sys
import threading

import pytest

import caju as cj

PATIENCE_S = 90
ROWS = 20_000


def finish(epochs):
    """The ids of several epochs, each read in a thread."""
    got, failures = [None] * len(epochs), []

    def run(n):
        try:
            got[n] = sorted(int(i) for batch in epochs[n] for i in batch["id"])
        except Exception as e:
            failures.append(e)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(len(epochs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    if failures:
        raise failures[0]
    return got


def rows(square):
    """Rows that differ below a hint."""
    return cj.range(ROWS).with_columns(x="uniform(0.0, 1.0)").autocache("x").with_columns(y=square).shuffle(200).batch(32)


@pytest.mark.parametrize("workers", [1, 2])
def test_every_job_that_shares_gets_all_rows_in_each_epoch(workers):
    with cj.LocalCluster(workers=workers) as cluster:
        trials = [rows(f"x + {i % 2}").distribute(cluster, job_name=f"trial-{i}", sharing="exact", policy="compute")
                  for i in range(3)]
        for _ in range(2):
            assert finish(trials) == [list(range(ROWS))] * 3


def test_every_trainer_of_a_job_gets_all_rows():
    with cj.LocalCluster(workers=1) as cluster:
        trainers = [rows("x").distribute(cluster, job_name="trials", sharing="exact", trainer_id=name) for name in "ab"]
        assert finish(trainers) == [list(range(ROWS))] * 2


def is_shared(array):
    """Whether an array lies in a file in memory of a worker."""
    maps = pathlib.Path("/proc/self/maps").read_text().splitlines()
    spans = [line.split()[0].split("-") for line in maps if "memfd:caju" in line]
    address = array.__array_interface__["data"][0]
    return any(int(first, 16) <= address < int(end, 16) for first, end in spans)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such files")
@pytest.mark.parametrize("protocol", ["auto", "framed"])
def test_large_batches_lie_in_memory_that_the_worker_wrote(cluster, protocol):
    rows = cj.range(120_000).batch(40_000).with_options(deterministic=True)
    rows = rows.distribute(cluster(workers=1).dispatcher.address, job_name="train", sharing="exact", data_transfer_protocol=protocol)
    for _ in range(2):
        epoch = iter(rows)
        batches = [batch["id"] for batch in epoch]
        assert [int(batch[0]) for batch in batches] == [0, 40_000, 80_000]
        assert [is_shared(batch) for batch in batches] == [protocol == "auto"] * 3
        assert not any(batch.flags.writeable for batch in batches)
        came = epoch.stats.mapped_bytes, epoch.stats.received_bytes
        assert came == ((960_000, 0) if protocol == "auto" else (0, 960_000))
        # A tensor over the memory may be changed in place by mistake: that ends no process, and nobody else sees it.
        ctypes.memset(batches[0].ctypes.data, 1, 8)
        assert int(batches[0][0]) == 0x0101_0101_0101_0101


@pytest.mark.parametrize("arguments, text", [
    ({"job_name": "j", "sharing": "relaxd"}, "not one of exact, relaxed, off"),
    ({"sharing": "exact"}, "needs job_name="),
    ({"sharing": "relaxed"}, "needs job_name="),
    ({"job_name": "j", "trainer_id": "a"}, "belongs to sharing="),
    ({"job_name": "j", "sharing": "off", "trainer_id": "a"}, "belongs to sharing="),
    ({"job_name": "j", "sharing": "exact", "trainer_id": " "}, "must be a name that is not empty"),
    ({"job_name": "j", "sharing": "exact", "num_consumers": 2, "consumer_index": 0}, "exclude each other"),
])
def test_xtr_18_what_cannot_be_shared_is_refused_at_once(arguments, text):
    with pytest.raises(cj.InvalidPipeline, match=text):
        cj.range(3).distribute("h:1", **arguments)
