"""One HTTP request: its head as it came, its body as a stream, and the connection it came over."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from aiohttp import StreamReader, web
from aiohttp.helpers import set_exception
from aiohttp.http_parser import RawRequestMessage


class Request:
    """What the pipeline needs of aiohttp's parsed message, and nothing made that it may not need."""

    __slots__ = ("content", "keep_alive", "message", "method", "protocol", "raw_headers", "raw_path")

    def __init__(self, message: RawRequestMessage, content: StreamReader, protocol: web.RequestHandler) -> None:
        self.message = message
        self.method: str = message.method
        self.raw_path: str = message.path
        self.raw_headers: tuple[tuple[bytes, bytes], ...] = message.raw_headers
        self.keep_alive = not message.should_close
        self.content = content
        self.protocol = protocol

    @property
    def transport(self) -> asyncio.Transport | None:
        return self.protocol.transport

    @property
    def minor(self) -> int:
        """Of the HTTP version 1.x: 0 or 1."""
        return self.message.version[1] and 1

    @property
    def headers(self) -> Mapping[str, str]:
        """By any case of the name."""
        return self.message.headers

    @property
    def content_length(self) -> int | None:
        length = self.message.headers.get("Content-Length")
        return None if length is None else int(length)

    @property
    def remote(self) -> str | None:
        """The peer's address."""
        peer = self.protocol.peername
        return None if peer is None else peer if isinstance(peer, str) else peer[0]

    @property
    def secure(self) -> bool:
        return self.protocol.ssl_context is not None

    def write(self, data: bytes) -> None:
        """Raises ConnectionResetError when the connection is closing. What the peer does not take yet is buffered:
        ``drain`` when ``protocol.writing_paused`` says so."""
        transport = self.protocol.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the connection is closing")
        transport.write(data)

    async def drain(self) -> None:
        """Wait until the peer has taken what is buffered, or most of it. Raises ConnectionError."""
        await self.protocol._drain_helper()

    def _cancel(self, cause: BaseException) -> None:
        """aiohttp's: the connection is lost."""
        set_exception(self.content, cause)
