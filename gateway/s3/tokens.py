"""Continuation tokens: opaque to clients, and to us the bytes a listing resumes after."""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from zlib import crc32

from gateway.s3.errors import S3Error

_VERSION = b"\x01"
_MESSAGE = "The continuation token provided is incorrect"


def encode(last: bytes) -> str:
    """A URL-safe token for the bytes of the last key (or common prefix, or bucket name) that was listed."""
    body = _VERSION + last
    return urlsafe_b64encode(body + crc32(body).to_bytes(4, "big")).decode("ascii").rstrip("=")


def decode(token: str, argument: str = "continuation-token") -> bytes:
    """The bytes given to encode. Raises InvalidArgument naming the argument for anything encode did not make.

    The check sum is no secret, it only tells a token apart from a key that was passed in its place.
    """
    try:
        raw = urlsafe_b64decode(token.encode("ascii") + b"=" * (-len(token) % 4))
    except (binascii.Error, ValueError):
        raise _incorrect(token, argument) from None
    body, check = raw[:-4], raw[-4:]
    if not body.startswith(_VERSION) or crc32(body).to_bytes(4, "big") != check or encode(body[1:]) != token:
        raise _incorrect(token, argument)
    return body[1:]


def _incorrect(token: str, argument: str) -> S3Error:
    return S3Error("InvalidArgument", _MESSAGE, ArgumentName=argument, ArgumentValue=token)
