"""What storing rows costs, and what reading them back gives: caju against itself and against its store.

usage: python3 benches/store/run.py --data DATA [--bin BIN] [--reps 3] [--only put,s3,first,memory]
                                    [--scratch DIR] [--out results.jsonl] [--markdown RESULTS.md]

DATA/tfrecord/*.tfrecord are photos, as the peers' gen.py makes them; so does
`caju gen images --out DATA/tfrecord --count 2560 --format tfrecord`.
BIN is a folder with release builds: `cargo build --release -p caju -p caju-benches`.
SCRATCH takes about three times DATA; what is written there is removed.

put      CPU time of `caju run` over one epoch that computes against one that stores as well, alternating: P1 with
         float32 or uint8 out, stored as photos, as cropped images, or as they go out. Goal: 15 % more at most.
s3       An epoch of P3 from parts in an S3 server (a process of its own, on the loopback), in one process, against
         bare GETs of the same objects from the same server, alternating: objects per second, and per CPU-second of
         client and server together. Goal: 60 % of the bare ones.
first    Seconds from asking for an epoch whose splits are all stored to its first batch: fresh dispatcher, worker and
         client; then the same worker again. Goal: 0.3 s.
memory   Peak memory while one part is written and read that is much larger than every buffer, and for one of a
         quarter of its size: what grows with the part is not bounded. Memory that a process has for itself (RssAnon),
         looked at every few milliseconds; pages of mapped files are the kernel's to take back. Goal: no growth.
"""

import argparse
import collections
import json
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benches" / "peers"))
from run import binaries, chosen_of, report  # noqa: E402

TICK = os.sysconf("SC_CLK_TCK")

PARSE = """  - parse_example: { features: { "image/encoded": bytes, "image/class/label": int64 } }
"""
CROP = 'random_flip(random_resized_crop(decode_image("image/encoded"), 224, 224))'
P1 = {
    "photos": PARSE + f"""  - autocache: stored
  - map: {{ image: 'normalize({CROP})', label: '"image/class/label"' }}
""",
    "crops, float32 out": PARSE + f"""  - map: {{ image: '{CROP}', label: '"image/class/label"' }}
  - autocache: stored
  - with_columns: {{ image: 'normalize(image)' }}
""",
    "what goes out, uint8": PARSE + f"""  - map: {{ image: '{CROP}', label: '"image/class/label"' }}
  - autocache: stored
""",
}
P3 = PARSE + """  - map:
      image: 'center_crop(resize_shorter(decode_image("image/encoded"), 256), 224, 224)'
      label: '"image/class/label"'
  - autocache: ready
"""
LARGE = PARSE + """  - map: { image: 'resize(decode_image("image/encoded"), 448, 448)', label: '"image/class/label"' }
  - autocache: large
"""
LARGE_ROW_BYTES = 448 * 448 * 3
PART_ENCODINGS = ["arrow/none", "arrow/zstd", "parquet/zstd"]


def pipeline(folder, name, steps, path=None, split=None, batch=256):
    """A pipeline file over the photos."""
    split = f", split: {split}" if split else ""
    source = f'source: {{ tfrecord: {{ path: "{path or args.data.resolve() / "tfrecord" / "*.tfrecord"}"{split} }} }}'
    file = folder / (name.replace(" ", "-").replace(",", "") + ".yaml")
    file.write_text(f"name: {name}\n{source}\nsteps:\n{steps}  - batch: {batch}\n")
    return file


# ---------------------------------------------------------------- processes
WARM = """
import ctypes, mmap, sys
size = int(sys.argv[1])
memory = mmap.mmap(-1, size)
memory.madvise(mmap.MADV_HUGEPAGE)
ctypes.memset(ctypes.addressof(ctypes.c_char.from_buffer(memory)), 1, size)
"""


def warm():
    """Touches as much memory as a run may take, and frees it.

    A virtual machine gives free pages back to its host, and the first touch of one then costs ten times as much as
    writing it: a run would be charged for what ran before it. `dd` of 600 MB into a file takes 0.16 s of CPU time
    right behind this, and 0.5 to 1.6 s a few seconds later.
    """
    subprocess.run([sys.executable, "-c", WARM, str(args.warm_gb << 30)], check=True)


def run(command, env=None, watch=False):
    """A process to its end: what it printed, what it used, and its peak of anonymous memory in bytes if watched."""
    command = [str(c) for c in command]
    warm()
    p = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env={**os.environ, **(env or {})})
    peak, over = [0], threading.Event()

    def look():
        while not over.wait(0.005):
            peak[0] = max(peak[0], anonymous(p.pid))

    watcher = threading.Thread(target=look)
    if watch:
        watcher.start()
    text = p.stdout.read()
    _, status, usage = os.wait4(p.pid, 0)
    p.returncode = os.waitstatus_to_exitcode(status)
    over.set()
    if watch:
        watcher.join()
    if p.returncode != 0:
        sys.exit(f"error: `{' '.join(command)}` ended with {p.returncode}")
    return text, usage.ru_utime + usage.ru_stime, peak[0]


def anonymous(pid):
    try:
        with open(f"/proc/{pid}/status") as f:
            return next((int(line.split()[1]) * 1024 for line in f if line.startswith("RssAnon")), 0)
    except (FileNotFoundError, ProcessLookupError):
        return 0


def cpu_of(pid):
    with open(f"/proc/{pid}/stat") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICK


class Server:
    """A process that says in its first line where it is."""

    def __init__(self, *command):
        self.p = subprocess.Popen([str(c) for c in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.DEVNULL, text=True)
        self.line = self.p.stdout.readline().strip()
        if not self.line:
            sys.exit(f"error: `{' '.join(map(str, command))}` did not start")

    @property
    def address(self):
        return self.line.rsplit(" ", 1)[1]

    def stop(self):
        self.p.send_signal(signal.SIGTERM)
        self.p.wait(60)


def caju_run(file, report, *more, **kw):
    """`caju run` of one epoch: its report, CPU seconds, peak of anonymous memory."""
    command = [args.bin / "caju", "run", file, "--report", report, "--no-checksum", "--quiet", *more]
    _, cpu, peak = run(command, **kw)
    return json.loads(report.read_text()), cpu, peak


def read(file, where, *more, env=None):
    """One epoch by `touch-each`: the epoch's figures, and the process's CPU seconds."""
    text, cpu, _ = run([args.bin / "touch-each", file, where, 1, "full", *more], env=env)
    return json.loads(text)["epochs"][0], cpu


# ---------------------------------------------------------------- works
def put(folder):
    for name, steps in P1.items():
        file, cache = pipeline(folder, f"put {name}", steps), folder / "cache-put"
        _, compute, _ = caju_run(file, folder / "r.json", "--policy", "compute")
        report, stored, _ = caju_run(file, folder / "r.json", "--policy", "full", "--cache", cache)
        splits = report["epochs"][0]["splits"]
        if splits["put"] == 0 or splits["compute"]:
            sys.exit(f"error: not every split was stored: {splits}")
        size = sum(f.stat().st_size for f in cache.rglob("*.arrow"))
        shutil.rmtree(cache)
        yield dict(work="put", variant=name, rows=report["epochs"][0]["rows"], compute_cpu_s=compute, put_cpu_s=stored,
                   stored_mb=round(size / 1e6), more=stored / compute - 1)


def s3(folder):
    buckets = folder / "s3"
    buckets.mkdir(exist_ok=True)
    server = Server(args.bin / "s3-server", buckets, "bucket")
    env = json.loads(server.line)
    file = pipeline(folder, "p3 s3", P3)
    url = "s3://bucket/cache"
    try:
        read(file, "here", url, env=env)                  # stores what is not there yet

        def measure(work):
            before = cpu_of(server.p.pid)
            wall, cpu, size = work()
            return dict(wall_s=wall, client_cpu_s=cpu, server_cpu_s=cpu_of(server.p.pid) - before, bytes=size)

        def bare():
            text, cpu, _ = run([args.bin / "bare-gets", url, ".arrow", args.in_flight], env=env)
            answer = json.loads(text)
            return answer["wall_s"], cpu, answer["bytes"]

        def caju():
            epoch, cpu = read(file, "here", url, env=env)
            return epoch["wall_s"], cpu, None

        bare()                                            # the files are in the kernel's cache from here on
        plain, ours = measure(bare), measure(caju)
        cpu = lambda m: m["client_cpu_s"] + m["server_cpu_s"]
        yield dict(work="s3", variant=f"P3, arrow/none, {args.in_flight} bare GETs in flight", bare=plain, caju=ours,
                   bytes=plain["bytes"], of_bare=plain["wall_s"] / ours["wall_s"], of_bare_cpu=cpu(plain) / cpu(ours))
    finally:
        server.stop()


def first(folder):
    cache = folder / "cache-first"
    file = pipeline(folder, "p3 first", P3)
    if not cache.exists():
        read(file, "here", cache)
    allow = ["--listen", "127.0.0.1:0", "--allow", "/"]
    dispatcher = Server(args.bin / "caju", "dispatcher", *allow, "--cache", cache)
    worker = Server(args.bin / "caju", "worker", *allow, "--dispatcher", dispatcher.address)
    try:
        for variant in ("fresh worker", "used worker"):
            epoch, _ = read(file, dispatcher.address)
            yield dict(work="first", variant=variant, first_batch_s=epoch["first_batch_s"], rows=epoch["rows"])
    finally:
        worker.stop()
        dispatcher.stop()


def memory(folder):
    server = None
    for store in ("folder", "s3"):
        if store == "s3":
            (folder / "s3m").mkdir(exist_ok=True)
            server = Server(args.bin / "s3-server", folder / "s3m", "bucket")
        env = json.loads(server.line) if server else None
        try:
            for encoding in PART_ENCODINGS:
                yield from memory_of(folder, store, encoding, env)
        finally:
            if server:
                server.stop()


def memory_of(folder, store, encoding, env):
    peaks = collections.defaultdict(list)
    rows = (args.large_rows // 4, args.large_rows)
    for n in rows:
        photos = folder / f"photos-{n}"
        if not photos.exists():
            run([args.bin / "caju", "gen", "images", "--out", photos, "--count", n, "--shards", 1, "--format", "tfrecord", "--quiet"])
        file = pipeline(folder, f"large {n}", LARGE, path=photos / "*.tfrecord", split="64GiB", batch=16)
        cache = folder / f"cache-{n}-{encoding.replace('/', '-')}" if store == "folder" else f"s3://bucket/{n}-{encoding.replace('/', '-')}"
        more = ["--policy", "full", "--cache", cache, "--encoding", encoding]
        _, _, peak = caju_run(file, folder / "r.json", "--policy", "compute", watch=True)
        peaks["compute"].append(peak)
        for mode in ("put", "get"):
            report, _, peak = caju_run(file, folder / "r.json", *more, env=env, watch=True)
            if report["epochs"][0]["splits"][mode] != 1:
                sys.exit(f"error: the split was not {mode}: {report['epochs'][0]['splits']}")
            peaks[mode].append(peak)
        shutil.rmtree(folder / "s3m" / "bucket" / cache.rsplit("/", 1)[1] if store == "s3" else cache)
    for mode, (small, large) in peaks.items():
        yield dict(work="memory", variant=f"{store}, {encoding}, {mode}", rows=rows[1], part_mb=round(rows[1] * LARGE_ROW_BYTES / 1e6),
                   peak_mb_quarter=round(small / 2**20), peak_mb=round(large / 2**20), growth=large / small - 1)


WORKS = {"put": put, "s3": s3, "first": first, "memory": memory}


# ---------------------------------------------------------------- the tables
def spread(values, digits):
    values = [v for v in values if v is not None]
    one = lambda v: f"{v:,.{digits}f}"
    return f"{one(statistics.median(values))} [{one(min(values))}..{one(max(values))}]"


COLUMNS = {
    "put": [("CPU s, compute", lambda r: r["compute_cpu_s"], 2), ("CPU s, put", lambda r: r["put_cpu_s"], 2),
            ("MB stored", lambda r: r["stored_mb"], 0), ("% more CPU (goal: 15 at most)", lambda r: 100 * r["more"], 1)],
    "s3": [("bare MB/s", lambda r: r["bytes"] / 1e6 / r["bare"]["wall_s"], 0), ("caju MB/s", lambda r: r["bytes"] / 1e6 / r["caju"]["wall_s"], 0),
           ("% of bare (goal: 60)", lambda r: 100 * r["of_bare"], 0),
           ("% of bare per CPU-second, server included (goal: 60)", lambda r: 100 * r["of_bare_cpu"], 0)],
    "first": [("seconds to the first batch (goal: 0.3)", lambda r: r["first_batch_s"], 3)],
    "memory": [("part, MB", lambda r: r["part_mb"], 0), ("peak MB at a quarter of it", lambda r: r["peak_mb_quarter"], 0),
               ("peak MB", lambda r: r["peak_mb"], 0), ("% growth", lambda r: 100 * r["growth"], 0)],
}


def markdown(rows):
    groups = collections.defaultdict(lambda: collections.defaultdict(list))
    for r in rows:
        groups[r["work"]][r["variant"]].append(r)
    out = [f"# Storing and reading back: median [min..max]\n\nMachine: {os.cpu_count()} cores. What each line means and how to "
           "repeat it: `python3 benches/store/run.py --help`.\n"]
    for work, variants in groups.items():
        columns = COLUMNS[work]
        out += [f"## {work}\n", "| | " + " | ".join(c[0] for c in columns) + " | n |", "|---" * (len(columns) + 2) + "|"]
        for variant, rs in variants.items():
            cells = [spread([value(r) for r in rs], digits) for _, value, digits in columns]
            out.append(f"| {variant} | " + " | ".join(cells) + f" | {len(rs)} |")
        out.append("")
    return "\n".join(out)


def results():
    with tempfile.TemporaryDirectory(dir=args.scratch) as folder:
        for rep in range(1, args.reps + 1):
            for work in chosen:
                for r in WORKS[work](pathlib.Path(folder)):
                    yield {**r, "rep": rep}


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--data", type=pathlib.Path, required=True, help="folder with tfrecord/*.tfrecord")
    p.add_argument("--bin", type=pathlib.Path, default=ROOT / "target" / "release", help="folder of the release builds")
    p.add_argument("--reps", type=int, default=3)
    p.add_argument("--only", default=",".join(WORKS), help="works, separated by commas")
    p.add_argument("--scratch", type=pathlib.Path, help="folder for caches and generated photos; the system's temporary folder by default")
    p.add_argument("--warm-gb", type=int, default=4, help="GiB of memory that are touched before each run")
    p.add_argument("--in-flight", type=int, default=8, help="bare GETs at a time")
    p.add_argument("--large-rows", type=int, default=2000, help="rows of the part of `memory`, 600 kB each")
    p.add_argument("--out", type=pathlib.Path, help="append JSON lines here")
    p.add_argument("--markdown", type=pathlib.Path, help="write the tables here")
    args = p.parse_args()
    chosen = chosen_of(args, WORKS)
    binaries(args, "caju", "touch-each", "s3-server", "bare-gets")
    report(results(), args, markdown)
