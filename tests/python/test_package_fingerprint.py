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
        (folder / f"{name}.py").parent.mkdir(exist_ok=True)
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


@pytest.mark.parametrize("main,files", [
    ("from pkg.stage import f", {"pkg/__init__": "", "pkg/stage": "def f(x):\n    from . import helper\n    return helper.scale(x)",
                                 "pkg/helper": HELPERS}),
    ("from pkg.stage import f", {"pkg/__init__": "", "pkg/stage": "def f(x):\n    from .helper import scale\n    return scale(x)",
                                 "pkg/helper": HELPERS}),
    ("def f(x):\n    from pkg import helper\n    return helper.scale(x)", {"pkg/__init__": "", "pkg/helper": HELPERS}),
    ("def f(x):\n    from pkg import scale\n    return scale(x)", {"pkg/__init__": "from .helper import scale",
                                                                 "pkg/helper": HELPERS}),
    ("def f(x):\n    import pkg.helper as h\n    return h.scale(x)", {"pkg/__init__": "", "pkg/helper": HELPERS}),
    ("def f(x):\n    from space import helper\n    return helper.scale(x)", {"space/helper": HELPERS}),
    ("import pkg.whole\ng = lambda module: module\ndef f(x):\n    return g(pkg.whole)",
     {"pkg/__init__": "", "pkg/whole": "from . import helper\ndef used(x):\n    return helper.scale(x)", "pkg/helper": HELPERS}),
    ("import pkg.whole\ng = lambda module: module\ndef f(x):\n    return g(pkg.whole)",
     {"pkg/__init__": "", "pkg/whole": "from .helper import scale", "pkg/helper": HELPERS}),
], ids=["from-dot", "from-dot-name", "from-package", "through-init", "import-as", "namespace", "whole-from-dot", "whole-dot-name"])
def test_every_form_of_import_enters(tmp_path, main, files):
    changed = {name: text.replace("x + 1", "x + 2") for name, text in files.items()}
    described = {name: text.replace("return x + 1", "'what it does'\n    return x + 1") for name, text in files.items()}
    first = elsewhere(tmp_path / "a", main, **files)
    assert elsewhere(tmp_path / "b", main, **changed) != first
    assert elsewhere(tmp_path / "c", main, **described) == first


@pytest.mark.parametrize("helper", [
    "import dataclasses\n@dataclasses.dataclass\nclass Point:\n    x: int = 1\n",
    "import dataclasses\n@dataclasses.dataclass(frozen=True, order=True)\nclass Point:\n    x: list = dataclasses.field(default_factory=list)\n",
    "import functools\nclass Deco:\n    def __init__(self, f):\n        functools.update_wrapper(self, f)\n        self.f = f\n"
    "    def __call__(self):\n        return self.f()\n@Deco\ndef Point():\n    'a point'\n    return 3\n",
    "import logging\nlog = logging.getLogger(__name__)\ndef Point():\n    log.info('made in %s', __name__)\n",
    "import contextlib\n@contextlib.contextmanager\ndef Point():\n    yield 1\n",
    "import enum\nclass Point(enum.Enum):\n    A = 1\n    def __str__(self):\n        return 'A'\n",
    "class Sub(set):\n    pass\nPOINTS = Sub(['a', 'b', 'c', 'd', 'e'])\ndef Point():\n    return list(POINTS)\n",
], ids=["dataclass", "frozen", "decorator", "logger", "context", "enum", "set-subclass"])
def test_names_of_files_and_hash_seeds_do_not_enter(tmp_path, helper):
    main = "import {0}\nfrom {0} import Point\ndef f(x):\n    return Point(), {0}.Point()"
    first = elsewhere(tmp_path / "a", main.format("helpers"), helpers=helper)
    assert elsewhere(tmp_path / "b", main.format("tools"), tools=helper) == first
    assert run(tmp_path / "b", main.format("tools"), seed="4711") == first


def made(source, value):
    scope = {"__name__": "__main__"}
    exec(f"import collections, contextlib, dataclasses, enum, functools\nimport numpy as np\n{source.replace('@@', value)}", scope)
    return scope["f"]


@pytest.mark.parametrize("source", [
    "@contextlib.contextmanager\ndef c():\n    yield @@\ndef f(r):\n    with c() as v:\n        return v",
    "@contextlib.contextmanager\ndef c(k):\n    yield k\n@c(@@)\ndef f(r):\n    return 1",
    "@functools.singledispatch\ndef s(x):\n    return @@\nf = lambda r: s(r)",
    "@functools.singledispatch\ndef s(x):\n    return 0\n@s.register(int)\ndef _(x):\n    return @@\nf = lambda r: s(r)",
    "@np.errstate(divide='ignore')\ndef f(r):\n    return @@",
    "@np.errstate(divide=['ignore', 'raise', 'warn'][@@])\ndef f(r):\n    return 1",
    "@np.vectorize\ndef f(r):\n    return @@",
    "@functools.lru_cache\ndef g(r):\n    return @@\nf = lambda r: g(r)",
    "def wraps(g):\n    @functools.wraps(g)\n    def w(*a):\n        return g(*a)\n    return w\n@wraps\ndef f(r):\n    return @@",
    "class D:\n    def __init__(self, g):\n        functools.update_wrapper(self, g)\n        self.g = g\n"
    "    def __call__(self, r):\n        return self.g(r) * @@\n@D\ndef f(r):\n    return 3",
    "class D:\n    def __init__(self, g):\n        functools.update_wrapper(self, g)\n        self.g, self.k = g, @@\n"
    "    def __call__(self, r):\n        return self.g(r) * self.k\n@D\ndef f(r):\n    return 3",
    "d = collections.defaultdict(lambda: @@)\nf = lambda r: d[r]",
    "d = collections.OrderedDict(a=@@)\nf = lambda r: d",
    "class M(type):\n    def size(cls):\n        return @@\nclass A(metaclass=M):\n    pass\nf = lambda r: A.size()",
    "def h(r):\n    return h.k\nh.k = @@\nf = lambda r: h(r)",
    "class A:\n    @functools.cached_property\n    def g(self):\n        return @@\nf = lambda r: A().g",
    "class A:\n    @property\n    def g(self):\n        return @@\nf = lambda r: A().g",
    "class A:\n    def g(self, k):\n        return k\n    h = functools.partialmethod(g, @@)\nf = lambda r: A().h()",
    "class B:\n    def g(self):\n        return @@\nclass A(B):\n    def g(self):\n        return super().g()\nf = lambda r: A().g()",
    "class A(enum.Enum):\n    X = @@\nf = lambda r: A.X.value",
    "class A(enum.Enum):\n    X = 5\n    def g(self):\n        return @@\nf = lambda r: A.X.g()",
    "@dataclasses.dataclass\nclass A:\n    x: int = dataclasses.field(default=0, metadata={'k': @@})\nf = lambda r: dataclasses.fields(A)",
    "def a(r):\n    return b(r)\ndef b(r):\n    return a(r) + @@\nf = lambda r: a(r)",
    "class S(set):\n    def g(self):\n        return @@\ns = S([1, 2])\nf = lambda r: s.g()",
    "s = (lambda: 0, {lambda: @@})\nf = lambda r: s",
    "import types\nm = types.ModuleType('m')\nm.g = lambda: @@\nf = lambda r: m.g()",
    "def f(r):\n    'doc'\n    return @@",
    "def f(r, *, k=@@):\n    return k",
    "def f(r):\n    return [x + @@ for x in r]",
])
def test_what_hangs_on_a_function_enters(source):
    assert name_of(made(source, "1")) == name_of(made(source, "1"))
    assert name_of(made(source, "1")) != name_of(made(source, "2"))


@pytest.mark.parametrize("source,one,other", [
    ("def f(r):\n    @@\n    return None", "'what it does'", "'what it makes'"),
    ("def f(r):\n    @@\n    print(r)", "'what it does'", ""),
    ("class A:\n    @@\n    def g(self):\n        return 1\nf = lambda r: A().g()", "'one'", "'two'"),
    ("class A:\n    def g(self):\n        @@\n        return 1\nf = lambda r: A().g()", "'one'", ""),
    ("x = [1]\nd = @@\nf = lambda r: d", "(x, x)", "([1], [1])"),
    ("x = {'a': [1]}\nd = @@\nf = lambda r: d", "[x, x, {1: x}]", "[{'a': [1]}, x, {1: {'a': [1]}}]"),
    ("x = [1]\nx.append(x)\ny = [1]\ny.append([1, y])\nd = @@\nf = lambda r: d", "x", "y"),
    ("def @@(x):\n    return 1\nf = lambda r: @@(r)", "g", "h"),
    ("def f(r):\n    @@ = 1\n    return [@@ for i in r]", "a", "b"),
    ("@functools.singledispatch\ndef s(x):\n    return 0\n@@\nf = lambda r: s(r)", "s(1), s('')", ""),
    ("class A:\n    @functools.cached_property\n    def g(self):\n        return 1\nf = lambda r: A().g\n@@", "A().g", ""),
])
def test_what_does_not_hang_on_it_does_not(source, one, other):
    assert name_of(made(source, one)) == name_of(made(source, other))


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
    from caju._fingerprint import packages

    def f(x):
        return np.sort(x)

    before = name_of(f)
    real = packages.version_of.__wrapped__
    monkeypatch.setattr(packages, "version_of", lambda top: "99" if top == "numpy" else real(top))
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


def test_a_graph_of_values_is_named_by_its_shape():
    class Node:
        def __init__(self, label):
            self.label, self.parent, self.children = label, None, set()

    def tree(label):
        root = Node("root")
        for name in ("a", "b", label):
            child = Node(name)
            child.parent = root
            root.children.add(child)
        return root

    assert name_of(closure(tree("c"))) == name_of(closure(tree("c"))) != name_of(closure(tree("d")))


def test_a_version_does_not_make_a_lock_travel():
    lock = threading.Lock()
    with pytest.raises(caju.InvalidPipeline, match="cannot pickle '_thread.lock'.*inside the function.*version= does not help"):
        caju.range(3).map(lambda row: {"x": row["id"], "l": lock.locked()}, version="1")


def test_what_hides_its_function_is_refused():
    hidden = np.frompyfunc(lambda x: x + 1, 1, 1)
    with pytest.raises(caju.InvalidPipeline, match="frompyfunc.*numpy.vectorize"):
        name_of(lambda row: hidden(row))
    assert name_of(lambda row: np.add(row, 1)) != name_of(lambda row: np.subtract(row, 1))


def test_an_edited_helper_misses_what_was_stored(tmp_path):
    main = """
import contextlib, functools, sys
import caju
from pkg.stage import stage
def rows():
    epochs = caju.range(4).map(stage).cache("h").batch(4)
    list(epochs)
    return [int(x) for x in next(iter(epochs))["x"]]
caju.configure(cache=sys.argv[1])
print(rows())
"""
    stage = """
import contextlib, functools
@contextlib.contextmanager
def factor():
    yield 2
@functools.singledispatch
def add(x):
    return x + 0
def stage(row):
    from . import helper
    with factor() as by:
        return {"x": add(helper.shift(row["id"] * by))}
"""
    files = {"main": main, "pkg/__init__": "", "pkg/stage": stage, "pkg/helper": "def shift(x):\n    return x + 10\n"}

    def run_with(**changed):
        for name, text in (files | changed).items():
            (tmp_path / f"{name}.py").parent.mkdir(exist_ok=True)
            (tmp_path / f"{name}.py").write_text(text)
        out = subprocess.run([sys.executable, "-B", str(tmp_path / "main.py"), str(tmp_path / "cache")], timeout=120, cwd=tmp_path,
                             capture_output=True, text=True, check=False)
        assert out.returncode == 0, out.stderr
        return out.stdout.strip()

    assert run_with() == run_with() == "[10, 12, 14, 16]"
    assert len(list(tmp_path.glob("cache/v1/*/parts"))) == 1
    assert run_with(**{"pkg/helper": "def shift(x):\n    return x + 20\n"}) == "[20, 22, 24, 26]"
    assert run_with(**{"pkg/stage": stage.replace("yield 2", "yield 3")}) == "[10, 13, 16, 19]"
    assert run_with(**{"pkg/stage": stage.replace("x + 0", "x + 1")}) == "[11, 13, 15, 17]"
    assert len(list(tmp_path.glob("cache/v1/*/parts"))) == 4


@functools.lru_cache(maxsize=None)
def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


@functools.singledispatch
def kind(x):
    return "other"


@kind.register(int)
def _(x):
    return "int"


def test_what_functools_makes_of_functions_travels():
    rows = caju.range(4).map(lambda row: {"x": fibonacci(int(row["id"]) + 6), "k": kind(int(row["id"])) + kind("")})
    assert [(row["x"], row["k"]) for row in rows] == [(x, "intother") for x in (8, 13, 21, 34)]


# ---- what a trial leaves behind ------------------------------------------------------------------------------------


MEMO = {}


class Counter:
    seen = []

    def __init__(self):
        self.n = 0

    def __call__(self, row):
        self.n += 1
        Counter.seen.append(self.n)
        return {"n": self.n, "seen": len(self.seen)}


def remembering(row):
    MEMO[int(row["id"])] = True
    return {"n": len(MEMO)}


def test_a_trial_changes_nothing_here_and_nothing_that_is_sent():
    first = caju.range(3).map(remembering)
    assert caju.range(3).map(remembering).fingerprint == first.fingerprint and MEMO == {}
    counter = Counter()
    rows = caju.range(3).map(counter)
    assert counter.n == 0 and Counter.seen == [] and type(counter) is Counter
    assert caju.range(3).map(counter).fingerprint == rows.fingerprint
    assert [(row["n"], row["seen"]) for row in rows] == [(1, 1), (2, 2), (3, 3)]


# Fingerprints name what is stored: a release that changes them by accident computes everything again.
STORED = {
    "def f(row):\n    return {'x': row['x'] * 2 + 1}": "feceb899d86480abe41d7c1396a6c8f1",
    "import functools, math\nK = {'a': [1, 2.5], 'b': {3, 4}}\ndef g(x, *, by=K):\n    return math.sin(x) + by['a'][0]\n"
    "f = functools.partial(g, by=K)": "760e4d4d8bd0fa5d8da5a8c784ce6dab",
    "class Scale:\n    def __init__(self, by):\n        self.by, self.peer = by, self\n    def __call__(self, row):\n"
    "        return {'x': row['x'] * self.by}\nf = Scale(3)": "2c9bf6c60022c4e8f2e4638e5e1dfbef",
}


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the digests are of this version's bytecode")
@pytest.mark.parametrize("source", STORED)
def test_fingerprints_of_earlier_versions_are_found_again(source):
    assert name_of(made(source, "")) == STORED[source]
