"""Reads that are cancelled: what came before stays, and nothing comes after."""

import threading

import pytest

import caju as cj


@pytest.mark.parametrize("where", ["here", "service"])
def test_cli_06_what_was_read_before_a_close_stays_and_nothing_comes_after(cluster, where):
    dataset = cj.range(100_000).batch(10)
    epoch = iter(dataset if where == "here" else dataset.distribute(cluster(workers=1).dispatcher.address))
    batches = [next(epoch) for _ in range(3)]
    epoch.close()
    for _ in range(2):
        with pytest.raises(cj.Cancelled, match="epoch 0 was closed after 3 elements"):
            next(epoch)
    rows = [int(row) for batch in batches for row in batch["id"]]
    assert len(set(rows)) == 30 and all(0 <= row < 100_000 for row in rows)


@pytest.mark.parametrize("where", ["here", "service"])
def test_cli_06_a_loop_whose_reader_another_thread_closes_does_not_end_like_an_epoch(cluster, where):
    dataset = cj.range(10_000_000).batch(10)
    epoch = iter(dataset if where == "here" else dataset.distribute(cluster(workers=1).dispatcher.address))
    began, ends = threading.Event(), []

    def read():
        try:
            for _ in epoch:
                began.set()
            ends.append("the end of the epoch")
        except cj.CajuError as e:
            ends.append(e)

    reader = threading.Thread(target=read)
    reader.start()
    assert began.wait(60)
    epoch.close()
    reader.join(60)
    assert len(ends) == 1 and isinstance(ends[0], cj.Cancelled), ends


def test_a_reader_that_is_closed_at_its_end_stays_at_its_end():
    epoch = iter(cj.range(10))
    assert len(list(epoch)) == 10
    epoch.close()
    assert list(epoch) == []
