"""What an operator does about held versions: release, reprocess, delete. Each is audited with who and why."""

from __future__ import annotations

import contextlib

import asyncpg

from gateway.db import audit, heads, runs
from gateway.db.buckets import Buckets
from gateway.db.errors import NoSuchVersion, NotReviewable
from gateway.db.waiting import Waiting
from gateway.domain.ids import random64
from gateway.domain.objects import Bucket, State, VersionRef
from processing.model import Enqueued
from processing.ports import Conn
from storage_tiers.placement import Placement


class Review:
    def __init__(
        self,
        pool: asyncpg.Pool,
        engine: heads.Runs,
        placement: Placement,
        waiting: Waiting,
        buckets: Buckets,
        *,
        choose: runs.Choose,
        blob_grace: float,
        retention: float,
    ) -> None:
        self._pool, self._engine, self._placement, self._waiting = pool, engine, placement, waiting
        self._buckets = buckets
        self._choose, self._grace, self._retention = choose, blob_grace, retention

    async def release(
        self,
        bucket: Bucket,
        ref: VersionRef,
        *,
        who: str,
        why: str,
        allow_digest: bool = False,
        promote: bool = False,
    ) -> VersionRef:
        """quarantined → ready. allow_digest: this content passes the tenant's scans from then on.

        Where a newer row of the same S3 id exists NotReviewable is raised, unless promote gives the version a new
        sequence number and so makes it the newest. Returns the version's (new) name. Raises NoSuchVersion.
        """
        enqueued: list[Enqueued] = []
        try:
            async with self._pool.acquire() as conn, conn.transaction():
                head, row = await self._hold(conn, ref)
                if row["state"] != State.QUARANTINED:
                    raise NotReviewable(f"the version is {State(row['state']).word}, not quarantined")
                if row["is_null"] and await self._newer_null(conn, ref):
                    if not promote:
                        raise NotReviewable("a newer version of this key exists; release with promote to replace it")
                    ref = await self._promote(conn, ref, head)
                await conn.execute(
                    """UPDATE version SET state = 2, code = NULL, detail = NULL, verdict_of = 'released',
                              processing = processing || jsonb_build_object('released', true)
                        WHERE bucket_id = $1 AND key = $2 AND seq = $3 AND rnd = $4""",
                    *ref.row,
                )
                if row["is_null"]:
                    await heads.settle_nulls(conn, self._engine, [ref], self._grace)
                await heads.recompute(conn, [(ref.bucket_id, ref.key)])
                if allow_digest and row["digest"]:
                    await conn.execute(
                        """INSERT INTO allowed_digest (account_id, digest, who, why) VALUES ($1, $2, $3, $4)
                           ON CONFLICT (account_id, digest) DO UPDATE SET who = $3, why = $4, at = now()""",
                        bucket.owner.id,
                        row["digest"],
                        who,
                        why,
                    )
                    # A quarantine that was lent before must not be lent again.
                    await conn.execute(
                        "DELETE FROM verdict WHERE account_id = $1 AND state = 3 AND run_id = $2",
                        bucket.owner.id,
                        row["run_id"],
                    )
                await audit.record(conn, who, "release", _target(bucket, ref, row), why)
                storage_class = row["storage_class"]
                if self._placement.landing(storage_class) != self._placement.tier_of(storage_class):
                    enqueued = await self._engine.enqueue(conn, [runs.move(bucket.owner.id, ref, storage_class)])
        except BaseException:
            self._engine.abandon(enqueued)
            raise
        self._engine.launch(enqueued)
        self._waiting.decide([ref])
        return ref

    async def reprocess(self, bucket: Bucket, ref: VersionRef, *, who: str, hold: bool = False) -> int:
        """Run the current pipeline over a version again, as the next generation; returns the run's id.

        The version stays what it is meanwhile, or goes back to scanning with hold; a failed one goes back in any case.
        Raises NotReviewable while a run is live or the content is archived, NoSuchVersion.
        """
        enqueued: list[Enqueued] = []
        try:
            async with self._pool.acquire() as conn, conn.transaction():
                _, row = await self._hold(conn, ref)
                if row["state"] == State.MARKER:
                    raise NotReviewable("a delete marker has no content")
                archived = self._placement.archived(row["storage_class"])
                if archived and row["state"] == State.READY and not row["restored"]:
                    raise NotReviewable("the object is archived; restore it first")
                live = await conn.fetchval(
                    """SELECT run_id FROM workflow_run
                        WHERE bucket_id = $1 AND key = $2 AND seq = $3 AND rnd = $4 AND state IN (1, 2, 3)
                          AND run_key LIKE 'post:%' LIMIT 1""",
                    *ref.row,
                )
                if live is not None:
                    raise NotReviewable(f"run {live} of this version is still live")
                generation = row["generation"] + 1
                scanning = hold or row["state"] in (State.FAILED, State.SCANNING)
                chosen = self._choose(bucket, ref.key, row["content_type"])
                run = runs.post_upload(bucket.owner.id, ref, row["digest"], chosen.pipeline, generation)
                if not scanning:
                    run = runs.reprocess(run, State(row["state"]))
                enqueued = await self._engine.enqueue(conn, [run])
                await conn.execute(
                    """UPDATE version SET generation = $5, run_id = $6, fingerprint = $7, verdict_of = NULL,
                              state = CASE WHEN $8 THEN 1 ELSE state END,
                              code = CASE WHEN $8 THEN NULL ELSE code END,
                              detail = CASE WHEN $8 THEN NULL ELSE detail END
                        WHERE bucket_id = $1 AND key = $2 AND seq = $3 AND rnd = $4""",
                    *ref.row,
                    generation,
                    enqueued[0].run_id,
                    chosen.fingerprint,
                    scanning,
                )
                await heads.recompute(conn, [(ref.bucket_id, ref.key)])
                await audit.record(conn, who, "reprocess", _target(bucket, ref, row))
        except BaseException:
            self._engine.abandon(enqueued)
            raise
        self._engine.launch(enqueued)
        return enqueued[0].run_id

    async def rescan(self, limit: int = 50) -> int:
        """Reprocess what was let through unscanned some time ago; where the scanner is still away it is planned anew.

        Returns how many runs were started.
        """
        rows = await self._pool.fetch(
            """UPDATE rescan r SET due_at = now() + interval '1 minute'
                 FROM (SELECT bucket_id, key, seq FROM rescan WHERE due_at <= now()
                        ORDER BY due_at LIMIT $1 FOR UPDATE SKIP LOCKED) due
                WHERE r.bucket_id = due.bucket_id AND r.key = due.key AND r.seq = due.seq
               RETURNING r.bucket_id, r.key, r.seq, r.rnd""",
            limit,
        )
        started = 0
        for row in rows:
            ref, bucket = VersionRef(*row), await self._buckets.by_id(row["bucket_id"])
            try:
                if bucket is not None:
                    await self.reprocess(bucket, ref, who="rescan")
                    started += 1
            except NoSuchVersion:
                pass
            except NotReviewable:
                continue  # a run is live: its verdict, or the next round
            await self._pool.execute(
                "DELETE FROM rescan WHERE bucket_id = $1 AND key = $2 AND seq = $3 AND rnd = $4", *ref.row
            )
        return started

    async def expire(self, limit: int = 100) -> int:
        """Delete quarantined versions that are older than their retention. Returns how many."""
        rows = await self._pool.fetch(
            """SELECT bucket_id, key, seq, rnd FROM version
                WHERE state IN (3, 4) AND state = 3 AND modified < now() - $1 * interval '1 second' LIMIT $2""",
            self._retention,
            limit,
        )
        for row in rows:
            ref = VersionRef(*row)
            async with self._pool.acquire() as conn, conn.transaction():
                with contextlib.suppress(NoSuchVersion):
                    _, held = await self._hold(conn, ref)
                    if held["state"] == State.QUARANTINED:
                        await heads.remove_versions(conn, self._engine, [ref], self._grace)
                        await heads.recompute(conn, [(ref.bucket_id, ref.key)])
        return len(rows)

    async def delete(self, bucket: Bucket, ref: VersionRef, *, who: str, why: str) -> None:
        """Delete one held version for good. Raises NotReviewable (not held), NoSuchVersion."""
        async with self._pool.acquire() as conn, conn.transaction():
            _, row = await self._hold(conn, ref)
            if row["state"] not in (State.QUARANTINED, State.FAILED):
                raise NotReviewable(f"the version is {State(row['state']).word}, not held")
            await heads.remove_versions(conn, self._engine, [ref], self._grace)
            await heads.recompute(conn, [(ref.bucket_id, ref.key)])
            await audit.record(conn, who, "delete-held", _target(bucket, ref, row), why)

    async def _hold(self, conn: asyncpg.pool.PoolConnectionProxy, ref: VersionRef) -> tuple[heads.Head, asyncpg.Record]:
        """Lock the head, then the version."""
        locked = await heads.lock(conn, [(ref.bucket_id, ref.key)], skip_locked=False)
        row = await conn.fetchrow(
            """SELECT state, is_null, digest, storage_class, generation, run_id, content_type, code,
                      coalesce(restored_until > now(), false) AS restored
                 FROM version WHERE bucket_id = $1 AND key = $2 AND seq = $3 AND rnd = $4 FOR UPDATE""",
            *ref.row,
        )
        if row is None:
            raise NoSuchVersion(ref.version_id)
        return locked[ref.bucket_id, ref.key], row

    async def _newer_null(self, conn: Conn, ref: VersionRef) -> bool:
        rows = await heads.null_rows(conn, [(ref.bucket_id, ref.key)])
        return any(other.seq > ref.seq for other, _ in rows[ref.bucket_id, ref.key])

    async def _promote(self, conn: Conn, ref: VersionRef, head: heads.Head) -> VersionRef:
        """Give a version the key's next sequence number, with all that hangs on it."""
        new = VersionRef(ref.bucket_id, ref.key, head.seq + 1, random64())
        await conn.execute(
            "UPDATE version SET seq = $5, rnd = $6 WHERE bucket_id = $1 AND key = $2 AND seq = $3 AND rnd = $4",
            *ref.row,
            new.seq,
            new.rnd,
        )
        for table in ("extent", "version_part", "sidecar"):
            await conn.execute(
                f"UPDATE {table} SET seq = $4 WHERE bucket_id = $1 AND key = $2 AND seq = $3", *ref.row[:3], new.seq
            )
        await conn.execute(
            "UPDATE head SET seq = $3 WHERE bucket_id = $1 AND key = $2", ref.bucket_id, ref.key, new.seq
        )
        return new


def _target(bucket: Bucket, ref: VersionRef, row: asyncpg.Record) -> dict[str, object]:
    return {
        "bucket": bucket.name,
        "key": ref.key.decode("utf-8", "replace"),
        "version": ref.version_id,
        "state": State(row["state"]).word,
        "code": row["code"],
        "digest": row["digest"],
    }
