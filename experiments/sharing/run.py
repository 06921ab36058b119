#!/usr/bin/env python3
"""Measures what k identical jobs cost on one worker, with sharing and without, and what a job costs that joins late.

    cargo build --release && experiments/sharing/run.py

Photos are generated once, under data/sharing. The CPU time is that of the worker's process, from /proc, so that readers
and the dispatcher are not in it. A table and a picture go to results/.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PIPELINES = ("float32", "float32-in-order", "uint8")
made = set()
TICKS = os.sysconf("SC_CLK_TCK")


def caju(*command, **more):
    return [str(args.caju), *map(str, command)]


def generate(photos):
    folder = args.data / f"photos-{photos}"
    if not folder.exists():
        subprocess.run(caju("gen", "images", "--out", folder, "--count", photos, "--format", "tfrecord", "--shards", 8),
                       check=True)
    return folder


def pipeline(name, photos=None):
    """A pipeline of this folder, over photos."""
    photos = photos or args.photos
    ready = args.data / f"{name}-{photos}.yaml"
    if ready not in made:
        ready.write_text((HERE / f"{name}.yaml").read_text().replace("$PHOTOS", str(generate(photos).resolve())))
        made.add(ready)
    return ready


class Server:
    """A server process, and the address that it prints."""

    def __init__(self, *command):
        self.process = subprocess.Popen(caju(*command), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.address = self.process.stdout.readline().split()[-1]

    def stop(self):
        self.process.terminate()
        self.process.wait(60)

    def cpu_s(self):
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def peak_bytes(self):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))


class Cluster:
    """A dispatcher and one worker with further arguments, by default the window and the backlog of the command."""

    def __init__(self, *worker):
        self.more = worker or ("--sharing-window", args.window, "--sharing-backlog", args.backlog, "--shared-memory", args.shared_memory)

    def __enter__(self):
        allow = ["--allow-read", ROOT, "--allow-read", args.data]
        self.dispatcher = Server("dispatcher", "--listen", "127.0.0.1:0", "--heartbeat", "50ms", *allow)
        self.worker = Server("worker", "--dispatcher", self.dispatcher.address, *allow, *self.more)
        return self

    def __exit__(self, *_):
        self.worker.stop()
        self.dispatcher.stop()

    def read(self, file, job, sharing):
        report = pathlib.Path(tempfile.mkstemp(suffix=".json")[1])
        command = caju("read", file, "--dispatcher", self.dispatcher.address, "--job", job, "--sharing", sharing,
                       "--policy", "compute", "--no-checksum", "--quiet", "--report", report)
        return subprocess.Popen(command, stdout=subprocess.DEVNULL), report

    def jobs(self):
        """The jobs of the status."""
        return json.loads(subprocess.run(caju("status", "--dispatcher", self.dispatcher.address, "--format", "json"),
                                         check=True, capture_output=True, text=True).stdout)["jobs"]

    def progress(self, job):
        """The rows that the readers of a job took, and those that were computed for it, as its worker said last."""
        return progress(self.jobs(), job)

    def computed_when_it_joins(self, job, other):
        """The rows that were computed for a job when another one has got its first row, or before."""
        computed = self.progress(job)[1]
        while True:
            jobs = self.jobs()
            if progress(jobs, other)[0] > 0 or not any(j["job"] == job and j["state"] == "running" for j in jobs):
                return computed
            computed = progress(jobs, job)[1]


def progress(jobs, job):
    found = [j for j in jobs if j["job"] == job]
    took = sum(r["rows"] for j in found for r in j["readers"])
    return took, sum((j["served"].get("shared") or {}).get("computed_rows", 0) for j in found)


def finish(reader):
    process, report = reader
    if process.wait() != 0:
        sys.exit("a reader failed")
    epoch = json.loads(report.read_text())["epochs"][0]
    report.unlink()
    return epoch


def together(name, jobs, sharing):
    """k jobs that begin together."""
    with Cluster() as cluster:
        begin, start = cluster.worker.cpu_s(), time.monotonic()
        epochs = [finish(r) for r in [cluster.read(pipeline(name), f"job-{i}", sharing) for i in range(jobs)]]
        wall, cpu = time.monotonic() - start, cluster.worker.cpu_s() - begin
        rows = sum(e["rows"] for e in epochs)
        computed = sum(e["shared"]["computed_rows"] for e in epochs) if sharing == "exact" else rows
        return {"pipeline": name, "jobs": jobs, "sharing": sharing, "rows": rows, "computed_rows": computed, "cpu_s": round(cpu, 2),
                "wall_s": round(wall, 2), "rows_per_cpu_s": round(rows / cpu, 1), "peak_bytes": cluster.worker.peak_bytes()}


def median(runs):
    """One run with the medians of several, and the spread of their CPU times."""
    of = lambda key: [r[key] for r in runs]
    middle = {key: statistics.median(of(key)) for key in ("cpu_s", "wall_s", "rows_per_cpu_s", "peak_bytes", "computed_rows")}
    return runs[0] | middle | {"computed_rows": int(middle["computed_rows"]), "cpu_spread": f"{min(of('cpu_s'))} to {max(of('cpu_s'))}"}


def late(percent, backlog):
    """A job that begins when another one has read a part of its epoch, of twice as many photos."""
    with Cluster("--sharing-window", args.window, "--sharing-backlog", backlog) as cluster:
        first = cluster.read(pipeline("float32", 2 * args.photos), "early", "exact")
        while cluster.progress("early")[0] < 2 * args.photos * percent / 100:
            if first[0].poll() is not None:
                sys.exit("the early job has ended before the late one began: give more --photos")
        reader = cluster.read(pipeline("float32", 2 * args.photos), "late", "exact")
        # A process takes a while to start, and the first job goes on meanwhile.
        missed = cluster.computed_when_it_joins("early", "late")
        epochs = [finish(r) for r in (reader, first)]
        computed = sum(e["shared"]["computed_rows"] for e in epochs)
        return {"backlog": backlog, "joined_at_percent": percent, "missed_rows": missed, "extra_rows": computed - 2 * args.photos}


def alone(runs, name):
    """The CPU time of one job without sharing."""
    return next(r["cpu_s"] for r in runs if (r["pipeline"], r["jobs"], r["sharing"]) == (name, 1, "off"))


def table(runs, joins):
    out = ["# Jobs that share: the last run", "",
           f"{args.photos} photos, one worker with a window of {args.window} and a backlog of {args.backlog}, {os.cpu_count()} cores, medians of {args.reps} runs that took turns. {args.build}", "",
           "| pipeline | jobs | sharing | CPU s of the worker | smallest to largest | of one job alone | rows per CPU s | computed rows | seconds | peak MiB |",
           "|---|---|---|---|---|---|---|---|---|---|"]
    out += [f"| {r['pipeline']} | {r['jobs']} | {r['sharing']} | {r['cpu_s']} | {r['cpu_spread']} | {r['cpu_s'] / alone(runs, r['pipeline']):.2f} "
            f"| {r['rows_per_cpu_s']} | {r['computed_rows']} | {r['wall_s']} | {int(r['peak_bytes']) >> 20} |" for r in runs]
    out += ["", f"A job that joins late (float32, {2 * args.photos} photos). Missed: rows that had been computed for the other job when it",
            "got its first row, as the worker had said in its last heartbeat.", "",
            "| `--sharing-backlog` | joined when the other one had read | rows that it had missed | rows that were computed twice |", "|---|---|---|---|"]
    out += [f"| {j['backlog']} | {j['joined_at_percent']} % | {j['missed_rows']} | {j['extra_rows']} |" for j in joins]
    return "\n".join(out) + "\n\n![CPU time of the worker](sharing.svg)\n"


def plot(runs):
    """CPU time against the number of jobs, as SVG."""
    width, height, left, top = 560, 320, 60, 20
    most = max(r["cpu_s"] for r in runs)
    x = lambda jobs: left + (jobs - 1) / 7 * (width - left - 20)
    y = lambda cpu: top + (1 - cpu / most) * (height - top - 50)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="12">',
             f'<line x1="{left}" y1="{y(0):.0f}" x2="{width - 20}" y2="{y(0):.0f}" stroke="black"/>']
    for name, dash in zip(PIPELINES, ("", "4 3", "1 3")):
        for sharing, colour in (("off", "#888"), ("exact", "#c40")):
            line = [(x(r["jobs"]), y(r["cpu_s"])) for r in runs if (r["pipeline"], r["sharing"]) == (name, sharing)]
            points = " ".join(f"{a:.0f},{b:.0f}" for a, b in line)
            parts.append(f'<polyline fill="none" stroke="{colour}" stroke-dasharray="{dash}" points="{points}"/>')
            parts.append(f'<text x="{line[-1][0] - 110:.0f}" y="{line[-1][1] - 6:.0f}" fill="{colour}">{name}, sharing {sharing}</text>')
    parts += [f'<text x="{x(k):.0f}" y="{y(0) + 16:.0f}">{k}</text>' for k in (1, 2, 4, 8)]
    parts += [f'<text x="{left}" y="{height - 12}">jobs</text>', f'<text x="4" y="{y(most) + 4:.0f}">{most:.0f} s</text>',
              f'<text x="4" y="{y(0):.0f}">CPU s</text>', "</svg>"]
    return "\n".join(parts) + "\n"


def main():
    args.data.mkdir(parents=True, exist_ok=True)
    args.results.mkdir(parents=True, exist_ok=True)
    cases = [(name, k, sharing) for name in PIPELINES for k in args.jobs for sharing in ("off", "exact")]
    measured = {case: [] for case in cases}
    for _ in range(args.reps):
        for case in cases:
            measured[case].append(together(*case))
    runs = [median(of) for of in measured.values()]
    joins = [late(percent, backlog) for backlog in (args.backlog, args.window) for percent in args.joins]
    (args.data / "result.json").write_text(json.dumps({"runs": runs, "joins": joins}, indent=1) + "\n")
    (args.results / "README.md").write_text(table(runs, joins))
    (args.results / "sharing.svg").write_text(plot(runs))
    print((args.results / "README.md").read_text())


def numbers(text):
    return [int(n) for n in text.split(",") if n]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--caju", type=pathlib.Path, default=ROOT / "target/release/caju")
    parser.add_argument("--data", type=pathlib.Path, default=ROOT / "data/sharing")
    parser.add_argument("--results", type=pathlib.Path, default=HERE / "results")
    parser.add_argument("--photos", type=int, default=4000)
    parser.add_argument("--jobs", type=numbers, default=[1, 2, 4, 8])
    parser.add_argument("--joins", type=numbers, default=[5, 20, 50, 80])
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--window", default="1GiB")
    parser.add_argument("--backlog", default="64MiB")
    parser.add_argument("--shared-memory", default="1GiB", help="of the worker, for jobs whose batches are equal")
    parser.add_argument("--build", default="", help="a sentence about the build and the machine, for the table")
    args = parser.parse_args()
    main()
