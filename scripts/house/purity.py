"""Crates that are pure: data in, data out, without async, clocks, randomness, I/O and logging."""

import collections
import re

from . import rust, workspace

# Crates that are pure: data in, data out. Their folder, what they may see of ours, and their libraries.
PURE = {
    "caju-planner": ("planner", {"caju-types"}, {"serde", "serde_json", "thiserror"}),
    "caju-autocache": ("crates/autocache", {"caju-planner", "caju-types"}, {"serde", "serde_json"}),
}

# What nothing below a pure crate may be: async runtimes, clocks, randomness, I/O, logging.
IMPURE = {
    "tokio", "futures", "futures-util", "async-trait", "rand", "getrandom", "tracing", "log", "object_store",
    "tonic", "mio", "chrono", "time", "socket2", "reqwest", "hyper",
}

# What the tests of pure crates may use.
PURE_TESTS = {"proptest"}

# What a pure crate's own code may not name. Only the standard library's part is listed here,
# the rest would need a dependency.
BANNED_STD = "fs|io|net|env|process|thread|os"

BANNED = re.compile(
    rf"\basync\b|\.await\b|\bstd\s*::\s*(?:{BANNED_STD})\b|\buse\s+(?:::\s*)?std\s*(?:;|as\b|::\s*\*)"
    r"|\b(?:Instant|SystemTime)\b|\b(?:println|eprintln|print|eprint|dbg)\s*!")

GROUP = re.compile(r"\buse\s+(?:::\s*)?std\s*::\s*\{([^;]*);")


def purity():
    packages = {p["name"]: p for p in workspace.metadata()}
    for crate, (_, ours, libraries) in PURE.items():
        names = workspace.tree(crate)
        for name in sorted(n for n in names if n.startswith("caju") and n != crate and n not in ours):
            yield f"{crate} depends on {name}; of ours it may see {', '.join(sorted(ours))} alone"
        for name in sorted(names & IMPURE):
            yield f"{crate} depends on {name}; it must be free of async, clocks, randomness, I/O and logging"
        # Direct dependencies are few and plain: data in, data out.
        package = packages[crate]
        kinds = collections.defaultdict(set)
        for d in package["dependencies"]:
            kinds[d["kind"]].add(d["name"])
        for name in sorted(kinds[None] - ours - libraries):
            yield f"{crate} depends on {name}; it reads and writes JSON, and needs no other library"
        for name in sorted(kinds["build"]):
            yield f"{crate} has a build-dependency on {name}; its build runs no code"
        for name in sorted(kinds["dev"] - PURE_TESTS):
            yield f"{crate} has a dev-dependency on {name}; its tests get by with {', '.join(sorted(PURE_TESTS))}"
        if any("custom-build" in t["kind"] for t in package["targets"]):
            yield f"{crate} has a build script; its build runs no code"


def impure_lines(text):
    """The lines of Rust code that reach outside of it, as (number, what)."""
    code = rust.NOT_CODE.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)
    found = [(m.start(), m[0].strip()) for m in BANNED.finditer(code)]
    for group in GROUP.finditer(code):
        names = re.finditer(rf"(?:^|[{{,])\s*({BANNED_STD})\b", group[1])
        found += [(group.start(1) + m.start(1), f"std::{m[1]}") for m in names]
    return [(code.count("\n", 0, at) + 1, " ".join(what.split())) for at, what in sorted(found)]


def pure_sources():
    for crate, (folder, _, _) in PURE.items():
        files = sorted((workspace.ROOT / folder / "src").rglob("*.rs"))
        if not files:
            yield f"{folder}/src holds no code; has {crate} moved?"
        for file in files:
            for line, what in impure_lines(file.read_text(encoding="utf-8")):
                yield (f"{file.relative_to(workspace.ROOT)}:{line}: `{what}`; {crate} is pure: what it needs comes in as an "
                       "argument, and what it says goes out as a result")
