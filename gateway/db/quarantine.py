"""Held versions: quarantined and failed ones, as an operator sees them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import asyncpg

from gateway.db.listing import END, past
from gateway.domain.objects import NULL_ID, State, VersionRef

Cursor = tuple[int, bytes, int]  # bucket id, key, seq of the last one seen
START: Cursor = (0, b"", 0)

COLUMNS = """v.bucket_id, v.key, v.seq, v.rnd, v.is_null, v.state, v.etag, v.size, v.modified, v.content_type, v.digest,
    v.owner_id, v.code, v.detail, v.run_id, v.generation, v.verdict_of, v.processing,
    b.name AS bucket, a.name AS account"""
TABLES = "version v JOIN bucket b ON b.id = v.bucket_id JOIN account a ON a.id = b.account_id"

# state IN (3, 4) is written out in each statement: it is what lets the partial index version_held answer.
IN_BUCKET = f"""
SELECT {COLUMNS} FROM {TABLES}
 WHERE v.state IN (3, 4) AND v.bucket_id = $1 AND (v.key, v.seq) > ($2, $3) AND v.key >= $4 AND v.key < $5
   AND v.state = ANY($6::smallint[])
 ORDER BY v.bucket_id, v.key, v.seq LIMIT $7
"""
EVERYWHERE = f"""
SELECT {COLUMNS} FROM {TABLES}
 WHERE v.state IN (3, 4) AND (v.bucket_id, v.key, v.seq) > ($1, $2, $3) AND v.state = ANY($4::smallint[])
 ORDER BY v.bucket_id, v.key, v.seq LIMIT $5
"""
ONE = f"SELECT {COLUMNS} FROM {TABLES} WHERE v.state IN (3, 4) AND v.bucket_id = $1 AND v.key = $2 AND v.seq = $3"
OF_KEY = f"""
SELECT {COLUMNS} FROM {TABLES} WHERE v.state IN (3, 4) AND v.bucket_id = $1 AND v.key = $2
 ORDER BY v.bucket_id, v.key, v.seq DESC LIMIT $3
"""


@dataclass(frozen=True, slots=True)
class Held:
    """One held version. code is a block reason or failure code; detail names a signature or a step, never content."""

    ref: VersionRef
    bucket: str
    account: str
    is_null: bool
    state: State
    code: str | None
    detail: str | None
    etag: str
    size: int
    modified: datetime
    content_type: str | None
    digest: str | None
    owner_id: int
    run_id: int | None
    generation: int
    verdict_of: str | None
    processing: Mapping[str, Any]

    @property
    def version_id(self) -> str:
        """What S3 calls it. Several held rows of a key may be "null": ``ref.version_id`` tells them apart."""
        return NULL_ID if self.is_null else self.ref.version_id

    @property
    def cursor(self) -> Cursor:
        return self.ref.bucket_id, self.ref.key, self.ref.seq


@dataclass(frozen=True, slots=True)
class HeldPage:
    held: tuple[Held, ...]
    next: Cursor | None  # None: that was the last page


class Quarantine:
    def __init__(self, pool: asyncpg.Pool) -> None:
        self._pool = pool

    async def list(
        self,
        bucket_id: int | None = None,
        *,
        prefix: bytes = b"",
        states: frozenset[State] = frozenset((State.QUARANTINED, State.FAILED)),
        after: Cursor = START,
        limit: int = 100,
    ) -> HeldPage:
        """A page of held versions, by bucket id, key and age. prefix needs a bucket."""
        wanted = [int(state) for state in states]
        if bucket_id is not None:
            key, seq = after[1:] if after[0] == bucket_id else (b"", 0)
            stop = past(prefix) if prefix else END
            rows = await self._pool.fetch(IN_BUCKET, bucket_id, key, seq, prefix, stop, wanted, limit + 1)
        elif prefix:
            raise ValueError("a prefix needs a bucket")
        else:
            rows = await self._pool.fetch(EVERYWHERE, *after, wanted, limit + 1)
        held = tuple(_held(row) for row in rows[:limit])
        return HeldPage(held, held[-1].cursor if held and len(rows) > limit else None)

    async def show(self, bucket_id: int, key: bytes, seq: int | None = None, *, limit: int = 100) -> Sequence[Held]:
        """The held versions of a key, newest first, or the one with this sequence number. Empty: there is none."""
        if seq is None:
            rows = await self._pool.fetch(OF_KEY, bucket_id, key, limit)
        else:
            rows = await self._pool.fetch(ONE, bucket_id, key, seq)
        return [_held(row) for row in rows]

    async def count_hidden(self, bucket_id: int) -> int:
        """How many versions of a bucket LIST does not show because of what processing found."""
        counted: int = await self._pool.fetchval(
            "SELECT count(*) FROM version WHERE bucket_id = $1 AND state IN (3, 4)", bucket_id
        )
        return counted


def _held(row: asyncpg.Record) -> Held:
    return Held(
        ref=VersionRef(row["bucket_id"], row["key"], row["seq"], row["rnd"]),
        bucket=row["bucket"],
        account=row["account"],
        is_null=row["is_null"],
        state=State(row["state"]),
        code=row["code"],
        detail=row["detail"],
        etag=row["etag"] or "",
        size=row["size"],
        modified=row["modified"],
        content_type=row["content_type"],
        digest=row["digest"],
        owner_id=row["owner_id"],
        run_id=row["run_id"],
        generation=row["generation"],
        verdict_of=row["verdict_of"],
        processing=row["processing"],
    )
