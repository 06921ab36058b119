"""Data-parallel training with Lightning: each rank gets the same number of batches, and each row goes to one rank.

    caju up --allow data/                                        # or a dispatcher and workers elsewhere
    python examples/lightning_ddp.py --service caju://127.0.0.1:7070 --devices 2

Lightning starts the ranks, and asks for the loader when torch.distributed is initialised: the number of ranks and the rank
of a process come from there.
"""

import argparse

import lightning.pytorch as lightning
import torch
from torch import nn

import caju


class Rows(lightning.LightningDataModule):
    """Points on a line, with batches of 32."""

    def __init__(self, service, job, count, epochs):
        super().__init__()
        self.service, self.job, self.count, self.epochs = service, job, count, epochs

    def train_dataloader(self):
        count = self.count
        points = caju.range(count).map(x=f"id / {count}.0", y=f"3.0 * id / {count}.0 + 1.0").shuffle(256, seed=7).batch(32)
        return points.distribute(self.service, job_name=self.job, epochs=self.epochs, uneven="drop").torch()


class Line(lightning.LightningModule):
    """A line through points."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.losses, self.steps = nn.Linear(1, 1), [], 0

    def training_step(self, batch, _):
        self.steps += 1
        self.loss = (self.layer(batch["x"].float()[:, None])[:, 0] - batch["y"].float()).square().mean()
        return self.loss

    def on_train_epoch_end(self):
        self.losses.append(float(self.loss))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.3)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--service", required=True)
    parser.add_argument("--job", default="lightning")
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--epochs", type=int, default=2)
    options = parser.parse_args(arguments)
    model = Line()
    trainer = lightning.Trainer(
        accelerator="cpu", devices=options.devices, strategy="ddp", max_epochs=options.epochs, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(model, Rows(options.service, options.job, options.count, options.epochs))
    print(f"rank {trainer.global_rank} of {trainer.world_size}: {model.steps} steps, losses {model.losses}", flush=True)
    return model.losses, model.steps


if __name__ == "__main__":
    main()
