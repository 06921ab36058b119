#!/usr/bin/env python3
"""Epoch seconds by the number of workers, and the numbers that three rules choose: Cachew's Figure 6a with workers that sleep.

usage: experiments/autoscaling/run.py [--rows 2000] [--max-workers 8] [--release] [--keep RESULT.json]

Each number of workers is a cluster of its own of real processes, so a run takes about two minutes. The table goes to
results/README.md. The points go to data/autoscaling/result.json, and, where matplotlib is installed, a picture to
data/autoscaling/epochs.svg; these two are not in git.
"""

import argparse
import json
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
NAMES = {"caju": "caju", "hpa": "HPA (CPU, 80 %)", "cachew": "Cachew's rule"}


def measure(args, out):
    command = ["cargo", "run", "--quiet", "-p", "caju-tests", "--example", "autoscaling"]
    command += ["--release"] if args.release else []
    ended = subprocess.run([*command, "--", str(out), str(args.rows), str(args.max_workers)], cwd=ROOT)
    if ended.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit code {ended.returncode}")


def table(result):
    points = {p["workers"]: p for p in result["points"]}
    best = min(points.values(), key=lambda p: p["cost"])
    lines = ["# Last result", "", "Numbers of workers, measured one by one:", "",
             "| workers | epoch | reader waits | cost per epoch | against the cheapest | target of the dispatcher |",
             "|---|---|---|---|---|---|"]
    lines += [f"| {n} | {p['epoch_s']:.2f} s | {p['consumer_wait']:.0%} | {1000 * p['cost']:.2f} m$ | "
              f"{p['cost'] / best['cost'] - 1:+.1%} | {p['target']} |" for n, p in sorted(points.items())]
    lines += ["", "What each rule chooses, beginning with one worker:", "",
              "| rule | steps | ends at | epoch | cost against the cheapest | time against the fastest |", "|---|---|---|---|---|---|"]
    fastest = min(p["epoch_s"] for p in points.values())
    for rule, steps in result["steps"].items():
        end = points[steps[-1]]
        lines.append(f"| {NAMES[rule]} | {' '.join(map(str, steps))} | {steps[-1]} | {end['epoch_s']:.2f} s | "
                     f"{end['cost'] / best['cost']:.2f} | {end['epoch_s'] / fastest:.2f} |")
    lines += ["", f"One worker alone would take {result['ideal_1_worker_s']:.1f} s, the reader alone {result['reader_alone_s']:.1f} s.", ""]
    return "\n".join(lines)


def picture(result, out):
    try:
        import matplotlib
    except ImportError:
        return
    matplotlib.use("svg")
    from matplotlib import pyplot
    points = sorted(result["points"], key=lambda p: p["workers"])
    figure, axes = pyplot.subplots(figsize=(6, 3.5))
    axes.plot([p["workers"] for p in points], [p["epoch_s"] for p in points], "o-", color="0.3", label="measured")
    by_workers = {p["workers"]: p["epoch_s"] for p in points}
    for (rule, steps), marker in zip(result["steps"].items(), "*sD"):
        axes.plot(steps[-1], by_workers[steps[-1]], marker, markersize=12, fillstyle="none", label=NAMES[rule])
    axes.set(xlabel="workers", ylabel="seconds of an epoch", ylim=(0, None))
    axes.legend()
    figure.tight_layout()
    figure.savefig(out)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2000, help="rows of an epoch; 10 ms each on a worker")
    parser.add_argument("--max-workers", type=int, default=8)
    parser.add_argument("--release", action="store_true", help="with the release build")
    parser.add_argument("--keep", type=pathlib.Path, help="make the table and the picture of this result, without a run")
    args = parser.parse_args()
    results, data = HERE / "results", ROOT / "data/autoscaling"
    for folder in (results, data):
        folder.mkdir(parents=True, exist_ok=True)
    out = args.keep or data / "result.json"
    if not args.keep:
        measure(args, out.resolve())
    result = json.loads(out.read_text())
    (results / "README.md").write_text(table(result))
    picture(result, data / "epochs.svg")
    print(table(result))


if __name__ == "__main__":
    main()
