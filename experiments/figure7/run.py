#!/usr/bin/env python3
"""Cachew's Figure 7 on this machine: seconds per steady epoch by injected sleep and policy.

usage: experiments/figure7/run.py [--caju BIN] [--policies compute,source,full,cachew,auto] [--out DIR]

The paper injects 200 to 500 ms a batch where a batch takes 321 ms without any. Here the injections keep those
ratios to the batch time that is measured first. The order of policies alternates from point to point.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
# Injected milliseconds of the paper over its batch time without injection: 178.4 s for 556 batches.
RATIOS = [ms / 320.9 for ms in (200, 250, 300, 350, 400, 450, 500)]


def pipeline(data, batch, sleep_s):
    steps = [
        {"parse_example": {"features": {"image/encoded": "bytes"}}},
        {"map": {"image": '"image/encoded"'}},
        {"autocache": "source"},
        {"inflate": {"column": "image", "factor": 2.5}},
        {"batch": {"size": batch, "drop_remainder": True}},
        {"sleep": {"per_batch": f"{sleep_s * 1e6:.0f}us"}},
        {"autocache": "full"},
    ]
    if sleep_s == 0:
        del steps[5]
    return {"name": "figure7", "source": {"tfrecord": {"path": f"{data}/*.tfrecord"}}, "steps": steps}


def measure(args, name, sleep_s, policy):
    """Seconds per epoch, and per batch, of the last epochs of one run; each run has a cache of its own."""
    file, report = args.out / f"{name}.json", args.out / f"{name}.report.json"
    file.write_text(json.dumps(pipeline(args.data, args.batch, sleep_s)))
    command = [args.caju, "run", file, "--epochs", args.epochs, "--policy", policy, "--no-checksum", "--quiet"]
    ended = subprocess.run([*map(str, command), "--report", str(report)], stderr=subprocess.PIPE, text=True)
    if ended.returncode != 0:
        sys.exit(f"{policy}: {ended.stderr.strip()}")
    epochs = json.loads(report.read_text())["epochs"][2:]
    epoch_s = statistics.mean(e["wall_s"] for e in epochs)
    return epoch_s, epoch_s / epochs[0]["batches"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--caju", type=pathlib.Path, default=ROOT / "target/release/caju")
    parser.add_argument("--data", type=pathlib.Path, default=ROOT / "data/figure7")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "data/figure7-runs")
    parser.add_argument("--count", type=int, default=6000, help="photos to generate if there are none")
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--epochs", type=int, default=5, help="the mean is taken from the third one on")
    parser.add_argument("--policies", default="compute,source,full,cachew,auto")
    args = parser.parse_args()
    policies = args.policies.split(",")
    args.out.mkdir(parents=True, exist_ok=True)
    if not list(args.data.glob("*.tfrecord")):
        gen = [args.caju, "gen", "images", "--out", args.data, "--count", args.count, "--format", "tfrecord"]
        subprocess.run([*map(str, gen), "--shards", "8", "--quiet"], check=True)

    _, free = measure(args, "free", 0, "compute")
    print(f"{free * 1e3:.1f} ms a batch without injection\n\n{'injected':>10}" + "".join(f"{p:>10}" for p in policies))
    points = []
    for i, ratio in enumerate(RATIOS):
        sleep_s, order = ratio * free, policies if i % 2 == 0 else policies[::-1]
        times = {p: measure(args, f"{i}-{p}", sleep_s, p)[0] for p in order}
        points.append({"injected_s_per_batch": sleep_s, "epoch_s": {p: times[p] for p in policies}})
        print(f"{sleep_s * 1e3:>7.1f} ms" + "".join(f"{times[p]:>9.2f}s" for p in policies), flush=True)
    result = {"batch_s_without_injection": free, "batch": args.batch, "epochs": args.epochs, "points": points}
    (args.out / "result.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
