"""Buckets: their rows, their settings, and the one way to remove them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import asyncpg

from gateway.db.cache import Publish, Recent
from gateway.db.errors import BucketGone, Busy, DatabaseError
from gateway.db.identities import ACCOUNT, account_of
from gateway.domain.objects import Account, Bucket, Versioning
from processing.ports import Conn

BLOB_GRACE = 86400.0  # seconds
LOCK_TIMEOUT = "5s"
LAST = "\U0010ffff"  # sorts behind whatever a bucket name may contain

BUCKET = f"""b.id AS bucket_id, b.name AS bucket_name, b.location, b.versioning, b.acl, b.ownership, b.object_lock,
    b.config, b.generation, b.created_at, {ACCOUNT}"""
FROM = "FROM bucket b JOIN account a ON a.id = b.account_id"

HOLDS_ANYTHING = "SELECT EXISTS (SELECT FROM head WHERE bucket_id = $1)"
# Delete markers count as shown: ListObjectVersions shows them, and their owner can see why the bucket is not empty.
HOLDS_SHOWN = """
SELECT EXISTS (SELECT FROM head WHERE bucket_id = $1 AND listable)
    OR EXISTS (SELECT FROM head WHERE bucket_id = $1 AND current_seq IS NOT NULL)
"""
COUNT_HIDDEN = "SELECT count(*) FROM version WHERE bucket_id = $1 AND state IN (3, 4)"

# What may name a blob through an upload: a part of one extent, or the extents of a part. The same rule as
# everywhere for what is inline: those bytes may go at once, no slow reader of a file needs them.
QUEUE_PARTS = """
INSERT INTO blob_queue (blob, due_at)
SELECT bl.id, now() + CASE WHEN bl.tier = 'inline' THEN interval '0' ELSE $2 * interval '1 second' END
  FROM blob bl
 WHERE bl.id IN (SELECT blob FROM part WHERE bucket_id = $1 AND blob IS NOT NULL
                 UNION SELECT blob FROM part_extent WHERE bucket_id = $1)
 ORDER BY bl.id
ON CONFLICT DO NOTHING
"""
UPLOAD_TABLES = ("part_extent", "part", "upload", "completed_upload")


class BucketNotEmpty(DatabaseError):
    """The bucket holds versions. hidden: how many there are that LIST does not show, when it has no others; else 0."""

    def __init__(self, hidden: int = 0) -> None:
        super().__init__(f"{hidden} hidden versions" if hidden else "the bucket is not empty")
        self.hidden = hidden


class VersioningFixed(DatabaseError):
    """A bucket with object lock keeps its versioning enabled."""


@dataclass(frozen=True, slots=True)
class BucketPage:
    """Buckets by name; truncated: more follow the last one."""

    buckets: tuple[Bucket, ...]
    truncated: bool

    @property
    def last(self) -> str | None:
        return self.buckets[-1].name if self.buckets else None


class Buckets:
    """publish tells the other processes which bucket changed, once that is committed; ``invalidate`` hears it there.

    What get answers may be as old as a lost notification lets it be: writes read the facts they depend on in their
    own transaction, and reads compare the generation that their statement returned.
    """

    def __init__(
        self,
        pool: asyncpg.Pool,
        publish: Publish | None = None,
        *,
        blob_grace: float = BLOB_GRACE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pool, self._publish, self._grace = pool, publish, blob_grace
        self._known: Recent[str, Bucket] = Recent(clock)

    # --- lookups ---------------------------------------------------------------------------------------------------

    async def get(self, name: str, fresh: bool = False) -> Bucket | None:
        """The bucket of this name, from the cache unless fresh; that there is none is never remembered."""
        if not fresh and (known := self._known.get(name)) is not None:
            return known
        if not _nameable(name):
            return None
        epoch = self._known.epoch
        bucket = await self._one("b.name = $1", name)
        if bucket is None:
            self._known.drop(name)
        else:
            self._keep(bucket, epoch)
        return bucket

    async def by_id(self, bucket_id: int) -> Bucket | None:
        """The bucket with this id, read anew."""
        return await self._one("b.id = $1", bucket_id)

    async def list(
        self,
        account_id: int | None,
        *,
        prefix: str = "",
        after: str = "",
        limit: int = 1000,
        location: str | None = None,
    ) -> BucketPage:
        """Buckets of an account (None: of all) by name, those behind after (exclusive).

        location keeps the buckets created with that location constraint.
        """
        if limit <= 0 or not _nameable(prefix + after):
            return BucketPage((), False)
        rows = await self._pool.fetch(
            f"""SELECT {BUCKET} {FROM}
                 WHERE ($1::bigint IS NULL OR b.account_id = $1) AND b.name >= $2 AND b.name < $3 AND b.name > $4
                   AND ($5::text IS NULL OR b.location = $5)
                 ORDER BY b.name LIMIT $6""",
            account_id,
            prefix,
            prefix + LAST,
            after,
            location,
            limit + 1,
        )
        return BucketPage(tuple(bucket_of(row) for row in rows[:limit]), len(rows) > limit)

    # --- changes ---------------------------------------------------------------------------------------------------

    async def create(
        self,
        name: str,
        account: Account,
        location: str = "",
        acl: str = "private",
        ownership: str = "ObjectWriter",
        object_lock: bool = False,
    ) -> tuple[Bucket, bool]:
        """The bucket of this name, and whether this call made it.

        When it was there before, nothing changes, and its owner may be another: the caller decides what to answer.
        Object lock needs versions, so it enables versioning (S3 reference, CreateBucket).
        """
        versioning = Versioning.ENABLED if object_lock else Versioning.OFF
        while True:
            row = await self._pool.fetchrow(
                f"""WITH b AS (INSERT INTO bucket (name, account_id, location, acl, ownership, object_lock, versioning)
                               VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (name) DO NOTHING RETURNING *)
                    SELECT {BUCKET} FROM b JOIN account a ON a.id = b.account_id""",
                name,
                account.id,
                location,
                acl,
                ownership,
                object_lock,
                versioning,
            )
            if row is not None:
                return self._changed(bucket_of(row)), True
            there = await self.get(name, fresh=True)
            if there is not None:  # else it was deleted between the two statements
                return there, False

    async def delete(self, bucket: Bucket) -> None:
        """Remove an empty bucket; uploads still open are aborted with it. Raises BucketNotEmpty, BucketGone, Busy."""
        async with self._pool.acquire() as conn:
            await self._check_empty(conn, bucket.id)  # without a lock first: most refusals disturb no writer
            try:
                async with conn.transaction():
                    await conn.execute("SELECT set_config('lock_timeout', $1, true)", LOCK_TIMEOUT)
                    # Whoever adds to a bucket holds its row FOR KEY SHARE: what they added is seen after this.
                    if await conn.fetchval("SELECT id FROM bucket WHERE id = $1 FOR UPDATE", bucket.id) is None:
                        raise BucketGone(bucket.name)
                    await self._check_empty(conn, bucket.id)
                    await self._abort_uploads(conn, bucket.id)
                    await conn.execute("DELETE FROM bucket WHERE id = $1", bucket.id)
            except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError):
                raise Busy(bucket.name) from None
            finally:
                self._known.drop(bucket.name)
        self._tell(bucket.name)

    async def set_versioning(self, bucket: Bucket, versioning: Versioning) -> Bucket:
        """Raises BucketGone, and VersioningFixed when object lock forbids it."""
        if versioning is Versioning.OFF:
            raise ValueError("versioning can be suspended, never switched off")
        changed = await self._update(
            bucket.id, "versioning = $2", versioning, unless=f"object_lock AND $2 <> {Versioning.ENABLED:d}"
        )
        if changed is None:
            raise VersioningFixed(bucket.name)
        return changed

    async def set_config(self, bucket: Bucket, changes: Mapping[str, Any]) -> Bucket:
        """Merge changes into the bucket's settings; None removes one. Raises BucketGone."""
        given = {name: value for name, value in changes.items() if value is not None}
        removed = [name for name, value in changes.items() if value is None]
        changed = await self._update(bucket.id, "config = (config || $2::jsonb) - $3::text[]", given, removed)
        assert changed is not None
        return changed

    async def set_acl(self, bucket: Bucket, acl: str) -> Bucket:
        """A canned ACL. Raises BucketGone."""
        changed = await self._update(bucket.id, "acl = $2", acl)
        assert changed is not None
        return changed

    async def set_ownership(self, bucket: Bucket, ownership: str) -> Bucket:
        """An object ownership rule. Raises BucketGone."""
        changed = await self._update(bucket.id, "ownership = $2", ownership)
        assert changed is not None
        return changed

    # --- cache -----------------------------------------------------------------------------------------------------

    def invalidate(self, name: str = "") -> None:
        """Forget one bucket, or all of them (after a gap in the notifications)."""
        if name:
            self._known.drop(name)
        else:
            self._known.clear()

    def _keep(self, bucket: Bucket, epoch: int) -> None:
        known = self._known.get(bucket.name)
        if known is None or (bucket.id, bucket.generation) >= (known.id, known.generation):
            self._known.put(bucket.name, bucket, epoch)

    def _changed(self, bucket: Bucket) -> Bucket:
        self._known.drop(bucket.name)
        self._known.put(bucket.name, bucket, self._known.epoch)
        self._tell(bucket.name)
        return bucket

    def _tell(self, name: str) -> None:
        if self._publish is not None:
            self._publish("bucket", name)

    # --- statements ------------------------------------------------------------------------------------------------

    async def _one(self, condition: str, value: object) -> Bucket | None:
        row = await self._pool.fetchrow(f"SELECT {BUCKET} {FROM} WHERE {condition}", value)
        return None if row is None else bucket_of(row)

    async def _update(self, bucket_id: int, assignment: str, *values: object, unless: str = "false") -> Bucket | None:
        """None when unless held."""
        row = await self._pool.fetchrow(
            f"""WITH b AS (UPDATE bucket SET {assignment}, generation = generation + 1
                            WHERE id = $1 AND NOT ({unless}) RETURNING *)
                SELECT {BUCKET} FROM b JOIN account a ON a.id = b.account_id""",
            bucket_id,
            *values,
        )
        if row is not None:
            return self._changed(bucket_of(row))
        if unless == "false" or await self.by_id(bucket_id) is None:
            raise BucketGone(str(bucket_id))
        return None

    @staticmethod
    async def _check_empty(conn: Conn, bucket_id: int) -> None:
        if not await conn.fetchval(HOLDS_ANYTHING, bucket_id):
            return
        shown = await conn.fetchval(HOLDS_SHOWN, bucket_id)
        raise BucketNotEmpty(0 if shown else await conn.fetchval(COUNT_HIDDEN, bucket_id))

    async def _abort_uploads(self, conn: Conn, bucket_id: int) -> None:
        # The rows are locked before their parts are read: a part being stored holds its upload's row.
        await conn.execute(
            "SELECT FROM upload WHERE bucket_id = $1 ORDER BY bucket_id, key, upload_id FOR UPDATE", bucket_id
        )
        await conn.execute(QUEUE_PARTS, bucket_id, self._grace)
        for table in UPLOAD_TABLES:
            await conn.execute(f"DELETE FROM {table} WHERE bucket_id = $1", bucket_id)


def _nameable(name: str) -> bool:
    """Bucket names are ASCII; anything else names none, and some of it (U+0000) is no text to Postgres at all."""
    return name.isascii() and "\x00" not in name


def bucket_of(row: asyncpg.Record) -> Bucket:
    """A row with BUCKET as a value."""
    return Bucket(
        id=row["bucket_id"],
        name=row["bucket_name"],
        owner=account_of(row),
        created=row["created_at"],
        location=row["location"],
        versioning=Versioning(row["versioning"]),
        acl=row["acl"],
        ownership=row["ownership"],
        object_lock=row["object_lock"],
        config=row["config"],
        generation=row["generation"],
    )
