"""The rows of new versions: values that describe them, and the statements that write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from gateway.db import blobs, verdicts
from gateway.db.errors import DatabaseError
from gateway.domain.keys import extension
from gateway.domain.objects import Attributes, Bucket, State, VersionRef, WriteCondition
from processing.ports import Conn


@dataclass(frozen=True, slots=True)
class Inline:
    """A small body: its bytes travel in the transaction."""

    data: bytes
    sha256: bytes


@dataclass(frozen=True, slots=True)
class Staged:
    """A body that lies whole and durable in a tier, under a staging row."""

    blob: UUID
    tier: str
    sha256: bytes


@dataclass(frozen=True, slots=True)
class Shared:
    """The content of another version: no byte moves. fresh: give this version a run of its own in any case."""

    source: VersionRef
    archived: bool = False  # the source is read from its restored copy


@dataclass(frozen=True, slots=True)
class Parts:
    """Parts of a multipart upload that the same transaction has locked; blobs are theirs."""

    upload_id: str
    numbers: Sequence[int]
    extents: int
    only: tuple[UUID, int] | None  # the one extent, when there is just one


Source = Inline | Staged | Shared | Parts


@dataclass(frozen=True, slots=True)
class Completion:
    bucket: Bucket
    key: bytes
    owner_id: int
    attributes: Attributes
    etag: str
    size: int
    digest: str
    checksums: Mapping[str, str]
    checksum_type: str | None
    source: Source
    condition: WriteCondition | None = None
    mode: Literal["sync", "async"] = "async"


class Skipped(DatabaseError):
    """The head was locked by another process: the write leaves its batch and goes alone."""


@dataclass(frozen=True, slots=True)
class Completed:
    """version_id is None in a bucket that never had versioning. Durable when it is returned."""

    ref: VersionRef
    version_id: str | None
    state: State
    code: str | None
    detail: str | None
    run_id: int | None
    modified: datetime
    repeated: bool = False
    document: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a new version's bytes lie: one extent in the row, or several rows. source facts of a copy."""

    blob: UUID | None
    offset: int
    extents: int
    parts: int
    ready: bool = False
    fingerprint: str | None = None
    source: VersionRef | None = None
    source_type: str | None = None
    processing: Mapping[str, Any] = field(default_factory=dict)

    def inherits(self, c: Completion, fingerprint: str | None) -> bool:
        """A copy of ready content, of the same extension and type, under the same pipeline, is ready."""
        if self.source is None or not self.ready or fingerprint is None:
            return False
        return (
            self.fingerprint == fingerprint
            and self.source_type == c.attributes.content_type
            and extension(self.source.key) == extension(c.key)
        )


async def share_source(conn: Conn, source: Shared) -> Layout | None:
    """The source's extents, its blobs locked against the collector; None when it may not be served any more."""
    row = await conn.fetchrow(
        """SELECT state, blob, blob_offset, extents, parts, content_type, fingerprint, processing, verdict_of,
                  CASE WHEN restored_until > now() THEN restored_blob END AS restored
             FROM version WHERE bucket_id = $1 AND key = $2 AND seq = $3 AND rnd = $4""",
        source.source.bucket_id,
        source.source.key,
        source.source.seq,
        source.source.rnd,
    )
    if row is None or row["state"] != State.READY:
        return None
    blob, offset, extents = row["blob"], row["blob_offset"], row["extents"]
    if source.archived:
        if row["restored"] is None:
            return None
        blob, offset, extents = row["restored"], 0, 1
    ids = [blob] if blob is not None else []
    if blob is None and extents:
        found = await conn.fetch(
            "SELECT DISTINCT blob FROM extent WHERE bucket_id = $1 AND key = $2 AND seq = $3",
            source.source.bucket_id,
            source.source.key,
            source.source.seq,
        )
        ids = [r["blob"] for r in found]
    if not await blobs.share(conn, ids):
        return None
    return Layout(
        blob,
        offset,
        extents,
        row["parts"],
        ready=row["verdict_of"] != "released" and verdicts.lendable(None, row["processing"]),
        fingerprint=row["fingerprint"],
        source=source.source,
        source_type=row["content_type"],
        processing=row["processing"],
    )


async def insert_versions(
    conn: Conn,
    batch: Sequence[Completion],
    refs: Sequence[VersionRef],
    nulls: Sequence[bool],
    content: Sequence[Layout],
    prints: Sequence[str | None],
    known: Sequence[verdicts.KnownVerdict | None],
    run_ids: Mapping[int, int],
) -> datetime:
    """The version rows. Last-Modified is the database's time, in whole milliseconds; returned."""
    indexes = range(len(batch))
    moment: datetime = await conn.fetchval(
        """WITH moment AS (SELECT date_trunc('milliseconds', clock_timestamp()) AS at),
                written AS (
           INSERT INTO version (bucket_id, key, seq, rnd, is_null, state, etag, size, modified, storage_class,
                                content_type, headers, metadata, tags, checksums, checksum_type, digest, acl, owner_id,
                                blob, blob_offset, extents, parts, fingerprint, processing, code, detail, run_id,
                                verdict_of, sync)
           SELECT b, k, s, r, n, st, et, sz, moment.at, sc, ct, hd, md, tg, cs, cy, dg, ac, ow, bl, bo, ex, pa, fp, pr,
                  co, de, ru, vo, sy
             FROM moment, unnest($1::bigint[], $2::bytea[], $3::bigint[], $4::bigint[], $5::bool[], $6::smallint[],
                         $7::text[], $8::bigint[], $9::text[], $10::text[], $11::jsonb[], $12::jsonb[], $13::jsonb[],
                         $14::jsonb[], $15::text[], $16::text[], $17::text[], $18::bigint[], $19::uuid[],
                         $20::bigint[], $21::int[], $22::int[], $23::text[], $24::jsonb[], $25::text[], $26::text[],
                         $27::bigint[], $28::text[], $29::bool[])
                  AS q (b, k, s, r, n, st, et, sz, sc, ct, hd, md, tg, cs, cy, dg, ac, ow, bl, bo, ex, pa, fp, pr, co,
                        de, ru, vo, sy))
           SELECT at FROM moment""",
        [ref.bucket_id for ref in refs],
        [ref.key for ref in refs],
        [ref.seq for ref in refs],
        [ref.rnd for ref in refs],
        list(nulls),
        [int(v.state) if v else int(State.SCANNING) for v in known],
        [c.etag for c in batch],
        [c.size for c in batch],
        [c.attributes.storage_class for c in batch],
        [c.attributes.content_type for c in batch],
        [dict(c.attributes.headers) for c in batch],
        [dict(c.attributes.metadata) for c in batch],
        [dict(c.attributes.tags) for c in batch],
        [dict(c.checksums) for c in batch],
        [c.checksum_type for c in batch],
        [c.digest for c in batch],
        [c.attributes.acl for c in batch],
        [c.owner_id for c in batch],
        [layout.blob for layout in content],
        [layout.offset for layout in content],
        [layout.extents for layout in content],
        [layout.parts for layout in content],
        list(prints),
        [dict(v.processing) if v else {} for v in known],
        [v.code if v else None for v in known],
        [v.detail if v else None for v in known],
        [run_ids.get(i) for i in indexes],
        ["reused" if v else None for v in known],
        [c.mode == "sync" for c in batch],
    )
    return moment


async def insert_parts(conn: Conn, c: Completion, ref: VersionRef) -> None:
    """Turn an upload's parts into the version's parts and, when there are several, its extents."""
    assert isinstance(c.source, Parts)
    arguments = ref.bucket_id, ref.key, ref.seq, c.source.upload_id, list(c.source.numbers)
    await conn.execute(
        """INSERT INTO version_part (bucket_id, key, seq, number, start, size, etag, checksums)
           SELECT bucket_id, key, $3, number, sum(size) OVER (ORDER BY number) - size, size, etag, checksums
             FROM part WHERE bucket_id = $1 AND key = $2 AND upload_id = $4 AND number = ANY($5::int[])""",
        *arguments,
    )
    if c.source.only is None and c.source.extents:
        await conn.execute(
            """INSERT INTO extent (bucket_id, key, seq, idx, start, blob, blob_offset, length)
               SELECT $1, $2, $3, row_number() OVER w - 1, sum(length) OVER w - length, blob, blob_offset, length
                 FROM (SELECT number, 0 AS idx, blob, blob_offset, size AS length FROM part
                        WHERE bucket_id = $1 AND key = $2 AND upload_id = $4 AND number = ANY($5::int[])
                          AND blob IS NOT NULL
                       UNION ALL
                       SELECT number, idx, blob, blob_offset, length FROM part_extent
                        WHERE bucket_id = $1 AND key = $2 AND upload_id = $4 AND number = ANY($5::int[])) spans
               WINDOW w AS (ORDER BY number, idx)""",
            *arguments,
        )


async def share_parts(conn: Conn, source: VersionRef, ref: VersionRef, layout: Layout) -> None:
    """A copy carries its source's parts and shares its extents."""
    arguments = ref.bucket_id, ref.key, ref.seq, source.bucket_id, source.key, source.seq
    if layout.parts:
        await conn.execute(
            """INSERT INTO version_part (bucket_id, key, seq, number, start, size, etag, checksums)
               SELECT $1, $2, $3, number, start, size, etag, checksums FROM version_part
                WHERE bucket_id = $4 AND key = $5 AND seq = $6""",
            *arguments,
        )
    if layout.blob is None and layout.extents:
        await conn.execute(
            """INSERT INTO extent (bucket_id, key, seq, idx, start, blob, blob_offset, length)
               SELECT $1, $2, $3, idx, start, blob, blob_offset, length FROM extent
                WHERE bucket_id = $4 AND key = $5 AND seq = $6""",
            *arguments,
        )
