"""Datasets for Lightning: positions in checkpoints, also of several ranks. Left out where torch or lightning is not installed."""

import json
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader  # noqa: E402
from torch_ranks import EXAMPLES, deadline, shares, wait_for  # noqa: E402, F401

import caju as cj  # noqa: E402


class Trained(list):
    """The batches that a model of Lightning was trained on, in order."""

    def __init__(self, tmp_path, loader, *, save_at=0, save_after_epoch=False, goes_on=False, **trainer):
        lightning = pytest.importorskip("lightning.pytorch")
        checkpoint = tmp_path / "last.ckpt"
        batches = self

        class Model(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(1, 1)

            def training_step(self, batch, step):
                ids = [b["id"].tolist() for b in batch] if isinstance(batch, list) else batch["id"].tolist()
                batches.append(ids)
                return self.layer(torch.zeros(1, 1)).sum()

            def on_train_batch_end(self, *args):
                if self.trainer.global_step == save_at:
                    self.trainer.save_checkpoint(checkpoint)

            def on_train_epoch_end(self):
                if save_after_epoch:
                    self.trainer.save_checkpoint(checkpoint)

            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), 0.0)

        quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
        given = {"max_epochs": 1, "max_steps": save_at or -1} | trainer
        trainer = lightning.Trainer(accelerator="cpu", default_root_dir=tmp_path, **quiet, **given)
        trainer.fit(Model(), loader, ckpt_path=checkpoint if goes_on else None)


def rows_of(*runs):
    return sorted(i for run in runs for batch in run for i in batch)


SIZED = "with a length"

FOR_LIGHTNING = {
    SIZED: lambda: cj.range(2_000).shuffle(50).batch(16),
    "filter": lambda: cj.range(2_000).filter("id >= 0").shuffle(50).batch(16),
    "bucket_by_length": lambda: cj.range(2_000).map(id="id", n="id % 10").bucket_by_length("n", [5], 16),
}
"""Datasets of 2000 rows. Lightning reads those without a length one batch ahead of the training loop."""


@pytest.mark.parametrize("kind", FOR_LIGHTNING)
@pytest.mark.parametrize("steps", [1, 30, 124])
def test_lightning_keeps_the_position_of_its_dataloader(tmp_path, kind, steps):
    make = FOR_LIGHTNING[kind]
    first = Trained(tmp_path, make().torch(), save_at=steps)
    assert len(first) == steps
    second = Trained(tmp_path, make().torch(), goes_on=True)
    assert rows_of(first, second) == list(range(2_000))


def test_lightning_keeps_the_position_in_a_registered_dataset(cluster, tmp_path):
    service = cluster(workers=1).dispatcher.address
    cj.range(2_000).shuffle(50).batch(16).register(service, "x")
    first = Trained(tmp_path, cj.from_dataset_id(service, "x", job_name="first").torch(), save_at=30)
    second = Trained(tmp_path, cj.from_dataset_id(service, "x", job_name="second").torch(), goes_on=True)
    assert rows_of(first, second) == list(range(2_000))


@pytest.mark.parametrize("kind", [SIZED, "filter"])
def test_training_with_lightning_goes_on_as_if_it_had_not_stopped(tmp_path, kind):
    def data():
        return FOR_LIGHTNING[kind]().with_options(deterministic=True).torch()

    loop = data()
    whole = [batch["id"].tolist() for _ in range(3) for batch in loop]
    assert Trained(tmp_path, data(), max_epochs=3) == whole
    for steps in (30, 125, 126, 250):                         # an epoch has 125 batches
        first = Trained(tmp_path, data(), save_at=steps, max_epochs=3)
        assert first + Trained(tmp_path, data(), goes_on=True, max_epochs=3) == whole, steps
    first = Trained(tmp_path, data(), save_after_epoch=True, max_epochs=2)
    assert first + Trained(tmp_path, data(), goes_on=True, max_epochs=3) == whole, "after two epochs"


def test_an_epoch_that_lightning_limits_does_not_go_on(tmp_path):
    def run(**options):
        return Trained(tmp_path, FOR_LIGHTNING[SIZED]().with_options(deterministic=True).torch(), limit_train_batches=100, **options)

    whole = run(max_epochs=2)
    assert len(whole) == 200
    for steps in (50, 100, 150):
        assert run(save_at=steps, max_epochs=2) + run(goes_on=True, max_epochs=2) == whole, steps


def test_lightning_keeps_the_position_beside_a_dataset_without_a_length(tmp_path):
    """Lightning reads two loaders in step, and both one ahead if one of them has no length."""

    def loaders():
        return [FOR_LIGHTNING[SIZED]().torch(), FOR_LIGHTNING["filter"]().torch()]

    first = Trained(tmp_path, loaders(), save_at=30)
    second = Trained(tmp_path, loaders(), goes_on=True)
    for which in range(2):
        assert rows_of([pair[which] for pair in first + second]) == list(range(2_000))


def test_lightning_does_not_go_on_without_a_position(tmp_path):
    def loader():
        return DataLoader(FOR_LIGHTNING[SIZED]().torch(), batch_size=None)

    first = Trained(tmp_path, loader(), save_at=30)
    with pytest.raises(cj.FailedPrecondition, match=r"30 batches into epoch 0.*Pass ds.torch\(\) itself"):
        Trained(tmp_path, loader(), goes_on=True)
    with pytest.raises(cj.FailedPrecondition, match="30 batches into epoch 0"):
        Trained(tmp_path, FOR_LIGHTNING[SIZED]().torch(), goes_on=True)
    placed = FOR_LIGHTNING[SIZED]().torch()
    placed.set_epoch(1)
    assert len(first) == 30 and len(Trained(tmp_path, placed, goes_on=True)) == 95


@pytest.mark.parametrize("kind", [SIZED, "filter"])
def test_a_stateful_loader_keeps_its_position_for_lightning(tmp_path, kind):
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader

    def loader():
        return stateful(FOR_LIGHTNING[kind]().torch(), batch_size=None, num_workers=0)

    first = Trained(tmp_path, loader(), save_at=30)
    assert rows_of(first, Trained(tmp_path, loader(), goes_on=True)) == list(range(2_000))


def test_lightning_gets_no_length_of_one_of_several_consumers():
    """It would end an epoch there without asking for its end, and leave before the others."""
    sized_len = pytest.importorskip("lightning.fabric.utilities.data").sized_len

    def data(count):
        rows = cj.range(2_000).batch(16).distribute("h:1", job_name="j", num_consumers=count, consumer_index=0)
        return rows.torch(rank=0, world_size=count)

    assert len(data(2)) == 62 and len(data(1)) == 125
    assert [sized_len(loader) for loader in (data(2), DataLoader(data(2), batch_size=None))] == [None, None]
    assert [sized_len(loader) for loader in (data(1), DataLoader(data(1), batch_size=None))] == [125, 125]


def test_batches_of_a_loader_that_lightning_holds_back_are_refused(tmp_path):
    data = cj.range(2_000).filter("id >= 0").torch()
    Trained(tmp_path, DataLoader(data, batch_size=16), max_steps=3)
    with pytest.raises(cj.FailedPrecondition, match="holds back a batch, which a DataLoader made"):
        data.state_dict()


LIGHTNING_RANK = """
import json, sys
import lightning.pytorch as lightning
import torch, caju
service, folder, run = sys.argv[1:]

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer, self.seen = torch.nn.Linear(1, 1), []

    def train_dataloader(self):
        rows = caju.range(8_000).filter("id >= 0").shuffle(50).batch(16)
        return rows.distribute(service, job_name=run, uneven="drop").torch()

    def training_step(self, batch, step):
        self.seen += batch["id"].tolist()
        return self.layer(batch["id"].float()[:, None]).sum() * 0

    def on_train_batch_end(self, *args):
        if run == "first" and self.trainer.global_step == 30:
            self.trainer.save_checkpoint(f"{folder}/last.ckpt")

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.0)

model = Model()
trainer = lightning.Trainer(
    max_epochs=1, max_steps=30 if run == "first" else -1, accelerator="cpu", devices=2, strategy="ddp", logger=False,
    enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False, default_root_dir=folder,
)
trainer.fit(model, ckpt_path=None if run == "first" else f"{folder}/last.ckpt")
with open(f"{folder}/{run}-{trainer.global_rank}.json", "w") as f:
    json.dump(model.seen, f)
"""


def test_ranks_go_on_from_a_checkpoint_of_lightning(cluster, tmp_path):
    pytest.importorskip("lightning.pytorch")
    service = f"caju://{cluster(workers=2).dispatcher.address}"
    script = tmp_path / "rank.py"
    script.write_text(LIGHTNING_RANK)
    for run in ("first", "second"):
        wait_for([subprocess.Popen([sys.executable, str(script), service, str(tmp_path), run])])
    runs = [[json.loads((tmp_path / f"{run}-{rank}.json").read_text()) for rank in range(2)] for run in ("first", "second")]
    assert [len(rank) for rank in runs[0]] == [480, 480], "rank 0 saves the positions of both"
    assert rows_of(*runs) == list(range(8_000))


def test_the_lightning_example_gives_its_ranks_equal_shares(cluster):
    pytest.importorskip("lightning.pytorch")
    shares(cluster, 2, [sys.executable, str(EXAMPLES / "lightning_ddp.py"), "--devices", "2"])
