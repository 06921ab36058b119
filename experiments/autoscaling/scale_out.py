#!/usr/bin/env python3
"""Rows per second by the number of workers, against linear: one reader, 1 to 64 worker processes.

usage: experiments/autoscaling/scale_out.py [--bin CAJU] [--workers 1,2,4,8,16,32,64] [--row-ms 20]

A row sleeps on its worker, one at a time, so that each worker stands for a machine whose rows are expensive. Once the consumer
takes all rows at once, and once it takes as many as --needs workers give: the speed-up over one worker, which stands for the
cores of the consumer's own machine, then ends at that number.

Needs the Python package `caju`. The table and the picture go to results/scale_out.*, the points to the data folder.
"""

import tempfile
import time
from pathlib import Path

from cluster import ByHand, Reader, cpu_s, measured, parser, pipeline, publish, rss_bytes, sleeping, waited_s

BATCH = 20
# The rate is that of the rows between these fractions of the epoch: neither its first requests nor its last splits are in it.
STEADY = (0.2, 0.8)


def point(args, workers, needs):
    """An epoch with a number of workers. `needs`: how many of them the consumer keeps busy; 0: all."""
    row_s = args.row_ms / 1e3
    rows = int(min(workers, needs or workers) * args.seconds / row_s)
    step_s = BATCH * row_s / needs if needs else 0
    with tempfile.TemporaryDirectory(dir=args.data) as folder:
        file = pipeline(Path(folder), "train", rows, [sleeping(row_s), {"batch": BATCH}])
        with ByHand(args, workers) as cluster:
            cluster.registered(workers)
            before, began = cluster.cpu_s(), time.monotonic()
            reader = Reader(cluster, file, "train", step_s)
            reader_cpu = 0.0
            while reader.running():
                reader_cpu = cpu_s(reader.process.pid) or reader_cpu
                time.sleep(0.1)
            took = time.monotonic() - began
            cpu, pids = cluster.cpu_s() - before, cluster.workers()
            reader.end()
            rss = sum(map(rss_bytes, pids)) / len(pids)
            dispatcher_cpu = cpu_s(cluster.process.pid)
    begin, end = reader.batches[0][0], reader.batches[-1][1]
    return {"workers": workers, "needs": needs, "rows": rows, "steady": steady(reader.batches, rows), "epoch": rows / (end - begin),
            "linear": workers / row_s, "waited": waited_s(reader.batches, begin, end) / (end - begin),
            "cores": (cpu + reader_cpu) / took, "dispatcher_cpu_s": dispatcher_cpu, "reader_cpu_s": reader_cpu, "rss_mib": rss / 2**20}


def steady(batches, rows):
    """Rows per second in the middle of the epoch."""
    seen, marks = 0, []
    for _, got, _, count, _ in batches:
        seen += count
        if len(marks) < 2 and seen >= STEADY[len(marks)] * rows:
            marks.append((got, seen))
    (begin, first), (end, last) = marks
    return (last - first) / (end - begin)


def measure(args):
    points = []
    for needs in (0, args.needs):
        for workers in args.workers:
            points.append(point(args, workers, needs))
            print({k: round(v, 2) for k, v in points[-1].items()}, flush=True)
    return points


def table(args, points):
    lines = ["# Rows per second by the number of workers", "",
             f"A row takes {args.row_ms} ms of a worker. *Steady*: the rows between a fifth and four fifths of the epoch. *Of linear*: "
             f"that rate, divided by the number of workers and by 1 / {args.row_ms} ms. *Cores*: CPU seconds of all processes per second. "
             f"{args.build}", ""]
    for needs in (0, args.needs):
        own = [p for p in points if p["needs"] == needs]
        one = own[0]["steady"] / own[0]["workers"]
        lines += ["The consumer takes all rows at once:" if needs == 0 else
                  f"The consumer takes as many rows as {needs} workers give:", "",
                  "| workers | steady rows/s | of linear | speed-up over one worker | whole epoch, rows/s | consumer waits | cores | "
                  "dispatcher, CPU s | memory of a worker |", "|---|---|---|---|---|---|---|---|---|"]
        lines += [f"| {p['workers']} | {p['steady']:,.0f} | {p['steady'] / p['linear']:.1%} | {p['steady'] / one:.1f} "
                  f"| {p['epoch']:,.0f} | {p['waited']:.0%} | {p['cores']:.2f} | {p['dispatcher_cpu_s']:.1f} | {p['rss_mib']:.0f} MiB |"
                  for p in own]
        lines.append("")
    return lines[:-1]


def draw(pyplot, points):
    figure, axes = pyplot.subplots(figsize=(6.5, 4.6))
    most = max(p["workers"] for p in points)
    axes.plot([1, most], [1, most], "--", color="0.6", label="linear")
    for needs, color in zip(sorted({p["needs"] for p in points}), ("C3", "C0")):
        own = [p for p in points if p["needs"] == needs]
        label = f"the consumer needs {needs} workers" if needs else "the consumer takes all rows at once"
        axes.plot([p["workers"] for p in own], [p["steady"] / own[0]["steady"] for p in own], "o-", color=color, label=label)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    ticks = sorted({p["workers"] for p in points})
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_ticks(ticks, labels=map(str, ticks))
    axes.set(xlabel="workers", ylabel="times as many rows per second as one worker")
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


def main():
    p = parser(__doc__)
    p.add_argument("--workers", type=lambda text: [int(n) for n in text.split(",")], default=[1, 2, 4, 8, 16, 32, 64])
    p.add_argument("--row-ms", type=float, default=20.0, help="milliseconds of a row on a worker")
    p.add_argument("--needs", type=int, default=32, help="workers that the slower consumer keeps busy")
    p.add_argument("--seconds", type=float, default=20.0, help="seconds that an epoch takes if the rate is linear")
    args = p.parse_args()
    points = measured(args, "scale_out", lambda: measure(args))
    publish(args, "scale_out", table(args, points), lambda pyplot: draw(pyplot, points))


if __name__ == "__main__":
    main()
