"""Ids that are made before the transaction that stores them."""

from __future__ import annotations

import os

from storage_tiers.ids import blob_age, blob_id

__all__ = ["blob_age", "blob_id", "random64"]


def random64() -> int:
    """64 random bits as a signed integer, as Postgres stores them."""
    return int.from_bytes(os.urandom(8), "big", signed=True)
