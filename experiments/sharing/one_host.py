#!/usr/bin/env python3
"""Measures what k readers on one machine cost that read equal batches, with shared memory and over sockets.

    cargo build --release && pip install crates/python && experiments/sharing/one_host.py

The readers are Python processes (trainer.py), jobs that share with an order of rows that is part of the epoch. Each takes a
batch per --step, as a training job does, so that its prefetched batches wait. While they read, the memory of each process is
taken from /proc/PID/smaps_rollup: its proportional set size (PSS) counts a page that n processes map as a page of 1/n. Bytes
come from the status. A table and a picture go to results/.
"""

import argparse
import json
import os
import pathlib
import subprocess
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


def files_in_memory():
    """Bytes of all files in memory of the machine, each once, also where no process has touched them yet."""
    lines = pathlib.Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Shmem:"))


class Cluster(run.Cluster):
    """A dispatcher and one worker that holds batches in shared memory, or does not."""

    def __init__(self, way):
        window = run.args.window
        super().__init__("--sharing-window", window, "--sharing-backlog", window, "--shared-memory", WAYS[way])

    def train(self, file, job):
        report = pathlib.Path(tempfile.mkstemp(suffix=".json")[1])
        command = [sys.executable, HERE / "trainer.py", file, f"caju://{self.dispatcher.address}", job, str(run.args.step), report]
        return subprocess.Popen(list(map(str, command))), report

    def served(self, job):
        """What the tasks of a job gave out, once they have ended."""
        for _ in range(200):
            status = json.loads(subprocess.run(run.caju("status", "--dispatcher", self.dispatcher.address, "--format", "json"),
                                               check=True, capture_output=True, text=True).stdout)
            found = next(j for j in status["jobs"] if j["job"] == job)
            if found["state"] != "running" and found["tasks"] == 0:
                return found["served"]
            time.sleep(0.1)
        sys.exit(f"{job} does not end")


def measure(readers, way):
    with Cluster(way) as cluster:
        file, begin = run.pipeline("deterministic"), cluster.worker.cpu_s()
        start, files_before = time.monotonic(), files_in_memory()
        running = [cluster.train(file, f"job-{i}") for i in range(readers)]
        samples = []
        while all(process.poll() is None for process, _ in running):
            now = [memory(process.pid) for process, _ in running]
            worker = memory(cluster.worker.process.pid)
            if all(now) and worker:
                samples.append((now, worker, files_in_memory() - files_before))
            time.sleep(0.05)
        if any(process.wait() != 0 for process, _ in running):
            sys.exit("a reader failed")
        reports = [json.loads(report.read_text()) for _, report in running]
        if len({(r["rows"], r["total"]) for r in reports}) != 1:
            sys.exit(f"the readers got other rows: {reports}")
        wall, cpu = time.monotonic() - start, cluster.worker.cpu_s() - begin
        served = [cluster.served(f"job-{i}") for i in range(readers)]
        # The fullest moment of all readers together. What Python and its libraries take is not counted.
        at, worker, _ = max(samples, key=lambda s: sum(m["pss"] for m in s[0]))
        mean = lambda key: (sum(m[key] for m in at) - sum(r["before"][key] for r in reports)) // readers
        total = lambda key: sum(s[key] for s in served)
        reused = sum(s["shared"]["reused_bytes"] for s in served)
        return {"readers": readers, "way": way, "rows": sum(r["rows"] for r in reports), "mapped": total("mapped_bytes"),
                "written": total("mapped_bytes") - reused, "sent": total("sent_bytes"),
                "shared_per_reader": mean("shared"), "own_per_reader": mean("own"),
                "of_readers": readers * (mean("shared") + mean("own")), "files": max(0, *(s[2] for s in samples)),
                "pss_of_worker": worker["pss"], "cpu_s": round(cpu, 2), "wall_s": round(wall, 2)}


def table(runs):
    out = ["# Readers on one machine: the last run", "",
           f"{run.args.photos} photos, a batch of 64 per {run.args.step} s and reader, one worker, {os.cpu_count()} cores. {run.args.build}", "",
           "Written: MiB that the worker put into shared memory, once for all readers. Mapped: MiB that readers got there.",
           "Sent: MiB that were copied through sockets. Memory: MiB (PSS) at the fullest moment of all readers, without what",
           "they had before their first batch. Files: the most MiB of files in memory on the machine, each counted once, with",
           "batches that no reader has touched yet.", "",
           "| readers | rows by | written | mapped | sent | shared memory per reader | own memory per reader | all readers | files | PSS of the worker | CPU s of the worker | seconds |",
           "|---|---|---|---|---|---|---|---|---|---|---|---|"]
    keys = ["written", "mapped", "sent", "shared_per_reader", "own_per_reader", "of_readers", "files", "pss_of_worker"]
    for r in runs:
        sizes = " | ".join(str(round(r[key] / MIB)) for key in keys)
        out.append(f"| {r['readers']} | {r['way']} | {sizes} | {r['cpu_s']} | {r['wall_s']} |")
    return "\n".join(out) + "\n\n![Memory of all readers](one_host.svg)\n"


def plot(runs):
    """The memory of all readers against their number, as SVG."""
    width, height, left, top = 560, 320, 60, 20
    most, last = max(r["of_readers"] for r in runs), max(r["readers"] for r in runs)
    x = lambda n: left + (n - 1) / max(last - 1, 1) * (width - left - 20)
    y = lambda size: top + (1 - size / most) * (height - top - 50)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="12">',
             f'<line x1="{left}" y1="{y(0):.0f}" x2="{width - 20}" y2="{y(0):.0f}" stroke="black"/>']
    for way, colour in (("sockets", "#888"), ("shared memory", "#c40")):
        line = [(x(r["readers"]), y(r["of_readers"])) for r in runs if r["way"] == way]
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
    parser.add_argument("--step", type=float, default=0.1, help="seconds that a reader takes for a batch")
    parser.add_argument("--window", default="1GiB")
    parser.add_argument("--build", default="", help="a sentence about the build and the machine, for the table")
    run.args = parser.parse_args()
    main()
