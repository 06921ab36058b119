#!/usr/bin/env python3
"""Cachew's Figure 10: a second job finds the snapshot of the first one, and needs fewer workers.

usage: experiments/autoscaling/second_job.py [--bin CAJU] [--rows 11000]

`caju up --workers auto` runs the workers. A row sleeps on its worker above the hint, and for a shorter time below it, so that
each worker stands for a machine. Job 1 reads two epochs, and job 2 one. Once with a cache, once without.

Needs the Python package `caju`. The table and the picture go to results/second_job.*, the points to the data folder.
"""

import json
import statistics
import tempfile
import time
from pathlib import Path

from cluster import (PAYLOAD, SAMPLE_S, Reader, Up, measured, parser, pipeline, publish, sleeping, wait_curve, waited_s,
                     worker_seconds)

# Seconds of a row above and below the hint, and the rows of a batch.
ABOVE_S, BELOW_S, BATCH = 0.024, 0.008, 10
# Workers that the consumer keeps busy if every row is computed. With stored rows it is a quarter.
NEED = 5.3
STEP_S = BATCH * (ABOVE_S + BELOW_S) / NEED
STEPS = [sleeping(ABOVE_S), {"autocache": "prepared"}, sleeping(BELOW_S), PAYLOAD, {"batch": BATCH}]
EPOCHS = {"job-1": 2, "job-2": 1}


def trial(args, cached):
    """Both jobs, one after the other."""
    policy = args.policy if cached else "compute"
    with tempfile.TemporaryDirectory(dir=args.data) as folder:
        file = pipeline(Path(folder), "train", args.rows, STEPS)
        cache = ["--cache", Path(folder) / "cache"] if cached else []
        options = ["--scaling-interval", f"{args.interval}s", "--scale-down-after", f"{args.scale_down_after}s"]
        with Up(args, *options, "--max-workers", 16, *cache) as cluster:
            begin, epochs, batches = time.monotonic(), [], []
            for job, count in EPOCHS.items():
                reader = Reader(cluster, file, job, STEP_S, "--epochs", count, "--policy", policy)
                reader.end()
                epochs += [epoch(cluster.samples, reader.batches, job, e, begin) for e in range(count)]
                batches += reader.batches
                decision = next(j["decision"] for j in cluster.status()["jobs"] if j["job"] == job)
                epochs[-1]["decision"] = decision and decision["reason"]
                while cluster.samples[-1][1] > 1:
                    # The next job begins with one worker.
                    time.sleep(SAMPLE_S)
            end = time.monotonic()
            samples = [(at - begin, target, n) for at, target, n in cluster.samples]
            return {"cached": cached, "epochs": epochs, "samples": samples, "waits": wait_curve(batches, begin, end)}


def epoch(samples, batches, job, number, origin):
    """What one epoch took. The target is that of its last half."""
    own = [b for b in batches if b[2] == number]
    begin, end = own[0][0], own[-1][1]
    settled = [target for at, target, _ in samples if (begin + end) / 2 <= at <= end]
    return {"job": job, "epoch": number, "begin_s": begin - origin, "end_s": end - origin, "rows": sum(b[3] for b in own),
            "target": statistics.median_low(settled), "last_target": settled[-1], "waited": waited_s(batches, begin, end) / (end - begin),
            "worker_s": worker_seconds(samples, begin, end, lambda n: n)}


def table(args, points):
    lines = ["# A second job that finds the snapshot of the first", "",
             f"A row takes {1e3 * (ABOVE_S + BELOW_S):.0f} ms of a worker, and {1e3 * BELOW_S:.0f} ms if it is stored. The consumer "
             f"keeps {NEED} workers busy that compute, and {NEED * BELOW_S / (ABOVE_S + BELOW_S):.1f} that read. {args.build}", "",
             "| cache | job | epoch | seconds | target, median of the last half | at the end | consumer waits | worker-seconds |",
             "|---|---|---|---|---|---|---|---|"]
    for p in points:
        lines += [f"| {'yes' if p['cached'] else 'no'} | {e['job']} | {e['epoch']} | {e['end_s'] - e['begin_s']:.1f} | {e['target']} "
                  f"| {e['last_target']} | {e['waited']:.0%} | {e['worker_s']:.0f} |" for e in p["epochs"]]
    reasons = [(e["job"], e["decision"]) for p in points for e in p["epochs"] if e.get("decision")]
    return [*lines, "", *(f"- Decision for {job}: {reason}" for job, reason in reasons)]


def draw(pyplot, points):
    figure, axes = pyplot.subplots(2, len(points), figsize=(6.5 * len(points), 6), sharex="col", sharey="row", squeeze=False)
    most = max(n for p in points for _, _, n in p["samples"])
    for column, p in enumerate(points):
        top, bottom = axes[0][column], axes[1][column]
        since = [at for at, _, _ in p["samples"]]
        top.step(since, [n for _, _, n in p["samples"]], where="post", color="0.6", linewidth=3, label="workers that run")
        top.step(since, [target for _, target, _ in p["samples"]], where="post", color="C3", linewidth=1.4, label="target")
        bottom.plot(p["waits"][0], [100 * w for w in p["waits"][1]], color="C0")
        top.set(title="with a cache" if p["cached"] else "without a cache", ylim=(0, 1.25 * most))
        bottom.set(xlabel="seconds", ylim=(0, 100))
        for e in p["epochs"]:
            for axis in (top, bottom):
                axis.axvspan(e["begin_s"], e["end_s"], color="C2" if e["job"] == "job-2" else "C1", alpha=0.12)
                axis.axvline(e["begin_s"], color="0.5", linewidth=0.8)
                axis.grid(alpha=0.3)
            middle = (e["begin_s"] + e["end_s"]) / 2
            top.text(middle, 1.14 * most, f"{e['job'].replace('-', ' ')}\nepoch {e['epoch']}", ha="center", va="center", fontsize=9)
    axes[0][0].set_ylabel("workers")
    axes[1][0].set_ylabel("% of its time that the consumer waits")
    axes[0][0].legend(loc="lower left", fontsize=9)
    figure.tight_layout()
    return figure


def main():
    p = parser(__doc__)
    p.add_argument("--rows", type=int, default=11_000, help="rows of an epoch")
    p.add_argument("--policy", default="auto", help="caching policy of the jobs with a cache")
    p.add_argument("--interval", type=int, default=2, help="seconds between two targets")
    p.add_argument("--scale-down-after", type=int, default=10, help="seconds")
    p.add_argument("--caches", default="yes,no", help="whether the jobs have a cache")
    args = p.parse_args()
    points = measured(args, "second_job", lambda: [trial(args, cache == "yes") for cache in args.caches.split(",")])
    publish(args, "second_job", table(args, points), lambda pyplot: draw(pyplot, points))


if __name__ == "__main__":
    main()
