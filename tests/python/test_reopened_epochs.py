"""Epochs that are opened again: at a dispatcher that lost its state, after a pause, and behind states."""

import contextlib
import itertools
import json
import shutil
import signal
import subprocess
import sys
import threading

import pytest
from conftest import wait_for
from test_fault_tolerance import servers  # noqa: F401

import caju as cj


def ids_of_batches(elements):
    return [int(i) for e in elements for i in e["id"]]


def slow(rows=600, **options):
    dataset = cj.from_yaml(json.dumps({"source": {"range": rows}, "steps": [{"sleep": {"per_row": "2ms"}}]}))
    return dataset.with_options(**options) if options else dataset


def ids(epoch, count=None):
    return [int(element["id"]) for _, element in zip(range(count if count is not None else 1 << 60), epoch)]


def all_ids(epochs):
    """What several readers read at the same time."""
    found = [None] * len(epochs)

    def read(i):
        try:
            found[i] = ids(epochs[i])
        except Exception as e:
            found[i] = e

    threads = [threading.Thread(target=read, args=(i,)) for i in range(len(epochs))]
    for t in threads:
        t.start()
    for t in threads:
        t.join(90)
    failed = [f for f in found if not isinstance(f, list)]
    assert not failed, failed
    return found


def test_local_workers_come_back_to_a_dispatcher_that_lost_its_state(servers):
    s = servers(workers=0, state=False)
    worker = cj.start_worker(s.address, local_only=True)
    epoch = iter(slow().distribute(s.address, target_workers="local"))
    taken = ids(epoch, 20)
    s.restart()
    assert sorted(taken + ids(epoch)) == list(range(600))
    worker.stop()


@pytest.mark.parametrize("settings", [{"priority": 3}, {"weight": 2.0}, {"sharing": "exact"}])
def test_the_settings_of_a_job_survive_a_lost_state(servers, settings):
    s = servers(workers=2, state=False)

    def reader(**options):
        return iter(slow(1000).distribute(s.address, job_name="j", prefetch="64KiB", **options))

    first, second = reader(**settings), reader()
    taken = ids(first, 10) + ids(second, 10)
    s.restart()
    # The reader that leaves the settings out is the one that opens the epoch again.
    rest = all_ids([second, first])
    assert sorted(taken + sum(rest, [])) == list(range(1000))


def test_the_turns_of_workers_survive_a_lost_state(servers):
    s = servers(workers=3, state=False)
    dataset = slow(200, deterministic=True)

    def epoch():
        return iter(dataset.distribute(s.address, processing_mode="off", prefetch="64KiB"))

    whole = ids(epoch())
    assert len(whole) == 600
    again = epoch()
    taken = ids(again, 20)
    s.restart()
    assert taken + ids(again) == whole


def test_the_turn_is_part_of_a_state_that_is_taken_right_after_a_lost_state(servers):
    """No row is taken between the loss and the state: it begins with the worker whose turn it was before."""
    s = servers(workers=3, state=False)
    dataset = slow(200, deterministic=True)

    def epoch():
        return iter(dataset.distribute(s.address, processing_mode="off", prefetch="64KiB"))

    whole = ids(epoch())
    again = epoch()
    taken = ids(again, 20)                          # 20 is no multiple of the three workers
    s.restart()
    wait_for("the epoch that was opened again", lambda: any(job["clients"] for job in s.status()["jobs"]))
    state = again.state_dict()
    again.close()
    rest = epoch()
    rest.load_state_dict(state)
    assert taken + ids(rest) == whole


def test_states_after_a_lost_state_name_readers_that_take_rows(servers):
    s = servers(workers=2, state=False)

    def reader(address):
        return iter(slow(600).distribute(address, job_name="j", prefetch="64KiB", worker_wait=10))

    quiet, busy = reader(s.address), reader(s.address)
    taken = ids(quiet, 40)
    s.restart()
    taken += ids(busy, 30)
    # It has asked for nothing since, and learns of the other one by its heartbeats.
    [other] = busy.state_dict()["readers"]
    wait_for("state that names the other reader", lambda: other in quiet.state_dict()["all_readers"])
    states = [quiet.state_dict(), busy.state_dict()]
    quiet.close(), busy.close()
    with cj.LocalCluster(workers=2) as other:
        epochs = [reader(other), reader(other)]

        def load(epoch, state):
            epoch.load_state_dict(state)
            return epoch

        rest = all_ids([load(*pair) for pair in zip(epochs, states)])
    assert sorted(taken + sum(rest, [])) == list(range(600))


PAUSED = """
import sys, caju as cj
worker = cj.start_worker(sys.argv[1], local_only=True)
epoch = iter(cj.from_yaml(sys.argv[2]).distribute(sys.argv[1], target_workers="local"))
rows = [int(next(epoch)["id"])]
print("reading", flush=True)
rows += [int(row["id"]) for row in epoch]
print(sorted(rows) == list(range(600)), flush=True)
"""


def test_a_process_with_a_local_worker_may_stand_still(servers):
    s = servers(workers=0)
    definition = json.dumps({"source": {"range": 600}, "steps": [{"sleep": {"per_row": "2ms"}}]})
    process = subprocess.Popen([sys.executable, "-c", PAUSED, s.address, definition], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "reading\n"
        process.send_signal(signal.SIGSTOP)
        wait_for("lost worker", lambda: [w["state"] for w in s.status()["workers"]] == ["lost"])
        process.send_signal(signal.SIGCONT)
        assert process.communicate(timeout=90)[0] == "True\n"
    finally:
        process.kill()


def test_skipped_rows_are_counted_of_an_epoch_that_was_opened_again(cluster, tmp_path):
    for i in range(10):
        lines = ['{"id": "x"}' if n % 10 == 0 else json.dumps({"id": i * 30 + n}) for n in range(30)]
        (tmp_path / f"{i}.json").write_text("\n".join(lines) + "\n")
    address = cluster(2).dispatcher.address
    source = {"json": {"path": f"{tmp_path}/*.json", "split": "1KiB", "schema": {"id": "int64"}}}
    definition = json.dumps({"source": source, "steps": [{"sleep": {"per_row": "2ms"}}], "on_error": "skip"})

    def consumer(k):
        dataset = cj.from_yaml(definition).distribute(address, job_name="j", num_consumers=2, consumer_index=k, prefetch="64KiB")
        return iter(dataset)

    stays, leaves = consumer(0), consumer(1)
    reading = threading.Thread(target=lambda: ids(stays))
    reading.start()
    ids(leaves, 40)
    state = leaves.state_dict()
    leaves.close()
    back = consumer(1)
    back.load_state_dict(state)
    ids(back)
    reading.join(90)
    # Those of splits that were complete before it was opened again are counted no more.
    assert 0 < stays.skipped.rows == back.skipped.rows <= 30


def chosen():
    """Random stages above a hint choose the rows: each epoch has others, unless they are stored."""
    return cj.range(600).with_columns(u="uniform()").filter("u < 0.5").autocache("h").batch(7)


@pytest.mark.parametrize("before,after", [("compute", "hint:h"), ("hint:h", "compute"), ("hint:h", "hint:h")])
def test_a_state_goes_on_with_its_draws_after_the_cache_decision_changed(tmp_path, before, after):
    def epoch(policy, at, state=None):
        dataset = chosen().distribute(cluster, policy=policy, job_name=f"j{next(jobs)}", epochs=4)
        it = iter(dataset)
        for _ in range(at):
            list(it)
            it = iter(dataset)
        if state is not None:
            it.load_state_dict(state)
        return it

    jobs = itertools.count()

    def rows(elements):
        return [int(i) for e in elements for i in e["id"]]

    with cj.LocalCluster(cache=str(tmp_path)) as cluster:
        list(epoch("hint:h", 0))
        whole = sorted(rows(epoch(before, 1)))
        stored = sorted(rows(epoch("hint:h", 2)))
        assert (whole == stored) == (before == "hint:h")
        reading = epoch(before, 1)
        taken = rows(next(reading) for _ in range(9))
        rest = rows(epoch(after, 0, json.loads(json.dumps(reading.state_dict()))))
        assert sorted(taken + rest) == whole


@pytest.mark.parametrize("count", [
    lambda d: d.shuffle(600).take(200).autocache("h"), lambda d: d.shuffle(600).autocache("h").skip(400),
    lambda d: d.shuffle(600).autocache("h").filter("id % 2 = 0").take(100),
], ids=["above", "below", "filtered"])  # fmt: skip
@pytest.mark.parametrize("after", ["hint:h", "compute"])
def test_stored_rows_that_were_chosen_behind_a_shuffle_go_on_from_what_is_stored(tmp_path, count, after):
    clusters = contextlib.ExitStack()

    def dataset(policy):
        cluster = clusters.enter_context(cj.LocalCluster(cache=str(tmp_path)))
        return count(cj.range(600)).batch(7).distribute(cluster, policy=policy, epochs=3)

    def rows(elements):
        return sorted(int(i) for e in elements for i in e["id"])

    reading = dataset("hint:h")
    stored = rows(reading)
    epoch = iter(reading)
    taken = [next(epoch) for _ in range(6)]
    state = json.loads(json.dumps(epoch.state_dict()))
    rest = iter(dataset(after))
    rest.load_state_dict(state)
    assert sorted(rows(taken) + rows(rest)) == stored
    # They cannot be chosen again.
    for folder in tmp_path.iterdir():
        shutil.rmtree(folder)
    with pytest.raises(cj.FailedPrecondition, match="read from the rows stored at hint `h`"):
        again = iter(dataset(after))
        again.load_state_dict(state)
        list(again)
    # Rows that are stored again are those of another reading, also where they come to be the same ones.
    assert len(rows(dataset("hint:h"))) == len(stored)
    with pytest.raises(cj.FailedPrecondition, match="removed and stored again since"):
        again = iter(dataset(after))
        again.load_state_dict(state)
        list(again)
    clusters.close()


def test_a_state_of_epoch_0_goes_on_from_the_set_that_a_later_epoch_stored(tmp_path):
    """The set has the rows that epoch 1 chose, and so has an epoch 0 that is read from it."""
    jobs = itertools.count()

    def dataset(policy="hint:h"):
        rows = cj.range(600).shuffle(600).take(200).autocache("h").batch(7)
        return rows.distribute(cluster, policy=policy, job_name=f"j{next(jobs)}", epochs=2)

    with cj.LocalCluster(cache=str(tmp_path)) as cluster:
        before = iter(dataset("compute"))
        computed = ids_of_batches([next(before)])
        # An epoch that goes on from a state stores no set, so epoch 1 does.
        later = dataset()
        rest = iter(later)
        rest.load_state_dict(before.state_dict())
        computed += ids_of_batches(rest)
        stored = sorted(ids_of_batches(later))
        assert len(computed) == len(stored) == 200 and sorted(computed) != stored
        reading = iter(dataset())
        taken = ids_of_batches(next(reading) for _ in range(6))
        state = wait_for("state that names the set", lambda: reading.state_dict().get("draws") and reading.state_dict())
        again = iter(dataset())
        again.load_state_dict(json.loads(json.dumps(state)))
        assert sorted(taken + ids_of_batches(again)) == stored


def test_a_state_goes_on_from_a_stored_set_without_the_source(tmp_path):
    jobs = itertools.count()

    def epoch(cache_only):
        steps = [{"shuffle": 100}, {"autocache": "h"}, {"batch": 7}]
        dataset = cj.from_yaml(json.dumps({"source": {"range": 600}, "steps": steps, "cache_only": cache_only}))
        return iter(dataset.distribute(cluster, policy="hint:h", job_name=f"j{next(jobs)}"))

    with cj.LocalCluster(cache=str(tmp_path)) as cluster:
        assert sorted(ids_of_batches(epoch(False))) == list(range(600))
        reading = epoch(True)
        taken = ids_of_batches(next(reading) for _ in range(9))
        rest = epoch(True)
        rest.load_state_dict(json.loads(json.dumps(reading.state_dict())))
        assert sorted(taken + ids_of_batches(rest)) == list(range(600))


@pytest.mark.parametrize("had,has", [(None, "h"), ("h", "h"), ("h", "k"), ("h", None)])
def test_a_state_goes_on_with_its_draws_after_a_hint_was_added_and_not_without_it(tmp_path, had, has):
    def epoch(hint):
        drawn = cj.range(600).with_columns(u="uniform()").filter("u < 0.5")
        policy = f"hint:{hint}" if hint else "compute"
        dataset = (drawn.autocache(hint) if hint else drawn).batch(7)
        return dataset.distribute(cluster, policy=policy, job_name=f"j{next(jobs)}", epochs=3)

    jobs = itertools.count()
    with cj.LocalCluster(cache=str(tmp_path)) as cluster:
        before = epoch(had)
        list(before)
        whole = ids_of_batches(before)
        again = epoch(had)
        list(again)
        reading = iter(again)
        taken = [next(reading) for _ in range(9)]
        rest = iter(epoch(has))
        if had and had != has:
            with pytest.raises(cj.FailedPrecondition, match="no such hint: go on with the hint under this name"):
                rest.load_state_dict(reading.state_dict())
            return
        rest.load_state_dict(reading.state_dict())
        assert sorted(ids_of_batches(taken) + ids_of_batches(rest)) == sorted(whole)
