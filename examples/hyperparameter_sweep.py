"""Three trainers with three learning rates, one after another, over one cache: the preparation is computed once.

    python examples/hyperparameter_sweep.py [--rows 2000] [--cache DIR]

The preparation is slow on purpose. The first trainer computes it in its first epoch and stores the rows. Its second
epoch, and all epochs of the other trainers, read the stored rows.
"""

import argparse
import tempfile
import time

import numpy as np

import caju


def prepared(rows):
    """The part that all trainers share. The hint allows the reuse of these rows."""
    slow = f"source: {{ range: {rows} }}\nsteps: [ {{ sleep: {{ per_row: 1ms }} }} ]"
    return caju.from_yaml(slow).map(x="CAST(id AS double) / 1000", y="sin(CAST(id AS double) / 1000)").cache("prepared")


def train(dataset, rate, epochs):
    """Fits a line. Returns the seconds of each epoch."""
    slope, seconds = 0.0, []
    for _ in range(epochs):
        start = time.perf_counter()
        for batch in dataset:
            slope -= rate * float(np.mean((slope * batch["x"] - batch["y"]) * batch["x"]))
        seconds.append(time.perf_counter() - start)
    return slope, seconds


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--cache", help="where to keep snapshots; a private folder by default")
    args = parser.parse_args(arguments)
    times = []
    with tempfile.TemporaryDirectory() as folder, caju.LocalCluster(cache=args.cache or folder) as cluster:
        for rate in (0.01, 0.1, 0.5):
            # Below the hint each trainer is its own: batches, shuffling, anything.
            dataset = prepared(args.rows).shuffle(256).batch(64).distribute(cluster, job_name=f"rate-{rate}")
            slope, seconds = train(dataset, rate, args.epochs)
            print(f"rate {rate}: slope {slope:.3f}, epochs took " + ", ".join(f"{s:.2f} s" for s in seconds))
            times.append(seconds)
    return times


if __name__ == "__main__":
    main()
