"""Datasets for PyTorch in several ranks: who reads which rows, how many, and from which epoch. Left out where torch is not installed."""

import json
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader  # noqa: E402
from torch_ranks import EXAMPLES, PATIENCE_S, deadline  # noqa: E402, F401

import caju as cj  # noqa: E402


def ids(batches):
    return sorted(int(i) for b in batches for i in b["id"])


@pytest.fixture
def process_group(monkeypatch):
    """Initialises a stand-in for a process group, in which this process has a rank."""

    def begin(rank, world_size):
        answers = {"is_initialized": True, "get_rank": rank, "get_world_size": world_size}
        for name, answer in answers.items():
            monkeypatch.setattr(torch.distributed, name, lambda *_, answer=answer: answer)

    return begin


def test_a_dataset_that_is_older_than_the_process_group_is_refused_too(process_group):
    rows = cj.range(10).batch(2)
    with cj.LocalCluster() as cluster:
        alone, unnamed = rows.torch(), rows.distribute(cluster).torch()
        own, shared = rows.torch(world_size=1), rows.distribute(cluster, job_name="shared").torch()
        process_group(1, 2)
        for data in (alone, unnamed):
            for _ in range(2):
                with pytest.raises(cj.InvalidPipeline, match="rank 1 of 2: every rank would read all rows.*world_size=1"):
                    iter(data)
        assert ids(own) == ids(shared) == list(range(10))
        assert list(shared.state_dict()) == ["epoch", "rank-1"]
        assert shared.__getstate__()["_world_size"] == alone.__getstate__()["_world_size"] == 2, "for worker processes"
        process_group(0, 1)
        assert ids(alone) == ids(unnamed) == list(range(10)), "the epoch had not begun"


def test_ranks_that_share_a_job_as_rows_come_have_no_length(process_group):
    rows = cj.range(50).batch(10)
    shared = rows.distribute("h:1", job_name="j").torch()
    assert len(shared) == 5
    process_group(0, 2)
    with pytest.raises(TypeError, match="whichever of the 2 readers is ready"):
        len(shared)
    with pytest.raises(TypeError, match="of the 3 readers"):
        len(rows.distribute("h:1", job_name="j").torch(rank=2, world_size=3))
    assert len(rows.distribute("h:1", job_name="j").torch(world_size=1)) == 5
    assert [len(rows.distribute("h:1", job_name="j", uneven=uneven).torch()) for uneven in ("drop", "pad")] == [2, 3]


def shuffled():
    return cj.range(50).shuffle(50).batch(10).with_options(deterministic=True).torch()


def rows_of(batches):
    return [b["id"].tolist() for b in batches]


def test_a_state_after_set_epoch_is_the_beginning_of_that_epoch():
    whole = shuffled()
    epochs = [rows_of(whole) for _ in range(4)]
    placed = shuffled()
    for number in (3, 1):
        placed.set_epoch(number)
        state = json.loads(json.dumps(placed.state_dict()))
        resumed = shuffled()
        resumed.load_state_dict(state)
        assert rows_of(resumed) == epochs[number] == rows_of(placed)
    stream = iter(placed)
    taken = rows_of([next(stream)])
    resumed.load_state_dict(placed.state_dict())
    assert taken + rows_of(resumed) == epochs[2]


def test_worker_processes_that_read_after_set_epoch_are_noticed():
    data = shuffled()
    data.set_epoch(2)
    list(DataLoader(data, batch_size=None, num_workers=1, multiprocessing_context="spawn"))
    with pytest.raises(cj.FailedPrecondition, match="StatefulDataLoader"):
        data.state_dict()
    data.set_epoch(2)
    assert data.state_dict()["epoch"] == 2


def test_a_batch_that_could_not_be_converted_is_in_no_state():
    import pyarrow as pa

    def data():
        rows = cj.from_arrow(pa.table({"id": range(6), "a": [1, 2, None, 4, 5, 6]}))
        return rows.batch(2).with_options(deterministic=True)

    broken, taken = data().torch(), []
    with pytest.raises(cj.InvalidPipeline, match="coalesce"):
        for batch in broken:
            taken.append(batch["id"].tolist())
    assert taken == [[0, 1]]
    state = broken.state_dict()
    assert json.loads(state["rank-0"])["elements"] == 1
    again = iter(data())
    again.load_state_dict(json.loads(state["rank-0"]))
    assert [b["id"].tolist() for b in again] == [[2, 3], [4, 5]]


def test_the_ddp_example_says_what_is_wrong_with_an_epoch_without_a_step(cluster):
    service = f"caju://{cluster(workers=1).dispatcher.address}"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    command = [*launcher, str(EXAMPLES / "torch_ddp.py"), "--service", service, "--count", "20"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode != 0 and "epoch 0 gave no batch to rank" in done.stdout + done.stderr, done.stdout + done.stderr
