"""The number of workers that a dispatcher of this process asks for."""

import contextlib
import threading
import time

import pytest

import caju as cj

PATIENCE_S = 90


def test_a_dispatcher_of_this_process_has_a_target():
    settings = {"min_workers": 1, "max_workers": 3, "scaling_interval": 2.0, "scale_down_after": 2.0}
    with cj.start_dispatcher(**settings) as dispatcher, cj.start_worker(dispatcher):
        assert dispatcher.target.workers in (0, 1), "not computed yet, or the fewest"
        slow = cj.from_yaml("source: { range: 1000000 }\nsteps: [ { sleep: { per_row: 5ms } }, { batch: 10 } ]")
        stream = iter(slow.distribute(dispatcher, job_name="waits"))
        until = time.monotonic() + PATIENCE_S
        while dispatcher.target.workers != 3:
            next(stream)
            assert time.monotonic() < until, dispatcher.target
        assert "`waits`" in dispatcher.target.reason
        stream.close()
        while dispatcher.target.workers != 1:
            threading.Event().wait(0.1)
            assert time.monotonic() < until, dispatcher.target


def test_rows_that_come_from_the_cache_need_fewer_workers_in_the_same_epoch(tmp_path):
    """The second repetition reads what the first one has stored. The target falls before the epoch ends."""
    rows = 12_000
    text = f"source: {{ range: {rows} }}\nsteps: [ {{ sleep: {{ per_row: 2ms }} }}, {{ autocache: h }}, {{ repeat: {{}} }}, {{ batch: 10 }} ]"
    settings = {"cache": tmp_path, "scaling_interval": 1.0, "scale_down_after": 2.0}
    with cj.start_dispatcher(**settings) as dispatcher, contextlib.ExitStack() as workers:
        for _ in range(3):
            workers.enter_context(cj.start_worker(dispatcher))
        stream = iter(cj.from_yaml(text).distribute(dispatcher, job_name="train", policy="hint:h"))
        began, taken, most = time.monotonic(), 0, 0
        while taken < rows or dispatcher.target.workers > 1:
            taken += len(next(stream)["id"])
            most = max(most, dispatcher.target.workers)
            # A reader that takes 1,000 rows per second needs two workers that compute 500 each.
            threading.Event().wait(max(0.0, began + taken / 1000 - time.monotonic()))
            assert time.monotonic() - began < PATIENCE_S, dispatcher.target
        assert most >= 2 and "`train`" in dispatcher.target.reason, dispatcher.target
        stream.close()


@pytest.mark.parametrize("arguments, part", [
    ({"min_workers": 3, "max_workers": 2}, "min_workers=3"),
    ({"max_workers": 0}, "max_workers"),
    ({"scaling_interval": -1}, "scaling_interval=-1"),
    ({"scale_down_after": "1s"}, "scale_down_after='1s'"),
])
def test_mistakes_in_the_limits_of_the_target(arguments, part):
    with pytest.raises(cj.InvalidPipeline, match=part):
        cj.start_dispatcher(**arguments)
