"""A crowd of clients that take their time, from one thread: they send a byte now and then, or do not read."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

TICK = 1.0  # seconds between two bytes of one client
PATIENCE = 30.0


@dataclass
class Slow(asyncio.Protocol):
    """One client: says its opening, then, while drip is set, a byte of it at each tick. It reads only when told to.

    said: the first bytes of an answer. over: the server has ended it.
    """

    opening: bytes
    drip: bytes = b""
    reads: bool = True
    said: bytes = b""
    over: bool = False
    transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        if not self.reads:
            transport.pause_reading()
        transport.write(self.opening)

    def data_received(self, data: bytes) -> None:
        if len(self.said) < 4096:
            self.said += data

    def connection_lost(self, exc: BaseException | None) -> None:
        self.over = True

    def tick(self) -> None:
        if self.drip and self.transport is not None and not self.transport.is_closing():
            self.transport.write(self.drip[:1])
            self.drip = self.drip[1:] + self.drip[:1]

    def cut(self, reset: bool) -> None:
        if self.transport is None or self.over:
            return
        if reset:
            sock = self.transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()


@dataclass
class Crowd:
    """All of them connected for as long as the block lasts; then cut, every other one by a reset."""

    port: int
    members: Sequence[Slow]
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)
    thread: threading.Thread | None = None

    def __enter__(self) -> Crowd:
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self._run(self._connect())
        self.loop.call_soon_threadsafe(self._tick)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._run(self._cut())
        self.loop.call_soon_threadsafe(self.loop.stop)
        assert self.thread is not None
        self.thread.join(PATIENCE)
        self.loop.close()

    @property
    def there(self) -> int:
        """Those that the server has not ended."""
        return sum(not each.over for each in self.members)

    @property
    def refused(self) -> list[bytes]:
        """Beginnings of answers to those that should have none yet."""
        return [each.said[:200] for each in self.members if each.said]

    def _run(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self.loop).result(PATIENCE)

    async def _connect(self) -> None:
        gate = asyncio.Semaphore(100)

        async def one(member: Slow) -> None:
            async with gate:
                sock = socket.socket()
                sock.setblocking(False)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)  # little is read on behalf of who does not
                await self.loop.sock_connect(sock, ("127.0.0.1", self.port))
                await self.loop.create_connection(lambda: member, sock=sock)

        await asyncio.gather(*(one(member) for member in self.members))

    def _tick(self) -> None:
        for each in self.members:
            each.tick()
        self.loop.call_later(TICK, self._tick)

    async def _cut(self) -> None:
        for number, each in enumerate(self.members):
            each.cut(reset=number % 2 == 0)
        end = self.loop.time() + PATIENCE
        while self.there and self.loop.time() < end:
            await asyncio.sleep(0.01)


def until(condition: Callable[[], Any], patience: float = PATIENCE) -> Any:
    """What a condition says, once it says something. Raises AssertionError."""
    end = time.monotonic() + patience
    while not (found := condition()):
        assert time.monotonic() < end, "it never came to hold"
        time.sleep(0.02)
    return found
