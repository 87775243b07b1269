"""The key ring."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gateway.keys.ring import KeyRing, KeyRingError, load_ring, parse_key


def test_what_is_sealed_opens_again_and_never_looks_the_same() -> None:
    ring = KeyRing(os.urandom(32))
    one, two = ring.seal(b"secret", b"AK"), ring.seal(b"secret", b"AK")
    assert one != two
    assert b"secret" not in one
    assert ring.open(one, b"AK") == ring.open(two, b"AK") == b"secret"


def test_another_key_another_owner_and_damage_are_refused() -> None:
    ring = KeyRing(os.urandom(32))
    sealed = ring.seal(b"secret", b"AK")
    with pytest.raises(KeyRingError, match="another master key"):
        KeyRing(os.urandom(32)).open(sealed, b"AK")
    with pytest.raises(KeyRingError):
        ring.open(sealed, b"OTHER")
    for position in range(len(sealed)):
        damaged = bytearray(sealed)
        damaged[position] ^= 1
        with pytest.raises(KeyRingError):
            ring.open(bytes(damaged), b"AK")
    for length in range(len(sealed)):
        with pytest.raises(KeyRingError):
            ring.open(sealed[:length], b"AK")


def test_the_fingerprint_names_a_key_without_telling_it() -> None:
    master = os.urandom(32)
    assert KeyRing(master).fingerprint == KeyRing(master).fingerprint
    assert KeyRing(master).fingerprint != KeyRing(os.urandom(32)).fingerprint
    assert KeyRing(master).fingerprint not in master.hex()


@pytest.mark.parametrize("text", ["", "zz" * 32, "ab" * 31, "AAAA", "not base64!"])
def test_malformed_keys(text: str) -> None:
    with pytest.raises(KeyRingError):
        parse_key(text)


def test_a_key_file_is_made_once_by_whoever_is_first(tmp_path: Path) -> None:
    path = tmp_path / "new" / "master.key"
    with ThreadPoolExecutor(8) as threads:
        rings = list(threads.map(lambda _: load_ring(None, path), range(16)))
    assert len({ring.fingerprint for ring in rings}) == 1
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in path.parent.iterdir()] == ["master.key"]
    assert load_ring(path.read_text(), tmp_path / "unused").fingerprint == rings[0].fingerprint
