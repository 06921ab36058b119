#!/usr/bin/env python3
"""Rates of one worker by the number of its cores, compared with those of as many workers of one core each.

usage: experiments/cores/run.py --bin target/release [--cores 1,2,4,8,12] [--reader-cores 4] [--seconds 8] [--rounds 2] [--only NAME,...]
                                [--keep RESULT.json]

BIN is a folder with `caju`: `cargo build --release -p caju`. The workers are bound to the first cores of the machine; the dispatcher and the
readers are bound to the last ones, so that they take nothing from the workers. The table and the picture go to results/, the figures to
data/cores/result.json. Needs Python alone, and a machine with more cores than the readers have.
"""

import argparse
import json
import os
import pathlib
import platform
import re
import statistics
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from processes import Server, cpu_s  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PEERS = ROOT / "benches/peers"
CPUS = sorted(os.sched_getaffinity(0))
ONE, MANY = "one worker", "workers of one core"
# Seconds between two looks at the status.
LOOK_S = 0.1
NAMES = {"p1_u8": "images as uint8", "p1_f32": "images as float32", "p4": "a table", "p3": "stored images"}


# ---------------------------------------------------------------- pipelines
def caju(*command):
    subprocess.run([args.bin / "caju", *map(str, command)], check=True, stdout=subprocess.DEVNULL)


def with_repeat(text, before, times):
    """The pipeline with its rows again and again: an epoch longer than the measurement."""
    return text.replace(f"  - {before}", f"  - repeat: {times}\n  - {before}", 1)


def pipelines(data):
    """(name, file, file of a first epoch that stores rows or none)."""
    photos, table = 2000 if args.small else 8000, 200_000 if args.small else 2_000_000
    caju("gen", "images", "--overwrite", "--out", data / "tfrecord", "--count", photos, "--format", "tfrecord", "--shards", 64)
    caju("gen", "table", "--overwrite", "--out", data / "criteo", "--count", table, "--format", "parquet", "--shards", 64)
    for name in NAMES:
        text = (PEERS / f"{name}.yaml").read_text().replace("$DATA", str(data.resolve()))
        first = data / f"{name}-first.yaml"
        first.write_text(text)
        file = data / f"{name}.yaml"
        # Stored rows are repeated above the hint, and the others at the source.
        above = {"p3": "batch", "p4": "map"}.get(name, "parse_example")
        file.write_text(with_repeat(text, above, 10_000))
        yield name, file, first if name == "p3" else None


# ---------------------------------------------------------------- processes
def bound_to(cpus):
    return lambda: os.sched_setaffinity(0, cpus)


def server(cpus, role, *more):
    return Server(args.bin / "caju", role, *more, preexec_fn=bound_to(cpus))


def rows_served(address):
    command = [args.bin / "caju", "status", "--dispatcher", address, "--format", "json"]
    seen = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return sum(job["served"]["rows"] for job in seen["jobs"] if job["job"] == "train")


def measure(name, file, first, cores, kind):
    """Rows per second in the second half of the time, and how much of the cores the processes used."""
    workers_on, readers_on = CPUS[:cores], CPUS[-args.reader_cores:]
    cache = ["--cache", args.data / "cache"] if first else []
    policy = ["--policy", "full"] if first else []
    dispatcher = server(readers_on, "dispatcher", *cache)
    joined = ["--dispatcher", dispatcher.address]
    sets = [workers_on] if kind == ONE else [[cpu] for cpu in workers_on]
    servers = [dispatcher, *(server(cpus, "worker", *joined) for cpus in sets)]
    read = lambda f, job: subprocess.Popen([args.bin / "caju", "read", f, *joined, *policy, "--job", job, "--no-checksum", "--quiet"],
                                           stdout=subprocess.DEVNULL, preexec_fn=bound_to(readers_on))
    readers = []
    try:
        if first and read(first, "first").wait() != 0:
            sys.exit(f"error: the first epoch of {file.name} failed")
        readers += [read(file, "train") for _ in range(args.readers)]
        began, points, used = time.monotonic(), [], None
        while (now := time.monotonic() - began) < args.seconds:
            time.sleep(LOOK_S)
            if any(r.poll() is not None for r in readers):
                sys.exit(f"error: a reader of {file.name} has ended")
            if now < args.seconds / 2:
                continue
            seconds = lambda: (time.monotonic(), sum(cpu_s(s.p.pid) or 0 for s in servers[1:]), sum(cpu_s(r.pid) or 0 for r in readers))
            used = used or seconds()
            rows = rows_served(dispatcher.address)
            # The count changes with the heartbeats; its changes are exact in time.
            if not points or points[-1][1] != rows:
                points.append((time.monotonic(), rows))
        t, of_workers, of_readers = (b - a for a, b in zip(used, seconds()))
        if len(points) < 3:
            sys.exit(f"error: {file.name} changed its count {len(points)} times in {args.seconds / 2:.0f} s; give more --seconds")
        # The first point is from before a change.
        (t0, r0), (t1, r1) = points[1], points[-1]
        return dict(work=name, cores=cores, kind=kind, rows_per_s=(r1 - r0) / (t1 - t0), worker_cores=of_workers / t, reader_cores=of_readers / t)
    finally:
        for reader in readers:
            reader.kill()
            reader.wait()
        for process in reversed(servers):
            process.stop()


# ---------------------------------------------------------------- table and picture
def medians(runs):
    """work: kind: cores: the median of each figure."""
    out = {}
    for r in runs:
        out.setdefault(r["work"], {}).setdefault(r["kind"], {}).setdefault(r["cores"], []).append(r)
    middle = lambda rs: {k: statistics.median(r[k] for r in rs) for k in ("rows_per_s", "worker_cores", "reader_cores")}
    return {w: {k: {c: middle(rs) for c, rs in by.items()} for k, by in kinds.items()} for w, kinds in out.items()}


def table(result):
    lines = ["# Last result", "", f"{result['machine']}. `run.py {result['options']}`, medians of {result['rounds']} rounds. {args.build}".rstrip(), ""]
    lines += ["*Gain* is the rate over that of one core. *Cores used* are CPU seconds per second.", "",
              "| pipeline | cores | one worker, rows/s | gain | cores used | as many workers, rows/s | gain | one / many | cores of readers |",
              "|---|---|---|---|---|---|---|---|---|"]
    for work, kinds in medians(result["runs"]).items():
        one, many = kinds[ONE], kinds[MANY]
        for cores, r in sorted(one.items()):
            m, rate = many[cores], lambda of: of["rows_per_s"]
            lines.append(f"| {NAMES[work]} | {cores} | {rate(r):,.0f} | {rate(r) / rate(one[min(one)]):.2f} | {r['worker_cores']:.1f} | {rate(m):,.0f} | "
                         f"{rate(m) / rate(many[min(many)]):.2f} | {rate(r) / rate(m):.2f} | {r['reader_cores']:.1f} |")
    return "\n".join([*lines, "", "![Gain by cores](cores.svg)", ""])


def picture(result):
    """The gain of each pipeline by the cores of its worker, as SVG: solid for one worker, dashed for workers of one core."""
    works = medians(result["runs"])
    most = max(c for kinds in works.values() for by in kinds.values() for c in by)
    size, left, top = 420, 50, 20
    x, y = (lambda c: left + c / most * size), (lambda g: top + (1 - g / most) * size)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{size + 260}" height="{size + 70}" font-family="sans-serif" font-size="12">',
             f'<rect x="{left}" y="{top}" width="{size}" height="{size}" fill="none" stroke="#ccc"/>',
             f'<line x1="{x(0)}" y1="{y(0)}" x2="{x(most)}" y2="{y(most)}" stroke="#bbb"/>']
    for c in sorted({c for kinds in works.values() for by in kinds.values() for c in by}):
        parts.append(f'<text x="{x(c) - 4:.0f}" y="{y(0) + 16:.0f}">{c}</text><text x="{left - 24}" y="{y(c) + 4:.0f}">{c}</text>')
    for i, (work, kinds) in enumerate(works.items()):
        colour = ("#c40", "#06c", "#292", "#808")[i]
        for kind, dash in ((ONE, ""), (MANY, ' stroke-dasharray="4 3"')):
            by = sorted(kinds[kind].items())
            points = " ".join(f"{x(c):.1f},{y(r['rows_per_s'] / by[0][1]['rows_per_s']):.1f}" for c, r in by)
            parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="1.6"{dash} points="{points}"/>')
        parts.append(f'<text x="{left + size + 12}" y="{top + 16 + 20 * i}" fill="{colour}">{NAMES[work]}</text>')
    parts += [f'<text x="{left + size + 12}" y="{top + 120}">solid: one worker</text>',
              f'<text x="{left + size + 12}" y="{top + 140}">dashed: workers of one core</text>',
              f'<text x="{left + size + 12}" y="{top + 160}" fill="#999">grey: proportional</text>',
              f'<text x="{left}" y="{size + 58}">cores of the workers</text><text x="{left}" y="14">rate over that of one core</text>', "</svg>"]
    return "\n".join(parts) + "\n"


def machine():
    """What the result ran on: the processor's name, its cores and how many of them share one."""
    text = pathlib.Path("/proc/cpuinfo").read_text() if os.path.exists("/proc/cpuinfo") else ""
    model = re.search(r"model name\s*: (.*)", text)
    siblings = pathlib.Path(f"/sys/devices/system/cpu/cpu{CPUS[0]}/topology/thread_siblings_list")
    shared = f", cpu {CPUS[0]} shares a core with {siblings.read_text().strip()}" if siblings.exists() else ""
    return f"{len(CPUS)} cores of {model[1] if model else platform.machine()}{shared}, {time.strftime('%d %B %Y')}"


def main():
    results = HERE / "results"
    for folder in (results, args.data):
        folder.mkdir(parents=True, exist_ok=True)
    if args.keep:
        result = json.loads(args.keep.read_text())
    else:
        runs = []
        works = [w for w in pipelines(args.data) if not args.only or w[0] in args.only.split(",")]
        for at in range(args.rounds):
            for work in works:
                for cores in args.cores:
                    kinds = [ONE, MANY] if at % 2 == 0 else [MANY, ONE]
                    for kind in kinds:
                        runs.append(measure(*work, cores, kind))
                        print(json.dumps(runs[-1]), flush=True)
        options = f"--cores {','.join(map(str, args.cores))} --reader-cores {args.reader_cores} --readers {args.readers} --seconds {args.seconds:g}"
        result = dict(machine=machine(), options=options, rounds=args.rounds, runs=runs)
        (args.data / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    (results / "README.md").write_text(table(result))
    (results / "cores.svg").write_text(picture(result))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, help="a folder with the program caju")
    parser.add_argument("--data", type=pathlib.Path, default=ROOT / "data/cores", help="folder of sources and figures")
    parser.add_argument("--cores", type=lambda text: [int(c) for c in text.split(",")], default=[1, 2, 4, 8, 12])
    parser.add_argument("--reader-cores", type=int, default=4, help="cores of the dispatcher and the readers")
    parser.add_argument("--readers", type=int, default=2, help="readers of the job")
    parser.add_argument("--seconds", type=float, default=8, help="for each measurement; the second half counts")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", help="names of pipelines, separated by commas")
    parser.add_argument("--small", action="store_true", help="small data, to try the command out")
    parser.add_argument("--build", default="", help="a sentence about the build and the machine, for the table")
    parser.add_argument("--keep", type=pathlib.Path, help="make the table and the picture of this result, without a run")
    args = parser.parse_args()
    if not args.keep:
        if not args.bin:
            parser.error("--bin names the folder of the program")
        if max(args.cores) + args.reader_cores > len(CPUS) and not args.small:
            parser.error(f"--cores and --reader-cores need {max(args.cores) + args.reader_cores} cores; this machine has {len(CPUS)}")
    main()
