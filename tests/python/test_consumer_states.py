"""States inside an epoch of consumers: every rank gets the same number of steps, and the epoch goes on behind any of them."""

import json
import threading

import pytest

import caju as cj

PATIENCE_S = 90
ROWS, BATCH, RANKS, STEPS = 2_400, 10, 3, 20


def rank(service, index, count, uneven="drop"):
    """An epoch of 240 elements."""
    rows = cj.range(ROWS).shuffle(100).batch(BATCH)
    return iter(rows.distribute(service, job_name="train", num_consumers=count, consumer_index=index, uneven=uneven))


def ids(batches):
    return [int(i) for b in batches for i in b["id"]]


def finish(epochs):
    """What is left of several ranks' epochs, each read in a thread: the ids of each rank's batches."""
    got, failures = [None] * len(epochs), []

    def run(n):
        try:
            got[n] = [[int(i) for i in b["id"]] for b in epochs[n]]
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


def stopped(uneven="drop", steps=(STEPS,) * RANKS):
    """What ranks took until one step, and their states."""
    with cj.LocalCluster(workers=2) as cluster:
        epochs = [rank(cluster, index, len(steps), uneven) for index in range(len(steps))]
        taken = []
        for n in range(max(steps)):
            taken += ids(next(epoch) for epoch, most in zip(epochs, steps) if n < most)
        states = json.loads(json.dumps([epoch.state_dict() for epoch in epochs]))
        for epoch in epochs:
            epoch.close()
    return taken, states


@pytest.mark.parametrize("uneven", ["drop", "pad"])
def test_every_rank_goes_on_from_its_own_state(uneven):
    taken, states = stopped(uneven)
    with cj.LocalCluster(workers=1) as cluster:
        epochs = [rank(cluster, index, RANKS, uneven) for index in range(RANKS)]
        for epoch, state in zip(epochs, states):
            epoch.load_state_dict(state)
        got = finish(epochs)
    assert [len(g) for g in got] == [ROWS // BATCH // RANKS - STEPS] * RANKS
    assert sorted(taken + [i for g in got for batch in g for i in batch]) == list(range(ROWS))


@pytest.mark.parametrize("ranks,steps,count", [(3, STEPS, 1), (3, STEPS, 2), (3, STEPS, 4), (8, 9, 6)])
def test_another_number_of_ranks_goes_on_from_the_states_of_all(ranks, steps, count):
    taken, states = stopped(steps=(steps,) * ranks)
    with cj.LocalCluster(workers=2) as cluster:
        epochs = [rank(cluster, index, count) for index in range(count)]
        for epoch in epochs:
            epoch.load_state_dict(states)
        got = finish(epochs)
    left = ROWS // BATCH - ranks * steps
    assert [len(g) for g in got] == [left // count] * count
    assert sorted(taken + [i for g in got for batch in g for i in batch]) == list(range(ROWS))


def test_ranks_at_different_steps_catch_up_in_the_same_number_and_are_refused_in_another():
    taken, states = stopped(steps=(20, 17, 5))
    with cj.LocalCluster(workers=1) as cluster:
        epochs = [rank(cluster, index, RANKS) for index in range(RANKS)]
        for epoch, state in zip(epochs, states):
            epoch.load_state_dict(state)
        got = finish(epochs)
        totals = [len(g) + before for g, before in zip(got, (20, 17, 5))]
        assert len(set(totals)) == 1 and totals[0] >= 80, totals
        assert sorted(taken + [i for g in got for batch in g for i in batch]) == list(range(ROWS))
    with cj.LocalCluster(workers=1) as cluster:
        epoch = rank(cluster, 0, 2)
        with pytest.raises(cj.InvalidPipeline, match="different steps"):
            epoch.load_state_dict(states)


def test_a_rank_that_is_gone_comes_back_with_its_state_while_the_others_wait():
    with cj.LocalCluster(workers=2) as cluster:
        first, second = rank(cluster, 0, 2), rank(cluster, 1, 2)
        taken = ids(next(epoch) for _ in range(STEPS) for epoch in (first, second))
        state = second.state_dict()
        next(second)
        second.close()
        back = rank(cluster, 1, 2)
        back.load_state_dict(state)
        got = finish([first, back])
    assert [len(g) for g in got] == [100, 100]
    assert sorted(taken + [i for g in got for batch in g for i in batch]) == list(range(ROWS))


@pytest.mark.parametrize("way", ["own", "list"])
@pytest.mark.parametrize("steps", [1, STEPS])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_ranks_that_load_their_states_one_after_another_go_on_together(way, steps, order):
    taken, states = stopped(steps=(steps,) * RANKS)
    with cj.LocalCluster(workers=2) as cluster:
        # Each begins to read before the next one has opened the epoch.
        got, failures, begun = {}, [], {index: threading.Event() for index in order}

        def run(index):
            try:
                epoch = rank(cluster, index, RANKS)
                epoch.load_state_dict(states if way == "list" else states[index])
                begun[index].set()
                got[index] = [[int(i) for i in b["id"]] for b in epoch]
            except Exception as e:
                failures.append(e)
            finally:
                begun[index].set()

        threads = []
        for index in order:
            threads.append(threading.Thread(target=run, args=(index,)))
            threads[-1].start()
            assert begun[index].wait(PATIENCE_S)
        for thread in threads:
            thread.join(PATIENCE_S)
    assert not failures, failures
    assert [len(got[index]) for index in range(RANKS)] == [ROWS // BATCH // RANKS - steps] * RANKS
    assert sorted(taken + [i for g in got.values() for batch in g for i in batch]) == list(range(ROWS))


def test_one_thread_loads_and_reads_all_ranks():
    taken, states = stopped(steps=(3,) * RANKS)
    with cj.LocalCluster(workers=2) as cluster:
        epochs = []
        for index, state in enumerate(states):
            epochs.append(rank(cluster, index, RANKS))
            epochs[-1].load_state_dict(state)
        for _ in range(ROWS // BATCH // RANKS - 3):
            taken += ids(next(epoch) for epoch in epochs)
        assert [next(epoch, None) for epoch in epochs] == [None] * RANKS
    assert sorted(taken) == list(range(ROWS))
