"""States of iterators: where a reading stands, and how another process goes on from there."""

import itertools
import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import wait_for

import caju as cj


def shuffled(rows=100, **options):
    """Batches in a promised order, which differs from epoch to epoch."""
    return cj.range(rows).shuffle(rows).batch(7).with_options(deterministic=True, **options)


def ids(elements):
    return [int(i) for e in elements for i in np.atleast_1d(e["id"])]


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


def test_where_no_order_is_promised_a_state_is_exact_too():
    epoch = iter(cj.range(100).batch(5))
    taken = ids([next(epoch)])
    rest = iter(cj.range(100).batch(5))
    rest.load_state_dict(epoch.state_dict())
    assert sorted(taken + ids(rest)) == list(range(100))
    with cj.LocalCluster() as cluster:
        epoch = iter(shuffled().distribute(cluster, job_name="shared"))
        taken = ids([next(epoch)])
        rest = iter(shuffled().distribute(cluster, job_name="shared"))
        rest.load_state_dict(epoch.state_dict())
        with pytest.raises(cj.FailedPrecondition, match="opened again from a state"):
            list(epoch)
        assert taken + ids(rest) == ids(shuffled())
        alone = iter(shuffled().distribute(cluster))
        taken = ids([next(alone)])
        rest = iter(shuffled().distribute(cluster))
        rest.load_state_dict(alone.state_dict())
        assert taken + ids(rest) == ids(shuffled())


def test_readers_of_one_job_go_on_from_their_states():
    with cj.LocalCluster() as cluster:
        def reader():
            # Slow enough that no reader has all of it before the others come: rows go to whoever has room.
            slow = cj.from_yaml("source: { range: 20000 }\nsteps: [ { sleep: { per_row: 100us } } ]")
            return iter(slow.shuffle(50).batch(16).distribute(cluster, job_name="ranks"))

        readers = [reader() for _ in range(3)]
        before = [[], [], []]
        for _ in range(30):
            for r, taken in zip(readers, before, strict=True):
                taken += ids(b for b in [next(r, None)] if b is not None)      # rows go to whoever has room
        states = [json.loads(json.dumps(r.state_dict())) for r in readers]
        for r in readers:
            next(r, None)                                     # is lost with the crash
        again = [reader() for _ in range(3)]
        for r in again:
            r.load_state_dict(states)
        some = [[], [], []]
        for _ in range(10):
            for r, taken in zip(again, some, strict=True):
                taken += ids(b for b in [next(r, None)] if b is not None)      # rows go to whoever has room
        states = [json.loads(json.dumps(r.state_dict())) for r in again]
    # Each of another number of readers loads all, on another cluster.
    with cj.LocalCluster(workers=2) as cluster:
        last = [reader() for _ in range(2)]
        for r in last:
            r.load_state_dict(states)
        rest = [b for pair in itertools.zip_longest(*last) for b in pair if b is not None]
    assert sorted(sum(before + some, []) + ids(rest)) == list(range(20_000))


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_that_have_their_first_element_in_hand_go_on_from_their_own_states(ranks):
    def reader(cluster):
        slow = cj.from_yaml("source: { range: 4000 }\nsteps: [ { sleep: { per_row: 100us } }, { batch: 10 } ]")
        return iter(slow.distribute(cluster, job_name="ranks"))

    with cj.LocalCluster(workers=2) as cluster:
        readers = [reader(cluster) for _ in range(ranks)]
        # Rows go to whoever asks first: one that is late may get none.
        taken = ids(b for r in readers for b in [next(r, None)] if b is not None)
        states = [json.loads(json.dumps(r.state_dict())) for r in readers]
    states = [s for s in states if s["elements"]]
    named = sorted(n for s in states for n in s["readers"])
    assert states and all(s["all_readers"] == named for s in states)
    with cj.LocalCluster(workers=2) as cluster:
        got, threads = [], []

        def run(state):
            epoch = reader(cluster)
            epoch.load_state_dict(state)
            got.append(ids(epoch))

        for state in states:
            threads.append(threading.Thread(target=run, args=(state,)))
            threads[-1].start()
        for thread in threads:
            thread.join(90)
    assert len(got) == len(states) and sorted(taken + sum(got, [])) == list(range(4000))


def test_a_state_of_the_first_version_is_read_on():
    epoch = iter(shuffled())
    state = {"version": 1, "fingerprint": epoch.fingerprint, "seed": 0, "epoch": 1, "elements": 4, "exhausted": False}
    whole = shuffled()
    ids(whole)
    epoch.load_state_dict(state)
    assert ids(epoch) == ids(whole)[28:]
    over = iter(shuffled())
    over.load_state_dict(state | {"exhausted": True})
    assert list(over) == [] and over.epoch == 1
    with pytest.raises(cj.InvalidPipeline, match="the data have changed"):
        iter(shuffled()).load_state_dict(state | {"elements": 1000})


def test_states_that_do_not_fit_are_refused():
    epoch = iter(shuffled())
    next(epoch)
    state = epoch.state_dict()
    with pytest.raises(cj.InvalidPipeline, match="of the dataset"):
        iter(shuffled(99)).load_state_dict(state)
    with pytest.raises(cj.InvalidPipeline, match="of the seed"):
        iter(shuffled(seed=5)).load_state_dict(state | {"fingerprint": iter(shuffled(seed=5)).fingerprint, "checksum": None})
    with pytest.raises(cj.InvalidPipeline, match="is damaged"):
        iter(shuffled()).load_state_dict(state | {"rows": state["rows"] + 1})
    with pytest.raises(cj.InvalidPipeline, match="not a state of a caju reader"):
        iter(shuffled()).load_state_dict({"epoch": 1})
    with pytest.raises(cj.InvalidPipeline, match="does not know"):
        iter(shuffled()).load_state_dict(state | {"version": 9})
    with pytest.raises(cj.InvalidPipeline, match="not a state of a caju reader"):
        iter(shuffled()).load_state_dict(state | {"elements": object()})
    with pytest.raises(cj.InvalidPipeline, match="the union of no state"):
        iter(shuffled()).load_state_dict([])


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
    epoch = iter(shuffled())
    state = epoch.state_dict() | {name: value}
    with pytest.raises(cj.InvalidPipeline, match="not a state of a caju reader"):
        iter(shuffled()).load_state_dict(state)
    first = {"fingerprint": epoch.fingerprint, "seed": 0, "epoch": 0, "elements": 0, "exhausted": False}
    with pytest.raises(cj.InvalidPipeline, match=f"`{name}` is "):
        iter(shuffled()).load_state_dict(first | {"version": 1, name: value})


def test_a_state_that_could_not_be_loaded_leaves_no_epoch_that_seems_whole():
    with cj.LocalCluster() as cluster:
        epoch = iter(cj.range(100).batch(7).distribute(cluster))
        next(epoch)
        state = epoch.state_dict() | {"mode": "off", "checksum": None}
        with pytest.raises(cj.InvalidPipeline, match="processing mode"):
            epoch.load_state_dict(state)
        with pytest.raises(cj.InvalidPipeline, match="processing mode"):
            next(epoch)


def in_files(folder, files, rows):
    """`files` files that have the ids below `rows` in order."""
    each = rows // files
    for i in range(files):
        pq.write_table(pa.table({"id": list(range(i * each, (i + 1) * each))}), folder / f"{i}.parquet")
    return cj.read_parquet(str(folder / "*.parquet"))


def divided(rows, mode):
    """A dataset that the mode can divide: under `hint` the pipeline says where."""
    return rows.shard("HINT", "HINT") if mode == "hint" else rows


@pytest.mark.parametrize("mode", ["dynamic", "off", "data", "file_or_data", "file", "hint"])
@pytest.mark.parametrize("steps", [
    lambda rows: rows.batch(10),
    lambda rows: rows.filter("id % 3 = 0").shuffle(50).batch(10),
    lambda rows: rows.bucket_by_length("id", [1000, 2000], 8),
])
def test_every_processing_mode_has_states(tmp_path, mode, steps):
    # Rows without files have no shards by file.
    source = in_files(tmp_path, 8, 4000) if mode == "file" else cj.range(4000)

    def dataset(cluster):
        return steps(divided(source, mode)).distribute(cluster, processing_mode=mode)

    with cj.LocalCluster(workers=2) as cluster:
        whole = sorted(ids(dataset(cluster)))
        epoch = iter(dataset(cluster))
        taken = ids(next(epoch) for _ in range(60))
        state = epoch.state_dict()
        assert state["mode"] == mode
    with cj.LocalCluster(workers=2) as cluster:
        rest = iter(dataset(cluster))
        rest.load_state_dict(state)
        assert sorted(taken + ids(rest)) == whole


@pytest.mark.parametrize("mode", ["dynamic", "file_or_data", "data"])
@pytest.mark.parametrize("steps", [
    lambda rows: rows.take(60),
    lambda rows: rows.skip(25).batch(2),
    lambda rows: rows.shard(3, 1),
    lambda rows: rows.take(70).with_options(deterministic=True),
])
def test_states_of_counted_rows_are_exact_in_every_mode(tmp_path, mode, steps):
    for i in range(8):
        rows = pa.table({"id": list(range(i * 25, i * 25 + 25))})
        pq.write_table(rows, tmp_path / f"{i}.parquet", row_group_size=10)

    def dataset(cluster):
        rows = steps(cj.read_parquet(str(tmp_path / "*.parquet")))
        return rows.distribute(cluster, processing_mode=mode)

    with cj.LocalCluster(workers=2) as cluster:
        # Which rows an epoch has is certain only where one task counts them all, or where shards are fixed.
        whole = sorted(ids(dataset(cluster)))
    for elements in (1, 17, 30):
        with cj.LocalCluster(workers=2) as cluster:
            epoch = iter(dataset(cluster))
            taken = ids(next(epoch) for _ in range(elements))
            state = epoch.state_dict()
        with cj.LocalCluster(workers=2) as cluster:
            rest = iter(dataset(cluster))
            rest.load_state_dict(state)
            assert sorted(taken + ids(rest)) == whole


@pytest.mark.parametrize("mode", ["off", "data", "file_or_data", "file", "hint"])
@pytest.mark.parametrize("taken", [1, 2, 7])
def test_the_rotation_of_slots_goes_on_behind_a_state(tmp_path, mode, taken):
    source = in_files(tmp_path, 8, 40) if mode == "file" else cj.range(40)

    def dataset(cluster):
        rows = divided(source, mode).with_options(deterministic=True)
        return rows.distribute(cluster, processing_mode=mode)

    with cj.LocalCluster(workers=2) as cluster:
        whole = ids(dataset(cluster))
    with cj.LocalCluster(workers=2) as cluster:
        epoch = iter(dataset(cluster))
        before = ids(next(epoch) for _ in range(taken))
        state = epoch.state_dict()
    with cj.LocalCluster(workers=2) as cluster:
        rest = iter(dataset(cluster))
        rest.load_state_dict(state)
        assert before + ids(rest) == whole


@pytest.mark.parametrize("mode", ["off", "data", "file_or_data", "file", "hint"])
@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 2), (5, 1)])
@pytest.mark.parametrize("deterministic", [False, True])
def test_a_state_keeps_its_shards_on_any_number_of_workers(tmp_path, mode, before, after, deterministic):
    source = in_files(tmp_path, 8, 800) if mode == "file" else cj.range(800)

    def dataset(cluster):
        rows = divided(source, mode).with_options(deterministic=deterministic)
        return rows.batch(10).distribute(cluster, processing_mode=mode)

    with cj.LocalCluster(workers=before) as cluster:
        whole = ids(dataset(cluster))
    with cj.LocalCluster(workers=before) as cluster:
        epoch = iter(dataset(cluster))
        taken = ids(next(epoch) for _ in range(17))
        state = epoch.state_dict()
    with cj.LocalCluster(workers=after) as cluster:
        rows = dataset(cluster)
        rest = iter(rows)
        rest.load_state_dict(state)
        # A state of the epoch on the second cluster is one of the same shards.
        taken += ids(next(rest) for _ in range(10))
        again = rest.state_dict()
        end = ids(rest)
        assert (taken + end == whole) if deterministic else (sorted(taken + end) == sorted(whole))
        # The next epoch has the shards of this cluster.
        times = after if mode == "off" else 1
        assert sorted(ids(rows)) == sorted(list(range(800)) * times)
    with cj.LocalCluster(workers=before + 1) as cluster:
        rest = iter(dataset(cluster))
        rest.load_state_dict(again)
        assert sorted(taken + ids(rest)) == sorted(whole)


@pytest.mark.parametrize(("before", "after", "shard_by"), [(2, 4, "file"), (4, 2, "data")])
def test_a_state_keeps_what_its_shards_divide(caju, tmp_path, before, after, shard_by):
    # Three files are enough for two workers, and not for four.
    source = in_files(tmp_path, 3, 300)

    def dataset(cluster):
        return source.batch(10).distribute(cluster, processing_mode="file_or_data")

    def of_epochs(cluster):
        status = json.loads(caju("status", "--dispatcher", cluster.address, "--format", "json").stdout)
        return {j["epoch"]: (j["shard_by"], j["num_shards"]) for j in status["jobs"]}

    with cj.LocalCluster(workers=before) as cluster:
        epoch = iter(dataset(cluster))
        taken = ids(next(epoch) for _ in range(7))
        state = epoch.state_dict()
    with cj.LocalCluster(workers=after, listen="127.0.0.1:0") as cluster:
        rows = dataset(cluster)
        rest = iter(rows)
        rest.load_state_dict(state)
        taken += ids(next(rest) for _ in range(3))
        again = rest.state_dict()
        assert of_epochs(cluster)[0] == (shard_by, before)
        assert sorted(taken + ids(rest)) == list(range(300))
        next_epoch = iter(rows)
        next(next_epoch)
        assert again["shard_by"] == state["shard_by"] == shard_by
        assert of_epochs(cluster)[1] == ({"file": "data", "data": "file"}[shard_by], after)


@pytest.mark.parametrize("mode", ["data", "file"])
def test_states_of_four_ranks_in_a_static_mode_go_on_with_three_on_other_workers(tmp_path, mode):
    rows = in_files(tmp_path, 8, 4000).map(id="id", text="repeat('x', 20000)").batch(10)

    def readers(cluster, job, count):
        # A dataset's second iterator is of its second epoch.
        ranks = [rows.distribute(cluster, processing_mode=mode, job_name=job, prefetch="64KiB") for _ in range(count)]
        return [iter(rank) for rank in ranks]

    with cj.LocalCluster(workers=3) as cluster:
        ranks = readers(cluster, "before", 4)
        # A rank may come to its end at once: chunks are handed out whole, first come, first served.
        taken = [i for _ in range(20) for rank in ranks for i in ids(itertools.islice(rank, 1))]
        states = [rank.state_dict() for rank in ranks]
        for rank in ranks:
            rank.close()
    assert len(taken) >= 600
    with cj.LocalCluster(workers=2) as cluster:
        rest = readers(cluster, "after", 3)
        for rank in rest:
            rank.load_state_dict(states)
        with ThreadPoolExecutor(3) as pool:
            taken += [i for of_rank in pool.map(ids, rest) for i in of_rank]
    assert sorted(taken) == list(range(4000))


@pytest.mark.parametrize("hint", ["above", "behind"])
@pytest.mark.parametrize(("before", "after"), [
    ("compute", "hint:h"), ("hint:h", "compute"), ("hint:h", "hint:h"), ("auto", "compute"),
])
def test_a_state_is_exact_whatever_is_computed_or_read(tmp_path, hint, before, after):
    def dataset(cluster, policy):
        rows = cj.range(20_000).map(id="id", x="id * 2")
        rows = rows.autocache("h").shuffle(300) if hint == "above" else rows.shuffle(300).autocache("h")
        return rows.batch(20).distribute(cluster, policy=policy)

    with cj.LocalCluster(workers=2, cache=tmp_path / "cache") as cluster:
        rows = dataset(cluster, before)
        list(rows)                                            # epoch 0 stores what epoch 1 reads
        epoch = iter(rows)
        taken = ids(next(epoch) for _ in range(300))
        state = epoch.state_dict()
        assert state["epoch"] == 1
        epoch.close()
    with cj.LocalCluster(cache=tmp_path / "cache") as cluster:
        rest = iter(dataset(cluster, after))
        rest.load_state_dict(state)
        assert sorted(taken + ids(rest)) == list(range(20_000))


def restored(cluster, states, **restore):
    epoch = iter(cj.range(200).batch(10).distribute(cluster, job_name="ranks"))
    epoch.load_state_dict(states, **restore)
    return epoch


@pytest.mark.parametrize("by_environment", [True, False])
def test_a_rank_that_comes_late_gets_the_end_of_its_attempt(by_environment, monkeypatch):
    def launch(name, rank):
        if not by_environment:
            return {"attempt": name}
        for variable, value in [("TORCHELASTIC_RUN_ID", name), ("RANK", str(rank)), ("WORLD_SIZE", "2")]:
            monkeypatch.setenv(variable, value)
        return {}

    with cj.LocalCluster() as cluster:
        reading = iter(cj.range(200).batch(10).distribute(cluster, job_name="ranks"))
        taken = ids(next(reading) for _ in range(5))
        states = [reading.state_dict()]
        reading.close()
        assert sorted(taken + ids(restored(cluster, states, **launch("first", 0)))) == list(range(200))
        assert ids(restored(cluster, states, **launch("first", 1))) == []
        assert sorted(taken + ids(restored(cluster, states, **launch("second", 0)))) == list(range(200))
        with pytest.raises(cj.FailedPrecondition, match="second"):
            restored(cluster, states, **launch("first", 1))


def test_the_attempt_is_that_of_the_launcher():
    from caju._attempt import attempt_of_launcher

    torchrun = {"TORCHELASTIC_RUN_ID": "a1", "RANK": "3", "WORLD_SIZE": "4"}
    slurm = {"SLURM_JOB_ID": "17", "SLURM_PROCID": "0", "SLURM_NTASKS": "2"}
    assert attempt_of_launcher(torchrun) == ("torchrun a1", 3)
    assert attempt_of_launcher(torchrun | slurm) == ("torchrun a1", 3)
    assert attempt_of_launcher(slurm) == ("slurm 17", 0)
    for alone in [{}, torchrun | {"WORLD_SIZE": "1"}, torchrun | {"RANK": ""}, slurm | {"SLURM_NTASKS": "many"}]:
        assert attempt_of_launcher(alone) is None


def test_a_trainer_that_is_killed_in_a_later_epoch_restores_the_end_of_the_one_before():
    trainer = """
import json, sys, caju
rows = caju.range(2_000).batch(10).distribute(sys.argv[1], job_name="train", epochs=4)
for n in range(3):
    for i, batch in enumerate(epoch := iter(rows)):
        if n == 2 and i == 20:
            print("in the third epoch", flush=True)
            sys.stdin.readline()
    if n == 1:
        print(json.dumps(epoch.state_dict()), flush=True)
"""
    with cj.LocalCluster(listen="127.0.0.1:0") as cluster:
        with subprocess.Popen([sys.executable, "-c", trainer, cluster.address], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, text=True) as running:
            state = json.loads(running.stdout.readline())
            assert running.stdout.readline() == "in the third epoch\n"
            running.kill()
        assert state["epoch"] == 1 and state["exhausted"]
        rows = cj.range(2_000).batch(10).distribute(cluster, job_name="train", epochs=4)
        epoch = iter(rows)                                    # epoch 0, which the killed trainer has read
        epoch.load_state_dict(state)
        assert ids(epoch) == []
        epoch = iter(rows)
        assert epoch.epoch == 2 and sorted(ids(epoch)) == list(range(2_000))
        assert sorted(ids(rows)) == list(range(2_000))


def test_later_epochs_that_were_read_begin_again_behind_a_state_within_an_epoch():
    with cj.LocalCluster() as cluster:
        def train():
            return cj.range(500).batch(10).distribute(cluster, job_name="train", epochs=4)

        rows = train()
        epoch = iter(rows)
        taken = ids(next(epoch) for _ in range(5))
        state = epoch.state_dict()
        ids(epoch)
        for _ in range(2):
            assert len(ids(rows)) == 500
        again = train()
        epoch = iter(again)
        epoch.load_state_dict(state)                          # without an attempt
        other = iter(cj.range(500).batch(10).distribute(cluster, job_name="train", epochs=4))
        other.close()
        assert sorted(taken + ids(epoch)) == list(range(500))
        for _ in range(3):
            assert sorted(ids(again)) == list(range(500))


def test_an_epoch_that_was_read_begins_again_for_another_attempt():
    with cj.LocalCluster() as cluster:
        def train():
            return cj.range(500).batch(10).distribute(cluster, job_name="train", epochs=3)

        rows = train()
        epoch = iter(rows)
        ids(epoch)
        state = epoch.state_dict()
        assert len(ids(rows)) == 500
        def goes_on(attempt):
            again = train()
            epoch = iter(again)
            epoch.load_state_dict(state, attempt=attempt)
            return sorted(ids(again))

        with pytest.raises(cj.FailedPrecondition, match="name the launch"):
            goes_on(None)
        assert goes_on("second") == list(range(500))
        assert goes_on("second") == [], "a rank that comes late"
        assert goes_on("third") == list(range(500))
        with pytest.raises(cj.FailedPrecondition, match="third"):
            goes_on("second")


@pytest.mark.parametrize("change", ["added", "removed", "swapped"])
@pytest.mark.parametrize("rows", [1, 70])
def test_a_state_of_the_first_moments_shows_that_the_files_have_changed(tmp_path, rows, change):
    """The dispatcher has sent no heartbeat by then that says which files it has listed."""
    def write(name, first, count=50):
        pq.write_table(pa.table({"id": list(range(first, first + count))}), tmp_path / f"{name}.parquet")

    for k in range(4):
        write(f"1{k}", 50 * k)
    dataset = cj.read_parquet(str(tmp_path / "*.parquet"))
    epoch = iter(dataset)
    for _ in range(rows):
        next(epoch)
    state = epoch.state_dict()
    epoch.close()
    again = iter(cj.read_parquet(str(tmp_path / "*.parquet")))
    again.load_state_dict(state)
    assert len(list(again)) == 200 - rows
    {"added": lambda: write("00", 1000, 5), "removed": (tmp_path / "10.parquet").unlink,
     "swapped": lambda: [write("10", 50), write("11", 0)]}[change]()
    changed = iter(cj.read_parquet(str(tmp_path / "*.parquet")))
    with pytest.raises(cj.CajuError, match="files changed since the state"):
        changed.load_state_dict(state)
        list(changed)


@pytest.mark.parametrize("change", ["none", "added in front", "added behind", "rewritten"])
def test_a_state_of_stored_rows_that_are_read_in_another_order_shows_that_the_files_have_changed(tmp_path, change):
    """Rows that were stored behind a shuffle are read part by part, and the splits of a part are scattered over the epoch."""
    def write(name, first):
        pq.write_table(pa.table({"id": list(range(first, first + 20))}), tmp_path / f"{name}.parquet")

    for k in range(12):
        write(10 + k, 100 * k)

    def dataset():
        rows = cj.read_parquet(str(tmp_path / "*.parquet")).shuffle(30, seed=3)
        return rows.cache("h").shuffle(10, seed=4)

    with cj.LocalCluster(workers=2, cache=tmp_path / "cache") as cluster:
        service = {"job_name": "j", "policy": "hint:h"}
        stored = dataset().distribute(cluster, **service)
        whole = sorted(row["id"] for row in stored)
        epoch = iter(stored)
        before = [next(epoch)["id"] for _ in range(100)]
        state = epoch.state_dict()
        epoch.close()
    {"none": lambda: None, "added in front": lambda: write("00", 90_000), "added behind": lambda: write("99", 90_000),
     "rewritten": lambda: [write(10 + k, 50_000 + 100 * k) for k in range(12)]}[change]()
    with cj.LocalCluster(workers=2, cache=tmp_path / "cache") as cluster:
        again = iter(dataset().distribute(cluster, **service))
        if change in ("none", "added behind"):
            again.load_state_dict(state)
            added = list(range(90_000, 90_020)) if change == "added behind" else []
            assert sorted(before + [row["id"] for row in again]) == whole + added
            return
        with pytest.raises(cj.CajuError, match="files changed since the state"):
            again.load_state_dict(state)
            list(again)


def slow_readers(cluster, number=2):
    """Readers of one job. It is slow enough that none of them has all of its rows before the others come."""
    slow = cj.from_yaml("source: { range: 6000 }\nsteps: [ { sleep: { per_row: 100us } } ]").shuffle(50).batch(16)
    return [iter(slow.distribute(cluster, job_name="j")) for _ in range(number)]


def test_a_reader_that_takes_nothing_after_it_restored_names_those_that_do():
    """Its state is of the reading in which others took rows: without theirs it must not be read on."""
    with cj.LocalCluster(workers=1) as cluster:
        first, second = slow_readers(cluster)
        got = ids([next(first), next(second)])
        states = [first.state_dict(), second.state_dict()]
    with cj.LocalCluster(workers=1) as cluster:
        first, second = slow_readers(cluster)
        for reader, state in zip((first, second), states, strict=True):
            reader.load_state_dict(state)
        assert second.state_dict() == states[1], "nobody has taken anything since"
        got += ids([next(first), next(first)])
        wait_for("the other reader's name", lambda: second.state_dict() != states[1])
        states = [first.state_dict(), second.state_dict()]
        assert set(states[0]["readers"]) <= set(states[1]["all_readers"])
    with cj.LocalCluster(workers=1) as cluster:
        first, second = slow_readers(cluster)
        second.load_state_dict(states[1])
        first.load_state_dict(states[0])
        with ThreadPoolExecutor(2) as pool:
            rest = [row for batches in pool.map(list, (first, second)) for row in ids(batches)]
    assert sorted(got + rest) == list(range(6000))


def test_states_of_one_reader_that_took_rows_and_one_that_did_not_go_on_together():
    """The readers had restored states of different readings: one had taken nothing after it had restored its own, too."""
    got = []
    with cj.LocalCluster(workers=1) as cluster:
        first, second = slow_readers(cluster)
        got += ids([next(first), next(second)])
        union = [first.state_dict(), second.state_dict()]
    with cj.LocalCluster(workers=1) as cluster:
        first, second = slow_readers(cluster)
        first.load_state_dict(union)
        second.load_state_dict(union)
        got += ids([next(first)])
        states = [first.state_dict(), second.state_dict()]
    with cj.LocalCluster(workers=1) as cluster:
        first, second = slow_readers(cluster)
        first.load_state_dict(states[0])
        second.load_state_dict(states[1])
        unchanged = first.state_dict()
        got += ids(next(second) for _ in range(3))
        states = [unchanged, second.state_dict()]
    with cj.LocalCluster(workers=1) as cluster:
        [alone] = slow_readers(cluster, 1)
        alone.load_state_dict(states)
        rest = ids(alone)
    assert sorted(got + rest) == list(range(6000))
