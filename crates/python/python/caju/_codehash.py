"""Names Python functions by what they do: a digest of their code by value.

What enters: bytecode, constants, defaults, closure values, the globals that the code reads, and all that again for
functions and classes of the user's own modules, transitively. Installed packages enter by name and version, Python by
the version of its bytecode. What does not enter: names of files, modules and local variables, line numbers, comments;
so that moving a function, or running a notebook's cell again, keeps its name.

Where a value cannot be told by its content (an open file, a socket, a lock, an object of a C library without state),
there is an error that names the way to it and asks for `version="..."`.
"""

from __future__ import annotations

import ast
import builtins
import dis
import enum
import functools
import hashlib
import importlib
import importlib.util
import os
import re
import sys
import sysconfig
import types
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

from ._errors import InvalidPipeline

__all__ = ["code_fingerprint"]

# Attributes of classes that say where they stand in a file, or that Python makes.
_SKIPPED = {
    "__module__", "__dict__", "__weakref__", "__firstlineno__", "__static_attributes__", "__qualname__", "__doc__",
    "__annotations__", "__annotate__", "__annotate_func__", "__annotations_cache__", "__orig_bases__",
    "__parameters__", "__abstractmethods__", "_abc_impl", "__match_args__", "__dataclass_fields__",
}  # fmt: skip


def code_fingerprint(function: Any, *, version: str | None = None) -> str:
    """32 hexadecimal digits that change when what the function does changes.

    With a `version` they stand for that text alone: whoever gives one says when the function has changed.
    """
    if version is not None:
        return hashlib.sha256(b"version\0" + version.encode()).hexdigest()[:32]
    if not callable(function):
        raise InvalidPipeline(f"{function!r} is not a function")
    magic = importlib.util.MAGIC_NUMBER.hex()
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return _Hasher().digest(("python", magic, function), name)[:32]


def draws(function: Any) -> bool:
    """Whether the function, or what it calls of the user's own, draws from `caju.rng()`."""
    walker = _Hasher()
    try:
        walker.digest(function, "")
    except InvalidPipeline:
        return True  # it was given a version; keys that nobody draws from do no harm
    return walker.draws


class _Hasher:
    """Walks a value and all it needs, each thing once."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._seen: dict[int, int] = {}
        self.draws = False  # from caju.rng()
        self._keep: list[Any] = []  # an id is one as long as its object lives

    def digest(self, value: Any, path: str) -> str:
        self._add(value, path)
        return self._hash.hexdigest()

    # ---- the stream of what is hashed --------------------------------------------------------------------------

    def _word(self, *words: str | bytes) -> None:
        for word in words:
            data = word.encode("utf-8", "surrogatepass") if isinstance(word, str) else word
            self._hash.update(len(data).to_bytes(8, "little"))
            self._hash.update(data)

    def _add(self, value: Any, path: str) -> None:
        kind = type(value)
        if value is None or kind in (bool, int, float, complex):
            # repr of a float is exact, and tells -0.0 from 0.0.
            self._word(kind.__name__, repr(value))
        elif kind is str or kind is bytes or kind is bytearray:
            self._word(kind.__name__, value)
        elif value is Ellipsis or value is NotImplemented:
            self._word("constant", repr(value))
        elif kind in (tuple, frozenset):
            # Equal ones may be one object or two, by the compiler's mood: always in full.
            self._compound(value, path)
        elif id(value) in self._seen:
            # A function that calls itself, a list in itself.
            self._word("again", str(self._seen[id(value)]))
        else:
            self._seen[id(value)] = len(self._seen)
            self._keep.append(value)
            self._compound(value, path)

    def _compound(self, value: Any, path: str) -> None:
        kind = type(value)
        if kind in (tuple, list):
            self._word(kind.__name__, str(len(value)))
            self._each(value, path)
        elif kind in (set, frozenset):
            self._word(kind.__name__, *sorted(_Hasher().digest(v, path) for v in value))
        elif isinstance(value, (dict, types.MappingProxyType)) and kind.__module__ in ("builtins", "collections"):
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
        elif isinstance(value, property):
            self._word("property")
            self._each((value.fget, value.fset, value.fdel), path)
        elif isinstance(value, functools.partial):
            self._word("partial")
            self._add(value.func, f"{path}.func")
            self._add(value.args, f"{path}.args")
            self._add(value.keywords, f"{path}.keywords")
        elif isinstance(value, types.ModuleType):
            self._module(value, path)
        elif isinstance(value, type):
            self._class(value, path)
        elif isinstance(value, enum.Enum):
            self._word("enum", value.name)
            self._add(kind, path)
        elif isinstance(value, (range, slice)):
            self._word(kind.__name__)
            self._each((value.start, value.stop, value.step), path)
        elif isinstance(value, re.Pattern):
            self._word("pattern")
            self._each((value.pattern, value.flags), path)
        elif isinstance(value, (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)):
            self._builtin(value, path)
        elif isinstance(value, os.PathLike):
            self._word("path", os.fspath(value))
        elif hasattr(value, "__wrapped__") and callable(value):
            self._word("wrapper", kind.__qualname__)
            self._add(value.__wrapped__, path)
        else:
            self._object(value, path)

    def _each(self, values: Iterable[Any], path: str) -> None:
        for i, value in enumerate(values):
            self._add(value, f"{path}[{i}]")

    def _mapping(self, value: Mapping[Any, Any], path: str) -> None:
        self._word("dict", str(len(value)))
        for key, item in value.items():
            self._add(key, path)
            self._add(item, f"{path}[{key!r}]")

    # ---- code --------------------------------------------------------------------------------------------------

    def _function(self, f: types.FunctionType, path: str) -> None:
        if _installed_file(f.__code__.co_filename):
            self.draws |= (f.__module__, f.__qualname__) == ("caju._functions", "rng")
            self._installed(f.__module__, f.__qualname__)
            return
        self._word("function")
        self._add(f.__defaults__, f"{path}.__defaults__")
        self._add(f.__kwdefaults__, f"{path}.__kwdefaults__")
        cells: dict[str, Any] = {}
        for name, cell in zip(f.__code__.co_freevars, f.__closure__ or ()):
            try:
                cells[name] = cell.cell_contents
            except ValueError:
                self._word("empty cell")  # it is filled later, or never
        self._code(f.__code__, f.__globals__, path, cells)
        for name, value in cells.items():
            # Reached through attributes alone, a module of the user's own enters by these.
            if not isinstance(value, types.ModuleType):
                self._add(value, f"{path}.{name}")

    def _code(
        self, code: types.CodeType, scope: Mapping[str, Any], path: str, cells: Mapping[str, Any] | None = None
    ) -> None:
        arguments = code.co_argcount + code.co_kwonlyargcount
        self._word("code", code.co_code, getattr(code, "co_exceptiontable", b""), str(code.co_flags))
        self._word(str(code.co_argcount), str(code.co_posonlyargcount), str(code.co_kwonlyargcount))
        self._word("names", *code.co_names)
        self._word("arguments", *code.co_varnames[:arguments])
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self._code(constant, scope, path, cells)
            else:
                self._add(constant, path)
        for names in _globals_of(code, cells or {}):
            self._global(names, scope, cells or {}, path)
        for name in _imports_of(code):
            self._imported(name, path)

    def _global(self, names: list[str], scope: Mapping[str, Any], cells: Mapping[str, Any], path: str) -> None:
        """A global of the code with the attributes that are taken of it: `helpers.scale.factor`."""
        first, *rest = names
        if first in cells:
            if not isinstance(cells[first], types.ModuleType):
                return  # a closure's value, which enters as such
            value = cells[first]
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
        while rest and isinstance(value, types.ModuleType) and _own_module(value):
            if not hasattr(value, rest[0]):
                break
            value, path = getattr(value, rest[0]), f"{path}.{rest[0]}"
            rest = rest[1:]
        self._add(value, path)

    def _imported(self, name: str, path: str) -> None:
        self.draws |= name == "caju"  # what of it, only running it tells
        module = sys.modules.get(name)
        if module is None:
            try:
                module = importlib.import_module(name)
            except Exception:  # it may be optional, or for another platform
                self._word("not importable", name)
                return
        self._add(module, f"{path} -> import {name}")

    # ---- modules and classes -----------------------------------------------------------------------------------

    def _module(self, module: types.ModuleType, path: str) -> None:
        if not _own_module(module):
            self._installed(module.__name__, "")
            return
        # Used as a whole: all of its source, without comments and lines.
        try:
            with open(module.__file__ or "", "rb") as f:
                tree = ast.parse(f.read())
        except (OSError, SyntaxError) as e:
            raise _cannot(path, f"the source of module {module.__name__} cannot be read ({e})") from None
        self._word("module", ast.dump(tree))
        # What it imports of the user's own enters too.
        for node in ast.walk(tree):
            targets: list[str] = []
            if isinstance(node, ast.Import):
                targets = [a.name for a in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                base = "." * node.level + node.module
                try:
                    targets = [importlib.util.resolve_name(base, module.__package__)]
                except ImportError:
                    continue
            for target in targets:
                self._imported(target, path)

    def _installed(self, module: str | None, name: str) -> None:
        top = (module or "builtins").split(".")[0]
        self._word("installed", module or "builtins", name, _version(top))

    def _class(self, cls: type, path: str) -> None:
        module = sys.modules.get(cls.__module__)
        if cls.__module__ != "__main__" and (module is None or not _own_module(module)):
            self._installed(cls.__module__, cls.__qualname__)
            return
        self._word("class")
        self._add(cls.__bases__, f"{path}.__bases__")
        for name, value in sorted(vars(cls).items()):
            if name in _SKIPPED or isinstance(value, (types.MemberDescriptorType, types.GetSetDescriptorType)):
                continue
            self._word(name)
            if isinstance(value, enum.Enum):
                self._add(value.value, f"{path}.{name}")
            else:
                self._add(value, f"{path}.{name}")

    def _builtin(self, value: Any, path: str) -> None:
        owner = getattr(value, "__self__", None)
        self._installed(getattr(value, "__module__", None), value.__qualname__)
        if owner is not None and not isinstance(owner, (types.ModuleType, type)):
            self._add(owner, f"{path}.__self__")

    # ---- objects -----------------------------------------------------------------------------------------------

    def _object(self, value: Any, path: str) -> None:
        kind = type(value)
        array = _array_bytes(value)
        if array is not None:
            self._word("array", *array)
            return
        if kind.__module__ == "numpy" and kind.__qualname__ == "ufunc":
            self._installed("numpy", value.__name__)
            return
        if isinstance(value, (weakref.ref, types.GeneratorType, types.CoroutineType, types.FrameType)):
            raise _cannot(path, f"a {kind.__qualname__} has no value of its own")
        try:
            reduced = value.__reduce_ex__(4)
        except Exception as e:
            raise _cannot(path, f"a {kind.__module__}.{kind.__qualname__} cannot be told by its content ({e})") from None
        self._word("object")
        self._add(kind, f"{path}.__class__")
        if isinstance(reduced, str):
            self._word(reduced)
            return
        make, arguments, *state = reduced
        # A plain object is made by its class, which is in already.
        if getattr(make, "__module__", None) != "copyreg":
            self._add(make, f"{path}.__reduce__")
        self._add(tuple(a for a in arguments if a is not kind), path)
        if state and isinstance(state[0], dict):
            for name, item in state[0].items():
                self._word(str(name))
                self._add(item, f"{path}.{name}")
        elif state:
            self._add(state[0], path)
        for items in state[1:3]:
            if items is not None:
                self._add(list(items), path)


def _array_bytes(value: Any) -> tuple[str | bytes, ...] | None:
    """Type, shape and bytes of an array of NumPy or a tensor of torch, without importing either."""
    kind = type(value)
    top = kind.__module__.split(".")[0]
    if top == "torch" and hasattr(value, "detach"):
        value = value.detach().cpu().contiguous()
        raw = value.view(-1).view(getattr(sys.modules["torch"], "uint8")).numpy() if value.numel() else value.numpy()
        return ("torch", str(value.dtype), str(tuple(value.shape)), raw.tobytes())
    if top == "numpy" and hasattr(value, "dtype") and hasattr(value, "tobytes") and not value.dtype.hasobject:
        return ("numpy", value.dtype.str, str(value.shape), value.tobytes())
    return None


def _cannot(path: str, why: str) -> InvalidPipeline:
    return InvalidPipeline(
        f'the function cannot be named by its code: at {path}, {why}; make it inside the function, or give version="..." '
        "and change it whenever the function changes"
    )


# ---- which names code reads ------------------------------------------------------------------------------------


_GLOBALS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
_CELLS = ("LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF")


def _globals_of(code: types.CodeType, cells: Mapping[str, Any]) -> list[list[str]]:
    """The globals and closed-over names that code reads, each with the attributes taken of it, without repetition."""
    out: list[list[str]] = []
    chain: list[str] | None = None
    for op in dis.get_instructions(code):
        if op.opname in _GLOBALS or (op.opname in _CELLS and op.argval in cells):
            chain = [op.argval]
            out.append(chain)
        elif op.opname in ("LOAD_ATTR", "LOAD_METHOD") and chain is not None:
            chain.append(op.argval)
        elif op.opname not in ("CACHE", "EXTENDED_ARG", "PRECALL", "PUSH_NULL"):
            chain = None
    return [list(c) for c in dict.fromkeys(tuple(c) for c in out)]


def _imports_of(code: types.CodeType) -> list[str]:
    """The modules that code itself imports; relative ones are met as globals of the package, not here."""
    names = [op.argval for op in dis.get_instructions(code) if op.opname == "IMPORT_NAME"]
    return [n for n in dict.fromkeys(names) if n]


# ---- what is the user's own ------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1)
def _installed_roots() -> tuple[str, ...]:
    paths = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    import site

    # And this package itself, wherever it was put.
    paths |= {*site.getsitepackages(), site.getusersitepackages(), os.path.dirname(__file__)}
    return tuple(os.path.realpath(p) + os.sep for p in paths if p)


@functools.lru_cache(maxsize=4096)
def _installed_file(file: str) -> bool:
    if file.startswith("<frozen"):
        return True
    if file.startswith("<"):
        return False  # a notebook's cell, exec
    real = os.path.realpath(file)
    return real.startswith(_installed_roots()) or f"{os.sep}site-packages{os.sep}" in real


def _own_module(module: types.ModuleType) -> bool:
    if module.__name__ == "__main__":
        return True
    if module.__name__ in sys.builtin_module_names:
        return False
    file = getattr(module, "__file__", None)
    # A namespace package has no file; what is taken of it has.
    return file is None and hasattr(module, "__path__") or file is not None and not _installed_file(file)


@functools.lru_cache(maxsize=1)
def _distributions() -> Mapping[str, list[str]]:
    import importlib.metadata as metadata

    return metadata.packages_distributions()


@functools.lru_cache(maxsize=1024)
def _version(top: str) -> str:
    """The version of the distribution that a top-level module comes from; Python's for its own."""
    import importlib.metadata as metadata

    if top in sys.builtin_module_names or top in sys.stdlib_module_names:
        return "{}.{}".format(*sys.version_info[:2])
    try:
        return metadata.version(top)
    except metadata.PackageNotFoundError:
        pass
    for name in _distributions().get(top, ()):
        return f"{name} {metadata.version(name)}"
    return str(getattr(sys.modules.get(top), "__version__", ""))
