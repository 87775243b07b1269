"""Brings back the runs of dead workers. Runs in every process; they pass over what another has locked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import structlog
from asyncpg import Pool

from processing import store
from processing.surroundings import Hooks

log = structlog.get_logger("sluice.engine")

Fail = Callable[[int], Awaitable[bool]]


class Reaper:
    """fail ends a run as worker-lost, in the lock order of its subject; it looks at the run's worker again."""

    def __init__(self, pool: Pool, *, ttl: float, max_recoveries: int, hooks: Hooks, fail: Fail) -> None:
        self._pool = pool
        self._ttl = ttl
        self._max = max_recoveries
        self._hooks = hooks
        self._fail = fail

    async def run(self) -> int:
        """One pass; how many runs went back to pending."""
        async with self._pool.acquire() as conn:
            reaped = await store.reap(conn, self._ttl, self._max)
            lost = await store.worn_out(conn, self._ttl, self._max)
        if reaped:
            self._hooks.recovery("reaped", len(reaped))
            log.warning("runs-reaped", count=len(reaped), runs=reaped[:20])
        for run_id in lost:
            if await self._fail(run_id):
                self._hooks.recovery("worker-lost", 1)
                log.error("run-worker-lost", run=run_id)
        return len(reaped)
