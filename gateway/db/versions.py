"""Reads of versions: what a key is now, batched across requests into one statement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import asyncpg

from gateway.db.batching import Batcher
from gateway.domain.objects import Bucket, Extent, Resolved, State, Version, VersionRef

Which = Literal["null"] | tuple[int, int] | None
CURRENT: None = None
NULL: Literal["null"] = "null"

COLUMNS = """v.bucket_id, v.key, v.seq, v.rnd, v.is_null, v.state, v.etag, v.size, v.modified, v.storage_class,
    v.content_type, v.headers, v.metadata, v.tags, v.checksums, v.checksum_type, v.digest, v.acl, v.owner_id, v.parts,
    v.extents, v.code, v.detail, v.processing, v.generation, v.run_id, v.restoring, v.restored_until, v.expires_at"""

CONTENT = "LEFT JOIN blob bl ON bl.id = CASE WHEN v.restored_until > now() THEN v.restored_blob ELSE v.blob END"

# The bytes of a small object come along, but only those of content that may leave: a ready version's.
PLACE = """bl.id AS blob, bl.tier, bl.corrupt,
    CASE WHEN bl.id = v.blob THEN v.blob_offset ELSE 0 END AS blob_offset,
    CASE WHEN q.bytes AND v.state = 2 THEN bl.bytes END AS bytes"""

# A key's head names the version that decides; without one the newest skipped version does.
RESOLVE_CURRENT = f"""
SELECT q.i, b.generation AS bucket_generation, clock_timestamp() AS now, true AS is_current,
       n.state AS newer_state, n.run_id AS newer_run,
       {PLACE},
       {COLUMNS}
  FROM unnest($1::int[], $2::bigint[], $3::bytea[], $4::bool[]) AS q (i, bucket_id, key, bytes)
  LEFT JOIN bucket b ON b.id = q.bucket_id
  LEFT JOIN head h ON h.bucket_id = q.bucket_id AND h.key = q.key
  LEFT JOIN version v
         ON v.bucket_id = h.bucket_id AND v.key = h.key
        AND v.seq = CASE WHEN h.current_seq IS NOT NULL THEN h.current_seq
                         ELSE (SELECT max(s.seq) FROM version s WHERE s.bucket_id = h.bucket_id AND s.key = h.key) END
  LEFT JOIN LATERAL (
       SELECT s.state, s.run_id FROM version s
        WHERE h.seq > h.current_seq AND s.bucket_id = h.bucket_id AND s.key = h.key AND s.seq > h.current_seq
        ORDER BY s.seq DESC LIMIT 1) n ON true
  {CONTENT}
"""

# mode 1: the version with this seq and rnd. 2: the null version a read resolves to: the current one, else
# the newest that is not skipped, else the newest. 3: the newest ready version (while_scanning = previous), else the
# newest not skipped. 4: as 1, null versions too, whose seq and rnd only the gateway knows.
RESOLVE_OTHER = f"""
SELECT q.i, b.generation AS bucket_generation, clock_timestamp() AS now,
       v.seq IS NOT DISTINCT FROM h.current_seq AS is_current,
       n.state AS newer_state, n.run_id AS newer_run,
       {PLACE},
       {COLUMNS}
  FROM unnest($1::int[], $2::bigint[], $3::bytea[], $4::bool[], $5::smallint[], $6::bigint[], $7::bigint[])
       AS q (i, bucket_id, key, bytes, mode, seq, rnd)
  LEFT JOIN bucket b ON b.id = q.bucket_id
  LEFT JOIN head h ON h.bucket_id = q.bucket_id AND h.key = q.key
  LEFT JOIN LATERAL (
       SELECT * FROM (
           SELECT s.* FROM version s
            WHERE q.mode IN (1, 4) AND s.bucket_id = q.bucket_id AND s.key = q.key AND s.seq = q.seq AND s.rnd = q.rnd
              AND (q.mode = 4 OR NOT s.is_null)
           UNION ALL
           (SELECT s.* FROM version s
             WHERE q.mode = 2 AND s.bucket_id = q.bucket_id AND s.key = q.key AND s.is_null
             ORDER BY s.seq IS NOT DISTINCT FROM h.current_seq DESC, s.state IN (1, 2, 5) DESC, s.seq DESC LIMIT 1)
           UNION ALL
           (SELECT s.* FROM version s
             WHERE q.mode = 3 AND s.bucket_id = q.bucket_id AND s.key = q.key
             ORDER BY s.state IN (2, 5) DESC, s.state IN (1, 2, 5) DESC, s.seq DESC LIMIT 1)
       ) candidates LIMIT 1) v ON true
  LEFT JOIN LATERAL (
       SELECT s.state, s.run_id FROM version s
        WHERE q.mode = 3 AND h.seq > v.seq AND s.bucket_id = q.bucket_id AND s.key = q.key AND s.seq > v.seq
          AND s.state IN (3, 4)
        ORDER BY s.seq DESC LIMIT 1) n ON true
  {CONTENT}
"""

MODES = {"id": 1, "null": 2, "ready": 3, "internal": 4}


@dataclass(frozen=True, slots=True)
class VersionPart:
    """One part of a multipart version. start is its offset in the object, in bytes."""

    number: int
    start: int
    size: int
    etag: str
    checksums: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Lookup:
    bucket_id: int
    key: bytes
    which: Which
    prefer_ready: bool
    content: bool
    internal: bool = False  # name a null version by its seq and rnd, as the gateway itself does

    @property
    def pair(self) -> tuple[int, int]:
        return self.which if isinstance(self.which, tuple) else (0, 0)

    @property
    def mode(self) -> str:
        if isinstance(self.which, tuple):
            return "internal" if self.internal else "id"
        return "null" if self.which == NULL else "ready" if self.prefer_ready else "current"


class Versions:
    """Looks versions up. One statement serves all lookups that arrive while the last one is in flight."""

    def __init__(self, pool: asyncpg.Pool, flights: int = 4) -> None:
        self._pool = pool
        self._lookups: Batcher[Lookup, Resolved] = Batcher(self._look_up, flights=flights, rows=128)

    async def resolve(
        self, bucket: Bucket, key: bytes, which: Which = CURRENT, prefer_ready: bool = False, content: bool = True
    ) -> Resolved:
        """What (bucket, key) is, or one version of it. content: bring the bytes of a small ready object along."""
        return await self._lookups.submit(Lookup(bucket.id, key, which, prefer_ready, content))

    async def again(self, ref: VersionRef, content: bool = True) -> Resolved:
        """The version that was resolved before, whatever the key is by now (null versions too)."""
        return await self._lookups.submit(Lookup(ref.bucket_id, ref.key, (ref.seq, ref.rnd), False, content, True))

    async def _look_up(self, lookups: list[Lookup]) -> Sequence[Resolved | Exception]:
        results: list[Resolved | Exception] = [Resolved(0, None)] * len(lookups)
        current = [i for i, q in enumerate(lookups) if q.mode == "current"]
        other = [i for i, q in enumerate(lookups) if q.mode != "current"]
        async with self._pool.acquire() as conn:
            if current:
                rows = await conn.fetch(RESOLVE_CURRENT, *_columns(lookups, current))
                for row in rows:
                    results[row["i"]] = _resolved(row)
            if other:
                pairs = [lookups[i].pair for i in other]
                rows = await conn.fetch(
                    RESOLVE_OTHER,
                    *_columns(lookups, other),
                    [MODES[lookups[i].mode] for i in other],
                    [pair[0] for pair in pairs],
                    [pair[1] for pair in pairs],
                )
                for row in rows:
                    results[row["i"]] = _resolved(row)
        return results

    async def extents(self, version: Version) -> list[Extent]:
        """All extents of a version in order, for those that have several."""
        rows = await self._pool.fetch(
            """SELECT e.blob, e.blob_offset, e.length, b.tier, b.corrupt,
                      CASE WHEN e.blob_offset = 0 AND e.length = b.size THEN b.sha256 END AS sha256
                 FROM extent e JOIN blob b ON b.id = e.blob
                WHERE e.bucket_id = $1 AND e.key = $2 AND e.seq = $3 ORDER BY e.idx""",
            version.ref.bucket_id,
            version.ref.key,
            version.ref.seq,
        )
        return [Extent(*row) for row in rows]

    async def parts(self, ref: VersionRef, after: int = 0, limit: int = 1000) -> list[VersionPart]:
        """Up to limit parts with numbers above after."""
        rows = await self._pool.fetch(
            """SELECT number, start, size, etag, checksums FROM version_part
                WHERE bucket_id = $1 AND key = $2 AND seq = $3 AND number > $4 ORDER BY number LIMIT $5""",
            ref.bucket_id,
            ref.key,
            ref.seq,
            after,
            limit,
        )
        return [VersionPart(**row) for row in rows]

    async def part(self, ref: VersionRef, number: int) -> VersionPart | None:
        """The part with this number, or None."""
        parts = await self.parts(ref, number - 1, 1)
        return parts[0] if parts and parts[0].number == number else None


def version_of(row: asyncpg.Record) -> Version:
    """A row with COLUMNS as a value."""
    return Version(
        ref=VersionRef(row["bucket_id"], row["key"], row["seq"], row["rnd"]),
        is_null=row["is_null"],
        state=State(row["state"]),
        etag=row["etag"] or "",
        size=row["size"],
        modified=row["modified"],
        storage_class=row["storage_class"],
        content_type=row["content_type"],
        headers=row["headers"],
        metadata=row["metadata"],
        tags=row["tags"],
        checksums=row["checksums"],
        checksum_type=row["checksum_type"],
        digest=row["digest"],
        acl=row["acl"],
        owner_id=row["owner_id"],
        parts=row["parts"],
        extents=row["extents"],
        code=row["code"],
        detail=row["detail"],
        processing=row["processing"],
        generation=row["generation"],
        run_id=row["run_id"],
        restoring=row["restoring"],
        restored_until=row["restored_until"],
        expires_at=row["expires_at"],
    )


def _columns(lookups: Sequence[Lookup], chosen: Sequence[int]) -> tuple[list[Any], ...]:
    return (
        list(chosen),
        [lookups[i].bucket_id for i in chosen],
        [lookups[i].key for i in chosen],
        [lookups[i].content for i in chosen],
    )


def _resolved(row: asyncpg.Record) -> Resolved:
    if row["bucket_generation"] is None:
        return Resolved(0, None, now=row["now"])
    if row["seq"] is None:
        return Resolved(row["bucket_generation"], None, now=row["now"])
    version = version_of(row)
    extent = None
    if row["blob"] is not None and version.size:
        extent = Extent(row["blob"], row["blob_offset"], version.size, row["tier"], row["corrupt"])
    inline = row["bytes"]
    if inline is not None and len(inline) != version.size:  # a ranged copy shares a part of the bytes
        inline = inline[row["blob_offset"] : row["blob_offset"] + version.size]
    return Resolved(
        generation=row["bucket_generation"],
        version=version,
        newer=State(row["newer_state"]) if row["newer_state"] is not None else None,
        newer_run=row["newer_run"],
        is_current=row["is_current"],
        extent=extent,
        inline=inline,
        now=row["now"],
    )
