"""Heads: the only lock of a key, and the statements that keep them true to their versions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

import asyncpg

from gateway.db.blobs import drop_references
from gateway.domain.objects import State, VersionRef
from processing.births import Births
from processing.model import Enqueued, NewRun
from processing.ports import Conn

Key = tuple[int, bytes]  # bucket id, key


class Runs(Protocol):
    """What the statements here need of the engine."""

    births: Births

    async def enqueue(self, conn: Conn, runs: Sequence[NewRun]) -> list[Enqueued]: ...

    def launch(self, enqueued: Sequence[Enqueued]) -> None: ...

    def abandon(self, enqueued: Sequence[Enqueued]) -> None: ...

    async def supersede(self, conn: Conn, run_ids: Sequence[int]) -> None:
        """End live runs as cancelled, code superseded: their subject is gone."""


@dataclass(frozen=True, slots=True)
class Head:
    seq: int
    current_seq: int | None
    listable: bool
    etag: str | None
    size: int | None
    modified: object


async def insert_missing(conn: Conn, keys: Iterable[Key]) -> None:
    """A head for every key, new ones starting at the clock's microseconds."""
    ordered = sorted(set(keys))
    await conn.execute(
        """INSERT INTO head (bucket_id, key, seq)
           SELECT b, k, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
             FROM unnest($1::bigint[], $2::bytea[]) AS q (b, k) ORDER BY b, k
           ON CONFLICT DO NOTHING""",
        [key[0] for key in ordered],
        [key[1] for key in ordered],
    )


LOCK = """SELECT h.bucket_id, h.key, h.seq, h.current_seq, h.listable, h.etag, h.size, h.modified
  FROM head h JOIN unnest($1::bigint[], $2::bytea[]) AS q (b, k) ON h.bucket_id = q.b AND h.key = q.k
 ORDER BY h.bucket_id, h.key FOR UPDATE OF h"""


async def lock(conn: Conn, keys: Iterable[Key], skip_locked: bool = True) -> dict[Key, Head]:
    """Lock heads in order. Without skip_locked a busy one is waited for, up to lock_timeout."""
    ordered = sorted(set(keys))
    rows = await conn.fetch(
        LOCK + (" SKIP LOCKED" if skip_locked else ""), [key[0] for key in ordered], [key[1] for key in ordered]
    )
    return {(row["bucket_id"], row["key"]): Head(*row[2:8]) for row in rows}


async def recompute(conn: Conn, keys: Iterable[Key]) -> None:
    """Make locked heads show their newest version that is scanning, ready or a marker.

    A failed version counts too where the bucket says ``when_failed = refuse``, unless its write was answered 422
    already. A head left without any version goes.
    """
    ordered = sorted(set(keys))
    if not ordered:
        return
    arguments = [key[0] for key in ordered], [key[1] for key in ordered]
    await conn.execute(
        """UPDATE head h
              SET current_seq = c.seq, listable = coalesce(c.state <> 5, false), etag = c.etag, size = c.size,
                  modified = c.modified, storage_class = c.storage_class, checksum_type = c.checksum_type,
                  checksum_algorithm = c.checksum_algorithm, owner_id = c.owner_id
             FROM unnest($1::bigint[], $2::bytea[]) AS q (b, k)
             LEFT JOIN LATERAL (
                  SELECT v.*, (SELECT upper(name) FROM jsonb_object_keys(v.checksums) AS name LIMIT 1)
                              AS checksum_algorithm
                    FROM version v JOIN bucket u ON u.id = v.bucket_id
                   WHERE v.bucket_id = q.b AND v.key = q.k
                     AND (v.state IN (1, 2, 5)
                          OR v.state = 4 AND NOT v.sync AND u.config ->> 'when_failed' = 'refuse')
                   ORDER BY v.seq DESC LIMIT 1) c ON true
            WHERE h.bucket_id = q.b AND h.key = q.k""",
        *arguments,
    )
    await conn.execute(
        """DELETE FROM head h USING unnest($1::bigint[], $2::bytea[]) AS q (b, k)
            WHERE h.bucket_id = q.b AND h.key = q.k AND h.current_seq IS NULL
              AND NOT EXISTS (SELECT FROM version v WHERE v.bucket_id = q.b AND v.key = q.k)""",
        *arguments,
    )


@dataclass(frozen=True, slots=True)
class Removed:
    ref: VersionRef
    is_null: bool
    state: State
    run_id: int | None


async def remove_versions(
    conn: Conn, runs: Runs, refs: Sequence[VersionRef], grace: float, keep_runs: frozenset[int] = frozenset()
) -> list[Removed]:
    """Delete versions whose heads are locked, with all that hangs on them.

    Their blobs go to the collector, their live runs end ``superseded`` (but those in keep_runs, which the caller is
    ending itself). Returns what was there.
    """
    if not refs:
        return []
    rows = await conn.fetch(
        """WITH gone AS (
               DELETE FROM version v
                USING unnest($1::bigint[], $2::bytea[], $3::bigint[], $4::bigint[]) AS q (b, k, s, r)
                WHERE v.bucket_id = q.b AND v.key = q.k AND v.seq = q.s AND v.rnd = q.r
               RETURNING v.bucket_id, v.key, v.seq, v.rnd, v.is_null, v.state, v.run_id, v.blob, v.restored_blob),
           spans AS (DELETE FROM extent e USING gone g
                      WHERE e.bucket_id = g.bucket_id AND e.key = g.key AND e.seq = g.seq RETURNING e.blob),
           parts AS (DELETE FROM version_part p USING gone g
                      WHERE p.bucket_id = g.bucket_id AND p.key = g.key AND p.seq = g.seq),
           texts AS (DELETE FROM sidecar s USING gone g
                      WHERE s.bucket_id = g.bucket_id AND s.key = g.key AND s.seq = g.seq RETURNING s.blob)
           SELECT bucket_id, key, seq, rnd, is_null, state, run_id, blob, restored_blob FROM gone
           UNION ALL SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, blob, NULL FROM spans
           UNION ALL SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, blob, NULL FROM texts""",
        [ref.bucket_id for ref in refs],
        [ref.key for ref in refs],
        [ref.seq for ref in refs],
        [ref.rnd for ref in refs],
    )
    blobs: list[UUID] = [blob for row in rows for blob in (row["blob"], row["restored_blob"]) if blob is not None]
    await drop_references(conn, blobs, grace)
    removed = [_removed(row) for row in rows if row["seq"] is not None]
    live = sorted({r.run_id for r in removed if r.run_id is not None} - keep_runs)
    if live:
        await runs.supersede(conn, live)
    return removed


def _removed(row: asyncpg.Record) -> Removed:
    ref = VersionRef(row["bucket_id"], row["key"], row["seq"], row["rnd"])
    return Removed(ref, row["is_null"], State(row["state"]), row["run_id"])


async def null_rows(conn: Conn, keys: Iterable[Key]) -> dict[Key, list[tuple[VersionRef, State]]]:
    """The null versions of each key, oldest first."""
    ordered = sorted(set(keys))
    rows = await conn.fetch(
        """SELECT v.bucket_id, v.key, v.seq, v.rnd, v.state
             FROM version v JOIN unnest($1::bigint[], $2::bytea[]) AS q (b, k) ON v.bucket_id = q.b AND v.key = q.k
            WHERE v.is_null ORDER BY v.bucket_id, v.key, v.seq""",
        [key[0] for key in ordered],
        [key[1] for key in ordered],
    )
    found: dict[Key, list[tuple[VersionRef, State]]] = {}
    for row in rows:
        ref = VersionRef(row["bucket_id"], row["key"], row["seq"], row["rnd"])
        found.setdefault((ref.bucket_id, ref.key), []).append((ref, State(row["state"])))
    return found


async def settle_nulls(
    conn: Conn, runs: Runs, ready: Sequence[VersionRef], grace: float, keep_runs: frozenset[int] = frozenset()
) -> set[VersionRef]:
    """After null versions became ready: one S3 id, one row.

    The older null rows that are ready, scanning or failed go (quarantined ones stay until their retention ends or a
    DELETE). Where a newer null row is already ready or a marker, the version itself goes; those are returned.
    """
    if not ready:
        return set()
    rows = await null_rows(conn, [(ref.bucket_id, ref.key) for ref in ready])
    superseded: set[VersionRef] = set()
    doomed: list[VersionRef] = []
    for ref in ready:
        others = rows.get((ref.bucket_id, ref.key), [])
        if any(other.seq > ref.seq and state in (State.READY, State.MARKER) for other, state in others):
            superseded.add(ref)
            continue
        doomed += [
            other
            for other, state in others
            if other.seq < ref.seq and state in (State.READY, State.SCANNING, State.FAILED, State.MARKER)
        ]
    await remove_versions(conn, runs, doomed, grace)
    await remove_versions(conn, runs, sorted(superseded, key=lambda r: (r.bucket_id, r.key)), grace, keep_runs)
    return superseded
