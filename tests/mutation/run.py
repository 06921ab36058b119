#!/usr/bin/env python3
"""Damages files and reads them: what comes must be an error that names the file, or the rows of the good file.

    python3 tests/mutation/run.py                      # some thousand files of every format, stored parts and saves
    python3 tests/mutation/run.py --count 3 --only arrow-lz4,cache-arrow-none
    python3 tests/mutation/run.py --only arrow-lz4 --replay 17     # one damaged file again, with all that caju writes

Every case changes 1 to 3 bytes at places that `--seed`, the format's name and the case's number determine. It is read
twice: by `caju run`, and by `caju read` through a dispatcher and a worker that serve all cases. A damaged cache has a
cluster of its own in each case. Formats differ in what
they can detect: formats.py says what each promises, and the table repeats it. Stored parts are always computed again
(`cache-*`: exactly the rows, no error); saves (`save-*`) are exact.

A violation is: other rows than promised, an error that does not name the file, no answer within --deadline, or a
process that died of a signal or a panic. Each is kept in a folder below --violations, with the command that repeats
it. Exit code 1 if there is one. Needs pyarrow, NumPy, xxhash and Pillow (tests/python/requirements.txt).
"""

import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

from formats import EXACT, FORMATS, RECORDS, SMALL, nested, parquet, table

ROOT = pathlib.Path(__file__).resolve().parents[2]
ENCODINGS = ["arrow/none", "arrow/lz4", "arrow/zstd", "parquet/none", "parquet/snappy", "parquet/lz4", "parquet/zstd"]
NESTED_ENCODINGS = ["arrow/none", "arrow/zstd", "parquet/zstd"]


def changes(seed, name, number, size):
    """The places and values of a case: a dict from offset to what is XORed there."""
    rng = random.Random(f"{seed}/{name}/{number}")
    out = {}
    for _ in range(rng.randint(1, 3)):
        near = rng.choice(("anywhere", "anywhere", "begin", "end"))
        span = min(size, 512)
        at = rng.randrange(size) if near == "anywhere" else rng.randrange(span)
        at = size - 1 - at if near == "end" else at
        out[at] = rng.choice((1 << rng.randrange(8), rng.randrange(1, 256), 0xFF))
    return out


def damaged(data, flips):
    data = bytearray(data)
    for at, mask in flips.items():
        data[at] ^= mask
    return bytes(data)


class Outcome:
    """What a command answered."""

    def __init__(self, code, stderr, report):
        self.code, self.stderr = code, stderr
        epochs = (report or {}).get("epochs") or [{}]
        self.rows, self.checksum = epochs[0].get("rows"), epochs[0].get("rows_checksum")
        self.cache_bytes_read = epochs[0].get("cache_bytes_read") or 0

    def died(self):
        if self.code is None:
            return "no answer within the deadline"
        if self.code < 0:
            return f"died of {signal.Signals(-self.code).name}"
        if self.code == 101:
            return "panicked"
        return None


class Cluster:
    """A dispatcher and a worker."""

    def __init__(self, binary, env, folder, allowed, *of_dispatcher):
        self.binary, self.env, self.folder, self.servers = binary, env, folder, []
        more = ["--listen", "127.0.0.1:0", "--allow", str(allowed)]
        self.address = self.start("dispatcher", *more, "--worker-timeout", "2s", *of_dispatcher)
        self.start("worker", "--dispatcher", self.address, "--cpu-threads", "2", *more)

    def start(self, role, *args):
        log = open(self.folder / f"{role}.log", "ab")
        server = subprocess.Popen([self.binary, role, *args], env=self.env, stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=log, cwd=self.folder)
        log.close()
        self.servers.append(server)
        line = server.stdout.readline().decode()
        if " listening on " not in line:
            self.stop()
            raise SystemExit(f"the {role} did not start: see {self.folder / (role + '.log')}")
        return line.split()[-1]

    def dead(self):
        """How the processes ended, None while all live."""
        for server, role in zip(self.servers, ("dispatcher", "worker")):
            code = server.poll()
            if code is not None:
                how = f"died of {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
                return f"the {role} {how}"
        return None

    def stop(self):
        for server in self.servers:
            server.kill()
            server.wait()
            server.stdout.close()
        self.servers = []


class Caju:
    """The binary, with a folder for what it reads and writes, and a cluster that lives until it dies."""

    def __init__(self, binary, folder, deadline):
        self.binary, self.folder, self.deadline = str(binary), folder, deadline
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("CAJU_")}
        self.shared, self.lock = None, threading.Lock()

    def command(self, work, args, definition):
        pipeline, report = work / "pipeline.yaml", work / "report.json"
        pipeline.write_text(json.dumps(definition))
        report.unlink(missing_ok=True)
        command = [self.binary, args[0], str(pipeline), *args[1:]]
        if args[0] != "save":
            command += ["--report", str(report)]
        try:
            done = subprocess.run(command, env=self.env, stdin=subprocess.DEVNULL, capture_output=True, cwd=work,
                                  timeout=self.deadline)
        except subprocess.TimeoutExpired as e:
            return Outcome(None, (e.stderr or b"").decode(errors="replace"), None)
        read = json.loads(report.read_text()) if report.exists() else None
        return Outcome(done.returncode, done.stderr.decode(errors="replace"), read)

    def run(self, work, definition, *args):
        return self.command(work, ["run", *args], definition)

    def read(self, work, definition, *args, cluster=None):
        """Reads through the cluster of all cases, or another one."""
        return self.command(work, ["read", "--dispatcher", (cluster or self.cluster()).address, *args], definition)

    def cluster(self):
        """The cluster of all cases; started again where a process of it died."""
        with self.lock:
            if self.shared is None or self.shared.dead():
                self.stop()
                self.shared = Cluster(self.binary, self.env, self.folder, self.folder)
            return self.shared

    def dead(self):
        """How the cluster's processes ended, None while all live."""
        with self.lock:
            return self.shared.dead() if self.shared else None

    def stop(self):
        if self.shared:
            self.shared.stop()


class Kind:
    """A kind of damage: how a case is prepared, which ways read it, and what its answer may be."""

    ways = ("run", "cluster")

    def __init__(self, name, promise):
        self.name, self.promise, self.good = name, promise, None

    def refuses(self, outcome, allowed):
        """Why an answer is a violation; None if it is as promised."""
        if outcome.died():
            return outcome.died()
        if outcome.code == 0:
            return allowed(outcome)
        return None if self.named in outcome.stderr else f"the error does not name {self.named}"


class SourceFile(Kind):
    """A file that a source reads."""

    def __init__(self, format_):
        super().__init__(format_.name, format_.promise)
        self.format, self.named = format_, "damaged" + format_.suffix

    def prepare(self, caju, folder):
        self.data = self.format.write(self.format.rows)
        self.covered = self.format.exact_within(self.data)
        self.good = self.read(caju, folder, self.data, "run")
        if self.good.code or self.good.rows != self.format.rows:
            raise SystemExit(f"{self.name}: the good file gives {self.good.rows} rows: {self.good.stderr}")

    def size(self):
        return len(self.data)

    def read(self, caju, work, data, way):
        file = work / self.named
        file.write_bytes(data)
        # The split is small, so that damage meets the ways of a file between several readers as well.
        how = {"run": caju.run, "cluster": caju.read}[way]
        return how(work, self.format.definition(file))

    def case(self, caju, work, flips, way):
        data = damaged(self.data, flips)
        outcome = self.read(caju, work, data, way)
        return outcome, self.refuses(outcome, lambda o: self.rows(o, data, flips))

    def rows(self, outcome, data, flips):
        same = outcome.checksum == self.good.checksum
        if outcome.rows != self.good.rows and self.promise != RECORDS:
            return f"{outcome.rows} rows, the good file has {self.good.rows}"
        exact = self.promise == EXACT or all(any(at in r for r in self.covered) for at in flips)
        if exact and not same:
            return "other values than the good file's, which its checksums reveal"
        if self.promise == RECORDS and not same and outcome.rows != self.format.count(data):
            return f"{outcome.rows} rows, an independent reader counts {self.format.count(data)}"
        return None


class Stored(Kind):
    """One object of a cache or a save. The table that is stored comes from a good file."""

    def __init__(self, name, encoding, steps, make=table):
        super().__init__(name, EXACT)
        self.encoding, self.steps, self.named, self.make = encoding, steps, "stored", make

    def prepare(self, caju, folder):
        source = folder / "good.parquet"
        source.write_bytes(parquet(self.make, use_dictionary=True, compression="none")(600))
        self.definition = {"source": {"parquet": {"path": str(source), "split": SMALL}}, "steps": self.steps}
        self.root = folder / "original"
        self.store(caju, folder)
        keep = lambda p: p.is_file() and p.stat().st_size and not any(s in p.parts for s in ("writers", "probes"))
        self.objects = sorted(p.relative_to(self.root) for p in self.root.rglob("*") if keep(p))
        if not any(p.suffix in (".arrow", ".parquet") for p in self.objects):
            raise SystemExit(f"{self.name}: nothing was stored: {self.good.stderr}")

    def size(self):
        return sum((self.root / p).stat().st_size for p in self.objects)

    def damage(self, work, flips):
        """A copy of everything with its bytes changed; the objects count as one long file."""
        copy = work / self.named
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.root, copy)
        begin = 0
        for path in self.objects:
            data = (copy / path).read_bytes()
            here = {at - begin: mask for at, mask in flips.items() if begin <= at < begin + len(data)}
            if here:
                (copy / path).write_bytes(damaged(data, here))
            begin += len(data)
        return copy


class CachedParts(Stored):
    """A cache from which a later run reads: damage costs computing, never rows, and is no error."""

    policy = ("--policy", "hint:h")

    def __init__(self, encoding, whole=False, make=table):
        steps = ([{"shuffle": 100}] if whole else []) + [{"autocache": "h"}, {"filter": "id >= 0"}]
        kind = ("-set" if whole else "") + ("-nested" if make is nested else "")
        super().__init__(f"cache{kind}-{encoding.replace('/', '-')}", encoding, steps, make)

    def store(self, caju, folder):
        args = ["--cache", str(self.root), *self.policy, "--encoding", self.encoding]
        self.good = caju.run(folder, self.definition, *args)

    def prepare(self, caju, folder):
        super().prepare(caju, folder)
        for way in self.ways:
            outcome, dead = self.read(caju, folder, self.damage(folder, {}), way)
            if dead or not outcome.cache_bytes_read:
                raise SystemExit(f"{self.name}: what is whole is not read from the cache by {way}: {outcome.stderr}")

    def read(self, caju, work, copy, way):
        """What a later run answers, and how its cluster ended if that died."""
        if way == "cluster":
            return self.through_a_cluster(caju, work, copy)
        return caju.run(work, self.definition, "--cache", str(copy), *self.policy), None

    def case(self, caju, work, flips, way):
        outcome, dead = self.read(caju, work, self.damage(work, flips), way)
        same = (outcome.rows, outcome.checksum) == (self.good.rows, self.good.checksum)
        if outcome.died() or outcome.code or dead:
            return outcome, outcome.died() or dead or "an error, where what is damaged should be computed again"
        return outcome, None if same else f"{outcome.rows} rows or other values; {self.good.rows} were stored"

    def through_a_cluster(self, caju, work, copy):
        """A cluster of the case's own: a dispatcher is given its cache when it starts."""
        cluster = Cluster(caju.binary, caju.env, work, caju.folder, "--cache", str(copy))
        try:
            return caju.read(work, self.definition, *self.policy, cluster=cluster), cluster.dead()
        finally:
            cluster.stop()


class Saved(Stored):
    """A save that `load` reads."""

    def __init__(self, encoding, make=table):
        kind = "-nested" if make is nested else ""
        super().__init__(f"save{kind}-{encoding.replace('/', '-')}", encoding, [{"filter": "id >= 0"}], make)

    def store(self, caju, folder):
        saved = caju.command(folder, ["save", "--to", str(self.root), "--encoding", self.encoding], self.definition)
        if saved.code:
            raise SystemExit(f"{self.name}: {saved.stderr}")
        self.good = caju.run(folder, self.loading(self.root))

    def loading(self, root):
        return {"source": {"load": {"path": str(root), "wait": False}}}

    def case(self, caju, work, flips, way):
        how = {"run": caju.run, "cluster": caju.read}[way]
        outcome = how(work, self.loading(self.damage(work, flips)))
        same = lambda o: (o.rows, o.checksum) == (self.good.rows, self.good.checksum)
        return outcome, self.refuses(outcome, lambda o: None if same(o) else f"{o.rows} rows or other values")


def kinds():
    return [*map(SourceFile, FORMATS), *map(CachedParts, ENCODINGS), CachedParts("arrow/none", whole=True),
            CachedParts("parquet/zstd", whole=True), *(CachedParts(e, make=nested) for e in NESTED_ENCODINGS),
            *map(Saved, ENCODINGS), *(Saved(e, nested) for e in NESTED_ENCODINGS)]


class Harness:
    def __init__(self, args, folder):
        self.args, self.folder = args, folder
        self.caju = Caju(args.binary, folder, args.deadline)
        self.violations = 0

    def one(self, kind, number, way):
        """Runs one case in a folder of its own; what it answered, and why that is a violation."""
        work = self.folder / kind.name / f"{number}-{way}"
        work.mkdir(parents=True)
        flips = changes(self.args.seed, kind.name, number, kind.size())
        outcome, why = kind.case(self.caju, work, flips, way)
        if why and not self.args.replay:
            kept = pathlib.Path(self.args.violations) / f"{kind.name}-{self.args.seed}-{number}-{way}"
            shutil.rmtree(kept, ignore_errors=True)
            shutil.copytree(work, kept)
            replay = f"python3 tests/mutation/run.py --seed {self.args.seed} --only {kind.name} --replay {number}"
            (kept / "violation.txt").write_text(f"{why}\nchanged: {flips}\nagain: {replay}\n\n{outcome.stderr}")
        shutil.rmtree(work, ignore_errors=True)
        return outcome, why

    def kind(self, kind, pool):
        home = self.folder / kind.name / "good"
        home.mkdir(parents=True)
        kind.prepare(self.caju, home)
        numbers = range(self.args.count)
        for way in [w for w in self.args.ways.split(",") if w in kind.ways]:
            tally, whys = collections.Counter(), []
            for chunk in (numbers[i:i + 32] for i in range(0, len(numbers), 32)):
                results = list(pool.map(lambda n: self.one(kind, n, way), chunk))
                if way == "cluster" and self.caju.dead():
                    # All that was under way suffered: each alone says which one was the cause.
                    results = [self.alone(kind, n) for n in chunk]
                for number, (outcome, why) in zip(chunk, results):
                    tally[self.name_of(kind, outcome, why)] += 1
                    if why:
                        whys.append((number, why))
            self.tell(kind, way, tally, whys)
        shutil.rmtree(self.folder / kind.name, ignore_errors=True)

    def alone(self, kind, number):
        self.caju.cluster()
        outcome, why = self.one(kind, number, "cluster")
        return outcome, self.caju.dead() or why

    @staticmethod
    def name_of(kind, outcome, why):
        if why:
            return "violations"
        if outcome.code:
            return "errors"
        return "equal" if outcome.checksum == kind.good.checksum else "other values"

    def tell(self, kind, way, tally, whys):
        columns = [tally[c] for c in ("errors", "equal", "other values", "violations")]
        print(f"{kind.name:26} {kind.promise:8} {way:8}" + "".join(f"{n:>8}" for n in [sum(columns), *columns]),
              flush=True)
        for number, why in whys[:self.args.show]:
            print(f"    case {number}: {why}", flush=True)
        self.violations += len(whys)

    def replay(self, kind):
        home = self.folder / kind.name / "good"
        home.mkdir(parents=True)
        kind.prepare(self.caju, home)
        for way in [w for w in self.args.ways.split(",") if w in kind.ways]:
            outcome, why = self.one(kind, self.args.replay, way)
            why = (self.caju.dead() if way == "cluster" else None) or why
            print(f"{kind.name} case {self.args.replay} by {way}: exit code {outcome.code}, {outcome.rows} rows: "
                  f"{why or 'as promised'}\n{outcome.stderr}")
            self.violations += bool(why)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100, help="cases of each format (100)")
    parser.add_argument("--only", help="names of formats, separated by commas; all by default")
    parser.add_argument("--ways", default="run,cluster", help="run, cluster or both")
    parser.add_argument("--seed", type=int, default=1, help="another seed, other damage")
    parser.add_argument("--replay", type=int, help="run this case alone and show what caju writes")
    parser.add_argument("--deadline", type=float, default=60, help="seconds after which no answer is a violation")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="cases at once; the cores by default")
    parser.add_argument("--show", type=int, default=5, help="violations of a format that are printed")
    parser.add_argument("--violations", default=str(ROOT / "target/mutation"), help="where violations are kept")
    parser.add_argument("--binary", default=os.environ.get("CAJU_BIN", str(ROOT / "target/debug/caju")))
    args = parser.parse_args()
    names = [k.name for k in kinds()]
    chosen = args.only.split(",") if args.only else names
    if odd := set(chosen) - set(names):
        parser.error(f"no format is named {', '.join(sorted(odd))}; there are {', '.join(names)}")
    return args, [k for k in kinds() if k.name in chosen]


def main():
    args, chosen = arguments()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="caju-mutation-") as folder:
        harness = Harness(args, pathlib.Path(folder))
        try:
            if args.replay is not None:
                for kind in chosen:
                    harness.replay(kind)
            else:
                head = ("format", "promise", "read by")
                print("{:26} {:8} {:8}".format(*head)
                      + "".join(f"{c:>8}" for c in ("cases", "errors", "equal", "other", "BAD")))
                with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
                    for kind in chosen:
                        harness.kind(kind, pool)
        finally:
            harness.caju.stop()
    print(f"{harness.violations} violations in {time.monotonic() - began:.0f} s"
          + (f"; see {args.violations}" if harness.violations and args.replay is None else ""))
    return 1 if harness.violations else 0


if __name__ == "__main__":
    sys.exit(main())
