"""A foreign client: plain pyarrow.flight, and readers written from the formats' own descriptions."""

import concurrent.futures
import json
import struct

import pyarrow as pa
import pyarrow.flight


def flight_info(address, definition, **command):
    """Where to read; `command` may hold job, epoch, seed and mode. Without a job it is one for this answer."""
    client = pa.flight.connect(f"grpc://{address}")
    command = json.dumps({"pipeline": definition, **command}).encode()
    return client.get_flight_info(pa.flight.FlightDescriptor.for_command(command))


def read_endpoint(endpoint):
    client = pa.flight.connect(endpoint.locations[0])
    return [chunk.data for chunk in client.do_get(endpoint.ticket)]


def read_parts(info, threads=False):
    """The wire batches of each endpoint, one endpoint after another, or all at once with `threads`."""
    if threads:
        with concurrent.futures.ThreadPoolExecutor(len(info.endpoints)) as pool:
            return list(pool.map(read_endpoint, info.endpoints))
    return [read_endpoint(e) for e in info.endpoints]


def read_flight(address, definition, threads=False, **command):
    """Every wire batch of an epoch."""
    info = flight_info(address, definition, **command)
    return info, [batch for part in read_parts(info, threads) for batch in part]


def column(batches, name):
    """The values of a column over all batches, as Python objects."""
    return [v for b in batches for v in b.column(name).to_pylist()]


def tfrecords(path):
    """The records of a TFRecord file; the checksums are another test's matter."""
    blob = path.read_bytes()
    at = 0
    while at < len(blob):
        (length,) = struct.unpack_from("<Q", blob, at)
        yield blob[at + 12 : at + 12 + length]
        at += 16 + length


def _varint(blob, at):
    value = shift = 0
    while True:
        byte = blob[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at


def _fields(blob):
    """(number, value) of each field of a protocol buffer; nested messages as bytes."""
    at = 0
    while at < len(blob):
        tag, at = _varint(blob, at)
        if tag & 7 == 2:
            size, at = _varint(blob, at)
            yield tag >> 3, blob[at : at + size]
            at += size
        elif tag & 7 == 0:
            value, at = _varint(blob, at)
            yield tag >> 3, value
        elif tag & 7 == 5:
            yield tag >> 3, blob[at : at + 4]
            at += 4
        else:
            raise ValueError(f"wire type {tag & 7}")


def parse_example(record):
    """A tf.train.Example as {name: list of bytes or ints}; lists of floats are left out."""
    out = {}
    for _, features in _fields(record):
        for _, entry in _fields(features):
            fields = dict(_fields(entry))
            name, feature = fields[1].decode(), dict(_fields(fields[2]))
            if 1 in feature:
                out[name] = [v for _, v in _fields(feature[1])]
            elif 3 in feature:
                values = []
                for _, v in _fields(feature[3]):
                    if isinstance(v, bytes):            # packed
                        at = 0
                        while at < len(v):
                            value, at = _varint(v, at)
                            values.append(value)
                    else:
                        values.append(v)
                out[name] = [v - (1 << 64) if v >> 63 else v for v in values]
    return out
