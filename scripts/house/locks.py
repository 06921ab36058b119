"""A structure with several locks says in which order they are taken."""

import re

from . import rust, workspace

STRUCT = re.compile(r"\bstruct (?P<name>\w+)[^;{(]*\{(?P<body>.*?)^\s*\}", re.DOTALL | re.MULTILINE)

FIELD = re.compile(r"^\s*(?:pub(?:\([^)]*\))?\s+)?(?P<name>\w+):(?P<type>.*?)(?=^\s*(?:pub(?:\([^)]*\))?\s+)?\w+:|\Z)",
                   re.DOTALL | re.MULTILINE)

# Locks of tokio's are held across awaits, and have no rank.
PLAIN = re.compile(r"(?<!tokio::sync::)\b(?:Mutex|RwLock)\s*<")

ORDERED = re.compile(r"\bOrdered(?:Mutex|RwLock)\s*<")

TOKIO = re.compile(r"\buse\s+tokio::sync::(?:\{[^;]*\b)?(?:Mutex|RwLock)\b")

# Structures with locks without an order, and why.
EXCEPTIONS = {
    ("crates/python/src/reader.rs", "Reader"): "a call of Python tries `open` without a wait; `last_state` is a leaf",
    ("crates/simulation/src/world.rs", "Inner"): "all of it runs on one thread",
}


def structures(text):
    """The structures of Rust code with several locks, one of which has no order, as (line, name, fields without an order)."""
    code = rust.own_code(text)
    if TOKIO.search(code):
        return
    for struct in STRUCT.finditer(code):
        fields = list(FIELD.finditer(struct["body"]))
        plain = [field["name"] for field in fields if PLAIN.search(field["type"])]
        ordered = [field for field in fields if ORDERED.search(field["type"])]
        if plain and len(plain) + len(ordered) > 1:
            yield code.count("\n", 0, struct.start()) + 1, struct["name"], plain


def lock_orders():
    unused = set(EXCEPTIONS)
    for file in sorted(f for d in ("cache", "planner", "proto", "crates/*") for f in workspace.ROOT.glob(f"{d}/src/**/*.rs")):
        path = file.relative_to(workspace.ROOT)
        if rust.is_test_file(path):
            continue
        for line, name, fields in structures(file.read_text(encoding="utf-8")):
            if (path.as_posix(), name) in EXCEPTIONS:
                unused.discard((path.as_posix(), name))
                continue
            yield (f"{path}:{line}: {name} has several locks, and {', '.join(fields)} without an order: use OrderedMutex or "
                   "OrderedRwLock of caju_runtime, with LockRank::leaf if no other lock is taken while it is held")
    for path, name in sorted(unused):
        yield f"{path} has no structure {name} with several locks any more; take it out of EXCEPTIONS in scripts/house/locks.py"
