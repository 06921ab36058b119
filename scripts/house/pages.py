"""What the documentation names is there: tests, settings, options and files."""

import ast
import collections
import re

from . import workspace

# Where tests are.
TESTS = ("tests/tests/**/*.rs", "tests/python/*.py", "cache/tests/**/*.rs", "planner/tests/**/*.rs",
         "crates/*/tests/**/*.rs", "crates/*/src/**/tests.rs", "crates/*/src/**/tests/*.rs", "crates/*/src/**/*_tests.rs")

# Which test shows what a flag, an option of a stage or an argument in Python does.
OPTIONS = "tests/OPTIONS.md"

# What seeds of the simulation have shown.
FOUND = "crates/simulation/FOUND.md"

# Flags of other programs that the documentation names.
OTHER_FLAGS = {"--advisories", "--cpu", "--create-namespace", "--example", "--help", "--until-failure", "--scenario", "--spoil", "--seeds", "--set", "--ignored", "--locked", "--namespace", "--no-deps", "--nodelist", "--nodes", "--ntasks", "--ntasks-per-node", "--open", "--overlap", "--path", "--release",
               "--some-name", "--third-party", "--timings", "--workspace"}


def tests_of(text):
    """The names of the tests of a Rust or Python file. Other functions of such a file test nothing."""
    rust = r"^ *#\[(?:tokio::)?test\b[^\]]*\]\n(?: *(?:#\[[^\n]*\]|//[^\n]*)\n)* *(?:async )?fn (\w+)"
    return [*re.findall(rust, text, re.MULTILINE), *re.findall(r"^(?:async )?def (test_\w+)", text, re.MULTILINE)]


def test_names():
    globs = (*TESTS, "tests/src/**/*.rs", "proto/src/*.rs", "crates/*/src/**/*.rs")
    sources = {file for pattern in globs for file in workspace.ROOT.glob(pattern)}
    return {name for file in sources for name in tests_of(file.read_text(encoding="utf-8"))}


def conformance():
    tests = test_names()
    rows = re.findall(r"^\| [A-Z]+-\d+ \|.*\| (.*) \|$", (workspace.ROOT / "docs/conformance.md").read_text(), re.MULTILINE)
    for name in sorted({n for row in rows for n in re.findall(r"`(\w+)`", row)} - tests):
        yield f"docs/conformance.md names the test {name}, which is not there"


def guarantees():
    """Every promise of docs/guarantees.md names tests, and they are there, as are those of its text and of the simulation's seeds."""
    tests = test_names()
    page = (workspace.ROOT / "docs/guarantees.md").read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| ")][1:]
    if not rows:
        yield "docs/guarantees.md has no table of promises; has it moved?"
    for row in rows:
        names = re.findall(r"`(\w+)`", row[2]) if len(row) == 4 else []
        if not names:
            yield f"docs/guarantees.md names no test for the promise {row[0].removeprefix('| ')!r}"
        for name in sorted(set(names) - tests):
            yield f"docs/guarantees.md names the test {name}, which is not there"
    # Outside the table, and among the seeds: a name of three words or more is that of a test.
    prose = "\n".join(line for line in page.splitlines() if not line.startswith("| "))
    for name, text in (("docs/guarantees.md", prose), (FOUND, (workspace.ROOT / FOUND).read_text(encoding="utf-8"))):
        for test in sorted(set(re.findall(r"`([a-z0-9]+(?:_[a-z0-9]+){2,})`", text)) - tests):
            yield f"{name} names the test {test}, which is not there"


def waits():
    """Every wait of docs/limits.md has a setting or a constant, and a test, and both are there."""
    tests = test_names()
    page = (workspace.ROOT / "docs/limits.md").read_text(encoding="utf-8")
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    rows = [row for row in rows if row[0] not in ("who waits for what", "what", "---")]
    if not rows:
        yield "docs/limits.md has no table of waits; has it moved?"
    files = [f for folder in ("crates", "cache") for f in sorted((workspace.ROOT / folder).rglob("*.rs"))]
    code = "".join(f.read_text(encoding="utf-8") for f in files)
    for row in rows:
        # Flags are checked with those of all pages.
        names = re.findall(r"`([A-Z][A-Z_]+|[a-z_]+)`", row[2]) if len(row) == 5 else []
        if len(row) != 5 or not (names or "`--" in row[2]):
            yield f"docs/limits.md names no setting and no constant for {row[0]!r}"
        for name in names:
            if not re.search(rf"\b{name}\b", code):
                yield f"docs/limits.md names `{name}`, which is not in the code"
        for name in sorted(set(re.findall(r"`(\w+)`", row[-1])) - tests):
            yield f"docs/limits.md names the test {name}, which is not there"


CLI = "crates/caju/src/cli"

# The commands of a struct of arguments, for flags that several structs declare. A flattened struct has several commands, whose
# code for it is one. A struct of a hidden subcommand is here if no other command has the flag.
COMMANDS = {
    "CacheRoot": ("caju cache",),
    "ComputeArgs": ("caju run", "caju save", "caju profile", "caju bench policies"),
    "DispatcherArgs": ("caju dispatcher",),
    "DispatcherBenchArgs": ("caju bench dispatcher",),
    "DispatcherSettings": ("caju dispatcher", "caju up"),
    "EpochArgs": ("caju run", "caju read"),
    "ExactlyOnceArgs": ("caju bench exactly-once",),
    "ExplainArgs": ("caju explain",),
    "GenArgs": ("caju gen",),
    "PlanArgs": ("caju plan",),
    "PoliciesArgs": ("caju bench policies",),
    "ProfileArgs": ("caju profile",),
    "ProfilingOverheadArgs": ("caju bench profiling-overhead",),
    "QuickstartArgs": ("caju quickstart",),
    "ReadArgs": ("caju read",),
    "ReadWaitArgs": ("caju read",),
    "RunArgs": ("caju run",),
    "SaveArgs": ("caju save",),
    "ScaleArgs": ("caju scale",),
    "StateBenchArgs": ("caju bench state",),
    "StatusArgs": ("caju status",),
    "TaskArgs": ("caju worker",),
    "UpArgs": ("caju up",),
    "WorkerArgs": ("caju worker",),
    "WorkerCommand::Drain": ("caju worker drain",),
}


def cli_sources():
    return [file.read_text(encoding="utf-8") for file in sorted((workspace.ROOT / CLI).glob("*.rs"))]


def declared_flags():
    """The long options of the command, as (flag, struct of arguments, hidden). The struct of a subcommand with its arguments in
    braces is the variant: `WorkerCommand::Drain`.
    """
    # A struct or an enum; a variant; or an attribute, further attributes, and the field.
    item = re.compile(r"^pub\(crate\) (struct|enum) (?P<type>\w+)|^    (?P<variant>[A-Z]\w*) \{$"
                      r"|#\[arg\((?P<attribute>.*?)\)\]\s*(?:pub\(crate\) )?(?P<field>\w+):", re.DOTALL | re.MULTILINE)
    for text in cli_sources():
        of = variant = None
        for found in item.finditer(text):
            if found["type"]:
                of, variant = found["type"], None
            elif found["variant"]:
                variant = found["variant"]
            elif re.search(r"\blong\b", found["attribute"]):
                args = f"{of}::{variant}" if variant else of
                yield "--" + found["field"].replace("_", "-"), args, "hide = true" in found["attribute"]


def hidden_subcommands():
    """The structs of arguments of subcommands that no help lists."""
    hidden = r"#\[command\([^\n]*\bhide = true\b[^\n]*\)\]\n\s*\w+\((?:Box<)?(\w+)"
    return {name for text in cli_sources() for name in re.findall(hidden, text)}


def flag_rows(declared, hidden_structs):
    """What rows of flags are wanted, as (rows, problems): (flag,), or (flag, commands) for each struct that declares the flag if
    there are several. Structs of hidden subcommands count only for flags that no other command has.
    """
    structs = collections.defaultdict(set)
    for flag, args, hidden in declared:
        if not hidden:
            structs[flag].add(args)
    rows, problems = set(), []
    for flag, all_of_flag in sorted(structs.items()):
        of_flag = all_of_flag - hidden_structs or all_of_flag
        if len(of_flag) == 1:
            rows.add((flag,))
            continue
        for args in sorted(of_flag):
            row = (flag, ", ".join(COMMANDS.get(args, ())))
            if args not in COMMANDS:
                problems.append(f"COMMANDS in scripts/house/pages.py does not say which commands {args} is for, one of several "
                                f"structs with the flag {flag}")
            elif row in rows:
                problems.append(f"COMMANDS in scripts/house/pages.py gives two structs with the flag {flag} the commands "
                                f"{row[1]}")
            rows.add(row)
    return {row for row in rows if row[-1]}, problems


# Options inside of options, which the tables of docs/pipeline.md do not list by themselves.
NESTED = {
    ("pipeline", "on_error.skip.limit"),
    ("pipeline", "reorder.measured"),
    ("bucket_by_length", "boundaries.quantiles"),
    ("bucket_by_length", "boundaries.rows"),
    ("parse_example", "features.*.dtype"),
    ("parse_example", "features.*.shape"),
    ("parse_example", "features.*.optional"),
}


def top_level_keys(text):
    """The keys of a mapping in YAML's flow style, such as `{ path: ["a", "b"], split: 16MiB }`."""
    depth, quote, part, parts = 0, None, "", []
    for c in text:
        if quote:
            quote = None if c == quote else quote
        elif c in "\"'":
            quote = c
        elif c in "{[":
            depth += 1
        elif c in "}]":
            depth -= 1
        if depth == 1 and c in "{,":
            parts.append(part)
            part = ""
        elif depth >= 1:
            part += c
    return [p.split(":", 1)[0].strip() for p in [*parts, part] if ":" in p]


def stage_options():
    """The options of docs/pipeline.md, as (source or stage, option): those of its tables of sources and stages, the keys of a
    definition, and what all sources of files have.
    """
    heading = ""
    for line in (workspace.ROOT / "docs/pipeline.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            heading = line.strip("# ")
        cells = line.removeprefix("| ").split(" | ")
        # The short form may have other options than the form in full.
        for cell in cells[:2] if len(cells) > 2 else []:
            form = re.fullmatch(r"`(\w+): (\{.*\})`", cell.strip())
            # Their keys are columns, not options.
            if form and form[1] not in ("map", "with_columns"):
                yield from ((form[1], key) for key in top_level_keys(form[2]))
        if heading == "Keys" and (key := re.match(r"\| `(\w+)` \| ", line)):
            yield "pipeline", key[1]
        if heading == "Options of all file sources" and (key := re.match(r"- `(\w+)", line)):
            yield "files", key[1]


def nested_options():
    """NESTED, and the problems of those that docs/pipeline.md does not name."""
    page = (workspace.ROOT / "docs/pipeline.md").read_text(encoding="utf-8")
    missing = [(of, option) for of, option in sorted(NESTED) if not re.search(rf"\b{option.rsplit('.', 1)[-1]}: ", page)]
    return NESTED, [f"docs/pipeline.md does not name `{option}` of `{of}`; is it still there?" for of, option in missing]


PACKAGE = "crates/python/python/caju"

# Classes whose objects users get from functions and methods. Those may pass on keyword-only arguments, as `Dataset.torch` does; the
# other arguments of the constructors have no rows.
NOT_CONSTRUCTED = {"ArrowView", "Dataset", "DatasetIterator", "DispatcherServer", "Expr", "JaxView", "RayCluster", "Save", "Schema",
                   "TorchDataset", "WorkerServer"}

# Classes whose methods Ray calls. Users call their constructors only.
CALLED_BY_RAY = {"CajuDatasink", "CajuDatasource"}


def public_nodes(trees):
    """The functions and classes of the Python package that users see: those that `caju` and its public subpackages export, the
    bases of such classes, and the classes that public functions and methods return. `trees`: the parsed files by their paths in
    the package.
    """
    nodes = collections.defaultdict(list)
    for node in (node for tree in trees.values() for node in tree.body):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            nodes[node.name].append(node)
    pending, found = [], {}
    for path, tree in trees.items():
        if path.name == "__init__.py" and not any(part.startswith("_") for part in path.parts[:-1]):
            lists = [n.value for n in tree.body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "__all__"]
            pending += [name for names in lists for name in ast.literal_eval(names)]
    while pending:
        name = pending.pop()
        if name.startswith("_") or name in found:
            continue
        found[name] = nodes[name]
        for node in nodes[name]:
            seen = [f.returns for f in public_functions(node) if f.returns is not None] + getattr(node, "bases", [])
            pending += [word for tree in seen for word in re.findall(r"\w+", ast.unparse(tree))]
    return [node for of_name in found.values() for node in of_name]


def public_functions(node):
    """A function, or the methods of a class that users call."""
    if isinstance(node, ast.FunctionDef):
        return [node]
    methods = [m for m in node.body if isinstance(m, ast.FunctionDef)]
    if node.name in CALLED_BY_RAY:
        return [m for m in methods if m.name == "__init__"]
    return [m for m in methods if m.name[0] != "_" or m.name == "__init__"]


def python_parameters():
    """The named parameters of the functions and methods of the Python package that users call, as (argument with `=`, function,
    whether it is given by its keyword only). The function is a class for the parameters of its constructor. Two functions of one
    name, of different modules or classes, have their rows in common.
    """
    root = workspace.ROOT / PACKAGE
    trees = {file.relative_to(root): ast.parse(file.read_text(encoding="utf-8")) for file in sorted(root.rglob("*.py"))}
    for node in public_nodes(trees):
        for function in public_functions(node):
            is_method = isinstance(node, ast.ClassDef)
            name = function.name.replace("__init__", node.name)
            positional = [*function.args.posonlyargs, *function.args.args][is_method:] if name not in NOT_CONSTRUCTED else []
            yield from ((argument.arg + "=", name, False) for argument in positional)
            yield from ((argument.arg + "=", name, True) for argument in function.args.kwonlyargs)


def python_arguments():
    """The arguments of the Python package, as (argument with `=`, function)."""
    return ((argument, function) for argument, function, _ in python_parameters())


def unnamed_arguments(page, tests, keywords):
    """Rows of arguments in Python none of whose tests is in a file that names the argument, or, if it may be given by its position,
    one of the functions. `tests`: the text of the file of each test in Python. `keywords`: the arguments that are given by their
    keyword only."""
    for argument, functions, names in re.findall(r"^\| `(\w+)=` \| (.*) \| (.*) \|$", page, re.MULTILINE):
        texts = [tests.get(name, "") for name in re.findall(r"`(\w+)`", names)]
        functions = re.findall(r"`(\w+)`", functions)
        is_keyword = any((argument + "=", function) in keywords for function in functions)
        words = [argument] if is_keyword else functions
        if not any(re.search(rf"\b{word}\b", text) for text in texts for word in words):
            what = f"`{argument}=`" if is_keyword else ", ".join(f"`{function}`" for function in functions)
            yield f"{OPTIONS} names {names} for `{argument}=`, and no file of these tests names {what}"


def promised_options():
    declared = list(declared_flags())
    if not declared:
        yield f"{CLI} declares no options; have they moved?"
    arguments = set(python_arguments())
    if not arguments:
        yield f"{PACKAGE} has no arguments; has it moved?"
    root = workspace.ROOT
    pages = [root / "README.md", root / "ARCHITECTURE.md", root / FOUND, *sorted((root / "docs").rglob("*.md"))]
    flags = {flag for flag, *_ in declared}
    for page in pages:
        for flag in sorted(set(re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z]", page.read_text(encoding="utf-8")))):
            if flag not in flags and flag not in OTHER_FLAGS:
                yield f"{page.relative_to(root)} names {flag}, which is no option of the command"
    options = set(stage_options())
    for kind in ("pipeline", "files", "csv", "shuffle"):
        if kind not in {of for of, _ in options}:
            yield f"docs/pipeline.md has no options of `{kind}`; have its tables moved?"
    rows, problems = flag_rows(declared, hidden_subcommands())
    nested, missing = nested_options()
    yield from (*problems, *missing)
    page = (root / OPTIONS).read_text(encoding="utf-8")
    yield from tested_options(rows | options | nested | arguments, page, test_names())
    texts = [file.read_text(encoding="utf-8") for file in sorted((root / "tests/python").glob("test_*.py"))]
    keywords = {(argument, function) for argument, function, is_keyword in python_parameters() if is_keyword}
    yield from unnamed_arguments(page, {name: text for text in texts for name in tests_of(text)}, keywords)


def tested_options(wanted, page, tests):
    """Every flag, every option of a stage and every argument in Python has a row with tests that exist. The row of an argument
    may be that of several functions.
    """
    rows = collections.defaultdict(list)
    for line in page.splitlines():
        *option, names = re.fullmatch(r"\| (.*) \|", line)[1].split(" | ") if line.startswith("| `") else [""]
        option = [cell.replace("`", "") for cell in option]
        keys = [tuple(option)] if option else []
        if len(option) == 2 and option[0].endswith("="):
            keys = [(option[0], function) for function in option[1].split(", ")]
        for key in keys:
            rows[key] += re.findall(r"`(\w+)`", names)
    for option in sorted(wanted - set(rows)):
        yield f"{OPTIONS} has no row for `{' '.join(option)}`; add one with a test that fails when the option does nothing"
    for option in sorted(set(rows) - wanted):
        yield f"{OPTIONS} has a row for `{' '.join(option)}`, which is no option"
    for option, names in sorted(rows.items()):
        if not names:
            yield f"{OPTIONS} names no test for `{' '.join(option)}`"
        for name in sorted(set(names) - tests):
            yield f"{OPTIONS} names the test {name}, which is not there"


def named_files():
    """Links and paths of the documentation lead somewhere."""
    root = workspace.ROOT
    pages = [root / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", FOUND)]
    for page in [*pages, *sorted((root / "docs").rglob("*.md")), *sorted((root / "experiments").rglob("*.md"))]:
        text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        links = {page.parent / m for m in re.findall(r"\]\(([^)#\s:]+)(?:#[^)]*)?\)", text)}
        folders = "crates|tests|planner|cache|proto|benches|experiments|scripts|examples|docs"
        paths = {root / m for m in re.findall(rf"`((?:{folders})/[\w./-]+)`", text)}
        for path in sorted(str(p) for p in links | paths if not p.exists()):
            yield f"{page.relative_to(root)} names {path}, which does not exist"
