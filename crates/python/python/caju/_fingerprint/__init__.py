"""Fingerprints of Python functions: a digest of what a function does, the same in every process.

A snapshot of rows that a function computed is found again by this digest, so it has to change with everything that
changes the rows, and with nothing else.

Part of the digest: bytecode, constants, defaults, closure values, attributes, the globals that the code reads and what it
imports; and the same again, transitively, for functions, classes and modules of the user's own. An installed package is
represented by its name and version, and by what it keeps for the user: the function in a decorator's closure, the registry
of a `singledispatch`. Python is represented by the version of its bytecode.

Not part of it: names of files, modules, functions and local variables, line numbers, comments, docstrings. Moving a
function, or running a notebook cell again, keeps the fingerprint. Values are compared by content: two equal lists and one
list used twice are the same.

A value without content of its own (an open file, a socket, a lock, an object of a C library without state) is an
`InvalidPipeline` error that names the path to it and what to do.

| module | part |
|---|---|
| `hasher` | traverses values and feeds them to the digest |
| `code` | the same for functions, code objects and modules |
| `bytecode` | reads what code does and which names it uses |
| `values` | the content of arrays and classes, and what has none |
| `packages` | the user's own code and installed packages, told apart |
| `randomness` | random draws other than `caju.rng()` |
| `digest` | Merkle digests of graphs of values, cycles included |
"""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

from .._errors import InvalidPipeline
from .hasher import Hasher
from .packages import is_installed_file, is_own_module

__all__ = ["CodeReport", "code_fingerprint", "inspect_code", "is_installed_file", "is_own_module"]

DIGITS = 32
"""Hexadecimal digits of a fingerprint: 128 bits of a SHA-256 digest."""


class CodeReport(NamedTuple):
    """What a function's code says about it."""

    fingerprint: str
    """Its fingerprint."""
    draws: bool
    """Whether it, or code of the user's own that it calls, draws from `caju.rng()`."""
    foreign_draws: list[str]
    """Other sources of random numbers that it draws from, and where in the code."""


def code_fingerprint(function: Any, *, version: str | None = None) -> str:
    """32 hexadecimal digits that change when what the function does changes.

    With `version`, they represent this text alone: the caller changes it whenever the function changes.

    Raises `InvalidPipeline` for what is not callable, and for a value that has no content of its own.
    """
    if version is not None:
        return hashlib.sha256(b"version\0" + version.encode()).hexdigest()[:DIGITS]
    return Hasher().fingerprint(function)[:DIGITS]


def inspect_code(function: Any, version: str | None = None) -> CodeReport:
    """The fingerprint of a function, and the sources of random numbers that it draws from."""
    hasher = Hasher()
    try:
        fingerprint = hasher.fingerprint(function)[:DIGITS]
    except InvalidPipeline:
        if version is None:
            raise
        # The code was not read to its end, so it may draw from `caju.rng()`; random keys that are not used do no harm.
        return CodeReport(code_fingerprint(function, version=version), True, hasher.foreign_draws)
    if version is not None:
        fingerprint = code_fingerprint(function, version=version)
    return CodeReport(fingerprint, hasher.draws, hasher.foreign_draws)
