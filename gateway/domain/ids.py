"""Ids that are made before the transaction that stores them."""

from __future__ import annotations

import os
import time
from uuid import UUID


def blob_id() -> UUID:
    """A version 7 UUID (RFC 9562): its first 48 bits are Unix milliseconds, so indexes stay local."""
    value = (time.time_ns() // 1_000_000) << 80 | int.from_bytes(os.urandom(10), "big")
    value = value & ~(0xF << 76) | 0x7 << 76
    return UUID(int=value & ~(0x3 << 62) | 0x2 << 62)


def blob_age(blob: UUID, now: float) -> float:
    """Seconds between the making of a version 7 UUID and now (Unix seconds)."""
    return now - (blob.int >> 80) / 1000


def random64() -> int:
    """64 random bits as a signed integer, as Postgres stores them."""
    return int.from_bytes(os.urandom(8), "big", signed=True)
