"""What nobody refers to any more goes: collected blobs, abandoned staging, names without rows, old answers.

Every job takes its rows with SKIP LOCKED, so that all processes may run them at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import asyncpg

from gateway.domain.ids import blob_age
from gateway.keeper import Keeper
from processing.ports import Conn
from storage_tiers import failpoints
from storage_tiers.tier import Tier, TierError, TierUnavailable

UNREFERENCED = """
SELECT q.id FROM unnest($1::uuid[]) AS q (id)
 WHERE NOT EXISTS (SELECT FROM version WHERE blob = q.id)
   AND NOT EXISTS (SELECT FROM version WHERE restored_blob = q.id)
   AND NOT EXISTS (SELECT FROM extent WHERE blob = q.id)
   AND NOT EXISTS (SELECT FROM part WHERE blob = q.id)
   AND NOT EXISTS (SELECT FROM part_extent WHERE blob = q.id)
   AND NOT EXISTS (SELECT FROM sidecar WHERE blob = q.id)
   AND NOT EXISTS (SELECT FROM verdict WHERE sidecar = q.id)
"""
LIMIT = 200  # rows that a job takes at a time
BATCH = 5000  # names whose rows are asked for at once
PLENTY = 100  # found by one job: there is more, so the next round comes after a
BREATH = 0.2  # second's pause
SUSPICIOUS = 0.01  # a larger share of names without rows looks like a database restored from a backup


@dataclass(frozen=True, slots=True)
class Orphans:
    """What the reconciler saw in one tier. refused: too many had no row, so nothing was deleted."""

    tier: str
    names: int
    orphans: int
    deleted: int
    refused: bool


class Collector(Keeper):
    def __init__(
        self,
        pool: asyncpg.Pool,
        tiers: Mapping[str, Tier],
        *,
        blob_grace: float,
        log: Any,
        sweeps: Sequence[Callable[[], Awaitable[int]]] = (),
        interval: float = 5.0,
    ) -> None:
        self._pool, self._tiers, self._grace, self._log = pool, tiers, blob_grace, log
        self._sweeps, self._interval = sweeps, interval

    async def _loop(self) -> None:
        reconciled = 0.0
        while True:
            found = [
                await self._guarded("collect", self.collect),
                await self._guarded("abandoned", self.abandoned),
                await self._guarded("unlink", self.unlink),
            ]
            await self._guarded("forget", self.forget)
            for sweep in self._sweeps:
                await self._guarded(getattr(sweep, "__qualname__", "sweep"), sweep)
            if time.monotonic() - reconciled > max(self._grace / 24, self._interval):
                reconciled = time.monotonic()
                await self._guarded("reconcile", self._reconcile)
            # Whoever overwrites all the time makes garbage faster than a few hundred an interval.
            await asyncio.sleep(min(self._interval, BREATH) if max(found) >= PLENTY else self._interval)

    async def _guarded(self, name: str, job: Callable[[], Awaitable[Any]]) -> int:
        """How many it found. One failing job stops no other; the next round tries again."""
        try:
            return int(await job() or 0)
        except Exception as error:  # whatever it is: a loop that ended would collect nothing until a restart
            self._log.warning("maintenance failed", job=name, error=type(error).__name__)
            return 0

    async def collect(self, limit: int = LIMIT) -> int:
        """Blobs in the queue whose time has come and that nothing names: live → deleting. Returns how many."""
        async with self._pool.acquire() as conn:
            rows = await conn.fetch(
                """SELECT DISTINCT blob
                     FROM (SELECT blob FROM blob_queue WHERE due_at <= now() ORDER BY due_at LIMIT $1) q""",
                limit,
            )
            if not rows:
                return 0
            async with conn.transaction():
                return await self._collect(conn, [row["blob"] for row in rows])

    async def _collect(self, conn: Conn, blobs: Sequence[UUID]) -> int:
        """Lock the blobs, then look for references in a new statement, whose snapshot is younger than the locks. Bytes
        that lie in the row go with it."""
        locked = {
            row["id"]: row["state"]
            for row in await conn.fetch(
                "SELECT id, state FROM blob WHERE id = ANY ($1::uuid[]) ORDER BY id FOR UPDATE SKIP LOCKED", blobs
            )
        }
        rest = [blob for blob in blobs if blob not in locked]
        left = await conn.fetch("SELECT id FROM blob WHERE id = ANY ($1::uuid[])", rest) if rest else []
        busy = {row["id"] for row in left}
        await conn.execute(
            """DELETE FROM blob_queue WHERE ctid = ANY (ARRAY(
                 SELECT ctid FROM blob_queue WHERE blob = ANY ($1::uuid[]) AND due_at <= now()
                 ORDER BY blob FOR UPDATE SKIP LOCKED))""",
            [blob for blob in blobs if blob not in busy],  # those the queue keeps
        )
        live = [blob for blob, state in locked.items() if state == 2]
        free = [row["id"] for row in await conn.fetch(UNREFERENCED, live)] if live else []
        if free:
            await conn.execute("DELETE FROM blob WHERE id = ANY ($1::uuid[]) AND tier = 'inline'", free)
            await conn.execute("UPDATE blob SET state = 3 WHERE id = ANY ($1::uuid[])", free)
            failpoints.point("collect.marking")
        return len(free)

    async def abandoned(self, limit: int = LIMIT) -> int:
        """Staging rows whose owner's lease is over: staging → deleting. Returns how many."""
        rows = await self._pool.fetch(
            """WITH lost AS (SELECT b.id FROM blob b LEFT JOIN worker w ON w.worker_id = b.owner
                              WHERE b.state = 1 AND (w.worker_id IS NULL OR w.lease_until < clock_timestamp())
                                AND b.created_at < now() - interval '15 seconds'
                                AND clock_timestamp() > pg_postmaster_start_time() + interval '15 seconds'
                              ORDER BY b.id LIMIT $1 FOR UPDATE OF b SKIP LOCKED)
               UPDATE blob SET state = 3, owner = NULL FROM lost WHERE blob.id = lost.id RETURNING blob.id""",
            limit,
        )
        if rows:
            failpoints.point("collect.abandoned")
        return len(rows)

    async def unlink(self, limit: int = LIMIT) -> int:
        """Delete the bytes of blobs that are deleting, and their rows last. Returns how many.

        A blob that cannot be deleted now keeps its row for the next pass, and keeps no other blob, or tier, waiting.
        """
        count = 0
        for name, tier in self._tiers.items():
            rows = await self._pool.fetch(
                "SELECT id FROM blob WHERE state = 3 AND tier = $1 ORDER BY id LIMIT $2", name, limit
            )
            for row in rows:
                try:
                    failpoints.point("collect.marked")
                    await tier.delete(row["id"])
                    failpoints.point("collect.unlinked")
                except TierError as error:
                    self._log.warning("blob not deleted", tier=name, blob=str(row["id"]), error=type(error).__name__)
                    if isinstance(error, TierUnavailable):
                        break
                    continue
                await self._pool.execute("DELETE FROM blob WHERE id = $1 AND state = 3", row["id"])
                failpoints.point("collect.dropped")
                count += 1
        await self._unlink_rest(limit)
        return count

    async def _unlink_rest(self, limit: int) -> None:
        """What lies in no tier: rows of inline bytes, and those of tiers that are configured no more."""
        names = list(self._tiers)
        rows = await self._pool.fetch(
            "SELECT id, tier FROM blob WHERE state = 3 AND tier <> ALL($1::text[]) ORDER BY id LIMIT $2", names, limit
        )
        for row in rows:
            if row["tier"] == "inline":
                await self._pool.execute("DELETE FROM blob WHERE id = $1 AND state = 3", row["id"])
            else:
                self._log.warning("blob of a tier that is not configured", tier=row["tier"], blob=str(row["id"]))

    async def forget(self) -> int:
        """Answers of completed uploads older than 7 days, verdicts older than 30."""
        await self._pool.execute(
            """DELETE FROM completed_upload WHERE ctid = ANY(ARRAY(
                 SELECT ctid FROM completed_upload WHERE completed_at < now() - interval '7 days' LIMIT 1000))"""
        )
        await self._pool.execute(
            """DELETE FROM verdict WHERE ctid = ANY(ARRAY(
                 SELECT ctid FROM verdict WHERE decided_at < now() - interval '30 days' LIMIT 1000))"""
        )
        return 0

    async def _reconcile(self) -> None:
        await self.reconcile_all()

    async def reconcile_all(self) -> list[Orphans]:
        return [await self.reconcile(name) for name in self._tiers]

    async def reconcile(self, tier_name: str) -> Orphans:
        """Delete names in a tier that have no row and are older than the grace period.

        Names are listed first and their rows asked for afterwards: a row comes before its bytes, so a name that has
        none by then never gets one. A row also goes after its bytes: what is not there any more in a second list was
        deleted in between, by whoever had its row. Where over 1 % have none, nothing is deleted and the log says so.
        """
        tier = self._tiers[tier_name]
        names = 0
        orphans: set[UUID] = set()
        async for batch in _batches(tier.names()):
            names += len(batch)
            orphans |= await self._without_row(batch)
        now = time.time()
        due = {name for name in orphans if blob_age(name, now) > self._grace}
        if due:
            due = {name async for name in tier.names() if name in due}
        refused = len(due) > 10 and len(due) > SUSPICIOUS * names
        if refused:
            self._log.error("names without rows", tier=tier_name, orphans=len(due), names=names)
        else:
            for name in due:
                await tier.delete(name)
        return Orphans(tier_name, names, len(due), 0 if refused else len(due), refused)

    async def _without_row(self, names: Sequence[UUID]) -> set[UUID]:
        rows = await self._pool.fetch("SELECT id FROM blob WHERE id = ANY($1::uuid[])", list(names))
        return set(names) - {row["id"] for row in rows}


async def _batches(names: AsyncIterator[UUID]) -> AsyncIterator[list[UUID]]:
    batch: list[UUID] = []
    async for name in names:
        batch.append(name)
        if len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch
