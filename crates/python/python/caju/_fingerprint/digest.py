"""Merkle digests of values by content, with shared parts and cycles.

Each value is a node: tokens, and the nodes of its parts. Without a cycle below it, a node's digest is that of its tokens
and of its parts' digests, so a shared part and two equal copies give the same digest. Nodes that lead into a cycle are kept
as a graph. At the end they are numbered by partition refinement: classes of equal nodes are split until nothing
distinguishes more of them. So again the digest depends on what is reachable from where, not on object identity.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any, Union

__all__ = ["GraphDigest"]

Part = Union[bytes, "_Node", "_Bag"]


class _Node:
    """A value: its tokens and parts in order."""

    __slots__ = ("digest", "parts", "tokens")

    def __init__(self) -> None:
        self.tokens = bytearray()
        self.parts: list[Part] = []
        self.digest: bytes | None = None

    def write(self, kind: bytes, data: bytes) -> None:
        self.tokens += kind + len(data).to_bytes(8, "little") + data

    def add(self, part: bytes | _Node | _Bag) -> None:
        if isinstance(part, bytes):
            self.write(b"d", part)
            return
        self.parts += [bytes(self.tokens), part]
        self.tokens = bytearray()

    def close(self) -> bytes | _Node:
        """Its digest, or the node itself if a cycle is below it."""
        if not self.parts:
            self.digest = hashlib.sha256(self.tokens).digest()
            self.tokens = bytearray()
            return self.digest
        self.parts.append(bytes(self.tokens))
        self.tokens = bytearray()
        return self


class _Bag:
    """Parts without an order, some of which lead into a cycle."""

    __slots__ = ("items",)

    def __init__(self, items: list[bytes | _Node]) -> None:
        self.items = items


class GraphDigest:
    """Computes the digest while a caller traverses a graph of values: `node` opens a value, `tokens` and `bag` add to the
    one that is open.
    """

    def __init__(self) -> None:
        self._nodes: dict[int, _Node] = {}
        self._alive: list[Any] = []  # an id is unique only while its object lives
        self._open = _Node()

    def tokens(self, tokens: Iterable[str | bytes]) -> None:
        """Adds to the open node."""
        for token in tokens:
            self._open.write(b"w", token.encode("utf-8", "surrogatepass") if isinstance(token, str) else token)

    def node(self, value: Any, traverse: Callable[[], None]) -> None:
        """Adds a value to the open node; `traverse` adds the value's own tokens and parts, once per object."""
        known = self._nodes.get(id(value))
        if known is not None:
            self._open.add(known.digest or known)
            return
        node = self._nodes[id(value)] = _Node()
        self._alive.append(value)
        self._open.add(self._within(node, traverse))

    def bag(self, traversals: Iterable[Callable[[], None]]) -> None:
        """Adds parts whose order does not matter, one for each traversal."""
        items = [self._within(_Node(), traverse) for traverse in traversals]
        digests = [item for item in items if isinstance(item, bytes)]
        if len(digests) < len(items):
            self._open.add(_Bag(items))
            return
        for digest in sorted(digests):
            self._open.add(digest)

    def root(self, traverse: Callable[[], None]) -> str:
        """The digest of everything that one traversal adds, in hexadecimal digits."""
        whole = self._within(_Node(), traverse)
        return (whole if isinstance(whole, bytes) else _refined(whole)).hex()

    def _within(self, node: _Node, traverse: Callable[[], None]) -> bytes | _Node:
        outer, self._open = self._open, node
        try:
            traverse()
        finally:
            self._open = outer
        return node.close()


def _refined(root: _Node) -> bytes:
    """The digest of a graph with cycles, seen from one of its nodes."""
    nodes = _reachable(root)
    colours = dict.fromkeys(nodes, b"")
    classes = 1
    while True:
        finer = {node: _coloured(node, colours) for node in nodes}
        found = len(set(finer.values()))
        if found == classes:
            break
        colours, classes = finer, found
    out = hashlib.sha256(finer[root])
    # The partition is stable: the edges between its classes describe the whole graph.
    for pair in sorted({colours[node] + finer[node] for node in nodes}):
        out.update(pair)
    return out.digest()


def _reachable(root: _Node) -> list[_Node]:
    seen, pending = {root}, [root]
    while pending:
        for part in pending.pop().parts:
            for node in part.items if isinstance(part, _Bag) else [part]:
                if isinstance(node, _Node) and node not in seen:
                    seen.add(node)
                    pending.append(node)
    return list(seen)


def _coloured(node: _Node, colours: dict[_Node, bytes]) -> bytes:
    out = hashlib.sha256()
    for part in node.parts:
        if isinstance(part, _Bag):
            out.update(b"b")
            for item in sorted(_colour(item, colours) for item in part.items):
                out.update(item)
        else:
            out.update(_colour(part, colours))
    return out.digest()


def _colour(part: bytes | _Node, colours: dict[_Node, bytes]) -> bytes:
    if isinstance(part, bytes):
        return b"w" + len(part).to_bytes(8, "little") + part
    return b"n" + (part.digest or colours[part])
