"""Traverses a value and everything that it needs, and feeds it to the digest."""

from __future__ import annotations

import copyreg
import enum
import functools
import importlib.util
import pathlib
import re
import sys
import types
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from .._errors import InvalidPipeline
from . import packages
from .code import CodeHasher
from .digest import GraphDigest
from .packages import is_importable, is_own_class
from .randomness import random_generator_class
from .values import (
    COPIED_BY_WRAPS,
    WITHOUT_CONTENT,
    array_content,
    is_enum_machinery,
    is_generated,
    is_instance_of,
    without_fingerprint,
)

__all__ = ["Hasher"]

# Types of the standard library that a few attributes describe: the token of the type, then the attributes.
_DESCRIBED: list[tuple[Any, ...]] = [
    (types.MethodType, "method", "__func__", "__self__"),
    (property, "property", "fget", "fset", "fdel"),
    (functools.cached_property, "cached_property", "func"),
    (functools.partial, "partial", "func", "args", "keywords"),
    (types.GenericAlias, "generic", "__origin__", "__args__"),
    (range, "range", "start", "stop", "step"),
    (slice, "slice", "start", "stop", "step"),
    (re.Pattern, "pattern", "pattern", "flags"),
]

class Hasher:
    """Computes one fingerprint. `path` arguments say where a value was found, for errors."""

    def __init__(self) -> None:
        self._digest = GraphDigest()
        self._code = CodeHasher(self)
        self.draws = False
        """Whether the code draws from `caju.rng()`."""
        self.foreign_draws: list[str] = []
        """Other sources of random numbers, and where they are used."""
        # Within the state of an installed package, values without content are the package's own business.
        self._tolerant = False

    def fingerprint(self, function: Any) -> str:
        """The digest of a function, in hexadecimal digits.

        Raises `InvalidPipeline` if it is not callable, or needs a value that has no content of its own.
        """
        if not callable(function):
            raise InvalidPipeline(f"{function!r} is not a function")
        magic = importlib.util.MAGIC_NUMBER.hex()
        path = getattr(function, "__qualname__", type(function).__qualname__)
        try:
            return self._digest.root(lambda: self.add(("python", magic, function), path))
        except RecursionError:
            raise without_fingerprint(path, "it leads to values that are nested too deeply") from None

    # ---- what `CodeHasher` uses too ----------------------------------------------------------------------------

    def tokens(self, *tokens: str | bytes) -> None:
        """Adds text to the value that is being added."""
        self._digest.tokens(tokens)

    def add(self, value: Any, path: str) -> None:
        """Adds a value as a part of the one that is being added."""
        kind = type(value)
        if kind is int:
            self.tokens("int", format(value, "x"))
        elif value is None or kind in (bool, float, complex):
            # The repr of a float is exact, and differs between -0.0 and 0.0.
            self.tokens(kind.__name__, repr(value))
        elif kind is str or kind is bytes or kind is bytearray:
            self.tokens(kind.__name__, value)
        elif value is Ellipsis or value is NotImplemented:
            self.tokens("constant", repr(value))
        else:
            self._digest.node(value, lambda: self._compound(value, path))

    def each(self, values: Iterable[Any], path: str) -> None:
        """Adds values in their order."""
        for i, value in enumerate(values):
            self.add(value, f"{path}[{i}]")

    def unordered(self, values: Iterable[Any], path: str) -> None:
        """Adds values whose order does not matter."""
        self._digest.bag([functools.partial(self.add, value, path) for value in values])

    def attributes(self, state: Mapping[str, Any], path: str) -> None:
        """Adds attributes in the order of their names."""
        hidden = COPIED_BY_WRAPS if "__wrapped__" in state else ()
        for name in sorted(state, key=str):
            if name not in hidden:
                self.tokens(str(name))
                self.add(state[name], f"{path}.{name}")

    def package(self, module: str | None, name: str) -> None:
        """Adds something of an installed package by its name and the package's version."""
        top = (module or "builtins").split(".")[0]
        self.tokens("installed", module or "builtins", name, packages.version_of(top))

    def package_state(self, state: Mapping[str, Any], path: str) -> None:
        """Adds what an installed package keeps for its user, mixed with values of its own."""
        with self.tolerance(True):
            self.attributes({name: item for name, item in state.items() if name not in COPIED_BY_WRAPS}, path)

    @contextmanager
    def tolerance(self, tolerant: bool) -> Iterator[None]:
        """Whether values without content are skipped, in place of an error."""
        before, self._tolerant = self._tolerant, tolerant
        try:
            yield
        finally:
            self._tolerant = before

    def refuse(self, path: str, why: str, value: Any) -> None:
        """Handles a value without content: an error, or the attributes that it has within a package's state."""
        if not self._tolerant:
            raise without_fingerprint(path, why)
        self.tokens("without content", type(value).__qualname__)
        if not isinstance(value, WITHOUT_CONTENT):
            self.package_state(getattr(value, "__dict__", {}), path)

    # ---- values ------------------------------------------------------------------------------------------------

    def _compound(self, value: Any, path: str) -> None:
        kind = type(value)
        described = next((names for one, *names in _DESCRIBED if kind is one), None)
        if kind in (tuple, list):
            self.tokens(kind.__name__, str(len(value)))
            self.each(value, path)
        elif isinstance(value, (set, frozenset)):
            self._set(value, path)
        elif kind in (dict, OrderedDict, defaultdict, types.MappingProxyType):
            self._mapping(value, path)
        elif described is not None:
            self.tokens(described[0])
            for name in described[1:]:
                self.add(getattr(value, name), f"{path}.{name}")
        elif isinstance(value, (staticmethod, classmethod)):
            self.tokens(kind.__name__)
            self.add(value.__func__, path)
        elif isinstance(value, types.FunctionType):
            self._code.function(value, path)
        elif isinstance(value, types.CodeType):
            self._code.code(value, {}, path)
        elif isinstance(value, types.ModuleType):
            self._code.module(value, path)
        elif isinstance(value, type):
            self._class(value, path)
        else:
            self._instance(value, path)

    def _instance(self, value: Any, path: str) -> None:
        kind = type(value)
        if isinstance(value, enum.Enum):
            self.tokens("enum", str(value.name))
            self.add(value.value, path)
            self.add(kind, path)
        elif isinstance(value, (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)):
            self._builtin(value, path)
        elif isinstance(value, pathlib.PurePath):
            self.tokens("path", str(value))
        elif is_instance_of(value, "logging", "Logger"):
            self.tokens("logger")  # rows do not depend on who reads its messages
        elif not is_own_class(kind) and callable(value) and hasattr(value, "__wrapped__"):
            self.tokens("wrapper")
            self.package(kind.__module__, kind.__qualname__)
            self.package_state(vars(value) if hasattr(value, "__dict__") else {"": value.__wrapped__}, path)
        else:
            self._object(value, path)

    def _set(self, value: Any, path: str) -> None:
        kind = type(value)
        base = set if isinstance(value, set) else frozenset
        self.tokens(base.__name__, str(len(value)))
        self.unordered(base.__iter__(value), path)
        if kind is not base:
            self.add(kind, f"{path}.__class__")
            self.attributes(getattr(value, "__dict__", {}), path)

    def _mapping(self, value: Mapping[Any, Any], path: str) -> None:
        self.tokens("dict", type(value).__name__, str(len(value)))
        if isinstance(value, defaultdict):
            self.add(value.default_factory, f"{path}.default_factory")
        for key, item in value.items():
            self.add(key, path)
            self.add(item, f"{path}[{key!r}]")

    # ---- classes -----------------------------------------------------------------------------------------------

    def _class(self, cls: type, path: str) -> None:
        if is_own_class(cls):
            with self.tolerance(False):
                self._own_class(cls, path)
            return
        self.package(cls.__module__, cls.__qualname__)
        if "<locals>" in cls.__qualname__ and not is_importable(cls.__module__, cls.__qualname__, cls):
            self.package_state({name: item for name, item in vars(cls).items() if not is_generated(name, item)}, path)

    def _own_class(self, cls: type, path: str) -> None:
        self.tokens("class", cls.__name__)
        self.add(type(cls), f"{path}.__class__")
        self.add(cls.__bases__, f"{path}.__bases__")
        members: Mapping[str, Any] = cls.__members__ if issubclass(cls, enum.Enum) else {}
        for name, member in members.items():
            self.tokens("member", name)
            self.add(member.value, f"{path}.{name}")
        for name, value in sorted(vars(cls).items()):
            machinery = name in members or issubclass(cls, enum.Enum) and is_enum_machinery(name, value)
            if not machinery and not is_generated(name, value):
                self.tokens(name)
                self.add(value, f"{path}.{name}")
        fields = vars(cls).get("__dataclass_fields__", {})
        self.package_state({name: (f.type, dict(f.metadata)) for name, f in fields.items()}, path)

    def _builtin(self, value: Any, path: str) -> None:
        owner = getattr(value, "__self__", None)
        self.package(getattr(value, "__module__", None), value.__qualname__)
        if owner is not None and not isinstance(owner, (types.ModuleType, type)):
            self.add(owner, f"{path}.__self__")

    # ---- other objects -----------------------------------------------------------------------------------------

    def _object(self, value: Any, path: str) -> None:
        generator = random_generator_class(value)
        if generator is not None and not self._tolerant:
            self.foreign_draws.append(f"a {generator} (at {path})")
        if is_own_class(type(value)):
            with self.tolerance(False):
                self._reduced(value, path)
        else:
            self._reduced(value, path)

    def _reduced(self, value: Any, path: str) -> None:
        """Adds an object as pickle sees it: what creates it, and its state."""
        kind = type(value)
        array = array_content(value)
        if array is not None:
            self.tokens("array", *array)
            return
        if kind.__module__ == "numpy" and kind.__qualname__ == "ufunc":
            self.package("numpy", value.__name__)
            if getattr(sys.modules["numpy"], value.__name__, None) is not value:
                self.refuse(path, "what numpy.frompyfunc makes hides its function: use numpy.vectorize", value)
            return
        if isinstance(value, WITHOUT_CONTENT):
            self.refuse(path, f"a {kind.__qualname__} has no value of its own", value)
            return
        try:
            by = copyreg.dispatch_table.get(kind)
            reduced = by(value) if by is not None else value.__reduce_ex__(4)
        except Exception as e:
            self.refuse(path, f"the value is a {kind.__module__}.{kind.__qualname__}, which has no content ({e})", value)
            return
        self.tokens("object")
        self.add(kind, f"{path}.__class__")
        if isinstance(value, property):
            self.each((value.fget, value.fset, value.fdel), path)  # its reduced state lacks them
        if isinstance(reduced, str):
            self.tokens(reduced)
            return
        create, arguments, *state = reduced
        # A plain object is created by its class, which has been added.
        if getattr(create, "__module__", None) != "copyreg":
            self.add(create, f"{path}.__reduce__")
        self.add(tuple(a for a in arguments if a is not kind), path)
        if state and isinstance(state[0], dict):
            self.attributes(state[0], path)
        elif state:
            self.add(state[0], path)
        for items in state[1:3]:
            if items is not None:
                self.add(list(items), path)
