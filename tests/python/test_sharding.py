"""The static processing modes: worker k of n has shard k of n (docs/processing-modes.md, docs/conformance.md)."""

import json
import subprocess
import time

import pyarrow as pa
import pyarrow.flight
import pyarrow.parquet as pq
import pytest
from conftest import PATIENCE_S, Server, free_port, write_pipeline
from foreign import column, flight_info, read_endpoint

import caju as cj

ANY = ["--workers", ",".join(["127.0.0.1:%port%"] * 5)]
RANGE = {"source": {"range": 20}}
STATIC = ["file", "data", "file_or_data", "hint"]


def tfrecord(values):
    """A TFRecord file of these texts; checksums of zero are not allowed, so they are computed."""
    table = []
    for i in range(256):
        c = i
        for _ in range(8):
            c = (c >> 1) ^ (0x82F63B78 if c & 1 else 0)
        table.append(c)

    def masked(blob):
        c = 0xFFFFFFFF
        for b in blob:
            c = table[(c ^ b) & 255] ^ (c >> 8)
        c ^= 0xFFFFFFFF
        return (((c >> 15) | (c << 17)) + 0xA282EAD8 & 0xFFFFFFFF).to_bytes(4, "little")

    out = b""
    for value in values:
        data = value.encode()
        length = len(data).to_bytes(8, "little")
        out += length + masked(length) + data + masked(data)
    return out


@pytest.fixture
def files(tmp_path):
    """Ten TFRecord files of ten records each: record r of file f is `f,r`."""
    folder = tmp_path / "records"
    folder.mkdir()
    for f in range(10):
        (folder / f"part-{f}.tfrecord").write_bytes(tfrecord([f"{f},{r}" for r in range(10)]))
    return {"tfrecord": str(folder / "*.tfrecord")}


def endpoint_of(c, index, info):
    """The endpoint of the worker at a position of the list."""
    address = next(w["address"] for w in c.status()["workers"] if w["slot"] == index)
    return next(e for e in info.endpoints if e.locations[0].uri == f"grpc+tcp://{address}".encode())


def shard(c, index, definition, mode, name="id", **command):
    """What the worker at a position of the list gives, in its order."""
    info = flight_info(c.dispatcher.address, definition, mode=mode, **command)
    return column(read_endpoint(endpoint_of(c, index, info)), name)


def all_shards(c, definition, mode, workers=5, name="id"):
    info = flight_info(c.dispatcher.address, definition, mode=mode)
    return [column(read_endpoint(endpoint_of(c, k, info)), name) for k in range(workers)]


def records(c, index, definition, mode):
    return [r.decode() for r in shard(c, index, definition, mode, "record")]


def of_files(*numbers):
    return [f"{f},{r}" for f in numbers for r in range(10)]


@pytest.fixture
def five(cluster):
    return cluster(5, *ANY)


@pytest.mark.parametrize("mode", ["data", "file_or_data"])
def test_sta_01_each_worker_has_every_nth_row_in_order(five, mode):
    assert shard(five, 1, RANGE, mode) == [1, 6, 11, 16]
    assert all_shards(five, RANGE, mode) == [list(range(k, 20, 5)) for k in range(5)]


def test_sta_02_rows_without_files_have_no_shards_by_file(five):
    with pytest.raises(pa.ArrowKeyError, match="unshardable source.*range"):
        shard(five, 1, RANGE, "file")


@pytest.mark.parametrize("index", ["HINT", 0, 5])
def test_sta_03_a_hint_says_where_the_shards_are(five, index):
    definition = {"source": {"range": 20}, "steps": [{"shard": {"num_shards": "HINT", "index": index}}]}
    assert shard(five, 1, definition, "hint") == [1, 6, 11, 16]


def test_sta_03_a_hint_below_other_stages(five):
    steps = [{"filter": "id % 2 = 0"}, {"shard": {"num_shards": "HINT", "index": "HINT"}}, {"batch": 2}]
    assert shard(five, 1, {"source": {"range": 20}, "steps": steps}, "hint") == [2, 12]
    above = [{"batch": 2}, {"shard": {"num_shards": "HINT", "index": "HINT"}}]
    assert shard(five, 1, {"source": {"range": 20}, "steps": above}, "hint") == [2, 3, 12, 13]


def test_sta_04_a_hint_for_the_index_alone_is_refused(five):
    definition = {"source": {"range": 20}, "steps": [{"shard": {"num_shards": 5, "index": "HINT"}}]}
    with pytest.raises(pa.ArrowInvalid, match="index must be between 0 and 4"):
        shard(five, 1, definition, "hint")


def test_sta_05_without_a_hint_the_given_numbers_count(five):
    definition = {"source": {"range": 20}, "steps": [{"shard": {"num_shards": 1, "index": 0}}]}
    assert shard(five, 1, definition, "hint") == list(range(20))


def test_a_hint_needs_its_mode(five):
    definition = {"source": {"range": 20}, "steps": [{"shard": {"num_shards": "HINT", "index": "HINT"}}]}
    for mode in ("dynamic", "off", "data"):
        with pytest.raises(pa.ArrowInvalid, match="needs processing mode `hint`"):
            shard(five, 1, definition, mode)


def test_sta_07_off_gives_all_whatever_the_list(five, files):
    assert shard(five, 1, RANGE, "off") == list(range(20))
    assert records(five, 1, {"source": files, "deterministic": True}, "off") == of_files(*range(10))


@pytest.mark.parametrize("mode", ["file_or_data", "data"])
def test_sta_08_one_configured_worker_has_everything(cluster, mode):
    c = cluster(1, "--workers", "127.0.0.1:%port%")
    assert shard(c, 0, RANGE, mode) == list(range(20))


@pytest.mark.parametrize("mode", ["file", "file_or_data"])
def test_sta_10_each_worker_has_every_nth_file_whole(five, files, mode):
    assert records(five, 3, {"source": files, "deterministic": True}, mode) == of_files(3, 8)
    shuffled = {"source": files, "steps": [{"shuffle": 1000}]}
    found = records(five, 3, shuffled, mode)
    assert sorted(found) == of_files(3, 8) and found != of_files(3, 8)


def test_sta_10_shards_by_file_are_every_row_once(five, files):
    found = all_shards(five, {"source": files}, "file", name="record")
    assert sorted(r.decode() for part in found for r in part) == of_files(*range(10))


@pytest.mark.parametrize("mode", ["data", "hint"])
def test_sta_11_rows_of_unknown_number_are_counted(five, files, mode):
    steps = [{"shard": {"num_shards": "HINT", "index": "HINT"}}] if mode == "hint" else []
    want = [f"{f},{r}" for f in range(10) for r in (3, 8)]
    assert records(five, 3, {"source": files, "steps": steps}, mode) == want


def test_sta_11_a_hint_before_the_read_divides_files(five, files):
    hinted = {"tfrecord": {"path": files["tfrecord"], "shard": {"num_shards": "HINT", "index": "HINT"}}}
    assert records(five, 3, {"source": hinted, "deterministic": True}, "hint") == of_files(3, 8)
    with pytest.raises(pa.ArrowInvalid, match="needs processing mode `hint`"):
        records(five, 3, {"source": hinted}, "data")
    with pytest.raises(pa.ArrowInvalid, match="outermost source"):
        records(five, 3, {"source": {"concatenate": [{"source": hinted}]}}, "hint")
    numbered = {"tfrecord": {"path": files["tfrecord"], "shard": {"num_shards": 4, "index": 1}}}
    # Files 1, 5 and 9; under `file`, worker 2 of five has the last of these.
    assert records(five, 2, {"source": numbered, "deterministic": True}, "file") == of_files(9)
    with pytest.raises(pa.ArrowInvalid, match="an integer from 0 to 3"):
        numbered["tfrecord"]["shard"]["index"] = 4
        records(five, 2, {"source": numbered}, "dynamic")


def test_data_shards_go_on_across_files_of_any_length(five, tmp_path):
    for f, rows in enumerate([7, 0, 3, 10]):
        (tmp_path / f"{f}.tfrecord").write_bytes(tfrecord([f"{f},{r}" for r in range(rows)]))
    everything = [f"{f},{r}" for f, rows in enumerate([7, 0, 3, 10]) for r in range(rows)]
    source = {"tfrecord": {"path": str(tmp_path / "*.tfrecord"), "split": 60}}
    for k in range(5):
        assert records(five, k, {"source": source}, "data") == everything[k::5]


def test_data_shards_of_a_repeated_dataset(five):
    definition = {"source": {"range": 7}, "steps": [{"repeat": 3}]}
    found = all_shards(five, definition, "data")
    assert sorted(i for part in found for i in part) == sorted(list(range(7)) * 3)


def test_take_is_of_the_whole_dataset_under_data_and_of_each_workers_files_under_file(five, files):
    taken = {"source": {"range": 20}, "steps": [{"take": 7}]}
    assert all_shards(five, taken, "data") == [[0, 5], [1, 6], [2], [3], [4]]
    taken = {"source": files, "steps": [{"take": 7}]}
    found = all_shards(five, taken, "data", name="record")
    assert [[r.decode() for r in part] for part in found] == [["0,0", "0,5"], ["0,1", "0,6"], ["0,2"], ["0,3"], ["0,4"]]
    found = all_shards(five, taken, "file", name="record")
    assert [[r.decode() for r in part] for part in found] == [[f"{f},{r}" for r in range(7)] for f in range(5)]


def test_flat_map_and_filters_work_on_shards_of_data(five):
    steps = [{"filter": "id > 3"}, {"flat_map": {"name": "x", "expr": "[id, id + 100]"}}]
    definition = {"source": {"range": 20}, "steps": steps}
    info = flight_info(five.dispatcher.address, definition, mode="data")
    found = column(read_endpoint(endpoint_of(five, 2, info)), "x")
    assert sorted(found) == sorted(x for i in (7, 12, 17) for x in (i, i + 100))


def test_rows_draw_the_same_in_every_mode(five):
    definition = {"source": {"range": 50}, "steps": [{"with_columns": {"x": "random_int(0, 1000000)"}}], "seed": 5}
    drawn = {}
    for mode in ("dynamic", "data"):
        info = flight_info(five.dispatcher.address, definition, mode=mode)
        batches = [b for e in info.endpoints for b in read_endpoint(e)]
        drawn[mode] = dict(zip(column(batches, "id"), column(batches, "x")))
    assert len(drawn["data"]) == 50 and drawn["data"] == drawn["dynamic"]


@pytest.mark.parametrize("workers", ["127.0.0.1:%port%", "127.0.0.1:%port_worker%"])
def test_sta_17_workers_take_wildcard_positions_in_the_order_of_registration(cluster, workers):
    c = cluster(0, "--workers", ",".join([workers] * 5))
    for _ in range(5):
        c.add_worker()
    slots = [w["slot"] for w in sorted(c.status()["workers"], key=lambda w: w["worker_id"])]
    assert slots == list(range(5))
    assert shard(c, 3, RANGE, "data") == [3, 8, 13, 18]


def test_sta_18_a_worker_that_is_not_in_the_list_does_not_start(cluster, caju):
    c = cluster(0, "--workers", "elsewhere:7001,elsewhere:%port%")
    ended = caju("worker", "--dispatcher", c.dispatcher.address, "--listen", "127.0.0.1:0", code=3)
    assert "is not configured" in ended.stderr and "elsewhere:7001" in ended.stderr
    bad = caju("dispatcher", "--listen", "127.0.0.1:0", "--workers", "localhost:%port:1", code=2)
    assert "--workers" in bad.stderr and "localhost:%port:1" in bad.stderr


@pytest.mark.parametrize("mode", STATIC)
def test_sta_19_static_modes_need_a_list_of_workers(cluster, mode):
    c = cluster(1)
    with pytest.raises(pa.ArrowKeyError, match="not in the workers list.*--workers"):
        flight = flight_info(c.dispatcher.address, RANGE, mode=mode)
        read_endpoint(flight.endpoints[0])


@pytest.mark.parametrize("mode", ["off", "dynamic", *STATIC])
def test_sta_22_every_mode_runs_to_the_end(five, files, mode, tmp_path):
    report = five.report({"source": files}, tmp_path, "--processing-mode", mode)
    rows = {"off": 500, "hint": 500}.get(mode, 100)
    assert report["epochs"][0]["rows"] == rows


@pytest.mark.parametrize("mode", ["file", "data"])
def test_det_12_each_worker_has_the_same_batches_in_three_epochs(cluster, files, mode):
    c = cluster(2, "--workers", "127.0.0.1:%port%,127.0.0.1:%port%")
    definition = {"source": files, "steps": [{"batch": 5}], "deterministic": True}

    def batches(epoch):
        info = flight_info(c.dispatcher.address, definition, mode=mode, job="three", epoch=epoch)
        return [[column([b], "record") for b in read_endpoint(endpoint_of(c, k, info))] for k in range(2)]

    first = batches(0)
    assert sorted(r.decode() for worker in first for batch in worker for r in batch) == of_files(*range(10))
    assert all(worker for worker in first) and [batches(epoch) for epoch in (1, 2)] == [first, first]


@pytest.mark.parametrize("mode", ["file", "data"])
def test_two_epochs_and_the_checksum_of_all_shards(five, files, mode, tmp_path):
    once = five.report({"source": files}, tmp_path)["epochs"][0]["rows_checksum"]
    epochs = five.report({"source": files}, tmp_path, "--processing-mode", mode, "--epochs", "2")["epochs"]
    assert [e["rows_checksum"] for e in epochs] == [once, once]


def test_fewer_files_than_workers(five, tmp_path):
    pq.write_table(pa.table({"id": list(range(20))}), tmp_path / "one.parquet")
    definition = {"source": {"parquet": str(tmp_path / "one.parquet")}}
    assert all_shards(five, definition, "file_or_data") == [list(range(k, 20, 5)) for k in range(5)]
    assert all_shards(five, definition, "file") == [list(range(20)), [], [], [], []]


def test_status_names_shards_and_configured_workers(five, tmp_path):
    five.report(RANGE, tmp_path, "--processing-mode", "data", "--job", "seen")
    status = five.status()
    job = next(j for j in status["jobs"] if j["job"] == "seen")
    assert (job["mode"], job["shard_by"], job["num_shards"]) == ("data", "data", 5)
    assert status["configured_workers"] == ["127.0.0.1:%port%"] * 5


def test_an_embedded_cluster_has_as_many_shards_as_workers(caju, tmp_path):
    for mode in ("data", "file_or_data"):
        report = caju.report("run", RANGE, tmp_path, "--workers", "3", "--processing-mode", mode)
        assert report["epochs"][0]["rows"] == 20
    once = caju.report("run", RANGE, tmp_path)["epochs"][0]["rows_checksum"]
    assert report["epochs"][0]["rows_checksum"] == once


def test_policies_that_store_are_refused_where_rows_are_cut(cluster, caju, tmp_path):
    c = cluster(2, "--workers", "127.0.0.1:%port%,127.0.0.1:%port%", "--cache", str(tmp_path / "cache"))
    definition = {"source": {"range": 20}, "steps": ["autocache"]}
    file = tmp_path / "p.yaml"
    file.write_text(json.dumps(definition))
    args = ["read", file, "--dispatcher", c.dispatcher.address, "--processing-mode", "data", "--policy", "full"]
    assert "nothing can be stored" in caju(*args, code=2).stderr
    assert c.report(definition, tmp_path, "--processing-mode", "data")["epochs"][0]["splits"]["compute"] == 2


def test_what_has_no_fixed_listing_has_no_shards(cluster, caju, tmp_path):
    c = cluster(2, "--workers", "127.0.0.1:%port%,127.0.0.1:%port%", "--cache", str(tmp_path / "cache"))
    caju("save", write_pipeline(tmp_path, RANGE), "--to", tmp_path / "saved")
    load = lambda wait: {"source": {"load": {"path": str(tmp_path / "saved"), "wait": wait}}}
    read = ["read", tmp_path / "pipeline.yaml", "--dispatcher", c.dispatcher.address, "--processing-mode", "data"]
    write_pipeline(tmp_path, load(True))
    assert "wait: false" in caju(*read, code=2).stderr
    assert c.report(load(False), tmp_path, "--processing-mode", "data")["epochs"][0]["rows"] == 20
    stored = {"source": {"range": 20}, "steps": ["autocache"], "cache_only": True}
    c.report({**stored, "cache_only": False}, tmp_path, "--policy", "full")
    write_pipeline(tmp_path, stored)
    assert "`cache_only` reads recorded splits" in caju(*read, code=2).stderr


def test_policies_that_compute_by_row_hold_for_each_epoch_and_reader():
    with cj.LocalCluster(workers=2) as cluster:
        def rows(policy):
            hinted = cj.range(20).autocache("here")
            return hinted.distribute(cluster, processing_mode="data", job_name="j", policy=policy)

        auto = rows("auto")
        first = iter(auto)
        iter(rows("cachew")).close()
        for epoch in (first, auto):
            assert sorted(int(row["id"]) for row in epoch) == list(range(20))
        with pytest.raises(cj.InvalidPipeline, match="with shards by `data`"):
            iter(rows("full"))


def test_shards_by_file_are_stored_and_read(cluster, files, tmp_path):
    c = cluster(2, "--workers", "127.0.0.1:%port%,127.0.0.1:%port%", "--cache", str(tmp_path / "cache"))
    definition = {"source": files, "steps": ["autocache"]}
    args = ["--processing-mode", "file", "--policy", "full", "--epochs", "2"]
    epochs = c.report(definition, tmp_path, *args)["epochs"]
    assert [e["splits"]["put"] for e in epochs] == [10, 0] and epochs[1]["splits"]["get"] == 10
    assert epochs[0]["rows_checksum"] == epochs[1]["rows_checksum"]
    # Parts are those of any other mode.
    dynamic = c.report(definition, tmp_path, "--policy", "full")["epochs"][0]
    assert dynamic["splits"]["get"] == 10 and dynamic["rows_checksum"] == epochs[0]["rows_checksum"]


def slow_epoch(caju, source, mode, folder, workers):
    """A pipeline of 20 ms a row, and the number and the checksum of the rows that an epoch of it has in a mode."""
    once = caju.report("run", {"source": source}, folder)["epochs"][0]["rows_checksum"]
    shard = [{"shard": {"num_shards": "HINT", "index": "HINT"}}] if mode == "hint" else []
    copies = workers if mode == "off" else 1
    # The checksum is a sum over the rows.
    checksum = f"{int(once, 16) * copies % 2**128:0{len(once)}x}"
    return {"source": source, "steps": [*shard, {"sleep": {"per_row": "20ms"}}]}, (100 * copies, checksum)


@pytest.mark.parametrize("source", ["parquet", "tfrecord"])
@pytest.mark.parametrize("mode", ["off", *STATIC])
def test_a_worker_that_is_started_again_continues_its_shard(cluster, caju, files, tmp_path, mode, source):
    for f in range(10):
        pq.write_table(pa.table({"id": list(range(10 * f, 10 * f + 10))}), tmp_path / f"{f}.parquet")
    # The rows of each split are known, or counted.
    source = {"parquet": str(tmp_path / "*.parquet")} if source == "parquet" else files
    definition, expected = slow_epoch(caju, source, mode, tmp_path, workers=2)
    ports = [free_port(), free_port()]
    c = cluster(0, "--workers", ",".join(f"127.0.0.1:{p}" for p in ports))
    workers = [c.add_worker("--listen", f"127.0.0.1:{p}") for p in reversed(ports)]
    assert {w["address"]: w["slot"] for w in c.status()["workers"]} == {f"127.0.0.1:{p}": k for k, p in enumerate(ports)}

    file, report = tmp_path / "slow.yaml", tmp_path / "slow.json"
    file.write_text(json.dumps(definition))
    args = ["read", file, "--dispatcher", c.dispatcher.address, "--job", "j", "--processing-mode", mode, "--report", report]
    reading = subprocess.Popen([caju.binary, *map(str, args)], env=caju.env, stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def rows_out():
        jobs = [j for j in c.status()["jobs"] if j["job"] == "j"]
        stages = {s["name"]: s["rows_out"] for j in jobs for s in j["stages"]}
        return stages.get("output", 0)

    deadline = time.monotonic() + PATIENCE_S
    while rows_out() < 20:
        assert reading.poll() is None and time.monotonic() < deadline, reading.communicate()
    workers[0].kill()
    c.add_worker("--listen", f"127.0.0.1:{ports[1]}")
    out, errors = reading.communicate(timeout=PATIENCE_S)
    assert reading.returncode == 0, out + errors
    epoch = json.loads(report.read_text())["epochs"][0]
    assert (epoch["rows"], epoch["rows_checksum"]) == expected


def test_an_epoch_whose_shard_has_no_worker_fails_and_names_it(cluster, caju, tmp_path):
    c = cluster(1, "--workers", "127.0.0.1:%port%,elsewhere:7001", "--worker-wait", "1s")
    file = tmp_path / "p.yaml"
    file.write_text(json.dumps(RANGE))
    args = ["read", file, "--dispatcher", c.dispatcher.address, "--processing-mode", "data"]
    errors = caju(*args, code=3).stderr
    assert "worker 1 (`elsewhere:7001`)" in errors and "nobody else has" in errors


@pytest.mark.parametrize("shorter", [False, True], ids=["same_list", "shorter_list"])
@pytest.mark.parametrize("mode", ["off", *STATIC])
def test_a_dispatcher_that_is_started_again_continues_all_shards(caju, files, tmp_path, mode, shorter):
    """Killed in the middle of an epoch, with the tasks of both shards running; also together with a worker that does not return."""
    definition, expected = slow_epoch(caju, files, mode, tmp_path, workers=2)
    ports = [free_port() for _ in range(3)]
    everything = ["--allow", "/", "--allow-write", "/"]
    args = ["--listen", f"127.0.0.1:{ports[0]}", "--state-dir", tmp_path / "state", "--heartbeat", "100ms", "--worker-timeout", "2s",
            *everything, "--workers"]
    servers = [Server(caju, tmp_path, "dispatcher", *args, ",".join(f"127.0.0.1:{p}" for p in ports[1:]))]
    try:
        address = servers[0].address
        for p in ports[1:]:
            servers.append(Server(caju, tmp_path, "worker", "--dispatcher", address, "--listen", f"127.0.0.1:{p}", *everything))
        file, report = tmp_path / "slow.yaml", tmp_path / "slow.json"
        file.write_text(json.dumps(definition))
        read = ["read", file, "--dispatcher", address, "--job", "j", "--processing-mode", mode, "--report", report]
        reading = subprocess.Popen([caju.binary, *map(str, read)], env=caju.env, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + PATIENCE_S
        leased = 0
        while leased < 4:
            assert reading.poll() is None and time.monotonic() < deadline, reading.communicate()
            status = json.loads(caju("status", "--dispatcher", address, "--format", "json").stdout)
            leased = sum(j["splits_leased"] for j in status["jobs"])
        servers[0].kill()
        if shorter:
            servers[2].kill()
        left = ports[1:2] if shorter else ports[1:]
        servers.append(Server(caju, tmp_path, "dispatcher", *args, ",".join(f"127.0.0.1:{p}" for p in left)))
        out, errors = reading.communicate(timeout=PATIENCE_S)
        assert reading.returncode == 0, out + errors
        epoch = json.loads(report.read_text())["epochs"][0]
        assert (epoch["rows"], epoch["rows_checksum"]) == expected
    finally:
        for server in servers:
            server.kill()


def test_an_arrow_flight_reader_gets_no_part_of_the_shards_of_a_worker():
    def dataset(service):
        return cj.range(2000).batch(10).distribute(service, processing_mode="data", job_name="j")

    with cj.LocalCluster(workers=3) as before:
        epoch = iter(dataset(before))
        next(epoch)
        state = epoch.state_dict()
    with cj.LocalCluster(workers=1, listen="127.0.0.1:0") as after:
        rest = iter(dataset(after))
        rest.load_state_dict(state)
        next(rest)
        rest.close()
        info = flight_info(after.address, {"source": {"range": 2000}, "steps": [{"batch": 10}]}, mode="data", job="j")
        with pytest.raises(pa.ArrowException, match="has the rows of 3 workers"):
            read_endpoint(info.endpoints[0])


@pytest.mark.parametrize("after", ["same", "one_left", "moved_up", "moved_down"])
def test_no_shard_of_arrow_flight_readers_is_left_out_after_the_list_has_changed(caju, tmp_path, after):
    """Two of three endpoints are read, and the dispatcher is started again. The third one has its rows, or an error."""
    ports = [free_port() for _ in range(5)]
    at = [f"127.0.0.1:{p}" for p in ports]
    everything = ["--allow", "/", "--allow-write", "/"]
    args = ["--listen", at[0], "--state-dir", tmp_path / "state", "--heartbeat", "100ms", *everything, "--workers"]
    dispatcher = Server(caju, tmp_path, "dispatcher", *args, ",".join(at[1:4]))
    servers = [dispatcher]
    try:
        for address in at[1:4]:
            servers.append(Server(caju, tmp_path, "worker", "--dispatcher", at[0], "--listen", address, *everything))
        info = flight_info(at[0], {"source": {"range": 300}}, mode="data", job="j")
        endpoints = {e.locations[0].uri.decode().removeprefix("grpc+tcp://"): e for e in info.endpoints}
        rows = column(read_endpoint(endpoints[at[1]]), "id") + column(read_endpoint(endpoints[at[2]]), "id")
        assert len(rows) == 200
        dispatcher.kill()
        lists = {"same": at[1:4], "one_left": at[1:3], "moved_up": [at[1], at[3]], "moved_down": [at[4], *at[1:4]]}
        servers.append(Server(caju, tmp_path, "dispatcher", *args, ",".join(lists[after])))
        deadline = time.monotonic() + PATIENCE_S
        place = {"moved_up": 1, "moved_down": 3}.get(after, 2)
        while place not in [w["slot"] for w in worker_status(caju, at[0]) if w["address"] == at[3]]:
            assert time.monotonic() < deadline
        if after.startswith("moved"):
            with pytest.raises(pa.ArrowException, match="another place in the list of --workers"):
                read_endpoint(endpoints[at[3]])
        else:
            assert sorted(rows + column(read_endpoint(endpoints[at[3]]), "id")) == list(range(300))
    finally:
        for server in servers:
            server.kill()


def worker_status(caju, address):
    return json.loads(caju("status", "--dispatcher", address, "--format", "json").stdout)["workers"]
