"""A foreign client: plain pyarrow.flight, no code of caju, gets the rows that `caju read` gets."""

import threading

import pyarrow as pa
import pyarrow.compute
import pyarrow.flight
import pytest
from conftest import wait_for
from foreign import column, flight_info, read_endpoint, read_flight
from rows_checksum import rows_checksum

FEATURES = {"image/encoded": "bytes", "image/class/label": "int64"}


def images(data, split="300KiB"):
    """Small crops, with their labels, in batches."""
    return {
        "source": {"tfrecord": {"path": str(data / "images/tfrecord/*.tfrecord"), "split": split}},
        "steps": [
            {"parse_example": {"features": FEATURES}},
            {"map": {"image": 'random_flip(random_resized_crop(decode_image("image/encoded"), 24, 32))',
                     "label": '"image/class/label"'}},
            {"batch": 8},
        ],
    }


@pytest.mark.parametrize("threads", [False, True], ids=["one_after_another", "in_threads"])
def test_rows_are_those_of_caju_read(cluster, data, tmp_path, threads):
    c = cluster(workers=2)
    definition = images(data)
    report = c.report(definition, tmp_path)
    info, batches = read_flight(c.dispatcher.address, definition, threads=threads)
    assert len(info.endpoints) == 2
    assert sum(b.num_rows for b in batches) == 60
    assert rows_checksum(batches) == report["epochs"][0]["rows_checksum"]


def test_epochs_differ_as_those_of_caju_read(cluster, data, tmp_path):
    c = cluster(workers=2)
    definition = images(data)
    expected = [e["rows_checksum"] for e in c.report(definition, tmp_path, "--epochs", "3")["epochs"]]
    found = [rows_checksum(read_flight(c.dispatcher.address, definition, epoch=e)[1]) for e in range(3)]
    assert found == expected
    assert len(set(found)) == 3


def test_tensors_arrive_as_tensors(cluster, data):
    c = cluster(workers=1)
    info, batches = read_flight(c.dispatcher.address, images(data))
    field = info.schema.field("image")
    assert isinstance(field.type, pa.FixedShapeTensorType), field
    assert (field.type.shape, field.type.value_type) == ([24, 32, 3], pa.uint8())
    assert info.schema.field("label").type == pa.int64()
    tensor = batches[0].column("image").to_numpy_ndarray()
    assert tensor.shape == (batches[0].num_rows, 24, 32, 3)
    assert tensor.std() > 1


def test_a_client_beyond_the_limit_of_connections_gets_the_limit_and_its_flag(caju, tmp_path):
    import socket

    from conftest import Server

    server = Server(caju, tmp_path, "dispatcher", "--listen", "127.0.0.1:0", "--connections", "1", "--handshake-timeout", "1m")
    try:
        host, port = server.address.rsplit(":", 1)
        with socket.create_connection((host, int(port))) as other:
            other.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
            other.recv(9)                                     # what a server of HTTP/2 sends first
            with pytest.raises(pa.ArrowException, match="(?is)the dispatcher has 1 connections, its limit.*--connections"):
                flight_info(server.address, {"source": {"range": 10}})
    finally:
        server.kill()


def test_one_wire_batch_per_element(cluster):
    c = cluster(workers=1)
    definition = {"source": {"range": 1000}, "steps": [{"batch": 64}]}
    _, batches = read_flight(c.dispatcher.address, definition)
    assert sorted(b.num_rows for b in batches) == [1000 % 64] + [64] * (1000 // 64)


def test_asking_where_to_read_has_no_side_effect(cluster):
    c = cluster(workers=1)
    definition = {"source": {"range": 100}}
    for _ in range(3):
        flight_info(c.dispatcher.address, definition)
    assert c.status()["jobs"] == []
    _, batches = read_flight(c.dispatcher.address, definition)
    assert sorted(column(batches, "id")) == list(range(100))


def test_a_named_job_is_read_once(cluster):
    c = cluster(workers=2)
    definition = {"source": {"range": 100}}
    info, batches = read_flight(c.dispatcher.address, definition, job="once")
    assert sorted(column(batches, "id")) == list(range(100))
    assert [b for e in info.endpoints for b in read_endpoint(e) if b.num_rows] == []


def test_reg_01_a_dataset_is_read_by_its_id_and_met_02(cluster, tmp_path):
    c = cluster(workers=1)
    definition = {"source": {"range": 10}}
    fingerprint = c.report(definition, tmp_path)["fingerprint"]
    info, batches = read_flight(c.dispatcher.address, fingerprint, job="by-id")
    assert info.schema.names == ["id"]
    assert sorted(column(batches, "id")) == list(range(10))


def test_reg_08_an_unknown_dataset(cluster):
    c = cluster(workers=1)
    # What pyarrow makes of gRPC's NOT_FOUND.
    with pytest.raises(pa.ArrowKeyError, match="no dataset `no-such-dataset` is registered"):
        flight_info(c.dispatcher.address, "no-such-dataset")


@pytest.mark.parametrize("command, words", [
    (b"hello", "JSON"),
    (b"{}", "pipeline"),
    (b'{"pipeline": {"source": {"rang": 5}}}', "did you mean"),
    (b'{"pipeline": {"source": {"range": 5}}, "epok": 1}', "did you mean"),
    (b'{"pipeline": {"source": {"range": 5}}, "epoch": -1}', "epoch"),
    (b'{"pipeline": {"source": {"range": 5}}, "job": 7}', "job"),
    (b'{"pipeline": {"source": {"range": 5}, "steps": [{"map": {"x": "idd"}}]}}', "did you mean"),
])
def test_arg_02_wrong_commands_are_explained(cluster, command, words):
    c = cluster(workers=1)
    client = pa.flight.connect(f"grpc://{c.dispatcher.address}")
    with pytest.raises(pa.ArrowInvalid, match=words):
        client.get_flight_info(pa.flight.FlightDescriptor.for_command(command))


def test_a_wrong_ticket_is_explained(cluster):
    c = cluster(workers=1)
    client = pa.flight.connect(f"grpc://{c.workers[0].address}")
    with pytest.raises(pa.ArrowException):
        client.do_get(pa.flight.Ticket(b"hello")).read_all()


def test_bad_rows_are_errors_of_the_stream(cluster, tmp_path):
    c = cluster(workers=1)
    (tmp_path / "x.tfrecord").write_bytes(b"not a record at all, but some text")
    definition = {"source": {"tfrecord": str(tmp_path / "x.tfrecord")}}
    with pytest.raises(pa.ArrowException, match="x.tfrecord"):
        read_flight(c.dispatcher.address, definition)


def test_a_lost_worker_is_an_error_and_no_short_epoch(cluster):
    c = cluster(workers=1)
    definition = {"source": {"range": 1_000_000}, "steps": [{"burn": {"per_row": "50us"}}, {"batch": 100}]}
    info = flight_info(c.dispatcher.address, definition)
    client = pa.flight.connect(info.endpoints[0].locations[0])
    stream = client.do_get(info.endpoints[0].ticket)
    next(stream)
    c.workers[0].kill()
    with pytest.raises(pa.ArrowException):
        for _ in stream:
            pass


def test_a_cancelled_call_leaves_no_reader_whenever_it_is_cancelled(cluster):
    """Most of these calls end while the worker opens their epoch or starts their task."""
    c = cluster(workers=1)
    definition = {"source": {"range": 1_000_000}, "steps": [{"burn": {"per_row": "50us"}}, {"batch": 100}]}
    for call in range(40):
        info = flight_info(c.dispatcher.address, definition)
        client = pa.flight.connect(info.endpoints[0].locations[0])
        stream = client.do_get(info.endpoints[0].ticket)
        threading.Event().wait(call / 2000)         # at another moment of the opening each time
        stream.cancel()
        client.close()
    readers = lambda: [job["clients"] for job in c.status()["jobs"] if job["clients"]]  # noqa: E731
    wait_for("the end of the readers of cancelled calls", lambda: not readers())
    tasks = lambda: [w["tasks"] for w in c.status()["workers"] if w["tasks"]]  # noqa: E731
    wait_for("the end of the tasks of cancelled calls", lambda: not tasks())


@pytest.mark.parametrize("stage, lengths", [
    ({"batch": {"size": 64, "drop_remainder": True}}, None),
    ({"padded_batch": {"size": 64, "drop_remainder": True, "lengths": {"l": 9}}}, {9}),
    ({"padded_batch": {"size": 64, "lengths": {"l": 9}}}, {9}),
    ({"padded_batch": {"size": 64}}, None),
])
def test_the_last_batches_of_streams_are_dropped_or_padded(cluster, stage, lengths):
    c = cluster(workers=2)
    steps = [{"with_columns": {"l": "range(0, 1 + id % 7)"}}, stage]
    _, batches = read_flight(c.dispatcher.address, {"source": {"range": 5000}, "steps": steps})
    [(name, arguments)] = stage.items()
    short = [b.num_rows for b in batches if b.num_rows != 64]
    if arguments.get("drop_remainder"):
        assert not short and len(batches) * 64 > 5000 - 2 * 64
    else:
        assert len(short) <= 2 and sum(b.num_rows for b in batches) == 5000
    for batch in batches:
        widths = set(pa.compute.list_value_length(batch.column("l")).to_pylist())
        assert name == "batch" or len(widths) == 1 and widths <= (lengths or widths), widths
