"""Adds functions, code objects and modules to a fingerprint."""

from __future__ import annotations

import ast
import builtins
import importlib
import importlib.util
import sys
import types
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .bytecode import Import, Text, body_of, cells_of, drop_docstrings
from .packages import is_importable, is_installed_file, is_own_module
from .randomness import foreign_draws
from .values import COPIED_BY_WRAPS, MODULE_PLACE

if TYPE_CHECKING:
    from .hasher import Hasher

__all__ = ["CodeHasher"]

RNG = ("caju._functions", "rng")
"""Module and name of `caju.rng`."""


class CodeHasher:
    """Adds code to a `Hasher`."""

    def __init__(self, hasher: Hasher) -> None:
        self._hasher = hasher

    # ---- functions ---------------------------------------------------------------------------------------------

    def function(self, f: types.FunctionType, path: str) -> None:
        """Adds a function: its code, or its package and what that keeps for the user."""
        if is_installed_file(f.__code__.co_filename):
            self._installed_function(f, path)
            return
        with self._hasher.tolerance(False):
            self._own_function(f, path)

    def _own_function(self, f: types.FunctionType, path: str) -> None:
        h = self._hasher
        h.tokens("function")
        h.add(f.__defaults__, f"{path}.__defaults__")
        h.add(f.__kwdefaults__, f"{path}.__kwdefaults__")
        cells = cells_of(f)
        for name in f.__code__.co_freevars:
            if name not in cells:
                h.tokens("empty cell")  # it is filled later, or never
        self.code(f.__code__, f.__globals__, path, cells)
        for name, value in cells.items():
            # The attributes that the code takes of a module are added in place of the module.
            if not isinstance(value, types.ModuleType):
                h.add(value, f"{path}.{name}")
        h.attributes({name: item for name, item in vars(f).items() if name not in COPIED_BY_WRAPS}, path)

    def _installed_function(self, f: types.FunctionType, path: str) -> None:
        h = self._hasher
        # A decorator copies the name of what it wraps. Its own name is that of its module and its code.
        module = str(f.__globals__.get("__name__", ""))
        name = str(getattr(f.__code__, "co_qualname", f.__code__.co_name))
        h.draws |= (module, name) == RNG
        h.package(module, name)
        if is_importable(f.__module__, f.__qualname__, f):
            return  # the package's version represents it
        registry = getattr(f, "registry", None)
        if module == "functools" and isinstance(registry, Mapping) and hasattr(f, "dispatch"):
            # Its closure holds caches as well, which are left out.
            h.tokens("singledispatch")
            h.unordered(registry.items(), f"{path}.registry")
            return
        state = {f"default {i}": item for i, item in enumerate(f.__defaults__ or ())}
        state |= {f"keyword {name}": item for name, item in (f.__kwdefaults__ or {}).items()}
        state |= {f"cell {name}": item for name, item in cells_of(f).items()}
        h.package_state(state | vars(f), path)

    # ---- code objects ------------------------------------------------------------------------------------------

    def code(
        self, code: types.CodeType, scope: Mapping[str, Any], path: str, cells: Mapping[str, Any] | None = None
    ) -> None:
        """Adds what code does and the names that it uses, looked up in `cells` and the globals `scope`."""
        h, cells = self._hasher, cells or {}
        h.foreign_draws += [f"{name} (at {path})" for name in foreign_draws(code, scope, cells)]
        body = body_of(code, cells)
        arguments = code.co_argcount + code.co_kwonlyargcount
        h.tokens("code", str(body.flags), getattr(code, "co_exceptiontable", b""))
        h.tokens(str(code.co_argcount), str(code.co_posonlyargcount), str(code.co_kwonlyargcount))
        h.tokens("arguments", *code.co_varnames[:arguments])
        for name, argument in body.steps:
            h.tokens(name)
            if isinstance(argument, Text):
                h.tokens(str(argument))
            elif isinstance(argument, types.CodeType):
                self.code(argument, scope, path, cells)
            else:
                h.add(argument, path)
        for names in body.reads:
            self._global(names, scope, cells, path)
        for one in body.imports:
            self._import(one, scope, path)

    def _global(self, names: tuple[str, ...], scope: Mapping[str, Any], cells: Mapping[str, Any], path: str) -> None:
        """Adds a global with the attributes that the code takes of it: `helpers.scale.factor`."""
        h = self._hasher
        first, *attributes = names
        if first in cells:
            if not isinstance(cells[first], types.ModuleType):
                return  # a closure value, which the function adds
            value = cells[first]
        elif first in MODULE_PLACE:
            h.tokens("its own place", first)
            return
        elif first in scope:
            value = scope[first]
        elif hasattr(builtins, first):
            h.tokens("builtin", first)
            return
        else:
            h.tokens("missing", first)
            return
        path = f"{path} -> {first}"
        if value is sys.modules.get("caju") and attributes[:1] == ["rng"]:
            h.draws = True
        while attributes and isinstance(value, types.ModuleType) and is_own_module(value):
            if not hasattr(value, attributes[0]):
                break
            value, path = getattr(value, attributes[0]), f"{path}.{attributes[0]}"
            attributes = attributes[1:]
        h.add(value, path)

    # ---- modules -----------------------------------------------------------------------------------------------

    def module(self, module: types.ModuleType, path: str) -> None:
        """Adds a module that code uses as a whole: its source without comments, docstrings and line numbers."""
        h = self._hasher
        if not is_own_module(module):
            h.package(module.__name__, "")
            if sys.modules.get(module.__name__) is not module and getattr(module, "__spec__", None) is None:
                # Created by hand: its attributes are all that it has.
                state = {name: item for name, item in vars(module).items() if not name.startswith("__")}
                h.package_state(state, path)
            return
        file = getattr(module, "__file__", None)
        if file is None and hasattr(module, "__path__"):
            h.tokens("namespace")
            return
        try:
            with open(file or "", "rb") as f:
                source = f.read()
            if not str(file).endswith((".py", ".pyw")) and b"\0" in source:
                h.tokens("binary module", source)
                return
            tree = ast.parse(source)
        except (OSError, SyntaxError) as e:
            h.refuse(path, f"the source of module {module.__name__} cannot be read ({e})", module)
            return
        drop_docstrings(tree)
        h.tokens("module", ast.dump(tree))
        self._imports_of(module, tree, path)

    def _imports_of(self, module: types.ModuleType, tree: ast.Module, path: str) -> None:
        """Adds the user's own modules that a module imports."""
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    self._whole(alias.name, path)
            elif isinstance(node, ast.ImportFrom):
                base = "." * node.level + (node.module or "")
                try:
                    base = importlib.util.resolve_name(base, module.__package__)
                except ImportError:
                    continue
                self._whole(base, path)
                found = sys.modules.get(base)
                for alias in node.names if found is not None and is_own_module(found) else ():
                    # A module of a package is added by its name; everything else is in the package's source.
                    if isinstance(getattr(found, alias.name, None), types.ModuleType) or not hasattr(found, alias.name):
                        if alias.name != "*":
                            self._whole(f"{base}.{alias.name}", path)

    def _import(self, one: Import, scope: Mapping[str, Any], path: str) -> None:
        """Adds an import that code executes when it runs."""
        h, name = self._hasher, one.name
        if one.level:
            package = scope.get("__package__") or str(scope.get("__name__", "")).rpartition(".")[0]
            try:
                name = importlib.util.resolve_name("." * one.level + name, package)
            except ImportError:
                h.tokens("not importable", "." * one.level + name)
                return
        h.draws |= name == "caju"  # it may use `rng`, which only running it would tell
        module = self._imported(name, path)
        if module is None or not is_own_module(module):
            return
        path = f"{path} -> import {name}"
        if not one.taken or "*" in one.taken:
            h.add(module, path)
        for taken in one.taken:
            if hasattr(module, taken):
                h.add(getattr(module, taken), f"{path}.{taken}")
            elif taken != "*":
                self._whole(f"{name}.{taken}", path)

    def _imported(self, name: str, path: str) -> types.ModuleType | None:
        """The module of this name; an installed one is added by name and version."""
        module = sys.modules.get(name)
        if module is None:
            try:
                module = importlib.import_module(name)
            except Exception:  # it may be optional, or for another platform
                self._hasher.tokens("not importable", name)
                return None
        if not is_own_module(module):
            self._hasher.add(module, path)
        return module

    def _whole(self, name: str, path: str) -> None:
        module = self._imported(name, path)
        if module is not None and is_own_module(module):
            self._hasher.add(module, f"{path} -> import {name}")
