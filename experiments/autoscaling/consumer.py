#!/usr/bin/env python3
"""A training job without a model: it takes a batch, then works for the time of a step.

usage: consumer.py PIPELINE.json DISPATCHER JOB STEP_S [--epochs N] [--policy POLICY]

Prints a line per batch: when it asked, when it got the batch (seconds of the monotonic clock, which all processes of a machine
share), the epoch, the rows, and the first id. After SIGUSR1 every step takes half as long. Needs the Python package `caju`.
"""

import argparse
import signal
import sys
import time

import caju


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pipeline")
    parser.add_argument("dispatcher", help="HOST:PORT")
    parser.add_argument("job")
    parser.add_argument("step_s", type=float)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--policy", help="caching policy of the job")
    args = parser.parse_args()
    step_s = args.step_s

    def halve(*_):
        nonlocal step_s
        step_s /= 2

    signal.signal(signal.SIGUSR1, halve)
    dataset = caju.read_yaml(args.pipeline).distribute(
        f"caju://{args.dispatcher}", job_name=args.job, epochs=args.epochs, policy=args.policy
    )
    for epoch in range(args.epochs):
        batches = iter(dataset)
        asked = time.monotonic()
        for batch in batches:
            got = time.monotonic()
            sys.stdout.write(f"{asked:.4f} {got:.4f} {epoch} {len(batch['id'])} {batch['id'][0]}\n")
            sys.stdout.flush()
            until = got + step_s
            while (left := until - time.monotonic()) > 0:
                time.sleep(left)
            asked = time.monotonic()


if __name__ == "__main__":
    main()
