#!/usr/bin/env python3
"""Measures what a job that is slower than another one costs under each `--sharing-lag`.

    cargo build --release && experiments/sharing/lagging.py

Two equal jobs share. One reads as fast as it can. The other one is stopped for 95 % of the time (SIGSTOP and
SIGCONT), so that it falls behind by more than the window holds. The CPU time is that of the worker's process. The ways take
turns; the table in results/lagging.md has medians, and the smallest and the largest value where they matter.
"""

import argparse
import json
import os
import pathlib
import signal
import statistics
import tempfile
import threading
import time

import run

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
WAYS = ("off", "throttle", "drop", "spill")
PERIOD_S, READS = 0.4, 0.05
"""A slow reader reads for this part of each period, in seconds, and stands still for the rest."""


class Slow(threading.Thread):
    """Stops a process for most of the time, until it ends. It is left alone until its job has rows, or it would begin late."""

    def __init__(self, process):
        super().__init__(daemon=True)
        self.process = process

    def run(self):
        while self.process.poll() is None:
            self.process.send_signal(signal.SIGSTOP)
            time.sleep(PERIOD_S * (1 - READS))
            self.process.send_signal(signal.SIGCONT)
            time.sleep(PERIOD_S * READS)


def measure(way):
    sharing = "off" if way == "off" else "exact"
    lag = ("--sharing-lag", "drop" if way == "off" else way, "--sharing-spill-dir", run.args.spill_dir)
    with run.Cluster("--sharing-window", run.args.window, "--sharing-wait", run.args.wait, *lag) as cluster:
        begin, start = cluster.worker.cpu_s(), time.monotonic()
        slow = cluster.read(run.pipeline(run.args.pipeline), "slow", sharing)
        while cluster.progress("slow")[0] == 0 and slow[0].poll() is None:
            time.sleep(0.01)
        Slow(slow[0]).start()
        quick = cluster.read(run.pipeline(run.args.pipeline), "quick", sharing)
        epochs = [run.finish(quick)]
        quick_s = time.monotonic() - start
        epochs.append(run.finish(slow))
        wall, cpu = time.monotonic() - start, cluster.worker.cpu_s() - begin
        rows = sum(e["rows"] for e in epochs)
        shared = lambda name: sum((e.get("shared") or {}).get(name) or 0 for e in epochs)
        return {"way": way, "rows": rows, "computed": shared("computed_rows") if way != "off" else rows, "cpu_s": cpu,
                "quick_s": quick_s, "slow_s": wall, "read_back": shared("read_back"), "peak": cluster.worker.peak_bytes() / 2**20}


def table(runs):
    args = run.args
    out = ["# A job that lags: the last run", "",
           f"{args.photos} photos ({args.pipeline}), one worker with a window of {args.window} and `--sharing-wait {args.wait}`, {os.cpu_count()} cores, medians of "
           f"{args.reps} runs that took turns (smallest to largest). {args.build}", "",
           "| `--sharing-lag` | rows computed | CPU s of the worker | quick job, s | slow job, s | batches read back | peak MiB of the worker |",
           "|---|---|---|---|---|---|---|"]
    for way in WAYS:
        mine = [r for r in runs if r["way"] == way]
        middle = lambda key: statistics.median(r[key] for r in mine)
        spread = lambda key: f"{middle(key):.2f} ({min(r[key] for r in mine):.2f} to {max(r[key] for r in mine):.2f})"
        name = "no sharing" if way == "off" else way
        out.append(f"| {name} | {middle('computed'):.0f} | {spread('cpu_s')} | {spread('quick_s')} | {spread('slow_s')} "
                   f"| {middle('read_back'):.0f} | {middle('peak'):.0f} |")
    return "\n".join(out) + "\n"


def main():
    args = run.args
    for folder in (args.data, args.results):
        folder.mkdir(parents=True, exist_ok=True)
    run.pipeline(args.pipeline)
    runs = [measure(way) for _ in range(args.reps) for way in WAYS]
    (args.data / "lagging.json").write_text(json.dumps(runs, indent=1) + "\n")
    (args.results / "lagging.md").write_text(table(runs))
    print(table(runs))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--caju", type=pathlib.Path, default=ROOT / "target/release/caju")
    parser.add_argument("--data", type=pathlib.Path, default=ROOT / "data/sharing")
    parser.add_argument("--results", type=pathlib.Path, default=HERE / "results")
    parser.add_argument("--spill-dir", type=pathlib.Path, default=pathlib.Path(tempfile.gettempdir()))
    parser.add_argument("--photos", type=int, default=6000)
    parser.add_argument("--pipeline", default="uint8", help="uint8 or float32")
    parser.add_argument("--window", default="256MiB")
    parser.add_argument("--wait", default="30s")
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--build", default="", help="a sentence about the build and the machine, for the table")
    run.args = parser.parse_args()
    main()
