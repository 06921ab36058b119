"""The modules and files of a crate use each other in no circle."""

import ast
import collections
import re

from . import rust, workspace

# `use` declarations, the paths of code, and what a crate's root re-exports.
USES = re.compile(r"\b(?P<vis>pub(?:\([^)]*\))?\s+)?use\s+(?P<tree>[^;]+);")

PATHS = re.compile(r"(?<![\w:])((?:crate|(?:super::)*super)(?:\s*::\s*\w+)+)")


def leaves(tree):
    """The full paths of a `use` tree, without aliases."""
    tree = re.sub(r"\s+as\s+\w+", "", " ".join(tree.split())).replace(" ", "")
    found, prefixes, word = [], [""], ""
    for c in tree + ",":
        if c == "{":
            prefixes.append(prefixes[-1] + word)
            word = ""
        elif c in ",}":
            if word:
                found.append(prefixes[-1] + word)
            word = ""
            if c == "}":
                prefixes.pop()
        else:
            word += c
    return found


def module_graph(src):
    """Which top modules of a crate use which: by paths from the crate's root, through what it re-exports."""
    files = {f: f.relative_to(src).with_suffix("").parts for f in src.rglob("*.rs")}
    files = {f: p for f, p in files.items() if not rust.is_test_file(f.relative_to(src)) and p[0] not in ("main", "bin")}
    modules = {p[0] for p in files.values()} - {"lib"}
    # A name at the root is a module, or comes from one.
    home = {m: m for m in modules}
    for f, parts in files.items():
        if parts == ("lib",):
            for use in USES.finditer(rust.own_code(f.read_text(encoding="utf-8"))):
                for path in leaves(use["tree"]):
                    first, *more = path.removeprefix("crate::").removeprefix("self::").split("::")
                    if first in modules and more:
                        home.setdefault(more[-1], first)
    graph = collections.defaultdict(set)
    for f, parts in files.items():
        code = rust.own_code(f.read_text(encoding="utf-8"))
        depth = len(parts) - (parts[-1] == "mod") if parts != ("lib",) else 0
        paths = [p for use in USES.finditer(code) for p in leaves(use["tree"])]
        paths += ["".join(m[1].split()) for m in PATHS.finditer(code)]
        for path in paths:
            steps = path.split("::")
            supers = next((i for i, s in enumerate(steps) if s != "super"), len(steps))
            if steps[0] == "crate":
                steps = steps[1:]
            elif supers == depth and supers > 0:
                steps = steps[supers:]
            elif parts == ("lib",) and not any(path.startswith(p) for p in ("crate::", "super::")):
                # Plain declarations of modules and re-exports are no use of them.
                continue
            else:
                continue
            if steps and (target := home.get(steps[0], "lib" if steps[0] not in ("self", "*") else None)):
                graph[parts[0]].add(target)
    return graph


def file_graph(src):
    """Which files of a crate use which, by the paths that they name.

    Two uses do not count. One is that of a module that the file is part of: `a/read.rs` may use what `a/mod.rs` declares, though
    that module declares and uses `a/read.rs`. The other is that of the crate's root, which declares everything and uses it by
    re-exports; what goes through a re-export of the root counts in `module_graph`.
    """
    files = {}
    for f in src.rglob("*.rs"):
        parts = f.relative_to(src).with_suffix("").parts
        if not rust.is_test_file(f.relative_to(src)):
            files[() if parts == ("lib",) else parts[:-1] if parts[-1] == "mod" else parts] = f

    def resolve(base, steps):
        for step in steps:
            if step == "super":
                base = base[:-1]
            elif base + (step,) in files:
                base += (step,)
            elif step != "self":
                break
        return base

    graph = collections.defaultdict(set)
    for module, f in files.items():
        code = rust.own_code(f.read_text(encoding="utf-8"))
        paths = [p for use in USES.finditer(code) for p in leaves(use["tree"])]
        paths += ["".join(m[1].split()) for m in PATHS.finditer(code)]
        for first, *more in (path.split("::") for path in paths):
            if first in ("crate", "super"):
                used = resolve((), more) if first == "crate" else resolve(module, [first, *more])
                if used in files and used != module[:len(used)]:
                    graph["/".join(module)].add("/".join(used))
    return graph


def circles(graph):
    """The groups of nodes each of which reaches all others."""
    def reached(start):
        seen, todo = set(), [start]
        while todo:
            for n in graph.get(todo.pop(), ()):
                if n not in seen:
                    seen.add(n)
                    todo.append(n)
        return seen

    reach = {n: reached(n) for n in graph}
    groups = {frozenset({n} | {m for m in reach[n] if n in reach.get(m, ())}) for n in graph}
    return sorted(sorted(g) for g in groups if len(g) > 1)


def module_circles():
    for src in sorted(d for p in ("cache", "planner", "proto", "crates/*") for d in workspace.ROOT.glob(f"{p}/src")):
        name = src.parent.relative_to(workspace.ROOT).as_posix()
        found = circles(module_graph(src))
        for group in found:
            yield (f"{name}: the modules {', '.join(group)} use each other in a circle; move what they share into a "
                   "module below them")
        for group in [] if found else circles(file_graph(src)):
            yield (f"{name}: the files {', '.join(group)} use each other in a circle; move what they share into a "
                   "file below them")


def imports(body):
    """The imports that run when a module does: not those within functions, and not those for type checkers alone."""
    for node in body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from imports(node.orelse)
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for part in ("body", "orelse", "finalbody", "handlers"):
                yield from imports(getattr(node, part, []))


def python_graph(package):
    """Which modules of a Python package import which when they are imported. Imports within functions come later."""
    graph = collections.defaultdict(set)
    files = {file: file.relative_to(package).with_suffix("").parts for file in package.rglob("*.py")}
    known = {".".join(parts[:-1] if parts[-1] == "__init__" else parts) for parts in files.values()}
    for file, parts in files.items():
        own = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        for node in imports(ast.parse(file.read_text()).body):
            if isinstance(node, ast.Import):
                named = [tuple(alias.name.split(".")) for alias in node.names]
                graph[own].update({".".join(n[1:]) for n in named if n[0] == package.name} & known - {"", own})
                continue
            words = tuple(node.module.split(".")) if node.module else ()
            if not node.level and words[0] != package.name:
                continue
            base = parts[: len(parts) - node.level] + words if node.level else words[1:]
            # A name is a module below, or something within the module itself.
            for alias in node.names:
                below = ".".join((*base, alias.name))
                name = below if below in known else ".".join(base)
                if name and name in known and name != own:
                    graph[own].add(name)
    return graph


def python_circles():
    for package in sorted(p.parent for p in workspace.ROOT.glob("crates/*/python/*/__init__.py")):
        name = package.relative_to(workspace.ROOT).as_posix()
        for group in circles(python_graph(package)):
            yield (f"{name}: the modules {', '.join(group)} import each other in a circle; move what they share into a module "
                   "below them")
