"""Which crate may depend on which, what the client may see, and that the big shared libraries are there once."""

import collections
import pathlib
import re

from . import rust, workspace

# Dependencies point to a lower layer only. Tests may use the test kit from anywhere, and neighbours: a worker's
# tests need a dispatcher.
LAYERS = [
    {"caju-types", "caju-workspace-hack"},
    {"caju-image", "caju-pipeline", "caju-runtime", "caju-proto", "caju-planner"},
    {"caju-autocache", "caju-functions", "caju-samples", "caju-wire"},
    {"caju-cache", "caju-kernels"},
    {"caju-sources"},
    {"caju-engine"},
    {"caju-dispatcher", "caju-worker", "caju-client"},
    {"caju-embedded"},
    {"caju", "caju-simulation", "caju-testkit"},
    {"caju-python"},
    {"caju-tests", "caju-benches", "caju-fuzz"},
]

LAYER = {name: i for i, names in enumerate(LAYERS) for name in names}

# One version each, or values of one would not fit functions of the other.
SINGLE = ("parquet", "object_store", "tonic", "tokio", "moka", "redb", "sled", "tracing", "prost")

SINGLE_FAMILIES = ("arrow", "datafusion")

# What a reader of epochs needs of ours. A program that only reads compiles neither the engine nor DataFusion.
CLIENT_NEEDS = {
    "caju-client", "caju-wire", "caju-proto", "caju-runtime", "caju-pipeline", "caju-types", "caju-workspace-hack",
}

CLIENT_BANS = ("datafusion", "parquet")

# Dependencies that the code of a crate does not name, and why they are there.
UNNAMED = {
    ("caju-proto", "tonic-prost"): "code that the build generates names it",
    ("caju-runtime", "caju-workspace-hack"): "brings the workspace's set of features to every crate above",
    ("caju-workspace-hack", "*"): "has no code; it only selects features",
}

# What people build by itself. Each shares every library with the others.
SELECTIONS = [("-p", "caju"), ("-p", "caju-benches"), ("-p", "caju-python"), ("--workspace",)]


def dependency_directions():
    for p in workspace.metadata():
        if p["name"] not in LAYER:
            yield f"{p['name']}: has no layer; add it to LAYERS in scripts/house/dependencies.py and to ARCHITECTURE.md"
            continue
        for d in p["dependencies"]:
            if d.get("path") is None or d["name"] not in LAYER:
                continue
            if d["kind"] == "dev" and (d["name"] == "caju-testkit" or LAYER[d["name"]] == LAYER[p["name"]]):
                continue
            if LAYER[d["name"]] >= LAYER[p["name"]]:
                kind = f"{d['kind']}-" if d["kind"] else ""
                yield f"{p['name']} has a {kind}dependency on {d['name']}, which is not below it"


def unused_dependencies():
    """A crate's code names every dependency that it declares, and declares it once."""
    for p in workspace.metadata():
        folder = pathlib.Path(p["manifest_path"]).parent
        code = "\n".join(rust.NOT_CODE.sub(" ", f.read_text(encoding="utf-8")) for f in sorted(folder.rglob("*.rs")))
        yield from unused_of(p, code)


def unused_of(package, code):
    """The problems of a package's dependencies, its code given without comments and literals."""
    name = package["name"]
    if (name, "*") in UNNAMED:
        return
    declared = collections.defaultdict(set)
    for d in package["dependencies"]:
        declared[d["rename"] or d["name"]].add(d["kind"] or "normal")
    for dependency, kinds in sorted(declared.items()):
        # The library of the binary's crate has a name of its own, because two libraries cannot both be called `caju`.
        library = "caju_command" if dependency == "caju" else dependency.replace("-", "_")
        # A path or a `use`; a variable may have the same name.
        named = re.search(rf"(?<!::)\b{library}\s*::|\buse\s+(?:::\s*)?{library}\b", code)
        if not named and (name, dependency) not in UNNAMED:
            yield f"{name} declares the dependency {dependency}, which none of its code names; remove it from Cargo.toml"
        if {"normal", "dev"} <= kinds:
            yield f"{name} declares {dependency} twice; tests have every ordinary dependency, too"
    for of, dependency in sorted(UNNAMED):
        if of == name and dependency not in declared:
            yield f"{name} does not declare {dependency} any more; take it out of UNNAMED in scripts/house/dependencies.py"


def client_tree():
    names = workspace.tree("caju-client")
    for name in sorted(n for n in names if n.startswith("caju") and n not in CLIENT_NEEDS):
        yield f"caju-client depends on {name}; a reader needs {', '.join(sorted(CLIENT_NEEDS - {'caju-client'}))} alone"
    for name in sorted(n for n in names if any(n == f or n.startswith(f + "-") for f in CLIENT_BANS)):
        yield f"caju-client depends on {name}; a program that only reads epochs must compile without it"


def single_copies():
    # As cargo writes it; a TOML library is not in every Python.
    lock = (workspace.ROOT / "Cargo.lock").read_text(encoding="utf-8")
    versions = collections.defaultdict(set)
    for name, version in re.findall(r'^\[\[package\]\]\nname = "([^"]+)"\nversion = "([^"]+)"$', lock, re.MULTILINE):
        versions[name].add(version)
    if not versions:
        yield "Cargo.lock names no packages; is it as cargo writes it?"
    for name, found in sorted(versions.items()):
        family = any(name == f or name.startswith(f + "-") for f in SINGLE_FAMILIES)
        if (name in SINGLE or family) and len(found) > 1:
            yield f"Cargo.lock has {len(found)} versions of {name}: {', '.join(sorted(found))}"


def feature_sets():
    found = collections.defaultdict(lambda: collections.defaultdict(set))
    for selection in SELECTIONS:
        # Tests are built for the whole workspace only.
        edges = "normal,dev" if selection == ("--workspace",) else "normal"
        lines = workspace.cargo("tree", *selection, "-e", edges, "--format", "{p}|{f}", "--prefix", "none", "--locked")
        for line in lines.splitlines():
            library, _, features = line.replace(" (*)", "").partition("|")
            if library and "(proc-macro)" not in library and "(/" not in library:
                found[library][" ".join(selection)].add(features)
    for library, by_selection in sorted(found.items()):
        if len({frozenset(sets) for sets in by_selection.values()}) > 1:
            sets = "; ".join(f"`{s}`: {' and '.join(sorted(f)) or 'none'}" for s, f in by_selection.items())
            yield (f"{library} would be built more than once, with the features of {sets}; "
                   "add what is missing to crates/workspace-hack/Cargo.toml")
