#!/usr/bin/env python3
"""Compares k equal jobs that share with tf.data service's cross-trainer cache: the same photos, the same work, in one run.

    cargo build --release -p caju -p caju-benches
    experiments/sharing/peers.py --peers DIR --python PY --data DATA [--jobs 1,2,4,8] [--reps 3] [--markdown FILE]

DIR holds the peers' scripts, PY is a Python that has TensorFlow, DATA is what their gen.py made: see
`python3 benches/peers/run.py --help`. The work is P1: photos to random crops of 224 x 224, as uint8 and as float32. The systems
take turns. CPU time and peak memory are those of all processes: servers and clients. tf.data service reads whole epochs of a
repeated dataset with one computation, and each of its clients stops after as many rows as an epoch has. Rows that it skips are
not counted as missing.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import run

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TUNED = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "17179869184"}  # glibc: keep big freed buffers
ROWS = 2048
"""Rows of an epoch, for both: eight batches of 256. The data has as many photos (`gen.py --n 2048 --only images`)."""
PIPELINES = {"u8": "p1_u8.yaml", "f32": "p1_f32.yaml"}


def clients(address, file, jobs, sharing):
    """k jobs concurrently: their reports, and what their processes used."""
    command = [args.bin / "touch-each", file, address, "1", "compute", "-", sharing]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(jobs)]
    reports, used = [], []
    for process in processes:
        reports.append(json.loads(process.stdout.read())["epochs"][0])
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            sys.exit("error: a reader failed")
        used.append(usage)
    return reports, used


def caju(pixels, jobs, folder):
    text = (ROOT / "benches/peers" / PIPELINES[pixels]).read_text().replace("$DATA", str(args.data.resolve()))
    file = folder / f"{pixels}.yaml"
    file.write_text(text)
    dispatcher = run.Server("dispatcher", "--listen", "127.0.0.1:0", "--allow-read", "/")
    worker = run.Server("worker", "--dispatcher", dispatcher.address, "--allow-read", "/", "--sharing-window", args.window)
    try:
        clients(dispatcher.address, file, 1, "off")  # not timed, and leaves no rows in the window
        before = dispatcher.cpu_s() + worker.cpu_s()
        reports, used = clients(dispatcher.address, file, jobs, "exact")
        cpu_s = dispatcher.cpu_s() + worker.cpu_s() - before + sum(u.ru_utime + u.ru_stime for u in used)
        peak = dispatcher.peak_bytes() + worker.peak_bytes() + sum(u.ru_maxrss * 1024 for u in used)
        rows = sum(r["rows"] for r in reports)
        if rows != jobs * ROWS:
            sys.exit(f"error: {jobs} jobs read {rows} rows: the data needs {ROWS} photos")
        wall_s = max(r["wall_s"] for r in reports)
        return {"who": "caju, exact", "rows": rows, "per_cpu_s": rows / cpu_s, "per_s": rows / wall_s, "peak_mb": peak / 2**20}
    finally:
        worker.stop()
        dispatcher.stop()


def peer(pixels, jobs):
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
    arguments = ["--pipeline", "P1", "--limit", str(ROWS), "--epochs", "1", "--mode", "xcache", "--clients", str(jobs)]
    if pixels == "u8":
        # Its best settings there.
        arguments += ["--parallel", "4", "--out", "u8"]
        environment |= TUNED
    command = [args.python, args.peers / "peer_tfdata.py", "--data", args.data, *arguments]
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=900)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        sys.exit(f"error: the peer failed: {done.stderr.strip().splitlines()[-1:]}")
    r = lines[-1]
    return {"who": "tf.data service, cross-trainer cache", "rows": r["samples"], "per_cpu_s": r["samples_per_cpu_s"],
            "per_s": r["samples_per_s"], "peak_mb": r["peak_rss_mb"]}


def table(runs):
    groups = {}
    for r in runs:
        groups.setdefault((r["pixels"], r["jobs"], r["who"]), []).append(r)

    def show(rs, key):
        values = [r[key] for r in rs]
        return f"{statistics.median(values):,.0f} [{min(values):,.0f}..{max(values):,.0f}]"

    out = ["# k equal jobs, compared with tf.data service: median [min..max]", "",
           f"{os.cpu_count()} cores. {args.reps} repetitions, taking turns. {ROWS} rows per job and epoch. {args.build}".strip(), "",
           "| pixels | jobs | system | samples per CPU-second | samples/s | peak MB of all processes |", "|---|---|---|---|---|---|"]
    for (pixels, jobs, who), rs in groups.items():
        out.append(f"| {pixels} | {jobs} | {who} | {show(rs, 'per_cpu_s')} | {show(rs, 'per_s')} | {show(rs, 'peak_mb')} |")
    return "\n".join(out) + "\n"


def main():
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        for rep in range(args.reps):
            for pixels in args.pixels:
                for jobs in args.jobs:
                    both = [lambda: caju(pixels, jobs, pathlib.Path(folder)), lambda: peer(pixels, jobs)]
                    for system in both if rep % 2 == 0 else reversed(both):
                        runs.append({"pixels": pixels, "jobs": jobs, **system()})
                        print(json.dumps(runs[-1]), flush=True)
    print("\n" + table(runs))
    if args.markdown:
        args.markdown.write_text(table(runs))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=pathlib.Path, required=True, help="folder of the peers' scripts")
    parser.add_argument("--python", default=sys.executable, help="a Python with TensorFlow")
    parser.add_argument("--data", type=pathlib.Path, required=True, help="folder written by the peers' gen.py")
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "target/release", help="folder of the release builds")
    parser.add_argument("--jobs", type=lambda text: [int(n) for n in text.split(",")], default=[1, 2, 4, 8])
    parser.add_argument("--pixels", type=lambda text: text.split(","), default=["u8", "f32"])
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--window", default="1GiB", help="the window of caju's worker")
    parser.add_argument("--build", default="", help="a sentence about the build and the machine, for the table")
    parser.add_argument("--markdown", type=pathlib.Path, help="write the table here")
    args = parser.parse_args()
    run.args = argparse.Namespace(caju=args.bin / "caju")
    main()
