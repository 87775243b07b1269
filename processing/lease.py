"""A process's lease on its runs: one row, renewed from a thread and a connection of its own.

Renewing stops when the event loop stops ticking: a process that does not work must not keep its runs. The lease counts
by the database's clock; what this side knows is when it last sent a renewal that was confirmed.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable, Sequence

import asyncpg
import structlog

from processing import store
from processing.journal import OUTAGES, jitter

log = structlog.get_logger("sluice.engine")
Connect = Callable[[], Awaitable[asyncpg.Connection]]


class WorkerLease:
    """Registers a worker row and keeps it. on_beat and on_lost are called on the engine's loop."""

    def __init__(
        self,
        connect: Connect,
        *,
        name: str,
        slots: int,
        ttl: float,
        interval: float,
        on_beat: Callable[[Sequence[int], Sequence[int]], None],
        on_lost: Callable[[], None],
    ) -> None:
        self._connect = connect
        self._name = name
        self._slots = slots
        self._ttl = ttl
        self._interval = interval
        self._on_beat = on_beat
        self._on_lost = on_lost
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._registered = threading.Event()
        self._ticked = True
        self._error: BaseException | None = None
        self.worker_id = 0
        self.confirmed = float("-inf")  # monotonic time at which the last confirmed renewal was sent
        self.heard = time.monotonic()  # at which the database last answered, whatever it said

    @property
    def margin(self) -> float:
        """Seconds before the end of the lease at which this side stops believing in it."""
        return min(2.0, self._ttl * 0.2)

    @property
    def valid(self) -> bool:
        return time.monotonic() - self.confirmed < self._ttl - self.margin

    def tick(self) -> None:
        """The event loop is alive. Called from it, several times per interval."""
        self._ticked = True

    async def start(self) -> None:
        """Register. Raises what kept the first connection from being made."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="sluice-lease", daemon=True)
        self._thread.start()
        await asyncio.to_thread(self._registered.wait)
        if self._error is not None:
            raise self._error

    async def stop(self) -> None:
        """End the lease and the thread."""
        self._stop.set()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, self._ttl)

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:
            self._error = error
        finally:
            self._registered.set()

    async def _main(self) -> None:
        conn: asyncpg.Connection | None = None
        try:
            conn = await self._connect()
            await self._register(conn)
            self._registered.set()
            while not await self._pause(self._interval):
                if not self._ticked:
                    self.heard = time.monotonic()  # nobody asked
                    continue
                self._ticked = False
                try:
                    if conn is None or conn.is_closed():
                        conn = await asyncio.wait_for(self._connect(), self._ttl / 3)
                    await asyncio.wait_for(self._beat(conn), self._ttl / 3)
                except (*OUTAGES, asyncpg.PostgresError) as error:
                    log.warning("heartbeat-failed", error=type(error).__name__)
                    if conn is not None:
                        conn.terminate()
                        conn = None
                    self._ticked = True
                    await self._pause(min(self._interval, 1.0) * jitter())
            if conn is not None and not conn.is_closed():
                with contextlib.suppress(Exception):
                    await asyncio.wait_for(store.resign(conn, self.worker_id), 2.0)
        finally:
            if conn is not None:
                conn.terminate()

    async def _pause(self, seconds: float) -> bool:
        """Wait; True when it is time to stop."""
        end = time.monotonic() + seconds
        while not self._stop.is_set() and (left := end - time.monotonic()) > 0:  # noqa: ASYNC110
            await asyncio.sleep(min(left, 0.1))
        return self._stop.is_set()

    async def _register(self, conn: asyncpg.Connection) -> None:
        sent = time.monotonic()
        self.worker_id = await store.register(conn, self._name, self._ttl, self._slots)
        self.heard = time.monotonic()
        self.confirmed = sent

    async def _beat(self, conn: asyncpg.Connection) -> None:
        assert self._loop is not None
        sent = time.monotonic()
        alive, held, cancelled = await store.beat(conn, self.worker_id, self._ttl)
        self.heard = time.monotonic()
        if alive:
            self.confirmed = sent
            self._loop.call_soon_threadsafe(self._on_beat, held, cancelled)
            return
        # Expired: the old name is dead for good, its runs are or will be somebody else's.
        log.warning("lease-expired", worker=self.worker_id)
        self.confirmed = float("-inf")
        gone = threading.Event()
        self._loop.call_soon_threadsafe(self._lose, gone)
        while not gone.is_set() and not self._stop.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        await self._register(conn)

    def _lose(self, gone: threading.Event) -> None:
        try:
            self._on_lost()
        finally:
            gone.set()
