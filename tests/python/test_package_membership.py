"""Workers of this process, jobs, identifiers and readers, by their ids in docs/conformance.md."""

import json
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import caju as cj

PATIENCE_S = 60


def wait_until(true, why):
    until = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < until, why
        threading.Event().wait(0.02)


def values(dataset, name="id"):
    return [int(row[name]) for row in dataset]


# ---- local workers -------------------------------------------------------------------------------------------------


def test_loc_01_and_loc_05_local_workers_in_python(cluster):
    servers = cluster(workers=3)
    address = servers.dispatcher.address
    for target in ("local", "LOCAL"):
        alone = cj.range(10).distribute(address, processing_mode="off", target_workers=target)
        with pytest.raises(cj.InvalidPipeline, match="no local worker is found"):
            iter(alone)
    with cj.start_worker(address, local_only=True, cpu_threads=1) as worker:
        assert worker.address.startswith("memory://")
        for target in ("local", "LOCAL"):
            assert values(cj.range(10).distribute(address, processing_mode="off", target_workers=target)) == list(range(10))
        for target in (None, "auto", "any"):
            off = cj.range(10).distribute(address, processing_mode="off", target_workers=target)
            assert sorted(values(off)) == sorted(list(range(10)) * 4)
        assert sorted(values(cj.range(10_000).distribute(address, target_workers="local"))) == list(range(10_000))
    with pytest.raises(cj.InvalidPipeline, match="no local worker is found"):
        iter(cj.range(10).distribute(address, target_workers="local"))
    for wrong, why in [("locale", "is not one of auto, any, local"), (1, "is not one of")]:
        with pytest.raises(cj.InvalidPipeline, match=why):
            cj.range(10).distribute(address, target_workers=wrong)
    with pytest.raises(cj.InvalidPipeline, match="local_only=True opens no port"):
        cj.start_worker(address, listen="127.0.0.1:7", local_only=True)


# ---- jobs and identifiers ------------------------------------------------------------------------------------------


@pytest.fixture
def dispatcher():
    """A dispatcher of this process with one worker."""
    with cj.start_dispatcher() as server, cj.start_worker(server, cpu_threads=1):
        yield server


def test_reg_01_an_id_is_text_or_bytes(dispatcher):
    given = cj.range(10).register(dispatcher)
    for dataset_id in (given, given.encode(), np.str_(given)):
        assert values(cj.from_dataset_id(dispatcher, dataset_id)) == list(range(10))
    assert cj.range(10).register(dispatcher, "zehn Stück".encode()) == "zehn Stück"
    assert values(cj.from_dataset_id(dispatcher, "zehn Stück".encode())) == list(range(10))
    for wrong, why in ((b"\xff", "not UTF-8: invalid start byte at byte 0"), (7, "must be a string or bytes"), (None, "must be a string")):
        with pytest.raises(cj.InvalidPipeline, match=f"dataset_id=.*{why}"):
            cj.from_dataset_id(dispatcher, wrong)


def test_reg_02_a_chosen_identifier(dispatcher):
    assert cj.range(10).register(dispatcher, "dataset_id") == "dataset_id"
    assert values(cj.from_dataset_id(dispatcher.address, "dataset_id")) == list(range(10))
    with pytest.raises(cj.AlreadyExists, match="dataset_id"):
        cj.range(11).register(dispatcher, "dataset_id")


def test_reg_03_different_definitions_have_different_ids(dispatcher, tmp_path):
    """Registered without an identifier. Those of one fingerprint differ in paths or in hints, which it does not cover."""
    for name, rows in (("a", "1\n2\n"), ("b", "3\n")):
        (tmp_path / f"{name}.csv").write_text(f"id\n{rows}")
    computed = [(cj.range(10).filter("id < 5"), list(range(5))), (cj.range(10).filter("id < 6"), list(range(6)))]
    files = [(cj.read_csv(tmp_path / "a.csv"), [1, 2]), (cj.read_csv(tmp_path / "b.csv"), [3])]
    hints = [(cj.range(20).autocache(name), list(range(20))) for name in ("one", "other")]
    fingerprints = [[dataset.fingerprint for dataset, _ in pair] for pair in (computed, files, hints)]
    assert [first == second for first, second in fingerprints] == [False, True, True]
    registered = computed + files + hints
    given = [dataset.register(dispatcher) for dataset, _ in registered]
    assert len(set(given)) == len(registered), given
    assert [dataset.register(dispatcher) for dataset, _ in registered] == given
    for (dataset, rows), dataset_id in zip(registered, given):
        assert dataset_id.startswith(dataset.fingerprint)
        assert sorted(values(cj.from_dataset_id(dispatcher, dataset_id))) == rows


def test_reg_04_equal_definitions_have_one_identifier(dispatcher):
    one, two = cj.range(10).map(x="id * 2"), cj.range(10).map(x="id * 2")
    assert one.register(dispatcher) == two.register(dispatcher) == one.fingerprint
    assert one.register(dispatcher, "mine") == "mine"
    assert cj.range(10).map(x="id * 3").register(dispatcher) != one.fingerprint


def test_reg_11_a_shared_job_is_read_once(dispatcher):
    for n, dataset in enumerate([cj.range(10), cj.range(10).repeat(5)]):
        dataset.register(dispatcher, f"shared-{n}")
        readers = [cj.from_dataset_id(dispatcher, f"shared-{n}", job_name=f"job-{n}", processing_mode="off") for _ in range(2)]
        assert values(readers[0]) == list(range(10)) * (1 + 4 * n)
        assert values(readers[1]) == []


def test_reg_13_other_ids_under_one_job_name_share_nothing(dispatcher):
    dataset = cj.range(10)
    for name in ["first", "second"]:
        dataset.register(dispatcher, name)
    named = [cj.from_dataset_id(dispatcher, name, job_name="named") for name in ["first", "second"]]
    unnamed = dataset.distribute(dispatcher, job_name="named")
    readers = [iter(reader) for reader in [*named, unnamed]]
    taken = [[int(next(reader)["id"])] for reader in readers]
    for ids, reader in zip(taken, readers):
        ids.extend(int(element["id"]) for element in reader)
        assert sorted(ids) == list(range(10))
    assert [reader.job for reader in readers] == ["named:first", "named:second", "named"]


def test_reg_12_readers_of_an_endless_job_share_it(dispatcher):
    cj.range(10**9).batch(8).register(dispatcher, "endless")
    readers = [iter(cj.from_dataset_id(dispatcher, "endless", job_name="endless")) for _ in range(2)]
    taken = [[int(i) for _ in range(10) for i in next(reader)["id"]] for reader in readers]
    assert [len(set(ids)) for ids in taken] == [80, 80]
    assert not set(taken[0]) & set(taken[1])
    for reader in readers:
        reader.close()


ENDLESS = cj.range(10**9).batch(64)


def tasks(servers):
    return [len(worker["tasks"]) for worker in servers.status()["workers"]]


def test_gc_02_a_job_with_a_reader_keeps_its_task(cluster):
    servers = cluster(workers=1)
    address = servers.dispatcher.address
    epochs = [iter(ENDLESS.distribute(address, job_name=name)) for name in ("test1", "test2", "test2")]
    for epoch in epochs[:2]:
        next(epoch)
    assert tasks(servers) == [2]
    epochs[0].close()
    epochs[1].close()
    wait_until(lambda: tasks(servers) == [1], "the task of test1 stays")
    [job] = [j for j in servers.status()["jobs"] if j["clients"]]
    assert (job["job"], job["clients"]) == ("test2", 1)
    next(epochs[2])
    epochs[2].close()
    wait_until(lambda: tasks(servers) == [0], "the task of test2 stays")


def test_gc_04_a_job_that_was_left_starts_again_at_its_first_row(cluster):
    servers = cluster(workers=1)
    rows = cj.range(100_000).with_options(deterministic=True).distribute(servers.dispatcher.address)
    with iter(rows) as epoch:
        assert [int(next(epoch)["id"]) for _ in range(5)] == list(range(5))
    wait_until(lambda: tasks(servers) == [0], "the task stays")
    assert values(rows) == list(range(100_000))


def test_gc_07_a_reader_that_only_reports_is_kept(cluster, caju):
    servers = cluster(workers=0)
    dispatcher = servers.start("dispatcher", "--heartbeat", "100ms", "--client-timeout", "1s").address
    servers.start("worker", "--dispatcher", dispatcher, "--cpu-threads", "1")
    epoch = iter(cj.range(1000).distribute(dispatcher))

    def uptime():
        return json.loads(caju("status", "--dispatcher", dispatcher, "--format", "json").stdout)["uptime_s"]

    opened = uptime()
    wait_until(lambda: uptime() > opened + 3, "the dispatcher's clock stands still")
    assert [int(row["id"]) for row in epoch] == list(range(1000))


# ---- consumers -----------------------------------------------------------------------------------------------------


def ranks(dataset, address, count, uneven=None, epochs=1):
    """What each of several ranks gets, each in a thread: the ids of its batches, per epoch, and the batches of padding."""
    got = [[] for _ in range(count)]

    def run(rank):
        mine = dataset.distribute(address, job_name="ranks", num_consumers=count, consumer_index=rank, uneven=uneven)
        for _ in range(epochs):
            epoch = iter(mine)
            batches = [[int(i) for i in batch["id"]] for batch in epoch]
            got[rank].append((batches, epoch.stats.padded_elements))

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert [len(g) for g in got] == [epochs] * count
    return got


def test_num_consumers_gives_every_rank_as_many_steps():
    with cj.LocalCluster(workers=2) as cluster:
        for uneven, steps in ((None, 26), ("drop", 26), ("pad", 27)):
            with cj.start_dispatcher() as dispatcher, cj.start_worker(dispatcher), cj.start_worker(dispatcher):
                rows = cj.range(2_635).shuffle(100).batch(25)
                got = ranks(rows, dispatcher, 4, uneven, epochs=2)
            own = {"num_consumers": 4, "consumer_index": 1, "uneven": uneven}
            assert len(rows.distribute("h:1", job_name="ranks", **own)) == steps
            for epoch in range(2):
                assert [len(rank[epoch][0]) for rank in got] == [steps] * 4
                assert sum(rank[epoch][1] for rank in got) == (2 if uneven == "pad" else 0)
        got = ranks(cj.range(1_000).batch(10), cluster, 2)
        assert sorted(i for rank in got for batch in rank[0][0] for i in batch) == list(range(1_000))


# ---- readers -------------------------------------------------------------------------------------------------------


def test_cli_02_a_source_that_cannot_be_opened_is_reported_when_the_iterator_is_made(cluster, tmp_path):
    servers = cluster(workers=1)
    missing = cj.read_csv(tmp_path / "missing.csv").distribute(servers.dispatcher.address)
    with pytest.raises(cj.NotFound, match=r"missing\.csv"):
        iter(missing)
    # The dispatcher may read the file and the worker may not: the first element says so, and nothing hangs.
    (tmp_path / "there.csv").write_text("id\n1\n")
    (tmp_path / "other").mkdir()
    lonely = servers.start("dispatcher").address
    from conftest import Server

    worker = Server(servers.caju, tmp_path, "worker", "--listen", "127.0.0.1:0", "--dispatcher", lonely,
                    "--allow", str(tmp_path / "other"))  # fmt: skip
    servers.servers.append(worker)
    with pytest.raises(cj.NotPermitted, match=r"there\.csv"):
        next(iter(cj.read_csv(tmp_path / "there.csv").distribute(lonely)))


@pytest.mark.parametrize("make", [
    lambda: cj.LocalCluster(workers=-1),
    lambda: cj.LocalCluster(cpu_threads=0),
    lambda: cj.range(3).distribute("h:1", connect_timeout=-1),
    lambda: cj.range(3).distribute("h:1", epochs=0),
    lambda: cj.range(3).distribute("h:1", seed=-1),
    lambda: cj.range(3).distribute("h:1", uneven="drop"),
    lambda: cj.range(3).distribute("h:1").distribute("h:1"),
    lambda: cj.range(3).batch(0),
    lambda: cj.start_worker("h:1", local_only=True, advertise="h:2"),
])  # fmt: skip
def test_cli_07_wrong_arguments_are_refused_at_construction(make):
    with pytest.raises(ValueError):
        make()


def test_cli_07_a_dataset_does_not_change_under_its_iterator():
    rows = cj.range(10)
    epoch = iter(rows)
    assert int(next(epoch)["id"]) == 0
    doubled = rows.map(id="id * 2")
    assert [int(r["id"]) for r in epoch] == list(range(1, 10)) and values(doubled) == [2 * i for i in range(10)]
    with pytest.raises(AttributeError):
        epoch.epoch = 3


def test_cli_08_two_readers_in_one_process_both_get_everything(dispatcher):
    rows = cj.range(1000)
    assert values(rows) == values(rows) == list(range(1000))
    one, two = iter(rows.distribute(dispatcher)), iter(rows.distribute(dispatcher))
    together = [(int(a["id"]), int(b["id"])) for a, b in zip(one, two, strict=True)]
    assert sorted(a for a, _ in together) == sorted(b for _, b in together) == list(range(1000))


def test_cli_09_a_prefetcher_restarts_and_can_be_shut_down_twice(dispatcher):
    rows = cj.range(1000).batch(10).prefetch(4).distribute(dispatcher, epochs=3)
    for _ in range(2):
        assert sorted(int(i) for batch in rows for i in batch["id"]) == list(range(1000))
    epoch = iter(rows)
    next(epoch)
    epoch.close()
    epoch.close()
    with pytest.raises(cj.Cancelled):
        next(epoch)


COMPUTED = """
import resource
import caju
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
kept = [batch for batch in caju.range(20_000).batch(100)]
assert len(kept) == 200 and sorted(int(i) for b in kept for i in b["id"]) == list(range(20_000))
print("kept", len(kept))
"""

IN_SHARED_MEMORY = """
import resource, sys
import numpy as np
import caju
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
rows = caju.range(8_000_000).batch(40_000).with_options(deterministic=True)
epoch = iter(rows.distribute(sys.argv[1], job_name="kept", sharing="exact"))
kept = list(epoch)
assert np.array_equal(np.concatenate([batch["id"] for batch in kept]), np.arange(8_000_000))
assert epoch.stats.mapped_bytes > 100 * 40_000 * 8, epoch.stats
print("kept", len(kept))
"""

IN_MAPPED_PARTS = """
import pathlib, resource, sys
import caju
rows = caju.read_csv(f"{sys.argv[1]}/*.csv", schema={"id": "int64"}).autocache("ids").batch(1000).with_options(deterministic=True)
with caju.LocalCluster(workers=1, cpu_threads=1, cache=f"{sys.argv[1]}/cache") as cluster:
    epochs = rows.distribute(cluster, job_name="kept", policy="hint:ids", epochs=2)
    assert sum(len(batch["id"]) for batch in epochs) == 200_000
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
    kept = list(epochs)
    assert [int(i) for batch in kept for i in batch["id"]] == list(range(200_000))
    maps = [line.split()[-1] for line in pathlib.Path("/proc/self/maps").read_text().splitlines()]
    mapped = {name for name in maps if name.startswith(f"{sys.argv[1]}/cache/")}
    assert 0 < len(mapped) <= 25, mapped
    print("kept", len(kept))
"""


def keep(script, *arguments):
    """Runs a program that keeps its batches; what it says at its end."""
    done = subprocess.run([sys.executable, "-c", script, *map(str, arguments)], capture_output=True, text=True,
                          timeout=PATIENCE_S, check=False)
    assert done.stdout == "kept 200\n", done.stderr


def test_cli_10_batches_that_are_kept_take_no_open_files():
    keep(COMPUTED)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such files")
def test_cli_10_batches_in_shared_memory_that_are_kept_take_no_open_files(cluster):
    keep(IN_SHARED_MEMORY, cluster(workers=1).dispatcher.address)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems map no parts")
def test_cli_10_batches_of_mapped_parts_that_are_kept_leave_most_open_files_to_others(tmp_path):
    for n in range(200):
        ids = range(n * 1000, (n + 1) * 1000)
        (tmp_path / f"{n:03}.csv").write_text("\n".join(["id", *map(str, ids)]) + "\n")
    keep(IN_MAPPED_PARTS, tmp_path)


# ---- what cannot be shipped ----------------------------------------------------------------------------------------


def test_ops_15_a_generator_is_refused_where_it_is_given(dispatcher):
    def numbers():
        yield from range(10)

    with pytest.raises(ValueError):
        cj.from_numpy(numbers())
    # Its values can be shipped.
    rows = cj.from_numpy({"id": list(numbers())}).distribute(dispatcher)
    assert values(rows) == list(range(10))


def test_ops_22_a_function_that_cannot_be_pickled_is_refused_at_registration():
    lock = threading.Lock()

    def locked(row):
        with lock:
            return {"x": row["id"]}

    with cj.start_dispatcher(allow_python=True) as server, cj.start_worker(server, allow_python=True):
        with pytest.raises(cj.CajuError, match="lock"):
            cj.range(3).map(locked).register(server, "locked")
        with pytest.raises(cj.NotFound):
            cj.from_dataset_id(server, "locked").schema  # noqa: B018


def test_met_03_registering_always_stores_the_schema():
    with cj.start_dispatcher(allow_python=True) as server, cj.start_worker(server, allow_python=True):
        opaque = cj.range(3).map(lambda row: {"x": float(row["id"]), "name": str(row["id"])})
        opaque.register(server, "opaque")
        known = cj.from_dataset_id(server.address, "opaque")
        assert dict(known.schema) == dict(opaque.schema) and set(known.schema) == {"x", "name"}


# ---- endless epochs ------------------------------------------------------------------------------------------------

def test_an_endless_repeat_does_not_keep_the_splits_that_users_have_taken(cluster, tmp_path):
    """An epoch may last as long as a training: nothing that is known of its splits may grow for as long."""
    for i in range(20):
        (tmp_path / f"{i:02}.jsonl").write_text("".join(f'{{"id": {5 * i + k}}}\n' for k in range(5)))
    servers = cluster(workers=2)
    endless = cj.read_json(str(tmp_path / "*.jsonl")).filter("id % 5 < 3").shuffle(30).repeat()
    readers = [iter(endless.distribute(servers.dispatcher.address, job_name="endless")) for _ in range(2)]
    counts = {}
    for _ in range(6000):
        for reader in readers:
            row = int(next(reader)["id"])
            counts[row] = counts.get(row, 0) + 1
    assert set(counts) == {5 * i + k for i in range(20) for k in range(3)}
    splits = lambda: next(job for job in servers.status()["jobs"] if job["clients"])["splits"]  # noqa: E731
    wait_until(lambda: splits()["done"] > 3000, "splits are done while their tasks run")
    # What is computed ahead, and what waits in shuffle buffers and with readers, is not done.
    assert splits()["leased"] < 1000 and splits()["sent"] == 0
    for reader in readers:
        reader.close()


def test_an_endless_repeat_of_nothing_is_an_error_of_all_its_tasks(cluster, tmp_path):
    for i in range(4):
        (tmp_path / f"{i}.jsonl").write_text(f'{{"id": {i}}}\n')
    servers = cluster(workers=2)
    nothing = cj.read_json(str(tmp_path / "*.jsonl")).filter("id > 100").repeat()
    with pytest.raises(cj.InvalidPipeline, match=r"steps\[1\]\.repeat: the pipeline above it gives no row"):
        next(iter(nothing.distribute(servers.dispatcher.address)))


def test_an_endless_repeat_of_a_source_without_splits_ends():
    assert list(cj.range(0).repeat()) == [] == list(cj.range(0).repeat().take(5))
