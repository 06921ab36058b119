"""Reads that are cancelled: what came before stays, and nothing comes after."""

import pytest

import caju as cj


@pytest.mark.parametrize("where", ["here", "service"])
def test_cli_06_what_was_read_before_a_close_stays_and_nothing_comes_after(cluster, where):
    dataset = cj.range(100_000).batch(10)
    epoch = iter(dataset if where == "here" else dataset.distribute(cluster(workers=1).dispatcher.address))
    batches = [next(epoch) for _ in range(3)]
    epoch.close()
    for _ in range(2):
        with pytest.raises(StopIteration):  # as of a generator that was closed
            next(epoch)
    rows = [int(row) for batch in batches for row in batch["id"]]
    assert len(set(rows)) == 30 and all(0 <= row < 100_000 for row in rows)
