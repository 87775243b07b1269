"""Deletes: of a key (a marker, or every null row) and of one version, batched across requests."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import asyncpg

from gateway.db import heads
from gateway.db.batching import Batcher
from gateway.db.completion import LOCK_TIMEOUT
from gateway.db.errors import BucketGone, Busy, DatabaseError, PreconditionFailed, WriteConflict
from gateway.db.versions import Which
from gateway.domain.ids import random64
from gateway.domain.objects import NULL_ID, Bucket, State, Versioning, VersionRef
from processing.ports import Conn
from storage_tiers import failpoints


@dataclass(frozen=True, slots=True)
class DeleteCondition:
    """What has to hold for the delete to happen; None: not asked. etag is without quotes, "*" any."""

    etag: str | None = None
    modified: datetime | None = None
    size: int | None = None


@dataclass(frozen=True, slots=True)
class DeleteItem:
    key: bytes
    which: Which = None
    condition: DeleteCondition | None = None


@dataclass(frozen=True, slots=True)
class Deleted:
    """version_id: the version deleted by id (echoed even when it was not there). marker_id: the marker that was made.

    is_marker: what was deleted, or made, is a delete marker.
    """

    version_id: str | None = None
    is_marker: bool = False
    marker_id: str | None = None


@dataclass(frozen=True, slots=True)
class _Request:
    bucket: Bucket
    item: DeleteItem
    owner_id: int


class Skipped(DatabaseError):
    """The head is locked by another process."""


class Deletions:
    def __init__(self, pool: asyncpg.Pool, engine: heads.Runs, *, blob_grace: float) -> None:
        self._pool, self._engine, self._grace = pool, engine, blob_grace
        self._batches: Batcher[_Request, Deleted] = Batcher(
            self._fly, key=lambda r: (r.bucket.id, r.item.key), tenant=lambda r: r.bucket.owner.id
        )

    async def delete(self, bucket: Bucket, items: Sequence[DeleteItem], owner_id: int) -> list[Deleted | Exception]:
        """Delete in order. Each item ends in a Deleted or one of BucketGone, PreconditionFailed, WriteConflict, Busy.

        owner_id owns the markers that are made.
        """
        # Several items may name one key, which flights keep apart: items go one after the other per key. One that
        # only repeats another is answered like it: a marker for each of a thousand repeats would help nobody.
        lines: dict[bytes, list[int]] = {}
        for index, item in enumerate(items):
            lines.setdefault(item.key, []).append(index)
        results: list[Deleted | Exception] = [Busy("")] * len(items)

        async def run(line: list[int]) -> None:
            done: dict[DeleteItem, Deleted | Exception] = {}
            for index in line:
                item = items[index]
                if item not in done:
                    try:
                        done[item] = await self._one(_Request(bucket, item, owner_id))
                    except (DatabaseError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
                        done[item] = error
                results[index] = done[item]

        await asyncio.gather(*(run(line) for line in lines.values()))
        return results

    async def _one(self, request: _Request) -> Deleted:
        try:
            return await self._batches.submit(request)
        except Skipped:
            pass
        try:
            async with self._pool.acquire() as conn, conn.transaction():
                await conn.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
                result = (await self._write(conn, [request], alone=True))[0]
        except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError):
            raise (WriteConflict if request.item.condition else Busy)(request.bucket.name) from None
        if isinstance(result, Exception):
            raise result
        return result

    async def _fly(self, batch: list[_Request]) -> Sequence[Deleted | Exception]:
        try:
            async with self._pool.acquire() as conn, conn.transaction():
                results = await self._write(conn, batch)
            failpoints.point("delete.committed")
            return results
        except (OSError, asyncpg.InterfaceError, asyncpg.PostgresConnectionError):
            return [Busy("the database connection was lost")] * len(batch)

    async def _write(self, conn: Conn, batch: Sequence[_Request], alone: bool = False) -> list[Deleted | Exception]:
        rows = await conn.fetch(
            "SELECT id, versioning FROM bucket WHERE id = ANY($1::bigint[]) ORDER BY id FOR KEY SHARE",
            sorted({r.bucket.id for r in batch}),
        )
        facts = {row["id"]: Versioning(row["versioning"]) for row in rows}
        keys = [(r.bucket.id, r.item.key) for r in batch]
        marking = [
            key
            for key, r in zip(keys, batch, strict=True)
            if r.item.which is None and facts.get(key[0], Versioning.OFF) is not Versioning.OFF
        ]
        if marking:
            await heads.insert_missing(conn, marking)
        locked = await heads.lock(conn, [key for key in keys if key[0] in facts], skip_locked=not alone)
        there = await _present(conn, [key for key in keys if key not in locked]) if not alone else set()
        rows = await _versions(conn, list(locked))
        held: dict[heads.Key, list[asyncpg.Record]] = {}
        for row in rows:
            held.setdefault((row["bucket_id"], row["key"]), []).append(row)
        results: list[Deleted | Exception] = []
        doomed: list[VersionRef] = []
        markers: list[tuple[_Request, VersionRef, bool]] = []
        for key, r in zip(keys, batch, strict=True):
            if key[0] not in facts:
                results.append(BucketGone(r.bucket.name))
            elif key not in locked and key in there:
                results.append(Skipped(repr(key)))
            else:
                results.append(_decide(r, facts[key[0]], locked.get(key), held.get(key, []), doomed, markers))
        await heads.remove_versions(conn, self._engine, doomed, self._grace)
        await _insert_markers(conn, markers)
        await heads.recompute(conn, [key for key in keys if key in locked])
        failpoints.point("delete.written")
        return results


def _decide(
    r: _Request,
    versioning: Versioning,
    head: heads.Head | None,
    rows: Sequence[asyncpg.Record],
    doomed: list[VersionRef],
    markers: list[tuple[_Request, VersionRef, bool]],
) -> Deleted | Exception:
    """What deleting one key means, given its locked head and its rows (newest first)."""
    which = r.item.which
    if which is None:
        current = next((row for row in rows if head and row["seq"] == head.current_seq), None)
        if failure := _refusal(r.item.condition, current):  # a delete marker is something that a condition sees
            return failure
        if r.item.condition is not None and current is None:  # nothing that the condition could be about: no marker
            return Deleted()
        if versioning is Versioning.ENABLED:
            if head is None or head.current_seq is None:  # only hidden rows: they go for good
                doomed += [_ref(row) for row in rows]
        else:
            doomed += [_ref(row) for row in rows if row["is_null"]]
        if versioning is Versioning.OFF:
            return Deleted()
        assert head is not None
        ref = VersionRef(r.bucket.id, r.item.key, head.seq + 1, random64())
        is_null = versioning is Versioning.SUSPENDED
        markers.append((r, ref, is_null))
        return Deleted(is_marker=True, marker_id=NULL_ID if is_null else ref.version_id)
    if which == NULL_ID:
        nulls = [row for row in rows if row["is_null"]]
        shown = next((row for row in nulls if row["state"] in (1, 2, 5)), nulls[0] if nulls else None)
        if failure := _refusal(r.item.condition, shown):
            return failure
        doomed += [_ref(row) for row in nulls]
        return Deleted(version_id=NULL_ID, is_marker=shown is not None and shown["state"] == State.MARKER)
    row = next((row for row in rows if (row["seq"], row["rnd"]) == which and not row["is_null"]), None)
    version_id = VersionRef(r.bucket.id, r.item.key, *which).version_id
    if failure := _refusal(r.item.condition, row):
        return failure
    if row is None:
        return Deleted(version_id=version_id)
    doomed.append(_ref(row))
    return Deleted(version_id=version_id, is_marker=row["state"] == State.MARKER)


def _refusal(condition: DeleteCondition | None, row: asyncpg.Record | None) -> Exception | None:
    """A condition on what is not there holds: a delete of a missing key succeeds."""
    if condition is None or row is None:
        return None
    if condition.etag is not None and condition.etag not in ("*", row["etag"]):
        return PreconditionFailed("If-Match")
    if condition.modified is not None and condition.modified != row["modified"].replace(microsecond=0):
        return PreconditionFailed("x-amz-if-match-last-modified-time")
    if condition.size is not None and condition.size != row["size"]:
        return PreconditionFailed("x-amz-if-match-size")
    return None


def _ref(row: asyncpg.Record) -> VersionRef:
    return VersionRef(row["bucket_id"], row["key"], row["seq"], row["rnd"])


async def _present(conn: Conn, keys: Sequence[heads.Key]) -> set[heads.Key]:
    """Which heads exist, though they could not be locked."""
    if not keys:
        return set()
    rows = await conn.fetch(
        """SELECT h.bucket_id, h.key FROM head h
             JOIN unnest($1::bigint[], $2::bytea[]) AS q (b, k) ON h.bucket_id = q.b AND h.key = q.k""",
        [key[0] for key in keys],
        [key[1] for key in keys],
    )
    return {(row["bucket_id"], row["key"]) for row in rows}


async def _versions(conn: Conn, keys: Sequence[heads.Key]) -> list[asyncpg.Record]:
    """The rows of locked keys, newest first."""
    return await conn.fetch(
        """SELECT v.bucket_id, v.key, v.seq, v.rnd, v.is_null, v.state, v.etag, v.size, v.modified
             FROM version v JOIN unnest($1::bigint[], $2::bytea[]) AS q (b, k) ON v.bucket_id = q.b AND v.key = q.k
            ORDER BY v.bucket_id, v.key, v.seq DESC""",
        [key[0] for key in keys],
        [key[1] for key in keys],
    )


async def _insert_markers(conn: Conn, markers: Sequence[tuple[_Request, VersionRef, bool]]) -> None:
    if not markers:
        return
    await conn.execute(
        """WITH q AS (SELECT * FROM unnest($1::bigint[], $2::bytea[], $3::bigint[], $4::bigint[], $5::bool[],
                                           $6::bigint[]) AS q (b, k, s, r, n, o)),
                raised AS (UPDATE head h SET seq = q.s FROM q WHERE h.bucket_id = q.b AND h.key = q.k)
           INSERT INTO version (bucket_id, key, seq, rnd, is_null, state, modified, owner_id, extents)
           SELECT b, k, s, r, n, 5, date_trunc('milliseconds', clock_timestamp()), o, 0 FROM q""",
        [ref.bucket_id for _, ref, _ in markers],
        [ref.key for _, ref, _ in markers],
        [ref.seq for _, ref, _ in markers],
        [ref.rnd for _, ref, _ in markers],
        [is_null for _, _, is_null in markers],
        [r.owner_id for r, _, _ in markers],
    )
