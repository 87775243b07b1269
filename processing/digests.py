"""Typed digests of content, and their verification while bytes flow.

``sha256:hex`` is SHA-256 over all bytes. ``sha256-tree:hex`` is that of a content made of parts whose own digests are
known but whose bytes nobody read as one: SHA-256 over the parts' SHA-256 digests. The two are told apart by type, since
the preimage of a tree is itself a possible content.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

WHOLE = "sha256"
TREE = "sha256-tree"


def whole(sha256: bytes) -> str:
    """The typed digest of content whose SHA-256 is given."""
    return f"{WHOLE}:{sha256.hex()}"


def tree(parts: Iterable[bytes]) -> str:
    """The typed digest of content made of parts, each given by its SHA-256, in order."""
    digest = hashlib.sha256()
    for sha256 in parts:
        digest.update(sha256)
    return f"{TREE}:{digest.hexdigest()}"


class Verifier:
    """Digests bytes in order and says whether they are the content of a typed digest.

    part_sizes: for a tree, the sizes of its parts. A tree whose part sizes are unknown, and a digest of an unknown
    type, cannot be checked: then ``checks`` is False and every content matches.
    """

    def __init__(self, digest: str, part_sizes: Sequence[int] = ()) -> None:
        kind = digest.partition(":")[0]
        self.checks = kind == WHOLE or (kind == TREE and bool(part_sizes))
        self._digest = digest
        self._sizes = iter(part_sizes) if kind == TREE else None
        self._parts: list[bytes] = []
        self._excess = False  # more bytes came than the parts have
        self._left = self._size = self._next()
        self._sha256 = hashlib.sha256()

    def update(self, data: bytes | bytearray | memoryview, /) -> None:
        """The next bytes. Blocking; from any one thread at a time."""
        if not self.checks:
            return
        if self._sizes is None:
            self._sha256.update(data)
            return
        with memoryview(data) as view:
            done = 0
            while done < len(view) and self._size is not None:
                piece = view[done : done + (self._left or 0)]
                self._sha256.update(piece)
                done += len(piece)
                self._left = (self._left or 0) - len(piece)
                self._close_parts()
            self._excess = self._excess or done < len(view)

    def matches(self) -> bool:
        """Whether all bytes given so far are the content; True when that cannot be checked."""
        if not self.checks:
            return True
        if self._sizes is None:
            return whole(self._sha256.digest()) == self._digest
        self._close_parts()  # empty parts have no byte that would close them
        return self._size is None and not self._excess and tree(self._parts) == self._digest

    def _close_parts(self) -> None:
        while self._size is not None and not self._left:
            self._parts.append(self._sha256.digest())
            self._left = self._size = self._next()
            self._sha256 = hashlib.sha256()

    def _next(self) -> int | None:
        return next(self._sizes, None) if self._sizes is not None else None
