"""Values as they are told by content: arrays by their bytes, classes by what their author wrote."""

from __future__ import annotations

import sys
import types
import weakref
from typing import Any

from ._errors import InvalidPipeline
from ._installed import installed_file

# Attributes of classes that say where they stand in a file, or that Python makes.
_SKIPPED = {
    "__module__", "__dict__", "__weakref__", "__firstlineno__", "__static_attributes__", "__qualname__", "__doc__",
    "__annotations__", "__annotate__", "__annotate_func__", "__annotations_cache__", "__orig_bases__",
    "__parameters__", "__abstractmethods__", "_abc_impl", "__match_args__", "__dataclass_fields__",
}  # fmt: skip

# What `functools.wraps` copies from the function that is wrapped, and what it says about its place.
COPIED = {"__module__", "__name__", "__qualname__", "__doc__", "__annotations__", "__annotate__", "__type_params__"}

# What a module says about its own place.
PLACE = {"__name__", "__file__", "__package__", "__spec__", "__loader__", "__cached__", "__path__", "__doc__"}

# What has no content of its own.
FLEETING = (
    weakref.ref, weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet,
    types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType, types.FrameType,
)  # fmt: skip


def is_a(value: Any, module: str, name: str) -> bool:
    """Whether it is of a class, without importing its module."""
    cls = getattr(sys.modules.get(module), name, None)
    return cls is not None and isinstance(value, cls)


def is_slot(name: str, value: Any) -> bool:
    """What Python makes of a class's body, and what says where it stands."""
    return name in _SKIPPED or isinstance(value, (types.MemberDescriptorType, types.GetSetDescriptorType))


def is_enums_own(name: str, value: Any) -> bool:
    """What the machinery of enumerations puts into a class: its members enter as such."""
    code = getattr(getattr(value, "__func__", value), "__code__", None)
    return name.startswith("_") and (code is None or installed_file(code.co_filename))


def array_bytes(value: Any) -> tuple[str | bytes, ...] | None:
    """Type, shape and bytes of an array of NumPy or a tensor of torch, without importing either."""
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


def cannot(path: str, why: str) -> InvalidPipeline:
    return InvalidPipeline(
        f"the function cannot be named by its code: at {path}, {why}; make it inside the function, where every worker "
        'makes its own; version="..." (changed whenever the function changes) names it unseen, which helps only with '
        "what pickles: locks, open files and connections cannot be sent to workers either"
    )
