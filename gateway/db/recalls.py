"""RestoreObject: ask for an archived version back. The state is set by compare-and-swap in the run's transaction."""

from __future__ import annotations

from typing import Literal

import asyncpg

from gateway.db import blobs, heads, runs
from gateway.db.errors import NoSuchVersion, RestoreInProgress
from gateway.db.subjects import expiry
from gateway.domain.objects import Bucket, State, Version
from storage_tiers import failpoints
from storage_tiers.tier import Speed


class Recalls:
    def __init__(self, pool: asyncpg.Pool, engine: heads.Runs, *, lifecycle_day: float, blob_grace: float) -> None:
        self._pool, self._engine, self._day, self._grace = pool, engine, lifecycle_day, blob_grace

    async def request(
        self, bucket: Bucket, version: Version, days: int, speed: Speed
    ) -> Literal["accepted", "extended"]:
        """Start a restore, or give a restored copy a new expiry.

        Raises RestoreInProgress while one runs, NoSuchVersion when the version is gone (or held back).
        """
        ref = version.ref
        enqueued = []
        try:
            async with self._pool.acquire() as conn, conn.transaction():
                row = await conn.fetchrow(
                    """SELECT state, restoring, restore_n, restored_until > clock_timestamp() AS restored,
                              clock_timestamp() AS now
                         FROM version WHERE bucket_id = $1 AND key = $2 AND seq = $3 AND rnd = $4 FOR UPDATE""",
                    *ref.row,
                )
                if row is None or row["state"] not in (State.SCANNING, State.READY):
                    raise NoSuchVersion(version.version_id)
                if row["restoring"]:
                    raise RestoreInProgress(version.version_id)
                if row["restored"]:
                    await conn.execute(
                        """UPDATE version SET restored_until = $5
                            WHERE bucket_id = $1 AND key = $2 AND seq = $3 AND rnd = $4""",
                        *ref.row,
                        expiry(row["now"], days, self._day),
                    )
                    return "extended"
                n = row["restore_n"] + 1
                await conn.execute(
                    """UPDATE version SET restoring = true, restore_n = $5
                        WHERE bucket_id = $1 AND key = $2 AND seq = $3 AND rnd = $4""",
                    *ref.row,
                    n,
                )
                run = runs.recall(bucket.owner.id, ref, n, days, speed.value)
                enqueued = await self._engine.enqueue(conn, [run])
                failpoints.point("recall.requesting")
            failpoints.point("recall.requested")
        except BaseException:
            self._engine.abandon(enqueued)
            raise
        self._engine.launch(enqueued)
        return "accepted"

    async def expire(self, limit: int = 500) -> int:
        """Drop temporary copies whose time is over; reads have not used them since. Returns how many."""
        async with self._pool.acquire() as conn, conn.transaction():
            rows = await conn.fetch(
                """WITH due AS (SELECT bucket_id, key, seq, restored_blob FROM version
                                 WHERE restored_blob IS NOT NULL AND restored_until <= now()
                                 ORDER BY restored_until LIMIT $1 FOR UPDATE SKIP LOCKED)
                   UPDATE version v SET restored_blob = NULL, restored_until = NULL FROM due
                    WHERE v.bucket_id = due.bucket_id AND v.key = due.key AND v.seq = due.seq
                   RETURNING due.restored_blob AS blob""",
                limit,
            )
            await blobs.drop_references(conn, [row["blob"] for row in rows], self._grace)
            if rows:
                failpoints.point("recall.expiring")
            return len(rows)
