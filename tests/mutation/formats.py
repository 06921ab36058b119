"""The files that the mutation harness changes: one good file of every format, and what must hold once it is damaged.

A file's *promise* says what a reader may answer when 1 to 3 bytes of it changed. Every promise allows an error that
names the file. What else is allowed depends on what the format can detect:

  exact    exactly the rows of the good file: the format has checksums of everything that carries rows
  count    as many rows as the good file has, values may differ: the format has no checksum of values
  records  as many rows as an independent reader counts in the damaged file: in text, another byte is another text

`caju fuzz` seeds and this harness share these writers, so that both begin with the same kinds of files.
"""

import csv
import datetime
import decimal
import gzip
import io
import json
import random
import struct
import tarfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash
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


NESTED = pa.schema([
    ("id", pa.int64()),
    ("flag", pa.bool_()),
    ("price", pa.decimal128(12, 2)),
    ("day", pa.date32()),
    ("values", pa.list_(pa.int32())),
    ("corner", pa.list_(pa.float32(), 3)),
    ("point", pa.struct([("x", pa.float64()), ("name", pa.string()), ("tags", pa.list_(pa.string()))])),
    ("items", pa.list_(pa.struct([("key", pa.string()), ("count", pa.int64()), ("good", pa.bool_())]))),
])


def nested(rows):
    """Lists, structs, lists of structs, booleans, decimals and dates, with nulls and empty lists at every level."""
    rng = random.Random(11)

    def row(i):
        items = [{"key": f"k{rng.randrange(9)}", "count": None if j == 2 else rng.randrange(1000), "good": i % 2 == j % 2}
                 for j in range(i % 4)]
        return {
            "id": i, "flag": None if i % 11 == 5 else rng.random() < 0.5,
            "price": None if i % 13 == 1 else decimal.Decimal(rng.randrange(-10**6, 10**6)).scaleb(-2),
            "day": datetime.date(2024, 1, 1) + datetime.timedelta(days=i % 700),
            "values": None if i % 9 == 4 else [None if j == 3 else rng.randrange(100) for j in range(i % 6)],
            "corner": [0.25 * i, 0.5, -1.0 * i],
            "point": None if i % 7 == 2 else {
                "x": rng.random(), "name": None if i % 5 == 0 else f"p{i % 50}",
                "tags": None if i % 10 == 7 else ["near", "far", "außen"][:i % 4]},
            "items": None if i % 8 == 6 else items,
        }
    return pa.Table.from_pylist([row(i) for i in range(rows)], schema=NESTED)


# Parquet

def parquet(make=table, **options):
    def write(rows):
        out = io.BytesIO()
        groups = dict(row_group_size=max(1, rows // 4), data_page_size=1024)
        pq.write_table(make(rows), out, **{**groups, **options})
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
    "nested": dict(make=nested, use_dictionary=False, compression="none"),
    "nested-snappy-v2": dict(make=nested, use_dictionary=True, compression="snappy", data_page_version="2.0"),
    "nested-crc": dict(make=nested, use_dictionary=True, compression="none", write_page_checksum=True),
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

def arrow(compression=None, dictionary=False, make=table):
    def write(rows):
        t = make(rows)
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


def json_nested(rows):
    """Lists, objects, lists of objects and booleans; decimals and dates are text there."""
    return "".join(json.dumps(row, default=str) + "\n" for row in nested(rows).to_pylist()).encode()


def json_records(file):
    """Objects, by Python's reader."""
    text, at, found = file.decode("latin-1"), 0, 0
    # RFC 8259 lets a reader accept more than JSON: control characters in strings, as Arrow's does.
    decoder = json.JSONDecoder(strict=False)
    try:
        while text[at:].strip():
            at += len(text[at:]) - len(text[at:].lstrip())
            _, at = decoder.raw_decode(text, at)
            found += 1
    except json.JSONDecodeError:
        return None
    return found


# Compressed files

def gzipped(write):
    return lambda rows: gzip.compress(write(rows), compresslevel=6, mtime=0)


def zstandard(write, checked=True):
    """A Zstandard frame; `checked` with the checksum of its contents that the `zstd` command writes, and pyarrow does not."""
    def compress(rows):
        data = write(rows)
        frame = bytearray(pa.compress(data, codec="zstd", asbytes=True))
        if checked:
            # Byte 4 describes the frame; bit 2 says that a checksum follows its last block.
            frame[4] |= 4
            frame += struct.pack("<I", xxhash.xxh64_intdigest(data) & 0xFFFFFFFF)
        return bytes(frame)
    return compress


def unzstandard(count):
    """Counts the records of a Zstandard file; None where pyarrow refuses to unpack it."""
    def records(file):
        try:
            with pa.input_stream(io.BytesIO(file), compression="zstd") as stream:
                return count(stream.read())
        except (OSError, pa.ArrowException):
            return None
    return records


# Images and archives

def photo(i, kind, deep=False, **options):
    """A small picture; `deep` in grey of 16 bits."""
    y, x = np.mgrid[0:24, 0:32]
    px = np.stack([x * 8, y * 10, (x * y + 16 * i) % 256], axis=2).astype(np.uint8)
    if deep:
        px = (x * 2048 + y * 97).astype(np.uint16)
    out = io.BytesIO()
    options = {**(dict(quality=85) if kind == "jpeg" else {}), **options}
    Image.fromarray(px).save(out, kind, **options)
    return out.getvalue()


def tar(rows, form=tarfile.USTAR_FORMAT, folder=""):
    """Samples of a JPEG and a class each, as WebDataset has them."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for i in range(rows):
            for extension, data in (("jpg", photo(i, "jpeg")), ("cls", str(i % 10).encode())):
                info = tarfile.TarInfo(f"{folder}{i:06}.{extension}")
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def tar_pax(rows):
    """Names that only an extended header has space for, which stands in a member of its own before each file."""
    return tar(rows, tarfile.PAX_FORMAT, "a-long-folder/" * 9 + "außen/")


def tar_records(file):
    """Samples, by Python's reader: files in a row whose names agree up to the first dot."""
    try:
        with tarfile.open(fileobj=io.BytesIO(file)) as archive:
            folders = [name.rpartition("/") for name in archive.getnames()]
    except tarfile.TarError:
        return None
    keys = [folder + name.partition(".")[0] for folder, _, name in folders]
    return sum(key != before for key, before in zip(keys, [None, *keys]))


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
    Format("arrow-nested", ".arrow", COUNT, arrow(make=nested), file_source("arrow", split=SMALL)),
    Format("arrow-nested-zstd", ".arrow", COUNT, arrow("zstd", make=nested), file_source("arrow", split=SMALL)),
    Format("tfrecord", ".tfrecord", EXACT, tfrecord, file_source("tfrecord", split=SMALL), [PARSE]),
    Format("tfrecord-gz", ".tfrecord.gz", EXACT, gzipped(tfrecord), file_source("tfrecord"), [PARSE]),
    # Without a checksum of the frame: those of the records reveal what changed.
    Format("tfrecord-zst", ".tfrecord.zst", EXACT, zstandard(tfrecord, checked=False), file_source("tfrecord"), [PARSE]),
    Format("csv", ".csv", RECORDS, csv_file, file_source("csv", split=SMALL, schema=CSV_SCHEMA), count=csv_records),
    Format("csv-gz", ".csv.gz", EXACT, gzipped(csv_file), file_source("csv", schema=CSV_SCHEMA)),
    Format("csv-zst", ".csv.zst", EXACT, zstandard(csv_file), file_source("csv", schema=CSV_SCHEMA)),
    Format("csv-zst-unchecked", ".csv.zst", RECORDS, zstandard(csv_file, checked=False),
           file_source("csv", schema=CSV_SCHEMA), count=unzstandard(csv_records)),
    Format("json", ".jsonl", RECORDS, json_file, file_source("json", split=SMALL, schema=CSV_SCHEMA),
           count=json_records),
    Format("json-gz", ".jsonl.gz", EXACT, gzipped(json_file), file_source("json", schema=CSV_SCHEMA)),
    Format("json-zst", ".jsonl.zst", EXACT, zstandard(json_file), file_source("json", schema=CSV_SCHEMA)),
    Format("json-nested", ".jsonl", RECORDS, json_nested, file_source("json", split=SMALL), count=json_records),
    Format("json-nested-gz", ".jsonl.gz", EXACT, gzipped(json_nested), file_source("json")),
    Format("tar", ".tar", COUNT, tar, file_source("webdataset", split=SMALL), rows=24),
    # No checksum covers an extended header: a changed name makes two samples of one.
    Format("tar-pax", ".tar", RECORDS, tar_pax, file_source("webdataset", split=SMALL), rows=24, count=tar_records),
    Format("tar-gz", ".tar.gz", EXACT, gzipped(tar), file_source("webdataset"), rows=24),
    Format("tar-zst", ".tar.zst", EXACT, zstandard(tar), file_source("webdataset"), rows=24),
    Format("png", ".png", EXACT, lambda i: photo(i, "png"), file_source("images"), DECODE, rows=1),
    Format("png-16", ".png", EXACT, lambda i: photo(i, "png", deep=True), file_source("images"), DECODE, rows=1),
    Format("jpeg", ".jpg", COUNT, lambda i: photo(i, "jpeg"), file_source("images"), DECODE, rows=1),
    Format("jpeg-progressive", ".jpg", COUNT, lambda i: photo(i, "jpeg", progressive=True), file_source("images"), DECODE,
           rows=1),
    Format("webp", ".webp", COUNT, lambda i: photo(i, "webp", quality=80), file_source("images"), DECODE, rows=1),
    Format("webp-lossless", ".webp", COUNT, lambda i: photo(i, "webp", lossless=True), file_source("images"), DECODE,
           rows=1),
]
