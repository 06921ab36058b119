"""Data-parallel training on sequences of different lengths: in each step all ranks get sequences of one length class.

    caju up --allow data/                                        # or a dispatcher and workers elsewhere
    torchrun --nproc-per-node 2 examples/torch_rounds.py --service caju://127.0.0.1:7070

All ranks wait for the slowest one in each step, and that is the one with the longest padded batch. `balance="bucket"` gives all
ranks batches of one padded length in the same step. The number of ranks and the rank of a process come from torch.distributed.
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import caju

VOCABULARY, LONGEST = 50, 256


def sequences(count):
    """Sequences of 1 to 256 tokens, most of them short, in padded batches of sequences of like length."""
    # The fourth power of a number that is spread over 0 to 1.
    length = f"1 + cast({LONGEST - 1} * power((id * 7919 % 1000) / 1000.0, 4) as int)"
    return (
        caju.range(count)
        .map(tokens=f"array_repeat(1 + id % {VOCABULARY}, {length})", label=f"id % {VOCABULARY} % 2")
        .shuffle(1000, seed=7)
        .bucket_by_length("array_length(tokens)", caju.quantiles(4), 16)
    )


class Classifier(nn.Module):
    """Says of a sequence whether its tokens are odd."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(1 + VOCABULARY, 8, padding_idx=0), nn.Linear(8, 2)

    def forward(self, tokens):
        return self.head(self.embedding(tokens).mean(1))


def train(service, job, count, epochs):
    """The losses of this rank's last batches, by epoch, and the padded length of its batch in each step."""
    data = sequences(count).distribute(service, job_name=job, epochs=epochs, balance="bucket").torch()
    torch.manual_seed(0)
    model = DistributedDataParallel(Classifier())
    optimizer = torch.optim.Adam(model.parameters(), 0.05)
    losses, lengths = [], []
    for _ in range(epochs):
        for batch in data:
            loss = nn.functional.cross_entropy(model(batch["tokens"]), batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            lengths.append(batch["tokens"].shape[1])
        losses.append(float(loss))
    return losses, lengths


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--service", required=True)
    parser.add_argument("--job", default="rounds")
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--epochs", type=int, default=2)
    options = parser.parse_args(arguments)
    dist.init_process_group("gloo")
    try:
        losses, lengths = train(options.service, options.job, options.count, options.epochs)
        of_all = [None] * dist.get_world_size()
        dist.all_gather_object(of_all, lengths)
        is_even = all(lengths == others for others in of_all)
        print(f"rank {dist.get_rank()} of {dist.get_world_size()}: {len(lengths)} steps, of equal padded lengths on all ranks: "
              f"{is_even}, losses {losses}", flush=True)
    finally:
        dist.destroy_process_group()
    return losses, of_all


if __name__ == "__main__":
    main()
