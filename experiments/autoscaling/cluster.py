"""Clusters of real processes, what they do over time, and how long their reader waits: for the experiments of this folder."""

import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TICKS = os.sysconf("SC_CLK_TCK")
# Requests that go through no proxy: all servers are on this machine.
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
# Seconds between two samples of a cluster.
SAMPLE_S = 0.25
# The consumer counts as served while it waits for a smaller fraction of every window of this many seconds.
SERVED, WINDOW_S = 0.05, 10.0
# Bytes of a row that is sent. With rows of this size the reader and the workers hold seconds of work ahead, not the whole epoch.
ROW_BYTES = 128 << 10
# What `payload` adds to a row, below the stages that take time.
PAYLOAD = {"with_columns": {"payload": f"repeat('x', {ROW_BYTES})"}}
# Digits of an id in the source, and rows of a split.
DIGITS, SPLIT_ROWS = 9, 20
# Cores that a worker may use where the number of its cores matters.
CORES = 0.25
# Microseconds after which a control group may use its CPU time again: short, so that rows come evenly.
QUOTA_PERIOD_US = 10_000


def parser(doc):
    """The options that all experiments with clusters have."""
    p = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--bin", type=pathlib.Path, default=ROOT / "target/release/caju", help="the caju command")
    p.add_argument("--data", type=pathlib.Path, default=ROOT / "data/autoscaling", help="folder of sources and measured points")
    p.add_argument("--results", type=pathlib.Path, default=HERE / "results")
    p.add_argument("--keep", type=pathlib.Path, help="make the table and the picture of these measured points, without a run")
    p.add_argument("--build", default="", help="a sentence about the build and the machine, for the table")
    return p


def sleeping(per_row_s):
    """A stage that takes this long for each row, one row at a time per worker: each worker stands for a machine."""
    return {"sleep": {"per_row": f"{per_row_s * 1e6:.0f}us"}}


def pipeline(folder, name, rows, steps):
    """The file of a pipeline over the ids below `rows`, in splits of `SPLIT_ROWS` rows."""
    folder.mkdir(parents=True, exist_ok=True)
    ids, file = folder / f"{rows}.csv", folder / f"{name}.json"
    if not ids.exists():
        ids.write_text("id\n" + "".join(f"{i:0{DIGITS}d}\n" for i in range(rows)))
    csv = {"path": str(ids), "schema": {"id": "int64"}, "split": SPLIT_ROWS * (DIGITS + 1)}
    file.write_text(json.dumps({"name": name, "source": {"csv": csv}, "steps": steps}))
    return file


class Cluster:
    """A dispatcher and its workers. The subclasses say who starts the workers."""

    def __init__(self, args, command, *options, buffer="4MiB"):
        allow = ["--allow-read", args.data]
        self.environment = {**os.environ, "CAJU_BUFFER": buffer}
        self.bin, self.log = args.bin, open(args.data / "servers.log", "w")
        line = [command, "--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--until-stdin-ends", *allow, *options]
        self.process = self.start(*line, stdout=subprocess.PIPE)
        self.address, self.http = (self.process.stdout.readline().split()[-1] for _ in range(2))
        self.samples = []
        self._over = threading.Event()
        self._sampler = threading.Thread(target=self._sample)
        self._sampler.start()

    def start(self, *command, stdout=subprocess.DEVNULL):
        """A process of caju, which ends with this one."""
        return subprocess.Popen([str(self.bin), *map(str, command)], stdin=subprocess.PIPE, stdout=stdout, stderr=self.log,
                                text=True, env=self.environment)

    def workers(self):
        """The processes of the workers that live, as their ids."""
        raise NotImplementedError

    def metrics(self):
        """The metrics of the dispatcher by name and labels."""
        text = DIRECT.open(self.http, timeout=10).read().decode()
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#")}

    def status(self):
        """What `caju status` says."""
        line = [self.bin, "status", "--all", "--format", "json", "--dispatcher", self.address]
        return json.loads(subprocess.run(line, check=True, stdout=subprocess.PIPE).stdout)

    def _sample(self):
        while not self._over.wait(SAMPLE_S):
            # It is left out until workers and readers could report after a start.
            target = self.metrics().get("caju_target_workers", 0)
            self.samples.append((time.monotonic(), int(target), len(self.workers())))

    def cpu_s(self):
        """CPU seconds of the dispatcher and the workers that live."""
        return sum(map(cpu_s, [self.process.pid, *self.workers()]))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._over.set()
        self._sampler.join()
        workers = self.workers()
        # First the process that would replace them.
        self.process.kill()
        self.process.wait()
        for pid in workers:
            signalled(pid, signal.SIGKILL)
        self.log.close()


class Up(Cluster):
    """`caju up --workers auto`: its workers follow the dispatcher's target."""

    def __init__(self, args, *options):
        super().__init__(args, "up", "--workers", "auto", "--cpu-threads", 1, "--max-restarts", 1000, *options)

    def workers(self):
        children = []
        for task in pathlib.Path(f"/proc/{self.process.pid}/task").glob("*/children"):
            try:
                children += map(int, task.read_text().split())
            except OSError:
                continue  # a thread that has ended
        return children


class ByHand(Cluster):
    """`caju dispatcher`, and as many `caju worker` processes as `want` was last given. The next call replaces one that died."""

    def __init__(self, args, workers, *options, cores=None):
        """`cores`: those that each worker may use, in a control group of its own."""
        self.staying, self.leaving, self.allow, self.lock = [], [], args.data, threading.Lock()
        self.cores, self.groups = cores, []
        super().__init__(args, "dispatcher", *options)
        self.want(workers)

    def want(self, workers):
        """Starts workers, or lets the newest ones leave, until this many stay."""
        with self.lock:
            self.staying = [p for p in self.staying if p.poll() is None]
            while len(self.staying) < workers:
                process = self.start("worker", "--dispatcher", self.address, "--cpu-threads", 1,
                                     "--until-stdin-ends", "--allow-read", self.allow)
                self.staying.append(process)
                if self.cores:
                    self.groups.append(limit_cores(process, self.cores))
            for process in self.staying[workers:]:
                process.terminate()
            self.leaving += self.staying[workers:]
            del self.staying[workers:]

    def workers(self):
        with self.lock:
            self.leaving = [p for p in self.leaving if p.poll() is None]
            return [p.pid for p in self.staying + self.leaving if p.poll() is None]

    def __exit__(self, *_):
        super().__exit__()
        for process in self.staying + self.leaving:
            process.wait()
        for group in self.groups:
            group.rmdir()

    def registered(self, workers, within_s=60):
        """Waits until this many workers have registered."""
        until = time.monotonic() + within_s
        while self.metrics()["caju_workers"] < workers:
            if time.monotonic() > until:
                sys.exit(f"{workers} workers did not register within {within_s} s; see {self.log.name}")
            time.sleep(SAMPLE_S)


class Reader:
    """A process of consumer.py, and the batches that it got: (asked, got, epoch, rows, first id)."""

    def __init__(self, cluster, file, job, step_s, *options):
        command = [sys.executable, HERE / "consumer.py", file, cluster.address, job, step_s, *options]
        self.process = subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, text=True)
        self.batches = []
        self._lines = threading.Thread(target=self._read)
        self._lines.start()

    def _read(self):
        for line in self.process.stdout:
            asked, got, epoch, rows, first = line.split()
            self.batches.append((float(asked), float(got), int(epoch), int(rows), int(first)))

    def running(self):
        return self.process.poll() is None

    def end(self):
        """Waits for its end, which has to be that of its last epoch."""
        self._lines.join()
        if self.process.wait() != 0:
            sys.exit(f"the reader ended with code {self.process.returncode}")

    def stop(self):
        """Ends it where it is."""
        self.process.kill()
        self._lines.join()
        self.process.wait()


def limit_cores(process, cores):
    """Moves a process to a new control group (version 1 or 2) in which it may use so much CPU time. The folder of the group."""
    root = pathlib.Path("/sys/fs/cgroup")
    is_v1 = (root / "cpu").is_dir()
    group = (root / "cpu" if is_v1 else root) / f"caju-{process.pid}"
    quota_us = round(cores * QUOTA_PERIOD_US)
    try:
        if not is_v1:
            (root / "cgroup.subtree_control").write_text("+cpu")
        group.mkdir()
        if is_v1:
            (group / "cpu.cfs_period_us").write_text(str(QUOTA_PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(quota_us))
        else:
            (group / "cpu.max").write_text(f"{quota_us} {QUOTA_PERIOD_US}")
        (group / "cgroup.procs").write_text(str(process.pid))
    except OSError as e:
        sys.exit(f"{group}: {e.strerror}; control groups with CPU quotas need root and the controller `cpu`")
    return group


def signalled(pid, number):
    """Sends a signal to a process, if it still lives."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def cpu_s(pid):
    """CPU seconds of a process; 0 if it has ended."""
    try:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS


def rss_bytes(pid):
    """Resident memory of a process."""
    return int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def waited_s(batches, begin, end):
    """Seconds between two moments in which the reader waited for a batch."""
    return sum(max(0.0, min(b[1], end) - max(b[0], begin)) for b in batches)


def served_after_s(batches, change, end):
    """Seconds from a change until the consumer no longer waits: from then on it is served in every window. None: not by the end."""
    starts = [change + k * SAMPLE_S for k in range(int((end - change - WINDOW_S) / SAMPLE_S) + 1)]
    late = [s for s in starts if waited_s(batches, s, s + WINDOW_S) >= SERVED * WINDOW_S]
    if not late:
        return 0.0
    return None if late[-1] >= starts[-1] else late[-1] + SAMPLE_S - change


def worker_seconds(samples, begin, end, part):
    """The sum of `part(workers)` over the time between two moments."""
    inside = [(at, workers) for at, _, workers in samples if begin <= at <= end]
    return sum(part(n) * (later - at) for (at, n), (later, _) in zip(inside, inside[1:]))


def wait_curve(batches, begin, end, width_s=2.0):
    """The fraction of its time that the reader waited, by the seconds since `begin`."""
    starts = [begin + k * width_s for k in range(int((end - begin) / width_s))]
    return [s - begin + width_s / 2 for s in starts], [waited_s(batches, s, s + width_s) / width_s for s in starts]


def publish(args, name, lines, draw):
    """Writes the table and, where matplotlib is installed, the picture that `draw(pyplot)` makes."""
    args.results.mkdir(parents=True, exist_ok=True)
    text = "\n".join([*lines, "", f"![{lines[0].removeprefix('# ')}]({name}.svg)", ""])
    (args.results / f"{name}.md").write_text(text)
    print(text)
    try:
        import matplotlib
    except ImportError:
        return print("no picture: `pip install matplotlib` for one", file=sys.stderr)
    matplotlib.use("svg")
    from matplotlib import pyplot
    draw(pyplot).savefig(args.results / f"{name}.svg", bbox_inches="tight")


def measured(args, name, measure):
    """The points of an earlier run (`--keep`), or those that `measure()` gives now, which are then in the data folder."""
    if args.keep:
        return json.loads(args.keep.read_text())
    args.data = args.data.resolve()
    args.data.mkdir(parents=True, exist_ok=True)
    points = measure()
    (args.data / f"{name}.json").write_text(json.dumps(points) + "\n")
    return points
