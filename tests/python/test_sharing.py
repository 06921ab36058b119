"""Datasets of jobs that share: each gets all rows of its epochs, and rows are computed once for all of them."""

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
