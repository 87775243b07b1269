"""Where connections come in: aiohttp's low-level server, told to leave targets, headers and bodies as they are."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

from aiohttp import StreamReader, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import RawRequestMessage
from aiohttp.web_protocol import _ErrInfo

from gateway.http.body import EndOfStream
from gateway.http.reply import Sent, malformed

LINE_LIMIT = 64 << 10  # a key of 1,024 bytes escaped threefold, or a presigned query with a session token
HEADER_LIMIT = 256  # lines
READ_BUFFER = 512 << 10  # aiohttp pauses the socket at twice this
WRITE_BUFFER = 512 << 10
STOP_POLL = 0.05
LINGER = 10.0  # seconds in which the rest of a refused body is read and thrown away


class Connection(web.RequestHandler):
    """One client's connection.

    It differs from aiohttp's in what happens at the edges: a message that is no HTTP is answered in S3's XML, a body
    that breaks off is told to its reader at once, half-closing after a whole request does not lose the answer, and a
    head that trickles in, or never comes, is cut.
    """

    def __init__(self, manager: web.Server, head_timeout: float, **options: Any) -> None:
        super().__init__(manager, **options)
        self._head_timeout = head_timeout
        self._head_timer: asyncio.TimerHandle | None = None
        self._spoke = False  # whether anything has ever come
        self.body: StreamReader | None = None  # of the request that was taken up last

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        cast(asyncio.Transport, transport).set_write_buffer_limits(high=WRITE_BUFFER)
        # aiohttp's keep-alive limit holds after a first request only: who never sends one would stay for good.
        self._start_head_timer()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._stop_head_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._spoke = True
        super().data_received(data)
        if self._messages:
            self._stop_head_timer()
            if isinstance(self._messages[-1][0], _ErrInfo):
                self._break_body(self._messages[-1][0].exc)
        elif data and self._waiter is not None:
            # Part of a head has come and no request is being served: the rest has to follow soon.
            self._start_head_timer()

    @property
    def idle(self) -> bool:
        """No request is being served, nor any part of one here."""
        return self._waiter is not None and not self._messages and (self._head_timer is None or not self._spoke)

    @property
    def ending(self) -> bool:
        """The server is going down: this request is the connection's last."""
        manager = self._manager
        return isinstance(manager, Server) and manager.ending

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """The peer will send no more. A request that is whole is still answered; anything else ends here."""
        if self.ssl_context is not None or (self._waiter is not None and not self._messages):
            return None
        self._break_body(EndOfStream())
        self.close()
        return True

    def _break_body(self, cause: BaseException) -> None:
        """Tell the reader of an unfinished body; aiohttp forgets a body whose framing broke, and it would wait on."""
        payloads = [payload for message, payload in self._messages if not isinstance(message, _ErrInfo)]
        if self.body is not None:
            payloads.append(self.body)
        for payload in payloads:
            if not payload.is_eof():
                payload.set_exception(cause)

    def _start_head_timer(self) -> None:
        if self._head_timer is None:
            self._head_timer = self._loop.call_later(self._head_timeout, self.force_close)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what could not be parsed as HTTP (the pipeline answers everything else)."""
        if not isinstance(exc, HttpProcessingError):
            self.log_exception("request failed outside the pipeline", exc_info=exc)
        return malformed(request, status)  # type: ignore[return-value]


class Server(web.Server):
    """Makes Connections."""

    def __init__(
        self, handler: Callable[[web.BaseRequest], Awaitable[Sent]], *, head_timeout: float, **options: Any
    ) -> None:
        super().__init__(handler, handler_cancellation=True, **options)  # type: ignore[arg-type]
        self._head_timeout = head_timeout
        self.ending = False

    def _make_request(
        self,
        message: RawRequestMessage,
        payload: StreamReader,
        protocol: web.RequestHandler,
        writer: AbstractStreamWriter,
        task: asyncio.Task[None],
    ) -> web.BaseRequest:
        assert isinstance(protocol, Connection)
        protocol.body = payload
        return super()._make_request(message, payload, protocol, writer, task)

    def __call__(self) -> web.RequestHandler:
        return Connection(self, self._head_timeout, loop=self._loop, **self._kwargs)


class Listener:
    """Serves one handler on any number of bound sockets, with or without TLS."""

    def __init__(
        self,
        handler: Callable[[web.BaseRequest], Awaitable[Sent]],
        *,
        keepalive: float = 75.0,
        head_timeout: float = 30.0,
        linger: float = LINGER,
    ) -> None:
        self._handler = handler
        self._keepalive, self._head_timeout, self._linger = keepalive, head_timeout, linger
        self._server: Server | None = None
        self._listening: list[asyncio.Server] = []

    async def start(self, sockets: Sequence[socket.socket], tls: ssl.SSLContext | None = None) -> None:
        """Listen on bound sockets. Call again for more (HTTP on one, HTTPS on another)."""
        if self._server is None:
            self._server = Server(
                self._handler,
                head_timeout=self._head_timeout,
                keepalive_timeout=self._keepalive,
                lingering_time=self._linger,
                access_log=None,
                auto_decompress=False,  # a body with Content-Encoding: gzip is stored as it was sent
                max_line_size=LINE_LIMIT,
                max_field_size=LINE_LIMIT,
                max_headers=HEADER_LIMIT,
                read_bufsize=READ_BUFFER,
            )
        loop = asyncio.get_running_loop()
        for sock in sockets:
            self._listening.append(await loop.create_server(self._server, sock=sock, ssl=tls, backlog=2048))

    @property
    def ports(self) -> list[int]:
        """The ports listened on, in the order of start."""
        return [sock.getsockname()[1] for server in self._listening for sock in server.sockets]

    @property
    def connections(self) -> int:
        return len(self._server.connections) if self._server is not None else 0

    async def stop(self, grace: float = 15.0) -> None:
        """Accept nothing more, let requests end for up to grace seconds, then cut what is left."""
        for listening in self._listening:
            listening.close()
        self._listening.clear()
        server = self._server
        if server is None:
            return
        # aiohttp's own shutdown drops the rest of bodies that are on their way in: wait first.
        server.ending = True
        loop = asyncio.get_running_loop()
        end = loop.time() + grace
        while True:
            for connection in server.connections:
                if isinstance(connection, Connection) and connection.idle:
                    connection.force_close()
            if not server.connections or loop.time() >= end:
                break
            await asyncio.sleep(STOP_POLL)
        await server.shutdown(STOP_POLL)
