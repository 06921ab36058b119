"""Data-parallel training with PyTorch: each rank gets the same number of batches, and each row goes to one rank.

    caju up --allow data/                                        # or a dispatcher and workers elsewhere
    torchrun --nproc-per-node 2 examples/torch_ddp.py --service caju://127.0.0.1:7070

The number of ranks and the rank of a process come from torch.distributed: `uneven="drop"` asks for it.
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import caju


def rows(count):
    """Points on a line, with batches of 32."""
    return caju.range(count).map(x=f"id / {count}.0", y=f"3.0 * id / {count}.0 + 1.0").shuffle(256, seed=7).batch(32)


def train(service, job, count, epochs):
    """The losses of this rank's last batches, by epoch, and its number of steps."""
    data = rows(count).distribute(service, job_name=job, epochs=epochs, uneven="drop").torch()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.3)
    losses, steps = [], 0
    for epoch in range(epochs):
        loss = None
        for batch in data:
            # Gradients are averaged over the ranks in each step: a rank with more steps would wait for ever.
            loss = (model(batch["x"].float()[:, None])[:, 0] - batch["y"].float()).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1
        if loss is None:
            raise SystemExit(
                f"epoch {epoch} gave no batch to rank {dist.get_rank()}: there are fewer batches than ranks, or job `{job}` had read the "
                "epoch before: give another --job"
            )
        losses.append(float(loss))
    return losses, steps


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--service", required=True)
    parser.add_argument("--job", default="ddp")
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--epochs", type=int, default=2)
    options = parser.parse_args(arguments)
    dist.init_process_group("gloo")
    try:
        losses, steps = train(options.service, options.job, options.count, options.epochs)
        print(f"rank {dist.get_rank()} of {dist.get_world_size()}: {steps} steps, losses {losses}", flush=True)
    finally:
        dist.destroy_process_group()
    return losses, steps


if __name__ == "__main__":
    main()
