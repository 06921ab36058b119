"""Saves and loads from Python, by their ids in docs/conformance.md where they have one."""

import gc

import numpy as np
import pytest

import caju as cj
from caju import _save


def ids(dataset):
    return [row["id"] for row in dataset]


def test_what_is_saved_is_loaded(tmp_path):
    ds = cj.range(3000).map(id="id", x="id * 0.5").shuffle(100).batch(64)
    handle = ds.save(tmp_path / "s")
    assert handle.done()
    assert handle.progress.state == "finished"
    assert (handle.progress.rows, handle.progress.splits_total) == (3000, handle.progress.splits_done)
    loaded = cj.load(tmp_path / "s")
    assert dict(loaded.schema) == {"id": "int64", "x": "double"} or list(dict(loaded.schema)) == ["id", "x"]
    x = np.concatenate([b["x"] for b in loaded.batch(100)])
    assert np.array_equal(np.sort(x), np.arange(3000) * 0.5)


def test_sav_01_one_worker_keeps_the_order(tmp_path):
    cj.range(5000).save(tmp_path / "s")
    assert ids(cj.load(tmp_path / "s").with_options(deterministic=True)) == list(range(5000))


def test_sav_17_chunks_in_a_new_order_each_time(tmp_path):
    with cj.LocalCluster(workers=5) as cluster:
        cj.range(20).distribute(cluster).save(tmp_path / "s", chunk_bytes=8)
        assert cj.range(20).save(tmp_path / "s", cluster, chunk_bytes=8).progress.chunks == 20
    loaded = cj.load(tmp_path / "s").shuffle(1)
    epochs = [ids(loaded) for _ in range(10)]
    assert all(sorted(e) == list(range(20)) for e in epochs)
    assert all(a != b for a, b in zip(epochs, epochs[1:]))


def test_sav_18_the_number_of_chunks_is_unknown_until_the_end(tmp_path):
    with cj.LocalCluster(workers=0) as cluster:
        handle = cj.range(3000).save(tmp_path / "s", cluster, wait=False, chunk_bytes=800)
        assert not handle.done()
        assert handle.progress.chunks is None
        with pytest.raises(cj.DeadlineExceeded, match="goes on"):
            handle.wait(0.2)
        with pytest.raises(cj.NotFound, match="still being written"):
            next(iter(cj.load(tmp_path / "s", wait=False)))
        cluster.add_worker()
        assert handle.wait(60).chunks == 32


def test_sav_09_and_sav_12_errors_are_the_packages_own(tmp_path):
    with pytest.raises(cj.NotFound, match="no save at"):
        next(iter(cj.load(tmp_path / "none")))
    with pytest.raises(cj.InvalidPipeline, match="infinite dataset"):
        cj.range(3).repeat().save(tmp_path / "s")
    with pytest.raises(cj.InvalidPipeline, match="chunk_bytes"):
        cj.range(3).save(tmp_path / "s", chunk_bytes=0)
    cj.range(10).save(tmp_path / "s")
    with pytest.raises(cj.AlreadyExists, match="another save"):
        cj.range(10).filter("id > 3").save(tmp_path / "s")


def test_a_save_that_fails_says_why(tmp_path):
    bad = cj.range(10).map(x="1 / (id - 5)")
    with pytest.raises(cj.CajuError, match="[dD]ivi"):
        bad.save(tmp_path / "s")
    with pytest.raises(cj.FailedPrecondition, match="failed"):
        next(iter(cj.load(tmp_path / "s")))


def test_a_save_reports_the_rows_that_it_skipped(tmp_path):
    handle = cj.range(10).map(x="1 / (id - 5)").with_options(on_error="skip").save(tmp_path / "s")
    assert (handle.progress.rows, handle.progress.rows_skipped) == (9, 1)


def test_saves_of_one_pipeline_have_the_same_draws(tmp_path):
    def draws(rows):
        return {int(row["id"]): float(row["r"]) for row in rows}

    def saved(name, rows):
        rows.save(tmp_path / name)
        return draws(cj.load(tmp_path / name))

    plain = cj.range(3000).with_columns(r="uniform()")
    first_epoch = draws(plain)
    assert saved("plain", plain) == first_epoch != draws(plain)
    # The shuffle above counts for the draws of an epoch. It is left out of the save, and does not count there.
    shuffled = cj.range(3000).shuffle(100).with_columns(r="uniform()")
    assert saved("one", shuffled) == saved("two", shuffled) == first_epoch != draws(shuffled)


def test_a_save_in_this_process_needs_no_reference_to_it(tmp_path):
    gc.collect()                                              # a cluster that other tests have left would run it, too
    slow = cj.from_yaml("source: { range: 400 }\nsteps: [ { sleep: { per_row: 1ms } } ]")
    slow.save(tmp_path / "s", wait=False, chunk_bytes=80)
    del slow
    gc.collect()
    assert sorted(ids(cj.load(tmp_path / "s"))) == list(range(400))
    [running] = [one for one in _save._in_progress if str(tmp_path) in one.url]
    running.wait(60)
    assert running not in _save._in_progress, "it does not keep the cluster longer"


def test_a_load_of_very_many_repetitions_begins_at_once(tmp_path):
    cj.range(4).repeat(10**12).save(tmp_path / "many")
    epoch = iter(cj.load(tmp_path / "many"))
    ids = [int(next(epoch)["id"]) for _ in range(1000)]
    epoch.close()
    assert {i: ids.count(i) for i in range(4)} == dict.fromkeys(range(4), 250)
