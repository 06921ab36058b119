"""The files that the mutation harness changes: one good file of every format, and what must hold once it is damaged.

A file's *promise* says what a reader may answer when 1 to 3 bytes of it changed. Every promise allows an error that
names the file. What else is allowed depends on what the format can detect:

  exact    exactly the rows of the good file: the format has checksums of everything that carries rows
  count    as many rows as the good file has, values may differ: the format has no checksum of values
  records  as many rows as an independent reader counts in the damaged file: in text, another byte is another text

`caju fuzz` seeds and this harness share these writers, so that both begin with the same kinds of files.
"""

import csv
import gzip
import io
import json
import random
import struct
import tarfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

EXACT, COUNT, RECORDS = "exact", "count", "records"


class Format:
    """One kind of file. `write(rows)` gives the bytes of a good one."""

    def __init__(self, name, suffix, promise, write, source, steps=(), rows=1200, count=None, exact_within=None):
        self.name, self.suffix, self.promise, self.write = name, suffix, promise, write
        self.make_source, self.steps, self.rows = source, list(steps), rows
        # For `records`: rows that an independent reader counts in the bytes, None where it refuses them.
        self.count = count
        # For `count`: the byte ranges of a good file whose changes the format's checksums reveal.
        self.exact_within = exact_within or (lambda _: [])

    def definition(self, path):
        return {"source": self.make_source(str(path)), "steps": self.steps}


def table(rows):
    """Numbers, text with few and with many values, and nulls; the same for the same number of rows."""
    rng = random.Random(7)
    words = ["amber", "blue", "crimson", "dun", "ebony"]
    return pa.table({
        "id": pa.array(range(rows), pa.int64()),
        "label": pa.array([None if i % 7 == 3 else i % 100 for i in range(rows)], pa.int32()),
        "color": pa.array([words[rng.randrange(5)] for _ in range(rows)], pa.string()),
        "name": pa.array([f"row-{rng.randrange(10**6):06}" for _ in range(rows)], pa.string()),
        "score": pa.array([rng.random() for _ in range(rows)], pa.float64()),
    })


# Parquet

def parquet(**options):
    def write(rows):
        out = io.BytesIO()
        groups = dict(row_group_size=max(1, rows // 4), data_page_size=1024)
        pq.write_table(table(rows), out, **{**groups, **options})
        return out.getvalue()
    return write


PARQUET = {
    "plain": dict(use_dictionary=False, compression="none"),
    "dictionary": dict(use_dictionary=True, compression="none"),
    "dictionary-snappy": dict(use_dictionary=True, compression="snappy"),
    "plain-zstd-v2": dict(use_dictionary=False, compression="zstd", data_page_version="2.0"),
    "delta": dict(use_dictionary=False, compression="none", column_encoding={
        "id": "DELTA_BINARY_PACKED", "label": "DELTA_BINARY_PACKED", "color": "DELTA_LENGTH_BYTE_ARRAY",
        "name": "DELTA_BYTE_ARRAY", "score": "BYTE_STREAM_SPLIT"}),
    "delta-lz4": dict(use_dictionary=False, compression="lz4", column_encoding={
        "id": "DELTA_BINARY_PACKED", "label": "DELTA_BINARY_PACKED", "color": "DELTA_BYTE_ARRAY",
        "name": "DELTA_LENGTH_BYTE_ARRAY", "score": "PLAIN"}),
    "gzip": dict(use_dictionary=True, compression="gzip"),
    "crc": dict(use_dictionary=True, compression="none", write_page_checksum=True),
    "crc-zstd": dict(use_dictionary=False, compression="zstd", write_page_checksum=True),
}


def page_bodies(file):
    """The byte ranges of pages' contents, without their headers: what page checksums cover."""
    meta = pq.ParquetFile(io.BytesIO(file)).metadata
    ranges = []
    for g in range(meta.num_row_groups):
        for c in range(meta.num_columns):
            column = meta.row_group(g).column(c)
            at = column.dictionary_page_offset if column.has_dictionary_page else column.data_page_offset
            end = at + column.total_compressed_size
            while at < end:
                header, size = page_header(file, at)
                ranges.append(range(at + header, at + header + size))
                at += header + size
    return ranges


def page_header(file, at):
    """The length of the page header at a place, and of the page: Thrift's compact protocol, as far as needed."""
    pos = at

    def varint():
        nonlocal pos
        value = shift = 0
        while True:
            byte = file[pos]
            pos += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    def skip(kind):
        nonlocal pos
        if kind in (4, 5, 6):
            return varint()
        if kind == 3:
            pos += 1
        elif kind == 7:
            pos += 8
        elif kind == 8:
            length = varint()
            pos += length
        elif kind == 12:
            struct_(None)
        elif kind not in (1, 2):
            raise ValueError(f"type {kind} in a page header")
        return None

    def struct_(fields):
        nonlocal pos
        field = 0
        while file[pos]:
            delta, kind = file[pos] >> 4, file[pos] & 15
            pos += 1
            if delta:
                field += delta
            else:
                raw = varint()
                field = (raw >> 1) ^ -(raw & 1)
            value = skip(kind)
            if fields is not None:
                fields[field] = value
        pos += 1

    fields = {}
    struct_(fields)
    return pos - at, fields[3] >> 1


# Arrow

def arrow(compression=None, dictionary=False):
    def write(rows):
        t = table(rows)
        if dictionary:
            t = t.set_column(2, "color", t["color"].combine_chunks().dictionary_encode())
        out = io.BytesIO()
        with pa.ipc.new_file(out, t.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
            for batch in t.to_batches(max_chunksize=max(1, rows // 4)):
                writer.write_batch(batch)
        return out.getvalue()
    return write


# TFRecord and tf.Example

def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = CRC32C[(crc ^ byte) & 255] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def _crc_entry(n):
    for _ in range(8):
        n = 0x82F63B78 ^ (n >> 1) if n & 1 else n >> 1
    return n


CRC32C = [_crc_entry(n) for n in range(256)]


def masked(data):
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def varint(n):
    out = bytearray()
    n &= (1 << 64) - 1
    while n >= 128:
        out.append(n & 127 | 128)
        n >>= 7
    out.append(n)
    return bytes(out)


def field(number, data):
    return varint(number << 3 | 2) + varint(len(data)) + data


def example(row):
    """A tf.train.Example of a row of the table."""
    features = b""
    for name, value in row.items():
        if isinstance(value, int):
            kind = field(3, field(1, varint(value)))
        elif isinstance(value, float):
            kind = field(2, field(1, struct.pack("<f", value)))
        else:
            kind = field(1, field(1, value.encode()))
        features += field(1, field(1, name.encode()) + field(2, kind))
    return field(1, features)


def examples(rows):
    return [example({**row, "label": row["label"] or 0}) for row in table(rows).to_pylist()]


def tfrecord(rows):
    out = bytearray()
    for record in examples(rows):
        length = struct.pack("<Q", len(record))
        out += length + struct.pack("<I", masked(length)) + record + struct.pack("<I", masked(record))
    return bytes(out)


PARSE = {"parse_example": {"features": {"id": "int64", "label": "int64", "color": "bytes", "name": "bytes",
                                        "score": "float32"}}}


# Text

def csv_file(rows):
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    t = table(rows)
    writer.writerow(t.column_names)
    writer.writerows(["" if v is None else v for v in row.values()] for row in t.to_pylist())
    return out.getvalue().encode()


CSV_SCHEMA = {"id": "int64", "label": "int32", "color": "string", "name": "string", "score": "float64"}


def csv_records(file):
    """Records below the header, by Python's reader."""
    try:
        rows = [row for row in csv.reader(io.StringIO(file.decode("utf-8"), newline=""), strict=True) if row]
    except (UnicodeDecodeError, csv.Error):
        return None
    return len(rows) - 1


def json_file(rows):
    return "".join(json.dumps(row) + "\n" for row in table(rows).to_pylist()).encode()


def json_records(file):
    """Objects, by Python's reader."""
    text, at, found = file.decode("latin-1"), 0, 0
    decoder = json.JSONDecoder()
    try:
        while text[at:].strip():
            at += len(text[at:]) - len(text[at:].lstrip())
            _, at = decoder.raw_decode(text, at)
            found += 1
    except json.JSONDecodeError:
        return None
    return found


def gzipped(write):
    return lambda rows: gzip.compress(write(rows), compresslevel=6, mtime=0)


# Images and archives

def photo(i, kind):
    y, x = np.mgrid[0:24, 0:32]
    px = np.stack([x * 8, y * 10, (x * y + 16 * i) % 256], axis=2).astype(np.uint8)
    out = io.BytesIO()
    options = dict(quality=85) if kind == "jpeg" else {}
    Image.fromarray(px).save(out, kind, **options)
    return out.getvalue()


def tar(rows):
    """Samples of a JPEG and a class each, as WebDataset has them."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for i in range(rows):
            for extension, data in (("jpg", photo(i, "jpeg")), ("cls", str(i % 10).encode())):
                info = tarfile.TarInfo(f"{i:06}.{extension}")
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


DECODE = [{"map": {"image": "decode_image(image)"}}]


def file_source(kind, **options):
    return lambda path: {kind: {"path": path, **options}}


SMALL = "8KiB"

FORMATS = [
    *(Format(f"parquet-{name}", ".parquet", COUNT, parquet(**options), file_source("parquet", split=SMALL),
             exact_within=page_bodies if "crc" in name else None)
      for name, options in PARQUET.items()),
    Format("arrow", ".arrow", COUNT, arrow(), file_source("arrow", split=SMALL)),
    Format("arrow-dictionary", ".arrow", COUNT, arrow(dictionary=True), file_source("arrow", split=SMALL)),
    Format("arrow-lz4", ".arrow", COUNT, arrow("lz4"), file_source("arrow", split=SMALL)),
    Format("arrow-zstd", ".arrow", COUNT, arrow("zstd"), file_source("arrow", split=SMALL)),
    Format("tfrecord", ".tfrecord", EXACT, tfrecord, file_source("tfrecord", split=SMALL), [PARSE]),
    Format("tfrecord-gz", ".tfrecord.gz", EXACT, gzipped(tfrecord), file_source("tfrecord"), [PARSE]),
    Format("csv", ".csv", RECORDS, csv_file, file_source("csv", split=SMALL, schema=CSV_SCHEMA), count=csv_records),
    Format("csv-gz", ".csv.gz", EXACT, gzipped(csv_file), file_source("csv", schema=CSV_SCHEMA)),
    Format("json", ".jsonl", RECORDS, json_file, file_source("json", split=SMALL, schema=CSV_SCHEMA),
           count=json_records),
    Format("json-gz", ".jsonl.gz", EXACT, gzipped(json_file), file_source("json", schema=CSV_SCHEMA)),
    Format("tar", ".tar", COUNT, tar, file_source("webdataset", split=SMALL), rows=24),
    Format("tar-gz", ".tar.gz", EXACT, gzipped(tar), file_source("webdataset"), rows=24),
    Format("png", ".png", EXACT, lambda i: photo(i, "png"), file_source("images"), DECODE, rows=1),
    Format("jpeg", ".jpg", COUNT, lambda i: photo(i, "jpeg"), file_source("images"), DECODE, rows=1),
]
