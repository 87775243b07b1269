"""Blobs whose bytes are missing or differ from their row: marked once, told everywhere, unmarked when they are right
again. A marked blob is not served: reads of it fail before their first byte."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from uuid import UUID

import asyncpg
import structlog

from storage_tiers.tier import BlobNotFound, TierError

log = structlog.get_logger("sluice.blobs")
Report = Callable[[str, str], None]  # tier, kind

MISSING, DIFFERS, UNREADABLE = "missing", "differs", "unreadable"
KINDS = (MISSING, DIFFERS, UNREADABLE)


@dataclass(frozen=True, slots=True)
class Hit:
    """An object that a damaged blob belongs to."""

    blob: UUID
    tier: str
    bucket: str
    key: bytes
    seq: int


class Damage:
    """report counts what is found."""

    def __init__(self, pool: asyncpg.Pool, report: Report = lambda tier, kind: None) -> None:
        self._pool, self._report = pool, report

    async def found(self, blob: UUID, tier: str, error: TierError, kind: str | None = None) -> bool:
        """Mark a blob, unless it is marked, was moved or is being deleted. Returns whether it is marked only now."""
        kind = kind or (MISSING if isinstance(error, BlobNotFound) else DIFFERS)
        marked: bool | None = await self._pool.fetchval(
            "UPDATE blob SET corrupt = true WHERE id = $1 AND state = 2 AND tier = $2 AND NOT corrupt RETURNING true",
            blob,
            tier,
        )
        if marked:
            log.error("blob-damaged", blob=str(blob), tier=tier, kind=kind, error=str(error))
            self._report(tier, kind)
        return bool(marked)

    async def mended(self, blob: UUID) -> None:
        """Its bytes were read and are those of its row."""
        if await self._pool.fetchval("UPDATE blob SET corrupt = false WHERE id = $1 AND corrupt RETURNING true", blob):
            log.info("blob-mended", blob=str(blob))

    async def hits(self, limit: int = 1000) -> Sequence[Hit]:
        """The objects whose content lies, in whole or in part, in a damaged blob."""
        rows = await self._pool.fetch(
            """SELECT b.id, b.tier, u.name, v.key, v.seq
                 FROM (SELECT id, tier FROM blob WHERE corrupt AND state = 2 ORDER BY id LIMIT $1) b,
                      LATERAL (SELECT bucket_id, key, seq FROM version WHERE blob = b.id
                                UNION SELECT bucket_id, key, seq FROM version WHERE restored_blob = b.id
                                UNION SELECT bucket_id, key, seq FROM extent WHERE blob = b.id) v
                 JOIN bucket u ON u.id = v.bucket_id
                ORDER BY u.name, v.key, v.seq LIMIT $1""",
            limit,
        )
        return [Hit(row["id"], row["tier"], row["name"], row["key"], row["seq"]) for row in rows]
