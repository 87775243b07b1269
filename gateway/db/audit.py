"""The audit trail: what operators did, to what, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import asyncpg

from processing.ports import Conn


@dataclass(frozen=True, slots=True)
class AuditEntry:
    id: int
    at: datetime
    who: str
    what: str
    target: Mapping[str, Any]
    why: str


async def record(conn: Conn, who: str, what: str, target: Mapping[str, Any], why: str = "") -> int:
    """Write an entry in the transaction of the deed itself, so that neither is without the other. Returns its id."""
    made: int = await conn.fetchval(
        "INSERT INTO audit (who, what, target, why) VALUES ($1, $2, $3, $4) RETURNING id", who, what, dict(target), why
    )
    return made


async def entries(
    conn: Conn | asyncpg.Pool, *, before: int | None = None, what: str | None = None, limit: int = 100
) -> list[AuditEntry]:
    """Entries, newest first, those with ids below before; what keeps one kind of deed."""
    rows = await conn.fetch(
        "SELECT id, at, who, what, target, why FROM audit"
        " WHERE ($1::bigint IS NULL OR id < $1) AND ($2::text IS NULL OR what = $2) ORDER BY id DESC LIMIT $3",
        before,
        what,
        limit,
    )
    return [AuditEntry(**row) for row in rows]
