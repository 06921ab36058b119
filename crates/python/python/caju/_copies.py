"""Pickles functions for other processes, and makes copies of them in this one, so that a trial call changes nothing here."""

from __future__ import annotations

import functools
import io
import pickle
import types
from collections.abc import Callable, Mapping
from typing import Any

from ._errors import InvalidPipeline
from ._fingerprint import is_installed_file

# Functions of cloudpickle that create a class, and the index of their argument that is the class's id. With the id they
# would find the original class in this process, and change it.
_CLASS_FACTORIES = {"_make_skeleton_class": 4, "_make_skeleton_enum": 5}


def packed(function: Callable[..., Any]) -> bytes:
    """The function, pickled by cloudpickle, including values that cloudpickle refuses or refers to by a module that workers
    do not have.
    """
    import cloudpickle

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, value: Any) -> Any:
            return _reduced(value) or super().reducer_override(value)

    out = io.BytesIO()
    Pickler(out).dump(function)
    return out.getvalue()


def _reduced(value: Any) -> Any:
    """How to recreate a wrapper that `functools` made of a function of the user; None for other values."""
    function = getattr(value, "__wrapped__", None) if type(value) in _WRAPPERS else None
    if not _own(function):
        return None
    if isinstance(value, functools._lru_cache_wrapper):
        return _cached, (function, value.cache_parameters())
    if value.__code__ is _DISPATCH:
        return _dispatching, (function, dict(value.registry))
    return None


_WRAPPERS = (functools._lru_cache_wrapper, types.FunctionType)
_DISPATCH = getattr(functools.singledispatch(len), "__code__")


def _own(function: Any) -> bool:
    return isinstance(function, types.FunctionType) and not is_installed_file(function.__code__.co_filename)


def _cached(function: Callable[..., Any], parameters: Mapping[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)


def _dispatching(function: Callable[..., Any], registry: Mapping[type, Callable[..., Any]]) -> Any:
    out = functools.singledispatch(function)
    for kind, one in registry.items():
        if kind is not object:
            out.register(kind, one)
    return out


def copy_of(payload: bytes, name: str) -> Callable[..., Any]:
    """The pickled function as another process would get it: with globals, objects and classes of its own."""
    try:
        function: Callable[..., Any] = _Unpickler(io.BytesIO(payload)).load()
    except Exception as e:
        raise InvalidPipeline(
            f"{name} was pickled, but cannot be unpickled, as workers have to: {type(e).__name__}: {e}"
        ) from e
    return function


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)
        if name in _CLASS_FACTORIES and module.split(".")[0] == "cloudpickle":
            return _without_id(found, _CLASS_FACTORIES[name])
        return found


def _without_id(factory: Callable[..., Any], index: int) -> Callable[..., Any]:
    """The class factory without the argument that is the class's id."""

    def create(*arguments: Any) -> Any:
        return factory(*arguments[:index], None, *arguments[index + 1 :])

    return create
