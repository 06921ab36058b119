#!/usr/bin/env python3
"""Measures what k readers on one machine cost that read equal batches, with shared memory and over sockets.

    cargo build --release && experiments/sharing/one_host.py

The readers are jobs that share (`--sharing exact`) with an order of rows that is part of the epoch. Each takes a batch per
--step, as a training job does, so that its prefetched batches wait. While they read, the memory of each process is taken
from /proc/PID/smaps_rollup: its proportional set size (PSS) counts a page that n processes map as a page of 1/n. Bytes come
from the reports. A table and a picture go to results/.
"""

import argparse
import json
import os
import pathlib
import sys
import tempfile
import time

import run

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
MIB = 1 << 20
WAYS = {"shared memory": "1GiB", "sockets": "0"}


def memory(pid):
    """The proportional set size of a process and the parts of it that are shared memory and its own, in bytes."""
    try:
        lines = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    except OSError:
        return None
    sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}
    return {"pss": sizes["Pss"], "shared": sizes["Pss_Shmem"], "own": sizes["Pss_Anon"]} if sizes.get("Pss") else None


class Cluster(run.Cluster):
    """A dispatcher and one worker that holds batches in shared memory, or does not."""

    def __init__(self, way):
        self.way = way

    def __enter__(self):
        args = run.args
        allow = ["--allow-read", ROOT, "--allow-read", args.data]
        self.dispatcher = run.Server("dispatcher", "--listen", "127.0.0.1:0", *allow)
        self.worker = run.Server("worker", "--dispatcher", self.dispatcher.address, *allow, "--sharing-window", args.window,
                                 "--sharing-backlog", args.window, "--shared-memory", WAYS[self.way])
        return self

    def read(self, file, job):
        report = pathlib.Path(tempfile.mkstemp(suffix=".json")[1])
        command = run.caju("read", file, "--dispatcher", self.dispatcher.address, "--job", job, "--sharing", "exact",
                           "--policy", "compute", "--no-checksum", "--quiet", "--step", run.args.step, "--report", report)
        return run.subprocess.Popen(command, stdout=run.subprocess.DEVNULL), report


def measure(readers, way):
    with Cluster(way) as cluster:
        file, begin = run.pipeline("deterministic"), cluster.worker.cpu_s()
        start = time.monotonic()
        running = [cluster.read(file, f"job-{i}") for i in range(readers)]
        samples = []
        while all(process.poll() is None for process, _ in running):
            now = [memory(process.pid) for process, _ in running]
            if all(now):
                samples.append((now, memory(cluster.worker.process.pid)))
            time.sleep(0.05)
        epochs = [run.finish(reader) for reader in running]
        wall, cpu = time.monotonic() - start, cluster.worker.cpu_s() - begin
        if not samples:
            sys.exit("the readers ended before their memory was measured; take more photos or a longer --step")
        # The fullest moment of all readers together.
        at, worker = max(samples, key=lambda s: sum(m["pss"] for m in s[0]))
        mean = lambda key: sum(m[key] for m in at) // readers
        reused = sum(e["shared"]["reused_bytes"] for e in epochs)
        mapped = sum(e.get("mapped_bytes", 0) for e in epochs)
        return {"readers": readers, "way": way, "rows": sum(e["rows"] for e in epochs), "mapped": mapped,
                "written": mapped - reused, "received": sum(e.get("received_bytes", 0) for e in epochs),
                "pss_per_reader": mean("pss"), "shared_per_reader": mean("shared"), "own_per_reader": mean("own"),
                "pss_of_readers": sum(m["pss"] for m in at), "pss_of_worker": worker["pss"] if worker else 0,
                "cpu_s": round(cpu, 2), "wall_s": round(wall, 2)}


def table(runs):
    out = ["# Readers on one machine: the last run", "",
           f"{run.args.photos} photos, a batch of 64 per {run.args.step} and reader, one worker, {os.cpu_count()} cores. {run.args.build}", "",
           "Written: MiB that the worker put into shared memory, once for all readers. Mapped: MiB that readers got there.",
           "Received: MiB that were copied through sockets. PSS: MiB, at the fullest moment of all readers.", "",
           "| readers | rows by | written | mapped | received | PSS per reader | of it shared | of it its own | PSS of all readers | PSS of the worker | CPU s of the worker | seconds |",
           "|---|---|---|---|---|---|---|---|---|---|---|---|"]
    keys = ["written", "mapped", "received", "pss_per_reader", "shared_per_reader", "own_per_reader", "pss_of_readers", "pss_of_worker"]
    for r in runs:
        sizes = " | ".join(str(round(r[key] / MIB)) for key in keys)
        out.append(f"| {r['readers']} | {r['way']} | {sizes} | {r['cpu_s']} | {r['wall_s']} |")
    return "\n".join(out) + "\n\n![Memory of all readers](one_host.svg)\n"


def plot(runs):
    """The memory of all readers against their number, as SVG."""
    width, height, left, top = 560, 320, 60, 20
    most, last = max(r["pss_of_readers"] for r in runs), max(r["readers"] for r in runs)
    x = lambda n: left + (n - 1) / max(last - 1, 1) * (width - left - 20)
    y = lambda size: top + (1 - size / most) * (height - top - 50)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="12">',
             f'<line x1="{left}" y1="{y(0):.0f}" x2="{width - 20}" y2="{y(0):.0f}" stroke="black"/>']
    for way, colour in (("sockets", "#888"), ("shared memory", "#c40")):
        line = [(x(r["readers"]), y(r["pss_of_readers"])) for r in runs if r["way"] == way]
        points = " ".join(f"{a:.0f},{b:.0f}" for a, b in line)
        parts.append(f'<polyline fill="none" stroke="{colour}" points="{points}"/>')
        parts.append(f'<text x="{line[-1][0] - 90:.0f}" y="{line[-1][1] - 6:.0f}" fill="{colour}">{way}</text>')
    parts += [f'<text x="{x(n):.0f}" y="{y(0) + 16:.0f}">{n}</text>' for n in sorted({r["readers"] for r in runs})]
    parts += [f'<text x="{left}" y="{height - 12}">readers</text>', f'<text x="4" y="{y(most) + 4:.0f}">{most // MIB} MiB</text>',
              f'<text x="4" y="{y(0):.0f}">PSS</text>', "</svg>"]
    return "\n".join(parts) + "\n"


def main():
    args = run.args
    args.data.mkdir(parents=True, exist_ok=True)
    args.results.mkdir(parents=True, exist_ok=True)
    runs = [measure(readers, way) for readers in args.readers for way in WAYS]
    (args.data / "one_host.json").write_text(json.dumps(runs, indent=1) + "\n")
    (args.results / "one_host.md").write_text(table(runs))
    (args.results / "one_host.svg").write_text(plot(runs))
    print(table(runs))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--caju", type=pathlib.Path, default=ROOT / "target/release/caju")
    parser.add_argument("--data", type=pathlib.Path, default=ROOT / "data/sharing")
    parser.add_argument("--results", type=pathlib.Path, default=HERE / "results")
    parser.add_argument("--photos", type=int, default=4000)
    parser.add_argument("--readers", type=run.numbers, default=[1, 2, 4])
    parser.add_argument("--step", default="100ms", help="what a reader takes for a batch")
    parser.add_argument("--window", default="1GiB")
    parser.add_argument("--build", default="", help="a sentence about the build and the machine, for the table")
    run.args = parser.parse_args()
    main()
