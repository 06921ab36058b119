"""Reads what code does from its bytecode, without the names and places that do not matter."""

from __future__ import annotations

import ast
import dis
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

__all__ = ["Body", "Import", "Text", "body_of", "cells_of", "drop_docstrings"]

_GLOBALS = ("LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL")
_NAMES = ("LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
_CELLS = ("LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF")
_PADDING = ("CACHE", "EXTENDED_ARG")
_CONSTANTS = frozenset(dis.hasconst)
_WITH_NAME = frozenset(dis.hasname)
_HAS_DOCSTRING = 0x4000000
"""The flag of code whose first constant is a docstring, from Python 3.13 on (`CO_HAS_DOCSTRING`)."""


class Import(NamedTuple):
    """An import within code: `from ..name import taken`; `level` counts the dots."""

    level: int
    name: str
    taken: tuple[str, ...]


class Body(NamedTuple):
    """Code as a list of steps: the name of the operation and its argument. Constants are values. Every other argument is
    `Text`: a local variable is its index, a global the order of its first use.
    """

    steps: list[tuple[str, Any]]
    flags: int
    reads: list[tuple[str, ...]]
    """The globals and closure variables that it reads, each with the attributes that it takes of it."""
    imports: list[Import]


class Text(str):
    """An argument that is not a constant."""


def body_of(code: types.CodeType, cells: Mapping[str, Any]) -> Body:
    """The steps of code and the names that they read; `cells` are the closure variables that have values."""
    steps: list[tuple[str, Any]] = []
    globals_seen: dict[str, int] = {}
    for op in _steps(code):
        argument: Any = Text("" if op.arg is None else op.arg)
        if op.opcode in _CONSTANTS:
            argument = op.argval
        elif op.opname in _GLOBALS:
            # The value of the name is added separately.
            argument = Text(f"global {globals_seen.setdefault(op.argval, len(globals_seen))}")
        elif op.opname == "IMPORT_NAME":
            argument = Text("")
        elif op.opcode in _WITH_NAME:
            argument = Text(op.argval)
        steps.append((op.opname, argument))
    if sys.version_info < (3, 11):
        steps = _without_qualified_names(steps)
    return Body(steps, code.co_flags & ~_HAS_DOCSTRING, _reads(code, cells), _imports(code))


def _steps(code: types.CodeType) -> Iterator[dis.Instruction]:
    return (op for op in dis.get_instructions(code) if op.opname not in _PADDING)


def _without_qualified_names(steps: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Before 3.11 a nested function is created with its qualified name, which depends on its place."""
    behind = [name for name, _ in steps[1:]] + [""]
    return [step for step, following in zip(steps, behind) if following != "MAKE_FUNCTION"]


def _reads(code: types.CodeType, cells: Mapping[str, Any]) -> list[tuple[str, ...]]:
    out: list[list[str]] = []
    chain: list[str] | None = None
    for op in _steps(code):
        if op.opname == "LOAD_GLOBAL" or op.opname in _NAMES or (op.opname in _CELLS and op.argval in cells):
            chain = [op.argval]
            out.append(chain)
        elif op.opname in ("LOAD_ATTR", "LOAD_METHOD") and chain is not None:
            chain.append(op.argval)
        elif op.opname not in ("PRECALL", "PUSH_NULL"):
            chain = None
    return list(dict.fromkeys(tuple(c) for c in out))


def _imports(code: types.CodeType) -> list[Import]:
    out = []
    level: Any = 0
    taken: Any = None
    for op in _steps(code):
        if op.opname == "IMPORT_NAME":
            # Its operands are the two constants before it: the level, and the names to take, if any.
            out.append(Import(level if isinstance(level, int) else 0, op.argval, tuple(taken or ())))
        if op.opcode in _CONSTANTS or op.opname == "LOAD_SMALL_INT":
            level, taken = taken, op.argval
    return list(dict.fromkeys(out))


def cells_of(f: types.FunctionType) -> dict[str, Any]:
    """The closure variables that have values."""
    out = {}
    for name, cell in zip(f.__code__.co_freevars, f.__closure__ or ()):
        try:
            out[name] = cell.cell_contents
        except ValueError:
            continue
    return out


def drop_docstrings(tree: ast.Module) -> None:
    """Removes the docstrings of a module's source."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
                del node.body[0]
