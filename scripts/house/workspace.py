"""What every check reads: the root of the workspace, and the answers of cargo."""

import json
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]


class NoAnswer(Exception):
    """A question to cargo that it did not answer."""


def cargo(*args):
    try:
        done = subprocess.run(["cargo", *args], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    except OSError as e:
        raise NoAnswer(f"cargo cannot be started: {e}") from None
    if done.returncode == 0:
        return done.stdout
    said = [line for line in done.stderr.splitlines() if line.startswith("error")] or ["(no message)"]
    # Only this cause has a way out that is always the same.
    stale = "lock file" in done.stderr and "--locked" in done.stderr
    way_out = "; Cargo.lock does not fit the manifests: run `cargo check` and commit Cargo.lock" if stale else ""
    raise NoAnswer(f"`cargo {' '.join(args)}` ended with code {done.returncode}: {said[0]}{way_out}")


def metadata():
    return json.loads(cargo("metadata", "--format-version=1", "--no-deps", "--locked"))["packages"]


def tree(package):
    """The names of all packages that are built into one."""
    lines = cargo("tree", "-p", package, "-e", "normal", "--prefix", "none", "--locked").splitlines()
    return {line.split()[0] for line in lines if line.strip()}
