"""What a process that uses caju does not open to others, and what functions of users see of it."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import caju as cj
import pytest


def listening() -> list[str]:
    """The addresses at which this process listens."""
    sockets = set()
    for fd in pathlib.Path("/proc/self/fd").iterdir():
        try:
            sockets.add(os.readlink(fd))
        except FileNotFoundError:
            continue
    found = []
    for kind in ("tcp", "tcp6"):
        for line in pathlib.Path(f"/proc/self/net/{kind}").read_text().splitlines()[1:]:
            columns = line.split()
            if columns[3] == "0A" and f"socket:[{columns[9]}]" in sockets:
                found.append(columns[1])
    return found


def test_a_loop_opens_no_port():
    assert listening() == []
    epoch = iter(cj.range(1000).autocache("h").map(lambda row: {"x": row["id"]}).batch(10))
    next(epoch)
    with cj.LocalCluster(workers=2) as cluster:
        shared = iter(cj.range(1000).batch(10).distribute(cluster, job_name="j"))
        next(shared)
        cluster.add_worker()
        assert listening() == []
        list(shared)
    list(epoch)


def test_a_cluster_listens_where_it_is_asked_to():
    read = "import caju, sys; print(len(list(caju.range(100).batch(10).distribute(sys.argv[1]))))"
    with cj.LocalCluster(workers=2, listen="127.0.0.1:0") as cluster:
        assert len(listening()) == 3 and cluster.address.startswith("127.0.0.1:")
        done = subprocess.run([sys.executable, "-c", read, cluster.address], capture_output=True, text=True, check=True)
        assert done.stdout == "10\n"
    with pytest.raises(cj.InvalidPipeline, match="HOST:PORT"):
        cj.LocalCluster(listen=7070)


def test_the_address_of_a_cluster_without_a_port_is_nobody_elses():
    read = "import caju, sys; list(caju.range(3).distribute(sys.argv[1], connect_timeout=0.1))"
    with cj.LocalCluster() as cluster:
        assert len(list(cj.range(3).distribute(cluster.address))) == 3
        done = subprocess.run([sys.executable, "-c", read, cluster.address], capture_output=True, text=True)
    assert done.returncode != 0 and "belongs to another process" in done.stderr


# ---- functions -----------------------------------------------------------------------------------------------------


def seen(row):
    """What a function sees of the process that runs it."""
    import os
    import sys

    return {
        "id": row["id"],
        "secret": os.environ.get("AWS_SECRET_ACCESS_KEY", ""),
        "named": os.environ.get("MY_MODELS", ""),
        "path": "\n".join(sys.path),
        "home": os.environ.get("HOME", ""),
    }


SERVED = """
import os, sys
os.environ["AWS_SECRET_ACCESS_KEY"] = "hush"
import caju
dispatcher = caju.start_dispatcher(allow_python=True)
worker = caju.start_worker(dispatcher, allow_python=True)
print(dispatcher.address, flush=True)
sys.stdin.read()
"""


def test_functions_on_servers_see_neither_credentials_nor_the_working_folder(tmp_path):
    # In place of ours, if the working folder were on the path.
    (tmp_path / "caju").mkdir()
    (tmp_path / "caju" / "__init__.py").write_text("raise SystemExit('not ours')")
    script = tmp_path / "elsewhere" / "server.py"
    script.parent.mkdir()
    script.write_text(SERVED)
    with subprocess.Popen([sys.executable, script], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          text=True) as server:  # fmt: skip
        address = server.stdout.readline().strip()
        row = next(iter(cj.range(1).map(seen).distribute(address)))
        server.stdin.close()
    assert (row["secret"], row["home"]) == ("", os.environ["HOME"])
    assert "" not in str(row["path"]).split("\n") and str(tmp_path) not in str(row["path"]).split("\n")


def test_functions_of_this_process_see_what_it_sees(tmp_path, monkeypatch):
    monkeypatch.setenv("MY_MODELS", "here")
    monkeypatch.syspath_prepend(str(tmp_path))
    with cj.LocalCluster() as cluster:
        row = next(iter(cj.range(1).map(seen).distribute(cluster)))
    assert str(row["named"]) == "here" and str(row["path"]).split("\n")[0] == str(tmp_path)


def counting(row):
    import builtins

    builtins.rows_so_far = getattr(builtins, "rows_so_far", 0) + 1
    return {"n": builtins.rows_so_far}


def other(row):
    import builtins

    return {"n": getattr(builtins, "rows_so_far", 0)}


def test_what_one_definition_does_to_its_interpreter_no_other_sees():
    with cj.LocalCluster(cpu_threads=1) as cluster:
        assert max(int(r["n"]) for r in cj.range(50).map(counting).distribute(cluster)) > 1
        assert {int(r["n"]) for r in cj.range(50).map(other).distribute(cluster)} == {0}


def test_servers_use_only_the_folders_that_they_are_given(tmp_path):
    inside, outside = tmp_path / "in", tmp_path / "out"
    for folder in (inside, outside):
        folder.mkdir()
        (folder / "x.jsonl").write_text('{"id": 1}\n')

    def ids(dispatcher, folder):
        return [int(row["id"]) for row in cj.read_json(str(folder / "x.jsonl")).distribute(dispatcher)]

    only = {"allow_read": [inside], "allow_write": [tmp_path / "saves"]}
    for of_dispatcher, of_worker in ((only, {}), ({}, only)):
        dispatcher = cj.start_dispatcher(**of_dispatcher)
        worker = cj.start_worker(dispatcher, **of_worker)
        try:
            assert ids(dispatcher, inside) == [1]
            with pytest.raises(cj.NotPermitted, match="may not be read"):
                ids(dispatcher, outside)
            data = cj.read_json(str(inside / "x.jsonl"))
            if of_dispatcher:
                with pytest.raises(cj.NotPermitted, match="may not be written"):
                    data.save(str(tmp_path / "other"), dispatcher.address)
            data.save(str(tmp_path / "saves" / "s"), dispatcher.address)
        finally:
            worker.stop()
            dispatcher.stop()
    with pytest.raises(cj.InvalidPipeline, match="must be a list of folders"):
        cj.start_worker("h:1", allow_read="/data")
