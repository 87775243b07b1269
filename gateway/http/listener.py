"""Where connections come in: aiohttp's low-level server, told to leave targets, headers and bodies as they are."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

from aiohttp import StreamReader, web
from aiohttp.http_exceptions import BadHttpMessage, HttpProcessingError, LineTooLong, TransferEncodingError
from aiohttp.http_parser import RawRequestMessage
from aiohttp.streams import EMPTY_PAYLOAD
from aiohttp.web_protocol import _PAYLOAD_ACCESS_ERROR, ERROR, _ErrInfo

from gateway.http.body import EndOfStream
from gateway.http.framing import Framing
from gateway.http.reply import Sent, malformed
from gateway.http.request import Request
from gateway.s3.errors import S3Error

Handler = Callable[[Request], Awaitable[Sent]]

LINE_LIMIT = 64 << 10  # a key of 1,024 bytes escaped threefold, or a presigned query with a session token
HEADER_LIMIT = 256  # lines
HEAD_LIMIT = 128 << 10  # bytes of a whole head: nobody is known yet, and they are held
READ_BUFFER = 512 << 10  # aiohttp pauses the socket at twice this
WRITE_BUFFER = 128 << 10  # what who does not read holds, beside a piece or two (1,000 of them, with 512 KiB: 660 MiB)
STOP_POLL = 0.05
LINGER = 10.0  # seconds in which the rest of a refused body is read and thrown away


class HeadTooLong(BadHttpMessage):
    """More than HEAD_LIMIT."""


class Connection(web.RequestHandler):
    """One client's connection.

    It differs from aiohttp's in what happens at the edges: a message that is no HTTP is answered in S3's XML, after
    those before it; a body that breaks off is told to its reader at once, half-closing after a whole request does not
    lose the answer, and a head that trickles in, or never comes, or does not end, is cut.
    """

    def __init__(self, manager: web.Server, head_timeout: float, **options: Any) -> None:
        super().__init__(manager, **options)
        self._head_timeout = head_timeout
        self._head_timer: asyncio.TimerHandle | None = None
        self._spoke = False  # whether anything has ever come
        self._framing = Framing()
        self._adrift = False  # the parser holds back more than Framing can follow: data is fed as it comes
        self._broken = False  # what came was no HTTP: whatever follows is nothing
        self._opened: StreamReader | None = None  # the body of the request that was parsed last
        self.body: StreamReader | None = None  # of the request that was taken up last
        self.parting = False  # that request asked to leave HTTP (Upgrade, CONNECT): nothing after it can be parsed

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
        if self._broken:
            return
        if not data:
            super().data_received(data)  # the parser goes on with what it held back
            return
        if (self._adrift or self._framing.left != 0) and self._waiter is not None and not self._messages:
            self._adrift, self._framing = False, Framing()  # no request is here, so no body is either
        while data and not self._broken:
            end = len(data) if self._adrift else self._framing.cut(data)
            if self._framing.head > HEAD_LIMIT:
                self._refuse(HeadTooLong("Request head is too long."))
                break
            self._feed(data if end == len(data) else data[:end])
            data = data[end:]
        if self._framing.head and not self._broken and not self._adrift:
            # Part of a head has come: the rest has to follow soon.
            self._start_head_timer()
        else:
            self._stop_head_timer()

    def _feed(self, piece: bytes) -> None:
        """Have one message's bytes parsed, and see what became of them."""
        count = self._request_count
        super().data_received(piece)
        framing = self._framing
        if self._messages and isinstance(self._messages[-1][0], _ErrInfo):
            self._break_body(self._messages[-1][0].exc)
            self._broken = True
        elif self._request_count > count and self._messages:
            message, payload = cast(tuple[RawRequestMessage, StreamReader], self._messages[-1])
            if payload.is_eof():
                framing.opened(0)
            elif message.chunked or message.upgrade:
                framing.opened(None)
            else:
                framing.opened(int(message.headers["Content-Length"]) - payload.total_bytes)
            self._opened = payload
            self._adrift = self._request_count > count + 1
        elif framing.left is None and self._opened is not None and self._opened.is_eof():
            framing.closed(piece)
        elif framing.left is None and self._opened is not None and framing.padded(self._opened.total_bytes):
            self._refuse(TransferEncodingError("Too little in too many bytes."))
        elif self._reading_paused or self._buffer_paused:
            # It may hold back the end of a body, and the head behind it.
            self._adrift = not framing.left

    def _refuse(self, error: HttpProcessingError) -> None:
        """Answer the current head with an error, after the requests before it; it is the connection's last."""
        self._request_count += 1
        self._messages.append((_ErrInfo(400, error, error.message), EMPTY_PAYLOAD))
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        self._break_body(error)
        self._broken = True

    @property
    def idle(self) -> bool:
        """No request is being served, nor any part of one here."""
        return self._waiter is not None and not self._messages and (self._head_timer is None or not self._spoke)

    @property
    def ending(self) -> bool:
        """This request is the connection's last: the server is going down, or nothing after it can be parsed."""
        manager = self._manager
        return self.parting or (isinstance(manager, Server) and manager.ending)

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
            self._head_timer = self._loop.call_later(self._head_timeout, self._head_is_late)

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self._waiter is not None and not self._messages:
            self.force_close()
        else:
            self._start_head_timer()  # the requests before it are still being served

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    # --- requests ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Serve the connection's requests, one after the other, all in its one task.

        aiohttp's own loop makes a task, a writer and a response object for each, and asks nothing else of them.
        """
        manager = cast(Server, self._manager)
        while not self._force_close:
            if not self._messages:
                self._waiter = self._loop.create_future()
                try:
                    await self._waiter
                finally:
                    self._waiter = None
            message, payload = self._messages.popleft()
            if self._parser is not None:
                self._parser.message_consumed()
            if self._buffer_paused and len(self._messages) <= self._msg_queue_resume_size:
                self._resume_reading_if_drained()
            manager.requests_count += 1
            self._request_in_progress = True
            try:
                if isinstance(message, _ErrInfo):
                    await malformed(Request(ERROR, payload, self), _meaning(message.exc))
                    break
                self.body, self.parting = payload, message.upgrade
                request = Request(message, payload, self)
                self._current_request = cast(Any, request)
                sent = await manager.handler(request)
                self._keepalive = sent.keep_alive
                if not payload.is_eof():
                    await self._linger(payload)
                payload.set_exception(_PAYLOAD_ACCESS_ERROR)
            except ConnectionError:
                break
            except BaseException:
                self.force_close()
                raise
            finally:
                self._current_request, self._request_in_progress = None, False
                if self._handler_waiter is not None:
                    self._handler_waiter.set_result(None)
            if not self._keepalive or self._close or self._force_close:
                break
            self._next_keepalive_close_time = close_time = self._loop.time() + self._keepalive_timeout
            if self._keepalive_handle is None:
                self._keepalive_handle = self._loop.call_at(close_time, self._process_keepalive)
        if not self._force_close:
            self._task_handler = None
            if self.transport is not None:
                self.transport.close()

    async def _linger(self, payload: StreamReader) -> None:
        """Read and throw away what still comes of a refused body, for a while; then the connection ends."""
        try:
            async with asyncio.timeout(0 if self._force_close else self._lingering_time):
                while not payload.is_eof():
                    await payload.readany()
        except Exception:  # too slow, broken off, or no body at all
            self.close()


def _meaning(error: BaseException) -> S3Error:
    """What could not be parsed as HTTP, as S3 says it (the pipeline answers everything else)."""
    if isinstance(error, LineTooLong | HeadTooLong):
        return S3Error("RequestHeaderSectionTooLarge")
    return S3Error("BadRequest", "An error occurred when parsing the HTTP request.")


class Server(web.Server):
    """Makes Connections."""

    def __init__(self, handler: Handler, *, head_timeout: float, **options: Any) -> None:
        super().__init__(cast(Any, handler), handler_cancellation=True, **options)
        self.handler = handler
        self._head_timeout = head_timeout
        self.ending = False

    def __call__(self) -> web.RequestHandler:
        return Connection(self, self._head_timeout, loop=self._loop, **self._kwargs)


class Listener:
    """Serves one handler on any number of bound sockets, with or without TLS."""

    def __init__(
        self,
        handler: Handler,
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
