"""Reads of versions: what a key is now, batched across requests into one statement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal, NamedTuple

import asyncpg

from gateway.db.batching import Batcher
from gateway.domain.objects import Bucket, Extent, Resolved, State, Version, VersionRef

Which = Literal["null"] | tuple[int, int] | None
CURRENT: None = None
ABSENT = Resolved(0, None)
GATHER = 0.001  # seconds that a flight waits for more when the last one had a crowd

# In the order of Version's fields; what comes before them is taken apart in _resolved.
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

# mode 0 is that statement's. 1: the version with this seq and rnd. 2: the null version a read resolves to: the
# current one, else the newest that is not skipped, else the newest. 3: the newest ready version (while_scanning =
# previous), else the newest not skipped. 4: as 1, null versions too, whose seq and rnd only the gateway knows.
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

STATES = {state.value: state for state in State}


@dataclass(frozen=True, slots=True)
class VersionPart:
    """One part of a multipart version. start is its offset in the object, in bytes."""

    number: int
    start: int
    size: int
    etag: str
    checksums: Mapping[str, str]


class Mode(IntEnum):
    """Which version of its key a lookup means; the numbers are those of RESOLVE_OTHER."""

    CURRENT = 0
    ID = 1
    NULL = 2
    READY = 3
    INTERNAL = 4  # as ID, null versions too


class Lookup(NamedTuple):
    """content: bring the bytes of a small ready object along. seq and rnd: of the version, where mode names one."""

    bucket_id: int
    key: bytes
    content: bool
    mode: int
    seq: int = 0
    rnd: int = 0


class Versions:
    """Looks versions up. One statement serves all lookups that arrive while the last one is in flight."""

    def __init__(self, pool: asyncpg.Pool) -> None:
        self._pool = pool
        self._lookups: Batcher[Lookup, Resolved] = Batcher(self._look_up, flights=1, rows=128, gather=GATHER)

    async def resolve(
        self, bucket: Bucket, key: bytes, which: Which = CURRENT, prefer_ready: bool = False, content: bool = True
    ) -> Resolved:
        """What (bucket, key) is, or one version of it. content: bring the bytes of a small ready object along."""
        if which is None:
            lookup = Lookup(bucket.id, key, content, Mode.READY if prefer_ready else Mode.CURRENT)
        elif isinstance(which, tuple):
            lookup = Lookup(bucket.id, key, content, Mode.ID, *which)
        else:
            lookup = Lookup(bucket.id, key, content, Mode.NULL)
        return await self._lookups.submit(lookup)

    async def again(self, ref: VersionRef, content: bool = True) -> Resolved:
        """The version that was resolved before, whatever the key is by now (null versions too)."""
        return await self._lookups.submit(Lookup(ref.bucket_id, ref.key, content, Mode.INTERNAL, ref.seq, ref.rnd))

    async def _look_up(self, lookups: list[Lookup]) -> Sequence[Resolved | Exception]:
        results: list[Resolved | Exception] = [ABSENT] * len(lookups)
        current = [(i, *q) for i, q in enumerate(lookups) if q.mode == Mode.CURRENT]
        other = [(i, *q) for i, q in enumerate(lookups) if q.mode != Mode.CURRENT]
        async with self._pool.acquire() as conn:
            rows = await conn.fetch(RESOLVE_CURRENT, *list(zip(*current, strict=True))[:4]) if current else []
            if other:
                rows = rows + await conn.fetch(RESOLVE_OTHER, *zip(*other, strict=True))
        for row in rows:
            results[row[0]] = _resolved(row)
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


def _resolved(row: asyncpg.Record) -> Resolved:
    _, generation, now, is_current, newer, newer_run, blob, tier, damaged, offset, inline, *columns = row
    if generation is None:
        return Resolved(0, None, now=now)
    bucket_id, key, seq, rnd, is_null, state, etag, size, *rest = columns
    if seq is None:
        return Resolved(generation, None, now=now)
    version = Version(VersionRef(bucket_id, key, seq, rnd), is_null, STATES[state], etag or "", size, *rest)
    if inline is not None and len(inline) != size:  # a ranged copy shares a part of the bytes
        inline = inline[offset : offset + size]
    return Resolved(
        generation,
        version,
        None if newer is None else STATES[newer],
        newer_run,
        is_current,
        Extent(blob, offset, size, tier, damaged) if blob is not None and size else None,
        inline,
        now,
    )
