"""The bounds of a process: what a pipeline or its data may not exceed, wherever a cluster is started."""

import contextlib
import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import caju as cj
from caju import _cluster

MIB = 1 << 20


def wide(folder):
    """Rows of 4 MB each."""
    return cj.read_csv(numbers(folder)).map(x="one_hot(a, 1000000)")


def numbers(folder):
    file = folder / "numbers.csv"
    file.write_text("a\n1\n2\n")
    return file


def long_line(folder):
    """A CSV file with a line of 3000 bytes."""
    file = folder / "long.csv"
    file.write_text("a,b\n1," + "x" * 3000 + "\n")
    return cj.read_csv(file)


def large_row_group(folder):
    """A Parquet file with a row group of more than 10,000 bytes."""
    file = folder / "large.parquet"
    blobs = [bytes(range(256)) * 20, bytes(range(255, -1, -1)) * 20]
    pq.write_table(pa.table({"n": [1, 2], "blob": blobs}), file, compression="none")
    return cj.read_parquet(file)


def image(folder):
    """An image of 400 pixels."""
    out = io.BytesIO()
    Image.new("RGB", (20, 20)).save(out, "PNG")
    return cj.from_numpy({"image": [out.getvalue()]}).map(image="decode_image(image)")


def many_expressions(folder):
    """A pipeline whose planning takes many milliseconds."""
    return cj.read_csv(numbers(folder)).map({f"c{i}": f"ln(a + {i}) * cos(a) + sqrt(a * {i} + 1)" for i in range(400)})


BOUNDS = {
    "chunk_memory": (wide, MIB, cj.InvalidPipeline, "one_hot.*1.00 MiB is the most"),
    "max_record": (long_line, 1024, cj.DataLoss, "long.csv.*has over 1024 bytes.*--max-record"),
    "row_group_memory": (large_row_group, 4096, cj.ResourceExhausted, "large.parquet: row group 0.*--row-group-memory"),
    "max_pixels": (image, 100, cj.CajuError, "400 pixels.*100"),
    "bind_timeout": (many_expressions, 1e-3, cj.DeadlineExceeded, "was not done within"),
}


@contextlib.contextmanager
def local_cluster(**bounds):
    with cj.LocalCluster(**bounds) as cluster:
        yield lambda ds: ds.distribute(cluster)


@contextlib.contextmanager
def configured(**bounds):
    try:
        cj.configure(**bounds)
        yield lambda ds: ds
    finally:
        _cluster._settings.clear()
        _cluster._shared = None


@contextlib.contextmanager
def dispatcher(**bounds):
    with cj.start_dispatcher(**bounds) as server, cj.start_worker(server, cpu_threads=1):
        yield lambda ds: ds.distribute(server)


@contextlib.contextmanager
def worker(**bounds):
    with cj.start_dispatcher() as server, cj.start_worker(server, cpu_threads=1, **bounds):
        yield lambda ds: ds.distribute(server)


PLACES = [(place, name) for place in (local_cluster, configured, dispatcher, worker) for name in BOUNDS
          if place is not dispatcher or name in ("chunk_memory", "bind_timeout")]  # fmt: skip


@pytest.mark.parametrize(("place", "name"), PLACES, ids=lambda v: v if isinstance(v, str) else v.__name__)
def test_a_bound_holds_where_it_is_set(place, name, tmp_path):
    build, value, error, words = BOUNDS[name]
    with place(**{name: value}) as on, pytest.raises(error, match=words):
        list(on(build(tmp_path)))


@pytest.mark.parametrize("name", BOUNDS)
def test_by_default_the_same_passes(name, tmp_path):
    build, *_ = BOUNDS[name]
    with local_cluster() as on:
        assert list(on(build(tmp_path)))


def test_a_higher_bound_lets_more_pass(tmp_path):
    rows = cj.read_csv(numbers(tmp_path)).map(x="one_hot(a, 400000000)")       # 1.5 GiB a row
    with pytest.raises(cj.InvalidPipeline, match="1.49 GiB.*1.00 GiB is the most"):
        rows.schema
    with configured(chunk_memory="2GiB"):
        assert list(rows.schema) == ["x"]


def test_stages_over_known_columns_are_checked_within_the_configured_bounds():
    with configured(chunk_memory="1MiB"), pytest.raises(cj.InvalidPipeline, match="one_hot"):
        cj.range(3).map(x="one_hot(id, 1000000)")


def test_sizes_are_bytes_or_text(tmp_path):
    for size in (1024, "1KiB", "1024B"):
        with local_cluster(max_record=size) as on, pytest.raises(cj.DataLoss, match="1024 bytes"):
            list(on(long_line(tmp_path)))


@pytest.mark.parametrize("call", [cj.LocalCluster, cj.configure, cj.start_dispatcher, lambda **b: cj.start_worker("h:1", **b)],
                         ids=["LocalCluster", "configure", "start_dispatcher", "start_worker"])  # fmt: skip
@pytest.mark.parametrize(("bound", "words"), [
    ({"chunk_memory": 0}, "chunk_memory=0 must be a number of bytes, or text such as"),
    ({"chunk_memory": "lots"}, "chunk_memory='lots': "),
    ({"chunk_memory": 1.5}, "chunk_memory=1.5 must be a number of bytes"),
    ({"bind_timeout": 0}, "bind_timeout=0 must be a positive number of seconds"),
    ({"bind_timeout": "10s"}, "bind_timeout='10s' must be"),
    ({"bind_timeout": float("inf")}, "bind_timeout=inf must be"),
])  # fmt: skip
def test_bounds_that_cannot_be_are_named(call, bound, words):
    with pytest.raises(cj.InvalidPipeline, match=words):
        call(**bound)


def test_bounds_of_rows_are_those_of_workers():
    for call in (cj.LocalCluster, cj.configure, lambda **b: cj.start_worker("h:1", **b)):
        with pytest.raises(cj.InvalidPipeline, match="max_pixels=0 must be a positive number"):
            call(max_pixels=0)
        for bound in ("max_record", "row_group_memory"):
            with pytest.raises(cj.InvalidPipeline, match=f"{bound}='x': "):
                call(**{bound: "x"})
    for bound in ("max_pixels", "max_record", "row_group_memory"):
        with pytest.raises(TypeError, match=bound):
            cj.start_dispatcher(**{bound: 1})


def test_what_a_function_returns_is_bounded_before_it_is_read():
    def wide(batch):
        return {"x": [b"x" * (1 << 20)] * len(batch["id"])}

    with cj.LocalCluster(chunk_memory="8MiB") as cluster:
        data = cj.range(64).map(wide, batched=True).distribute(cluster)
        with pytest.raises(cj.CajuError, match="wide` returned needs 64"):
            list(data)
