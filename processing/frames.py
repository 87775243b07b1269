"""The frames that a sandboxed child and its owner exchange: a JSON header, then raw bytes. Pure.

    4 bytes, big-endian: length of the header | the header, UTF-8 JSON | the payloads, back to back

A request's header is ``{"jobs": [{"op", "params", "length"}, …]}``, a reply's ``{"results": [{"value", "length"} or
{"error"}, …]}``, in the order of the jobs. A child's first frame is ``{"hello": {…}}``.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import msgspec

PREFIX = struct.Struct("!I")
MAX_HEADER = 1 << 20


def frame(content: Mapping[str, Any]) -> bytes:
    """Prefix and header; payloads follow."""
    text = msgspec.json.encode(content)
    return PREFIX.pack(len(text)) + text


def header(text: bytes) -> Any:
    """Raises ValueError, RecursionError."""
    return msgspec.json.decode(text)


def header_length(prefix: bytes | bytearray) -> int:
    """Raises ValueError when it is over MAX_HEADER: what comes from a child is not trusted."""
    (length,) = PREFIX.unpack(prefix)
    if length > MAX_HEADER:
        raise ValueError("a frame's header is too long")
    return int(length)
