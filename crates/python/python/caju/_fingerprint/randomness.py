"""Finds random draws other than `caju.rng()`.

Such draws differ between runs and between processes: a row that is computed twice gives two different rows, and a hint
stores one draw for every epoch.

Found by name in the code: draws from the generators that a process shares (`random.gauss`, `np.random.rand`, `torch.rand`),
draws from the system (`os.urandom`, `secrets`, `uuid.uuid4`), and generators that are created without a seed
(`np.random.default_rng()`). Found by value: generators in a global, a default or a closure of the function. Draws inside of
installed packages are not found.
"""

from __future__ import annotations

import dis
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["foreign_draws", "random_generator_class"]

# Per module: the names that draw; None: all names except those of `_SEEDED` and `_SILENT`.
_DRAWS: dict[str, frozenset[str] | None] = {
    "random": None,
    "numpy.random": None,
    "secrets": None,
    "os": frozenset({"urandom", "getrandom"}),
    "uuid": frozenset({"uuid1", "uuid4"}),
    "torch": frozenset(
        "rand rand_like randn randn_like randint randint_like randperm normal bernoulli multinomial poisson".split()
    ),
}

# Generators, which are a foreign source only if they are created without a seed.
_SEEDED = frozenset({"Random", "default_rng", "RandomState", "PCG64", "PCG64DXSM", "Philox", "MT19937", "SFC64"})

# Names that draw nothing by themselves.
_SILENT = frozenset(
    "seed getstate setstate get_state set_state Generator BitGenerator SeedSequence compare_digest".split()
)

_CALLS = ("CALL", "CALL_FUNCTION", "CALL_METHOD")
_BETWEEN = ("PRECALL", "PUSH_NULL", "CACHE", "EXTENDED_ARG")


def foreign_draws(code: types.CodeType, scope: Mapping[str, Any], cells: Mapping[str, Any]) -> list[str]:
    """The names by which code draws random numbers, such as `numpy.random.rand`."""
    found = (_drawn(name, bare) for name, bare in _chains(code, scope, cells))
    return list(dict.fromkeys(name for name in found if name is not None))


def random_generator_class(value: Any) -> str | None:
    """The class of a random generator, whose state would be copied to every process; None for other values."""
    for module, names in (("random", ("Random",)), ("numpy.random", ("Generator", "RandomState"))):
        loaded = sys.modules.get(module)
        for name in names:
            cls = getattr(loaded, name, None)
            if isinstance(cls, type) and isinstance(value, cls):
                return f"{module}.{name}"
    return None


def _drawn(name: str, bare: bool) -> str | None:
    """The name of the draw, without attributes of its result; None if it does not draw. `bare`: called without arguments."""
    for module, drawing in _DRAWS.items():
        if name == module and drawing is None and module != "secrets":
            return name  # the module itself is passed on
        if not name.startswith(f"{module}."):
            continue
        taken = name[len(module) + 1 :].split(".")[0]
        silent = taken in _SILENT or (taken in _SEEDED and not (bare and name == f"{module}.{taken}"))
        if silent if drawing is None else taken not in drawing:
            return None
        return f"{module}.{taken}"
    return None


def _chains(code: types.CodeType, scope: Mapping[str, Any], cells: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """Full names within installed modules that code uses, and whether they are called without arguments."""
    imported: dict[str, str] = {}  # local names that imports within the code have bound
    chain: str | None = None
    module: str | None = None  # the last module imported
    taken: str | None = None
    for op in dis.get_instructions(code):
        if chain is not None:
            if op.opname in _BETWEEN:
                continue
            if op.opname in ("LOAD_ATTR", "LOAD_METHOD"):
                chain = f"{chain}.{op.argval}"
                continue
            yield chain, op.opname in _CALLS and op.arg == 0
            chain = None
        if op.opname == "IMPORT_NAME":
            module = taken = op.argval
        elif op.opname == "IMPORT_FROM" and module is not None:
            # `import a.b as c` takes `b` of `a.b`; `from a import b` takes `b` of `a`.
            taken = module if module.endswith(f".{op.argval}") else f"{module}.{op.argval}"
        elif op.opname.startswith("STORE_FAST"):
            names = op.argval if isinstance(op.argval, tuple) else (op.argval,)
            if taken is not None:
                imported[names[0]] = taken if taken != module or "." not in taken else _bound(taken, names[0])
                taken = None
            else:
                imported.pop(names[0], None)
            if op.opname == "STORE_FAST_LOAD_FAST":
                chain = imported.get(names[-1])
        elif op.opname.startswith("LOAD_FAST"):
            chain = imported.get(op.argval[-1] if isinstance(op.argval, tuple) else op.argval)
        elif op.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF"):
            chain = _module_of(cells.get(op.argval, scope.get(op.argval)))
    if chain is not None:
        yield chain, False


def _bound(module: str, name: str) -> str:
    """The module that `import a.b` binds: `a` under that name; with `as`, `a.b` under another name."""
    top = module.split(".")[0]
    return top if name == top else module


def _module_of(value: Any) -> str | None:
    """The full name of a module, or of a function or class of one of the modules in `_DRAWS`."""
    if isinstance(value, types.ModuleType):
        return value.__name__
    for module in _DRAWS:
        name = getattr(value, "__name__", None)
        if isinstance(name, str) and getattr(sys.modules.get(module), name, None) is value:
            return f"{module}.{name}"
    return None
