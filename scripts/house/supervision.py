"""Every task and thread is supervised: somebody sees its failure."""

import re

from . import rust, workspace

# What starts work whose failure nobody sees. `crates/runtime` has a supervised form of each.
UNSUPERVISED = re.compile(
    r"\btokio\s*::\s*(?:task\s*::\s*)?spawn\w*|\btask\s*::\s*spawn\w*|\bspawn_(?:blocking|local)\b"
    r"|\bthread\s*::\s*(?:spawn\b|Builder\b|\{[^;]*?\b(?:spawn|Builder)\b)"
    r"|\b(?:JoinSet|AbortOnDropHandle|TaskTracker)\b|\bHandle\s*::\s*current\s*\(\s*\)\s*\.\s*spawn\w*"
    r"|\bdrop\s*\(\s*[\w.()&*:]*\.\s*spawn\w*(?=\s*\()"
    r"|\blet\s+(?:mut\s+)?_\w*\s*(?::[^=;]*)?=[^;]*?\.\s*spawn\w*(?=\s*\()")


def unsupervised_lines(text):
    """The lines of Rust code that start work whose failure nobody sees, as (number, what)."""
    code = rust.own_code(text)
    return [(code.count("\n", 0, m.start()) + 1, " ".join(m[0].split())) for m in UNSUPERVISED.finditer(code)]


def supervision():
    sources = sorted(f for d in ("cache", "planner", "proto", "crates/*") for f in workspace.ROOT.glob(f"{d}/src/**/*.rs"))
    if not sources:
        yield "no crate has code; have the crates moved?"
    for file in sources:
        path = file.relative_to(workspace.ROOT)
        if rust.is_test_file(path) or path.parts[:2] == ("crates", "runtime"):
            continue
        for line, what in unsupervised_lines(file.read_text(encoding="utf-8")):
            yield (f"{path}:{line}: `{what}`; nobody sees a failure of that work: use Tasks::spawn and await it, "
                   "Tasks::background with an observer, blocking, or Thread, all of caju_runtime")
