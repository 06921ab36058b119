"""A small ResNet on photos: decoded, cropped and flipped by caju, trained by PyTorch.

    python examples/torch_imagenet.py [--count 500] [--epochs 2] [--data DIR]

Without --data, sample photos are generated. On a cluster, `.distribute("caju://host:7070", job_name="run-1")` is the
only line that changes.
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile

import torch
from torch import nn
from torch.nn import functional as F

import caju


def photos(folder, batch_size, size):
    """Training batches: the decoded photos may be reused, and each epoch draws its crops again."""
    return (
        caju.read_tfrecord(f"{folder}/*.tfrecord")
        .parse_example({"image/encoded": "bytes", "image/class/label": "int64"})
        .map(image='resize_shorter(decode_image("image/encoded"), 96)', label='"image/class/label"')
        .autocache("resized")
        .with_columns(image=f"normalize(random_flip(random_crop(image, {size}, {size})))")
        .shuffle(512)
        .batch(batch_size)
        .prefetch(4)
    )


class Block(nn.Module):
    """Two convolutions and a way around them."""

    def __init__(self, channels_in, channels, stride):
        super().__init__()
        self.first = nn.Sequential(
            nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False), nn.BatchNorm2d(channels), nn.ReLU(),
            nn.Conv2d(channels, channels, 3, 1, 1, bias=False), nn.BatchNorm2d(channels),
        )  # fmt: skip
        self.around = nn.Conv2d(channels_in, channels, 1, stride, bias=False)

    def forward(self, x):
        return F.relu(self.first(x) + self.around(x))


def train(dataset, epochs, classes):
    """The mean loss of each epoch."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1), Block(16, 32, 2), Block(32, 64, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes),
    ).to(device)  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    batches, losses = dataset.torch(pin_memory=device == "cuda"), []
    for epoch in range(epochs):
        seen = []
        for batch in batches:
            # caju's images are (rows, height, width, channels), torch's channels come first.
            images = batch["image"].to(device, non_blocking=True).permute(0, 3, 1, 2)
            loss = F.cross_entropy(model(images), batch["label"].to(device, non_blocking=True) % classes)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen.append(loss.item())
        losses.append(sum(seen) / len(seen))
        print(f"epoch {epoch}: loss {losses[-1]:.3f}")
    return losses


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=pathlib.Path, help="a folder of TFRecord files; sample photos by default")
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--classes", type=int, default=10)
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        if args.data is None:
            command = ["gen", "images", "--out", folder, "--count", str(args.count), "--format", "tfrecord", "--quiet"]
            subprocess.run([sys.executable, "-m", "caju", *command], check=True)
        return train(photos(args.data or folder, batch_size=32, size=64), args.epochs, args.classes)


if __name__ == "__main__":
    main()
