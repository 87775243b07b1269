"""Takes runs out of line for a worker: the oldest of each account in turn while slots are free, and past the line what
is waited for. While uploads crowd the machine's processes the line waits."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence

import structlog
from asyncpg import Pool

from processing import store
from processing.courtesy import Courtesy
from processing.journal import OUTAGES, jitter
from processing.lease import WorkerLease
from processing.model import Lease
from processing.ports import Conn
from processing.retry import poll_interval
from processing.surroundings import Surroundings

log = structlog.get_logger("sluice.engine")

GATHER = 0.02  # seconds that a claim waits for slots, so that it is worth its round trip
PAUSE = 0.1  # seconds between looks whether uploads still crowd the machine
BEYOND = 16  # places beyond the slots for runs that somebody waits for: they do not stand behind the others


class Line:
    """free: slots that a claim may fill now. start: executes what was claimed, by the claim's connection. spawn: looks
    after a task of ours."""

    def __init__(
        self,
        pool: Pool,
        around: Surroundings,
        lease: WorkerLease,
        courtesy: Courtesy,
        *,
        free: Callable[[], int],
        start: Callable[[Conn, Sequence[Lease]], Awaitable[None]],
        spawn: Callable[[Awaitable[None]], object],
    ) -> None:
        self._pool, self._around, self._lease, self._courtesy = pool, around, lease, courtesy
        self._settings = around.settings
        self._free, self._start, self._spawn = free, start, spawn
        self.work = asyncio.Event()  # there may be some
        self.room = asyncio.Event()  # a slot has come free
        self._wanted: set[int] = set()  # runs in line that somebody waits for
        self._fetching = False
        self.looks = 0  # claims made, for tests

    async def claims(self) -> None:
        """Claim until cancelled."""
        pause = self._settings.poll_least
        while True:
            try:
                found, oldest, again = await self._claim()
            except asyncio.CancelledError:
                raise
            except Exception as error:
                log.warning("claim-failed", error=type(error).__name__)
                await asyncio.sleep(self._settings.database_pause * jitter())
                continue
            if found and await self._give_way(self._settings.patience - oldest):
                continue
            if again:
                await asyncio.sleep(0.005 * jitter())
                continue
            if found:
                pause = self._settings.poll_least
                await self._gather()
                continue
            pause = poll_interval(pause, False, self._settings.poll_least, self._settings.poll_most)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.work.wait(), pause)
                pause = self._settings.poll_least

    async def _claim(self) -> tuple[int, float, bool]:
        """(runs claimed, seconds that the oldest of them has waited, whether to try again at once)."""
        while self._free() <= 0:
            self.room.clear()
            await self.room.wait()
        if not self._lease.valid:
            return 0, 0.0, False
        self.work.clear()
        self.looks += 1
        worker_id, caps = self._lease.worker_id, self._around.registry.caps()
        async with self._pool.acquire() as conn:
            self._around.hooks.point("claiming")
            leases, passed = await store.claim(conn, worker_id, self._free(), self._settings.tenant_slots, caps)
            if not leases:
                return 0, 0.0, passed
            self._around.hooks.point("claimed")
            await self._start(conn, leases)
        return len(leases), max(lease.age for lease in leases), passed and self._free() > 0

    async def _give_way(self, seconds: float) -> bool:
        """Let the line wait while uploads crowd the machine, so many seconds at most. Whether it did."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        waited = False
        while self._courtesy.crowded and (left := end - loop.time()) > 0:
            waited = True
            await asyncio.sleep(min(PAUSE, left))
        return waited

    async def _gather(self) -> None:
        """Under load, claim several at a time: wait a moment for more slots to come free."""
        enough = max(1, min(32, self._settings.slots // 2))
        if self._free() < enough:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(GATHER):
                    while self._free() < enough:
                        self.room.clear()
                        await self.room.wait()

    def want(self, run_ids: Iterable[int]) -> None:
        """Claim these past the line. What finds no place is asked for again by who waits."""
        self._wanted.update(run_ids)
        if not self._fetching:
            self._fetching = True
            self._spawn(self._fetch())

    async def _fetch(self) -> None:
        caps = self._around.registry.caps()
        try:
            while self._wanted and self._lease.valid:
                wanted, self._wanted = sorted(self._wanted), set()
                places = max(BEYOND, self._free())
                async with self._pool.acquire() as conn:
                    self._around.hooks.point("claiming")
                    leases = await store.claim_wanted(
                        conn, self._lease.worker_id, wanted, places, self._settings.tenant_slots, caps
                    )
                    if leases:
                        self._around.hooks.point("claimed")
                        await self._start(conn, leases)
        except OUTAGES as error:
            log.warning("claim-failed", error=type(error).__name__)
        finally:
            self._fetching = False
