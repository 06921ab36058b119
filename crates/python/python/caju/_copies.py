"""Functions packed for other processes, and copies of them in this one: what a trial changes there is nobody's."""

from __future__ import annotations

import functools
import io
import pickle
import types
from collections.abc import Callable, Mapping
from typing import Any

from ._errors import InvalidPipeline
from ._fingerprint import is_installed_file

# What makes a class of a pickle; given the class's id it finds the original in this process, and changes that.
_MAKERS = {"_make_skeleton_class": 4, "_make_skeleton_enum": 5}


def packed(function: Callable[..., Any]) -> bytes:
    """The function by cloudpickle, and with it what cloudpickle refuses, or names by a place that workers lack."""
    import cloudpickle

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, value: Any) -> Any:
            return _reduced(value) or super().reducer_override(value)

    out = io.BytesIO()
    Pickler(out).dump(function)
    return out.getvalue()


def _reduced(value: Any) -> Any:
    """How to make again what `functools` made of a function of the user's own; None of all else."""
    function = getattr(value, "__wrapped__", None) if type(value) in _MADE else None
    if not _own(function):
        return None
    if isinstance(value, functools._lru_cache_wrapper):
        return _cached, (function, value.cache_parameters())
    if value.__code__ is _DISPATCH:
        return _dispatching, (function, dict(value.registry))
    return None


_MADE = (functools._lru_cache_wrapper, types.FunctionType)
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
    """The packed function, as another process would get it: with globals, objects and classes of its own."""
    try:
        function: Callable[..., Any] = _Unpickler(io.BytesIO(payload)).load()
    except Exception as e:
        raise InvalidPipeline(
            f"{name} was packed, but cannot be unpacked, as workers have to: {type(e).__name__}: {e}"
        ) from e
    return function


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)
        if name in _MAKERS and module.split(".")[0] == "cloudpickle":
            return _anew(found, _MAKERS[name])
        return found


def _anew(maker: Callable[..., Any], place: int) -> Callable[..., Any]:
    """A maker of classes that knows no ids."""

    def make(*arguments: Any) -> Any:
        return maker(*arguments[:place], None, *arguments[place + 1 :])

    return make
