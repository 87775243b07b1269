"""Typed digests: whole and tree, and their verification over any cut of the bytes."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from processing import digests
from processing.digests import Verifier


def sha(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def typed(parts: list[bytes]) -> str:
    return digests.tree(map(sha, parts))


def feed(verifier: Verifier, data: bytes, step: int) -> bool:
    for start in range(0, len(data), step):
        verifier.update(memoryview(data)[start : start + step])
    return verifier.matches()


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=8), st.integers(1, 50))
def test_a_tree_is_verified_however_the_bytes_are_cut(parts: list[bytes], step: int) -> None:
    data, sizes = b"".join(parts), [len(part) for part in parts]
    assert feed(Verifier(typed(parts), sizes), data, step)
    assert feed(Verifier(digests.whole(sha(data))), data, step)
    assert not feed(Verifier(typed(parts), sizes), data + b"x", step)
    if data:
        assert not feed(Verifier(typed(parts), sizes), data[:-1], step)
        changed = bytes([data[0] ^ 1]) + data[1:]
        assert not feed(Verifier(typed(parts), sizes), changed, step)
        assert not feed(Verifier(digests.whole(sha(data))), changed, step)


def test_borders_are_part_of_a_tree() -> None:
    assert typed([b"ab", b"c"]) != typed([b"a", b"bc"])
    assert typed([b"abc"]).startswith("sha256-tree:")


@pytest.mark.parametrize("digest", ["sha256-tree:00", "blake3:00", ""])
def test_what_cannot_be_checked_says_so(digest: str) -> None:
    verifier = Verifier(digest)
    assert not verifier.checks
    assert feed(verifier, b"anything", 3)
