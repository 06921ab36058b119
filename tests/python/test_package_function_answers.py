"""What functions of users may answer, and what else they do: forks, exceptions that end a process, and answers of no use."""

import os
import re
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pyarrow as pa
import pytest
from test_package_functions import TABLE, Pool

import caju as cj
from caju import _column, _columns

ROWS = 6_000


def ids_of(dataset):
    return sorted(v for batch in dataset.arrow() for v in batch.column("y").to_pylist())


# ---- forks -----------------------------------------------------------------------------------------------------


def child_returns(row):
    if row["id"] == 50:
        os.fork()
    return {"y": int(row["id"])}


def child_raises(row):
    if row["id"] == 50 and os.fork() == 0:
        raise ValueError("in the child")
    return {"y": int(row["id"])}


def child_exits(row):
    if row["id"] == 50 and os.fork() == 0:
        sys.exit(0)
    return {"y": int(row["id"])}


def child_yields(row):
    yield {"y": int(row["id"])}
    if row["id"] == 50:
        os.fork()


@pytest.mark.parametrize("function", [child_returns, child_raises, child_exits, child_yields])
def test_a_fork_within_a_function_changes_no_row(function):
    for _ in range(3):
        rows = cj.range(ROWS)
        made = rows.flat_map(function) if function is child_yields else rows.map(function)
        assert ids_of(made) == list(range(ROWS))


def test_a_fork_within_a_filter_and_within_a_batch_changes_no_row():
    def even(row):
        if row["id"] == 51:
            os.fork()
        return row["id"] % 2 == 0

    def doubled(batch):
        os.fork()
        return {"y": batch["id"] * 2}

    for _ in range(3):
        assert ids_of(cj.range(ROWS).filter(even).map(y="id")) == list(range(0, ROWS, 2))
        assert ids_of(cj.range(ROWS).map(doubled, batched=True, schema={"y": "int64"})) == list(range(0, 2 * ROWS, 2))


def test_a_child_runs_no_further_row(tmp_path):
    def noted(row):
        if row["x"] == 2:
            child = os.fork()
            if child:
                os.waitpid(child, 0)
        with open(tmp_path / str(os.getpid()), "a") as file:
            file.write(f"{row['x']} ")
        return {"y": row["x"]}

    assert Pool(noted)(TABLE)[0]["y"].to_pylist() == [1, 2, 3, 4]
    assert sorted(file.read_text() for file in tmp_path.iterdir()) == ["1 2 3 4 ", "2 "]


def test_a_child_that_lives_on_does_not_hide_the_end_of_its_parent(tmp_path):
    pid_file = tmp_path / "pid"

    def leaves(row):
        child = os.fork()
        if child == 0:
            os.execvp("sleep", ["sleep", "60"]) if row["x"] == 1 else signal.pause()
        with pid_file.open("a") as file:
            file.write(f"{child}\n")
        os._exit(3)

    try:
        for x in (1, 2):
            with pytest.raises(cj.ResourceExhausted, match="row 0: .*exit status: 3"):
                Pool(leaves, timeout=20.0)(pa.table({"x": [x]}))
    finally:
        for pid in pid_file.read_text().split():
            os.kill(int(pid), signal.SIGKILL)


def test_a_fork_in_the_trial_does_not_go_on_with_the_program(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent("""
        import os, caju
        def f(row):
            os.fork()
            return {"y": int(row["id"])}
        if __name__ == "__main__":
            rows = caju.range(5).map(f)
            print(sum(1 for _ in rows), flush=True)
    """))
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=100)
    assert done.stdout == "5\n", done.stderr


def test_programs_that_a_function_starts_have_no_input_and_take_no_request():
    def f(row):
        return {"y": row["x"], "read": subprocess.run(["cat"], capture_output=True, timeout=20).stdout}

    out = Pool(f)(TABLE)[0]
    assert out["y"].to_pylist() == [1, 2, 3, 4] and out["read"].to_pylist() == [b""] * 4


# ---- filters ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [
    lambda keep: keep,
    lambda keep: np.bool_(keep),
    lambda keep: np.array(keep),
    lambda keep: pa.scalar(keep),
    lambda keep: np.ma.array(keep),
], ids=["bool", "numpy", "array", "pyarrow", "masked"])  # fmt: skip
def test_a_filter_answers_with_booleans(answer):
    assert Pool(lambda row: answer(bool(row["x"] > 2)), "filter")(TABLE)[1] == [2, 3]


class Odd:
    def __repr__(self):
        raise ValueError("no text")


@pytest.mark.parametrize("answer,words", [
    (None, r"None \(NoneType\)"),
    (float("nan"), r"nan \(float\)"),
    ("no", r"'no' \(str\)"),
    (1, r"1 \(int\)"),
    (np.float64(1), r"\(float64\)"),
    ([], r"\[\] \(list\)"),
    ("x" * 1000, r"'x.*\.\.\..*x' \(str\)"),
    (np.array([True]), r"an array of bool\[1\]"),
    (np.ma.masked, r"\(MaskedConstant\)"),
    (np.ma.array(True, mask=True), r"\(MaskedArray\)"),
    (pa.scalar(None, pa.bool_()), r"\(BooleanScalar\)"),
    (pa.scalar(1), r"\(Int64Scalar\)"),
    (Odd(), r"<Odd instance at .*> \(Odd\)"),
])  # fmt: skip
def test_a_filter_that_does_not_answer_is_reported_with_the_row(answer, words):
    with pytest.raises(cj.InvalidPipeline) as e:
        Pool(lambda row: answer if row["x"] == 3 else True, "filter")(TABLE)
    what = rf"row 2: function `.*` returned .*{words}, not a boolean; return True or False, or wrap it in bool\(\.\.\.\)"
    assert re.search(what, str(e.value), re.S) and len(str(e.value)) < 400, str(e.value)


def test_a_forgotten_return_drops_nothing():
    def forgets(row):
        row["id"] > 3  # noqa: B015

    with pytest.raises(cj.InvalidPipeline, match=r"row 0\b.*forgets` returned None \(NoneType\)"):
        list(cj.range(100).filter(forgets))
    epoch = iter(cj.range(10).filter(lambda row: None if row["id"] == 4 else True).with_options(on_error="skip"))
    assert sorted(int(row["id"]) for row in epoch) == [0, 1, 2, 3, 5, 6, 7, 8, 9] and epoch.skipped.rows == 1


KEEP = [False, True, False, True]


@pytest.mark.parametrize("answers", [
    KEEP,
    tuple(KEEP),
    [np.bool_(keep) for keep in KEEP],
    np.array(KEEP),
    np.array(KEEP, object),
    np.ma.array(KEEP),
    pa.array(KEEP),
    pa.chunked_array([KEEP[:1], KEEP[1:]]),
], ids=["list", "tuple", "numpy booleans", "array", "objects", "masked", "arrow", "chunks"])  # fmt: skip
def test_a_batched_filter_answers_with_a_boolean_per_row(answers):
    assert Pool(lambda batch: answers, "filter", batched=True)(TABLE)[1] == [1, 3]


@pytest.mark.parametrize("answers,words", [
    (None, r"returned None \(NoneType\), not one boolean per row; return a boolean array, or a list"),
    (True, r"returned True \(bool\), not one boolean per row"),
    (np.True_, r"returned .*\(bool_?\), not one boolean per row"),
    ("true", r"returned 'true' \(str\), not one boolean per row"),
    ({"a": 1, "b": 2, "c": 3, "d": 4}, r"\(dict\), not one boolean per row"),
    (range(4), r"\(range\), not one boolean per row"),
    (np.arange(4), r"an array of int64\[4\], not one boolean per row"),
    (np.ones((4, 1), bool), r"an array of bool\[4, 1\], not one boolean per row"),
    (pa.array([1, 2, 3, 4]), r"\(Int64Array\), not one boolean per row"),
    ([1, 0, 1, 1], r"row 0: .*returned 1 \(int\), not a boolean; return True or False, or wrap it in bool"),
    ([True, True, None, True], r"row 2: .*returned None \(NoneType\), not a boolean; return True or False"),
    (pa.array([True, None, True, True]), r"row 1: .*returned None \(NoneType\), not a boolean"),
    (np.ma.array(KEEP, mask=[0, 0, 0, 1]), r"row 3: .*returned a null \(a masked value\), not a boolean; .*filled\(False\)"),
    ([True] * 3, r"returned 3 answers for a batch of 4 rows; return one boolean per row"),
    (np.ones(5, bool), r"returned 5 answers for a batch of 4 rows; return one boolean per row"),
], ids=lambda value: str(value)[:20])  # fmt: skip
def test_a_batched_filter_that_does_not_answer_is_reported(answers, words):
    with pytest.raises(cj.InvalidPipeline) as e:
        Pool(lambda batch: answers, "filter", batched=True)(TABLE)
    assert re.search(words, str(e.value), re.S), str(e.value)


# ---- exceptions ------------------------------------------------------------------------------------------------


def raising(error, x=3):
    def f(row):
        if row["x"] == x:
            raise error
        return {"y": row["x"]}

    return f


ENDS = [SystemExit(3), KeyboardInterrupt(), GeneratorExit("g"), StopIteration(7)]


@pytest.mark.parametrize("error", ENDS, ids=repr)
def test_exceptions_that_end_processes_are_errors_of_their_row(error):
    name = type(error).__name__
    f = raising(error)
    for pool in (Pool(f), Pool(f, "filter"), Pool(lambda row: [f(row)], "flat_map")):
        with pytest.raises(cj.InvalidPipeline, match=rf"row 0: (.|\n)*raised {name}(.|\n)*in f\b"):
            pool(pa.table({"x": [3]}))
        assert pool.inner.processes == 1, "its process lives on"
    with pytest.raises(cj.InvalidPipeline, match=rf"row 2: (.|\n)*raised {name}"):
        Pool(f)(TABLE)
    with pytest.raises(cj.InvalidPipeline, match=rf"raised {name}"):
        Pool(lambda batch: f({"x": 3}), batched=True)(TABLE)


@pytest.mark.parametrize("error", ENDS, ids=repr)
def test_exceptions_that_end_generators_lose_no_row(error):
    def f(row):
        yield {"y": row["x"]}
        if row["x"] == 3:
            raise error

    name = "generator raised StopIteration" if isinstance(error, StopIteration) else f"raised {type(error).__name__}"
    with pytest.raises(cj.InvalidPipeline, match=rf"row 2: (.|\n)*{name}"):
        Pool(f, "flat_map")(TABLE)


def test_a_stop_iteration_within_a_returned_iterator_loses_no_row():
    def g(x):
        if x == 2:
            raise StopIteration
        return {"y": x}

    with pytest.raises(cj.InvalidPipeline, match=r"row 3: (.|\n)*returned iterator raised StopIteration: line \d+ in g"):
        Pool(lambda row: map(g, range(int(row["x"]) - 1)), "flat_map")(TABLE)

    class Two:
        def __init__(self):
            self.left = 2

        def __iter__(self):
            return self

        def __next__(self):
            if self.left == 0:
                raise StopIteration
            self.left -= 1
            return {"y": self.left}

    assert Pool(lambda row: Two(), "flat_map")(TABLE)[0]["y"].to_pylist() == [1, 0] * 4
    assert len(Pool(lambda row: map(dict, Two()), "flat_map")(TABLE)[0]) == 8

    class Named(Two):
        def next(self):
            return Two.__next__(self)

        __next__ = next

    assert len(Pool(lambda row: Named(), "flat_map")(TABLE)[0]) == 8
    # A function of the returned iterator that uses up another one loses the rows behind.
    with pytest.raises(cj.InvalidPipeline, match=r"returned iterator raised StopIteration: line \d+ in __next__"):
        Pool(lambda row: map(lambda two: next(two) and next(two) and next(two), [Two()] * 3), "flat_map")(TABLE)


@pytest.mark.parametrize("error", [SystemExit(0), GeneratorExit(), StopIteration()], ids=repr)
def test_in_the_trial_they_are_errors_too(error):
    def f(row):
        raise error

    with pytest.raises(cj.InvalidPipeline, match=f"f` raised {type(error).__name__}"):
        cj.range(5).map(f)


def test_an_import_that_ends_the_interpreter_is_reported():
    class Ends:
        def __reduce__(self):
            return (sys.exit, (4,))

    ends = Ends()
    with pytest.raises(cj.InvalidPipeline, match="unpickled(.|\n)*SystemExit: 4"):
        Pool(lambda row: {"y": ends})(TABLE)


def test_ctrl_c_does_not_reach_a_function():
    def interrupted(row):
        os.kill(os.getpid(), signal.SIGINT)
        return {"y": row["x"], "pid": os.getpid()}

    out = Pool(interrupted)(TABLE)[0]
    assert out["y"].to_pylist() == [1, 2, 3, 4] and len(set(out["pid"].to_pylist())) == 1


def test_an_exception_with_a_surrogate_is_an_exception():
    with pytest.raises(cj.InvalidPipeline, match=r"row 2: (.|\n)*ValueError: a.*ud800"):
        Pool(raising(ValueError("a\ud800")))(TABLE)


# ---- values ----------------------------------------------------------------------------------------------------


BAD = "a\ud800b"


@pytest.mark.parametrize("value", [
    lambda text: text,
    lambda text: ["x", text],
    lambda text: {"n": text},
    lambda text: np.array([["x"], [text]]),
], ids=["text", "list", "struct", "array"])  # fmt: skip
def test_text_with_a_surrogate_is_an_error_of_its_row(value):
    words = r"row 2: .*column `\w+`: 'a.{1,3}ud800b' has a surrogate at 1, which is not valid text; return bytes, or replace it"
    with pytest.raises(cj.InvalidPipeline, match=words):
        Pool(lambda row: {"s": value(BAD if row["x"] == 3 else "é")})(TABLE)


def test_text_with_a_surrogate_in_a_batch_and_of_several_rows_per_row():
    with pytest.raises(cj.InvalidPipeline, match="row 1: .*has a surrogate"):
        Pool(lambda batch: {"s": ["a", BAD, "b", "c"]}, batched=True)(TABLE)
    with pytest.raises(cj.InvalidPipeline, match="row 2: .*has a surrogate"):
        Pool(lambda row: [{"s": "a"}] * 5 + [{"s": BAD if row["x"] == 3 else ""}], "flat_map")(TABLE)
    with pytest.raises(cj.InvalidPipeline, match="a column named .*ud800b', which is not valid text"):
        Pool(lambda row: {BAD: 1})(TABLE)
    with pytest.raises(cj.InvalidPipeline, match="returned for row 0 column `s`: .*has a surrogate"):
        cj.range(3).map(lambda row: {"s": BAD})


def test_values_of_several_shapes_name_the_first_row_that_differs():
    def f(row):
        return {"y": np.zeros((3, 3) if row["x"] == 3 else (2, 2))}

    with pytest.raises(cj.InvalidPipeline, match="row 2: .*values of several shapes"):
        Pool(f)(TABLE)


def test_a_row_that_becomes_too_much_is_reported_before_memory_ends():
    piece = b"x" * (8 << 20)                              # one object: the rows themselves take no memory

    def endless(row):
        while row["x"] == 2:
            yield {"s": piece}
        yield {"s": b""}

    with pytest.raises(cj.InvalidPipeline, match=r"row 1: .*column `s`: over 2147483647 bytes \(2 GiB\) of .* for one row"):
        Pool(endless, "flat_map")(TABLE)
    assert len(Pool(lambda row: ({"y": i} for i in range(1000)), "flat_map")(TABLE)[0]) == 4000


def test_a_column_that_takes_too_much_names_the_row_and_the_limit(monkeypatch):
    monkeypatch.setattr(_column, "MAX_TEXT_BYTES", 10)       # the true one takes gigabytes
    for values, row in [([b"x" * 4] * 4, 2), (["é" * 3, None, "é" * 3], 2), ([["x" * 6], ["a", "x" * 6]], 1)]:
        with pytest.raises(_column.BadRow, match=r"column `s`: over 10 bytes .* in the rows up to this one") as e:
            _column._check_text(_columns.of_values("s", values))
        assert e.value.row == row


@pytest.mark.parametrize("kind", ["M8", "m8"])
def test_times_that_a_finer_unit_does_not_hold_are_errors(kind):
    day = np.array([200_000], f"{kind}[D]")
    answers = [day, np.array([1], f"{kind}[ns]")]
    with pytest.raises(cj.InvalidPipeline, match="which does not hold it; give all rows one unit"):
        list(cj.range(2).map(lambda row: {"x": answers[row["id"]]}))
    finer = [np.array([2], f"{kind}[D]"), np.array(["NaT"], f"{kind}[ms]")]
    assert len(list(cj.range(2).map(lambda row: {"x": finer[row["id"]]}))) == 2
