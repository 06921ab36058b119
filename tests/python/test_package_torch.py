"""Datasets for PyTorch. Left out where torch is not installed: its ordinary wheel brings several GB of GPU libraries."""

import collections
import gc
import itertools
import json
import pathlib
import re
import runpy
import subprocess
import sys
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader  # noqa: E402
from torch_ranks import EXAMPLES, PATIENCE_S, deadline, shares, wait_for  # noqa: E402, F401

import caju as cj  # noqa: E402


def ids(batches):
    return sorted(int(i) for b in batches for i in b["id"])


def test_batches_are_tensors():
    rows = cj.range(10).map(id="id", f="CAST(id AS float)", b="id > 5", s="concat('n', id)").batch(4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first, *_, last = list(rows.torch())
    assert first["id"].dtype == torch.int64 and first["f"].dtype == torch.float32 and first["b"].dtype == torch.bool
    assert first["s"] == ["n0", "n1", "n2", "n3"] and last["id"].tolist() == [8, 9]
    first["id"] += 1                                          # a copy, which may be written to


def test_without_a_copy_they_are_views():
    dataset = cj.from_numpy({"id": np.arange(8), "x": np.zeros((8, 2, 3), "f4")})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        [batch] = dataset.batch(8).torch(copy=False)
    assert batch["x"].shape == (8, 2, 3) and batch["id"].sum() == 28
    again = batch["id"]
    del batch
    assert again.sum() == 28


def test_each_dataset_of_tensors_has_its_own_epochs():
    rows = cj.range(8).batch(8)
    assert [len(list(rows.torch())) for _ in range(3)] == [1, 1, 1]
    assert [len(list(rows)) for _ in range(2)] == [1, 1]
    first, second = rows.torch(), rows.torch()
    assert [len(list(of)) for of in (first, second, first, second)] == [1, 1, 1, 1]


def test_tensors_are_in_page_locked_memory_if_asked(monkeypatch):
    made, asked = torch.empty, []

    def empty(*shape, pin_memory=False, **options):
        """Only a machine with a GPU has such memory."""
        asked.append(pin_memory)
        return made(*shape, **options)

    monkeypatch.setattr(torch, "empty", empty)
    rows = cj.from_numpy({"id": np.arange(8), "x": np.ones((8, 3), "f4")}).batch(8)
    for pinned in (False, True):
        asked.clear()
        [batch] = rows.torch(pin_memory=pinned)
        assert sorted(batch["id"].tolist()) == list(range(8)) and batch["x"].sum() == 24
        assert asked.count(True) == (2 if pinned else 0)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such files")
def test_tensors_of_trainers_on_one_host_lie_in_one_file_in_memory(cluster):
    def files(tensor):
        """The files in memory in which a tensor lies, by their inodes."""
        maps = [line.split() for line in pathlib.Path("/proc/self/maps").read_text().splitlines() if "memfd:caju" in line]
        at = tensor.data_ptr()
        spans = [([int(n, 16) for n in fields[0].split("-")], fields[4]) for fields in maps]
        return {inode for (first, end), inode in spans if first <= at < end}

    # More than is read ahead, so that the first trainer is not at the end before the second one begins.
    rows = cj.range(32_000_000).batch(40_000).with_options(deterministic=True)
    service = cluster(workers=1).dispatcher.address
    trainers = [rows.distribute(service, job_name=name, sharing="exact", policy="compute").torch(copy=False) for name in "ab"]
    last = collections.deque(zip(*trainers, strict=True), maxlen=10)
    for a, b in last:
        assert torch.equal(a["id"], b["id"])
        assert files(a["id"]) == files(b["id"]) != set(), "one copy for both"
    assert [int(a["id"][0]) for a, _ in last] == list(range(32_000_000 - 400_000, 32_000_000, 40_000))


def test_ragged_columns_are_lists_of_tensors():
    import pyarrow as pa

    [batch] = cj.from_arrow(pa.table({"t": [[1, 2], [3]]})).batch(2).torch()
    assert [t.tolist() for t in batch["t"]] == [[1, 2], [3]]


def test_nulls_have_no_place():
    import pyarrow as pa

    with pytest.raises(cj.InvalidPipeline, match="coalesce"):
        list(cj.from_arrow(pa.table({"a": [1, None]})).batch(2).torch())


def test_it_is_an_iterable_dataset_of_a_loader():
    data = cj.range(100).batch(8).torch()
    assert isinstance(data, torch.utils.data.IterableDataset) and len(data) == 13
    loader = DataLoader(data, batch_size=None, num_workers=0)
    assert ids(loader) == list(range(100)) == ids(loader)


def test_rows_can_be_batched_by_the_loader():
    loader = DataLoader(cj.range(10).torch(), batch_size=4)
    assert [b["id"].tolist() for b in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_a_loader_without_a_service(method):
    gc.collect()                                              # what other tests have left has threads
    loader = DataLoader(cj.range(60).batch(8).torch(), batch_size=None, num_workers=2, multiprocessing_context=method)
    assert ids(loader) == list(range(60))
    assert ids(loader) == list(range(60))


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_of_a_loader_share_the_rows_of_a_service(cluster, persistent):
    service = f"caju://{cluster(workers=2).dispatcher.address}"
    data = cj.range(400).shuffle(50).batch(4).distribute(service).torch()
    loader = DataLoader(data, batch_size=None, num_workers=2, persistent_workers=persistent,
                        multiprocessing_context="spawn")
    epochs = [[int(i) for b in loader for i in b["id"]] for _ in range(2)]
    for seen in epochs:
        assert sorted(seen) == list(range(400))


def test_a_fork_beside_running_threads_is_explained():
    dataset = cj.range(60).batch(8)
    list(dataset)
    loader = DataLoader(dataset.torch(), batch_size=None, num_workers=1, multiprocessing_context="fork")
    with pytest.raises(Exception, match="spawn"):
        list(loader)


def test_ranks_need_a_job_in_common():
    with pytest.raises(cj.InvalidPipeline, match="job_name"):
        cj.range(10).torch(rank=0, world_size=2)
    with cj.LocalCluster() as cluster:
        ranks = [cj.range(100).batch(5).distribute(cluster, job_name="r").torch(rank=r, world_size=2) for r in range(2)]
        streams = [iter(r) for r in ranks]
        seen = [b for pair in itertools.zip_longest(*streams) for b in pair if b is not None]
        assert ids(seen) == list(range(100))


RANK = """
import json, sys
import torch.distributed as dist
import caju
address, meeting, rank = sys.argv[1], sys.argv[2], int(sys.argv[3])
dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
# Slow enough that no rank has all of it before the other comes: rows go to whoever has room.
slow = caju.from_yaml("source: { range: 16384 }\\nsteps: [ { sleep: { per_row: 100us } } ]")
data = slow.shuffle(50).batch(32).distribute(address, job_name="ranks", epochs=2)
torch_data = data.torch()                    # rank and world size are the process group's
seen = []
for epoch in range(2):
    dist.barrier()
    stream = iter(torch_data)
    dist.barrier()
    seen.append([int(i) for batch in stream for i in batch["id"]])
try:
    caju.range(4).torch()
except caju.InvalidPipeline as e:
    assert f"rank {rank} of 2" in str(e) and "job_name" in str(e), e
else:
    raise SystemExit("a rank alone would read all rows")
with open(f"{meeting}-{rank}.json", "w") as f:
    json.dump(seen, f)
dist.barrier()
"""


def test_ranks_of_a_process_group_get_their_share(cluster, tmp_path):
    service = f"caju://{cluster(workers=2).dispatcher.address}"
    meeting = tmp_path / "meeting"
    ranks = [subprocess.Popen([sys.executable, "-c", RANK, service, str(meeting), str(rank)]) for rank in range(2)]
    wait_for(ranks)
    outs = [json.loads((tmp_path / f"meeting-{rank}.json").read_text()) for rank in range(2)]
    for epoch in range(2):
        one, two = outs[0][epoch], outs[1][epoch]
        assert one and two and sorted(one + two) == list(range(16384)), (len(one), len(two))


REPLICA = """
import json, sys
import torch.distributed as dist
import caju
address, folder, rank = sys.argv[1], sys.argv[2], int(sys.argv[3])
dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=4)
rows = caju.range(2_000).shuffle(50).batch(16)
data = rows.distribute(address, job_name="groups", num_consumers=2, consumer_index=rank // 2).torch(replication=2)
seen = [batch["id"].tolist() for batch in data]
try:
    rows.distribute(address, job_name="other").torch(replication=3)
except caju.InvalidPipeline as e:
    assert "does not divide the 4 ranks" in str(e), e
else:
    raise SystemExit("groups of three of four ranks")
with open(f"{folder}/{rank}.json", "w") as f:
    json.dump(seen, f)
dist.barrier()
"""


def test_det_09_ranks_of_a_group_get_the_same_elements(cluster, tmp_path):
    service = f"caju://{cluster(workers=2).dispatcher.address}"
    args = [sys.executable, "-c", REPLICA, service, str(tmp_path)]
    wait_for([subprocess.Popen([*args, str(rank)]) for rank in range(4)])
    seen = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(4)]
    assert seen[0] == seen[1] and seen[2] == seen[3], "identical elements in identical order"
    assert len(seen[0]) == len(seen[2]) == 62, "125 batches for two groups"
    both = [i for group in (seen[0], seen[2]) for batch in group for i in batch]
    assert len(set(both)) == len(both)


NOT_BEGUN = """
import sys
import torch.distributed as dist
import caju
address, folder, rank = sys.argv[1], sys.argv[2], int(sys.argv[3])
dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
service = {"job_name": "groups", "num_consumers": 1, "consumer_index": 0}
missing = caju.read_parquet(f"{folder}/none.parquet").distribute(address, **service).torch(replication=2)
for _ in range(2):
    try:
        next(iter(missing))
    except caju.NotFound as e:
        assert "none.parquet" in str(e), e
    else:
        raise SystemExit(f"rank {rank}: a source that does not exist")
rows = caju.range(8).batch(4).distribute(address, **service | {"job_name": "more"}).torch(replication=2)
assert [batch["id"].tolist() for batch in rows] == [[0, 1, 2, 3], [4, 5, 6, 7]]
dist.barrier()
"""


def test_an_epoch_that_does_not_begin_is_an_error_of_all_ranks_of_a_group(cluster, tmp_path):
    service = f"caju://{cluster(workers=1).dispatcher.address}"
    args = [sys.executable, "-c", NOT_BEGUN, service, str(tmp_path)]
    wait_for([subprocess.Popen([*args, str(rank)]) for rank in range(2)])


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_a_state_that_was_loaded_is_refused_by_worker_processes(context):
    """Each loop has new worker processes, and each of them would go on from the state again: every epoch would be the same tail."""
    data = cj.range(12).batch(4).torch()
    next(iter(data))
    state = data.state_dict()
    restored = cj.range(12).batch(4).torch()
    restored.load_state_dict(state)
    loader = DataLoader(restored, batch_size=None, num_workers=1, multiprocessing_context=context)
    for _ in range(2):
        with pytest.raises(Exception, match="(?s)FailedPrecondition.*num_workers=0"):
            list(loader)
    loader = DataLoader(restored, batch_size=None)
    assert [ids(loader), ids(loader)] == [list(range(4, 12)), list(range(12))]
    if context == "spawn":                                    # threads of this process do not survive a fork
        assert ids(DataLoader(restored, batch_size=None, num_workers=1, multiprocessing_context=context))


@pytest.mark.parametrize("replication, said", [(0, "1 or more"), (-10, "1 or more"), (7, "does not divide"), (2, "init_process_group")])
def test_det_09_groups_that_cannot_be_are_refused(replication, said):
    data = cj.range(10).batch(2).distribute("h:1", job_name="j")
    with pytest.raises(cj.InvalidPipeline, match=said):
        data.torch(rank=0, world_size=4, replication=replication)


def test_a_stateful_loader_goes_on_where_it_was():
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader

    def loader():
        data = cj.range(60).shuffle(60).batch(8).with_options(deterministic=True)
        return stateful(data.torch(), batch_size=None, num_workers=0)

    whole = loader()
    epochs = [[b["id"].tolist() for b in whole] for _ in range(3)]
    stopped = loader()
    list(stopped)
    reading = iter(stopped)
    taken = [next(reading)["id"].tolist() for _ in range(3)]
    state = stopped.state_dict()
    resumed = loader()
    resumed.load_state_dict(state)
    assert taken + [b["id"].tolist() for b in resumed] == epochs[1]
    assert [b["id"].tolist() for b in resumed] == epochs[2]

    ended = loader()
    list(ended)
    after = loader()
    after.load_state_dict(ended.state_dict())
    assert [b["id"].tolist() for b in after] == epochs[1]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateful_loader_goes_on_where_no_order_is_promised(cluster, workers):
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    service = f"caju://{cluster(workers=2).dispatcher.address}"

    def loader(job):
        data = cj.range(20_000).shuffle(50).batch(16).distribute(service, job_name=job).torch()
        context = "spawn" if workers else None
        return stateful(data, batch_size=None, num_workers=workers, multiprocessing_context=context)

    stopped = loader("stopped")
    reading = iter(stopped)
    taken = [next(reading) for _ in range(40)]
    state = json.loads(json.dumps(stopped.state_dict(), default=str)) if not workers else stopped.state_dict()
    del reading, stopped
    resumed = loader("resumed")
    resumed.load_state_dict(state)
    assert ids(taken + list(resumed)) == list(range(20_000))
    assert ids(resumed) == list(range(20_000)), "the next epoch is whole"


def test_a_dataset_in_a_plain_loader_has_a_state():
    def dataset():
        return cj.range(2_000).shuffle(50).batch(16).torch()

    data = dataset()
    start = data.state_dict()
    taken = []
    for batch in DataLoader(data, batch_size=None, num_workers=0):
        taken.append(batch)
        if len(taken) == 30:
            state = json.loads(json.dumps(data.state_dict()))
            break
    gc.collect()
    assert data.state_dict() == state, "also when the loop was left"
    again = dataset()
    again.load_state_dict(state)
    assert again.state_dict() == state
    assert ids(taken + list(DataLoader(again, batch_size=None, num_workers=0))) == list(range(2_000))
    assert ids(again) == list(range(2_000)), "the next epoch is whole"
    again.load_state_dict(start)
    assert ids(again) == list(range(2_000))


def drawn(row):
    return {"id": row["id"], "x": float(np.random.rand())}  # noqa: NPY002


@pytest.mark.filterwarnings("ignore:.*draws from numpy.random")
def test_a_loop_over_other_draws_leaves_no_state_when_it_is_left():
    data = cj.range(1_000).map(drawn, schema={"id": "int64", "x": "float64"}).batch(10).torch()
    begin = data.state_dict()
    for _ in itertools.islice(data, 30):
        pass
    gc.collect()
    for _ in range(2):
        with pytest.raises(cj.Unimplemented, match="after 30 elements of epoch 0.*numpy.random"):
            data.state_dict()
    list(data)
    gc.collect()
    end = data.state_dict()
    assert begin == {"epoch": 0, "rank-0": ""} and json.loads(end["rank-0"])["exhausted"], "an epoch's end has a state"


def test_a_loop_that_does_not_begin_leaves_the_state_as_it_is(cluster):
    service = cluster(workers=1).dispatcher.address
    data = cj.range(100).batch(10).distribute(service, job_name="x", stall_timeout=1).torch()
    saved = cj.range(100).batch(10).distribute(service, job_name="y").torch()
    next(iter(saved))
    with cj.start_dispatcher() as other:
        away = cj.range(100).batch(10).distribute(other, job_name="z", connect_timeout=1).torch()
        begin = away.state_dict()
        away.load_state_dict(saved.state_dict())
        loaded = away.state_dict()
    for _ in range(2):
        with pytest.raises(cj.Unavailable):
            iter(away)
        assert away.state_dict() == loaded != begin
    assert ids(data) == list(range(100))


def test_a_dataset_is_pickled_after_a_loop():
    data = cj.range(100).batch(10).torch()
    next(iter(data))
    assert ids(DataLoader(data, batch_size=None, num_workers=1, multiprocessing_context="spawn")) == list(range(100))


def test_the_state_of_a_dataset_whose_workers_read_is_the_loaders():
    data = cj.range(100).batch(10).torch()
    list(DataLoader(data, batch_size=None, num_workers=1, multiprocessing_context="spawn"))
    with pytest.raises(cj.FailedPrecondition, match="StatefulDataLoader"):
        data.state_dict()


CHECKPOINT = """
import json, sys
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import caju
address, folder, run, ranks, rank = *sys.argv[1:4], int(sys.argv[4]), int(sys.argv[5])
dist.init_process_group("gloo", init_method=f"file://{folder}/meeting-{run}", rank=rank, world_size=ranks)
# 40 MB of rows, of which a reader that comes before the other one holds a few chunks.
rows = caju.range(20_000).with_columns(payload="repeat('x', 2000)")
rows = rows.shuffle(50).batch(16).distribute(address, job_name="train", prefetch="4KiB")
data = rows.torch()
if run == "second" and ranks == 2:
    dcp.load({"data": data}, checkpoint_id=f"{folder}/checkpoint")
elif run == "second":
    saved = {"data": {"epoch": 0, "rank-0": "", "rank-1": ""}}       # of both ranks that saved
    dcp.load(saved, checkpoint_id=f"{folder}/checkpoint")
    data.load_state_dict(saved["data"])
stream, seen = iter(data), []
for step, batch in enumerate(stream):
    seen += batch["id"].tolist()
    if run == "first" and step == 39:
        dist.barrier()
        dcp.save({"data": data}, checkpoint_id=f"{folder}/checkpoint")
        break
with open(f"{folder}/{run}-{rank}.json", "w") as f:
    json.dump(seen, f)
dist.barrier()
"""


@pytest.mark.parametrize("ranks", [2, 1, 3])
def test_ranks_go_on_from_a_distributed_checkpoint(cluster, tmp_path, ranks):
    service = f"caju://{cluster(workers=2).dispatcher.address}"
    seen = []
    for run, count in (("first", 2), ("second", ranks)):
        args = [sys.executable, "-c", CHECKPOINT, service, str(tmp_path), run, str(count)]
        wait_for([subprocess.Popen([*args, str(rank)]) for rank in range(count)])
        seen += [i for rank in range(count) for i in json.loads((tmp_path / f"{run}-{rank}.json").read_text())]
    assert sorted(seen) == list(range(20_000))


def test_epochs_can_be_set():
    data = cj.range(50).shuffle(50).batch(50).torch()
    [first], [second] = list(data), list(data)
    data.set_epoch(0)
    [again] = list(data)
    assert first["id"].tolist() == again["id"].tolist() != second["id"].tolist()


def test_the_example_learns(caju, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out = runpy.run_path(str(EXAMPLES / "torch_imagenet.py"))["main"](["--count", "96", "--epochs", "2"])
    assert len(out) == 2 and out[1] < out[0]


def test_the_ddp_example_gives_its_ranks_equal_shares(cluster):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "3", "--standalone"]
    shares(cluster, 3, [*launcher, str(EXAMPLES / "torch_ddp.py")])


def test_the_example_with_rounds_gives_all_ranks_one_length_in_each_step(cluster):
    service = f"caju://{cluster(workers=2).dispatcher.address}"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    command = [*launcher, str(EXAMPLES / "torch_rounds.py"), "--service", service, "--count", "4000"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    said = re.findall(r"rank \d of 2: (\d+) steps, of equal padded lengths on all ranks: True, losses \[(.*?), (.*?)\]", done.stdout)
    assert len(said) == 2 and said[0][0] == said[1][0], done.stdout
    # 4,000 sequences in batches of 16 to two ranks, in each of two epochs. Of each length class a step may be dropped, and each worker
    # has a last batch.
    assert 2 * (125 - 4) <= int(said[0][0]) <= 2 * (125 + 4), done.stdout
    assert all(float(last) < 0.1 for *_, last in said), done.stdout
