"""Tells the user's own code from installed packages, which have a version."""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
import types
from collections.abc import Mapping
from typing import Any

_HEAP_TYPE = 1 << 9
"""The flag of a type that was made at run time (`Py_TPFLAGS_HEAPTYPE`); types of C lack it."""

_CAJU = os.path.dirname(os.path.dirname(__file__))
"""The folder of this package, which counts as installed wherever it is."""


@functools.lru_cache(maxsize=1)
def _roots() -> tuple[str, ...]:
    paths = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    import site

    paths |= {*site.getsitepackages(), site.getusersitepackages(), _CAJU}
    return tuple(os.path.realpath(p) + os.sep for p in paths if p)


@functools.lru_cache(maxsize=4096)
def is_installed_file(file: str) -> bool:
    """Whether a source file belongs to Python or to an installed package."""
    if file.startswith("<frozen"):
        return True
    if file.startswith("<"):
        return False  # a notebook cell, or `exec`
    real = os.path.realpath(file)
    return real.startswith(_roots()) or f"{os.sep}site-packages{os.sep}" in real


def is_own_module(module: types.ModuleType) -> bool:
    """Whether a module is the user's own."""
    if module.__name__ == "__main__":
        return True
    if module.__name__ in sys.builtin_module_names:
        return False
    file = getattr(module, "__file__", None)
    # A namespace package has no file; the modules in it have.
    return file is None and hasattr(module, "__path__") or file is not None and not is_installed_file(file)


def is_own_class(cls: type) -> bool:
    """Whether a class is the user's own: neither of C nor of an installed package."""
    if not cls.__flags__ & _HEAP_TYPE:
        return False
    if cls.__module__ == "builtins":
        # A class that `exec` defines without a module name claims to be a builtin.
        return vars(sys.modules["builtins"]).get(cls.__name__) is not cls
    module = sys.modules.get(cls.__module__)
    return module is None or is_own_module(module)


def is_importable(module: str | None, qualname: str, value: Any) -> bool:
    """Whether an installed module has this very value under this qualified name."""
    place: Any = sys.modules.get(module or "")
    if place is None or is_own_module(place):
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
    """The version of the distribution that a top-level module comes from; Python's for the standard library."""
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
