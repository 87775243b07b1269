"""Rows for tests of single modules, written directly: accounts, buckets, heads with versions, uploads, parts."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar
from uuid import uuid4

import asyncpg

from gateway.db.buckets import Buckets
from gateway.db.pool import open_pool
from gateway.domain.objects import Account, Bucket, State

WHEN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
_numbers = itertools.count(1)
Result = TypeVar("Result")


@asynccontextmanager
async def pool_of(dsn: str, size: int = 4) -> AsyncIterator[asyncpg.Pool]:
    pool = await open_pool(dsn, size)
    try:
        yield pool
    finally:
        await pool.close()


def with_pool(dsn: str, work: Callable[[asyncpg.Pool], Awaitable[Result]]) -> Result:
    async def main() -> Result:
        async with pool_of(dsn) as pool:
            return await work(pool)

    return asyncio.run(main())


async def new_account(pool: asyncpg.Pool, name: str | None = None) -> Account:
    name = name or f"tenant-{secrets.token_hex(6)}"
    row = await pool.fetchrow(
        "INSERT INTO account (canonical_id, name, display_name) VALUES ($1, $2, $2) RETURNING *",
        secrets.token_hex(32),
        name,
    )
    assert row is not None
    return Account(row["id"], row["canonical_id"], name, name, "", False)


async def new_bucket(pool: asyncpg.Pool, account: Account | None = None) -> Bucket:
    account = account or await new_account(pool)
    bucket, created = await Buckets(pool).create(f"b-{secrets.token_hex(8)}", account)
    assert created
    return bucket


@dataclass
class Row:
    """One version to write."""

    state: State
    is_null: bool = True
    seq: int = 0  # 0: the next
    rnd: int = 0
    code: str | None = None


async def put(conn: Any, bucket: Bucket, key: bytes, *rows: Row, etag: str = "e", size: int = 1) -> list[Row]:
    """Write the versions of a key, oldest first, and the head that they make."""
    for row in rows:
        row.seq = row.seq or next(_numbers)
        row.rnd = row.rnd or secrets.randbits(63)
        await conn.execute(
            """INSERT INTO version (bucket_id, key, seq, rnd, is_null, state, etag, size, modified, owner_id, code,
                                    checksums, checksum_type, blob)
               VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, 'FULL_OBJECT', NULL)""",
            bucket.id, key, row.seq, row.rnd, row.is_null, row.state, etag, size, WHEN, bucket.owner.id, row.code,
            {} if row.state is State.MARKER else {"crc32": "AAAAAA=="},
        )  # fmt: skip
    deciding = [row for row in rows if row.state in (State.SCANNING, State.READY, State.MARKER)]
    current = max(deciding, key=lambda row: row.seq, default=None)
    await conn.execute(
        """INSERT INTO head (bucket_id, key, seq, current_seq, listable, etag, size, modified, storage_class,
                             checksum_algorithm, checksum_type, owner_id)
           VALUES ($1, $2, $3, $4, $5, $6, $7, $8, 'STANDARD', 'CRC32', 'FULL_OBJECT', $9)""",
        bucket.id, key, max(row.seq for row in rows), current and current.seq,
        current is not None and current.state is not State.MARKER, etag, size, WHEN, bucket.owner.id,
    )  # fmt: skip
    return list(rows)


async def put_heads(pool: asyncpg.Pool, bucket: Bucket, keys: list[bytes], listable: bool = True) -> None:
    """Many keys at once, heads only: all that LIST reads."""
    await pool.execute(
        """INSERT INTO head (bucket_id, key, seq, current_seq, listable, etag, size, modified, storage_class, owner_id)
           SELECT $1, k, 1, 1, $3, 'e', 1, $4, 'STANDARD', $5 FROM unnest($2::bytea[]) k""",
        bucket.id, keys, listable, WHEN, bucket.owner.id,
    )  # fmt: skip


async def put_upload(pool: asyncpg.Pool, bucket: Bucket, key: bytes, upload_id: str) -> None:
    await pool.execute(
        """INSERT INTO upload (bucket_id, key, upload_id, initiated, initiator_id, owner_id, storage_class)
           VALUES ($1, $2, $3, $4, $5, $5, 'STANDARD')""",
        bucket.id, key, upload_id, WHEN, bucket.owner.id,
    )  # fmt: skip


async def put_part(
    pool: asyncpg.Pool, bucket: Bucket, key: bytes, upload_id: str, number: int, tier: str = "STANDARD",
    checksums: Mapping[str, str] | None = None, extents: int = 1,
) -> list[Any]:  # fmt: skip
    """A part with its live blobs; returns their ids."""
    blobs = [uuid4() for _ in range(extents)]
    await pool.executemany(
        "INSERT INTO blob (id, state, tier, size) VALUES ($1, 2, $2, 1)", [(blob, tier) for blob in blobs]
    )
    await pool.execute(
        """INSERT INTO part (bucket_id, key, upload_id, number, size, etag, sha256, checksums, modified, blob, extents)
           VALUES ($1, $2, $3, $4, 1, 'e', '', $5, $6, $7, $8)""",
        bucket.id, key, upload_id, number, dict(checksums or {}), WHEN, blobs[0] if extents == 1 else None, extents,
    )  # fmt: skip
    if extents > 1:
        await pool.executemany(
            "INSERT INTO part_extent VALUES ($1, $2, $3, $4, $5, $6, 0, 1)",
            [(bucket.id, key, upload_id, number, i, blob) for i, blob in enumerate(blobs)],
        )
    return blobs
