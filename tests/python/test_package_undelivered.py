"""Elements that a loop did not get, because `next` raised: no state counts them, and they come again."""

import itertools
import json
import logging

import numpy as np
import pytest

import caju as cj
from caju import _caju, _logging


def batches():
    return cj.range(100).shuffle(20).batch(7).with_options(deterministic=True)


def rows():
    return cj.range(100).shuffle(20).with_options(deterministic=True)


def ids(elements):
    return [int(i) for e in elements for i in np.atleast_1d(e["id"])]


def failing(dataset, at, error, *, before=False, meanwhile=lambda: None):
    """The next epoch, whose element number `at` cannot be converted. `before`: the call fails before it asks for the element.
    `meanwhile` is called when the reader has that element, before the call fails.
    """
    row, dense = dataset._form()
    numbers = itertools.count()

    def take(reader):
        number = next(numbers)
        if before and number == at:
            raise error
        element = reader.next_numpy(row, dense)
        if number == at:
            meanwhile()
            raise error
        return element

    return dataset._open(take)


@pytest.mark.parametrize("error", [ValueError("no such tensor"), KeyboardInterrupt()])
@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("at", [0, 3, 14])
@pytest.mark.parametrize("make", [batches, rows])
def test_the_state_after_a_call_that_raised_is_that_before_it(make, at, before, error):
    whole = ids(make())
    epoch = failing(make(), at, error, before=before)
    taken = ids(next(epoch) for _ in range(at))
    with pytest.raises(type(error)):
        next(epoch)
    state = json.loads(json.dumps(epoch.state_dict()))
    assert state["elements"] == epoch.stats.elements == at
    resumed = iter(make())
    resumed.load_state_dict(state)
    assert taken + ids(resumed) == whole


def test_a_call_that_raises_behind_a_loaded_state_counts_from_there():
    whole = ids(batches())
    first = iter(batches())
    taken = ids(next(first) for _ in range(4))
    second = failing(batches(), 2, ValueError("no such tensor"))
    second.load_state_dict(first.state_dict())
    taken += ids(next(second) for _ in range(2))
    with pytest.raises(ValueError, match="tensor"):
        next(second)
    state = second.state_dict()
    assert state["elements"] == 6
    third = iter(batches())
    third.load_state_dict(state)
    assert taken + ids(third) == whole


def test_another_reader_of_the_job_gets_the_element():
    with cj.LocalCluster() as cluster:
        def shared():
            return cj.range(100).batch(7).distribute(cluster, job_name="shared")

        def join():
            joined.append(iter(shared()))

        # The second reader joins when the first one has its third element. Before that, it could get all elements behind the
        # second one: the first reader would wait for one, and the user of the second reader takes none meanwhile.
        joined = []
        first = failing(shared(), 2, ValueError("no such tensor"), meanwhile=join)
        taken = ids(next(first) for _ in range(2))
        with pytest.raises(ValueError, match="tensor"):
            next(first)
        [second] = joined
        assert sorted(taken + ids(second)) == list(range(100))


def test_a_reader_that_is_closed_while_it_converts_has_no_state():
    def take(reader):
        reader.next_batch()
        epoch.close()
        raise ValueError("no such tensor")

    epoch = batches()._open(take)
    with pytest.raises(ValueError, match="tensor"):
        next(epoch)
    with pytest.raises(cj.FailedPrecondition, match="did not reach the loop"):
        epoch.state_dict()


@pytest.fixture
def all_records():
    logging.getLogger("caju").setLevel(logging.DEBUG)
    yield
    logging.getLogger("caju").setLevel(logging.NOTSET)
    _logging.sync_level()


@pytest.mark.parametrize("number", range(1, 9))
def test_a_log_handler_that_raises_loses_no_element(all_records, monkeypatch, number):
    whole = ids(batches())
    epoch, calls, taken = iter(batches()), itertools.count(1), []

    def deliver():
        _caju.take_records()
        if next(calls) == number:
            raise ValueError("the handler broke down")

    with monkeypatch.context() as patched:
        patched.setattr(_logging, "deliver", deliver)
        try:
            for element in epoch:
                taken += ids([element])
        except ValueError as e:
            assert str(e) == "the handler broke down"
        state = epoch.state_dict()
    resumed = iter(batches())
    resumed.load_state_dict(state)
    assert taken + ids(resumed) == whole
