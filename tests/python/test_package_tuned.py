"""The numbers that workers tune, given by hand in Python: the status of the worker says what it computes with."""

import contextlib
import json
import time

import pytest

import caju as cj
from caju import _cluster

PATIENCE_S = 60

# Each argument, a value, the setting that the status names, and its values with and without the argument.
NUMBERS = {
    "split_readers": (1, "readers", lambda n: n == 1, lambda n: n >= 2),
    "buffer": ("256KiB", "buffer_bytes", lambda n: n == 256 << 10, lambda n: n >= 64 << 20),
    "buffer_memory": ("128KiB", "buffer_bytes", lambda n: 0 < n <= 128 << 10, lambda n: n >= 64 << 20),
}


@contextlib.contextmanager
def local_cluster(**numbers):
    with cj.LocalCluster(cpu_threads=1, listen="127.0.0.1:0", **numbers) as cluster:
        yield cluster.address, {}


@contextlib.contextmanager
def worker(**numbers):
    with cj.start_dispatcher() as server, cj.start_worker(server, cpu_threads=1, **numbers):
        yield server.address, {}


@contextlib.contextmanager
def configured(**numbers):
    cj.configure(cpu_threads=1, **numbers)
    try:
        yield
    finally:
        _cluster._settings.clear()
        _cluster._shared = None


@contextlib.contextmanager
def local_worker(**numbers):
    with configured(**numbers), cj.start_dispatcher() as server:
        yield server.address, {"local_workers": 1}


def shown(caju, address, setting):
    """A setting of the only worker, once its tuning is shown."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        [known] = json.loads(caju("status", "--dispatcher", address, "--format", "json").stdout)["workers"]
        found = [s["value"] for s in known["tuning"] if s["setting"] == setting and s["value"] > 0]
        if found:
            return found[0]
        time.sleep(0.1)
    raise AssertionError(f"the worker does not say {setting}")


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("place", [local_cluster, worker, local_worker], ids=lambda place: place.__name__)
def test_a_number_given_by_hand_is_the_workers(place, name, caju):
    value, setting, given, by_default = NUMBERS[name]
    for numbers, expected in (({name: value}, given), ({}, by_default)):
        with place(**numbers) as (address, options):
            rows = iter(cj.range(50_000_000).batch(1000).distribute(address, **options))
            next(rows)
            number = shown(caju, address, setting)
            assert expected(number), f"{number} with {numbers}"
            rows.close()


def test_the_cluster_of_the_process_gets_the_configured_numbers(monkeypatch):
    started = []
    cluster = _cluster.LocalCluster
    monkeypatch.setattr(_cluster, "LocalCluster", lambda **settings: started.append(settings) or cluster(**settings))
    with configured(split_readers=2, buffer="1MiB", buffer_memory=2 << 20):
        cj.configure(workers=1)                               # what is not given stays
        assert len(list(cj.range(10))) == 10
    [settings] = started
    numbers = {"split_readers": 2, "buffer": 1 << 20, "buffer_memory": 2 << 20}
    assert {name: settings[name] for name in numbers} == numbers


@pytest.mark.parametrize("call,words", [
    (lambda: cj.configure(split_readers=0), "split_readers=0 must be a whole number from 1"),
    (lambda: cj.configure(split_readers="auto"), "split_readers='auto' must be"),
    (lambda: cj.LocalCluster(buffer="much"), "buffer='much'"),
    (lambda: cj.LocalCluster(buffer=0), "buffer=0 must be a number of bytes"),
    (lambda: cj.start_worker("h:1", buffer_memory=1.5), "buffer_memory=1.5 must be a number of bytes"),
])  # fmt: skip
def test_numbers_that_cannot_be_are_named(call, words):
    with pytest.raises(cj.InvalidPipeline, match=words):
        call()
