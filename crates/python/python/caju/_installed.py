"""What is the user's own, and what is a package that has a version."""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
import types
from collections.abc import Mapping
from typing import Any

_HEAP_TYPE = 1 << 9


@functools.lru_cache(maxsize=1)
def _roots() -> tuple[str, ...]:
    paths = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    import site

    # And this package itself, wherever it was put.
    paths |= {*site.getsitepackages(), site.getusersitepackages(), os.path.dirname(__file__)}
    return tuple(os.path.realpath(p) + os.sep for p in paths if p)


@functools.lru_cache(maxsize=4096)
def installed_file(file: str) -> bool:
    """Whether a file of source belongs to Python or to an installed package."""
    if file.startswith("<frozen"):
        return True
    if file.startswith("<"):
        return False  # a notebook's cell, exec
    real = os.path.realpath(file)
    return real.startswith(_roots()) or f"{os.sep}site-packages{os.sep}" in real


def own_module(module: types.ModuleType) -> bool:
    """Whether a module is the user's own."""
    if module.__name__ == "__main__":
        return True
    if module.__name__ in sys.builtin_module_names:
        return False
    file = getattr(module, "__file__", None)
    # A namespace package has no file; what is taken of it has.
    return file is None and hasattr(module, "__path__") or file is not None and not installed_file(file)


def own_class(cls: type) -> bool:
    """Whether a class is the user's own: neither of C nor of an installed package."""
    if not cls.__flags__ & _HEAP_TYPE:
        return False
    if cls.__module__ == "builtins":
        # What `exec` defines without a module's name is said to be there.
        return vars(sys.modules["builtins"]).get(cls.__name__) is not cls
    module = sys.modules.get(cls.__module__)
    return module is None or own_module(module)


def found_at(module: str | None, qualname: str, value: Any) -> bool:
    """Whether a value is what stands under this name in an installed module."""
    place: Any = sys.modules.get(module or "")
    if place is None or own_module(place):
        return False
    for name in qualname.split("."):
        place = getattr(place, name, None)
    return place is value


@functools.lru_cache(maxsize=1)
def _distributions() -> Mapping[str, list[str]]:
    import importlib.metadata as metadata

    return metadata.packages_distributions()


@functools.lru_cache(maxsize=1024)
def version_of(top: str) -> str:
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
