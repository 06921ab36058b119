"""The pool of Python processes that runs functions of users: rows there and back, and what user code may do to it."""

import io
import os
import sys
import time

import cloudpickle
import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

import caju as cj
from caju import _caju
from caju._functions import name_of, pack

LIMIT = 3


class Pool:
    """A pool with one function, over tables."""

    def __init__(self, function, kind="map", batched=False, processes=1, timeout=30.0):
        self.inner = _caju.FunctionPool(sys.executable, processes, timeout, name_of(function), kind, batched, pack(function))

    def __call__(self, table, seeds=None):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table.combine_chunks())
        rows, kept = self.inner.call(sink.getvalue().to_pybytes(), seeds)
        return pa.ipc.open_stream(rows).read_all(), kept


TABLE = pa.table({"x": [1, 2, 3, 4], "s": ["a", "b", None, "d"], "l": [[1], [], [2, 3], [4]]})


def test_map_gets_and_gives_a_dict_per_row():
    by = 10
    out, kept = Pool(lambda row: {"y": row["x"] * by, "t": f"{row['s']}!", "n": len(row["l"])})(TABLE)
    assert kept is None
    assert out.to_pydict() == {"y": [10, 20, 30, 40], "t": ["a!", "b!", "None!", "d!"], "n": [1, 0, 2, 1]}


def test_map_over_batches():
    out, _ = Pool(lambda b: {"y": b["x"] + 1, "m": np.stack([b["x"], b["x"]], axis=1)}, batched=True)(TABLE)
    assert out["y"].to_pylist() == [2, 3, 4, 5] and out["m"].type == pa.fixed_shape_tensor(pa.int64(), [2])


def test_filter_says_which_rows_stay():
    assert Pool(lambda row: row["x"] % 2 == 0, "filter")(TABLE)[1] == [1, 3]
    assert Pool(lambda b: b["x"] > 2, "filter", batched=True)(TABLE)[1] == [2, 3]


def test_flat_map_says_where_rows_come_from():
    out, kept = Pool(lambda row: [{"v": v} for v in row["l"]], "flat_map")(TABLE)
    assert out["v"].to_pylist() == [1, 2, 3, 4] and kept == [0, 2, 2, 3]
    assert Pool(lambda row: [], "flat_map")(TABLE)[1] == []


def test_values_of_many_kinds_come_back():
    def f(row):
        n = int(row["x"])
        return {"ragged": np.arange(n), "tensor": np.full((2, 3), n, "f4"), "bytes": b"x" * n, "bool": n > 2,
                "mixed": n if n < 3 else n + 0.5, "words": np.array(["w"] * n)}

    out, _ = Pool(f)(TABLE)
    assert out["ragged"].to_pylist() == [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3]]
    assert out["tensor"].type == pa.fixed_shape_tensor(pa.float32(), [2, 3])
    assert out["bytes"].to_pylist() == [b"x", b"xx", b"xxx", b"xxxx"]
    assert out["bool"].to_pylist() == [False, False, True, True]
    assert out["mixed"].to_pylist() == [1, 2, 3.5, 4.5]
    assert out["words"].to_pylist() == [["w"], ["w"] * 2, ["w"] * 3, ["w"] * 4]


def test_pillow_works():
    image = Image.new("RGB", (40, 30), (200, 10, 10))
    file = io.BytesIO()
    image.save(file, "PNG")

    def thumbnail(row):
        with Image.open(io.BytesIO(row["png"])) as opened:
            return {"image": np.asarray(opened.resize((8, 6)))}

    out, _ = Pool(thumbnail)(pa.table({"png": [file.getvalue()] * 3}))
    assert out["image"].type == pa.fixed_shape_tensor(pa.uint8(), [6, 8, 3])


def test_functions_of_the_users_own_modules_travel(tmp_path, monkeypatch):
    (tmp_path / "helpers_of_mine.py").write_text("def double(x):\n    return inner(x)\ndef inner(x):\n    return x * 2\n")
    monkeypatch.syspath_prepend(tmp_path)
    import helpers_of_mine

    pool = Pool(lambda row: {"y": helpers_of_mine.double(row["x"])})
    (tmp_path / "helpers_of_mine.py").unlink()                # the process does not find it, and need not
    assert pool(TABLE)[0]["y"].to_pylist() == [2, 4, 6, 8]
    monkeypatch.delitem(sys.modules, "helpers_of_mine")


def test_a_module_under_two_names_and_one_that_was_registered_do_no_harm(tmp_path, monkeypatch):
    """Also not to what the user has registered."""
    for name in ("twice_there", "registered_before"):
        (tmp_path / f"{name}.py").write_text("def plus(row):\n    return {'id': row['id'] + 1}\n")
    monkeypatch.syspath_prepend(tmp_path)
    import registered_before
    import twice_there

    monkeypatch.setitem(sys.modules, "another_name", twice_there)
    cloudpickle.register_pickle_by_value(registered_before)
    for function in (twice_there.plus, registered_before.plus):
        assert [int(i) for batch in cj.range(3).map(function).batch(3) for i in batch["id"]] == [1, 2, 3]
    assert "registered_before" in cloudpickle.list_registry_pickle_by_value()
    assert "twice_there" not in cloudpickle.list_registry_pickle_by_value()
    cloudpickle.unregister_pickle_by_value(registered_before)


def test_an_exception_names_the_row_and_keeps_the_traceback():
    def inner(x):
        return 1 // (int(x) - 3)

    def f(row):
        return {"y": inner(row["x"])}

    pool = Pool(f)
    with pytest.raises(cj.InvalidPipeline) as e:
        pool(pa.table({"x": [1, 2, 3, 4]}), None)
    text = str(e.value)
    assert "row 2" in text and "raised" in text and "in inner" in text and "1 // (int(x) - 3)" in text
    assert "_pool.py" not in text
    assert pool(pa.table({"x": [9]}))[0]["y"].to_pylist() == [0] and pool.inner.processes == 1


@pytest.mark.parametrize("f,words", [
    (lambda row: row["x"], "not a dict"),
    (lambda row: {"a": 1} if row["x"] == 1 else {"b": 1}, "after rows with"),
    (lambda row: {"a": object()}, "which a column cannot hold"),
    (lambda row: {"a": np.zeros((int(row["x"]), int(row["x"])))}, "several shapes"),
])  # fmt: skip
def test_what_is_no_row_is_reported(f, words):
    with pytest.raises(cj.InvalidPipeline, match=words):
        Pool(f)(TABLE)


def test_a_process_that_dies_is_replaced_and_the_rows_run_again(tmp_path):
    mark = str(tmp_path / "mark")

    def once(row):
        if not os.path.exists(mark):
            open(mark, "w").close()
            os._exit(3)
        return {"y": row["x"]}

    pool = Pool(once)
    assert pool(TABLE)[0]["y"].to_pylist() == [1, 2, 3, 4] and pool.inner.processes == 1


def test_a_process_that_always_dies_is_reported_with_the_row():
    pool = Pool(lambda row: os._exit(3) if row["x"] == 3 else row)
    with pytest.raises(cj.ResourceExhausted, match="row 2: (.|\n)*run twice.*exit status: 3"):
        pool(TABLE)
    assert pool.inner.processes == 0
    with pytest.raises(cj.ResourceExhausted, match="batch of 4 rows, of which this is the first.*exit status: 3"):
        Pool(lambda b: os._exit(3), batched=True)(TABLE)
    with pytest.raises(cj.ResourceExhausted, match=r"steps\[0\].python: .*row 7\b.*exit status: 3"):
        list(cj.range(20).map(lambda row: os._exit(3) if row["id"] == 7 else row))


def test_a_process_that_hangs_is_replaced_then_reported_with_the_row_and_the_setting():
    pool, start = Pool(lambda row: time.sleep(3600 if row["x"] == 2 else 0) is None, "filter", timeout=0.5), time.monotonic()
    with pytest.raises(cj.DeadlineExceeded, match=r"row 1: .*hangs.*within 500.*filter\(\.\.\., timeout=600\)"):
        pool(TABLE)
    assert time.monotonic() - start < 20


def test_a_slow_function_does_not_hang_as_long_as_it_gets_on():
    table = pa.table({"x": list(range(40))})
    slow = Pool(lambda row: time.sleep(0.05) or {"y": row["x"]}, timeout=0.5)
    assert slow(table)[0]["y"].to_pylist() == list(range(40)) # 2 s in all, with half a second for each row

    def yielding(row):
        time.sleep(0.05)
        yield {"y": row["x"]}

    assert len(Pool(yielding, "flat_map", timeout=0.5)(table)[0]) == 40


def test_who_waits_for_a_process_waits_as_long_as_others_get_on():
    from concurrent.futures import ThreadPoolExecutor

    table = pa.table({"x": list(range(30))})
    pool = Pool(lambda row: time.sleep(0.02) or {"y": row["x"]}, processes=1, timeout=0.3)
    with ThreadPoolExecutor(4) as threads:
        assert all(len(out) == 30 for out, _ in threads.map(lambda _: pool(table), range(4)))


def test_how_long_a_function_may_take_is_a_setting():
    def slow(row):
        time.sleep(0.3)
        return {"y": row["id"]}

    assert len(list(cj.range(3).map(slow, timeout=30))) == 3
    with pytest.raises(cj.DeadlineExceeded, match=r"row 0\b.*within 50.*map\(\.\.\., timeout=600\)"):
        list(cj.range(3).map(slow, timeout=0.05))
    with pytest.raises(cj.DeadlineExceeded, match="batch of 3 rows"):
        list(cj.range(3).map(lambda b: time.sleep(3600) or b, batched=True, timeout=0.3, schema={"id": "int64"}))
    patient, hasty = cj.range(3).map(slow, timeout=30), cj.range(3).map(slow)
    assert patient.fingerprint == hasty.fingerprint and patient.to_dict()["steps"][0]["python"]["timeout"] == "30s"
    assert cj.from_yaml(patient.to_yaml()).to_dict()["steps"] == patient.to_dict()["steps"]
    for bad in (0, -1, "60s", 1e9, float("nan"), True):
        with pytest.raises(cj.InvalidPipeline, match="number of seconds"):
            cj.range(3).map(slow, timeout=bad)


def test_a_function_gets_the_columns_that_it_reads():
    ds = cj.range(20).with_columns(y="id * 2", z="id * 3")
    two = ds.map(lambda row: {"names": ",".join(sorted(row))}, reads=["z", "id"])
    assert list(two)[0]["names"] == "id,z"
    assert [int(r["id"]) for r in ds.filter(lambda row: len(row) == 1 and row["y"] > 30, reads=["y"])] == [16, 17, 18, 19]
    assert two.fingerprint != ds.map(lambda row: {"names": ",".join(sorted(row))}).fingerprint, "it may tell the difference"
    with pytest.raises(cj.InvalidPipeline, match="unknown column `w`"):
        list(ds.map(lambda row: row, reads=["w"], schema={"id": "int64"}))
    with pytest.raises(cj.InvalidPipeline, match="reads='id' must be a list of columns"):
        ds.map(lambda row: row, reads="id")


def test_a_filter_runs_before_a_function_that_keeps_its_column():
    def fails(row):
        if row["id"] % 10:
            raise ValueError("a row that the filter drops")
        return {"id": row["id"], "square": row["id"] ** 2}

    schema = {"id": "int64", "square": "int64"}
    ds = cj.range(100).map(fails, schema=schema, keeps=["id"]).filter("id % 10 = 0").with_options(reorder=True)
    assert [int(r["square"]) for r in ds] == [(10 * i) ** 2 for i in range(10)]
    assert "1.filter runs above 0.python: it drops rows" in ds.explain()
    with pytest.raises(cj.CajuError, match="a row that the filter drops"):
        list(ds.with_options(reorder=False))
    unmarked = cj.range(100).map(fails, schema=schema).filter("id % 10 = 0").with_options(reorder=True)
    assert "it reads `id`, which 0.python computes; `keeps` names columns" in unmarked.explain()
    with pytest.raises(cj.CajuError, match="a row that the filter drops"):
        list(unmarked)


def test_nothing_moves_across_a_function_of_batches():
    def centred(batch):
        return {"id": batch["id"], "x": batch["id"] - batch["id"].mean()}

    ds = cj.range(3000).map(centred, batched=True, reads=["id"], keeps=["id"]).filter("id % 2 = 0").with_options(deterministic=True)
    written = [row["x"] for row in ds]
    assert [row["x"] for row in ds.with_options(reorder=True)] == written


def test_a_function_that_changes_what_it_keeps_is_reported():
    def changes(row):
        return {"id": row["id"] + (row["id"] == 7)}

    with pytest.raises(cj.InvalidPipeline, match=r"row 7\b.*changes` changes column `id`.*take it out of `keeps`"):
        list(cj.range(10).map(changes, keeps=["id"]))
    with pytest.raises(cj.InvalidPipeline, match="`keeps`: .*<lambda>` makes `id` another column"):
        list(cj.range(10).map(lambda row: {"id": "x"}, keeps=["id"]))


def test_generators_of_flat_map_belong_to_their_row():
    def f(row):
        for i in range(int(row["x"])):
            if row["x"] == 3 and i == 1:
                raise KeyError("in the third row")
            yield {"z": cj.rng().random()}

    pool = Pool(f, "flat_map")
    out, kept = pool(TABLE.slice(0, 2), [7, 8])
    assert kept == [0, 1, 1] and len(set(out["z"].to_pylist())) == 2
    with pytest.raises(cj.InvalidPipeline, match="row 2: (.|\n)*raised KeyError: 'in the third row'(.|\n)*in f"):
        pool(TABLE, [7, 8, 9, 10])

    def stage(row):
        for i in range(2):
            if row["id"] == 5:
                raise ValueError("not this one")
            yield {"id": row["id"], "z": cj.rng().random()}

    rest = list(cj.range(10).flat_map(stage).with_options(on_error="skip"))
    assert sorted({int(r["id"]) for r in rest}) == [0, 1, 2, 3, 4, 6, 7, 8, 9] and len(rest) == 18


@pytest.mark.parametrize("made", [{"x": 1}, 5, "words", None])
def test_what_flat_map_cannot_go_through_is_reported(made):
    with pytest.raises(cj.InvalidPipeline, match="flat_map takes any number of dicts"):
        cj.range(3).flat_map(lambda row: made)
    with pytest.raises(cj.InvalidPipeline, match=r"row 0\b.*flat_map takes any number of dicts"):
        list(cj.range(3).flat_map(lambda row: made, schema={"x": "int64"}))


def test_printing_disturbs_nobody(capfd):
    out, _ = Pool(lambda row: print("hello") or {"y": sys.stdin.read() or row["x"]})(TABLE)
    assert out["y"].to_pylist() == [1, 2, 3, 4] and "hello" in capfd.readouterr().err


def test_a_function_that_cannot_be_unpacked_is_reported():
    class Odd:
        def __reduce__(self):
            return (eval, ("1 / 0",))

    odd = Odd()
    with pytest.raises(cj.InvalidPipeline, match="unpickled(.|\n)*ZeroDivisionError"):
        Pool(lambda row: {"y": odd})(TABLE)


def test_the_generator_of_a_row_is_its_own():
    def f(row):
        return {"a": cj.rng().random(), "b": cj.rng().random()}

    pool = Pool(f)
    first, _ = pool(TABLE, [7, 8, 9, 10])
    assert first["a"].to_pylist() == first["b"].to_pylist()   # each call restarts the draws
    assert len(set(first["a"].to_pylist())) == 4
    rest, _ = pool(TABLE.slice(2), [9, 10])
    assert rest["a"].to_pylist() == first["a"].to_pylist()[2:]
    with pytest.raises(cj.InvalidPipeline, match=r"caju.rng\(\) draws for a row"):
        pool(TABLE)


def test_outside_of_functions_there_is_no_generator():
    with pytest.raises(cj.FailedPrecondition, match="within a function"):
        cj.rng()


def test_no_python_is_one_clear_error():
    pool = _caju.FunctionPool("/nowhere/python", 1, 1.0, "f", "map", False, b"")
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, TABLE.schema) as writer:
        writer.write_table(TABLE)
    with pytest.raises(cj.FailedPrecondition, match="/nowhere/python"):
        pool.call(sink.getvalue().to_pybytes())


def test_calls_from_many_threads_share_the_processes():
    from concurrent.futures import ThreadPoolExecutor

    pool = Pool(lambda row: {"y": row["x"], "pid": os.getpid()}, processes=2)
    with ThreadPoolExecutor(6) as threads:
        outs = list(threads.map(lambda _: pool(TABLE)[0], range(24)))
    assert all(o["y"].to_pylist() == [1, 2, 3, 4] for o in outs)
    assert pool.inner.processes <= 2 and len({p for o in outs for p in o["pid"].to_pylist()}) <= 2


# ---- the columns given ---------------------------------------------------------------------------------------------


def never_tried(row):
    raise AssertionError("a function whose columns are given is not run to find them")


def test_columns_can_be_given_in_place_of_a_trial():
    dataset = cj.read_parquet("/nowhere/*.parquet").map(never_tried, schema={
        "id": "int64", "s": "string", "b": "bytes", "image": "float32[2, 3]", "words": "list of string", "t": "timestamp",
    })
    stage = dataset.to_dict()["steps"][0]["python"]
    assert stage["schema"] and stage["kind"] == "map"
    given = cj.range(4).map(lambda row: {"x": row["id"], "m": np.ones((2, 3))}, schema={"x": "int32", "m": "float32[2, 3]"})
    assert dict(given.schema) == {"x": "int32", "m": "float32[2, 3]"}
    [batch] = given.batch(4)
    assert batch["x"].dtype == "int32" and batch["m"].dtype == "float32" and batch["m"].shape == (4, 2, 3)


def test_given_columns_may_be_another_schema():
    def double(row):
        return {"id": row["id"] * 2}

    same = [cj.range(3).map(double, schema=s) for s in (cj.range(3).schema, pa.schema({"id": pa.int64()}), {"id": "int64"})]
    assert all([int(r["id"]) for r in dataset] == [0, 2, 4] for dataset in same)
    words = cj.range(3).flat_map(lambda row: [{"w": "x"}] * int(row["id"]), schema={"w": "string"})
    assert [r["w"] for r in words] == ["x"] * 3
    nothing = cj.range(3).flat_map(lambda row: [], schema={"w": "string"})
    assert list(nothing) == []


@pytest.mark.parametrize("schema,words", [
    ({"x": "int46"}, "unknown type `int46`.*the types are int8"),
    ({"x": "float32[2, ]"}, "no shape"),
    ({"x": "float32[99999, 99999]"}, "too many"),
    ({"x": 64}, "must name columns"),
    ("int64", "must name columns"),
    ({"x": "list of flaot32"}, "column `x`.*did you mean `float32`"),
])  # fmt: skip
def test_columns_that_cannot_be_are_reported(schema, words):
    with pytest.raises(cj.InvalidPipeline, match=words):
        cj.range(3).map(never_tried, schema=schema)


def test_a_function_that_breaks_its_promise_is_reported():
    with pytest.raises(cj.InvalidPipeline, match="made no column `y`, did you mean|made no column `y`"):
        list(cj.range(3).map(lambda row: {"x": 1}, schema={"y": "int64"}))
    with pytest.raises(cj.InvalidPipeline, match="`schema=` or its first rows"):
        list(cj.range(3).map(lambda row: {"x": "word"}, schema={"x": "int64"}))
    with pytest.raises(cj.InvalidPipeline, match=r"\[2, 3\].*\[3, 2\]"):
        list(cj.range(3).map(lambda row: {"x": np.zeros((2, 3), "f4")}, schema={"x": "float32[3, 2]"}))
    with pytest.raises(cj.InvalidPipeline, match="is for the columns of a Python function"):
        cj.range(3).map(x="id", schema={"x": "int64"})
