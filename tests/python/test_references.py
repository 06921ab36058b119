"""What caju reads and computes, against readers that are not caju: pyarrow, Pillow, and one by hand."""

import io
import json
import tarfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from foreign import column, parse_example, read_flight, tfrecords
from PIL import Image
from rows_checksum import rows_checksum


def encoded(image, format_, **options):
    out = io.BytesIO()
    image.save(out, format_, **options)
    return out.getvalue()


def photo(mode="RGB", size=(64, 48)):
    """A smooth picture with an edge in it, which every codec reproduces within a few steps."""
    w, h = size
    y, x = np.mgrid[0:h, 0:w].astype(np.float32)
    px = np.stack([255 * x / w, 255 * y / h, np.where(x > w / 2, 200, 60)], axis=2).astype(np.uint8)
    return Image.fromarray(px).convert(mode)


def read_rows(cluster, definition):
    return read_flight(cluster(workers=2).dispatcher.address, definition)[1]


def test_parquet_rows_are_those_of_pyarrow(caju, data, tmp_path):
    path = data / "table/parquet"
    report = caju.report("run", {"source": {"parquet": str(path / "*.parquet")}}, tmp_path)
    table = pa.concat_tables(pq.read_table(f) for f in sorted(path.glob("*.parquet")))
    assert report["epochs"][0]["rows"] == len(table)
    assert report["epochs"][0]["rows_checksum"] == rows_checksum(table.to_batches())


def test_tfrecords_are_those_of_a_reader_by_hand(caju, data, tmp_path):
    definition = {
        "source": {"tfrecord": {"path": str(data / "images/tfrecord/*.tfrecord"), "split": "200KiB"}},
        "steps": [{"parse_example": {"features": {"image/encoded": "bytes", "image/class/label": "int64"}}}],
    }
    report = caju.report("run", definition, tmp_path, "--workers", "2")
    rows = [parse_example(r) for f in sorted((data / "images/tfrecord").glob("*.tfrecord")) for r in tfrecords(f)]
    batch = pa.record_batch({"image": pa.array([r["image/encoded"][0] for r in rows], pa.binary()),
                             "label": pa.array([r["image/class/label"][0] for r in rows], pa.int64())})
    assert report["epochs"][0]["rows_checksum"] == rows_checksum([batch])


def test_tar_samples_are_those_of_tarfile(cluster, data):
    definition = {"source": {"webdataset": {"path": str(data / "images/webdataset/*.tar"), "split": "500KiB"}}}
    batches = read_rows(cluster, definition)
    found = dict(zip(column(batches, "__key__"), column(batches, "jpg")))
    expected = {}
    for file in (data / "images/webdataset").glob("*.tar"):
        with tarfile.open(file) as tar:
            for member in tar:
                if member.name.endswith(".jpg"):
                    expected[member.name.removesuffix(".jpg")] = tar.extractfile(member).read()
    assert found == expected


def test_csv_and_json_rows_are_those_of_python(cluster, data, tmp_path):
    import csv

    c = cluster(workers=1)
    with open(sorted((data / "table/csv").glob("*.csv"))[0]) as f:
        expected = [(r["label"], r["C1"]) for r in csv.DictReader(f)]
    source = {"csv": str(sorted((data / "table/csv").glob("*.csv"))[0])}
    _, batches = read_flight(c.dispatcher.address, {"source": source, "steps": [{"select": ["label", "C1"]}]}, job="csv")
    found = [(str(l), v or "") for l, v in zip(column(batches, "label"), column(batches, "C1"))]
    assert found == expected
    file = sorted((data / "table/json").glob("*.jsonl"))[0]
    expected = [json.loads(line) for line in file.read_text().splitlines()]
    definition = {"source": {"json": str(file)}, "steps": [{"select": ["label", "I1"]}]}
    _, batches = read_flight(c.dispatcher.address, definition, job="json")
    found = list(zip(column(batches, "label"), column(batches, "I1")))
    assert found == [(r["label"], r.get("I1")) for r in expected]


PICTURES = {
    "jpeg": (lambda: encoded(photo(), "JPEG", quality=95), 6),
    "jpeg_420": (lambda: encoded(photo(), "JPEG", quality=95, subsampling=2), 6),
    "jpeg_progressive": (lambda: encoded(photo(), "JPEG", quality=95, progressive=True), 6),
    "jpeg_grey": (lambda: encoded(photo("L"), "JPEG", quality=95), 2),
    "jpeg_cmyk": (lambda: encoded(photo("CMYK"), "JPEG", quality=95), 8),
    "png": (lambda: encoded(photo(), "PNG"), 0),
    "png_grey": (lambda: encoded(photo("L"), "PNG"), 0),
    "png_palette": (lambda: encoded(photo("P"), "PNG"), 0),
    "webp_lossless": (lambda: encoded(photo(), "WEBP", lossless=True), 0),
    "webp": (lambda: encoded(photo(), "WEBP", quality=90), 6),
}


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_decode_as_in_pillow(cluster, tmp_path, name):
    make, tolerance = PICTURES[name]
    blob = make()
    pq.write_table(pa.table({"image": pa.array([blob], pa.binary())}), tmp_path / "p.parquet")
    definition = {"source": {"parquet": str(tmp_path / "p.parquet")},
                  "steps": [{"map": {"image": "resize(decode_image(image), 48, 64)"}}]}
    (batch,) = read_rows(cluster, definition)
    found = batch.column("image").to_numpy_ndarray()[0].astype(int)
    expected = np.asarray(Image.open(io.BytesIO(blob)).convert("RGB")).astype(int)
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= tolerance


@pytest.mark.parametrize("orientation", range(1, 9))
def test_rotated_jpegs_stand_upright(cluster, tmp_path, orientation):
    from PIL import ImageOps

    exif = Image.Exif()
    exif[0x0112] = orientation
    blob = encoded(photo(), "JPEG", quality=95, exif=exif)
    pq.write_table(pa.table({"image": pa.array([blob], pa.binary())}), tmp_path / "p.parquet")
    upright = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(blob))).convert("RGB")).astype(int)
    h, w = upright.shape[:2]
    definition = {"source": {"parquet": str(tmp_path / "p.parquet")},
                  "steps": [{"map": {"image": f"resize(decode_image(image), {h}, {w})"}}]}
    (batch,) = read_rows(cluster, definition)
    found = batch.column("image").to_numpy_ndarray()[0].astype(int)
    assert np.abs(found - upright).max() <= 6


@pytest.mark.parametrize("short, crop", [(256, 224), (64, 56)])
def test_the_evaluation_chain_is_that_of_torchvision_on_pillow(cluster, data, short, crop):
    chain = f"center_crop(resize_shorter(decode_image(image), {short}), {crop}, {crop})"
    definition = {"source": {"parquet": str(data / "images/parquet/*.parquet")},
                  "steps": [{"filter": "id < 8"}, {"map": {"id": "id", "image": chain}}]}
    batches = read_rows(cluster, definition)
    found = {i: x for b in batches for i, x in zip(b.column("id").to_pylist(), b.column("image").to_numpy_ndarray())}
    table = pa.concat_tables(pq.read_table(f) for f in sorted((data / "images/parquet").glob("*.parquet")))
    assert sorted(found) == list(range(8))
    for i, blob in zip(table["id"].to_pylist()[:8], table["image"].to_pylist()[:8]):
        im = Image.open(io.BytesIO(blob)).convert("RGB")
        least = min(im.size)
        # torchvision cuts the longer side to a whole number, and rounds the crop's corner half to even.
        im = im.resize((short * im.width // least, short * im.height // least), Image.BILINEAR)
        x, y = round((im.width - crop) / 2), round((im.height - crop) / 2)
        expected = np.asarray(im.crop((x, y, x + crop, y + crop))).astype(int)
        assert np.abs(found[i].astype(int) - expected).max() <= 2, i


def test_normalised_floats_are_those_of_numpy(cluster, tmp_path):
    blob = encoded(photo(size=(32, 32)), "PNG")
    pq.write_table(pa.table({"image": pa.array([blob], pa.binary())}), tmp_path / "p.parquet")
    definition = {"source": {"parquet": str(tmp_path / "p.parquet")},
                  "steps": [{"map": {"image": "normalize(resize(decode_image(image), 32, 32))"}}]}
    (batch,) = read_rows(cluster, definition)
    found = batch.column("image").to_numpy_ndarray()[0]
    px = np.asarray(Image.open(io.BytesIO(blob)), np.float32) / 255
    expected = (px - np.float32([0.485, 0.456, 0.406])) / np.float32([0.229, 0.224, 0.225])
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_table_expressions_are_those_of_numpy(cluster, data):
    path = sorted((data / "table/parquet").glob("*.parquet"))[0]
    definition = {"source": {"parquet": str(path)},
                  "steps": [{"map": {"x": "ln(greatest(coalesce(I1, 0), 0) + 1)", "b": "hash_bucket(C1, 1000)"}}]}
    batches = read_rows(cluster, definition)
    ints = np.array([v or 0 for v in pq.read_table(path)["I1"].to_pylist()], float)
    np.testing.assert_allclose(sorted(column(batches, "x")), sorted(np.log1p(np.maximum(ints, 0))), rtol=1e-6)
    buckets = [b for b in column(batches, "b") if b is not None]
    assert all(0 <= b < 1000 for b in buckets)


def test_the_checksum_of_odd_types_is_as_documented(caju, tmp_path):
    table = pa.table({
        "f": pa.array([1.5, float("nan"), None, -0.0], pa.float32()),
        "d": pa.array(["a", None, "b", "a"]).dictionary_encode(),
        "l": pa.array([[1, None], [], None, [3]], pa.list_(pa.int16())),
        "s": pa.array([{"x": 1, "y": "u"}, {"x": None, "y": "v"}, None, {"x": 4, "y": None}]),
        "b": pa.array([True, False, None, True]),
        "t": pa.array(["long " * 500, "", None, "x"]),
        "u": pa.array([b"12", b"34", None, b"56"], pa.binary(2)),
    })
    pq.write_table(table, tmp_path / "odd.parquet")
    report = caju.report("run", {"source": {"parquet": str(tmp_path / "odd.parquet")}}, tmp_path)
    assert report["epochs"][0]["rows_checksum"] == rows_checksum(table.to_batches())
