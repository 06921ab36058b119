#!/usr/bin/env python3
"""Writes the seeds in fuzz/corpus: small files of every format, pipeline files, expressions and calls.

    python3 fuzz/seeds.py      (needs cargo, and pyarrow, NumPy and Pillow as in tests/python/requirements.txt)

What takes caju's own writers (frames, messages, parts, records) is written by `fuzz/targets/examples/seeds.rs`, which
this calls. Files that changes are compared with are named
`good-`: see fuzz/README.md. The profiles in
fuzz/corpus/profile are not made here; inputs that broke something are added by hand.
"""

import gzip
import io
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/mutation"))
import formats  # noqa: E402
from PIL import Image  # noqa: E402

CORPUS = ROOT / "fuzz/corpus"
ROWS = 24


def save(target, name, data):
    (CORPUS / target).mkdir(parents=True, exist_ok=True)
    (CORPUS / target / name).write_bytes(data.encode() if isinstance(data, str) else data)


def files():
    for name, options in formats.PARQUET.items():
        save("parquet", f"good-{name}", formats.parquet(**options)(ROWS))
    for name, compression, dictionary in (("none", None, False), ("dictionary", None, True), ("lz4", "lz4", False),
                                          ("zstd", "zstd", True)):
        save("arrow", f"good-{name}", formats.arrow(compression, dictionary)(ROWS))
    for name, compression in (("none", None), ("lz4", "lz4")):
        out = io.BytesIO()
        rows = formats.table(ROWS)
        with formats.pa.ipc.new_stream(out, rows.schema,
                                       options=formats.pa.ipc.IpcWriteOptions(compression=compression)) as writer:
            writer.write_table(rows)
        save("memory", f"good-{name}", out.getvalue())
    for target, write, rows in (("tfrecord", formats.tfrecord, 8), ("csv", formats.csv_file, ROWS),
                                ("json", formats.json_file, 12), ("tar", small_tar, 3)):
        save(target, "good-plain", write(rows))
        save(target, "good-gzip", gzip.compress(write(rows), mtime=0))
    # A long name stands in a member of its own, which no checksum covers.
    save("tar", "long-name", small_tar(3, "x" * 101))
    save("csv", "good-quotes", 'a,b\n1,"x, ""y""\nz"\n2,\n')
    save("csv", "inch-marks", "a,b\n" + '1,5" pipe\n2,"6"" pipe"\n' * 12)
    save("csv", "carriage-returns", "a,b\n" + "1,x\r2,y\r\n3,z\n" * 12)
    save("json", "good-nested", '{"a": [1, 2], "b": {"c": null}}\n\n{"a": [], "b": {"c": "\\u00fc"}}\n')
    for i, record in enumerate(formats.examples(2)):
        save("example", f"good-{i}", record)
    parts = {"bytes": b"\x0a\x08" + b"\x0a\x02ab\x0a\x02cd", "float": b"\x12\x0a\x0a\x08" + bytes(8),
             "int": b"\x1a\x04\x0a\x02\x05\x07"}
    features = b"".join(formats.field(1, formats.field(1, f"{kind}-{shape}".encode()) + formats.field(2, value))
                        for kind, value in parts.items() for shape in ("two", "list"))
    save("example", "good-every-type", formats.field(1, features))


def small_tar(rows, last="2"):
    out = io.BytesIO()
    with formats.tarfile.open(fileobj=out, mode="w", format=formats.tarfile.PAX_FORMAT) as archive:
        for i in range(rows):
            for extension, data in (("txt", b"some text"), ("cls", str(i).encode())):
                info = formats.tarfile.TarInfo(f"{last if i == 2 else i}.{extension}")
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    return out.getvalue().rstrip(b"\0") + bytes(1024)


def images():
    fixtures = ROOT / "crates/image/fixtures"
    for name in ("420.jpg", "progressive.jpg", "restart.jpg", "cmyk.jpg", "exif6.jpg", "grey_progressive.jpg",
                 "tiny_5x2.jpg", "grey.png", "palette.png", "deep.png", "alpha.png", "lossless.webp"):
        data = (fixtures / name).read_bytes()
        if len(data) > 4096:
            picture = Image.open(io.BytesIO(data)).convert("RGB").resize((24, 16))
            out = io.BytesIO()
            extra = {"progressive": True} if "progressive" in name else {}
            picture.save(out, "JPEG" if name.endswith("jpg") else "PNG", **extra)
            data = out.getvalue()
        save("image", f"good-{name}", data)


EXPRESSIONS = [
    "i * 2 + 1", "i / 0", "f + 9.5e3", "b AND i IS NULL OR NOT b", "CASE WHEN i > 3 THEN 'a' ELSE s END",
    "coalesce(s, 'x') || upper(s)", "CAST(s AS BIGINT)", "CAST(i AS DOUBLE) + f", "s LIKE '%a_' AND s IN ('a', 'b')",
    "array_length(l) + l[1]", "struct(i, s)", "[i, i + 1]", "regexp_replace(s, '[a-z]+', 'x')", "lpad(s, 5, '-')",
    "repeat(s, 3)", "substr(s, 2, 3)", "date_trunc('day', to_timestamp(i))", "md5(s)", "encode(s, 'hex')",
    "hash_bucket(s, 100)", "one_hot(i % 10, 10)", "tokenize(s, 8)", "uniform(0.0, 1.0)",
    "random_int(0, 10, key => 'k')", "resize(decode_image(image), 4, 4)",
    "normalize(random_flip(random_crop(decode_image(image), 2, 2)))", "image_size(image)",
]

PIPELINES = {
    "every-stage": """
name: a
source: { range: { start: 0, end: 100, step: 3 } }
steps:
  - with_columns: { a: "uniform(0.0, 1.0)", b: "CAST(id AS VARCHAR)" }
  - filter: "a < 0.7"
  - flat_map: { name: f, expr: "[id, id + 1]" }
  - select: [id, a, f]
  - autocache: h
  - sample: 0.5
  - shuffle: { buffer: 50, seed: 7 }
  - repeat: 2
  - take: 40
  - batch: { size: 8, drop_remainder: true }
  - prefetch: 2
""",
    "combined": """
source: { sample: { datasets: [{ source: { range: { start: 0, end: 9 } } }, { source: { range: { start: 5, end: 9 } },
  steps: [{ map: { id: "id + 1" } }] }], weights: [0.5, 1.5], seed: 3 } }
options: { seed: 5, on_error: { skip: 10 } }
""",
    "padded": """
source: { csv: { path: "memory://fuzz/files/a.csv", schema: { i: int64, s: string }, delimiter: ";" } }
steps: [{ bucket_by_length: { length: "character_length(s)", boundaries: [8, 16], batch_sizes: [4, 2, 1] } }]
""",
    "learnt": """
source: { range: 100 }
steps: [{ bucket_by_length: { length: "id", boundaries: { quantiles: 4, rows: 64 }, batch_sizes: 2, pad: false } }]
""",
    "costs": """{"source": {"range": {"start": 0, "end": 10}}, "steps": [{"sleep": {"per_row": "8us"}},
 {"burn": {"per_batch": "1us"}}, {"padded_batch": {"size": 4, "lengths": {"id": 3}}}]}""",
    "anchors": "source: &s { range: { start: 0, end: 5 } }\nsteps: [ { map: { x: &e \"id + 1\" } }, { filter: *e } ]\n",
}


def texts():
    for i, text in enumerate(EXPRESSIONS):
        save("expression", f"{i:02}", text)
    for name, text in PIPELINES.items():
        save("pipeline", name, text.lstrip())
    for path in sorted((ROOT / "examples/pipelines").glob("*.yaml")):
        save("pipeline", path.stem, path.read_bytes())
    definition = '{"source": {"range": {"start": 0, "end": 100}}, "steps": [{"map": {"x": "id * 2"}}, {"batch": 10}]}'
    save("flight", "good-definition", f'{{"pipeline": {definition}, "job": "j", "epoch": 0, "seed": 3, "mode": "off"}}')
    save("flight", "good-id", '{"pipeline": "a"}')
    save("ticket", "good-definition", f'{{"worker": "WORKER", "pipeline": {definition}, "job": "t", "epoch": 0}}')
    save("ticket", "good-options", f'{{"worker": "WORKER", "pipeline": {definition}, "mode": "dynamic", "seed": 1, '
                                   '"policy": "compute", "epochs": 2, "encoding": "arrow/none"}')


def main():
    files()
    images()
    texts()
    subprocess.run(["cargo", "run", "--quiet", "--package", "caju-fuzz", "--example", "seeds"], cwd=ROOT, check=True)
    size = sum(p.stat().st_size for p in CORPUS.rglob("*") if p.is_file())
    print(f"{sum(p.is_file() for p in CORPUS.rglob('*'))} seeds, {size >> 10} KiB")


if __name__ == "__main__":
    main()
