"""A client of clamd's socket protocol (clamd(8), section COMMANDS), over TCP or a Unix socket.

Own code instead of a library: the ones at hand block, send a content in one piece or read the answer only after the
last chunk. clamd answers a stream over its limit at once and closes, so the answer has to be read while chunks are
still being sent, else it is lost to the reset that follows. PING and VERSION are the same few lines.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass
from typing import TypeVar

from processing.scanner import (
    ScanFailed,
    ScannerMeter,
    ScannerUnreachable,
    ScannerVersion,
    ScanReply,
    Unmetered,
    read_reply,
    read_version,
)

T = TypeVar("T")

CHUNK = 1 << 16  # bytes in one length-prefixed chunk: far below any StreamMaxLength, cheap to send
MAX_REPLY = 4096
UNKNOWN_TTL = 5.0  # seconds until a version that could not be had is asked for again
_LENGTH = struct.Struct("!I")


@dataclass(frozen=True, slots=True)
class ClamdAddress:
    """Either path (a Unix socket), or host and port."""

    host: str = ""
    port: int = 0
    path: str = ""

    @classmethod
    def parse(cls, text: str) -> ClamdAddress:
        """``tcp://host:port``, ``tcp://[::1]:port`` or ``unix:/path``. Raises ValueError with a sentence."""
        scheme, _, rest = text.partition(":")
        if scheme == "unix" and rest.startswith("/"):
            return cls(path="/" + rest.lstrip("/"))
        host, _, port = rest.removeprefix("//").rpartition(":")
        if scheme == "tcp" and rest.startswith("//") and host and port.isdigit() and 0 < int(port) < 65536:
            return cls(host=host.removeprefix("[").removesuffix("]"), port=int(port))
        raise ValueError(f"{text!r} is no address of clamd: write tcp://host:port or unix:/path")

    def __str__(self) -> str:
        return f"unix:{self.path}" if self.path else f"tcp://{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class ClamdTimeouts:
    """Seconds. scan counts what is spent waiting for clamd, not what the source of the bytes takes."""

    connect: float = 5.0
    control: float = 5.0
    scan: float = 120.0
    last_words: float = 2.0  # for the answer of a clamd that stopped taking bytes


class Clamd:
    """A Scanner over one clamd. One connection per command, as clamd wants it outside of sessions.

    streams bounds the streams open at once in this process; clamd queues beyond its MaxThreads anyway.
    """

    def __init__(
        self,
        address: ClamdAddress,
        *,
        timeouts: ClamdTimeouts | None = None,
        streams: int = 8,
        version_ttl: float = 60.0,
        meter: ScannerMeter | None = None,
    ) -> None:
        self.address = address
        self._timeouts = timeouts or ClamdTimeouts()
        self._streams = asyncio.Semaphore(streams)
        self._meter: ScannerMeter = meter or Unmetered()
        self._version_ttl = version_ttl
        self._known: tuple[float, str | None] | None = None  # look up again at, what
        self._refresh: asyncio.Task[None] | None = None

    async def ping(self) -> None:
        answer = await self._control(b"PING")
        if answer.strip() != b"PONG":
            raise self._unreachable("ping_garbage", f"not an answer to PING: {answer[:40]!r}")

    async def version(self) -> ScannerVersion:
        try:
            version = read_version(await self._control(b"VERSION"))
        except ScannerUnreachable as error:
            if error.reason == "ping_garbage":
                self._unreachable(error.reason, str(error))
            raise
        self._meter.signatures(version.built)
        return version

    async def signature_version(self) -> str | None:
        """clamd's VERSION line, at most version_ttl seconds old while clamd answers.

        Only the first call waits; later ones get the known text and refresh it beside. While clamd is down the last
        known one stands: without it no new verdict comes about that could be filed under a wrong version.
        """
        if self._refresh is None and (self._known is None or time.monotonic() >= self._known[0]):
            self._refresh = asyncio.create_task(self._look_up_version(), name="clamd-version")
            self._refresh.add_done_callback(self._refreshed)
        if self._known is None and self._refresh is not None:
            await asyncio.shield(self._refresh)
        return self._known[1] if self._known else None

    async def _look_up_version(self) -> None:
        text, ttl = self._known[1] if self._known else None, min(UNKNOWN_TTL, self._version_ttl)
        with contextlib.suppress(ScannerUnreachable):
            text, ttl = (await self.version()).text, self._version_ttl
        self._known = (time.monotonic() + ttl, text)

    def _refreshed(self, _: asyncio.Task[None]) -> None:
        self._refresh = None

    async def scan_stream(self, chunks: AsyncIterator[bytes]) -> ScanReply:
        async with self._streams:
            begun = time.monotonic()
            sock = await self._connect()
            try:
                stream = _Stream(sock, self._timeouts)
                reply = read_reply(await stream.run(chunks))
            except ScanFailed as error:
                self._meter.error(error.reason)
                raise
            finally:
                sock.close()
        self._meter.up(True)
        self._meter.scanned(reply.outcome.value, time.monotonic() - begun, stream.sent)
        return reply

    async def _control(self, command: bytes) -> bytes:
        sock = await self._connect()
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._timeouts.control):
                await loop.sock_sendall(sock, b"z" + command + b"\0")
                answer = await _receive(sock)
        except TimeoutError:
            raise self._unreachable("ping_timeout", f"{self.address} does not answer {command.decode()}") from None
        except OSError as error:
            raise self._unreachable("closed_early", f"{self.address}: {error.strerror}") from None
        finally:
            sock.close()
        if not answer:
            raise self._unreachable("empty_reply", f"{self.address} closed the connection without a byte of answer")
        self._meter.up(True)
        return answer

    async def _connect(self) -> socket.socket:
        try:
            async with asyncio.timeout(self._timeouts.connect):
                return await _connected(self.address)
        except TimeoutError:
            raise self._unreachable("connect_timeout", f"{self.address} takes no connection") from None
        except OSError as error:
            raise self._unreachable("connect_failed", f"{self.address}: {error.strerror or error}") from None

    def _unreachable(self, reason: str, text: str) -> ScannerUnreachable:
        self._meter.up(False)
        self._meter.error(reason)
        return ScannerUnreachable(reason, text)


class _Stream:
    """One INSTREAM on one connection, which its caller closes."""

    def __init__(self, sock: socket.socket, timeouts: ClamdTimeouts) -> None:
        self._sock = sock
        self._left = timeouts.scan
        self._last_words = timeouts.last_words
        self._loop = asyncio.get_running_loop()
        self.sent = 0

    async def run(self, chunks: AsyncIterator[bytes]) -> bytes:
        """clamd's answer without its terminator. Raises ScanFailed, and whatever chunks raises."""
        answer = self._loop.create_task(_receive(self._sock), name="clamd-answer")
        try:
            if await self._send_all(chunks, answer):
                return await self._wait(asyncio.shield(answer))
            self._left = self._last_words  # clamd closed, or said its word before the end
            early = await self._wait(asyncio.shield(answer))
            if not early:
                raise ScanFailed("closed_early", "the scanner closed the connection in the middle of the stream")
            return early
        finally:
            answer.cancel()
            await asyncio.wait({answer})
            if not answer.cancelled():
                answer.exception()  # has been seen above, or matters no more

    async def _send_all(self, chunks: AsyncIterator[bytes], answer: asyncio.Task[bytes]) -> bool:
        """False when clamd answered, or stopped taking bytes, before the end."""
        if not await self._send(b"zINSTREAM\0"):
            return False
        async for data in chunks:
            for piece in _pieces(data):
                if answer.done() or not await self._send(_LENGTH.pack(len(piece)), piece):
                    return False
                self.sent += len(piece)
        return await self._send(_LENGTH.pack(0))  # a chunk of length zero ends the stream: never sent for empty data

    async def _send(self, *parts: bytes | memoryview) -> bool:
        try:
            await self._wait(self._loop.sock_sendall(self._sock, b"".join(parts)))
        except OSError:
            return False
        return True

    async def _wait(self, awaitable: Awaitable[T]) -> T:
        begun = time.monotonic()
        try:
            async with asyncio.timeout(max(0.0, self._left)):
                return await awaitable
        except TimeoutError:
            raise ScanFailed("timeout", "the scanner gave no verdict in time") from None
        finally:
            self._left -= time.monotonic() - begun


def _pieces(data: bytes) -> list[memoryview]:
    view = memoryview(data)
    return [view[start : start + CHUNK] for start in range(0, len(view), CHUNK)]


async def _receive(sock: socket.socket) -> bytes:
    """All bytes up to a NUL or the end. Raises ScanFailed when the peer ends in the middle, or talks too much."""
    loop = asyncio.get_running_loop()
    answer = b""
    while b"\0" not in answer:
        try:
            data = await loop.sock_recv(sock, MAX_REPLY)
        except ConnectionError:  # a reset, where clamd closed with bytes of ours unread
            data = b""
        if not data and answer:
            raise ScanFailed("closed_early", "the scanner closed the connection in the middle of its answer")
        if not data:
            return b""
        answer += data
        if len(answer) > MAX_REPLY:
            raise ScanFailed("garbage", "the scanner's answer does not end")
    return answer.partition(b"\0")[0]


async def _connected(address: ClamdAddress) -> socket.socket:
    loop = asyncio.get_running_loop()
    if address.path:
        targets: list[tuple[int, object]] = [(socket.AF_UNIX, address.path)]
    else:
        found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        targets = [(family, target) for family, _, _, _, target in found]
    error: OSError = OSError("the name has no address")
    for family, target in targets:
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setblocking(False)
        try:
            await loop.sock_connect(sock, target)  # type: ignore[arg-type]  # typeshed knows no Unix path here
            return sock
        except OSError as failure:
            sock.close()
            error = failure
        except BaseException:
            sock.close()
            raise
    raise error
