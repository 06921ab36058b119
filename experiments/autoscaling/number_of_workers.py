#!/usr/bin/env python3
"""Seconds and cost of an epoch by the number of workers, and the numbers that three rules choose: Cachew's Figure 6a.

usage: experiments/autoscaling/number_of_workers.py [--bin CAJU] [--rows 2000] [--workers 8] [--epochs 3]

Every worker may use a quarter of a core (a control group with a CPU quota, as a container with `limits.cpu: 250m`), so that two
cores stand for eight machines. Rows burn CPU time: all of their time in one pipeline, 55 % of it in the other one, where they
wait for the rest of it, as a pipeline does that reads from a store. What the horizontal pod autoscaler would see is measured: the
CPU seconds of the workers, by those that they may use. The workers' time for an epoch is 1,730 / 495 times that of the consumer,
as in the paper.

Needs the Python package `caju` and, for control groups, root. The table and the picture go to results/number_of_workers.*, the
points to the data folder.
"""

import statistics
import tempfile
import time
from pathlib import Path

from cluster import CORES, ByHand, Reader, cpu_s, measured, parser, pipeline, publish, waited_s
from rules import cachew_steps, hpa_steps

# Seconds of an epoch with one worker, and those of the accelerator alone, in the paper.
ONE_WORKER_S, ACCELERATOR_S = 1730.0, 495.0
# Seconds of a row on a worker, and rows of a batch.
ROW_S, BATCH = 0.01, 20
STEP_S = BATCH * ROW_S * ACCELERATOR_S / ONE_WORKER_S
# Dollars per hour of a worker and of the accelerator.
WORKER_PER_H, ACCELERATOR_PER_H = 0.38, 8.0
# The fraction of its quota that a row uses while it is computed.
KINDS = {"burn": 1.0, "mixed": 0.55}
TITLES = {"burn": "Rows use CPU time alone", "mixed": "Rows use CPU time for 55 % of what a worker may use"}
RULES = {"caju": "caju", "hpa": "HPA (CPU, 80 %)", "cachew": "Cachew's rule"}


def stages(kind):
    """What a row does on a worker for `ROW_S`."""
    cpu_s = KINDS[kind] * ROW_S * CORES
    burn = {"burn": {"per_row": f"{cpu_s * 1e6:.0f}us"}}
    # The quota holds up rows that do nothing else. The others are below it, so that their CPU time is that of a whole core.
    return [burn, {"batch": BATCH}] if kind == "burn" else [{"sleep": {"per_row": f"{(ROW_S - cpu_s) * 1e6:.0f}us"}}, burn, {"batch": BATCH}]


def epoch(args, kind, workers):
    """One epoch with a number of workers, and the target that the dispatcher named when nine tenths of it were read."""
    options = ["--scaling-interval", "2s", "--scale-down-after", "4s", "--max-workers", args.workers]
    with tempfile.TemporaryDirectory(dir=args.data) as folder:
        file = pipeline(Path(folder), kind, args.rows, stages(kind))
        with ByHand(args, workers, *options, cores=CORES) as cluster:
            cluster.registered(workers)
            before = sum(map(cpu_s, cluster.workers()))
            reader = Reader(cluster, file, "train", STEP_S)
            target = None
            while reader.running():
                time.sleep(0.02)
                if target is None and sum(b[3] for b in reader.batches) >= 0.9 * args.rows:
                    target = cluster.status()["scaling"]["target_workers"]
            used = sum(map(cpu_s, cluster.workers())) - before
            reader.end()
    begin, end = reader.batches[0][0], reader.batches[-1][1] + STEP_S
    seconds = end - begin
    return {"kind": kind, "workers": workers, "epoch_s": seconds, "waited": waited_s(reader.batches, begin, end) / seconds,
            "utilisation": used / (workers * CORES * seconds), "batch_s": seconds / len(reader.batches), "target": target,
            "cost": (ACCELERATOR_PER_H + workers * WORKER_PER_H) * seconds / 3600}


def measure(args):
    points = []
    # Numbers alternate, so that a busy minute of the machine is in all of them.
    for round_of in range(args.epochs):
        for kind in KINDS:
            for workers in range(1, args.workers + 1):
                points.append({"round": round_of, **epoch(args, kind, workers)})
                print({k: round(v, 3) if isinstance(v, float) else v for k, v in points[-1].items()}, flush=True)
    return points


def medians(points, kind):
    """The median epoch of every number of workers."""
    by_workers = {}
    for p in points:
        if p["kind"] == kind:
            by_workers.setdefault(p["workers"], []).append(p)
    fields = ("epoch_s", "waited", "utilisation", "batch_s", "cost")
    return {n: {**{f: statistics.median(p[f] for p in own) for f in fields}, "spread": [min(p["epoch_s"] for p in own), max(p["epoch_s"] for p in own)],
                "targets": sorted({p["target"] for p in own})} for n, own in sorted(by_workers.items())}


def chosen(by_workers, points, kind):
    """The numbers that each rule goes through, beginning with one worker."""
    first = statistics.median_low([p["target"] for p in points if p["kind"] == kind and p["workers"] == 1])
    most = max(by_workers)
    return {"caju": [1, first] if first != 1 else [1], "hpa": hpa_steps(lambda n: by_workers[n]["utilisation"], most),
            "cachew": cachew_steps(lambda n: by_workers[n]["batch_s"], most)}


def table(args, points):
    lines = ["# The number of workers", "",
             f"A row takes {ROW_S * 1e3:.0f} ms of a worker, which may use {CORES:g} cores. The consumer alone takes "
             f"{ONE_WORKER_S / ACCELERATOR_S:.2f} times as many rows as a worker computes. A worker costs {WORKER_PER_H} $/h, the accelerator "
             f"{ACCELERATOR_PER_H} $/h. Medians of {1 + max(p['round'] for p in points)} epochs per number. {args.build}", ""]
    for kind in KINDS:
        by_workers = medians(points, kind)
        cheapest = min(p["cost"] for p in by_workers.values())
        fastest = min(p["epoch_s"] for p in by_workers.values())
        lines += [f"## {TITLES[kind]}", "",
                  "| workers | epoch (shortest to longest) | consumer waits | cost per epoch | against the cheapest | CPU of what is allowed "
                  "| target of the dispatcher |", "|---|---|---|---|---|---|---|"]
        lines += [f"| {n} | {p['epoch_s']:.2f} s ({p['spread'][0]:.2f} to {p['spread'][1]:.2f}) | {p['waited']:.0%} | {1e3 * p['cost']:.2f} m$ "
                  f"| {p['cost'] / cheapest - 1:+.1%} | {p['utilisation']:.0%} | {' or '.join(map(str, p['targets']))} |"
                  for n, p in by_workers.items()]
        lines += ["", "| rule | numbers | ends at | epoch | cost against the cheapest | time against the fastest |", "|---|---|---|---|---|---|"]
        for rule, steps in chosen(by_workers, points, kind).items():
            end = by_workers[steps[-1]]
            lines.append(f"| {RULES[rule]} | {' '.join(map(str, steps))} | {steps[-1]} | {end['epoch_s']:.2f} s | {end['cost'] / cheapest:.2f} "
                         f"| {end['epoch_s'] / fastest:.2f} |")
        lines.append("")
    return lines[:-1]


def draw(pyplot, points):
    figure, axes = pyplot.subplots(1, len(KINDS), figsize=(5 * len(KINDS), 3.8), sharey=True)
    for axis, kind in zip(axes, KINDS):
        by_workers = medians(points, kind)
        axis.plot(list(by_workers), [p["epoch_s"] for p in by_workers.values()], "o-", color="0.4", label="measured")
        for (rule, steps), marker, size in zip(chosen(by_workers, points, kind).items(), "*sD", (17, 14, 10)):
            axis.plot(steps[-1], by_workers[steps[-1]]["epoch_s"], marker, markersize=size, fillstyle="none", label=f"{RULES[rule]}: {' '.join(map(str, steps))}")
        axis.set_title(TITLES[kind], fontsize=10)
        axis.set(xlabel="workers")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8, title="numbers that a rule goes through", title_fontsize=8)
    axes[0].set(ylabel="seconds of an epoch", ylim=(0, 1.05 * max(p["epoch_s"] for p in points)))
    figure.tight_layout()
    return figure


def main():
    p = parser(__doc__)
    p.add_argument("--rows", type=int, default=2000, help="rows of an epoch")
    p.add_argument("--workers", type=int, default=8, help="the most workers")
    p.add_argument("--epochs", type=int, default=3, help="epochs of each number")
    args = p.parse_args()
    points = measured(args, "number_of_workers", lambda: measure(args))
    publish(args, "number_of_workers", table(args, points), lambda pyplot: draw(pyplot, points))


if __name__ == "__main__":
    main()
