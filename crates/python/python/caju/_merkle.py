"""Digests of values by content, through shared parts and cycles.

Each value is a node: words, and the nodes of its parts. Where no cycle is met, a node's digest is that of its words and
of its parts' digests, so shared parts and equal copies are the same. What leads into a cycle is kept as a graph, and
named at the end by refining classes of equal nodes until nothing distinguishes more of them: again by what can be
reached from where, not by which objects there are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any, Union

__all__ = ["Digests"]

Part = Union[bytes, "_Node", "_Bag"]


class _Node:
    """A value: what was said of it, piece by piece."""

    __slots__ = ("digest", "parts", "words")

    def __init__(self) -> None:
        self.words = bytearray()
        self.parts: list[Part] = []
        self.digest: bytes | None = None

    def say(self, kind: bytes, data: bytes) -> None:
        self.words += kind + len(data).to_bytes(8, "little") + data

    def add(self, part: bytes | _Node | _Bag) -> None:
        if isinstance(part, bytes):
            self.say(b"d", part)
            return
        self.parts += [bytes(self.words), part]
        self.words = bytearray()

    def close(self) -> bytes | _Node:
        """Its digest; itself if a cycle is below it."""
        if not self.parts:
            self.digest = hashlib.sha256(self.words).digest()
            self.words = bytearray()
            return self.digest
        self.parts.append(bytes(self.words))
        self.words = bytearray()
        return self


class _Bag:
    """Parts without an order, some of which lead into a cycle."""

    __slots__ = ("items",)

    def __init__(self, items: list[bytes | _Node]) -> None:
        self.items = items


class Digests:
    """Makes digests while somebody walks: `node` for values, within it `words` and `bag`."""

    def __init__(self) -> None:
        self._nodes: dict[int, _Node] = {}
        self._keep: list[Any] = []  # an id is one as long as its object lives
        self._node = _Node()

    def words(self, words: Iterable[str | bytes]) -> None:
        """Adds to the present node."""
        for word in words:
            self._node.say(b"w", word.encode("utf-8", "surrogatepass") if isinstance(word, str) else word)

    def node(self, value: Any, walk: Callable[[], None]) -> None:
        """Adds a value to the present node; `walk` says what is to be said of it, if nobody has yet."""
        known = self._nodes.get(id(value))
        if known is not None:
            self._node.add(known.digest or known)
            return
        node = self._nodes[id(value)] = _Node()
        self._keep.append(value)
        self._node.add(self._within(node, walk))

    def bag(self, walks: Iterable[Callable[[], None]]) -> None:
        """Adds what each walk says, in an order of its own."""
        items = [self._within(_Node(), walk) for walk in walks]
        digests = [item for item in items if isinstance(item, bytes)]
        if len(digests) < len(items):
            self._node.add(_Bag(items))
            return
        for digest in sorted(digests):
            self._node.add(digest)

    def root(self, walk: Callable[[], None]) -> str:
        """The digest of all that a walk says, in hexadecimal digits."""
        whole = self._within(_Node(), walk)
        return (whole if isinstance(whole, bytes) else _refined(whole)).hex()

    def _within(self, node: _Node, walk: Callable[[], None]) -> bytes | _Node:
        outer, self._node = self._node, node
        try:
            walk()
        finally:
            self._node = outer
        return node.close()


def _refined(root: _Node) -> bytes:
    """The digest of a graph with cycles, from a node of it."""
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
    # Which class leads to which is now all that there is to say.
    for pair in sorted({colours[node] + finer[node] for node in nodes}):
        out.update(pair)
    return out.digest()


def _reachable(root: _Node) -> list[_Node]:
    seen, ahead = {root}, [root]
    while ahead:
        for part in ahead.pop().parts:
            for node in part.items if isinstance(part, _Bag) else [part]:
                if isinstance(node, _Node) and node not in seen:
                    seen.add(node)
                    ahead.append(node)
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
