"""`scripts/check-house`: that it sees what it is there for, and that it speaks plainly when it cannot look."""

import importlib.machinery
import importlib.util
import os
import pathlib
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts/check-house"


# No compiled copies in the folder of the scripts.
before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
sys.path.insert(0, str(SCRIPT.parent))
from house import dependencies, locks, modules, pages, purity, supervision, workspace  # noqa: E402

sys.path.pop(0)
sys.dont_write_bytecode = before


@pytest.fixture(scope="module")
def script():
    loader = importlib.machinery.SourceFileLoader("check_house", str(SCRIPT))
    spec = importlib.util.spec_from_loader("check_house", loader)
    module = importlib.util.module_from_spec(spec)
    path, before = list(sys.path), sys.dont_write_bytecode
    try:
        loader.exec_module(module)
    finally:
        sys.path[:], sys.dont_write_bytecode = path, before
    return module


@pytest.mark.parametrize("line, what", [
    ("pub async fn plan() {}", "async"),
    ("let x = std::fs::read(path);", "std::fs"),
    ("use std :: io;", "std :: io"),
    ("use std::{collections::BTreeMap, fs};", "std::fs"),
    ("use std::{\n    fmt,\n    env::{self, VarError},\n};", "std::env"),
    ("use std as s;", "use std as"),
    ("std::thread::spawn(f);", "std::thread"),
    ("std::process::abort();", "std::process"),
    ("std::net::TcpStream::connect(a);", "std::net"),
    ("use std::time::{Duration, Instant};", "Instant"),
    ("SystemTime::now();", "SystemTime"),
    ('println!("{x}");', "println!"),
    ('eprintln!("{x}");', "eprintln!"),
    ('print ! ("{x}");', "print !"),
    ("dbg!(x);", "dbg!"),
])
def test_an_impure_line_of_the_planner_is_found(line, what):
    before = '//! A plan.\n\n/// Says "so".\nfn f<\'a>(c: char) -> &\'a str {\n    if c == \'"\' { "\\"" } else { r#"a "b" c"# }\n}\n'
    assert purity.impure_lines(before) == []
    (found,) = purity.impure_lines(before + line + "\n")
    assert found[0] >= before.count("\n") + 1 and found[1] == what


def test_words_in_comments_and_texts_are_no_code():
    text = '''
/// println!("{}", std::fs::read("x")) in an example, async or not.
// Instant
/* SystemTime
   dbg!(x) */
const A: &str = "async std::io Instant";
const B: &str = r#"println! "SystemTime" std::env"#;
use std::{fmt, time::Duration};
use std::collections::BTreeMap;
fn fs(io: u64, env: u64) -> u64 { io + env }
'''
    assert purity.impure_lines(text) == []


@pytest.mark.parametrize("line, what", [
    ("tokio::spawn(async {});", "tokio::spawn"),
    ("tokio :: task :: spawn(f);", "tokio :: task :: spawn"),
    ("task::spawn_local(f);", "task::spawn_local"),
    ("let x = tokio::task::spawn_blocking(work).await;", "tokio::task::spawn_blocking"),
    ("use tokio::task::{JoinSet, yield_now};", "JoinSet"),
    ("use tokio::task::{spawn_blocking};", "spawn_blocking"),
    ("Handle::current().spawn(f);", "Handle::current().spawn"),
    ("use tokio_util::task::AbortOnDropHandle;", "AbortOnDropHandle"),
    ("std::thread::spawn(f);", "thread::spawn"),
    ("let x = std::thread::Builder::new().spawn(f);", "thread::Builder"),
    ("use std::thread::{self, Builder};", "thread::{self, Builder"),
    ("use std::{sync::Arc, thread::{JoinHandle, spawn}};", "thread::{JoinHandle, spawn"),
    ('drop(tasks.spawn("x", f));', "drop(tasks.spawn"),
    ('drop(\n    self.tasks.clone().spawn("x", f),\n);', "drop( self.tasks.clone().spawn"),
    ('let _ = tasks.spawn("x", f);', "let _ = tasks.spawn"),
    ('let _task = tasks.spawn("x", f);', "let _task = tasks.spawn"),
    ('let _task: Task<()> =\n    self.tasks.spawn_graceful("x", f);', "let _task: Task<()> = self.tasks.spawn_graceful"),
])
def test_work_whose_failure_nobody_notices_is_found(line, what):
    before = "//! tokio::spawn is banned.\nfn f() {\n"
    after = "\n}\n\n#[cfg(test)]\nmod tests {\n    fn g() { tokio::spawn(f()); }\n}\n"
    assert supervision.unsupervised_lines(before + after) == []
    (found, *_) = supervision.unsupervised_lines(before + line + after)
    assert found == (3, what)


@pytest.mark.parametrize("line", [
    'let task = tasks.spawn("x", f);',
    'let my_task = tasks.spawn("x", f);',
    'let _guard = lock(); let task = tasks.spawn("x", f);',
    'tasks.background("x", log_failure, f);',
    'tasks.spawn_graceful("x", f).await.unwrap_or_else(log_failure);',
    'blocking("x", work).await?;',
    'const A: &str = "tokio::spawn"; // JoinSet',
    'let thread = Thread::spawn("x", f)?;',
    "use std::thread::{JoinHandle, current};",
    "std::thread::scope(|s| work(s));",
])
def test_supervised_work_is_no_violation(line):
    assert supervision.unsupervised_lines(line) == []


def test_unsupervised_work_is_refused_outside_of_runtime_and_tests(tmp_path, monkeypatch):
    for name in ("crates/runtime/src/tasks.rs", "crates/worker/src/manager.rs", "crates/wire/src/tests.rs",
                 "crates/engine/src/row/fit_tests.rs"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("fn f() {\n    tokio::spawn(g());\n}\n")
    monkeypatch.setattr(workspace, "ROOT", tmp_path)
    (problem,) = supervision.supervision()
    assert problem.startswith("crates/worker/src/manager.rs:2: `tokio::spawn`")


@pytest.mark.parametrize("impure, other", [("planner", "crates/autocache"), ("crates/autocache", "planner")])
def test_it_fails_on_an_impure_crate_and_says_where(script, tmp_path, monkeypatch, capsys, impure, other):
    for folder, text in [(impure, "// fine\nuse std::time::Instant;\n"), (other, "// fine\n")]:
        (tmp_path / folder / "src").mkdir(parents=True)
        (tmp_path / folder / "src/lib.rs").write_text(text)
    monkeypatch.setattr(workspace, "ROOT", tmp_path)
    monkeypatch.setattr(script, "CHECKS", [purity.pure_sources])
    assert script.main() == 1
    assert f"{impure}/src/lib.rs:2: `Instant`" in capsys.readouterr().err


@pytest.mark.parametrize("kind, name, words", [
    ("build", "cc", "build-dependency on cc"),
    ("dev", "tempfile", "dev-dependency on tempfile"),
    (None, "regex", "depends on regex"),
])
def test_a_pure_crates_dependencies_of_every_kind(monkeypatch, kind, name, words):
    monkeypatch.setattr(purity, "PURE", {"caju-planner": purity.PURE["caju-planner"]})
    planner = {"name": "caju-planner", "dependencies": [{"name": name, "kind": kind}], "targets": [{"kind": ["lib"]}]}
    monkeypatch.setattr(workspace, "cargo", lambda *_: "caju-planner v0.1.0\n")
    monkeypatch.setattr(workspace, "metadata", lambda: [planner])
    (found,) = purity.purity()
    assert words in found
    planner["dependencies"] = []
    assert list(purity.purity()) == []
    planner["targets"].append({"kind": ["custom-build"]})
    (found,) = purity.purity()
    assert "build script" in found


def test_unused_and_doubled_dependencies_are_found():
    def package(*dependencies):
        return {"name": "caju-x", "dependencies": [{"name": n, "rename": r, "kind": k} for n, r, k in dependencies]}

    code = "use tokio::sync;\nfn f(bytes: &[u8]) { let a = super::bytes::B; base64::encode(bytes); the_log::go() }\n"
    fine = [("tokio", None, None), ("base64", None, "dev"), ("log", "the-log", None)]
    assert list(dependencies.unused_of(package(*fine), code)) == []
    # A variable and a module of the crate's own are not the library.
    (found,) = dependencies.unused_of(package(*fine, ("bytes", None, None)), code)
    assert "declares the dependency bytes, which none of its code names" in found
    (found,) = dependencies.unused_of(package(*fine, ("tokio", None, "dev")), code)
    assert "declares tokio twice" in found


def test_a_dependency_that_generated_code_names_is_an_exception_while_it_is_declared():
    proto = {"name": "caju-proto", "dependencies": [{"name": "tonic-prost", "rename": None, "kind": None}]}
    assert list(dependencies.unused_of(proto, "")) == []
    proto["dependencies"] = []
    (found,) = dependencies.unused_of(proto, "")
    assert "take it out of UNNAMED" in found


def test_circles_between_modules_are_found(tmp_path, monkeypatch):
    files = {
        # Through a re-export of the root, a group, and a path in code.
        "lib.rs": "mod a;\nmod b;\nmod c;\nmod d;\npub use b::{B, Other};\n",
        "a.rs": "use crate::{B, d::D};\n",
        "b/mod.rs": "mod inner;\n",
        "b/inner.rs": "fn f() { super::super::c::g() }\n",
        "c.rs": "use super::a::A;\n",
        # Neither comments nor tests count.
        "d.rs": "// use crate::a::A;\n#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}\n",
    }
    src = tmp_path / "crates/x/src"
    for name, text in files.items():
        (src / name).parent.mkdir(parents=True, exist_ok=True)
        (src / name).write_text(text)
    monkeypatch.setattr(workspace, "ROOT", tmp_path)
    (problem,) = modules.module_circles()
    assert problem.startswith("crates/x: the modules a, b, c use each other in a circle")
    (src / "c.rs").write_text("use crate::d::D;\n")
    assert list(modules.module_circles()) == []


def test_circles_between_python_modules_are_found(tmp_path, monkeypatch):
    monkeypatch.setattr(workspace, "ROOT", tmp_path)
    package = tmp_path / "crates/x/python/x"
    (package / "sub").mkdir(parents=True)
    files = {
        "__init__.py": "from .a import f\n",
        "a.py": "from typing import Any\nfrom . import b\n",
        "b.py": "from .sub.c import g\n",
        "sub/__init__.py": "",
        "sub/c.py": "from ..a import f\n",
    }
    for name, text in files.items():
        (package / name).write_text(text)
    (problem,) = modules.python_circles()
    assert problem.startswith("crates/x/python/x: the modules a, b, sub.c import each other in a circle")
    for again in ("import x.a\n", "from x.a import f\n", "try:\n    from .. import a\nexcept ImportError:\n    pass\n"):
        (package / "sub/c.py").write_text(again)
        assert len(list(modules.python_circles())) == 1, again
    (package / "sub/c.py").write_text("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .. import a\n")
    assert list(modules.python_circles()) == []
    # An import within a function comes when both modules are there.
    (package / "sub/c.py").write_text("def g():\n    from ..a import f\n    f()\n")
    assert list(modules.python_circles()) == []


def test_circles_between_files_of_a_module_are_found(tmp_path, monkeypatch):
    files = {
        "lib.rs": "mod a;\n",
        # A module may use its files, and they may use it.
        "a/mod.rs": "mod read;\nmod rows;\nuse read::Read;\npub struct A;\n",
        "a/read.rs": "use super::{A, rows::Rows};\n",
        "a/rows.rs": "use super::A;\nfn f() { crate::a::read::g() }\n",
    }
    src = tmp_path / "crates/x/src"
    for name, text in files.items():
        (src / name).parent.mkdir(parents=True, exist_ok=True)
        (src / name).write_text(text)
    monkeypatch.setattr(workspace, "ROOT", tmp_path)
    (problem,) = modules.module_circles()
    assert problem.startswith("crates/x: the files a/read, a/rows use each other in a circle")
    (src / "a/rows.rs").write_text("use super::A;\n")
    assert list(modules.module_circles()) == []


@pytest.mark.parametrize("name, words", [
    ("caju-engine", "a reader needs caju-pipeline, caju-proto, caju-runtime, caju-types, caju-wire"),
    ("datafusion-common", "must compile without it"),
])
def test_the_client_compiles_without_the_engine_and_datafusion(monkeypatch, name, words):
    fine = "caju-client v0.1.0\ncaju-wire v0.1.0\narrow v59.3.0\n"
    monkeypatch.setattr(workspace, "cargo", lambda *_: fine)
    assert list(dependencies.client_tree()) == []
    monkeypatch.setattr(workspace, "cargo", lambda *_: f"{fine}{name} v1.0.0\n")
    (found,) = dependencies.client_tree()
    assert words in found


def test_a_stale_lock_is_reported_in_a_line(tmp_path):
    cargo = tmp_path / "cargo"
    cargo.write_text("#!/bin/sh\necho 'error: cannot update the lock file Cargo.lock because --locked was passed' >&2\n"
                     "exit 101\n")
    cargo.chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run([sys.executable, str(SCRIPT)], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "commit Cargo.lock" in done.stderr and "code 101" in done.stderr
    assert "as designed" not in done.stdout


def test_an_option_without_a_test_is_found():
    page = "| flag | tests |\n|---|---|\n| `--seed` | `one`, `two` |\n| `shuffle` | `seed` | `two` |\n"
    wanted, tests = {("--seed",), ("shuffle", "seed")}, {"one", "two"}
    assert list(pages.tested_options(wanted, page, tests)) == []
    (found,) = pages.tested_options(wanted | {("shuffle", "buffer")}, page, tests)
    assert "has no row for `shuffle buffer`" in found
    (found,) = pages.tested_options(wanted - {("--seed",)}, page, tests)
    assert "`--seed`, which is no option" in found
    (found,) = pages.tested_options(wanted, page, {"two"})
    assert "names the test one, which is not there" in found
    (found,) = pages.tested_options(wanted, page.replace("`one`, `two`", "none"), tests)
    assert "names no test for `--seed`" in found


PACKAGE = {
    "__init__.py": '__all__ = ["Own", "Rows", "open_rows", "read"]\n',
    "extra/__init__.py": '__all__ = ["write"]\n',
    "_private/__init__.py": '__all__ = ["inner"]\n',
    "_private/_rows.py": "def inner(depth): ...\n",
    "extra/_write.py": "def write(rows, url): ...\n",
    "_rows.py": """
class Stages:
    def map(self, f, /, size=1, *, timeout=None, **more): ...
    def _with(self, step, *, place): ...

class View:
    def __init__(self, rows, *, copy=True): ...
    def epoch(self, number): ...

class Rows(Stages):
    def __init__(self, *, seed=0): ...
    def view(self, **options) -> View | None: ...

class Own:
    def __init__(self, client): ...
    def close(self, *, wait): ...

class _Hidden:
    def close(self, force): ...

class Helper:
    def __init__(self, name): ...

def read(path, *, columns=None, seed=0): ...
def open_rows() -> "Rows": ...
def helper(name, *, text): ...
""",
}


@pytest.fixture
def package(tmp_path, monkeypatch):
    for name, text in PACKAGE.items():
        (tmp_path / pages.PACKAGE / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / pages.PACKAGE / name).write_text(text)
    monkeypatch.setattr(workspace, "ROOT", tmp_path)
    monkeypatch.setattr(pages, "NOT_CONSTRUCTED", {"View", "Own"})
    monkeypatch.setattr(pages, "CALLED_BY_RAY", set())


def test_public_functions_and_methods_have_arguments(package, monkeypatch):
    assert sorted(pages.python_parameters()) == [
        ("columns=", "read", True), ("copy=", "View", True), ("f=", "map", False), ("number=", "epoch", False),
        ("path=", "read", False), ("rows=", "write", False), ("seed=", "Rows", True), ("seed=", "read", True),
        ("size=", "map", False), ("timeout=", "map", True), ("url=", "write", False), ("wait=", "close", True),
    ]
    monkeypatch.setattr(pages, "NOT_CONSTRUCTED", set())
    monkeypatch.setattr(pages, "CALLED_BY_RAY", {"Own"})
    found = set(pages.python_arguments())
    assert {("rows=", "View"), ("client=", "Own")} < found and ("wait=", "close") not in found


def test_an_argument_in_python_without_a_test_is_found():
    wanted = {("timeout=", "map"), ("size=", "map"), ("seed=", "Rows"), ("seed=", "read"), ("columns=", "read")}
    page = ("| `timeout=` | `map` | `one` |\n| `size=` | `map` | `one` |\n| `seed=` | `Rows`, `read` | `one` |\n"
            "| `columns=` | `read` | `two` |\n")
    assert list(pages.tested_options(wanted, page, {"one", "two"})) == []
    (found,) = pages.tested_options(wanted, page.replace("`Rows`, ", ""), {"one", "two"})
    assert "has no row for `seed= Rows`" in found
    # An argument that may be given by its position is not always named.
    keywords = wanted - {("size=", "map")}
    texts = {"one": "read(seed=1).map(f, 3, timeout=2)", "two": "read(columns=[])"}
    assert list(pages.unnamed_arguments(page, texts, keywords)) == []
    (found,) = pages.unnamed_arguments(page, texts | {"two": "read(columns_of=[])"}, keywords)
    assert "names `two` for `columns=`" in found
    (found,) = pages.unnamed_arguments(page, texts | {"one": "read(seed=1).apply(f, timeout=2)"}, keywords)
    assert "names `one` for `size=`" in found and "names `map`" in found


def test_several_locks_without_an_order_are_found(tmp_path, monkeypatch):
    one = "pub(crate) struct One {\n    /// Mutex<A>, RwLock<B>\n    state: Mutex<State>,\n    pub(crate) name: String,\n}\n"
    tokio = "struct Awaited {\n    a: tokio::sync::Mutex<()>,\n    b: Mutex<A>,\n}\n"
    ordered = "struct Ordered<T> {\n    a: Arc<OrderedMutex<T>>,\n    b: OrderedRwLock<HashMap<u64, T>>,\n}\n"
    two = "struct Two {\n    #[x]\n    a: Arc<Mutex<Vec<u8>>>,\n    pub b: HashMap<\n        u64, RwLock<A>,\n    >,\n}\n"
    mixed = "struct Mixed {\n    a: OrderedMutex<A>,\n    b: parking_lot::Mutex<A>,\n}\n"
    assert list(locks.structures(one + tokio + ordered)) == []
    assert list(locks.structures(one + two + mixed)) == [(6, "Two", ["a", "b"]), (13, "Mixed", ["b"])]
    assert list(locks.structures("use tokio::sync::{Mutex, mpsc};\n" + two)) == []
    assert list(locks.structures("#[cfg(test)]\nmod tests {\n" + two + "}\n")) == []
    file = tmp_path / "crates/x/src/a.rs"
    file.parent.mkdir(parents=True)
    file.write_text(two)
    monkeypatch.setattr(workspace, "ROOT", tmp_path)
    monkeypatch.setattr(locks, "EXCEPTIONS", {})
    (found,) = locks.lock_orders()
    assert found.startswith("crates/x/src/a.rs:1: Two has several locks, and a, b without an order")
    monkeypatch.setattr(locks, "EXCEPTIONS", {("crates/x/src/a.rs", "Two"): "why", ("crates/x/src/b.rs", "Gone"): "why"})
    (found,) = locks.lock_orders()
    assert "crates/x/src/b.rs has no structure Gone with several locks any more" in found


def test_only_tests_count_as_tests():
    rust = "fn helper() {}\n#[test]\nfn one() {}\n    #[tokio::test(start_paused = true)]\n    // Why.\n    async fn two() {}\n"
    python = "def helper():\n    pass\n\n\ndef test_three():\n    pass\n"
    assert pages.tests_of(rust) == ["one", "two"]
    assert pages.tests_of(python) == ["test_three"]


CLI = '''
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Twice here, in this comment: #[arg]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) seed: u64,
    #[arg(long)]
    pub(crate) all_epochs: bool,
    #[arg(long, hide = true)]
    pub(crate) trial: Option<String>,
    #[arg(value_name = "FILE")]
    pub(crate) file: String,
    #[command(flatten)]
    pub(crate) more: More,
}

pub(crate) enum ToolCommand {
    Measure(MeasureArgs),
    #[command(hide = true)]
    Journal(Box<JournalArgs>),
    Drain {
        #[arg(long, value_name = "N")]
        seed: u64,
    },
}

pub(crate) struct JournalArgs {
    #[arg(long)]
    pub(crate) seed: u64,
    #[arg(long)]
    pub(crate) kills: u64,
}
'''


@pytest.fixture
def command_line(tmp_path, monkeypatch):
    """The rows that are wanted for the flags of CLI, and what is wrong, for a map from structs to commands."""
    (tmp_path / pages.CLI).mkdir(parents=True)
    (tmp_path / pages.CLI / "mod.rs").write_text(CLI)
    monkeypatch.setattr(workspace, "ROOT", tmp_path)

    def rows(**commands):
        monkeypatch.setattr(pages, "COMMANDS", {name.replace("__", "::"): words for name, words in commands.items()})
        return pages.flag_rows(list(pages.declared_flags()), pages.hidden_subcommands())

    return rows


def test_flags_are_declared_by_structs_and_variants(command_line):
    assert list(pages.declared_flags()) == [
        ("--seed", "RunArgs", False), ("--all-epochs", "RunArgs", False), ("--trial", "RunArgs", True),
        ("--seed", "ToolCommand::Drain", False), ("--seed", "JournalArgs", False), ("--kills", "JournalArgs", False),
    ]
    assert pages.hidden_subcommands() == {"JournalArgs"}


def test_a_flag_of_several_commands_has_a_row_for_each(command_line):
    wanted, problems = command_line(RunArgs=("caju run", "caju read"), ToolCommand__Drain=("caju tool drain",))
    # A hidden flag has none, and that of a hidden subcommand one if no other command has it.
    assert wanted == {("--all-epochs",), ("--kills",), ("--seed", "caju run, caju read"), ("--seed", "caju tool drain")}
    assert problems == []
    page = ("| `--all-epochs` | `one` |\n| `--kills` | `one` |\n| `--seed` | `caju run`, `caju read` | `one` |\n"
            "| `--seed` | `caju tool drain` | `two` |\n")
    assert list(pages.tested_options(wanted, page, {"one", "two"})) == []
    removed = page.replace("| `--seed` | `caju tool drain` | `two` |\n", "")
    (found,) = pages.tested_options(wanted, removed, {"one", "two"})
    assert "has no row for `--seed caju tool drain`" in found
    one_for_all = removed.replace("`caju run`, `caju read` | ", "")
    found = list(pages.tested_options(wanted, one_for_all, {"one", "two"}))
    assert len(found) == 3 and "row for `--seed`, which is no option" in found[-1]


def test_a_struct_of_arguments_without_commands_is_found(command_line):
    wanted, (problem,) = command_line(RunArgs=("caju run",))
    assert "does not say which commands ToolCommand::Drain is for" in problem and "--seed" in problem
    assert ("--seed", "caju run") in wanted and not any(row[-1] == "" for row in wanted)
    _, (problem,) = command_line(RunArgs=("caju run",), ToolCommand__Drain=("caju run",))
    assert "gives two structs with the flag --seed the commands caju run" in problem


def test_an_option_inside_of_an_option_that_the_documentation_lacks_is_found(tmp_path, monkeypatch):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/pipeline.md").write_text("`{ skip: { limit: 100 } }` and `{ quantiles: 4, rows: 9 }`\n")
    monkeypatch.setattr(workspace, "ROOT", tmp_path)
    monkeypatch.setattr(pages, "NESTED", {("pipeline", "on_error.skip.limit"), ("pipeline", "reorder.measured")})
    wanted, (missing,) = pages.nested_options()
    assert wanted == pages.NESTED and "does not name `reorder.measured` of `pipeline`" in missing
