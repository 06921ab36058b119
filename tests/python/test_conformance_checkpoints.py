"""Conformance of states of iterators (CKP): what was read before a state and what is read behind it is the epoch."""

import collections
import contextlib
import ctypes
import json
import os
import struct
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import caju as cj


def plain(rows=137):
    """Elements in no promised order, as most pipelines are."""
    return cj.range(rows)


def ids(elements):
    return [int(i) for e in elements for i in np.atleast_1d(e["id"])]


def split(dataset, taken, **kwargs):
    """The ids of the first elements of an epoch, and a state that passed through JSON."""
    epoch = iter(dataset)
    before = ids(next(epoch) for _ in range(taken))
    state = json.loads(json.dumps(epoch.state_dict()))
    epoch.close()
    return before, state


def behind(dataset, state):
    epoch = iter(dataset)
    epoch.load_state_dict(state)
    return ids(epoch)


ordered = [
    lambda: cj.range(2, 10).with_options(deterministic=True),
    lambda: cj.range(60).batch(7).with_options(deterministic=True),
    lambda: cj.range(60).shuffle(20).batch(4).with_options(deterministic=True),
    lambda: cj.range(60).filter("id % 3 = 0").take(11).with_options(deterministic=True),
]
unordered = [
    lambda: cj.range(20_000).batch(64),
    lambda: cj.range(20_000).shuffle(3000, seed=3).batch(100),
    lambda: cj.range(5_000).filter("id % 7 < 3").shuffle(100),
    lambda: cj.range(5_000).take(3_000).skip(500).batch(10),
    lambda: cj.range(5_000).filter("id % 2 = 0").take(1_000).batch(10),
]


@pytest.mark.parametrize("dataset", ordered)
def test_ckp_01_the_sequence_goes_on(dataset):
    whole = [ids([e]) for e in dataset()]
    for taken in range(0, len(whole) + 1, max(1, len(whole) // 10)):
        before, state = split(dataset(), taken)
        assert before + behind(dataset(), state) == sum(whole, []), taken
    epoch = iter(dataset())
    first = [next(epoch) for _ in range(3)]
    earlier = epoch.state_dict()
    second = [next(epoch) for _ in range(2)]
    assert ids(first) + behind(dataset(), earlier) == sum(whole, [])
    assert ids(first + second) + behind(dataset(), epoch.state_dict()) == sum(whole, [])


@pytest.mark.parametrize("steps", [
    lambda rows: rows.batch(7),
    lambda rows: rows.filter("id % 3 > 0").shuffle(300, seed=5).batch(10),
], ids=["batch", "shuffle"])
def test_ckp_01_the_sequence_goes_on_over_many_splits_and_other_workers(steps):
    rows = steps(cj.range(9000)).with_options(deterministic=True)
    with cj.LocalCluster(workers=3) as cluster:
        elements = [ids([e]) for e in rows.distribute(cluster)]
        states = []
        for taken in range(0, len(elements) + 1, len(elements) // 5):
            epoch = iter(rows.distribute(cluster))
            before = ids(next(epoch) for _ in range(taken))
            states.append((before, json.loads(json.dumps(epoch.state_dict()))))
            assert epoch.splits[1] in (0, 9)                  # 0 before the source is listed
            epoch.close()
    whole = sum(elements, [])
    assert sorted(whole) == sorted(ids(rows))
    with cj.LocalCluster(workers=2) as cluster:
        for before, state in states:
            assert before + behind(rows.distribute(cluster), state) == whole, len(before)


@pytest.mark.parametrize("dataset", unordered)
def test_ckp_01_where_no_order_is_promised_the_rows_are_those_that_are_left(dataset):
    whole = sorted(ids(dataset()))
    for taken in (0, 1, 17, 80):
        before, state = split(dataset(), taken)
        assert sorted(before + behind(dataset(), state)) == whole
        assert state["rows"] == len(before)


def test_ckp_03_a_live_iterator_goes_back():
    epoch = iter(cj.range(10).map(x="id * id").with_options(deterministic=True))
    first = [next(epoch)["x"] for _ in range(3)]
    state = epoch.state_dict()
    second = [next(epoch)["x"] for _ in range(2)]
    epoch.load_state_dict(state)
    assert [next(epoch)["x"] for _ in range(2)] == second == [9, 16]
    rest = [e["x"] for e in epoch]
    epoch.load_state_dict(state)                              # also behind its end
    assert first + second + rest == [i * i for i in range(10)] == first + [e["x"] for e in epoch]


def test_ckp_05_repetitions_go_on():
    def dataset():
        return cj.range(2, 10).repeat(5).with_options(deterministic=True)

    before, state = split(dataset(), 2 * 8 + 5)
    assert before == [*range(2, 10)] * 2 + [*range(2, 7)]
    assert behind(dataset(), state) == [7, 8, 9] + [*range(2, 10)] * 2


def test_ckp_07_five_rounds_of_load_read_save(tmp_path):
    saved, reads = tmp_path / "state.json", []
    for _ in range(5):
        epoch = iter(cj.range(10).with_options(deterministic=True))
        if saved.exists():
            epoch.load_state_dict(json.loads(saved.read_text()))
        reads += ids(next(epoch) for _ in range(2))
        saved.write_text(json.dumps(epoch.state_dict()))
    assert reads == list(range(10))


@pytest.mark.parametrize("deterministic", [True, False])
def test_ckp_08_a_shuffle_gives_the_same_values_again(deterministic):
    dataset = cj.range(100).shuffle(10).with_options(deterministic=deterministic)
    list(dataset)                                             # each epoch has another order
    epoch = iter(dataset)
    ids(next(epoch) for _ in range(50))
    state = epoch.state_dict()
    rest = ids(epoch)
    epoch.load_state_dict(state)
    again = ids(epoch)
    assert sorted(again) == sorted(rest) and (again == rest or not deterministic)


def test_ckp_11_a_new_pass_after_a_state_is_whole():
    _, state = split(cj.range(40).shuffle(40), 20)
    dataset = cj.range(40).shuffle(40)
    epoch = iter(dataset)
    epoch.load_state_dict(state)
    assert len(ids(epoch)) == 20
    for _ in range(2):
        assert sorted(ids(dataset)) == list(range(40))


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("batch", [None, 7])
@pytest.mark.parametrize("taken", [0, 1, 10])
def test_ckp_14_the_remaining_elements_come_whatever_the_workers(workers, batch, taken):
    def dataset(cluster, workers):
        rows = cj.concatenate(cj.range(0), cj.range(100), cj.range(100, 137))     # one share is empty
        return (rows.batch(batch) if batch else rows).distribute(cluster)

    with cj.LocalCluster(workers=workers) as cluster:
        before, state = split(dataset(cluster, workers), taken)
    with cj.LocalCluster(workers=4 - workers) as cluster:
        after = behind(dataset(cluster, 4 - workers), state)
    assert sorted(before + after) == list(range(137))
    in_order = plain().with_options(deterministic=True)
    before, state = split(in_order, taken)
    assert before + behind(plain().with_options(deterministic=True), state) == list(range(137))


def noise(row):
    return {"id": row["id"], "x": float(cj.rng().random())}


def test_ckp_16_random_draws_go_on():
    def dataset():
        return cj.range(60).map(noise, schema={"id": "int64", "x": "float64"}).with_options(deterministic=True)

    whole = [(int(e["id"]), float(e["x"])) for e in dataset()]
    for taken in (0, 1, 10):
        epoch = iter(dataset())
        before = [(int(e["id"]), float(e["x"])) for e in (next(epoch) for _ in range(taken))]
        state = epoch.state_dict()
        rest = iter(dataset())
        rest.load_state_dict(state)
        assert before + [(int(e["id"]), float(e["x"])) for e in rest] == whole


def test_ckp_18_behind_the_end_is_the_next_epoch():
    def dataset():
        return cj.range(50).shuffle(50).with_options(deterministic=True)

    uninterrupted = dataset()
    epochs = [ids(uninterrupted) for _ in range(4)]
    first = dataset()
    seen = [ids(first)]
    last = iter(first)
    seen.append(ids(last))
    state = last.state_dict()
    second = dataset()
    elsewhere = iter(second)
    next(elsewhere)
    elsewhere.load_state_dict(state)
    assert list(elsewhere) == [] and elsewhere.state_dict() == state
    assert seen + [ids(second), ids(second)] == epochs


def test_ckp_20_another_number_of_workers_reads_on(tmp_path):
    for before_workers, after_workers in ((1, 3), (3, 1)):
        with cj.LocalCluster(workers=before_workers) as cluster:
            before, state = split(cj.range(9_000).batch(30).distribute(cluster), 100)
        with cj.LocalCluster(workers=after_workers) as cluster:
            after = behind(cj.range(9_000).batch(30).distribute(cluster), state)
        assert sorted(before + after) == list(range(9_000))


@pytest.mark.parametrize("workers", [1, 3])
def test_ckp_22_a_state_passes_through_json(workers):
    with cj.LocalCluster(workers=workers) as cluster:
        epoch = iter(cj.range(100).batch(3).distribute(cluster))
        before = ids(next(epoch) for _ in range(4))
        state = epoch.state_dict()
        text = json.dumps(state)
        assert json.loads(text) == state and state["version"] == 2
        after = behind(cj.range(100).batch(3).distribute(cluster), json.loads(text))
    assert sorted(before + after) == list(range(100))


def test_ckp_23_the_first_state_is_the_start():
    dataset = cj.range(30).batch(4)
    epoch = iter(dataset)
    start = epoch.state_dict()
    assert (start["elements"], start["rows"], start["exhausted"]) == (0, 0, False)
    assert sorted(behind(cj.range(30).batch(4), start)) == list(range(30))
    _, state = split(cj.range(30).batch(4), 3)
    epoch.load_state_dict(state)                              # after the first state was asked for
    assert epoch.state_dict() == state
    assert len(ids(epoch)) == 30 - 12
    assert sorted(ids(dataset)) == list(range(30)) == sorted(ids(dataset))


def test_ckp_23_a_state_from_before_the_first_worker_is_the_start():
    with cj.start_dispatcher() as dispatcher:
        rows = cj.range(30).batch(4).distribute(dispatcher, processing_mode="off", worker_wait=5.0)
        epoch = iter(rows)
        start = epoch.state_dict()
        epoch.close()
        with cj.start_worker(dispatcher, cpu_threads=1), cj.start_worker(dispatcher, cpu_threads=1):
            assert sorted(behind(rows, start)) == sorted(2 * list(range(30)))


def test_ckp_25_states_do_not_grow_with_what_was_read():
    epoch = iter(cj.range(60_000).shuffle(10).batch(8))
    sizes = []
    for n, _ in enumerate(epoch):
        if n % 1000 == 500:
            sizes.append(len(json.dumps(epoch.state_dict())))
    assert len(sizes) > 5 and max(sizes[1:]) < 2 * sizes[0] + 200 < 4096, sizes
    assert len(json.dumps(epoch.state_dict())) < 1000


@pytest.fixture
def stored(tmp_path):
    """Rows of 300 files, which are stored behind a `shuffle`: the dataset, the cache, and the bytes of the files."""
    (tmp_path / "rows").mkdir()
    for n in range(300):
        rows = "".join(f'{{"id": {i}}}\n' for i in range(n * 40, n * 40 + 40))
        (tmp_path / "rows" / f"{n:03}.json").write_text(rows)
    files = cj.read_json(tmp_path / "rows" / "*.json", schema={"id": "int64"}).shuffle(10).cache("h").batch(10)
    with cj.LocalCluster(cache=tmp_path / "cache") as cluster:
        epochs = files.distribute(cluster)
        assert len(ids(epochs)) == 12_000
        whole = cluster.bytes_read
        assert len(ids(epochs)) == 12_000
    return files, tmp_path / "cache", whole


def test_ckp_25_states_grow_by_a_bit_for_each_split_where_rows_come_from_a_set(stored):
    files, cache, whole = stored
    with cj.LocalCluster(cache=cache) as cluster:
        epochs = files.distribute(cluster)
        for number in range(2):                               # the second one has its splits in another order
            epoch, sizes = iter(epochs), []
            for n, _ in enumerate(epoch):
                if n % 100 == 50:
                    state = epoch.state_dict()
                    sizes.append(len(json.dumps(state)))
            assert state["epoch"] == number
            assert len(sizes) == 12 and max(sizes) < sizes[0] + 300, sizes
        assert cluster.bytes_read < whole / 10, "both epochs are read from the set"


def test_ckp_25_states_do_not_grow_where_splits_are_stored_and_read(tmp_path):
    (tmp_path / "rows").mkdir()
    for n in range(300):                                      # no two neighbours have the same number of rows
        rows = "".join(f'{{"id": {n * 100 + i}}}\n' for i in range(20 + n * 7 % 40))
        (tmp_path / "rows" / f"{n:03}.json").write_text(rows)
    files = cj.read_json(tmp_path / "rows" / "*.json", schema={"id": "int64"}).filter("id % 3 > 0").cache("h").batch(10)
    with cj.LocalCluster(cache=tmp_path / "cache") as cluster:
        epochs = files.distribute(cluster)
        for number in range(2):
            epoch, sizes = iter(epochs), []
            for n, _ in enumerate(epoch):
                if n % 50 == 25:
                    sizes.append(len(json.dumps(epoch.state_dict())))
            assert len(sizes) > 10 and max(sizes) < sizes[0] + 300, (number, sizes)


def test_ckp_26_what_was_taken_is_not_read_again(tmp_path):
    for n in range(8):
        cj.range(n * 1000, n * 1000 + 1000).save(tmp_path / f"part-{n}")
    with cj.LocalCluster() as cluster:
        files = cj.concatenate(*(cj.load(tmp_path / f"part-{n}") for n in range(8))).batch(100)
        before, state = split(files.distribute(cluster), 75)
    with cj.LocalCluster() as cluster:
        after = behind(files.distribute(cluster), state)
        assert sorted(before + after) == list(range(8000))
        resumed = cluster.bytes_read
    with cj.LocalCluster() as cluster:
        assert len(ids(files.distribute(cluster))) == 8000
        whole = cluster.bytes_read
    assert resumed <= whole / 8, ("one part of eight is left", resumed, whole)


def test_ckp_26_what_was_taken_from_a_set_is_not_read_again_from_the_source(stored):
    files, cache, whole = stored
    with cj.LocalCluster(cache=cache) as cluster:
        epochs = files.distribute(cluster)
        list(epochs)                                          # the next one has its splits in another order
        before, state = split(epochs, 1100)
        assert state["epoch"] == 1 and cluster.bytes_read < whole / 10
    with cj.LocalCluster() as cluster:
        after = behind(files.distribute(cluster), state)
        assert sorted(before + after) == list(range(12_000))
        assert cluster.bytes_read < whole / 4, ("a twelfth of the files is left", cluster.bytes_read, whole)


@pytest.fixture
def opens(tmp_path):
    """Counts how often each file of a folder was opened since the last call, by inotify of Linux."""
    libc = ctypes.CDLL(None, use_errno=True)
    events = libc.inotify_init1(os.O_NONBLOCK)
    assert libc.inotify_add_watch(events, os.fsencode(tmp_path), 0x20) >= 0, "IN_OPEN"

    def take():
        counts = collections.Counter()
        with contextlib.suppress(BlockingIOError):
            while data := os.read(events, 1 << 16):
                at = 0
                while at < len(data):
                    *_, length = struct.unpack_from("iIII", data, at)
                    counts[data[at + 16 : at + 16 + length].rstrip(b"\0").decode()] += 1
                    at += 16 + length
        del counts[""]                                        # the folder itself
        return counts

    yield take
    os.close(events)


@pytest.mark.skipif(sys.platform != "linux", reason="inotify is Linux's")
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("ordered", [False, True])
def test_ckp_26_a_source_is_opened_once_behind_a_state(tmp_path, opens, ordered, workers):
    parts = [f"part-{n}.parquet" for n in range(8)]
    for n, part in enumerate(parts):
        pq.write_table(pa.table({"id": range(n * 1000, n * 1000 + 1000)}), tmp_path / part)

    def files(cluster):
        return cj.read_parquet(tmp_path / "*.parquet").batch(100).with_options(deterministic=ordered).distribute(cluster)

    opens()                                                   # those for writing
    with cj.LocalCluster(workers=workers) as cluster:
        assert len(ids(files(cluster))) == 8000
    whole = opens()
    assert dict(whole) == dict.fromkeys(parts, 2), "once to plan, once to read"
    with cj.LocalCluster(workers=workers) as cluster:
        before, state = split(files(cluster), 75)
    opens()
    with cj.LocalCluster(workers=workers) as cluster:
        after = behind(files(cluster), state)
    resumed = opens()
    assert sorted(before + after) == list(range(8000))
    assert all(resumed[part] <= whole[part] for part in parts), resumed
    if not ordered:
        left = {i // 1000 for i in after}
        read = [part for part in parts if resumed[part] == 2]
        assert len(read) <= len(left) + workers, ("those with rows left, and those that ended at the state", read, left)


@pytest.mark.parametrize("workers", [1, 2])
def test_ckp_27_thirty_before_the_end(workers):
    with cj.LocalCluster(workers=workers) as cluster:
        before, state = split(cj.range(100).distribute(cluster), 70)
        after = behind(cj.range(100).distribute(cluster), state)
    assert (len(before), len(after)) == (70, 30)
    assert sorted(before + after) == list(range(100)), "each once"


@pytest.mark.parametrize("taken", [10, 50, 80])
@pytest.mark.parametrize("shuffled", [True, False])
def test_ckp_29_the_order_under_a_seed_goes_on(taken, shuffled):
    def dataset():
        rows = cj.range(100).with_options(deterministic=True, seed=5)
        return rows.shuffle(100) if shuffled else rows

    before, state = split(dataset(), taken)
    assert before + behind(dataset(), state) == ids(dataset())


@pytest.mark.parametrize(("name", "value"), [
    ("epoch", -1), ("elements", "3"), ("rows", 1.5), ("taken", "!"), ("taken", "AQ"), ("mode", "often"), ("readers", [-1]),
    ("exhausted", 3), ("seed", None), ("version", 99),
])
def test_ckp_30_malformed_states_are_refused(name, value):
    _, state = split(cj.range(100), 3)
    with pytest.raises(cj.InvalidPipeline):
        iter(cj.range(100)).load_state_dict(state | {name: value})
    del state[name]
    with pytest.raises(cj.InvalidPipeline):
        iter(cj.range(100)).load_state_dict(state)


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("shuffled", [True, False])
@pytest.mark.parametrize("workers", [1, 4])
def test_ckp_31_half_of_117_and_the_rest_on_new_clusters(tmp_path, batch, shuffled, workers):
    cj.range(117).save(tmp_path / "rows")

    def dataset(cluster):
        rows = cj.load(tmp_path / "rows")
        return (rows.shuffle(50) if shuffled else rows).batch(batch).distribute(cluster)

    with cj.LocalCluster(workers=workers) as cluster:
        before, state = split(dataset(cluster), 117 // batch // 2)
    with cj.LocalCluster(workers=workers) as cluster:
        after = behind(dataset(cluster), state)
    assert sorted(before + after) == list(range(117))


@pytest.mark.parametrize("times", [1, 10])
def test_ckp_32_a_loaded_state_is_read_back_as_it_was(times):
    _, state = split(cj.range(500).shuffle(100).batch(5), 30)
    again = state
    for _ in range(times):
        epoch = iter(cj.range(500).shuffle(100).batch(5))
        epoch.load_state_dict(again)
        again = epoch.state_dict()
        assert again == state


def test_ckp_33_a_state_that_is_too_large_is_refused():
    _, state = split(cj.range(100), 3)
    with pytest.raises(cj.InvalidPipeline, match="larger than any that caju writes|are the most"):
        iter(cj.range(100)).load_state_dict(state | {"taken": "A" * (40 << 20)})


@pytest.mark.parametrize("taken", [0, 3, 7])
def test_ckp_35_a_buffered_shuffle_goes_on(taken):
    before, state = split(cj.range(20).shuffle(5), taken)
    assert sorted(before + behind(cj.range(20).shuffle(5), state)) == list(range(20))
    with pytest.raises(cj.InvalidPipeline, match="of the dataset"):
        iter(cj.range(20).shuffle(10)).load_state_dict(state)
    for buffer in (0, -3):
        with pytest.raises(cj.InvalidPipeline, match="shuffle"):
            cj.range(20).shuffle(buffer)
