"""Three trainers with three learning rates over one preparation, which is computed once.

    python examples/hyperparameter_sweep.py [--rows 2000] [--cache DIR] [--together [--dispatcher ADDRESS]]

The preparation is slow on purpose. One after another, the first trainer computes it in its first epoch and stores the
rows. Its second epoch, and all epochs of the other trainers, read the stored rows. Together, nothing is stored: the
trainers run concurrently and share the rows of each epoch, which the worker computes once for all of them.
"""

import argparse
import concurrent.futures
import tempfile
import time

import numpy as np

import caju


RATES = (0.01, 0.1, 0.5)


def prepared(rows, store=True):
    """The part that all trainers share. The hint allows the reuse of these rows."""
    slow = f"source: {{ range: {rows} }}\nsteps: [ {{ sleep: {{ per_row: 1ms }} }} ]"
    computed = caju.from_yaml(slow).map(x="CAST(id AS double) / 1000", y="sin(CAST(id AS double) / 1000)")
    return computed.cache("prepared") if store else computed.autocache("prepared")


def train(dataset, rate, epochs):
    """Fits a line. Returns the seconds of each epoch."""
    slope, seconds = 0.0, []
    for _ in range(epochs):
        start = time.perf_counter()
        for batch in dataset:
            slope -= rate * float(np.mean((slope * batch["x"] - batch["y"]) * batch["x"]))
        seconds.append(time.perf_counter() - start)
    return slope, seconds


def together(service, rows, epochs):
    """Trains with all rates concurrently. Returns the seconds of each trainer's epochs."""

    def trial(rate):
        # Trainers may differ below the hint, here in their batches.
        dataset = prepared(rows, store=False).shuffle(256).batch(64 if rate < 0.5 else 32)
        return train(dataset.distribute(service, job_name=f"rate-{rate}", sharing="exact", policy="compute"), rate, epochs)

    with concurrent.futures.ThreadPoolExecutor(len(RATES)) as threads:
        return list(threads.map(trial, RATES))


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--cache", help="where to keep snapshots; a private folder by default")
    parser.add_argument("--together", action="store_true", help="run the trainers concurrently, and share rows")
    parser.add_argument("--dispatcher", help="with --together: a cluster that runs already, by its address")
    args = parser.parse_args(arguments)
    if args.dispatcher and not args.together:
        parser.error("--dispatcher belongs to --together")
    if args.together:
        if args.dispatcher:
            trained = together(args.dispatcher, args.rows, args.epochs)
        else:
            with caju.LocalCluster() as cluster:
                trained = together(cluster, args.rows, args.epochs)
        for rate, (slope, seconds) in zip(RATES, trained):
            print(f"rate {rate}: slope {slope:.3f}, epochs took " + ", ".join(f"{s:.2f} s" for s in seconds))
        return [seconds for _, seconds in trained]
    times = []
    with tempfile.TemporaryDirectory() as folder, caju.LocalCluster(cache=args.cache or folder) as cluster:
        for rate in RATES:
            # Below the hint each trainer is its own: batches, shuffling, anything.
            dataset = prepared(args.rows).shuffle(256).batch(64).distribute(cluster, job_name=f"rate-{rate}")
            slope, seconds = train(dataset, rate, args.epochs)
            print(f"rate {rate}: slope {slope:.3f}, epochs took " + ", ".join(f"{s:.2f} s" for s in seconds))
            times.append(seconds)
    return times


if __name__ == "__main__":
    main()
