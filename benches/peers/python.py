"""Measures the speed of the Python package against its peers and against Rust: medians of alternating runs.

usage: python3 benches/peers/python.py --lib LIB --bin BIN --python PY [--peers DIR] --data DATA [--reps 5]
                                       [--only import,ready,tiny,p3,pil] [--out results.jsonl] [--markdown FILE]

LIB is the extension module and BIN a folder with the binaries, both of release builds:
`cargo build --release -p caju -p caju-benches -p caju-python` makes target/release/{lib_caju.so,caju,touch-each}.
PY is a Python with NumPy, pyarrow, Pillow and cloudpickle; with --peers, the folder of the peer scripts, also with the
packages of these. DATA is the output of the peers' gen.py.

import  seconds of `import caju`, and the large modules that it imports
ready   microseconds to take a batch that has arrived over the loopback, and whether its arrays use caju's memory
tiny    T1tiny: elements of one int64 through dispatcher and worker, compared with tf.data service
p3      P3: stored photos, read from Python and by the Rust client, over the loopback and in one process
pil     a function with Pillow as a stage of caju, and in a multiprocessing pool with the same number of processes

CPU time is the user and system time of every process, including servers, over the timed epochs. It excludes the start of
Python and includes that of the Rust client.
"""

import argparse
import io
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import run as peers

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
WORKS = ("import", "ready", "tiny", "p3", "pil")
P3_EPOCHS, PIL_IMAGES, PIL_PROCESSES, READY = 4, 600, 2, 400


# ---------------------------------------------------------------- within a child process
def timed(batches, touch):
    """The rows and the seconds of an epoch, from the call of `iter`."""
    start, rows = time.perf_counter(), 0
    for batch in batches:
        rows += touch(batch)
    return {"rows": rows, "wall_s": time.perf_counter() - start, "first_batch_s": batches.stats.first_batch_s}


def epochs_of(dataset, warm, count, touch):
    for _ in range(warm):
        timed(iter(dataset), touch)
    before = time.process_time()
    done = [timed(iter(dataset), touch) for _ in range(count)]
    return {"epochs": done, "cpu_s": time.process_time() - before}


def over_caju(array, buffer):
    """Whether an array is a view of caju's memory, directly or through other views."""
    while isinstance(getattr(array, "base", None), type(array)):
        array = array.base
    return isinstance(array.base, buffer)


def taking(caju, data, rows, address, batches):
    """Microseconds to take a batch that has arrived. A run with a take that had to wait is repeated."""
    for pause in (0.5, 1, 2, 4, 8):
        with iter(caju.from_numpy(data).repeat(batches).batch(rows).distribute(address)) as epoch:
            next(epoch)
            time.sleep(pause)                                 # meanwhile batches arrive in the queue
            waited = epoch.stats.wait_s
            wall, cpu = time.perf_counter(), time.thread_time()
            taken = [next(epoch) for _ in range(batches // 2)]
            wall, cpu = time.perf_counter() - wall, time.thread_time() - cpu
            if epoch.stats.wait_s > waited:
                continue
            views = all(over_caju(a, caju._caju.Buffer) for b in taken for a in b.values())
            return {"wall_us": 1e6 * wall / len(taken), "cpu_us": 1e6 * cpu / len(taken), "views": views}
    sys.exit("error: a take had to wait in every run: the queue holds less than half of the batches")


def child_ready(address, rows, bytes_per_row):
    """The cost of taking a batch from the client's queue."""
    import caju
    import numpy as np

    rows, bytes_per_row = int(rows), int(bytes_per_row)
    data = {"x": np.zeros((rows, bytes_per_row), "u1"), "label": np.arange(rows)}
    batches = max(4, min(READY, (48 << 20) // (rows * (bytes_per_row + 8))))
    out = [taking(caju, data, rows, address, batches) for _ in range(3)]
    return {"batches": batches, **{k: statistics.median(o[k] for o in out) for k in ("wall_us", "cpu_us")},
            "views": all(o["views"] for o in out)}


def child_tiny(address, rows):
    import caju

    dataset = caju.range(int(rows)).batch(1).distribute(address, job_name=f"tiny-{os.getpid()}")
    return epochs_of(dataset, 1, 1, lambda batch: 1 if batch["id"][0] >= 0 else 1)


def touch_photos(batch):
    image, label = batch["image"], batch["label"]
    return len(label) if int(image[0, 0, 0, 0]) + int(image[-1, -1, -1, -1]) + int(label[0]) >= -1 else 0


def child_p3(file, address):
    """`address` may be `here:CACHE`."""
    import caju

    dataset = caju.read_yaml(file)
    if address.startswith("here:"):
        cluster = caju.LocalCluster(cache=address.removeprefix("here:"))
        dataset = dataset.distribute(cluster, policy="full")
        return epochs_of(dataset, 2, 2 * P3_EPOCHS, touch_photos)
    return epochs_of(dataset.distribute(address, policy="full", job_name=f"p3-{os.getpid()}"), 1, P3_EPOCHS, touch_photos)


def prepare(photo):
    """What a training job does with Pillow: decode, shorter side 256, centre 224."""
    import numpy as np
    from PIL import Image

    with Image.open(io.BytesIO(photo)) as opened:
        image = opened.convert("RGB")
    scale = 256 / min(image.size)
    image = image.resize((round(image.width * scale), round(image.height * scale)), Image.BILINEAR)
    left, top = (image.width - 224) // 2, (image.height - 224) // 2
    return np.asarray(image.crop((left, top, left + 224, top + 224)))


def prepare_row(row):
    return {"image": prepare(row["photo"])}


def child_pil(way, folder):
    import multiprocessing

    import numpy as np

    files = sorted(pathlib.Path(folder).rglob("*.jpg")) or sorted(p for p in pathlib.Path(folder).rglob("*") if p.is_file())
    photos = [files[i % len(files)].read_bytes() for i in range(PIL_IMAGES)]
    if way == "pool":
        done = []
        with multiprocessing.get_context("spawn").Pool(PIL_PROCESSES) as pool:
            for _ in range(3):
                start, batch, rows = time.perf_counter(), [], 0
                for image in pool.imap(prepare, photos, chunksize=16):
                    batch.append(image)
                    if len(batch) == 64:
                        rows, batch = rows + len(np.stack(batch)), []
                rows += len(np.stack(batch)) if batch else 0
                done.append({"rows": rows, "wall_s": time.perf_counter() - start})
        return {"epochs": done[1:]}
    import caju

    caju.configure(cpu_threads=PIL_PROCESSES)
    dataset = caju.from_numpy({"photo": np.array(photos, object)}).map(prepare_row, schema={"image": "uint8[224, 224, 3]"})
    return epochs_of(dataset.batch(64), 1, 2, lambda batch: len(batch["image"]))


CHILDREN = {"ready": child_ready, "tiny": child_tiny, "p3": child_p3, "pil": child_pil}


# ---------------------------------------------------------------- the parent
def child(name, *arguments):
    command = [args.python, str(HERE / "python.py"), "--child", name, *map(str, arguments)]
    done = subprocess.run(command, env=ENV, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, timeout=900)
    if done.returncode != 0:
        sys.exit(f"error: `{' '.join(command)}` ended with {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])


def figures(work, variant, report, cpu_s=None):
    rows, wall = sum(e["rows"] for e in report["epochs"]), sum(e["wall_s"] for e in report["epochs"])
    return {"work": work, "variant": variant, "rows_per_s": rows / wall,
            "rows_per_cpu_s": rows / cpu_s if cpu_s else None}


class Cluster:
    """Dispatcher and worker as processes of their own."""

    def __init__(self, *more):
        self.dispatcher = peers.Server("dispatcher", *more)
        self.worker = peers.Server("worker", "--dispatcher", self.dispatcher.address)
        self.address = self.dispatcher.address

    def cpu(self):
        return sum(sum(s.cpu()) for s in (self.dispatcher, self.worker))

    def stop(self):
        self.worker.stop()
        self.dispatcher.stop()


def work_import(folder):
    code = ("import sys, time\nstart = time.perf_counter()\nimport caju\ntook = time.perf_counter() - start\n"
            "print(took, *sorted({'torch', 'jax', 'pyarrow', 'numpy', 'logging'} & set(sys.modules)))")
    # Once before, so that the files are in memory.
    for _ in range(2):
        out = subprocess.run([args.python, "-c", code], env=ENV, check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    yield {"work": "import", "variant": "import caju", "seconds": float(out[0]), "brings": out[1:]}


def work_ready(folder):
    cluster = Cluster()
    try:
        for variant, rows, size in (("small batches", 32, 1024), ("large batches", 32, 224 * 224 * 3)):
            yield {"work": "ready", "variant": variant, **child("ready", cluster.address, rows, size)}
    finally:
        cluster.stop()


def work_tiny(folder):
    cluster = Cluster()
    try:
        # The first epoch of the child is not timed by it, but the servers' time cannot be told apart: it is halved.
        before = cluster.cpu()
        report = child("tiny", cluster.address, args.tiny_rows)
        yield figures("tiny", "caju from Python", report, report["cpu_s"] + (cluster.cpu() - before) / 2)
    finally:
        cluster.stop()
    if args.peers:
        tiny = ["--pipeline", "T1tiny", "--batch", "1", "--limit", "20000", "--mode", "service"]
        for r in peers.peer("tiny", "peer_tfdata.py", tiny, False):
            yield {"work": "tiny", "variant": "tf.data service", "rows_per_s": r["samples_per_s"],
                   "rows_per_cpu_s": r["samples_per_cpu_s"]}


def work_p3(folder):
    file = peers.pipeline("p3.yaml", folder)
    cache = folder / "cache"
    cluster = Cluster("--cache", str(cache))
    try:
        peers.read(cluster.address, file, 1, "full")
        before = cluster.cpu()
        report, usage = peers.read(cluster.address, file, P3_EPOCHS, "full")
        yield figures("p3", "Rust, loopback", report, usage.ru_utime + usage.ru_stime + cluster.cpu() - before)
        before = cluster.cpu()
        report = child("p3", file, cluster.address)
        served = (cluster.cpu() - before) * P3_EPOCHS / (P3_EPOCHS + 1)
        yield figures("p3", "Python, loopback", report, report["cpu_s"] + served)
    finally:
        cluster.stop()
    _, one = peers.read("here", file, 2, "full", cache)
    report, both = peers.read("here", file, 2 + 2 * P3_EPOCHS, "full", cache)
    report["epochs"] = report["epochs"][2:]
    used = both.ru_utime + both.ru_stime - one.ru_utime - one.ru_stime
    yield figures("p3", "Rust, one process", report, used)
    report = child("p3", file, f"here:{cache}")
    yield figures("p3", "Python, one process", report, report["cpu_s"])


def work_pil(folder):
    for variant, way in (("caju", "caju"), ("multiprocessing.Pool", "pool")):
        yield figures("pil", variant, child("pil", way, args.data / "jpeg"))


def median(rows, work, variant, key):
    values = [r[key] for r in rows if r["work"] == work and r["variant"] == variant and r.get(key) is not None]
    return statistics.median(values) if values else None


def goals(rows):
    """(what, reached, how it is compared, goal)."""
    m = lambda *a: median(rows, *a)
    ratio = lambda a, b: a / b if a and b else None
    per_cpu = lambda work, a, b: ratio(m(work, a, "rows_per_cpu_s"), m(work, b, "rows_per_cpu_s"))
    per_s = lambda work, a, b: ratio(m(work, a, "rows_per_s"), m(work, b, "rows_per_s"))
    out = [("import caju, seconds", m("import", "import caju", "seconds"), "<=", 0.1)]
    for v in ("small batches", "large batches"):
        out.append((f"a ready batch, microseconds of the thread, {v}", m("ready", v, "cpu_us"), "<=", 50))
    out += [
        ("T1tiny, to tf.data service, per CPU-second", per_cpu("tiny", "caju from Python", "tf.data service"), ">=", 30),
        ("T1tiny, to tf.data service, per second", per_s("tiny", "caju from Python", "tf.data service"), ">=", 30),
        ("P3 over the loopback, to Rust, per second", per_s("p3", "Python, loopback", "Rust, loopback"), ">=", 0.9),
        ("P3 over the loopback, to Rust, per CPU-second", per_cpu("p3", "Python, loopback", "Rust, loopback"), ">=", 0.9),
        ("P3 in one process, to Rust, per second", per_s("p3", "Python, one process", "Rust, one process"), ">=", 0.9),
        ("P3 in one process, to Rust, per CPU-second", per_cpu("p3", "Python, one process", "Rust, one process"), ">=", 0.9),
        ("a Pillow function, to a multiprocessing pool", per_s("pil", "caju", "multiprocessing.Pool"), ">=", 0.9),
    ]
    return [g for g in out if g[1] is not None]


def markdown(rows):
    out = ["## The Python package\n", "| what | reached | goal | |", "|---|---|---|---|"]
    for what, got, op, want in goals(rows):
        fine = got <= want if op == "<=" else got >= want
        out.append(f"| {what} | {got:,.3g} | {op} {want} | {'reached' if fine else '**missed**'} |")
    brought = sorted({b for r in rows for b in r.get("brings", [])})
    copies = [r["variant"] for r in rows if r.get("views") is False]
    if brought:
        out.append(f"\n`import caju` brings: {', '.join(brought)}.")
    if copies:
        out.append(f"\nCopied: {', '.join(copies)}.")
    out += ["\n| work | variant | rows/s | rows/CPU-s | n |", "|---|---|---|---|---|"]
    seen = dict.fromkeys((r["work"], r["variant"]) for r in rows if "rows_per_s" in r)
    for work, variant in seen:
        n = sum((r["work"], r["variant"]) == (work, variant) for r in rows)
        values = (median(rows, work, variant, key) for key in ("rows_per_s", "rows_per_cpu_s"))
        out.append(f"| {work} | {variant} | " + " | ".join("" if v is None else f"{v:,.0f}" for v in values) + f" | {n} |")
    return "\n".join(out) + "\n"


def package(folder):
    """The package with the extension module in it."""
    at = folder / "package" / "caju"
    shutil.copytree(ROOT / "crates/python/python/caju", at, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    os.symlink(args.lib.resolve(), at / "_caju.abi3.so")
    return at.parent


def results():
    for rep in range(1, args.reps + 1):
        for work in chosen:
            with tempfile.TemporaryDirectory() as folder:
                for r in globals()[f"work_{work}"](pathlib.Path(folder)):
                    yield {**r, "rep": rep}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(CHILDREN[sys.argv[2]](*sys.argv[3:])))
        sys.exit(0)
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    release = ROOT / "target" / "release"
    p.add_argument("--lib", type=pathlib.Path, default=release / "lib_caju.so", help="the extension module")
    p.add_argument("--bin", type=pathlib.Path, default=release, help="folder of the binaries")
    p.add_argument("--python", default=sys.executable, help="the Python that reads")
    p.add_argument("--peers", type=pathlib.Path, help="folder of the peer scripts; tf.data is left out without it")
    p.add_argument("--data", type=pathlib.Path, required=True, help="folder written by the peers' gen.py")
    p.add_argument("--reps", type=int, default=5)
    p.add_argument("--tiny-rows", type=int, default=1_000_000)
    p.add_argument("--only", default=",".join(WORKS), help="works, separated by commas")
    p.add_argument("--out", type=pathlib.Path, help="append JSON lines here")
    p.add_argument("--markdown", type=pathlib.Path, help="write the tables here")
    args = p.parse_args()
    chosen = peers.chosen_of(args, WORKS)
    peers.binaries(args, "caju", "touch-each")
    peers.args = args
    with tempfile.TemporaryDirectory() as home:
        ENV = {**os.environ, "PYTHONPATH": str(package(pathlib.Path(home)))}
        peers.report(results(), args, markdown)
