"""States of iterators: where a reading stands, and how another process goes on from there."""

import json
import subprocess
import sys

import numpy as np
import pytest

import caju as cj


def shuffled(rows=100, **options):
    """Batches in a promised order, which differs from epoch to epoch."""
    return cj.range(rows).shuffle(rows).batch(7).with_options(deterministic=True, **options)


def ids(batches):
    return [int(i) for b in batches for i in b["id"]]


def test_a_state_within_an_epoch_is_continued_exactly():
    whole = shuffled()
    first, second = ids(whole), ids(whole)
    assert first != second
    reading = shuffled()
    ids(reading)
    epoch = iter(reading)
    taken = ids(next(epoch) for _ in range(5))
    state = json.loads(json.dumps(epoch.state_dict()))        # plain values
    assert (state["epoch"], state["elements"]) == (1, 5)
    resumed = shuffled()
    rest = iter(resumed)
    rest.load_state_dict(state)
    assert rest.epoch == 1 and taken + ids(rest) == second
    assert resumed.with_options(name="same") is not None and iter(resumed).epoch == 2


def test_another_process_goes_on(tmp_path):
    epoch = iter(shuffled())
    taken = ids(next(epoch) for _ in range(3))
    out = subprocess.run([sys.executable, "-c", f"""
import json, caju
epoch = iter(caju.range(100).shuffle(100).batch(7).with_options(deterministic=True))
epoch.load_state_dict(json.loads({json.dumps(epoch.state_dict())!r}))
print(json.dumps([int(i) for b in epoch for i in b["id"]]))
"""], capture_output=True, text=True, timeout=120, check=True).stdout
    assert taken + json.loads(out) == ids(shuffled())


@pytest.mark.parametrize("dataset", [lambda: cj.range(50).shuffle(50).batch(7), shuffled])
def test_states_at_the_borders_of_epochs_are_for_every_dataset(dataset):
    reading = dataset()
    epoch = iter(reading)
    begin = epoch.state_dict()
    for _ in epoch:
        pass
    end = epoch.state_dict()
    assert (begin["epoch"], begin["elements"], begin["exhausted"]) == (0, 0, False)
    assert (end["epoch"], end["exhausted"]) == (0, True)

    again = iter(dataset())
    again.load_state_dict(begin)
    assert again.epoch == 0 and len(set(ids(again))) >= 50

    resumed = dataset()
    over = iter(resumed)
    over.load_state_dict(end)
    assert list(over) == [] and iter(resumed).epoch == 1


def test_where_the_order_is_not_promised_there_is_no_state_within_an_epoch():
    epoch = iter(cj.range(100).batch(5))
    next(epoch)
    with pytest.raises(cj.Unimplemented, match="after 1 elements of epoch 0.*deterministic=True"):
        epoch.state_dict()
    with cj.LocalCluster() as cluster:
        epoch = iter(shuffled().distribute(cluster, job_name="shared"))
        next(epoch)
        with pytest.raises(cj.Unimplemented, match="`shared` may have other readers"):
            epoch.state_dict()
        alone = iter(shuffled().distribute(cluster))
        taken = ids([next(alone)])
        rest = iter(shuffled().distribute(cluster))
        rest.load_state_dict(alone.state_dict())
        assert taken + ids(rest) == ids(shuffled())


def test_states_that_do_not_fit_are_refused():
    epoch = iter(shuffled())
    next(epoch)
    state = epoch.state_dict()
    with pytest.raises(cj.FailedPrecondition, match="before the first element"):
        epoch.load_state_dict(state)
    with pytest.raises(cj.InvalidPipeline, match="of the dataset"):
        iter(shuffled(99)).load_state_dict(state)
    with pytest.raises(cj.InvalidPipeline, match="of the seed"):
        iter(shuffled(seed=5)).load_state_dict(state | {"fingerprint": iter(shuffled(seed=5)).fingerprint})
    with pytest.raises(cj.InvalidPipeline, match="not a state of a caju iterator"):
        iter(shuffled()).load_state_dict({"epoch": 1})
    with pytest.raises(cj.InvalidPipeline, match="does not know"):
        iter(shuffled()).load_state_dict(state | {"version": 9})
    with pytest.raises(cj.InvalidPipeline, match="the data have changed"):
        iter(shuffled()).load_state_dict(state | {"elements": 1000})
    plain = iter(cj.range(10).batch(2))
    with pytest.raises(cj.Unimplemented, match="cannot be continued exactly"):
        plain.load_state_dict(plain.state_dict() | {"elements": 2})


def test_rows_and_other_views_have_states_too():
    rows = cj.range(20).shuffle(20).with_options(deterministic=True)
    whole = [int(r["id"]) for r in rows]
    epoch = iter(cj.range(20).shuffle(20).with_options(deterministic=True).arrow())
    taken = [next(epoch)["id"][0].as_py() for _ in range(4)]
    rest = iter(cj.range(20).shuffle(20).with_options(deterministic=True))
    rest.load_state_dict(epoch.state_dict())
    assert taken + [int(r["id"]) for r in rest] == whole and isinstance(whole, list) and np.ndim(whole) == 1


def test_a_state_is_loaded_into_a_second_iterator_of_the_same_dataset():
    dataset = shuffled()
    epoch = iter(dataset)
    taken = ids(next(epoch) for _ in range(5))
    state = epoch.state_dict()
    rest = ids(epoch)                                         # the dataset's own job has read this epoch to its end
    again = iter(dataset)
    again.load_state_dict(state)
    assert again.epoch == 0 and ids(again) == rest and len(set(taken + rest)) == 100
    assert iter(dataset).epoch == 1


@pytest.mark.parametrize(("name", "value"), [
    ("epoch", "3"), ("epoch", 2.5), ("epoch", 10**30), ("epoch", True), ("elements", -1), ("elements", 1.0), ("exhausted", 1),
])
def test_positions_in_a_state_are_whole_numbers(name, value):
    state = iter(shuffled()).state_dict() | {name: value}
    with pytest.raises(cj.InvalidPipeline, match=f"`{name}` is "):
        iter(shuffled()).load_state_dict(state)


def test_a_state_that_could_not_be_loaded_leaves_no_epoch_that_seems_whole():
    epoch = iter(shuffled())
    with pytest.raises(cj.InvalidPipeline, match="the data have changed"):
        epoch.load_state_dict(epoch.state_dict() | {"elements": 1000})
    with pytest.raises(cj.InvalidPipeline, match="the data have changed"):
        next(epoch)
