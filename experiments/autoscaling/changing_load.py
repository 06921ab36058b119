#!/usr/bin/env python3
"""Load that changes in mid-epoch: how soon each rule has enough workers again, and how many it wastes meanwhile.

usage: experiments/autoscaling/changing_load.py [--bin CAJU] [--changes cost,consumer,preempted] [--rules caju,...]

Every trial is an epoch on a cluster of real processes. A row sleeps on its worker, so that each worker stands for a machine. The
consumer needs 3.3 workers. In mid-epoch either a row becomes 4 times as expensive, or the consumer twice as fast, or half of the
workers are killed. `caju` is `caju up --workers auto`. The numbers of the other rules (rules.py) are followed by this script,
which also replaces workers that died, as Kubernetes does. Every rule decides once per --interval.

Needs the Python package `caju`. The table and the picture go to results/changing_load.*, the points to the data folder.
"""

import math
import os
import signal
import tempfile
import time
from pathlib import Path

from cluster import (PAYLOAD, SAMPLE_S, WINDOW_S, ByHand, Reader, Up, measured, parser, pipeline, publish, served_after_s,
                     signalled, sleeping, wait_curve, waited_s, worker_seconds)
from rules import Cachew, hpa

# Seconds of a row on a worker, rows of a batch, and the workers that the consumer keeps busy before the change.
ROW_S, BATCH, NEED = 0.02, 10, 3.3
STEP_S = BATCH * ROW_S / NEED
# How much more a row costs after the change.
FACTOR = 4
# More rows than any trial reads.
ROWS = 60_000
CHANGES = {"cost": "a row becomes 4 times as expensive", "consumer": "the consumer becomes twice as fast",
           "preempted": "half of the workers are killed"}
# The cheapest number of workers with which the consumer does not wait, after each change.
ENOUGH = {"cost": math.ceil(NEED * FACTOR), "consumer": math.ceil(2 * NEED), "preempted": math.ceil(NEED)}
BEFORE = math.ceil(NEED)
RULES = {"caju": "caju", "hpa": "HPA, a busy worker shows 100 % of its CPU", "hpa55": "HPA, a busy worker shows 55 %",
         "cachew": "Cachew's rule"}
# The most workers of every rule.
MOST = 32
# Intervals over which the utilisation is averaged: workers report once per second.
AVERAGED = 3


def steps(change, cheap_rows):
    """The stages. Where the cost changes, three of four rows are dropped below the sleep from some row on, so that each row that
    is left takes four times as long."""
    drops = [{"filter": f"id < {cheap_rows} OR id % {FACTOR} = 0"}] if change == "cost" else []
    return [sleeping(ROW_S), *drops, PAYLOAD, {"batch": BATCH}]


class Rule:
    """The number of workers that another system's rule wants, from what it would see."""

    def __init__(self, name, scale_down_after_s):
        self.busy_cpu = {"hpa": 1.0, "hpa55": 0.55}.get(name)
        self.cachew, self.workers, self.seen = Cachew(BEFORE, STEP_S), BEFORE, []
        # HPA takes the most that it wanted within this time, its stabilisation window, and what it wanted.
        self.stable_s, self.wanted = scale_down_after_s, []

    def decide(self, cluster, reader, begin, now):
        """Workers after an interval from `begin` to `now`."""
        if self.busy_cpu is None:
            times = [b[1] for b in reader.batches if begin <= b[1] < now]
            if len(times) > 1:
                self.workers = self.cachew.on_batch_time((times[-1] - times[0]) / (len(times) - 1))
            return self.workers
        self.seen.append((now, busy_s(cluster)))
        if self.seen[-1][1] < self.seen[-2:][0][1]:
            # The seconds of workers that were killed are gone: there is no utilisation until the next report.
            self.seen = self.seen[-1:]
        then, before = self.seen[-AVERAGED - 1:][0]
        there = worker_seconds(cluster.samples, then, now, lambda n: n)
        if there > 0:
            busy = min(1.0, max(0.0, self.seen[-1][1] - before) / there)
            self.wanted.append((now, min(hpa(self.workers, self.busy_cpu * busy), MOST)))
            self.workers = max(n for at, n in self.wanted if at > now - self.stable_s)
        return self.workers


def busy_s(cluster):
    """Seconds for which the workers slept for rows, as they reported."""
    jobs = cluster.status()["jobs"]
    return sum(s["busy_s"] for job in jobs for s in job["stages"] if "sleep" in s["name"])


def trial(args, change, rule):
    """One epoch, with the change in the middle."""
    options = ["--scaling-interval", f"{args.interval}s", "--scale-down-after", f"{args.scale_down_after}s", "--max-workers", MOST]
    with tempfile.TemporaryDirectory(dir=args.data) as folder:
        cheap_rows = int(args.warm_up * BATCH / STEP_S)
        file = pipeline(Path(folder), change, ROWS, steps(change, cheap_rows))
        with Up(args, *options) if rule == "caju" else ByHand(args, BEFORE, *options) as cluster:
            reader = Reader(cluster, file, "train", STEP_S)
            try:
                return follow(args, change, rule, cluster, reader, cheap_rows)
            finally:
                reader.stop()


def follow(args, change, rule, cluster, reader, cheap_rows):
    other = None if rule == "caju" else Rule(rule, args.scale_down_after)
    while not reader.batches and reader.running():
        time.sleep(SAMPLE_S)
    begin, changed, before = time.monotonic(), None, None
    decided = begin
    while changed is None or time.monotonic() < changed + args.observe:
        time.sleep(SAMPLE_S)
        now = time.monotonic()
        if not reader.running():
            raise SystemExit(f"{change}, {rule}: the epoch ended within {now - begin:.0f} s")
        if other:
            if now >= decided + args.interval:
                other.decide(cluster, reader, decided, now)
                decided = now
            cluster.want(other.workers)
        if changed is None:
            before = len(cluster.workers())
            changed = apply(args, change, cluster, reader, begin, now, cheap_rows)
    return summary(change, rule, cluster.samples, reader.batches, begin, changed, changed + args.observe, before)


def apply(args, change, cluster, reader, begin, now, cheap_rows):
    """Makes the change if it is time. The moment at which it was made, else none."""
    if change == "cost":
        return next((b[0] for b in reader.batches if b[4] >= cheap_rows), None)
    if now < begin + args.warm_up:
        return None
    if change == "consumer":
        reader.process.send_signal(signal.SIGUSR1)
    else:
        workers = sorted(cluster.workers())
        for pid in workers[:len(workers) // 2]:
            signalled(pid, signal.SIGKILL)
    return now


def summary(change, rule, samples, batches, begin, changed, end, before):
    enough = ENOUGH[change]
    after = [(at, target, n) for at, target, n in samples if changed <= at <= end]
    return {
        "change": change, "rule": rule, "changed_s": changed - begin, "end_s": end - begin,
        "workers_before": before, "workers_after": after[-1][2],
        "enough_after_s": next((at - changed for at, _, n in after if n >= enough), None),
        "served_after_s": served_after_s(batches, changed, end),
        "waited_s": waited_s(batches, changed, end),
        "wasted": worker_seconds(samples, changed, end, lambda n: max(0, n - enough)),
        "missing": worker_seconds(samples, changed, end, lambda n: max(0, enough - n)),
        "samples": [(at - begin, target, n) for at, target, n in samples],
        "waits": wait_curve(batches, begin, end),
    }


def table(args, points):
    seconds = lambda s: "never" if s is None else f"{s:.1f} s"
    lines = ["# Load that changes in mid-epoch", "",
             f"Observed for {args.observe} s after the change; every rule decides once per {args.interval} s. {args.build}", "",
             "| change | enough workers | rule | workers before | workers at the end | enough workers after | the consumer waits no "
             "longer after | it waited | worker-seconds wasted | worker-seconds missing |", "|---|---|---|---|---|---|---|---|---|---|"]
    lines += [f"| {CHANGES[p['change']]} | {ENOUGH[p['change']]} | {RULES[p['rule']]} | {p['workers_before']} | {p['workers_after']} "
              f"| {seconds(p['enough_after_s'])} | {seconds(p['served_after_s'])} | {p['waited_s']:.1f} s | {p['wasted']:.0f} "
              f"| {p['missing']:.0f} |" for p in points]
    return [*lines, "", f"*Waits no longer*: for less than 5 % of every further window of {WINDOW_S:.0f} s. *Never*: not within the "
            "observed time. *Wasted*: workers beyond the cheapest number that is enough, over time. *Missing*: those below it."]


def draw(pyplot, points):
    changes = [c for c in CHANGES if any(p["change"] == c for p in points)]
    figure, axes = pyplot.subplots(2, len(changes), figsize=(5 * len(changes), 6), sharex="col", squeeze=False)
    for column, change in enumerate(changes):
        top, bottom = axes[0][column], axes[1][column]
        top.axhline(ENOUGH[change], color="0.6", linestyle="--", label="enough after the change")
        for p in (p for p in points if p["change"] == change):
            style = dict(color=f"C{list(RULES).index(p['rule'])}", linewidth=2.4 if p["rule"] == "caju" else 1.4)
            since = [at - p["changed_s"] for at, _, _ in p["samples"]]
            top.step(since, [n for _, _, n in p["samples"]], where="post", label=RULES[p["rule"]], **style)
            bottom.plot([at - p["changed_s"] for at in p["waits"][0]], [100 * w for w in p["waits"][1]], **style)
        for axis in (top, bottom):
            axis.axvline(0, color="0.3", linewidth=0.8)
            axis.grid(alpha=0.3)
        top.set_title(f"At 0 s {CHANGES[change]}", fontsize=11)
        top.set_ylim(bottom=0)
        bottom.set(xlabel="seconds since the change", ylim=(0, 100), xlim=(-20, None))
    axes[0][0].set_ylabel("workers that run")
    axes[1][0].set_ylabel("% of its time that the consumer waits")
    lines, names = axes[0][0].get_legend_handles_labels()
    figure.legend(lines, names, fontsize=9, loc="lower center", ncols=len(names))
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    return figure


def main():
    p = parser(__doc__)
    names = lambda text: text.split(",")
    p.add_argument("--changes", type=names, default=list(CHANGES))
    p.add_argument("--rules", type=names, default=list(RULES))
    p.add_argument("--interval", type=int, default=2, help="seconds between two decisions of every rule")
    p.add_argument("--scale-down-after", type=int, default=10, help="seconds, of caju's loop and of HPA")
    p.add_argument("--warm-up", type=int, default=30, help="seconds before the change")
    p.add_argument("--observe", type=int, default=60, help="seconds after the change")
    args = p.parse_args()
    points = measured(args, "changing_load", lambda: [trial(args, change, rule) for change in args.changes for rule in args.rules])
    publish(args, "changing_load", table(args, points), lambda pyplot: draw(pyplot, points))


if __name__ == "__main__":
    main()
