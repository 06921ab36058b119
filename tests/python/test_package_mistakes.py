"""What is refused, when, and how it is said: nothing is lost without a word."""

import random
import subprocess
import sys
import warnings

import numpy as np
import pytest

import caju as cj

# ---- errors of an epoch --------------------------------------------------------------------------------------------


def fails_at_five(row):
    if row["id"] == 5:
        raise ValueError("five")
    return row


def test_an_epoch_that_failed_fails_again():
    epoch = iter(cj.range(10).map(fails_at_five))
    with pytest.raises(cj.InvalidPipeline, match="five") as first:
        list(epoch)
    for _ in range(3):
        with pytest.raises(cj.InvalidPipeline, match="five") as again:
            next(epoch)
        assert again.value.__cause__ is first.value and str(again.value) == str(first.value)


def test_the_worker_that_failed_is_named_unless_it_is_in_this_process(cluster):
    bad = cj.range(10).with_columns(x="10 / (id - 5)")
    with pytest.raises(cj.CajuError, match=r"at the worker 127\.0\.0\.1:\d+"):
        list(bad.distribute(cluster(workers=2).dispatcher.address))
    with pytest.raises(cj.CajuError) as here:
        list(bad)
    assert "at the worker" not in str(here.value)


# ---- mistakes over known columns -----------------------------------------------------------------------------------


@pytest.mark.parametrize("source", [
    lambda: cj.range(3),
    lambda: cj.from_numpy({"id": np.arange(3)}),
    lambda: cj.concatenate(cj.range(3), cj.range(5)),
    lambda: cj.zip(cj.range(3), cj.range(3).map(x="id")),
])
def test_mistakes_over_known_columns_are_reported_where_they_are_made(source):
    rows = source()
    with pytest.raises(cj.InvalidPipeline, match="`idd`.*did you mean `id`"):
        rows.map(x="idd + 1")
    with pytest.raises(cj.InvalidPipeline, match="`idx`"):
        rows.select("idx")
    with pytest.raises(cj.InvalidPipeline, match="must be boolean"):
        rows.filter("id")


def test_the_columns_of_files_are_looked_for_at_their_first_use(tmp_path):
    rows = cj.read_csv(tmp_path / "later.csv").map(x="idd + 1")
    (tmp_path / "later.csv").write_text("id\n1\n")
    with pytest.raises(cj.InvalidPipeline, match="`idd`"):
        iter(rows)


def test_an_encoding_is_checked_where_it_is_given(tmp_path):
    for give in (lambda: cj.range(3).distribute("caju://127.0.0.1:1", encoding="arow/none"),
                 lambda: cj.range(3).save(tmp_path / "s", encoding="arow/none")):
        with pytest.raises(cj.InvalidPipeline, match="arow"):
            give()


def test_a_dataset_is_distributed_once():
    once = cj.range(3).distribute("caju://127.0.0.1:1", job_name="a")
    with pytest.raises(cj.InvalidPipeline, match="distributed already, to caju://127.0.0.1:1"):
        once.distribute("caju://127.0.0.1:2")


@pytest.mark.parametrize("weight", [float("nan"), float("inf"), 0, -1, "1"])
def test_weights_are_positive_numbers(weight):
    with pytest.raises(cj.InvalidPipeline, match=r"weights\[1\]="):
        cj.sample_from_datasets([cj.range(3), cj.range(3)], [1, weight])


def test_a_number_that_is_none_is_named_by_its_place():
    with pytest.raises(cj.InvalidPipeline, match=r"steps\[1\].inflate.factor: nan"):
        cj.range(3).map(x="id").inflate("x", float("nan"))


def test_progress_says_what_it_needs(monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    with pytest.raises(cj.FailedPrecondition, match="pip install tqdm"):
        cj.range(3).progress()


def test_a_path_is_given_once(tmp_path):
    file = tmp_path / "a.csv"
    file.write_text("id\n1\n")
    with pytest.raises(cj.InvalidPipeline, match="given twice"):
        cj.read_csv([file, file])
    with pytest.raises(cj.InvalidPipeline, match="a.csv.*two paths"):
        list(cj.read_csv([file, tmp_path / "*.csv"]))
    assert len(list(cj.concatenate(cj.read_csv(file), cj.read_csv(file)))) == 2


def test_uris_of_paths_are_found(tmp_path):
    file = tmp_path / "a b%20c[1].csv"
    file.write_text("id\n7\n")
    for name in (file, file.as_uri()):
        assert [int(r["id"]) for r in cj.read_csv(name)] == [7]


# ---- functions that draw -------------------------------------------------------------------------------------------

KEPT = np.random.default_rng(1)


def helper():
    return random.gauss(0, 1)


def shared(row):
    return {"x": np.random.rand()}


def through_a_helper(row):
    return {"x": helper()}


def unseeded(row):
    return {"x": np.random.default_rng().normal()}


def kept(row):
    return {"x": KEPT.normal()}


def imported_within(row):
    from random import random as draw

    return {"x": draw()}


def seeded_by_the_row(row):
    return {"x": np.random.default_rng(int(row["id"])).normal() + random.Random(3).random()}


def cajus_own(row):
    return {"x": cj.rng().normal()}


@pytest.mark.parametrize(("function", "source"), [
    (shared, "numpy.random.rand"), (through_a_helper, "random.gauss"), (unseeded, "numpy.random.default_rng"),
    (kept, "numpy.random.Generator"), (imported_within, "random.random"),
])
def test_draws_that_cannot_be_drawn_again_are_warned_of_and_not_frozen(function, source):
    from caju._functions import _warned

    _warned.clear()
    with pytest.warns(UserWarning, match=f"{function.__name__}.*{source}.*random=True"):
        rows = cj.range(4).map(function, schema={"x": "float64"})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cj.range(4).map(function, schema={"x": "float64"})         # once
        cj.range(4).map(function, schema={"x": "float64"}, random=True).cache()
        cj.range(4).map(function, schema={"x": "float64"}, random=False).cache()
        cj.range(4).cache().map(function, schema={"x": "float64"})
    for hint in (rows.cache, rows.autocache, cj.concatenate(rows, cj.range(3).map(x="CAST(id AS DOUBLE)")).autocache):
        with pytest.raises(cj.InvalidPipeline, match=f"one draw of function `{function.__name__}`"):
            hint()
    epoch = iter(rows.with_options(deterministic=True))
    next(epoch)
    with pytest.raises(cj.Unimplemented, match=source):
        epoch.state_dict()


def test_a_definition_says_that_its_draws_cannot_be_drawn_again():
    """Where the definition is registered or written to a file, nobody sees the function's code."""
    rows = cj.range(40).map(shared, schema={"x": "float64"})
    accepted = cj.range(40).map(shared, schema={"x": "float64"}, random=True)
    with pytest.raises(cj.InvalidPipeline, match="one draw of function `shared`"):
        cj.from_yaml(rows.to_yaml()).autocache()
    with cj.LocalCluster(workers=1) as cluster:
        epoch = iter(cj.from_dataset_id(cluster, rows.register(cluster)))
        next(epoch)
        with pytest.raises(cj.Unimplemented, match="after 1 elements of epoch 0.*`shared` draws from numpy.random.rand"):
            epoch.state_dict()
        assert rows.fingerprint == accepted.fingerprint
        other = iter(accepted.distribute(cluster, job_name="accepted"))
        next(other)
        with pytest.raises(cj.Unimplemented, match="the state is 1 elements into epoch 0.*`shared` draws from numpy.random.rand"):
            iter(rows.distribute(cluster, job_name="rows")).load_state_dict(other.state_dict())
        registered = lambda: cj.from_dataset_id(cluster, rows.register(cluster), job_name="registered")
        with pytest.raises(cj.Unimplemented, match="the state is 1 elements into epoch 0.*`shared` draws from numpy.random.rand"):
            iter(registered()).load_state_dict(other.state_dict())
        # The dispatcher knows the definition, so the epoch was opened behind the state: the next reader gets what is left.
        assert len(list(registered())) == 39
        # At its end it is exact.
        list(epoch)
        assert epoch.state_dict()["exhausted"]


@pytest.mark.parametrize("function", [seeded_by_the_row, cajus_own])
def test_draws_that_can_be_drawn_again_are_fine(function):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rows = cj.range(4).map(function, schema={"x": "float64"}).cache().with_options(deterministic=True)
    epoch = iter(rows)
    next(epoch)
    assert epoch.state_dict()["elements"] == 1


def test_a_pool_whose_pipe_is_gone_says_nothing(tmp_path):
    mark = tmp_path / "mark"
    mark.write_bytes(b"\xff" * 8)
    process = subprocess.Popen([sys.executable, "-m", "caju._pool", str(mark)], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout.readline() == b'{"ready": true, "gives_back": true, "reads_files": true}\n'
    process.stdout.close()
    process.stdin.write(b'{"define": 0, "name": "f", "kind": "map", "batched": false, "payload": 0}\n{"call": 0}\n')
    process.stdin.close()
    errors = process.stderr.read()
    assert process.wait(60) == 0 and errors == b"", errors


# ---- arguments of another kind --------------------------------------------------------------------------------------

AWAY = cj.range(3).distribute("h:1")
REGISTERED = cj.from_dataset_id("h:1", "x")


@pytest.mark.parametrize(("mistake", "says"), [
    (lambda: cj.read_parquet(""), "the path is empty"),
    (lambda: cj.read_csv([" "]), "the path is empty"),
    (lambda: cj.load(""), "the path is empty"),
    (lambda: cj.range(3).save(""), "the path is empty"),
    (lambda: cj.LocalCluster(cache=""), "the path is empty"),
    (lambda: cj.concatenate([cj.range(3), cj.range(4)]), "arguments of their own"),
    (lambda: cj.zip((cj.range(3),)), "arguments of their own"),
    (lambda: cj.range(3).concatenate(range(3)), "is not a caju.Dataset"),
    (lambda: cj.concatenate(cj.range(3), AWAY), "distributed, to h:1.*distribute on the combined"),
    (lambda: AWAY.concatenate(cj.range(3)), "distributed, to h:1.*distribute on the combined"),
    (lambda: cj.zip(AWAY, cj.range(3)), "distributed, to h:1.*distribute on the combined"),
    (lambda: cj.sample_from_datasets([cj.range(3), AWAY]), "distributed, to h:1.*distribute on the combined"),
    (lambda: cj.concatenate(REGISTERED, cj.range(3)), "registered dataset `x` cannot be combined.*to_yaml"),
    (lambda: REGISTERED.with_options(seed=7), r"registered dataset `x` cannot be given other options.*from_dataset_id\(..., seed=7\)"),
    (lambda: REGISTERED.with_options(), "registered dataset `x` cannot be given other options"),
    (lambda: REGISTERED.batch(2), "registered dataset `x` cannot be given further stages.*to_yaml"),
    (lambda: iter(cj.range(3)).load_state_dict(None), "None is not a state"),
    (lambda: iter(cj.range(3)).load_state_dict(3), "3 is not a state"),
    (lambda: iter(cj.range(3)).load_state_dict("state"), "'state' is not a state"),
])
def test_an_argument_of_another_kind_is_refused_in_words(mistake, says):
    with pytest.raises(cj.InvalidPipeline, match=says):
        mistake()
