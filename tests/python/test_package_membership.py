"""Workers of this process, jobs, identifiers and readers, by their ids in docs/conformance.md."""

import json
import os
import pathlib
import resource
import subprocess
import sys
import threading
import time

import pytest

import caju as cj

PATIENCE_S = 60


def wait_until(true, why):
    until = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < until, why
        threading.Event().wait(0.02)


def values(dataset, name="id"):
    return [int(row[name]) for row in dataset]


# ---- local workers -------------------------------------------------------------------------------------------------


def test_loc_01_and_loc_05_local_workers_in_python(cluster):
    servers = cluster(workers=3)
    address = servers.dispatcher.address
    for target in ("local", "LOCAL"):
        alone = cj.range(10).distribute(address, processing_mode="off", target_workers=target)
        with pytest.raises(cj.InvalidPipeline, match="no local worker is found"):
            iter(alone)
    with cj.start_worker(address, local_only=True, cpu_threads=1) as worker:
        assert worker.address.startswith("memory://")
        for target in ("local", "LOCAL"):
            assert values(cj.range(10).distribute(address, processing_mode="off", target_workers=target)) == list(range(10))
        for target in (None, "auto", "any"):
            off = cj.range(10).distribute(address, processing_mode="off", target_workers=target)
            assert sorted(values(off)) == sorted(list(range(10)) * 4)
        assert sorted(values(cj.range(10_000).distribute(address, target_workers="local"))) == list(range(10_000))
    with pytest.raises(cj.InvalidPipeline, match="no local worker is found"):
        iter(cj.range(10).distribute(address, target_workers="local"))
    for wrong, why in [("locale", "is not one of auto, any, local"), (1, "is not one of")]:
        with pytest.raises(cj.InvalidPipeline, match=why):
            cj.range(10).distribute(address, target_workers=wrong)
    with pytest.raises(cj.InvalidPipeline, match="local_only=True opens no port"):
        cj.start_worker(address, listen="127.0.0.1:7", local_only=True)
