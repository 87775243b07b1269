"""Multipart uploads: parts are lists of extents, so that completing and copying move no bytes."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg

from gateway.db import blobs
from gateway.db.batching import Batcher
from gateway.db.errors import BucketGone, NoSuchUpload, SourceGone, StagingLost
from gateway.db.insertion import Inline, Staged
from gateway.domain.ids import blob_id
from gateway.domain.objects import Attributes, Bucket, Extent, State, VersionRef
from processing.ports import Conn
from storage_tiers import failpoints


@dataclass(frozen=True, slots=True)
class Upload:
    """A multipart upload in progress. mode: sync or async, as asked at its creation."""

    bucket_id: int
    key: bytes
    upload_id: str
    initiated: datetime
    initiator_id: int
    owner_id: int
    attributes: Attributes
    checksum_algorithm: str | None
    checksum_type: str | None
    mode: str | None


@dataclass(frozen=True, slots=True)
class PartRow:
    """A stored part. etag is its MD5 in hex, without quotes; modified is None before it is stored."""

    number: int
    size: int
    etag: str
    sha256: bytes
    checksums: Mapping[str, str] = field(default_factory=dict)
    modified: datetime | None = None


@dataclass(frozen=True, slots=True)
class StoredPart:
    """A part as completion needs it: blob is None when it is empty or has several extents."""

    row: PartRow
    blob: UUID | None
    offset: int
    extents: int


@dataclass(frozen=True, slots=True)
class CompletedUpload:
    """What a Complete answered, for a repeat of it. request is the SHA-256 of its list of parts."""

    ref: VersionRef
    request: bytes
    document: str
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _NewPart:
    upload: Upload
    part: PartRow
    source: Inline | Staged


class Uploads:
    def __init__(self, pool: asyncpg.Pool, *, blob_grace: float) -> None:
        self._pool, self._grace = pool, blob_grace
        self._parts: Batcher[_NewPart, datetime] = Batcher(
            self._fly,
            key=lambda p: (p.upload.upload_id, p.part.number),
            weight=lambda p: len(p.source.data) if isinstance(p.source, Inline) else 0,
        )

    async def create(
        self,
        bucket: Bucket,
        key: bytes,
        owner_id: int,
        initiator_id: int,
        attributes: Attributes,
        checksum_algorithm: str | None,
        checksum_type: str | None,
        mode: str | None,
    ) -> Upload:
        """Open an upload. Raises BucketGone."""
        upload_id = f"{time.time_ns():016x}{os.urandom(16).hex()}"  # uploads of a key list in order of initiation
        row = await self._pool.fetchrow(
            """INSERT INTO upload (bucket_id, key, upload_id, initiated, initiator_id, owner_id, storage_class,
                                   content_type, headers, metadata, tags, acl, checksum_algorithm, checksum_type, mode)
               SELECT b.id, $2, $3, date_trunc('milliseconds', clock_timestamp()), $4, $5, $6, $7, $8, $9, $10, $11,
                      $12, $13, $14
                 FROM (SELECT id FROM bucket WHERE id = $1 FOR KEY SHARE) b
               RETURNING *""",
            bucket.id,
            key,
            upload_id,
            initiator_id,
            owner_id,
            attributes.storage_class,
            attributes.content_type,
            dict(attributes.headers),
            dict(attributes.metadata),
            dict(attributes.tags),
            attributes.acl,
            checksum_algorithm,
            checksum_type,
            mode,
        )
        if row is None:
            raise BucketGone(bucket.name)
        return upload_of(row)

    async def get(self, bucket: Bucket, key: bytes, upload_id: str) -> Upload:
        """Raises NoSuchUpload."""
        row = await self._pool.fetchrow(
            "SELECT * FROM upload WHERE bucket_id = $1 AND key = $2 AND upload_id = $3", bucket.id, key, upload_id
        )
        if row is None:
            raise NoSuchUpload(upload_id)
        return upload_of(row)

    async def put_part(self, upload: Upload, part: PartRow, source: Inline | Staged) -> datetime:
        """Store a part, replacing one of the same number, while the upload is open; returns its Last-Modified.

        Raises NoSuchUpload, StagingLost.
        """
        return await self._parts.submit(_NewPart(upload, part, source))

    async def _fly(self, batch: list[_NewPart]) -> Sequence[datetime | Exception]:
        async with self._pool.acquire() as conn, conn.transaction():
            opened = await lock_uploads(conn, [p.upload for p in batch], "FOR KEY SHARE")
            results: list[datetime | Exception] = [NoSuchUpload(p.upload.upload_id) for p in batch]
            kept = [i for i, p in enumerate(batch) if _name(p.upload) in opened]
            staged = [i for i in kept if isinstance(batch[i].source, Staged) and batch[i].part.size]
            live = await blobs.make_live(
                conn,
                [batch[i].source.blob for i in staged],  # type: ignore[union-attr]
                [batch[i].part.size for i in staged],
                [batch[i].part.sha256 for i in staged],
            )
            for i in staged:
                if batch[i].source.blob not in live:  # type: ignore[union-attr]
                    results[i] = StagingLost(str(batch[i].source.blob))  # type: ignore[union-attr]
            kept = [i for i in kept if not isinstance(results[i], StagingLost)]
            if not kept:
                return results
            inline = {i: blob_id() for i in kept if isinstance(batch[i].source, Inline) and batch[i].part.size}
            await blobs.insert_inline(
                conn,
                list(inline.values()),
                [batch[i].source.data for i in inline],  # type: ignore[union-attr]
                [batch[i].part.sha256 for i in inline],
            )
            ids: list[UUID | None] = []
            for i in kept:
                source = batch[i].source
                ids.append(source.blob if isinstance(source, Staged) and batch[i].part.size else inline.get(i))
            moments = await self._upsert(conn, [batch[i] for i in kept], ids)
            for i, moment in zip(kept, moments, strict=True):
                results[i] = moment
            failpoints.point("part.written")
        failpoints.point("part.committed")
        return results

    async def _upsert(self, conn: Conn, parts: Sequence[_NewPart], ids: Sequence[UUID | None]) -> list[datetime]:
        names = [_name(p.upload) for p in parts]
        await self._forget_parts(conn, [(*name, p.part.number) for name, p in zip(names, parts, strict=True)])
        moment: datetime = await conn.fetchval(
            """WITH moment AS (SELECT date_trunc('milliseconds', clock_timestamp()) AS at),
                    written AS (
               INSERT INTO part (bucket_id, key, upload_id, number, size, etag, sha256, checksums, modified, blob,
                                 blob_offset, extents)
               SELECT b, k, u, n, sz, et, sh, cs, moment.at, bl, 0, CASE WHEN bl IS NULL THEN 0 ELSE 1 END
                 FROM moment, unnest($1::bigint[], $2::bytea[], $3::text[], $4::int[], $5::bigint[], $6::text[],
                                     $7::bytea[], $8::jsonb[], $9::uuid[]) AS q (b, k, u, n, sz, et, sh, cs, bl)
                ORDER BY b, k, u, n
               ON CONFLICT (bucket_id, key, upload_id, number) DO UPDATE
                  SET size = excluded.size, etag = excluded.etag, sha256 = excluded.sha256,
                      checksums = excluded.checksums, modified = excluded.modified, blob = excluded.blob,
                      blob_offset = excluded.blob_offset, extents = excluded.extents)
               SELECT at FROM moment""",
            [name[0] for name in names],
            [name[1] for name in names],
            [name[2] for name in names],
            [p.part.number for p in parts],
            [p.part.size for p in parts],
            [p.part.etag for p in parts],
            [p.part.sha256 for p in parts],
            [dict(p.part.checksums) for p in parts],
            list(ids),
        )
        return [moment] * len(parts)

    async def _forget_parts(self, conn: Conn, names: Sequence[tuple[int, bytes, str, int]]) -> None:
        """Delete parts that are about to be replaced and give their blobs to the collector."""
        ordered = sorted(names)
        rows = await conn.fetch(
            """WITH q AS (SELECT * FROM unnest($1::bigint[], $2::bytea[], $3::text[], $4::int[]) AS q (b, k, u, n)),
                    locked AS (SELECT p.* FROM part p JOIN q
                                   ON p.bucket_id = q.b AND p.key = q.k AND p.upload_id = q.u AND p.number = q.n
                                ORDER BY p.bucket_id, p.key, p.upload_id, p.number FOR UPDATE OF p),
                    spans AS (DELETE FROM part_extent e USING q
                               WHERE e.bucket_id = q.b AND e.key = q.k AND e.upload_id = q.u AND e.number = q.n
                              RETURNING e.blob)
               SELECT blob FROM locked WHERE blob IS NOT NULL UNION ALL SELECT blob FROM spans""",
            [name[0] for name in ordered],
            [name[1] for name in ordered],
            [name[2] for name in ordered],
            [name[3] for name in ordered],
        )
        await blobs.drop_references(conn, [row["blob"] for row in rows], self._grace)

    async def copy_part(self, upload: Upload, part: PartRow, source: VersionRef, pieces: Sequence[Extent]) -> datetime:
        """Store a part that shares the pieces of a ready version. Raises NoSuchUpload, SourceGone."""
        async with self._pool.acquire() as conn, conn.transaction():
            if not await lock_uploads(conn, [upload], "FOR KEY SHARE"):
                raise NoSuchUpload(upload.upload_id)
            state = await conn.fetchval(
                "SELECT state FROM version WHERE bucket_id = $1 AND key = $2 AND seq = $3 AND rnd = $4",
                source.bucket_id,
                source.key,
                source.seq,
                source.rnd,
            )
            if state != State.READY or not await blobs.share(conn, [piece.blob for piece in pieces]):
                raise SourceGone(source.version_id)
            name = _name(upload)
            await self._forget_parts(conn, [(*name, part.number)])
            one = pieces[0] if len(pieces) == 1 else None
            moment: datetime = await conn.fetchval(
                """INSERT INTO part (bucket_id, key, upload_id, number, size, etag, sha256, checksums, modified, blob,
                                     blob_offset, extents)
                   VALUES ($1, $2, $3, $4, $5, $6, $7, $8, date_trunc('milliseconds', clock_timestamp()), $9, $10, $11)
                   ON CONFLICT (bucket_id, key, upload_id, number) DO UPDATE
                      SET size = excluded.size, etag = excluded.etag, sha256 = excluded.sha256,
                          checksums = excluded.checksums, modified = excluded.modified, blob = excluded.blob,
                          blob_offset = excluded.blob_offset, extents = excluded.extents
                   RETURNING modified""",
                *name,
                part.number,
                part.size,
                part.etag,
                part.sha256,
                dict(part.checksums),
                one.blob if one else None,
                one.offset if one else 0,
                len(pieces),
            )
            if one is None and pieces:
                await conn.execute(
                    """INSERT INTO part_extent (bucket_id, key, upload_id, number, idx, blob, blob_offset, length)
                       SELECT $1, $2, $3, $4, i - 1, b, o, l
                         FROM unnest($5::uuid[], $6::bigint[], $7::bigint[]) WITH ORDINALITY AS q (b, o, l, i)""",
                    *name,
                    part.number,
                    [piece.blob for piece in pieces],
                    [piece.offset for piece in pieces],
                    [piece.length for piece in pieces],
                )
            return moment

    async def abort(self, bucket: Bucket, key: bytes, upload_id: str) -> None:
        """End an upload and give its parts to the collector. Raises NoSuchUpload (after Complete too)."""
        async with self._pool.acquire() as conn, conn.transaction():
            row = await conn.fetchrow(
                "SELECT * FROM upload WHERE bucket_id = $1 AND key = $2 AND upload_id = $3 FOR UPDATE",
                bucket.id,
                key,
                upload_id,
            )
            if row is None:
                raise NoSuchUpload(upload_id)
            await remove_upload(conn, bucket.id, key, upload_id, (), self._grace)

    async def completed(self, bucket: Bucket, key: bytes, upload_id: str) -> CompletedUpload | None:
        """What a Complete of this upload answered within the last 7 days."""
        row = await self._pool.fetchrow(
            "SELECT * FROM completed_upload WHERE bucket_id = $1 AND key = $2 AND upload_id = $3",
            bucket.id,
            key,
            upload_id,
        )
        if row is None:
            return None
        ref = VersionRef(row["bucket_id"], row["key"], row["seq"], row["rnd"])
        return CompletedUpload(ref, row["request"], row["document"], row["headers"])


def _name(upload: Upload) -> tuple[int, bytes, str]:
    return upload.bucket_id, upload.key, upload.upload_id


def upload_of(row: Mapping[str, Any] | asyncpg.Record) -> Upload:
    return Upload(
        bucket_id=row["bucket_id"],
        key=row["key"],
        upload_id=row["upload_id"],
        initiated=row["initiated"],
        initiator_id=row["initiator_id"],
        owner_id=row["owner_id"],
        attributes=Attributes(
            row["content_type"], row["headers"], row["metadata"], row["tags"], row["storage_class"], row["acl"]
        ),
        checksum_algorithm=row["checksum_algorithm"],
        checksum_type=row["checksum_type"],
        mode=row["mode"],
    )


async def lock_uploads(conn: Conn, uploads: Sequence[Upload], strength: str) -> set[tuple[int, bytes, str]]:
    """Lock open uploads in order; the answer lacks those that are not open any more."""
    names = sorted({_name(upload) for upload in uploads})
    rows = await conn.fetch(
        f"""SELECT u.bucket_id, u.key, u.upload_id
              FROM upload u JOIN unnest($1::bigint[], $2::bytea[], $3::text[]) AS q (b, k, i)
                ON u.bucket_id = q.b AND u.key = q.k AND u.upload_id = q.i
             ORDER BY u.bucket_id, u.key, u.upload_id {strength} OF u""",
        [name[0] for name in names],
        [name[1] for name in names],
        [name[2] for name in names],
    )
    return {(row["bucket_id"], row["key"], row["upload_id"]) for row in rows}


async def stored_parts(conn: Conn, bucket_id: int, key: bytes, upload_id: str) -> dict[int, StoredPart]:
    """All parts of a locked upload by number."""
    rows = await conn.fetch(
        """SELECT number, size, etag, sha256, checksums, modified, blob, blob_offset, extents FROM part
            WHERE bucket_id = $1 AND key = $2 AND upload_id = $3 ORDER BY number""",
        bucket_id,
        key,
        upload_id,
    )
    return {
        row["number"]: StoredPart(PartRow(*row[:6]), row["blob"], row["blob_offset"], row["extents"]) for row in rows
    }


async def remove_upload(
    conn: Conn, bucket_id: int, key: bytes, upload_id: str, used: Sequence[int], grace: float
) -> None:
    """Delete a locked upload with its parts; the blobs of parts not in used go to the collector."""
    rows = await conn.fetch(
        """WITH gone AS (DELETE FROM part WHERE bucket_id = $1 AND key = $2 AND upload_id = $3 RETURNING number, blob),
                spans AS (DELETE FROM part_extent WHERE bucket_id = $1 AND key = $2 AND upload_id = $3
                          RETURNING number, blob),
                done AS (DELETE FROM upload WHERE bucket_id = $1 AND key = $2 AND upload_id = $3)
           SELECT blob FROM gone WHERE blob IS NOT NULL AND number <> ALL($4::int[])
           UNION ALL SELECT blob FROM spans WHERE number <> ALL($4::int[])""",
        bucket_id,
        key,
        upload_id,
        list(used),
    )
    await blobs.drop_references(conn, [row["blob"] for row in rows], grace)
