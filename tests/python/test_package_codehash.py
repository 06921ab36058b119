"""Fingerprints of Python functions: what keeps them, what changes them, what has none.

Most cases run in processes of their own: a fingerprint is worth something only if the next process finds it again.
"""

import functools
import pathlib
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest

import caju
from caju import code_fingerprint as name_of


def elsewhere(folder, main, **files):
    """The fingerprint of `f` in a script, among modules of the user's own."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    return run(folder, main)


def run(folder, main, seed="0"):
    script = folder / "main.py"
    script.write_text(main + "\nimport caju\nprint(caju.code_fingerprint(f))\n")
    out = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False,
                         env={"PYTHONHASHSEED": seed, "PYTHONDONTWRITEBYTECODE": "1", "PATH": "/usr/bin:/bin"})
    assert out.returncode == 0, out.stderr
    return out.stdout.strip()


HELPERS = textwrap.dedent("""
    FACTOR = 2
    UNUSED = 1
    def scale(x):
        return inner(x) * FACTOR
    def inner(x):
        return x + 1
    def unused(x):
        return x
""")
MAIN = textwrap.dedent("""
    import helpers
    from helpers import inner as add
    KINDS = {"a", "b", "c", "d"}
    def f(row):
        return {"x": helpers.scale(row["x"]) if row["k"] in {"p", "q", "r"} or row["k"] in KINDS else add(row["x"])}
""")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return elsewhere(tmp_path_factory.mktemp("base"), MAIN, helpers=HELPERS)


def test_a_fingerprint_is_short_and_hexadecimal(base):
    assert len(base) == 32 and set(base) <= set("0123456789abcdef")


def test_other_processes_hash_seeds_and_folders_find_it_again(tmp_path, base):
    assert elsewhere(tmp_path / "other", MAIN, helpers=HELPERS) == base
    assert run(tmp_path / "other", MAIN, seed="12345") == base


@pytest.mark.parametrize("main,helpers", [
    ("\n\n# a comment\n" + MAIN, HELPERS),                                       # lines move
    (MAIN, "\n\n\n# another\n" + HELPERS),
    (MAIN, HELPERS.replace("UNUSED = 1", "UNUSED = 7")),                         # what is not used
    (MAIN, HELPERS.replace("def unused(x):\n    return x", "def unused(y):\n    return 5")),
])
def test_what_does_not_matter_keeps_it(tmp_path, base, main, helpers):
    assert elsewhere(tmp_path, main, helpers=helpers) == base


@pytest.mark.parametrize("main,helpers", [
    (MAIN, HELPERS.replace("x + 1", "x + 2")),                                   # a helper's helper, in another file
    (MAIN, HELPERS.replace("FACTOR = 2", "FACTOR = 3")),                         # a constant of another file
    (MAIN.replace('"c", "d"', '"c", "e"'), HELPERS),                             # a set of this one
    (MAIN.replace('"q", "r"', '"q", "s"'), HELPERS),
    (MAIN.replace('{"x":', '{"y":'), HELPERS),
])
def test_what_matters_changes_it(tmp_path, base, main, helpers):
    assert elsewhere(tmp_path, main, helpers=helpers) != base


def test_a_renamed_file_keeps_it(tmp_path):
    main = "from {} import scale\ndef f(x):\n    return scale(x)"
    first = elsewhere(tmp_path / "a", main.format("helpers"), helpers=HELPERS)
    assert elsewhere(tmp_path / "b", main.format("tools"), tools=HELPERS) == first


def test_a_module_used_as_a_whole_enters_as_a_whole(tmp_path):
    main = "import helpers\ndef g(module):\n    return module\ndef f(x):\n    return g(helpers)"
    first = elsewhere(tmp_path / "a", main, helpers=HELPERS)
    assert elsewhere(tmp_path / "b", main, helpers="# moved\n" + HELPERS) == first
    assert elsewhere(tmp_path / "c", main, helpers=HELPERS.replace("UNUSED = 1", "UNUSED = 7")) != first


def test_an_import_within_the_function_enters(tmp_path):
    main = "def f(x):\n    import helpers\n    return helpers.scale(x)"
    first = elsewhere(tmp_path / "a", main, helpers=HELPERS)
    assert elsewhere(tmp_path / "b", main, helpers=HELPERS.replace("x + 1", "x + 2")) != first


def test_running_a_notebook_cell_again_keeps_it():
    cell = "k = 3\ndef helper(x):\n    return x * k\nf = lambda row: helper(row['x'])"
    names = []
    for number in range(3):
        scope = {}
        exec(compile(cell, f"<ipython-input-{number}>", "exec"), scope)
        names.append(name_of(scope["f"]))
    exec(compile(cell.replace("k = 3", "k = 4"), "<ipython-input-9>", "exec"), scope)
    assert len(set(names)) == 1 and name_of(scope["f"]) != names[0]


def closure(value):
    return lambda x: x + value


def with_default(value):
    def f(x, by=value):
        return x * by
    return f


class Crop:
    size = 3

    def __init__(self, pad):
        self.pad = pad

    def __call__(self, x):
        return x[: self.size + self.pad]


@pytest.mark.parametrize("make", [
    closure, with_default, lambda v: functools.partial(max, v), Crop, lambda v: Crop(v).__call__,
    lambda v: closure(closure(v)), lambda v: closure({"a": [v]}), lambda v: closure(np.full(3, v)),
    lambda v: closure(np.float32(v)), lambda v: closure(pathlib.Path(str(v))), lambda v: closure((1, v)),
], ids=["closure", "default", "partial", "object", "method", "nested", "dict", "array", "scalar", "path", "tuple"])
def test_values_enter_by_value(make):
    assert name_of(make(1)) == name_of(make(1))
    assert name_of(make(1)) != name_of(make(2))


def test_local_variables_names_do_not_enter():
    scope = {}
    exec("def f(x):\n    a = x + 1\n    return a\ndef g(x):\n    b = x + 1\n    return b", scope)
    assert name_of(scope["f"]) == name_of(scope["g"])


def test_recursion_ends():
    def f(n):
        return n * f(n - 1) if n else 1

    values = [1]
    values.append(values)
    assert name_of(f) == name_of(f)
    assert name_of(closure(values))


def test_installed_packages_enter_by_version(monkeypatch):
    from caju import _codehash

    def f(x):
        return np.sort(x)

    before = name_of(f)
    real = _codehash._version.__wrapped__
    monkeypatch.setattr(_codehash, "_version", lambda top: "99" if top == "numpy" else real(top))
    assert name_of(f) != before


@pytest.mark.parametrize("value", [threading.Lock(), open(__file__), (i for i in range(3))],
                         ids=["lock", "file", "generator"])
def test_what_has_no_value_asks_for_a_version(value):
    with pytest.raises(caju.InvalidPipeline, match=r'f.*value.*version="') as e:
        name_of(closure(value))
    assert "value" in str(e.value)
    assert name_of(closure(value), version="1") == name_of(closure(value), version="1")
    assert name_of(closure(value), version="1") != name_of(closure(value), version="2")


def test_only_functions_have_one():
    with pytest.raises(caju.InvalidPipeline, match="not a function"):
        name_of(3)
