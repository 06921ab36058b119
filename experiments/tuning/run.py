#!/usr/bin/env python3
"""Rates of pipelines with the tuner, without it, and the optimum of Plumber's linear program.

usage: experiments/tuning/run.py --bin target/release [--scale 1.0] [--seconds 40] [--only NAME,...] [--keep RESULT.json]

BIN is a folder with `caju`: `cargo build --release -p caju`. Each pipeline is read twice by a dispatcher, a worker and a reader of its
own: with `--cpu-threads`, `--split-readers` and `--buffer` at the numbers that tuning begins with, and without these flags. The
table goes to results/table.md, the figures to data/tuning/result.json. Needs Python alone.
"""

import argparse
import http.server
import json
import os
import pathlib
import platform
import signal
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from processes import Server, cpu_s  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PEERS = ROOT / "benches/peers"
CORES = len(os.sched_getaffinity(0))
MAX_THREADS = min(16 * CORES, 256)
# A quarter of 1 GiB, at 6 MiB for each.
MAX_READERS = max((1 << 30) // 4 // (6 << 20), CORES + 1)
FIXED = ["--cpu-threads", str(CORES), "--split-readers", str(min(max(CORES + 1, 2), 16)), "--buffer", "64MiB"]
# A call of the function takes this long, and so does a request to the store.
CALL_S, REQUEST_S = 0.1, 0.1
# The schema of one column, `id` of int64, as an Arrow IPC stream.
ID_SCHEMA = "/////3gAAAAQAAAAAAAKAAwACgAJAAQACgAAABAAAAAAAQQACAAIAAAABAAIAAAABAAAAAEAAAAUAAAAEAAUABAAAAAPAAQAAAAIABAAAAAYAAAAIAAAAAAAAAIcAAAACAAMAAQACwAIAAAAQAAAAAAAAAEAAAAAAgAAAGlkAAD/////AAAAAA=="

# Answers each call with its own rows after a while, as a function does that asks a service.
INTERPRETER = f"""#!/bin/sh
echo '{{"ready": true}}'
while read -r line; do
  case "$line" in
    *'"call"'*)
      rows=${{line#*'"rows":"'}}; rows=${{rows%%'"'*}}
      answer=${{line#*'"answer":"'}}; answer=${{answer%%'"'*}}
      sleep {CALL_S}
      cp "$rows" "$answer"
      echo '{{"took": {CALL_S}}}'
  esac
done
"""


# ---------------------------------------------------------------- data and pipelines
class SlowStore(http.server.BaseHTTPRequestHandler):
    """Small files over HTTP, each request after REQUEST_S."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        n = int(self.path.rsplit("/", 1)[1].split(".")[0])
        body = "".join(f'{{"id": {100 * n + i}}}\n' for i in range(100)).encode()
        # The size of an object is asked for once, when it is listed: that is not what is measured.
        if self.command == "GET":
            time.sleep(REQUEST_S)
        status, first, last = 200, 0, len(body) - 1
        if (wanted := self.headers.get("Range")) and self.command == "GET":
            a, _, b = wanted.removeprefix("bytes=").partition("-")
            status, first, last = 206, int(a), min(int(b or last), last)
        part = body[first:last + 1]
        self.send_response(status)
        self.send_header("Content-Length", str(len(part)))
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("ETag", f'"{n}"')
        self.send_header("Last-Modified", "Sun, 01 Nov 2026 00:00:00 GMT")
        if status == 206:
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(body)}")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(part)

    def log_message(self, *_):
        pass


def slow_store():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), SlowStore)
    # A worker that ends leaves requests behind.
    server.daemon_threads, server.handle_error = True, lambda *_: None
    server.socket.listen(256)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_address[1]}"


def caju(*command):
    return subprocess.run([args.bin / "caju", *map(str, command)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def peers_pipeline(name, folder, **values):
    text = (PEERS / name).read_text()
    for key, value in values.items():
        text = text.replace(f"${key}", str(value))
    file = folder / name
    file.write_text(text)
    return file


def with_repeat(file, times):
    """The pipeline with its source read again and again: an epoch long enough to tune."""
    lines = file.read_text().splitlines()
    at = lines.index("steps:")
    lines.insert(at + 1, f"  - repeat: {times}")
    file.write_text("\n".join(lines) + "\n")
    return file


def pipelines(folder):
    """(name, what waits, pipeline, what the reader does)."""
    n = lambda rows: max(int(rows * args.scale), 64)
    images, rows = folder / "data", n(2000)
    caju("gen", "images", "--out", images / "tfrecord", "--count", rows, "--format", "tfrecord", "--shards", 16)
    caju("gen", "table", "--out", images / "criteo", "--count", n(200_000), "--format", "parquet", "--shards", 8)
    for name, times in (("p1_f32", 100), ("p1_u8", 100), ("p2", 100)):
        yield name, "nothing", with_repeat(peers_pipeline(f"{name}.yaml", folder, DATA=images), times), {}
    yield "p4", "nothing", with_repeat(peers_pipeline("p4.yaml", folder, DATA=images), 1000), {}
    yield "range", "nothing", peers_pipeline("range.yaml", folder, ROWS=4_000_000_000), {}
    yield "t1_tiny", "nothing", peers_pipeline("t1_tiny.yaml", folder, ROWS=4_000_000_000), {}
    files = n(20_000)
    paths = json.dumps([f"{args.store}/{i:06}.jsonl" for i in range(files)])
    latency = folder / "latency.yaml"
    latency.write_text(f"name: latency\nsource: {{ json: {{ path: {paths}, schema: {{ id: int64 }} }} }}\nsteps:\n  - batch: 100\n")
    yield "latency", "each read of the source, for 100 ms", latency, {}
    function = folder / "function.yaml"
    function.write_text(f"""name: function
source: {{ range: {n(60_000_000)} }}
steps:
  - python: {{ kind: map, name: ask, code: "0a", batched: true, payload: "LQ==", schema: "{ID_SCHEMA}" }}
  - batch: 4096
""")
    yield "function", "each call of a function in a process, for 100 ms", function, {}
    both = folder / "both.yaml"
    both.write_text(latency.read_text().replace("name: latency", "name: both").replace(
        "steps:\n", f"""steps:
  - python: {{ kind: map, name: ask, code: "0a", batched: true, payload: "LQ==", schema: "{ID_SCHEMA}" }}
"""))
    yield "both", "each read, and each call for the rows of a file", both, {}
    # 160 MB per second, from a stage that makes one row after another, and a consumer that takes nothing in every other second.
    bursts = folder / "bursts.yaml"
    bursts.write_text(f"""name: bursts
source: {{ range: {n(1_000_000)} }}
steps:
  - sleep: {{ per_row: 100us }}
  - with_columns: {{ text: "repeat('x', 16384)" }}
  - batch: 64
""")
    yield "bursts", "the consumer stops for every other second", bursts, {"bursts": True}


# ---------------------------------------------------------------- one run
def server(role, *more):
    return Server(args.bin / "caju", role, "--allow", args.store, "--allow-python", args.interpreter, *more)


def status(address):
    out = subprocess.run([args.bin / "caju", "status", "--dispatcher", address, "--format", "json"], stdout=subprocess.PIPE)
    return json.loads(out.stdout) if out.returncode == 0 else {}


def measure(file, flags, bursts=False):
    """Reads an epoch, for --seconds at most: the rate of the second half of that time, and what the stages and the reader did."""
    dispatcher = server("dispatcher")
    worker = server("worker", "--dispatcher", dispatcher.address, *flags)
    command = [args.bin / "caju", "read", file, "--dispatcher", dispatcher.address, "--job", "train", "--quiet"]
    # A small window, so that a burst meets the worker's queue.
    command += ["--prefetch", "4MiB"] if bursts else []
    try:
        log = tempfile.TemporaryFile()
        reader = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log)
        began, points, last, tuning, stages, used, is_stopped = time.monotonic(), [], 0.0, [], [], 0.0, False
        while reader.poll() is None and (now := time.monotonic() - began) < args.seconds:
            time.sleep(0.05)
            if bursts and (int(now) % 2 == 1) != is_stopped:
                is_stopped = not is_stopped
                reader.send_signal(signal.SIGSTOP if is_stopped else signal.SIGCONT)
            if now - last < 1.0:
                continue
            last, used = now, cpu_s(reader.pid) or used
            seen = status(dispatcher.address)
            job = (seen.get("jobs") or [{}])[0]
            if job.get("state") == "running" and job.get("served", {}).get("rows"):
                points.append((time.monotonic() - began, job["served"]["rows"]))
                stages, tuning = job["stages"], seen["workers"][0]["tuning"]
        if reader.poll() is None:
            reader.kill()
        if reader.wait() not in (0, -signal.SIGKILL):
            log.seek(0)
            sys.exit(f"error: reading {file.name} ended with {reader.returncode}: {log.read().decode()}")
        if len(points) < 4:
            sys.exit(f"error: {file.name} was read for {time.monotonic() - began:.1f} s, with {len(points)} reports; a higher --scale reads more rows")
        (t0, r0), (t1, r1) = points[len(points) // 2 - 1], points[-1]
        return dict(rows_per_s=(r1 - r0) / (t1 - t0), rows=r1, reader_cpu_s=used, stages=stages, tuning=tuning)
    finally:
        worker.stop()
        dispatcher.stop()


def optimum(ran):
    """The linear program on the measured costs: the rate, and what bounds it.

    The cores serve all stages, and the reader, which runs on this machine too. A reader of splits and a thread serve one row at a time for
    as long as it was measured without the tuner. Rows count as those that are delivered.
    """
    rows, (source, *rest, output) = ran["rows"], ran["stages"]
    per_row = lambda seconds: seconds / rows
    cpu = per_row(sum(s["cpu_s"] for s in ran["stages"]) + ran["reader_cpu_s"])
    of = lambda stages: per_row(sum(max(s["busy_s"], s["cpu_s"]) for s in stages))
    kinds = [(s["name"].rsplit(".", 1)[-1], s) for s in rest]
    service = of(s for kind, s in kinds if kind not in ("batch", "repeat", "sleep"))
    limits = {"cores": CORES / max(cpu, 1e-12), "threads": MAX_THREADS / max(service, 1e-12),
              "split readers": MAX_READERS / max(per_row(source["busy_s"]), 1e-12),
              "the stage sleep": 1 / max(of(s for kind, s in kinds if kind == "sleep"), 1e-12)}
    limit = min(limits, key=limits.get)
    return limits[limit], limit


def row(name, waits, fixed, tuned):
    best, limit = optimum(fixed)
    numbers = {}
    for s in tuned["tuning"]:
        numbers[s["setting"]] = max(numbers.get(s["setting"], 0), s["value"])
    return dict(name=name, waits=waits, optimum=best, limit=limit, fixed=fixed["rows_per_s"], tuned=tuned["rows_per_s"],
                threads=numbers.get("cpu_threads"), readers=numbers.get("readers"), buffers=numbers.get("buffer_bytes"),
                reasons=[f"{s['setting']}: {s['reason']}" for s in tuned["tuning"]])


def table(result):
    lines = ["# Last result", "", f"{result['machine']}. `run.py --scale {result['scale']} --seconds {result['seconds']:g}`.", "",
             "| pipeline | what waits | optimum, rows/s | limit | without the tuner | with it | gain | threads | readers | queues, MiB |",
             "|---|---|---|---|---|---|---|---|---|---|"]
    for r in result["rows"]:
        lines.append(f"| {r['name']} | {r['waits']} | {r['optimum']:,.0f} | {r['limit']} | {r['fixed']:,.0f} ({r['fixed'] / r['optimum']:.0%}) | "
                     f"{r['tuned']:,.0f} ({r['tuned'] / r['optimum']:.0%}) | {r['tuned'] / r['fixed']:.2f} | {r['threads']} | {r['readers']} | "
                     f"{(r['buffers'] or 0) >> 20} |")
    return "\n".join([*lines, ""])


def main():
    results = HERE / "results"
    data = HERE.parent.parent / "data/tuning"
    for folder in (results, data):
        folder.mkdir(parents=True, exist_ok=True)
    out = args.keep or data / "result.json"
    if not args.keep:
        rows = []
        with tempfile.TemporaryDirectory() as place:
            folder = pathlib.Path(place)
            args.store = slow_store()
            args.interpreter = folder / "interpreter"
            args.interpreter.write_text(INTERPRETER)
            args.interpreter.chmod(0o755)
            for name, waits, file, how in pipelines(folder):
                if args.only and name not in args.only.split(","):
                    continue
                fixed, tuned = measure(file, FIXED, **how), measure(file, [], **how)
                rows.append(row(name, waits, fixed, tuned))
                print(json.dumps(rows[-1]), flush=True)
        machine = f"{CORES} cores, {platform.system()} {platform.machine()}, {time.strftime('%d %B %Y')}"
        out.write_text(json.dumps(dict(machine=machine, scale=args.scale, seconds=args.seconds, rows=rows), indent=1) + "\n")
    (results / "table.md").write_text(table(json.loads(out.read_text())))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, help="a folder with the program caju")
    parser.add_argument("--scale", type=float, default=1.0, help="rows, relative to those of a real run")
    parser.add_argument("--seconds", type=float, default=40, help="the most for each reading of a pipeline")
    parser.add_argument("--only", help="names of pipelines, separated by commas")
    parser.add_argument("--keep", type=pathlib.Path, help="make the table of this result, without a run")
    args = parser.parse_args()
    if not args.bin and not args.keep:
        parser.error("--bin names the folder of the program")
    main()
