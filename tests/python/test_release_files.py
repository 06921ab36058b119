"""`scripts/package`: the binary of a release, and its debug information in a file of its own."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "scripts" / "package"


def sections(file):
    return subprocess.run(["objdump", "-h", str(file)], check=True, capture_output=True, text=True).stdout


def test_debug_information_is_in_a_file_of_its_own(tmp_path):
    binary = os.environ["CAJU_BIN"]
    subprocess.run([PACKAGE, "--binary", binary, "--out", "files"], check=True, capture_output=True, cwd=tmp_path)
    caju, debug = tmp_path / "files" / "caju", tmp_path / "files" / "caju.debug"
    assert ".debug_line" not in sections(caju) and ".debug_line" in sections(debug)
    link = subprocess.run(["objdump", "-s", "-j", ".gnu_debuglink", str(caju)], check=True, capture_output=True, text=True)
    assert "caju.debu" in link.stdout, "gdb and backtraces find the file by this link"
    version = subprocess.run([caju, "--version"], check=True, capture_output=True, text=True).stdout
    assert version == subprocess.run([binary, "--version"], check=True, capture_output=True, text=True).stdout
    again = subprocess.run([PACKAGE, "--binary", str(caju), "--out", "more"], capture_output=True, text=True, cwd=tmp_path)
    assert again.returncode == 2 and "has no debug information" in again.stderr, again


@pytest.mark.parametrize(("args", "code", "words"), [(["--outt"], 2, "unknown argument"), (["--help"], 0, "scripts/package [--out DIR]")])
def test_the_script_says_how_it_is_used(args, code, words):
    ended = subprocess.run([PACKAGE, *args], capture_output=True, text=True)
    assert ended.returncode == code and words in ended.stdout + ended.stderr
    assert shutil.which("objcopy"), "binutils come with the C compiler"
