"""A clamd that misbehaves on demand, in the process of the test, and keeps what it was sent.

async with FakeClamd(Behaviour.GARBAGE) as fake:
    client = Clamd(ClamdAddress.parse(fake.address))
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from dataclasses import dataclass, field
from enum import StrEnum
from types import TracebackType


class Behaviour(StrEnum):
    CLEAN = "clean"
    REPLY = "reply"  # answers ``reply`` to a whole stream
    REFUSE = "refuse"  # nothing listens
    HANG = "hang"  # takes everything, answers nothing, not even PING
    HANG_STREAM = "hang-stream"  # answers PING, never a stream
    GARBAGE = "garbage"
    GARBAGE_PING = "garbage-ping"
    EMPTY = "empty"  # reads the stream to its end, then closes without a byte
    CLOSE_EARLY = "close-early"  # closes after the first chunk
    CUT_REPLY = "cut-reply"  # closes in the middle of its answer
    OVER_LIMIT = "over-limit"  # says so after ``limit`` bytes and closes, as clamd does
    SLOW = "slow"  # answers when ``release`` is set


@dataclass
class Stream:
    """What one INSTREAM brought. chunks: the lengths as sent; ended: the zero terminator came."""

    chunks: list[int] = field(default_factory=list)
    data: bytearray = field(default_factory=bytearray)
    ended: bool = False


class FakeClamd:
    def __init__(self, behaviour: Behaviour = Behaviour.CLEAN, reply: bytes = b"stream: OK", limit: int = 1 << 16):
        self.behaviour = behaviour
        self.reply = reply
        self.limit = limit
        self.version = b"ClamAV 1.4.6/27450/Mon Nov 24 09:26:52 2025"
        self.streams: list[Stream] = []
        self.commands: list[bytes] = []
        self.open = 0
        self.most_open = 0
        self.release = asyncio.Event()
        self.got_stream = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._port = 0

    @property
    def address(self) -> str:
        return f"tcp://127.0.0.1:{self._port}"

    async def __aenter__(self) -> FakeClamd:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._port = self._server.sockets[0].getsockname()[1]
        if self.behaviour is Behaviour.REFUSE:
            await self.down()
        return self

    async def __aexit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release.set()
        await self.down()

    async def down(self) -> None:
        """Stop listening; the address stays."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def up(self, behaviour: Behaviour = Behaviour.CLEAN) -> None:
        """Listen again under the same address."""
        self.behaviour = behaviour
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await self._command(reader, writer)
        writer.close()

    async def _command(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        command = (await reader.readuntil(b"\0"))[:-1]
        self.commands.append(command)
        if self.behaviour is Behaviour.HANG:
            await self.release.wait()
            return
        if command in (b"zPING", b"zVERSION"):
            answer = b"PONG" if command == b"zPING" else self.version
            writer.write((b"HTTP/1.1 400" if self.behaviour is Behaviour.GARBAGE_PING else answer) + b"\0")
            await writer.drain()
        elif command == b"zINSTREAM":
            self.open += 1
            self.most_open = max(self.most_open, self.open)
            try:
                await self._instream(reader, writer)
            finally:
                self.open -= 1
        else:
            writer.write(b"UNKNOWN COMMAND\0")
            await writer.drain()

    async def _instream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        stream = Stream()
        self.streams.append(stream)
        self.got_stream.set()
        while True:
            (length,) = struct.unpack("!I", await reader.readexactly(4))
            if length == 0:
                stream.ended = True
                break
            stream.chunks.append(length)
            stream.data += await reader.readexactly(length)
            if self.behaviour is Behaviour.CLOSE_EARLY:
                return
            if self.behaviour is Behaviour.OVER_LIMIT and len(stream.data) > self.limit:
                writer.write(b"INSTREAM size limit exceeded. ERROR\0")
                await writer.drain()
                return
        if self.behaviour in (Behaviour.SLOW, Behaviour.HANG_STREAM):
            left = asyncio.ensure_future(reader.read(1))
            released = asyncio.ensure_future(self.release.wait())
            await asyncio.wait({left, released}, return_when=asyncio.FIRST_COMPLETED)
            left.cancel()
            released.cancel()
        if self.behaviour is Behaviour.EMPTY:
            return
        answers = {
            Behaviour.GARBAGE: b"\xff\xfewhat?\0",
            Behaviour.CUT_REPLY: b"stream: O",
            Behaviour.REPLY: self.reply + b"\0",
        }
        writer.write(answers.get(self.behaviour, b"stream: OK\0"))
        await writer.drain()
