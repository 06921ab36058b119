"""Programs of tests with PyTorch that are processes of their own: the ranks of a group, and the examples."""

import faulthandler
import pathlib
import re
import subprocess

import pytest

PATIENCE_S = 120
"""No test waits longer for processes. Each needs seconds, most of them to import PyTorch."""

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"


def wait_for(processes):
    """Waits until processes have ended well; whatever is left at the deadline is killed."""
    try:
        assert [p.wait(timeout=PATIENCE_S) for p in processes] == [0] * len(processes)
    finally:
        for process in processes:
            process.kill()


@pytest.fixture(autouse=True)
def deadline():
    """Whatever hangs ends the run with the stacks of all threads."""
    faulthandler.dump_traceback_later(2 * PATIENCE_S, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


def shares(cluster, count, command):
    """What the ranks of an example printed: their numbers of steps and last losses."""
    service = f"caju://{cluster(workers=2).dispatcher.address}"
    arguments = ["--service", service, "--count", "5000", "--epochs", "2"]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    said = re.findall(r"rank (\d) of (\d): (\d+) steps, losses \[(.*?), (.*?)\]", done.stdout)
    assert sorted(int(rank) for rank, *_ in said) == list(range(count)), done.stdout
    assert {int(world) for _, world, *_ in said} == {count}
    # 157 batches in each of two epochs; what fills no step of all ranks is dropped.
    assert {int(steps) for _, _, steps, *_ in said} == {2 * (157 // count)}, done.stdout
    assert all(float(last) < 0.1 for *_, last in said), done.stdout
