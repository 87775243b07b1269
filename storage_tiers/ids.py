"""Names of blobs: version 7 UUIDs (RFC 9562), so that a name tells its age even where nothing else knows of it."""

from __future__ import annotations

import os
import time
from uuid import UUID


def blob_id() -> UUID:
    """A new name. Its first 48 bits are Unix milliseconds: indexes stay local."""
    value = (time.time_ns() // 1_000_000) << 80 | int.from_bytes(os.urandom(10), "big")
    value = value & ~(0xF << 76) | 0x7 << 76
    return UUID(int=value & ~(0x3 << 62) | 0x2 << 62)


def blob_age(blob: UUID, now: float) -> float:
    """Seconds between the making of a name and now (Unix seconds)."""
    return now - (blob.int >> 80) / 1000
