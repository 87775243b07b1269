"""The key ring: seals secrets before they are stored. AES-256-GCM under one master key.

A sealed value is one format byte, twelve random bytes, ciphertext and tag. What it belongs to can be authenticated
with it, so that it opens nowhere else.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import threading
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

FORMAT = 1
NONCE = 12  # bytes, NIST SP 800-38D 8.2
KEY = 32  # bytes


class KeyRingError(Exception):
    """A key cannot be used, or a sealed value not be opened; the text is a sentence for the operator."""


class KeyRing:
    """fingerprint names the master key without telling it: stored beside the data to notice a wrong one."""

    def __init__(self, master: bytes) -> None:
        if len(master) != KEY:
            raise KeyRingError(f"The master key must be {KEY} bytes, not {len(master)}.")
        self._cipher = AESGCM(hmac.digest(master, b"sluice secrets 1", hashlib.sha256))
        self.fingerprint = hmac.digest(master, b"sluice fingerprint 1", hashlib.sha256).hex()[:32]

    def seal(self, plain: bytes, bound: bytes = b"") -> bytes:
        """bound: what the value belongs to; needed again to open it."""
        nonce = os.urandom(NONCE)
        return bytes([FORMAT]) + nonce + self._cipher.encrypt(nonce, plain, bound)

    def open(self, sealed: bytes, bound: bytes = b"") -> bytes:
        """Raises KeyRingError: another key, another owner, or damaged."""
        if len(sealed) < 1 + NONCE + 16 or sealed[0] != FORMAT:
            raise KeyRingError("A sealed value has an unknown format.")
        try:
            return self._cipher.decrypt(sealed[1 : 1 + NONCE], sealed[1 + NONCE :], bound)
        except InvalidTag as error:
            raise KeyRingError("A sealed value cannot be opened: it was sealed by another master key.") from error


def parse_key(text: str) -> bytes:
    """32 bytes from 64 hexadecimal digits or from base64. Raises KeyRingError."""
    text = text.strip()
    try:
        raw = bytes.fromhex(text) if len(text) == 2 * KEY else base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error) as error:
        raise KeyRingError("The master key is neither 64 hexadecimal digits nor base64.") from error
    if len(raw) != KEY:
        raise KeyRingError(f"The master key must be {KEY} bytes, not {len(raw)}.")
    return raw


def load_ring(configured: str | None, path: Path) -> KeyRing:
    """The ring of the configured key, else of the key in a file, which is made at the first start.

    Two processes that start at once end up with one key: the file appears whole or not at all.
    """
    if configured is not None:
        return KeyRing(parse_key(configured))
    try:
        return KeyRing(parse_key(path.read_text()))
    except FileNotFoundError:
        _create(path)
        return KeyRing(parse_key(path.read_text()))
    except OSError as error:
        raise KeyRingError(f"The master key {path} cannot be read: {error.strerror}.") from error


def _create(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(os.urandom(KEY).hex() + "\n")
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(fresh, path)  # fails when another process was first
    except FileExistsError:
        pass
    finally:
        fresh.unlink()
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
