"""Versions as the engine's subjects: the gateway's side of processing/ports.py."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg

from gateway.db import blobs, endings, heads, runs, verdicts
from gateway.db.batching import Batcher
from gateway.db.waiting import Waiting
from gateway.domain.objects import NULL_ID, Extent, State, VersionRef
from processing.model import Finish, NewRun, Outcome, RunState, Subject, Verdict
from processing.ports import Conn, Content, Ending, Piece, SubjectSuperseded
from storage_tiers import failpoints
from storage_tiers.placement import STORAGE_CLASSES, Placement
from storage_tiers.tier import WHOLE, ByteSpan, TierError

LOAD = """
SELECT q.i, v.bucket_id, v.key, v.seq, v.rnd, v.is_null, v.state, v.size, v.digest, v.content_type, v.storage_class,
       v.metadata, v.processing, v.generation, v.blob, v.blob_offset, v.extents, v.restoring, v.restored_until,
       v.restore_n, b.account_id, b.name AS bucket, bl.tier,
       EXISTS (SELECT FROM allowed_digest a WHERE a.account_id = b.account_id AND a.digest = v.digest) AS allowed,
       CASE WHEN v.blob IS NULL AND v.extents > 0 THEN (
           SELECT jsonb_agg(jsonb_build_array(e.blob, e.blob_offset, e.length, eb.tier) ORDER BY e.idx)
             FROM extent e JOIN blob eb ON eb.id = e.blob
            WHERE e.bucket_id = v.bucket_id AND e.key = v.key AND e.seq = v.seq) END AS spans,
       CASE WHEN v.digest LIKE 'sha256-tree:%' THEN (
           SELECT array_agg(p.size ORDER BY p.number) FROM version_part p
            WHERE p.bucket_id = v.bucket_id AND p.key = v.key AND p.seq = v.seq) END AS part_sizes
  FROM unnest($1::int[], $2::bigint[], $3::bytea[], $4::bigint[], $5::bigint[]) AS q (i, bucket_id, key, seq, rnd)
  JOIN version v ON v.bucket_id = q.bucket_id AND v.key = q.key AND v.seq = q.seq AND v.rnd = q.rnd
  JOIN bucket b ON b.id = v.bucket_id
  LEFT JOIN blob bl ON bl.id = v.blob
"""

# (the state that a run swaps from, its verdict) → the state it leaves. A run of a version that was decided before
# (reprocess) leaves it as it is when it fails.
SWAPS: Mapping[tuple[State, Verdict], State] = {
    (State.SCANNING, Verdict.READY): State.READY,
    (State.SCANNING, Verdict.QUARANTINED): State.QUARANTINED,
    (State.SCANNING, Verdict.FAILED): State.FAILED,
    (State.READY, Verdict.READY): State.READY,
    (State.READY, Verdict.QUARANTINED): State.QUARANTINED,
    (State.READY, Verdict.FAILED): State.READY,
    (State.QUARANTINED, Verdict.READY): State.READY,
    (State.QUARANTINED, Verdict.QUARANTINED): State.QUARANTINED,
    (State.QUARANTINED, Verdict.FAILED): State.QUARANTINED,
}
WORKFLOWS_OF_TIERS = ("tier.move", "tier.recall")
RESCAN_AFTER = 60.0  # seconds


@dataclass(frozen=True, slots=True)
class _Swap:
    outcome: Outcome
    ref: VersionRef
    before: State
    after: State


class VersionSubjects:
    """Implements processing.ports.Subjects over the ``version`` table."""

    def __init__(
        self,
        pool: asyncpg.Pool,
        content: blobs.Blobs,
        placement: Placement,
        waiting: Waiting,
        *,
        owner: Callable[[], int | None],
        blob_grace: float,
        lifecycle_day: float,
    ) -> None:
        self._pool, self._blobs, self._placement, self._waiting = pool, content, placement, waiting
        self._owner, self._grace, self._day = owner, blob_grace, lifecycle_day
        self._moving = [name for name in STORAGE_CLASSES if self._moves(name)]
        self._loads: Batcher[Subject, Content | None] = Batcher(self._load, flights=4, rows=128)
        self.engine: heads.Runs | None = None  # set by the composition root: the engine needs its subjects first

    async def load(self, subject: Subject) -> Content | None:
        return await self._loads.submit(subject)

    async def _load(self, subjects: list[Subject]) -> Sequence[Content | None]:
        rows = await self._pool.fetch(
            LOAD,
            list(range(len(subjects))),
            [s.bucket_id for s in subjects],
            [s.key for s in subjects],
            [s.seq for s in subjects],
            [s.rnd for s in subjects],
        )
        found = {row["i"]: content_of(row) for row in rows}
        return [found.get(i) for i in range(len(subjects))]

    def open(self, content: Content, span: ByteSpan = WHOLE) -> AsyncIterator[bytes]:
        return self._read(content, span)

    async def _read(self, content: Content, span: ByteSpan) -> AsyncIterator[bytes]:
        offset = min(span.offset, content.size)
        length = content.size - offset if span.length is None else min(span.length, content.size - offset)
        if not length:
            return
        extents = [Extent(p.blob, p.offset, p.length, p.tier) for p in content.pieces]
        reader = await self._blobs.open_extents(extents, ByteSpan(offset, length))
        try:
            async for chunk in reader:
                yield chunk
        finally:
            await reader.close()

    async def lock(self, conn: Conn, subjects: Sequence[Subject], wait: bool = False) -> set[Subject]:
        keys = {(s.bucket_id, s.key) for s in subjects}
        locked = await heads.lock(conn, keys, skip_locked=not wait)
        # A key without a head has no version either; one whose head is held by somebody rides in the next flight.
        missing = sorted(keys - locked.keys())
        held: set[heads.Key] = set()
        if missing:
            rows = await conn.fetch(
                """SELECT h.bucket_id, h.key FROM head h
                     JOIN unnest($1::bigint[], $2::bytea[]) AS q (b, k) ON h.bucket_id = q.b AND h.key = q.k""",
                [key[0] for key in missing],
                [key[1] for key in missing],
            )
            held = {(row["bucket_id"], row["key"]) for row in rows}
        return {s for s in subjects if (s.bucket_id, s.key) not in held}

    async def end_ready(self, conn: Conn, finishes: Sequence[Finish]) -> dict[int, Ending]:
        return await endings.end_ready(conn, finishes, self._moving, self._grace)

    async def settle(self, conn: Conn, outcomes: Sequence[Outcome]) -> list[NewRun]:
        recalls = [o for o in outcomes if o.workflow == "tier.recall" and o.state is not RunState.COMPLETED]
        await self._give_up_recalls(conn, recalls)
        for outcome in outcomes:
            if outcome.fills and outcome.subject is not None and outcome.state is RunState.COMPLETED:
                await self._fill(conn, outcome, runs.ref_of(outcome.subject))
        swaps = [swap for o in outcomes if (swap := swap_of(o)) is not None]
        if not swaps:
            return []
        rows = await self._swap(conn, swaps)
        done = {VersionRef(row["bucket_id"], row["key"], row["seq"], row["rnd"]): row for row in rows}
        changed = [s for s in swaps if s.ref in done]
        assert self.engine is not None
        ready = [s for s in changed if s.after is State.READY and s.before is not State.READY]
        superseded = await heads.settle_nulls(
            conn,
            self.engine,
            [s.ref for s in ready if done[s.ref]["is_null"]],
            self._grace,
            frozenset(s.outcome.run_id for s in changed),
        )
        await self._one_quarantined_row(conn, [s for s in changed if s.after is State.QUARANTINED], done)
        moved = [s for s in changed if s.after in (State.QUARANTINED, State.FAILED) or s.before is State.QUARANTINED]
        await heads.recompute(conn, [(s.ref.bucket_id, s.ref.key) for s in moved])
        await self._record_verdicts(conn, changed, done)
        await self._plan_rescans(conn, [s for s in changed if s.after is State.READY and s.ref not in superseded])
        follow_ups: list[NewRun] = []
        for s in ready:
            row = done[s.ref]
            if s.ref not in superseded and self._moves(row["storage_class"]):
                follow_ups.append(runs.move(row["account_id"], s.ref, row["storage_class"]))
        return follow_ups

    def _moves(self, storage_class: str) -> bool:
        return self._placement.landing(storage_class) != self._placement.tier_of(storage_class)

    async def _swap(self, conn: Conn, swaps: Sequence[_Swap]) -> list[asyncpg.Record]:
        """The compare-and-swap: only versions in the expected state, and of the run that last owned them."""
        return await conn.fetch(
            """UPDATE version v
                  SET state = q.after,
                      code = CASE WHEN q.kept THEN v.code ELSE q.code END,
                      detail = CASE WHEN q.kept THEN v.detail ELSE q.detail END,
                      processing = CASE WHEN q.kept THEN v.processing ELSE v.processing || q.processing END,
                      verdict_of = CASE WHEN q.kept THEN v.verdict_of END
                 FROM unnest($1::bigint[], $2::bytea[], $3::bigint[], $4::bigint[], $5::smallint[], $6::smallint[],
                             $7::text[], $8::text[], $9::jsonb[], $10::bigint[], $11::bool[])
                      AS q (b, k, s, r, before, after, code, detail, processing, run_id, kept)
                 JOIN bucket u ON u.id = q.b
                WHERE v.bucket_id = q.b AND v.key = q.k AND v.seq = q.s AND v.rnd = q.r
                  AND v.state = q.before AND v.run_id = q.run_id
               RETURNING v.bucket_id, v.key, v.seq, v.rnd, v.is_null, v.digest, v.fingerprint, v.content_type,
                         v.storage_class, v.processing, u.account_id""",
            [s.ref.bucket_id for s in swaps],
            [s.ref.key for s in swaps],
            [s.ref.seq for s in swaps],
            [s.ref.rnd for s in swaps],
            [int(s.before) for s in swaps],
            [int(s.after) for s in swaps],
            [s.outcome.code for s in swaps],
            [s.outcome.detail for s in swaps],
            [dict(s.outcome.processing) for s in swaps],
            [s.outcome.run_id for s in swaps],
            [s.before is not State.SCANNING and s.outcome.verdict is Verdict.FAILED for s in swaps],
        )

    async def _one_quarantined_row(
        self, conn: Conn, swaps: Sequence[_Swap], rows: Mapping[VersionRef, asyncpg.Record]
    ) -> None:
        """Quarantine keeps one row per key and digest among null versions: the newest."""
        nulls = [s.ref for s in swaps if rows[s.ref]["is_null"]]
        if not nulls:
            return
        assert self.engine is not None
        older = await conn.fetch(
            """SELECT v.bucket_id, v.key, v.seq, v.rnd
                 FROM unnest($1::bigint[], $2::bytea[], $3::bigint[], $4::text[]) AS q (b, k, s, d)
                 JOIN version v ON v.bucket_id = q.b AND v.key = q.k AND v.seq < q.s
                WHERE v.is_null AND v.state = 3 AND v.digest = q.d""",
            [ref.bucket_id for ref in nulls],
            [ref.key for ref in nulls],
            [ref.seq for ref in nulls],
            [rows[ref]["digest"] for ref in nulls],
        )
        await heads.remove_versions(conn, self.engine, [VersionRef(*row) for row in older], self._grace)

    async def _record_verdicts(
        self, conn: Conn, swaps: Sequence[_Swap], rows: Mapping[VersionRef, asyncpg.Record]
    ) -> None:
        """Remember what a machine decided; nothing degraded, unscannable-but-allowed or released is lent."""
        lent = []
        for s in swaps:
            row = rows[s.ref]
            if s.outcome.verdict is Verdict.FAILED or row["fingerprint"] is None or row["digest"] is None:
                continue
            if not verdicts.lendable(s.outcome.code, s.outcome.processing):
                continue
            key = verdicts.verdict_key(row["digest"], row["fingerprint"], s.ref.key, row["content_type"])
            state = State.READY if s.outcome.verdict is Verdict.READY else State.QUARANTINED
            lent.append(
                (row["account_id"], key, state, s.outcome.code, s.outcome.detail, row["processing"], s.outcome.run_id)
            )
        await verdicts.record(conn, lent)

    async def _fill(self, conn: Conn, outcome: Outcome, ref: VersionRef) -> None:
        """A later run made up for optional steps that had been left out: their results, and no word about the state."""
        await conn.execute(
            """UPDATE version v
                  SET processing = CASE WHEN d.rest = '{}' THEN (v.processing || $5) - 'degraded'
                                        ELSE v.processing || $5 || jsonb_build_object('degraded', d.rest) END
                 FROM (SELECT coalesce(processing -> 'degraded', '{}') - $6::text[] AS rest FROM version
                        WHERE bucket_id = $1 AND key = $2 AND seq = $3 AND rnd = $4) d
                WHERE v.bucket_id = $1 AND v.key = $2 AND v.seq = $3 AND v.rnd = $4""",
            *ref.row,
            {name: value for name, value in outcome.processing.items() if name != "degraded"},
            list(outcome.fills),
        )

    async def _plan_rescans(self, conn: Conn, swaps: Sequence[_Swap]) -> None:
        """Content that policy let through while the scanner was away is scanned later (``Review.rescan``)."""
        unseen = [s.ref for s in swaps if _scan(s.outcome).get("rescan")]
        if unseen:
            await conn.execute(
                """INSERT INTO rescan (bucket_id, key, seq, rnd, due_at)
                   SELECT b, k, s, r, now() + $5 * interval '1 second'
                     FROM unnest($1::bigint[], $2::bytea[], $3::bigint[], $4::bigint[]) AS q (b, k, s, r)
                   ON CONFLICT (bucket_id, key, seq) DO UPDATE SET rnd = excluded.rnd, due_at = excluded.due_at""",
                [ref.bucket_id for ref in unseen],
                [ref.key for ref in unseen],
                [ref.seq for ref in unseen],
                [ref.rnd for ref in unseen],
                RESCAN_AFTER,
            )

    async def _give_up_recalls(self, conn: Conn, outcomes: Sequence[Outcome]) -> None:
        subjects = [o.subject for o in outcomes if o.subject is not None]
        if subjects:
            await conn.execute(
                """UPDATE version v SET restoring = false
                     FROM unnest($1::bigint[], $2::bytea[], $3::bigint[], $4::bigint[]) AS q (b, k, s, r)
                    WHERE v.bucket_id = q.b AND v.key = q.k AND v.seq = q.s AND v.rnd = q.r AND v.restoring""",
                [s.bucket_id for s in subjects],
                [s.key for s in subjects],
                [s.seq for s in subjects],
                [s.rnd for s in subjects],
            )

    def settled(self, outcomes: Sequence[Outcome]) -> None:
        self._waiting.decide(runs.ref_of(o.subject) for o in outcomes if o.subject is not None and swap_of(o))

    async def reopen(self, conn: Conn, outcome_of: Subject, workflow: str, run_id: int) -> None:
        ref = runs.ref_of(outcome_of)
        await heads.lock(conn, [(ref.bucket_id, ref.key)], skip_locked=False)
        if workflow in WORKFLOWS_OF_TIERS:
            updated = await conn.execute(
                """UPDATE version SET restoring = restoring OR $5
                    WHERE bucket_id = $1 AND key = $2 AND seq = $3 AND rnd = $4""",
                *ref.row,
                workflow == "tier.recall",
            )
            if updated == "UPDATE 0":
                raise SubjectSuperseded(ref.version_id)
            return
        row = await conn.fetchrow(
            """SELECT state, is_null, run_id FROM version
                WHERE bucket_id = $1 AND key = $2 AND seq = $3 AND rnd = $4""",
            *ref.row,
        )
        if row is None or row["run_id"] != run_id:
            raise SubjectSuperseded(ref.version_id)
        if row["is_null"]:
            rows = await heads.null_rows(conn, [(ref.bucket_id, ref.key)])
            if any(other.seq > ref.seq for other, _ in rows.get((ref.bucket_id, ref.key), [])):
                raise SubjectSuperseded(ref.version_id)
        if row["state"] == State.FAILED:
            await conn.execute(
                """UPDATE version SET state = 1, code = NULL, detail = NULL
                    WHERE bucket_id = $1 AND key = $2 AND seq = $3 AND rnd = $4""",
                *ref.row,
            )
            await heads.recompute(conn, [(ref.bucket_id, ref.key)])

    # --- tiers ------------------------------------------------------------------------------------------------------

    async def stage(self, conn: Conn | None, blob: UUID, tier: str) -> None:
        if conn is None:
            async with self._pool.acquire() as own:
                await blobs.insert_staging(own, [blob], [tier], self._owner())
        else:
            await blobs.insert_staging(conn, [blob], [tier], self._owner())

    async def unstage(self, blob: UUID) -> None:
        with suppress(TierError):  # marked by then: the collector sees to it
            await self._blobs.discard(blob)

    async def swap_pieces(self, content: Content, blob: UUID, tier: str) -> bool:
        try:
            return await self._swap_pieces(content, blob)
        except _Lost:
            return False

    async def _swap_pieces(self, content: Content, blob: UUID) -> bool:
        ref = runs.ref_of(content.subject)
        async with self._pool.acquire() as conn, conn.transaction():
            row = await conn.fetchrow(
                """SELECT state, blob, blob_offset, extents FROM version
                    WHERE bucket_id = $1 AND key = $2 AND seq = $3 AND rnd = $4 FOR UPDATE""",
                *ref.row,
            )
            if row is None or row["state"] != State.READY:
                return False
            old = [row["blob"]] if row["blob"] is not None else []
            if row["blob"] is None and row["extents"]:
                spans = await conn.fetch(
                    "DELETE FROM extent WHERE bucket_id = $1 AND key = $2 AND seq = $3 RETURNING blob", *ref.row[:3]
                )
                old = [span["blob"] for span in spans]
            if set(old) != {piece.blob for piece in content.pieces}:
                raise _Lost
            if not await blobs.make_live(conn, [blob], [content.size], [blobs.sha256_of(content.digest)]):
                raise _Lost
            await conn.execute(
                """UPDATE version SET blob = $5, blob_offset = 0, extents = 1
                    WHERE bucket_id = $1 AND key = $2 AND seq = $3 AND rnd = $4""",
                *ref.row,
                blob,
            )
            await blobs.drop_references(conn, old, self._grace)
            failpoints.point("move.swapping")
            return True

    async def promote(self, content: Content, blob: UUID, tier: str, days: int) -> bool:
        ref = runs.ref_of(content.subject)
        async with self._pool.acquire() as conn, conn.transaction():
            row = await conn.fetchrow(
                """SELECT restored_blob, restoring, clock_timestamp() AS now FROM version
                    WHERE bucket_id = $1 AND key = $2 AND seq = $3 AND rnd = $4 FOR UPDATE""",
                *ref.row,
            )
            if row is None or not row["restoring"]:
                return False
            if not await blobs.make_live(conn, [blob], [content.size], [blobs.sha256_of(content.digest)]):
                return False
            await conn.execute(
                """UPDATE version SET restored_blob = $5, restored_until = $6, restoring = false
                    WHERE bucket_id = $1 AND key = $2 AND seq = $3 AND rnd = $4""",
                *ref.row,
                blob,
                expiry(row["now"], days, self._day),
            )
            if row["restored_blob"] is not None:
                await blobs.drop_references(conn, [row["restored_blob"]], self._grace)
            failpoints.point("recall.promoting")
            return True

    async def attach_sidecar(self, content: Content, kind: str, blob: UUID, tier: str, size: int) -> bool:
        ref = runs.ref_of(content.subject)
        async with self._pool.acquire() as conn, conn.transaction():
            # The head first: a removal takes the version and its sidecars in one statement, which would wait for the
            # version's lock, but not see a sidecar that was committed meanwhile.
            await heads.lock(conn, [(ref.bucket_id, ref.key)], skip_locked=False)
            row = await conn.fetchrow(
                "SELECT state FROM version WHERE bucket_id = $1 AND key = $2 AND seq = $3 AND rnd = $4 FOR UPDATE",
                *ref.row,
            )
            if row is None:
                return False
            if not await blobs.make_live(conn, [blob], [size], [None]):
                return False
            old = await conn.fetchval(
                "SELECT blob FROM sidecar WHERE bucket_id = $1 AND key = $2 AND seq = $3 AND kind = $4",
                *ref.row[:3],
                kind,
            )
            await conn.execute(
                """INSERT INTO sidecar (bucket_id, key, seq, kind, blob, size) VALUES ($1, $2, $3, $4, $5, $6)
                   ON CONFLICT (bucket_id, key, seq, kind) DO UPDATE SET blob = excluded.blob, size = excluded.size""",
                *ref.row[:3],
                kind,
                blob,
                size,
            )
            if old is not None:
                await blobs.drop_references(conn, [old], self._grace)
            return True


class _Lost(Exception):
    """The compare-and-swap was lost: roll back."""


def _scan(outcome: Outcome) -> Mapping[str, Any]:
    found = outcome.processing.get("scan")
    return found if isinstance(found, Mapping) else {}


def expiry(now: datetime, days: int, day: float) -> datetime:
    """When a restored copy ends: S3 rounds up to the next midnight UTC; a shortened day (tests) is not rounded."""
    until = now.astimezone(UTC) + timedelta(seconds=days * day)
    if day < 86_400:
        return until.replace(microsecond=0) + timedelta(seconds=1)
    return until.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)


def swap_of(outcome: Outcome) -> _Swap | None:
    """What a run's end means for its version; None when it is no verdict (a move, a recall, an operator's workflow)."""
    if outcome.subject is None or outcome.verdict is None or outcome.workflow in WORKFLOWS_OF_TIERS:
        return None
    before = State(outcome.input.get("from", State.SCANNING))
    return _Swap(outcome, runs.ref_of(outcome.subject), before, SWAPS[before, outcome.verdict])


def content_of(row: asyncpg.Record) -> Content:
    """A row of LOAD as an activity sees it."""
    ref = VersionRef(row["bucket_id"], row["key"], row["seq"], row["rnd"])
    pieces: list[Piece] = []
    if row["blob"] is not None and row["size"]:
        pieces = [Piece(row["blob"], row["blob_offset"], row["size"], row["tier"])]
    elif row["spans"]:
        pieces = [Piece(UUID(blob), offset, length, tier) for blob, offset, length, tier in row["spans"]]
    restore: dict[str, Any] = {"restoring": row["restoring"], "n": row["restore_n"]}
    if row["restored_until"] is not None:
        restore["until"] = row["restored_until"].isoformat()
    return Content(
        subject=runs.subject(ref),
        tenant=row["account_id"],
        bucket=row["bucket"],
        key=row["key"],
        version_id=NULL_ID if row["is_null"] else ref.version_id,
        state=State(row["state"]).word,
        size=row["size"],
        digest=row["digest"] or "",
        declared_type=row["content_type"],
        storage_class=row["storage_class"],
        metadata=row["metadata"],
        processing=row["processing"],
        pieces=pieces,
        allowed=row["allowed"],
        generation=row["generation"],
        restore=restore,
        part_sizes=row["part_sizes"] or (),
    )
