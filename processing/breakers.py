"""Breakers: one row per dependency that did not answer, one probe at a time in the fleet.

While a breaker is open, runs that need it wait parked and cost nothing. When a probe is due, maintenance wakes one of
them; the run takes the permit by compare-and-swap and its step is the probe.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID, uuid4

from asyncpg import Pool

from processing import store
from processing.ports import Conn as Connection
from processing.retry import Backoff

PROBE_SECONDS = 60.0  # after that a probe counts as lost and another may be made


@dataclass(frozen=True, slots=True)
class Permit:
    """The right to be the one probe of a dependency."""

    name: str
    token: UUID


def wait_key(name: str) -> str:
    """What runs parked on a dependency wait for."""
    return f"dep:{name}"


async def read_open(conn: Connection) -> dict[str, float]:
    """Open breakers: name → seconds until somebody may probe (≤ 0: now)."""
    rows = await conn.fetch(
        "SELECT name, extract(epoch FROM greatest(next_probe, coalesce(probe_until, next_probe)) - clock_timestamp())"
        "::float8 AS wait FROM breaker WHERE is_open"
    )
    return {row["name"]: row["wait"] for row in rows}


class Breakers:
    """The fleet's breakers as this process sees them, cached for a second."""

    def __init__(
        self, pool: Pool, *, backoff: Backoff, spread: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._pool = pool
        self._backoff = backoff
        self._spread = spread
        self._clock = clock
        self._read_at = float("-inf")
        self._open: dict[str, float] = {}
        self.learnt: dict[str, str] = {}  # activity → the dependency it was seen to need

    async def is_open(self, name: str) -> bool:
        if self._clock() - self._read_at > 1.0:
            self._read_at = self._clock()
            async with self._pool.acquire() as conn:
                self._open = await read_open(conn)
        return name in self._open

    async def probe(self, name: str) -> Permit | None:
        """The permit to try an open dependency, when one is due and nobody else has it."""
        token = uuid4()
        async with self._pool.acquire() as conn:
            won = await conn.fetchval(
                "UPDATE breaker SET probe_token = $2,"
                " probe_until = clock_timestamp() + $3::float8 * interval '1 second'"
                " WHERE name = $1 AND is_open AND next_probe <= clock_timestamp()"
                " AND (probe_until IS NULL OR probe_until < clock_timestamp()) RETURNING true",
                name,
                token,
                PROBE_SECONDS,
            )
            if won:
                return Permit(name, token)
            if not await conn.fetchval("SELECT is_open FROM breaker WHERE name = $1", name):
                self._open.pop(name, None)  # closed meanwhile: the caller may go ahead without a permit
        return None

    async def down(self, name: str, permit: Permit | None = None) -> None:
        """The dependency did not answer: open its breaker, or put off the next probe when this was one."""
        pause = self._backoff
        async with self._pool.acquire() as conn:
            await conn.execute(
                """
INSERT INTO breaker AS b (name, is_open, failures, opened_at, next_probe)
VALUES ($1, true, 1, clock_timestamp(), clock_timestamp() + $2::float8 * interval '1 second')
ON CONFLICT (name) DO UPDATE SET
    is_open = true,
    opened_at = CASE WHEN b.is_open THEN b.opened_at ELSE clock_timestamp() END,
    failures = CASE WHEN b.is_open THEN b.failures + 1 ELSE 1 END,
    next_probe = clock_timestamp()
        + least($3::float8, $2::float8 * 2.0 ^ CASE WHEN b.is_open THEN least(b.failures, 20) ELSE 0 END)
        * interval '1 second',
    probe_until = NULL, probe_token = NULL, woken_at = NULL
WHERE NOT b.is_open OR b.probe_token = $4""",
                name,
                pause.base,
                pause.cap,
                permit and permit.token,
            )
        self._open[name] = pause.base

    async def up(self, permit: Permit) -> int:
        """The probe succeeded: close, and wake who waited, spread over some seconds. How many were woken."""
        key = wait_key(permit.name)
        async with self._pool.acquire() as conn, conn.transaction():
            await store.lock_keys(conn, [key])
            closed = await conn.fetchval(
                "UPDATE breaker SET is_open = false, failures = 0, closed_at = clock_timestamp(),"
                " probe_until = NULL, probe_token = NULL WHERE name = $1 AND probe_token = $2 RETURNING true",
                permit.name,
                permit.token,
            )
            woken = await store.wake_waiting(conn, [key], max(self._spread, 0.001)) if closed else 0
        self._open.pop(permit.name, None)
        return woken

    async def forgo(self, permit: Permit) -> None:
        """Give a permit back unused."""
        async with self._pool.acquire() as conn:
            await conn.execute(
                "UPDATE breaker SET probe_until = NULL, probe_token = NULL WHERE name = $1 AND probe_token = $2",
                permit.name,
                permit.token,
            )


async def wake_probes(conn: Connection, pause: float) -> list[str]:
    """For every open breaker whose probe is due, wake one run parked on it; another after pause seconds, should that
    one not get to run. Answers the dependencies nobody is parked on: a filling run may be their probe."""
    due = await conn.fetch(
        "UPDATE breaker SET woken_at = clock_timestamp() WHERE is_open AND next_probe <= clock_timestamp()"
        " AND (probe_until IS NULL OR probe_until < clock_timestamp())"
        " AND (woken_at IS NULL OR woken_at < clock_timestamp() - $1::float8 * interval '1 second') RETURNING name",
        pause,
    )
    idle = []
    for (name,) in due:
        woken = await conn.fetchval(
            "UPDATE workflow_run SET wake_at = clock_timestamp() WHERE state = 3 AND run_id = ("
            " SELECT run_id FROM workflow_run WHERE state = 3 AND wait_key = $1 ORDER BY wake_at LIMIT 1"
            " FOR NO KEY UPDATE SKIP LOCKED) RETURNING run_id",
            wait_key(name),
        )
        if woken is None:
            idle.append(name)
    return idle
