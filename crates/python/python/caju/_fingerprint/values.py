"""The content of values: arrays by their bytes, classes by what their author wrote; and values without content."""

from __future__ import annotations

import sys
import types
import weakref
from typing import Any

from .._errors import InvalidPipeline
from .packages import is_installed_file

# Attributes of classes that name their place in a file, or that Python makes.
_GENERATED = {
    "__module__", "__dict__", "__weakref__", "__firstlineno__", "__static_attributes__", "__qualname__", "__doc__",
    "__annotations__", "__annotate__", "__annotate_func__", "__annotations_cache__", "__orig_bases__",
    "__parameters__", "__abstractmethods__", "_abc_impl", "__match_args__", "__dataclass_fields__",
}  # fmt: skip

# Attributes that `functools.wraps` copies from the wrapped function, and that name its place.
COPIED_BY_WRAPS = {
    "__module__", "__name__", "__qualname__", "__doc__", "__annotations__", "__annotate__", "__type_params__",
}  # fmt: skip

# Globals in which a module describes its own place.
MODULE_PLACE = {"__name__", "__file__", "__package__", "__spec__", "__loader__", "__cached__", "__path__", "__doc__"}

# Types whose values have no content of their own.
WITHOUT_CONTENT = (
    weakref.ref, weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet,
    types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType, types.FrameType,
)  # fmt: skip


def is_instance_of(value: Any, module: str, name: str) -> bool:
    """Whether a value is of a class, without importing the class's module."""
    cls = getattr(sys.modules.get(module), name, None)
    return cls is not None and isinstance(value, cls)


def is_generated(name: str, value: Any) -> bool:
    """Whether Python makes this attribute of a class, or it names the class's place."""
    return name in _GENERATED or isinstance(value, (types.MemberDescriptorType, types.GetSetDescriptorType))


def is_enum_machinery(name: str, value: Any) -> bool:
    """Whether `enum` puts this attribute into a class; its members are added separately."""
    code = getattr(getattr(value, "__func__", value), "__code__", None)
    return name.startswith("_") and (code is None or is_installed_file(code.co_filename))


def array_content(value: Any) -> tuple[str | bytes, ...] | None:
    """Type, shape and bytes of a NumPy array or a PyTorch tensor, without importing either; None for other values."""
    kind = type(value)
    top = kind.__module__.split(".")[0]
    if top == "torch" and hasattr(value, "detach"):
        value = value.detach().cpu().contiguous()
        raw = value.view(-1).view(getattr(sys.modules["torch"], "uint8")).numpy() if value.numel() else value.numpy()
        return ("torch", str(value.dtype), str(tuple(value.shape)), raw.tobytes())
    if top == "numpy" and hasattr(value, "dtype") and hasattr(value, "tobytes") and not value.dtype.hasobject:
        if kind.__qualname__ == "MaskedArray":
            return None
        dtype = str(value.dtype.descr) if value.dtype.names else value.dtype.str
        return ("numpy", dtype, str(value.shape), value.tobytes())
    return None


def without_fingerprint(path: str, why: str) -> InvalidPipeline:
    """The error for a function that has no fingerprint because of the value at `path`."""
    return InvalidPipeline(
        f"the function has no fingerprint: at {path}, {why}; create it inside the function, so that every worker creates "
        'its own; version="..." (changed whenever the function changes) replaces the fingerprint, which helps only with '
        "values that can be pickled: locks, open files and connections cannot be sent to workers either"
    )
