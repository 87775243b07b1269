"""Repairs that make up for what a crash between two transactions may lose, and work that nobody waits for.

Each sweep is done by one process of the fleet at a time, at most once per interval: its row in ``sweep`` is the lock
and the clock.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

import structlog
from asyncpg import Pool

from processing import store
from processing.model import NewRun, Subject
from processing.ports import Conn as Connection

log = structlog.get_logger("sluice.engine")


@dataclass(frozen=True, slots=True)
class Sweep:
    """run gets the connection (in a transaction that holds the sweep's row), the cursor it left, and when it last ran;
    it returns the new cursor."""

    name: str
    run: Callable[[Connection, int, datetime], Awaitable[int]]
    interval: float


# Runs that whoever owns the subjects wants enqueued, asked for in a transaction (scanning without a live run, say).
Wanted = Callable[[Connection], Awaitable[Sequence[NewRun]]]
# Those of these subjects that still wait for a verdict.
Undecided = Callable[[Connection, Sequence[Subject]], Awaitable[set[Subject]]]


class Sweeps:
    def __init__(self, pool: Pool, sweeps: Sequence[Sweep]) -> None:
        self._pool = pool
        self._sweeps = sweeps

    def __len__(self) -> int:
        return len(self._sweeps)

    async def run(self, force: bool = False) -> None:
        """Do every sweep that is due (all, with force). One that fails does not stop the others."""
        for sweep in self._sweeps:
            try:
                await self._one(sweep, force)
            except Exception as error:
                log.warning("sweep-failed", sweep=sweep.name, error=type(error).__name__, exc_info=True)

    async def _one(self, sweep: Sweep, force: bool) -> None:
        interval = 0.0 if force else sweep.interval
        async with self._pool.acquire() as conn:
            due = await conn.fetchval(
                "SELECT ran_at <= clock_timestamp() - $2::float8 * interval '1 second' FROM sweep WHERE name = $1",
                sweep.name,
                interval,
            )
            if due is None:
                await conn.execute("INSERT INTO sweep (name) VALUES ($1) ON CONFLICT DO NOTHING", sweep.name)
            elif not due:
                return
            async with conn.transaction():
                # Under the lock, look again: another process may just have done it.
                row = await conn.fetchrow(
                    "SELECT cursor, ran_at FROM sweep WHERE name = $1"
                    " AND ran_at <= clock_timestamp() - $2::float8 * interval '1 second' FOR UPDATE SKIP LOCKED",
                    sweep.name,
                    interval,
                )
                if row is None:
                    return
                cursor = await sweep.run(conn, row["cursor"], row["ran_at"])
                await conn.execute(
                    "UPDATE sweep SET ran_at = clock_timestamp(), cursor = $2 WHERE name = $1", sweep.name, cursor
                )


async def reactivate(conn: Connection, cursor: int, ran_at: datetime) -> int:
    """Tenants with waiting runs that no claim looks at."""
    found = await conn.fetch(
        "SELECT q.tenant, q.lane FROM tenant_q q WHERE NOT q.active AND EXISTS ("
        " SELECT FROM workflow_run r WHERE r.tenant = q.tenant AND r.lane = q.lane AND r.state = 1)"
        " ORDER BY q.tenant, q.lane"
    )
    if found:
        await conn.execute(
            "SELECT engine_activate($1::bigint[], $2::text[])", [r["tenant"] for r in found], [r["lane"] for r in found]
        )
        log.warning("tenants-reactivated", count=len(found))
    return cursor


async def wake_orphans(conn: Connection, cursor: int, ran_at: datetime) -> int:
    """Followers of runs that have ended, waiters of events that have come, and runs parked on closed breakers: whoever
    was to wake them died first."""
    rows = await conn.fetch(
        f"""
SELECT f.wait_key FROM workflow_run f
WHERE f.state = 3 AND f.wait_key ~ '^run:[0-9]{{1,18}}$' AND NOT EXISTS (
    SELECT FROM workflow_run l WHERE l.run_id = substr(f.wait_key, 5)::bigint AND l.state IN ({store.LIVE_STATES}))
UNION
SELECT f.wait_key FROM workflow_run f JOIN signal s ON s.wait_key = f.wait_key WHERE f.state = 3
LIMIT 500"""
    )
    if rows:
        await store.wake_waiting(conn, [row["wait_key"] for row in rows], 0.0)
    mended = await conn.fetch(
        "SELECT DISTINCT f.wait_key FROM workflow_run f WHERE f.state = 3 AND f.wait_key LIKE 'dep:%'"
        " AND f.wake_at > clock_timestamp() + interval '30 seconds'"
        " AND NOT EXISTS (SELECT FROM breaker b WHERE b.name = substr(f.wait_key, 5) AND b.is_open)"
    )
    if mended:
        await store.wake_waiting(conn, [row["wait_key"] for row in mended], 10.0)
    return cursor


def stale_scans(
    undecided: Undecided, fail: Callable[[Connection, int], Awaitable[None]], after: float, at_once: int = 20_000
) -> Callable[[Connection, int, datetime], Awaitable[int]]:
    """Ended runs whose subject still waits for a verdict: the subject is failed (worker-lost) after so many seconds.

    Reads through the retained runs in slices, over and over. A live run shields its subject whatever its age.
    """

    async def run(conn: Connection, cursor: int, ran_at: datetime) -> int:
        rows = await conn.fetch(
            f"""
SELECT r.run_id, r.bucket_id, r.key, r.seq, r.rnd, r.finished_at IS NOT NULL
       AND r.finished_at < clock_timestamp() - $2::float8 * interval '1 second'
       AND NOT EXISTS (SELECT FROM workflow_run l WHERE l.bucket_id = r.bucket_id AND l.key = r.key AND l.seq = r.seq
                       AND l.state IN ({store.LIVE_STATES})) AS old
FROM workflow_run r WHERE r.run_id > $1 ORDER BY r.run_id LIMIT $3""",
            cursor,
            after,
            at_once,
        )
        newest: dict[Subject, int] = {}
        for row in rows:
            if row["old"] and row["seq"] is not None:
                newest[Subject(row["bucket_id"], row["key"], row["seq"], row["rnd"])] = row["run_id"]
        if newest:
            left = await undecided(conn, sorted(newest))
            for subject in left:
                await fail(conn, newest[subject])
        return rows[-1]["run_id"] if len(rows) == at_once else 0

    return run


def wanted(
    ask: Wanted, enqueue: Callable[[Connection, Sequence[NewRun]], Awaitable[None]]
) -> Callable[[Connection, int, datetime], Awaitable[int]]:
    """Enqueue what the owner of the subjects misses."""

    async def run(conn: Connection, cursor: int, ran_at: datetime) -> int:
        runs = await ask(conn)
        if runs:
            await enqueue(conn, runs)
            log.warning("runs-re-enqueued", count=len(runs))
        return cursor

    return run
