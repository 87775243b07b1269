"""Hints between processes over one LISTEN connection. A hint may be lost; whoever needs the truth polls.

``publish`` never runs in a caller's transaction: the first hint leaves at once, those that follow shortly after leave
together. The connection is made again when it goes; every time it listens anew, subscribers look around once, since
what was said in between is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import asyncpg
import structlog
from asyncpg.prepared_stmt import PreparedStatement

from processing.journal import OUTAGES, jitter

log = structlog.get_logger("sluice.notifier")

CHANNEL = "sluice"
COALESCE = 0.005  # seconds: a reader may wait for what is said
LARGEST = 7900  # bytes; Postgres takes less than 8000

# The commit of a notification has nothing to make durable.
_SEND = "SELECT set_config('synchronous_commit', 'off', true), pg_notify($1, p) FROM unnest($2::text[]) AS p"


@dataclass(frozen=True, slots=True)
class Subscription:
    kind: str
    callback: Callable[[str], None]
    resync: Callable[[], None] | None


class Notifier:
    """``subscribe`` before or after ``start``; callbacks run on the loop, must return at once and not raise."""

    def __init__(
        self,
        listen_url: str,
        *,
        probe: float = 5.0,
        pause: float = 0.2,
        most_pause: float = 5.0,
        connect: Callable[..., Any] = asyncpg.connect,
    ) -> None:
        self._url = listen_url
        self._probe = probe
        self._pause = pause
        self._most_pause = most_pause
        self._connect = connect
        self._subscriptions: list[Subscription] = []
        self._waiting: dict[str, None] = {}  # payloads in order, each once
        self._leaving: asyncio.Task[None] | None = None
        self._running: asyncio.Task[None] | None = None
        self._conn: asyncpg.Connection | None = None
        self._sending: PreparedStatement[Any] | None = None  # of that connection
        self._gone = asyncio.Event()
        self._lock = asyncio.Lock()  # one statement at a time on the connection
        self.sessions = 0  # how often it has begun to listen

    @property
    def connected(self) -> bool:
        """Whether hints from other processes arrive."""
        return self._conn is not None and not self._gone.is_set()

    def subscribe(
        self, kind: str, callback: Callable[[str], None], resync: Callable[[], None] | None = None
    ) -> Subscription:
        """callback gets the payload of every hint of a kind, this process's own included; resync is called after each
        beginning to listen, and when a hint was too large to carry its payload."""
        subscription = Subscription(kind, callback, resync)
        self._subscriptions.append(subscription)
        return subscription

    def on_resync(self, resync: Callable[[], None]) -> Subscription:
        """Only the looking around, whatever the kind."""
        return self.subscribe("", lambda _: None, resync)

    def unsubscribe(self, subscription: Subscription) -> None:
        with contextlib.suppress(ValueError):
            self._subscriptions.remove(subscription)

    def publish(self, kind: str, payload: str = "") -> None:
        """Tell the other processes, soon. Never blocks, never raises; while there is no connection hints are lost."""
        text = f"{kind}:{payload}"
        self._waiting[text if len(text.encode()) <= LARGEST else f"{kind}!"] = None
        if self._leaving is None or self._leaving.done():
            self._leaving = asyncio.get_running_loop().create_task(self._leave())

    async def start(self) -> None:
        """Begin to listen. An unreachable database is no error: it is tried again."""
        if self._running is None:
            first = asyncio.get_running_loop().create_future()
            self._running = asyncio.create_task(self._run(first))
            await first

    async def close(self) -> None:
        """Send what waits, if that is quick, and stop listening."""
        if self._leaving is not None:
            await asyncio.wait({self._leaving}, timeout=0.5)
        for task in (self._running, self._leaving):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await task
        self._running = None
        self._drop()

    # --- sending ---

    async def _leave(self) -> None:
        while self._waiting:
            batch = list(self._waiting)
            self._waiting.clear()
            conn = self._conn
            if conn is not None:
                try:
                    async with self._lock:
                        sending = self._sending
                        if sending is None:  # prepared once: a connection that listens is no pooler's
                            sending = await conn.prepare(_SEND, timeout=self._probe)
                            if conn is self._conn:
                                self._sending = sending
                        await sending.fetch(CHANNEL, batch, timeout=self._probe)
                except (*OUTAGES, asyncpg.PostgresError) as error:
                    log.warning("hints-lost", count=len(batch), error=type(error).__name__)
                    self._gone.set()
            await asyncio.sleep(COALESCE)

    # --- listening ---

    async def _run(self, first: asyncio.Future[None]) -> None:
        pause = self._pause
        while True:
            try:
                await self._listen()
                pause = self._pause
                if not first.done():
                    first.set_result(None)
                await self._stay()
            except (*OUTAGES, asyncpg.PostgresError) as error:
                log.warning("listen-failed", error=type(error).__name__)
            finally:
                if not first.done():
                    first.set_result(None)
                self._drop()
            await asyncio.sleep(pause * jitter())
            pause = min(self._most_pause, pause * 2)

    async def _listen(self) -> None:
        conn = await self._connect(self._url, timeout=self._probe, statement_cache_size=0)
        self._gone.clear()
        conn.add_termination_listener(lambda _: self._gone.set())
        try:
            await conn.add_listener(CHANNEL, self._arrived)
        except BaseException:
            conn.terminate()
            raise
        self._conn = conn
        self.sessions += 1
        for subscription in list(self._subscriptions):
            self._call(subscription.resync)

    async def _stay(self) -> None:
        """Until the connection goes. A link that has silently died answers no probe."""
        while not self._gone.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._gone.wait(), self._probe)
            conn = self._conn
            if conn is not None and not self._gone.is_set():
                async with self._lock:
                    await conn.execute("SELECT 1", timeout=self._probe)
        log.warning("listener-gone")

    def _drop(self) -> None:
        conn, self._conn, self._sending = self._conn, None, None
        if conn is not None:
            conn.terminate()

    def _arrived(self, _conn: Any, _pid: int, _channel: str, text: object) -> None:
        kind, colon, payload = str(text).partition(":")
        for subscription in list(self._subscriptions):
            if colon and subscription.kind == kind:
                self._call(subscription.callback, payload)
            elif not colon and subscription.kind == kind.rstrip("!"):
                self._call(subscription.resync)

    def _call(self, callback: Callable[..., None] | None, *arguments: str) -> None:
        if callback is not None:
            try:
                callback(*arguments)
            except Exception as error:
                log.error("subscriber-failed", error=type(error).__name__, exc_info=True)
