"""Names Python functions by what they do: a digest of their code by value.

What enters: bytecode, constants, defaults, closure values, attributes, the globals that the code reads, what it imports,
and all that again for functions, classes and modules of the user's own, transitively. Installed packages enter by name
and version, with what of the user's own hangs on them: the function in a decorator's closure, the registry of a
`singledispatch`. Python enters by the version of its bytecode. What does not enter: names of files, modules, functions
and local variables, line numbers, comments, docstrings; so that moving a function, or running a notebook's cell again,
keeps its name. Values are told by their content: it does not matter whether two lists are one or copies.

Where a value cannot be told by its content (an open file, a socket, a lock, an object of a C library without state),
there is an error that names the way to it and says what to do.
"""

from __future__ import annotations

import ast
import builtins
import copyreg
import enum
import functools
import hashlib
import importlib
import importlib.util
import pathlib
import re
import sys
import types
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from ._bytecode import Import, Text, body_of, cells_of, drop_docstrings
from ._errors import InvalidPipeline
from ._installed import found_at, installed_file, own_class, own_module, version_of
from ._merkle import Digests
from ._randomness import draws_of, kept_generator
from ._values import COPIED, FLEETING, PLACE, array_bytes, cannot, is_a, is_enums_own, is_slot

__all__ = ["code_fingerprint"]

def code_fingerprint(function: Any, *, version: str | None = None) -> str:
    """32 hexadecimal digits that change when what the function does changes.

    With a `version` they stand for that text alone: whoever gives one says when the function has changed.
    """
    if version is not None:
        return hashlib.sha256(b"version\0" + version.encode()).hexdigest()[:32]
    return _Hasher().name(function)


class Examined(NamedTuple):
    """What a function's code says about it."""

    code: str
    """Its fingerprint."""
    draws: bool
    """Whether it, or what it calls of the user's own, draws from `caju.rng()`."""
    foreign_draws: list[str]
    """What else it draws random numbers from, and where in the code."""


def examine(function: Any, version: str | None) -> Examined:
    """The fingerprint, and what the function, and what it calls of the user's own, draws from."""
    walker = _Hasher()
    try:
        named = walker.name(function)
    except InvalidPipeline:
        if version is None:
            raise
        # Keys that nobody draws from do no harm.
        return Examined(code_fingerprint(function, version=version), True, walker.foreign_draws)
    code = named if version is None else code_fingerprint(function, version=version)
    return Examined(code, walker.draws, walker.foreign_draws)


class _Hasher:
    """Walks a value and all it needs, each thing once."""

    def __init__(self) -> None:
        self._out = Digests()
        self.draws = False  # from caju.rng()
        self.foreign_draws: list[str] = []
        # Within what an installed package keeps for the user: what has no content there is the package's own affair.
        self._lenient = False

    def name(self, function: Any) -> str:
        if not callable(function):
            raise InvalidPipeline(f"{function!r} is not a function")
        magic = importlib.util.MAGIC_NUMBER.hex()
        path = getattr(function, "__qualname__", type(function).__qualname__)
        return self._digest(("python", magic, function), path)[:32]

    def _digest(self, value: Any, path: str) -> str:
        try:
            return self._out.root(lambda: self._add(value, path))
        except RecursionError:
            raise cannot(path, "it leads to values that are nested too deeply") from None

    # ---- the stream of what is hashed --------------------------------------------------------------------------

    def _word(self, *words: str | bytes) -> None:
        self._out.words(words)

    def _add(self, value: Any, path: str) -> None:
        kind = type(value)
        if kind is int:
            self._word("int", format(value, "x"))
        elif value is None or kind in (bool, float, complex):
            # repr of a float is exact, and tells -0.0 from 0.0.
            self._word(kind.__name__, repr(value))
        elif kind is str or kind is bytes or kind is bytearray:
            self._word(kind.__name__, value)
        elif value is Ellipsis or value is NotImplemented:
            self._word("constant", repr(value))
        else:
            self._out.node(value, lambda: self._compound(value, path))

    def _compound(self, value: Any, path: str) -> None:
        kind = type(value)
        if kind in (tuple, list):
            self._word(kind.__name__, str(len(value)))
            self._each(value, path)
        elif isinstance(value, (set, frozenset)):
            self._set(value, path)
        elif kind in (dict, OrderedDict, defaultdict, types.MappingProxyType):
            self._mapping(value, path)
        elif isinstance(value, types.FunctionType):
            self._function(value, path)
        elif isinstance(value, types.CodeType):
            self._code(value, {}, path)
        elif isinstance(value, types.MethodType):
            self._word("method")
            self._add(value.__func__, path)
            self._add(value.__self__, f"{path}.__self__")
        elif isinstance(value, (staticmethod, classmethod)):
            self._word(kind.__name__)
            self._add(value.__func__, path)
        elif kind in (property, functools.cached_property):
            self._word(kind.__name__)
            names = ("fget", "fset", "fdel") if kind is property else ("func",)
            self._each([getattr(value, name) for name in names], path)
        elif kind is functools.partial:
            self._word("partial")
            self._add(value.func, f"{path}.func")
            self._add(value.args, f"{path}.args")
            self._add(value.keywords, f"{path}.keywords")
        elif kind is types.GenericAlias:
            self._word("generic")
            self._each((value.__origin__, value.__args__), path)
        elif isinstance(value, types.ModuleType):
            self._module(value, path)
        elif isinstance(value, type):
            self._class(value, path)
        elif isinstance(value, enum.Enum):
            self._word("enum", str(value.name))
            self._add(value.value, path)
            self._add(kind, path)
        elif isinstance(value, (range, slice)):
            self._word(kind.__name__)
            self._each((value.start, value.stop, value.step), path)
        elif isinstance(value, re.Pattern):
            self._word("pattern")
            self._each((value.pattern, value.flags), path)
        elif isinstance(value, (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)):
            self._builtin(value, path)
        elif isinstance(value, pathlib.PurePath):
            self._word("path", str(value))
        elif is_a(value, "logging", "Logger"):
            self._word("logger")  # whom it tells is nothing that rows are made of
        elif not own_class(kind) and callable(value) and hasattr(value, "__wrapped__"):
            self._word("wrapper")
            self._installed(kind.__module__, kind.__qualname__)
            self._hanging(vars(value) if hasattr(value, "__dict__") else {"": value.__wrapped__}, path)
        else:
            self._object(value, path)

    def _each(self, values: Iterable[Any], path: str) -> None:
        for i, value in enumerate(values):
            self._add(value, f"{path}[{i}]")

    def _unordered(self, adds: Iterable[Callable[[], None]]) -> None:
        """Things whose order says nothing."""
        self._out.bag(adds)

    def _set(self, value: Any, path: str) -> None:
        kind = type(value)
        base = set if isinstance(value, set) else frozenset
        self._word(base.__name__, str(len(value)))
        self._unordered([functools.partial(self._add, item, path) for item in base.__iter__(value)])
        if kind is not base:
            self._add(kind, f"{path}.__class__")
            self._state(getattr(value, "__dict__", {}), path)

    def _mapping(self, value: Mapping[Any, Any], path: str) -> None:
        self._word("dict", type(value).__name__, str(len(value)))
        if isinstance(value, defaultdict):
            self._add(value.default_factory, f"{path}.default_factory")
        for key, item in value.items():
            self._add(key, path)
            self._add(item, f"{path}[{key!r}]")

    def _state(self, state: Mapping[str, Any], path: str) -> None:
        """Attributes, in the order of their names."""
        hidden = COPIED if "__wrapped__" in state else ()
        for name in sorted(state, key=str):
            if name not in hidden:
                self._word(str(name))
                self._add(state[name], f"{path}.{name}")

    def _hanging(self, state: Mapping[str, Any], path: str) -> None:
        """What an installed package keeps for its user, among its own affairs."""
        before, self._lenient = self._lenient, True
        try:
            self._state({name: item for name, item in state.items() if name not in COPIED}, path)
        finally:
            self._lenient = before

    def _strictly(self, walk: Callable[[], None]) -> None:
        before, self._lenient = self._lenient, False
        try:
            walk()
        finally:
            self._lenient = before

    # ---- code --------------------------------------------------------------------------------------------------

    def _function(self, f: types.FunctionType, path: str) -> None:
        if installed_file(f.__code__.co_filename):
            self._installed_function(f, path)
        else:
            self._strictly(lambda: self._own_function(f, path))

    def _own_function(self, f: types.FunctionType, path: str) -> None:
        self._word("function")
        self._add(f.__defaults__, f"{path}.__defaults__")
        self._add(f.__kwdefaults__, f"{path}.__kwdefaults__")
        cells = cells_of(f)
        for name in f.__code__.co_freevars:
            if name not in cells:
                self._word("empty cell")  # it is filled later, or never
        self._code(f.__code__, f.__globals__, path, cells)
        for name, value in cells.items():
            # Reached through attributes alone, a module of the user's own enters by these.
            if not isinstance(value, types.ModuleType):
                self._add(value, f"{path}.{name}")
        self._state({name: item for name, item in vars(f).items() if name not in COPIED}, path)

    def _installed_function(self, f: types.FunctionType, path: str) -> None:
        # Decorators copy the names of what they wrap: its own are those of its file and its code.
        module = str(f.__globals__.get("__name__", ""))
        name = str(getattr(f.__code__, "co_qualname", f.__code__.co_name))
        self.draws |= (module, name) == ("caju._functions", "rng")
        self._installed(module, name)
        if found_at(f.__module__, f.__qualname__, f):
            return  # the package's own, which its version stands for
        registry = getattr(f, "registry", None)
        if module == "functools" and isinstance(registry, Mapping) and hasattr(f, "dispatch"):
            # Its closure has caches besides.
            self._word("singledispatch")
            self._unordered([functools.partial(self._add, item, f"{path}.registry") for item in registry.items()])
            return
        kept = {f"default {i}": item for i, item in enumerate(f.__defaults__ or ())}
        kept |= {f"keyword {name}": item for name, item in (f.__kwdefaults__ or {}).items()}
        kept |= {f"cell {name}": item for name, item in cells_of(f).items()}
        self._hanging(kept | vars(f), path)

    def _code(
        self, code: types.CodeType, scope: Mapping[str, Any], path: str, cells: Mapping[str, Any] | None = None
    ) -> None:
        cells = cells or {}
        self.foreign_draws += [f"{name} (at {path})" for name in draws_of(code, scope, cells)]
        body = body_of(code, cells)
        arguments = code.co_argcount + code.co_kwonlyargcount
        self._word("code", str(body.flags), getattr(code, "co_exceptiontable", b""))
        self._word(str(code.co_argcount), str(code.co_posonlyargcount), str(code.co_kwonlyargcount))
        self._word("arguments", *code.co_varnames[:arguments])
        for name, argument in body.steps:
            if isinstance(argument, Text):
                self._word(name, str(argument))
                continue
            self._word(name)
            if isinstance(argument, types.CodeType):
                self._code(argument, scope, path, cells)
            else:
                self._add(argument, path)
        for names in body.reads:
            self._global(names, scope, cells, path)
        for one in body.imports:
            self._import(one, scope, path)

    def _global(self, names: tuple[str, ...], scope: Mapping[str, Any], cells: Mapping[str, Any], path: str) -> None:
        """A global of the code with the attributes that are taken of it: `helpers.scale.factor`."""
        first, *rest = names
        if first in cells:
            if not isinstance(cells[first], types.ModuleType):
                return  # a closure's value, which enters as such
            value = cells[first]
        elif first in PLACE:
            self._word("its own place", first)
            return
        elif first in scope:
            value = scope[first]
        elif hasattr(builtins, first):
            self._word("builtin", first)
            return
        else:
            self._word("missing", first)
            return
        path = f"{path} -> {first}"
        if value is sys.modules.get("caju") and rest[:1] == ["rng"]:
            self.draws = True
        while rest and isinstance(value, types.ModuleType) and own_module(value):
            if not hasattr(value, rest[0]):
                break
            value, path = getattr(value, rest[0]), f"{path}.{rest[0]}"
            rest = rest[1:]
        self._add(value, path)

    # ---- modules -----------------------------------------------------------------------------------------------

    def _import(self, one: Import, scope: Mapping[str, Any], path: str) -> None:
        """What code imports when it runs."""
        name = one.name
        if one.level:
            package = scope.get("__package__") or str(scope.get("__name__", "")).rpartition(".")[0]
            try:
                name = importlib.util.resolve_name("." * one.level + name, package)
            except ImportError:
                self._word("not importable", "." * one.level + name)
                return
        self.draws |= name == "caju"  # what of it, only running it tells
        module = self._imported(name, path)
        if module is None or not own_module(module):
            return
        path = f"{path} -> import {name}"
        if not one.taken or "*" in one.taken:
            self._add(module, path)
        for taken in one.taken:
            if hasattr(module, taken):
                self._add(getattr(module, taken), f"{path}.{taken}")
            elif taken != "*":
                self._whole(f"{name}.{taken}", path)

    def _imported(self, name: str, path: str) -> types.ModuleType | None:
        """A module by its name; of one that is not the user's own, name and version enter."""
        module = sys.modules.get(name)
        if module is None:
            try:
                module = importlib.import_module(name)
            except Exception:  # it may be optional, or for another platform
                self._word("not importable", name)
                return None
        if not own_module(module):
            self._add(module, path)
        return module

    def _whole(self, name: str, path: str) -> None:
        module = self._imported(name, path)
        if module is not None and own_module(module):
            self._add(module, f"{path} -> import {name}")

    def _module(self, module: types.ModuleType, path: str) -> None:
        if not own_module(module):
            self._installed(module.__name__, "")
            if sys.modules.get(module.__name__) is not module and getattr(module, "__spec__", None) is None:
                # Made by hand: what is in it is all that there is.
                self._hanging({name: item for name, item in vars(module).items() if not name.startswith("__")}, path)
            return
        file = getattr(module, "__file__", None)
        if file is None and hasattr(module, "__path__"):
            self._word("namespace")
            return
        # Used as a whole: all of its source, without comments, docstrings and lines.
        try:
            with open(file or "", "rb") as f:
                source = f.read()
            if not str(file).endswith((".py", ".pyw")) and b"\0" in source:
                self._word("binary module", source)
                return
            tree = ast.parse(source)
        except (OSError, SyntaxError) as e:
            self._refuse(path, f"the source of module {module.__name__} cannot be read ({e})", module)
            return
        drop_docstrings(tree)
        self._word("module", ast.dump(tree))
        # What it imports of the user's own enters too.
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
                for alias in node.names if found is not None and own_module(found) else ():
                    # Modules of a package are imported by its name; all else is in its source.
                    if isinstance(getattr(found, alias.name, None), types.ModuleType) or not hasattr(found, alias.name):
                        if alias.name != "*":
                            self._whole(f"{base}.{alias.name}", path)

    def _installed(self, module: str | None, name: str) -> None:
        top = (module or "builtins").split(".")[0]
        self._word("installed", module or "builtins", name, version_of(top))

    # ---- classes -----------------------------------------------------------------------------------------------

    def _class(self, cls: type, path: str) -> None:
        if own_class(cls):
            self._strictly(lambda: self._own_class(cls, path))
            return
        self._installed(cls.__module__, cls.__qualname__)
        if "<locals>" in cls.__qualname__ and not found_at(cls.__module__, cls.__qualname__, cls):
            self._hanging({name: item for name, item in vars(cls).items() if not is_slot(name, item)}, path)

    def _own_class(self, cls: type, path: str) -> None:
        self._word("class", cls.__name__)
        self._add(type(cls), f"{path}.__class__")
        self._add(cls.__bases__, f"{path}.__bases__")
        members: Mapping[str, Any] = cls.__members__ if issubclass(cls, enum.Enum) else {}
        for name, member in members.items():
            self._word("member", name)
            self._add(member.value, f"{path}.{name}")
        for name, value in sorted(vars(cls).items()):
            made = name in members or issubclass(cls, enum.Enum) and is_enums_own(name, value)
            if not made and not is_slot(name, value):
                self._word(name)
                self._add(value, f"{path}.{name}")
        fields = vars(cls).get("__dataclass_fields__", {})
        self._hanging({name: (f.type, dict(f.metadata)) for name, f in fields.items()}, path)

    def _builtin(self, value: Any, path: str) -> None:
        owner = getattr(value, "__self__", None)
        self._installed(getattr(value, "__module__", None), value.__qualname__)
        if owner is not None and not isinstance(owner, (types.ModuleType, type)):
            self._add(owner, f"{path}.__self__")

    # ---- objects -----------------------------------------------------------------------------------------------

    def _object(self, value: Any, path: str) -> None:
        kept = kept_generator(value)
        if kept is not None and not self._lenient:
            self.foreign_draws.append(f"a {kept} (at {path})")
        if own_class(type(value)):
            self._strictly(lambda: self._reduced(value, path))
        else:
            self._reduced(value, path)

    def _reduced(self, value: Any, path: str) -> None:
        kind = type(value)
        array = array_bytes(value)
        if array is not None:
            self._word("array", *array)
            return
        if kind.__module__ == "numpy" and kind.__qualname__ == "ufunc":
            self._installed("numpy", value.__name__)
            if getattr(sys.modules["numpy"], value.__name__, None) is not value:
                self._refuse(path, "what numpy.frompyfunc makes hides its function: use numpy.vectorize", value)
            return
        if isinstance(value, FLEETING):
            self._refuse(path, f"a {kind.__qualname__} has no value of its own", value)
            return
        try:
            by = copyreg.dispatch_table.get(kind)
            reduced = by(value) if by is not None else value.__reduce_ex__(4)
        except Exception as e:
            why = f"a {kind.__module__}.{kind.__qualname__} cannot be told by its content ({e})"
            self._refuse(path, why, value)
            return
        self._word("object")
        self._add(kind, f"{path}.__class__")
        if isinstance(value, property):
            self._each((value.fget, value.fset, value.fdel), path)  # which its state leaves out
        if isinstance(reduced, str):
            self._word(reduced)
            return
        make, arguments, *state = reduced
        # A plain object is made by its class, which is in already.
        if getattr(make, "__module__", None) != "copyreg":
            self._add(make, f"{path}.__reduce__")
        self._add(tuple(a for a in arguments if a is not kind), path)
        if state and isinstance(state[0], dict):
            self._state(state[0], path)
        elif state:
            self._add(state[0], path)
        for items in state[1:3]:
            if items is not None:
                self._add(list(items), path)

    def _refuse(self, path: str, why: str, value: Any) -> None:
        if not self._lenient:
            raise cannot(path, why)
        self._word("without content", type(value).__qualname__)
        if not isinstance(value, FLEETING):
            self._hanging(getattr(value, "__dict__", {}), path)
