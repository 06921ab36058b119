"""Click prediction on a table: columns prepared by SQL expressions, a logistic regression in NumPy.

    python examples/tabular.py [--rows 20000] [--epochs 3]
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

import caju
from caju import col, fn

NUMBERS = [f"I{i}" for i in range(1, 14)]
WORDS = [f"C{i}" for i in range(1, 5)]
BUCKETS = 64


def clicks(folder, batch_size):
    """The prepared table: numbers on a logarithmic scale, missing ones 0, and words as numbers below `BUCKETS`."""
    return (
        caju.read_parquet(f"{folder}/*.parquet")
        .map(
            {"label": col("label").cast("float")}
            | {name: fn.ln(fn.coalesce(fn.greatest(col(name), 0), 0) + 1).cast("float") for name in NUMBERS}
            | {name: fn.hash_bucket(fn.coalesce(col(name), ""), BUCKETS) for name in WORDS}
        )
        .autocache("prepared")
        .shuffle(4096)
        .batch(batch_size, drop_remainder=True)
        .prefetch(2)
    )


def features(batch):
    """One row of a matrix per example: the numbers, then the words one-hot, then one for the bias."""
    numbers = np.stack([batch[name] for name in NUMBERS], axis=1) / 10
    words = [np.eye(BUCKETS, dtype="f4")[batch[name]] for name in WORDS]
    return np.concatenate([numbers, *words, np.ones((len(numbers), 1), "f4")], axis=1)


def train(dataset, epochs, rate=0.5):
    """The mean loss of each epoch."""
    weights, losses = None, []
    for epoch in range(epochs):
        seen = []
        for batch in dataset:
            x, y = features(batch), batch["label"]
            weights = np.zeros(x.shape[1], "f4") if weights is None else weights
            p = 1 / (1 + np.exp(-(x @ weights)))
            weights -= rate * x.T @ (p - y) / len(y)
            seen.append(-np.mean(y * np.log(p + 1e-7) + (1 - y) * np.log(1 - p + 1e-7)))
        losses.append(float(np.mean(seen)))
        print(f"epoch {epoch}: loss {losses[-1]:.4f}")
    return losses


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=pathlib.Path, help="a folder of Parquet files; sample data by default")
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        if args.data is None:
            command = ["gen", "table", "--out", folder, "--count", str(args.rows), "--format", "parquet", "--quiet"]
            subprocess.run([sys.executable, "-m", "caju", *command], check=True)
        return train(clicks(args.data or folder, batch_size=256), args.epochs)


if __name__ == "__main__":
    main()
