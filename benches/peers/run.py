"""caju compared with its peers: the same work on the same data in one run, alternating.

usage: python3 benches/peers/run.py --peers DIR --python PY --data DATA [--bin BIN] [--before BIN] [--reps 3] [--only WORK,...]
                                    [--out results.jsonl] [--markdown RESULTS.md]

DIR holds the peer scripts (peer_*.py), PY is a Python that has their packages, DATA is what their gen.py made.
BIN is a folder with release builds: `cargo build --release -p caju -p caju-benches`.

Accounting is the peers' own: user + system seconds of every process from /proc over the timed window, servers
included, after one untimed epoch; peak memory is the sum of each process's own peak. caju's client is
`touch-each`, which takes one element after another and reads a little of each. Its window runs from the start
of the client process to its end, so its start-up counts too; the wall time is from asking for the epoch,
connecting included, to its end.
"""

import argparse
import collections
import json
import os
import pathlib
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TICK = os.sysconf("SC_CLK_TCK")
ROW_BYTES = 224 * 224 * 3
TUNED = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "17179869184"}   # glibc: keep big freed buffers
SERVICE = ["--mode", "service"]

# work: (peer script, arguments, whether its allocator is tuned)
PEERS = {
    "P1 f32": [("peer_tfdata.py", ["--pipeline", "P1", "--limit", "2560", "--parallel", "4", *SERVICE], True),
               ("peer_tfdata.py", ["--pipeline", "P1", "--limit", "2560", *SERVICE], False)],
    "P1 u8": [("peer_tfdata.py", ["--pipeline", "P1", "--limit", "2560", "--parallel", "4", "--out", "u8", *SERVICE], True),
              ("peer_tfdata.py", ["--pipeline", "P1", "--limit", "2560", "--parallel", "4", "--out", "u8", "--fused", "1"], False)],
    "P2": [("peer_tfdata.py", ["--pipeline", "P2", "--limit", "2560", "--parallel", "4", *SERVICE], True)],
    "P3": [("peer_limits.py", ["--pipeline", "P3", "--epochs", "6", "--what", "memmap"], False),
           ("peer_limits.py", ["--pipeline", "NET", "--epochs", "3", "--what", "tcp"], False),
           ("peer_tfdata.py", ["--pipeline", "P3", "--epochs", "4", "--format", "tfsave", *SERVICE], True),
           ("peer_tfdata.py", ["--pipeline", "P3", "--epochs", "4", "--format", "fixed", *SERVICE], True),
           ("peer_arrow.py", ["--pipeline", "P3", "--epochs", "4"], False)],
    "P4": [("peer_tfdata.py", ["--pipeline", "P4", "--batch", "4096", "--format", "tsv", *SERVICE], False),
           ("peer_arrow.py", ["--pipeline", "P4", "--batch", "4096", "--engine", "polars"], False)],
    "T1big": [("peer_limits.py", ["--pipeline", "NET", "--epochs", "3", "--what", "tcp"], False),
              ("peer_tfdata.py", ["--pipeline", "T1big", "--limit", "12800", *SERVICE], False),
              ("peer_tfdata.py", ["--pipeline", "T1big", "--limit", "12800", *SERVICE], True)],
    "T1tiny": [("peer_tfdata.py", ["--pipeline", "T1tiny", "--batch", "1", "--limit", "20000", *SERVICE], False)],
    "T2": [("peer_tfdata.py", ["--pipeline", "T2", *SERVICE], False)],
    "range": [],
}
RANGE_ROWS, TINY_ROWS, BIG_BATCHES, BIG_ROWS = 10_000_000, 2_000_000, 100, 16


# ---------------------------------------------------------------- caju's processes
class Server:
    def __init__(self, role, *more):
        self.p = subprocess.Popen([args.bin / "caju", role, "--listen", "127.0.0.1:0", "--allow", "/", *more],
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        line = self.p.stdout.readline()
        if " listening on " not in line:
            sys.exit(f"error: the {role} did not start")
        self.address = line.rsplit(" ", 1)[1].strip()

    def cpu(self):
        with open(f"/proc/{self.p.pid}/stat") as f:
            v = f.read().rsplit(")", 1)[1].split()
        return int(v[11]) / TICK, int(v[12]) / TICK

    def peak_bytes(self):
        with open(f"/proc/{self.p.pid}/status") as f:
            return next((int(l.split()[1]) * 1024 for l in f if l.startswith("VmHWM")), 0)

    def stop(self):
        self.p.send_signal(signal.SIGTERM)
        self.p.wait(60)


def read(address, file, epochs=1, *more):
    """One client process to its end: its report, and what it used."""
    command = [str(args.bin / "touch-each"), str(file), address, str(epochs), *map(str, more)]
    p = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    text = p.stdout.read()
    _, status, usage = os.wait4(p.pid, 0)
    p.returncode = os.waitstatus_to_exitcode(status)
    if p.returncode != 0:
        sys.exit(f"error: `{' '.join(command)}` ended with {p.returncode}")
    return json.loads(text), usage


def caju_run(work, file, epochs=1, bytes_per_row=None, cache=None):
    """Dispatcher, worker and reader apart, over the loopback; one untimed epoch first, which fills the cache."""
    dispatcher = Server("dispatcher", *(["--cache", cache] if cache else []))
    policy = ["full"] if cache else []
    worker = Server("worker", "--dispatcher", dispatcher.address)
    servers = (dispatcher, worker)
    try:
        if work == "T2":
            first = lambda: read(dispatcher.address, file)[0]["epochs"][0]["first_batch_s"]
            return [dict(work=work, who="caju", variant=v, first_batch_s=first()) for v in ("fresh worker", "used worker")]
        read(dispatcher.address, file, 1, *policy)
        before = [s.cpu() for s in servers]
        report, usage = read(dispatcher.address, file, epochs, *policy)
        after = [s.cpu() for s in servers]
        user = usage.ru_utime + sum(a[0] - b[0] for a, b in zip(after, before))
        system = usage.ru_stime + sum(a[1] - b[1] for a, b in zip(after, before))
        peak = sum(s.peak_bytes() for s in servers) + usage.ru_maxrss * 1024
        return [result(work, "caju", "dispatcher, worker, client", report, user, system, peak, bytes_per_row)]
    finally:
        worker.stop()
        dispatcher.stop()


def caju_embedded(work, file, folder, epochs=1):
    """`caju run`: everything in one process. The untimed epoch's share is taken off by a run of its own."""
    def once(n):
        report = folder / "report.json"
        p = subprocess.Popen([args.bin / "caju", "run", file, "--epochs", str(n), "--report", report, "--no-checksum", "--quiet"],
                             stdin=subprocess.DEVNULL)
        _, status, usage = os.wait4(p.pid, 0)
        p.returncode = os.waitstatus_to_exitcode(status)
        if p.returncode != 0:
            sys.exit(f"error: `caju run` ended with {p.returncode}")
        return json.loads(report.read_text()), usage

    _, one = once(1)
    report, both = once(1 + epochs)
    report["epochs"] = report["epochs"][1:]
    return [result(work, "caju", "one process", report, both.ru_utime - one.ru_utime, both.ru_stime - one.ru_stime,
                   both.ru_maxrss * 1024, None)]


def caju_here(work, file, cache, epochs, bytes_per_row):
    """One process, elements put together as for a training job; a first epoch's share is taken off."""
    read("here", file, 1, "full", cache)
    _, one = read("here", file, 1, "full", cache)
    report, both = read("here", file, 1 + epochs, "full", cache)
    report["epochs"] = report["epochs"][1:]
    return [result(work, "caju", "one process, no socket", report, both.ru_utime - one.ru_utime, both.ru_stime - one.ru_stime,
                   both.ru_maxrss * 1024, bytes_per_row)]


def result(work, who, variant, report, user, system, peak, bytes_per_row):
    rows = sum(e["rows"] for e in report["epochs"])
    wall = sum(e["wall_s"] for e in report["epochs"])
    return dict(work=work, who=who, variant=variant, samples=rows, wall_s=round(wall, 3), cpu_user_s=round(user, 2),
                cpu_sys_s=round(system, 2), samples_per_s=round(rows / wall, 1),
                samples_per_cpu_s=round(rows / (user + system), 1),
                bytes_out_per_s=round(rows * bytes_per_row / wall) if bytes_per_row else None,
                peak_rss_mb=round(peak / 2**20), first_batch_s=report["epochs"][0]["first_batch_s"])


def ready_rows():
    """BIG_ROWS images of zeros as an Arrow IPC stream in base64, made by the peers' Python."""
    code = f"""
import base64, sys, numpy as np, pyarrow as pa
x = np.zeros(({BIG_ROWS}, 224, 224, 3), np.uint8)
batch = pa.record_batch({{"x": pa.FixedShapeTensorArray.from_numpy_ndarray(x)}})
sink = pa.BufferOutputStream()
with pa.ipc.new_stream(sink, batch.schema) as w:
    w.write_batch(batch)
sys.stdout.write(base64.b64encode(sink.getvalue()).decode())
"""
    return subprocess.run([args.python, "-c", code], check=True, stdout=subprocess.PIPE, text=True).stdout


def pipeline(name, folder, **values):
    text = (HERE / name).read_text()
    for key, value in {"DATA": args.data.resolve(), **values}.items():
        text = text.replace(f"${key}", str(value))
    file = folder / name
    file.write_text(text)
    return file


def caju_works(folder):
    """work: what runs it."""
    apart = lambda work, file, **kw: lambda: caju_run(work, file, **kw)
    big = BIG_BATCHES * 256 // BIG_ROWS
    works = {
        "P1 f32": [apart("P1 f32", pipeline("p1_f32.yaml", folder), bytes_per_row=4 * ROW_BYTES)],
        "P1 u8": [apart("P1 u8", pipeline("p1_u8.yaml", folder), bytes_per_row=ROW_BYTES)],
        "P2": [apart("P2", pipeline("p2.yaml", folder), bytes_per_row=4 * ROW_BYTES)],
        "P3": [apart("P3", pipeline("p3.yaml", folder), bytes_per_row=ROW_BYTES, epochs=4, cache=folder / "cache-apart"),
               lambda: caju_here("P3", folder / "p3.yaml", folder / "cache-here", 8, ROW_BYTES)],
        "P4": [apart("P4", pipeline("p4.yaml", folder), bytes_per_row=13 * 4 + 26 * 8 + 8)],
        "T1tiny": [apart("T1tiny", pipeline("t1_tiny.yaml", folder, ROWS=TINY_ROWS), bytes_per_row=8)],
        "T2": [apart("T2", pipeline("p1_f32.yaml", folder))],
        "range": [apart("range", pipeline("range.yaml", folder, ROWS=RANGE_ROWS), bytes_per_row=8, epochs=3)],
    }
    works["P4"].append(lambda: caju_embedded("P4", folder / "p4.yaml", folder, epochs=2))
    if "T1big" in chosen:
        file = pipeline("t1_big.yaml", folder, IPC=ready_rows(), REPEAT=big)
        works["T1big"] = [apart("T1big", file, bytes_per_row=ROW_BYTES)]
    return works


# ---------------------------------------------------------------- peers
def peer(work, script, arguments, tuned):
    env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", **(TUNED if tuned else {})}
    command = [args.python, str(args.peers / script), "--data", str(args.data), *arguments]
    done = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600)
    rows = []
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            r = json.loads(line)
            if "iterator_to_first_s" in r:
                r["first_batch_s"] = r["iterator_to_first_s"]
            rows.append({**r, "work": work, "who": r["peer"]})
    if not rows:
        print(f"FAILED: {script} {arguments}: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
    return rows


# ---------------------------------------------------------------- the table
def fmt(values, digits=0):
    v = [x for x in values if x is not None]
    if not v:
        return ""
    return f"{statistics.median(v):,.{digits}f} [{min(v):,.{digits}f}..{max(v):,.{digits}f}]"


def median(groups, work, who, variant, key):
    for (w, p, v), rs in groups.items():
        if w == work and p == who and all(part in v for part in variant):
            values = [r[key] for r in rs if r.get(key) is not None]
            return statistics.median(values) if values else None
    return None


def targets(groups):
    """(what, reached, target, fulfilled) of each target that this run can tell about."""
    m = lambda *a: median(groups, *a)
    ratio = lambda a, b: a / b if a and b else None
    cpu = "samples_per_cpu_s"
    apart = ("dispatcher",)
    best = lambda work, variants: max((m(work, "tf.data service", v, cpu) or 0 for v in variants), default=0)
    ours = lambda work, key=cpu: m(work, "caju", apart, key)
    rows = [
        ("P1 f32, samples per CPU-second, to tf.data service at its best", ratio(ours("P1 f32"), best("P1 f32", [("tuned",), ("AUTOTUNE",)])), ">=", 2.3),
        ("P1 uint8, to tf.data service at its best", ratio(ours("P1 u8"), best("P1 u8", [("tuned",)])), ">=", 1.35),
        ("P1 uint8, to in-process tf.data, fused", ratio(ours("P1 u8"), m("P1 u8", "tf.data", ("fused",), cpu)), ">=", 1.0),
        ("P2, to tf.data service", ratio(ours("P2"), best("P2", [("tuned",)])), ">=", 2.5),
        ("P3 over loopback, to tf.data service at its best setting", ratio(ours("P3"), best("P3", [("tfsave",), ("fixed",)])), ">=", 2.8),
        ("P3 over loopback, to the loopback limit (samples per CPU-second)", ratio(ours("P3"), m("P3", "limit", ("tcp",), cpu)), ">=", 0.7),
        ("P3 in one process, to pyarrow in one process", ratio(m("P3", "caju", ("no socket",), cpu), m("P3", "pyarrow", (), cpu)), ">=", 1.5),
        ("P3 in one process, to memmap", ratio(m("P3", "caju", ("no socket",), cpu), m("P3", "limit", ("memmap",), cpu)), ">=", 0.5),
        ("P4, to tf.data service", ratio(ours("P4"), best("P4", [("tsv",)])), ">=", 5.0),
        ("P4, to polars in one process", ratio(ours("P4"), m("P4", "polars", (), cpu)), ">=", 0.6),
        ("P4 in one process, to polars in one process", ratio(m("P4", "caju", ("one process",), cpu), m("P4", "polars", (), cpu)), ">=", 0.6),
        ("T1big, to the loopback limit (samples per CPU-second)", ratio(ours("T1big"), m("T1big", "limit", (), cpu)), ">=", 0.7),
        ("T1big, to the loopback limit (samples per second)", ratio(ours("T1big", "samples_per_s"), m("T1big", "limit", (), "samples_per_s")), ">=", 0.7),
        ("T1tiny, to tf.data service (samples per CPU-second)", ratio(ours("T1tiny"), best("T1tiny", [()])), ">=", 50),
        ("T2, seconds to the first P1 batch, fresh worker", m("T2", "caju", ("fresh",), "first_batch_s"), "<=", 0.4),
        ("T2, seconds to the first P1 batch, used worker", m("T2", "caju", ("used",), "first_batch_s"), "<=", 0.4),
        ("P1 f32, peak memory of all processes, MB", ours("P1 f32", "peak_rss_mb"), "<=", 1200),
        ("range, rows/s", ours("range", "samples_per_s"), ">=", 5_000_000),
        ("range, peak memory of all processes, MB", ours("range", "peak_rss_mb"), "<=", 300),
    ]
    return [(what, got, op, want, (got >= want) if op == ">=" else (got <= want)) for what, got, op, want in rows if got]


def markdown(rows):
    groups = collections.OrderedDict()
    for r in rows:
        groups.setdefault((r["work"], r["who"], r["variant"]), []).append(r)
    mem = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    out = ["# caju compared with its peers: median [min..max]\n",
           f"Machine: {os.cpu_count()} cores, {mem:.0f} GiB, {platform.system()} {platform.release().split('-')[0]}, "
           f"{platform.machine()}. One run, alternating, {max(r['rep'] for r in rows)} repetitions. How to repeat it: "
           "`python3 benches/peers/run.py --help`.\n",
           "## Targets\n", "| what | reached | target | |", "|---|---|---|---|"]
    if any(who == "caju before" for _, who, _ in groups):
        out = [out[0], out[1], *compared(groups), "", *out[2:]]
    for what, got, op, want, fine in targets(groups):
        digits = 0 if want >= 100 else 2
        out.append(f"| {what} | {got:,.{digits}f} | {op} {want:,} | {'reached' if fine else '**missed**'} |")
    for work in PEERS:
        these = [(k, v) for k, v in groups.items() if k[0] == work]
        if not these:
            continue
        out += [f"\n## {work}\n", "| system | variant | samples/s | samples/CPU-s | MB/s out | peak RSS MB | first batch s | n |",
                "|---|---|---|---|---|---|---|---|"]
        for (_, who, variant), rs in these:
            g = lambda key: [r.get(key) for r in rs]
            mb = [b / 1e6 for b in g("bytes_out_per_s") if b]
            first = "" if "service" in who and work != "T2" else fmt(g("first_batch_s"), 3)
            out.append(f"| {who} | {variant} | {fmt(g('samples_per_s'))} | {fmt(g('samples_per_cpu_s'))} | {fmt(mb)} "
                       f"| {fmt(g('peak_rss_mb'))} | {first} | {len(rs)} |")
    return "\n".join(out) + "\n"


def report(results, args, markdown):
    """Shows every result as it comes, appends it to --out, and writes the tables of all to --markdown."""
    rows = []
    for r in results:
        rows.append(r)
        line = json.dumps(r)
        print(line[:220], flush=True)
        if args.out:
            with open(args.out, "a") as out:
                print(line, file=out)
    text = markdown(rows)
    print("\n" + text)
    if args.markdown:
        args.markdown.write_text(text)


def results():
    builds = {"caju": args.bin} | ({"caju before": args.before} if args.before else {})
    with tempfile.TemporaryDirectory() as folder:
        # Each build has caches of its own.
        works = {}
        for who in builds:
            own = pathlib.Path(folder) / who.replace(" ", "-")
            own.mkdir()
            works[who] = caju_works(own)
        for rep in range(1, args.reps + 1):
            for work in chosen:
                # The builds take turns in being the first.
                for who in sorted(builds, reverse=rep % 2 == 0):
                    args.bin = builds[who]
                    for run in works[who][work]:
                        for r in run():
                            yield {**r, "who": who, "rep": rep}
                for p in PEERS[work] if not args.no_peers else []:
                    for r in peer(work, *p):
                        yield {**r, "rep": rep}


def compared(groups):
    """Two builds of caju: for each work the ratios of the repetitions, now to before."""
    out = ["\n## Now to before\n",
           "Medians of the ratios of the repetitions [least..most]. Above 1 the present build is faster.\n",
           "| work | variant | samples per CPU-second | samples per second | n |", "|---|---|---|---|---|"]
    for (work, who, variant), now in groups.items():
        before = groups.get((work, "caju before", variant)) if who == "caju" else None
        if not before:
            continue
        def ratios(key):
            of = {r["rep"]: r.get(key) for r in before}
            return [r[key] / of[r["rep"]] for r in now if r.get(key) and of.get(r["rep"])]
        if work == "T2":
            times = [1 / r for r in ratios("first_batch_s")]
            out.append(f"| {work} | {variant} | | {fmt(times, 2)} (first batches per second) | {len(now)} |")
        else:
            out.append(f"| {work} | {variant} | {fmt(ratios('samples_per_cpu_s'), 2)} | {fmt(ratios('samples_per_s'), 2)} | {len(now)} |")
    return out


def chosen_of(args, works):
    """The works that --only names."""
    chosen = args.only.split(",")
    if odd := [w for w in chosen if w not in works]:
        sys.exit(f"error: unknown work {odd}; there are {list(works)}")
    return chosen


def binaries(args, *names):
    """Ends with the way out unless all these are built."""
    for name in names:
        if not (args.bin / name).exists():
            sys.exit(f"error: {args.bin / name} is not there; build it with `cargo build --release -p caju -p caju-benches`")


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--peers", type=pathlib.Path, required=True, help="folder of the peer scripts")
    p.add_argument("--python", default=sys.executable, help="a Python with the peers' packages")
    p.add_argument("--data", type=pathlib.Path, required=True, help="folder written by the peers' gen.py")
    p.add_argument("--bin", type=pathlib.Path, default=ROOT / "target" / "release", help="folder of the release builds")
    p.add_argument("--before", type=pathlib.Path, help="folder of the release builds of another version, which takes turns")
    p.add_argument("--reps", type=int, default=3)
    p.add_argument("--only", default=",".join(PEERS), help="works, separated by commas")
    p.add_argument("--no-peers", action="store_true", help="caju alone")
    p.add_argument("--out", type=pathlib.Path, help="append JSON lines here")
    p.add_argument("--markdown", type=pathlib.Path, help="write the tables here")
    args = p.parse_args()
    chosen = chosen_of(args, PEERS)
    binaries(args, "caju", "touch-each")
    report(results(), args, markdown)
