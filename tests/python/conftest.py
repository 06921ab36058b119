"""Fixtures of the Python tests: the real binary, its processes and one set of sample data.

Nothing here imports code of caju: the tests see command lines, exit codes, files and the wire.
"""

import json
import os
import pathlib
import queue
import random
import shutil
import signal
import socket
import subprocess
import threading
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PATIENCE_S = 90
IMAGES, ROWS, SHARDS = 60, 4000, 3


def find_binary():
    if "CAJU_BIN" in os.environ:
        return pathlib.Path(os.environ["CAJU_BIN"])
    subprocess.run(["cargo", "build", "--quiet", "--workspace", "--bins"], cwd=ROOT, check=True)
    return pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "debug" / "caju"


def wait_for(what, probe):
    """What `probe` returns once it is true."""
    until = time.monotonic() + PATIENCE_S
    while not (found := probe()):
        assert time.monotonic() < until, f"no {what}"
        threading.Event().wait(0.02)
    return found


GIVEN_PORTS = set()


def free_port():
    """A port that was free a moment ago, below those that outgoing connections get."""
    for port in range(20_000 + random.randrange(10_000), 32_000):
        if port in GIVEN_PORTS:
            continue
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
                GIVEN_PORTS.add(port)
                return port
            except OSError:
                continue
    raise AssertionError("no free port")


class Caju:
    """Runs the binary."""

    def __init__(self, binary):
        self.binary = str(binary)
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("CAJU_")}

    def __call__(self, *args, code=0, cwd=None):
        """Runs a command to its end; the exit code must be `code`."""
        done = subprocess.run([self.binary, *map(str, args)], cwd=cwd, env=self.env, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=PATIENCE_S)
        assert done.returncode == code, f"caju {args} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def report(self, command, definition, folder, *args):
        """Runs `caju run` or `caju read` on a definition; the report as a dict."""
        file = write_pipeline(folder, definition)
        out = folder / "report.json"
        self(command, file, "--report", out, *args)
        return json.loads(out.read_text())


def write_pipeline(folder, definition):
    file = folder / "pipeline.yaml"
    file.write_text(json.dumps(definition))       # JSON is YAML
    return file


class Server:
    """A server process that listens on a free port of the loopback."""

    def __init__(self, caju, folder, role, *args):
        self.log = open(folder / f"{role}-{os.urandom(4).hex()}.log", "w+")
        self.process = subprocess.Popen([caju.binary, role, *map(str, args)], cwd=folder, env=caju.env, text=True,
                                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.log)
        first = queue.Queue(maxsize=1)
        threading.Thread(target=lambda: first.put(self.process.stdout.readline()), daemon=True).start()
        line = first.get(timeout=PATIENCE_S).strip()
        words = f"caju {role} listening on "
        assert line.startswith(words), f"the first line of the {role} is {line!r}: {self.errors()}"
        self.address = line.removeprefix(words)

    def errors(self):
        self.log.seek(0)
        return self.log.read()

    def kill(self):
        self.process.kill()
        self.process.wait(PATIENCE_S)

    def stop(self):
        """SIGTERM: it drains and ends with code 0."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(PATIENCE_S)
        assert code == 0, f"ended with {code}: {self.errors()}"


class Cluster:
    """A dispatcher and workers that may read anything."""

    def __init__(self, caju, folder, workers, *args):
        self.caju, self.folder = caju, folder
        self.servers = []
        self.dispatcher = self.start("dispatcher", "--heartbeat", "100ms", "--worker-timeout", "2s", *args)
        self.workers = [self.add_worker() for _ in range(workers)]

    def start(self, role, *args):
        listen = [] if "--listen" in args else ["--listen", "127.0.0.1:0"]
        server = Server(self.caju, self.folder, role, *listen, "--allow", "/", "--allow-write", "/", *args)
        self.servers.append(server)
        return server

    def add_worker(self, *args):
        return self.start("worker", "--dispatcher", self.dispatcher.address, "--cpu-threads", "1", *args)

    def report(self, definition, folder, *args):
        """What `caju read` reports about a definition."""
        return self.caju.report("read", definition, folder, "--dispatcher", self.dispatcher.address, *args)

    def status(self):
        return json.loads(self.caju("status", "--dispatcher", self.dispatcher.address, "--format", "json").stdout)

    def kill(self):
        for server in self.servers:
            server.kill()


@pytest.fixture(scope="session")
def caju():
    return Caju(find_binary())


@pytest.fixture(scope="session")
def data(caju, tmp_path_factory):
    """A folder with `images/{tfrecord,parquet,webdataset,files}` and `table/{parquet,csv,json}`."""
    folder = tmp_path_factory.mktemp("data")
    caju("gen", "images", "--out", folder / "images", "--count", IMAGES, "--shards", SHARDS,
         "--format", "tfrecord,parquet,webdataset,files", "--quiet")
    caju("gen", "table", "--out", folder / "table", "--count", ROWS, "--shards", SHARDS,
         "--format", "parquet,csv,json", "--quiet")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def cluster(caju, tmp_path):
    """Starts clusters: `cluster(workers=2)`. Whatever a test leaves running is killed."""
    started = []

    def start(workers=2, *args):
        folder = tmp_path / f"cluster-{len(started)}"
        folder.mkdir()
        started.append(Cluster(caju, folder, workers, *args))
        return started[-1]

    yield start
    for c in started:
        c.kill()
