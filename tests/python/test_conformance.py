"""Behaviours of docs/conformance.md that show in the order or the values of single elements."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import write_pipeline
from foreign import column, flight_info, read_flight, read_parts


THREADS = pytest.mark.parametrize("threads", [False, True], ids=["one_after_another", "in_threads"])


def off_parts(address, definition, threads):
    """Under `off`: what each worker gives."""
    return read_parts(flight_info(address, definition, mode="off"), threads)


@pytest.mark.parametrize("state", [[], ["--state-dir", "state"]], ids=["without_state", "with_state"])
def test_ops_01_one_worker_gives_a_range_in_order(caju, tmp_path, state):
    from conftest import Server

    dispatcher = Server(caju, tmp_path, "dispatcher", "--listen", "127.0.0.1:0", *state)
    worker = Server(caju, tmp_path, "worker", "--dispatcher", dispatcher.address)
    try:
        for n in (10, 20):
            _, batches = read_flight(dispatcher.address, {"source": {"range": n}}, job=f"job-{n}")
            assert column(batches, "id") == list(range(n))
        worker.stop()
        dispatcher.stop()
    finally:
        worker.kill()
        dispatcher.kill()


@THREADS
def test_ops_02_off_gives_each_value_once_per_worker(cluster, threads):
    c = cluster(workers=3)
    parts = off_parts(c.dispatcher.address, {"source": {"range": 10}}, threads)
    assert [sorted(column(p, "id")) for p in parts] == [list(range(10))] * 3


@pytest.mark.parametrize("shuffle", [100, {"buffer": 100, "seed": 10}], ids=["no_seed", "seed"])
@THREADS
def test_ops_07_shuffles_of_two_workers_differ_under_off(cluster, threads, shuffle):
    c = cluster(workers=2)
    definition = {"source": {"range": 100}, "steps": [{"shuffle": shuffle}]}
    one, two = off_parts(c.dispatcher.address, definition, threads)
    one, two = column(one, "id"), column(two, "id")
    assert sorted(one) == sorted(two) == list(range(100))
    assert one != two


@THREADS
def test_ops_09_off_keeps_each_workers_short_batch(cluster, threads):
    c = cluster(workers=2)
    definition = {"source": {"range": 10}, "steps": [{"batch": 1000}]}
    parts = off_parts(c.dispatcher.address, definition, threads)
    assert [[b.column("id").to_pylist() for b in p] for p in parts] == [[list(range(10))]] * 2


def ragged(folder):
    table = pa.table({
        "ragged": pa.array([[0], [0, 1, 2, 3, 4], None, [0, None, 2], [], [0, 1, 2, 3, 4, 5, 6, 7]], pa.list_(pa.int64())),
        "word": pa.array(["a", "b", None, "a", "a", "c"]).dictionary_encode(),
        "nested": pa.array([{"a": {"b": i, "c": [i]}, "d": str(i)} for i in range(6)]),
        "flag": pa.array([True, None, False, True, True, None]),
    })
    pq.write_table(table, folder / "ragged.parquet", row_group_size=4)
    return table


@pytest.mark.parametrize("batch", [[], [{"batch": 4}]], ids=["rows", "batches"])
def test_ops_11_12_13_lists_dictionaries_nulls_and_structs_keep_their_values(cluster, tmp_path, batch):
    c = cluster(workers=1)
    table = ragged(tmp_path)
    definition = {"source": {"parquet": str(tmp_path / "ragged.parquet")}, "steps": batch}
    _, batches = read_flight(c.dispatcher.address, definition)
    assert batches[0].schema.names == table.schema.names
    for name in table.schema.names:
        assert column(batches, name) == table[name].to_pylist(), name


@pytest.mark.parametrize("values", [[5, 1, 2, 4], [*range(200_000, 0, -1)]], ids=["one_split", "many_splits"])
def test_dyn_02_an_in_memory_source(cluster, values, tmp_path):
    import base64

    c = cluster(workers=2)
    sink = pa.BufferOutputStream()
    table = pa.table({"x": pa.array(values)})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    definition = {"source": {"memory": base64.b64encode(sink.getvalue()).decode()}}
    _, batches = read_flight(c.dispatcher.address, definition)
    assert sorted(column(batches, "x")) == sorted(values)
    splits = c.report(definition, tmp_path)["epochs"][0]["splits"]["compute"]
    assert (splits > 1) == (len(values) > 4), splits


def test_dyn_10_zip_stays_aligned_and_in_order(cluster):
    c = cluster(workers=1)
    part = lambda name: {"source": {"range": 10}, "steps": [{"map": {name: "id"}}]}
    inner = {"source": {"zip": [part("b"), part("c")]}}
    definition = {"source": {"zip": [part("a"), inner]}}
    _, batches = read_flight(c.dispatcher.address, definition)
    assert [column(batches, n) for n in "abc"] == [list(range(10))] * 3


def test_dyn_13_samples_follow_the_weights(cluster):
    c = cluster(workers=3)
    part = lambda k: {"source": {"range": 5000}, "steps": [{"map": {"k": str(k)}}]}
    source = {"sample": {"datasets": [part(0), part(1), part(2)], "weights": [0.6, 0.3, 0.1]}}
    _, batches = read_flight(c.dispatcher.address, {"source": source, "steps": [{"take": 2000}]})
    kinds = column(batches, "k")
    counts = [kinds.count(k) for k in range(3)]
    assert sum(counts) == 2000
    chi = sum((n - 2000 * w) ** 2 / (2000 * w) for n, w in zip(counts, [0.6, 0.3, 0.1]))
    assert chi < 20, counts


@pytest.mark.parametrize("weights", [[0.6, 0.3, 0.1], [1, 1, 1], [1, 2, 7]], ids=str)
def test_dyn_13_endless_datasets_of_a_sample_follow_the_weights(cluster, weights):
    c = cluster(workers=3)
    part = lambda k: {"source": {"range": 4**k}, "steps": [{"map": {"k": str(k)}}, {"repeat": {}}]}
    source = {"sample": {"datasets": [part(0), part(1), part(2)], "weights": weights}}
    for rows in (200, 3000):
        _, batches = read_flight(c.dispatcher.address, {"source": source, "steps": [{"take": rows}]}, job=f"take-{rows}")
        kinds = column(batches, "k")
        counts = [kinds.count(k) for k in range(3)]
        assert sum(counts) == rows
        expected = [rows * w / sum(weights) for w in weights]
        assert sum((n - e) ** 2 / e for n, e in zip(counts, expected)) < 20, counts
        if weights[0] == 0.6:
            assert counts[0] > counts[1] > counts[2]


def test_dyn_13_a_repeated_dataset_whose_rows_are_not_known_is_refused(caju, tmp_path):
    (tmp_path / "x.csv").write_text("id\n1\n")
    endless = {"source": {"csv": "x.csv"}, "steps": [{"repeat": {}}]}
    source = {"sample": {"datasets": [endless, {"source": {"range": 50}}], "weights": [0.5, 0.5]}}
    file = write_pipeline(tmp_path, {"source": source, "steps": [{"take": 20}]})
    errors = caju("run", file, code=2).stderr
    assert "source.sample.datasets[0].source: a `sample` with a `repeat` inside of it" in errors
    assert "or put `repeat` after the `sample`" in errors


def test_dyn_17_concatenation_in_order(cluster):
    c = cluster(workers=1)
    source = {"concatenate": [{"source": {"range": 100}}, {"source": {"range": {"start": 100, "end": 200}}}]}
    _, batches = read_flight(c.dispatcher.address, {"source": source, "deterministic": True})
    assert column(batches, "id") == list(range(200))


def test_det_03_shuffles_move_most_rows_and_depend_on_the_seed(cluster):
    c = cluster(workers=1)

    def order(seed):
        definition = {"source": {"range": 200}, "steps": [{"shuffle": {"buffer": 200, "seed": seed}}]}
        return column(read_flight(c.dispatcher.address, definition)[1], "id")

    seen = []
    for seed in (1, 1, 2):
        seen.append(order(seed))
        assert sorted(seen[-1]) == list(range(200))
        assert sum(i == v for i, v in enumerate(seen[-1])) < 100
    assert seen[0] == seen[1] != seen[2]


def test_cli_06_a_reader_that_stops_early_does_not_hold_up_the_worker(cluster):
    c = cluster(workers=1)
    definition = {"source": {"range": 10_000_000}, "steps": [{"batch": 1000}]}
    info = flight_info(c.dispatcher.address, definition, job="left")
    stream = pa.flight.connect(info.endpoints[0].locations[0]).do_get(info.endpoints[0].ticket)
    next(stream)
    stream.cancel()
    del stream
    _, batches = read_flight(c.dispatcher.address, {"source": {"range": 100}}, job="next")
    assert column(batches, "id") == list(range(100))
    c.workers[0].stop()


def test_ops_04_five_epochs_of_a_job_are_ordered_passes(cluster):
    c = cluster(workers=1)
    passes = [read_flight(c.dispatcher.address, {"source": {"range": 10}}, job="five", epoch=e)[1] for e in range(5)]
    assert [column(p, "id") for p in passes] == [list(range(10))] * 5


def test_ops_16_two_datasets_in_turn_on_the_clients_side(cluster):
    c = cluster(workers=1)
    parts = [
        column(read_flight(c.dispatcher.address, {"source": {"range": {"start": 10 * x, "end": 10 * x + 2, "step": 1}}})[1], "id")
        for x in (0, 1)
    ]
    assert [i for pair in zip(*parts) for i in pair] == [0, 10, 1, 11]


def test_ops_18_one_service_feeds_another(cluster):
    import base64

    first, second = cluster(workers=3), cluster(workers=1)
    keys = {"source": {"range": 50}, "steps": [{"map": {"key": "id % 10"}}]}
    _, batches = read_flight(first.dispatcher.address, keys, mode="off")
    table = pa.Table.from_batches(batches).sort_by("key")
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    grouped = {"source": {"memory": base64.b64encode(sink.getvalue()).decode()}, "steps": [{"batch": 5}]}
    _, batches = read_flight(second.dispatcher.address, grouped)
    assert [b.column("key").to_pylist() for b in batches] == [[k] * 5 for k in range(10) for _ in range(3)]


def test_ops_19_datasets_of_two_modes_are_zipped_on_the_clients_side(cluster):
    c = cluster(workers=1)
    definition = {"source": {"range": 100}}
    once, off = (column(read_flight(c.dispatcher.address, definition, mode=m)[1], "id") for m in ("dynamic", "off"))
    assert list(zip(once, off, strict=True)) == [(i, i) for i in range(100)]


def test_xfr_02_both_protocols_give_the_rows_by_definition_and_by_id(cluster, tmp_path):
    c = cluster(workers=1)
    definition = {"source": {"range": 10}}
    framed = c.report(definition, tmp_path, "--job", "framed")
    _, batches = read_flight(c.dispatcher.address, definition)
    assert (framed["epochs"][0]["rows"], column(batches, "id")) == (10, list(range(10)))
    _, by_id = read_flight(c.dispatcher.address, framed["fingerprint"])
    assert column(by_id, "id") == list(range(10))
