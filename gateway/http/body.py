"""The request's body: framing taken off, slow senders cut, length known to the byte."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Protocol

from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestPayloadError

from gateway.http.offload import FAST, RECEIVE_LEAST, Intake, Offload
from gateway.http.pace import Pace, PaceLimits
from gateway.http.request import Request
from gateway.s3.errors import S3Error

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class EndOfStream(Exception):
    """The peer ended its side before the body was whole."""


class ClientGone(ConnectionError):
    """The connection is lost: nobody is left to answer."""


class Decoder(Protocol):
    """Takes the aws-chunked framing off (gateway/s3/chunked.py)."""

    def feed(self, data: bytes) -> Sequence[memoryview]: ...

    def finish(self) -> Mapping[str, str]: ...


class Body:
    """One request's body. It is read once: by iterating, or whole by ``read``.

    length: bytes of payload that the headers announce; None when they do not (Transfer-Encoding: chunked).
    trailers: what followed the payload, by lower-case name; filled when the last byte has been read.
    received: payload bytes so far. sha256: the digest (hexadecimal) that was signed, where one was.

    A client that sent ``Expect: 100-continue`` is told to go on when the first byte is asked for, not before: until
    then a refusal still saves it the upload (RFC 9110, 10.1.1).
    """

    def __init__(
        self,
        request: Request,
        *,
        length: int | None,
        limits: PaceLimits,
        decoder: Decoder | None = None,
        expects: bool = False,
        sha256: str | None = None,
        offload: Offload | None = None,
    ) -> None:
        self.length = length
        self.sha256 = sha256
        self.received = 0
        self.trailers: Mapping[str, str] = {}
        self._request = request
        self._payload = request.content
        self._decoder = decoder
        self._pace = Pace(limits)
        self.expects = expects and not self._payload.is_eof() and request.minor >= 1
        self._started = False
        self._lending = False
        self._offload = offload if decoder is None else None
        self._intake: Intake | None = None

    @property
    def announced(self) -> bool:
        """Whether the headers announce a length."""
        return self.length is not None

    @property
    def withheld(self) -> bool:
        """The client waits for 100 Continue and has not got it: the body may never come."""
        return self.expects and not self._started

    @property
    def complete(self) -> bool:
        """Whether every byte of the body has arrived."""
        return self._payload.is_eof()

    def __aiter__(self) -> AsyncIterator[bytes | memoryview]:
        return self._pieces()

    def at_hand(self) -> bytes | None:
        """The whole payload, when it came with its head and nothing has to be taken off; None: it has to be read.

        Raises IncompleteBody.
        """
        payload = self._payload
        if self._decoder is not None or self._started or not payload.is_eof() or payload.exception() is not None:
            return None
        self._started = True
        data = payload.read_nowait()
        self._count(len(data))
        if self.length is not None and self.received != self.length:
            raise incomplete(self.received, self.length)
        return data

    async def read(self, limit: int, code: str = "EntityTooLarge") -> bytes:
        """The whole payload of at most limit bytes. Raises S3Error(code) when it is longer."""
        if self.length is not None and self.length > limit:
            raise S3Error(code)
        pieces: list[bytes | memoryview] = []
        async for piece in self:
            if self.received > limit:
                raise S3Error(code)
            pieces.append(piece)
        return b"".join(pieces)

    def lend(self) -> None:
        """The reader is done with each piece before it asks for the next: pieces may be views of one buffer, so that
        threads can receive what is left of a large body."""
        self._lending = True

    def close(self) -> None:
        """Nobody reads on; what has not arrived is aiohttp's again. Any number of times."""
        self._offload = None
        if self._intake is not None:
            self._intake.close()

    async def _pieces(self) -> AsyncIterator[bytes | memoryview]:
        """Payload as it arrives. Raises IncompleteBody, RequestTimeout and what the decoder raises."""
        self._invite()
        decoder = self._decoder
        while data := await self._next():
            for piece in (data,) if decoder is None else decoder.feed(bytes(data)):  # bytes already: no copy
                if piece:
                    self._count(len(piece))
                    yield piece
        if decoder is not None:
            self.trailers = decoder.finish()
        if self.length is not None and self.received != self.length:
            raise incomplete(self.received, self.length)

    def _count(self, size: int) -> None:
        self.received += size
        if self.length is not None and self.received > self.length:
            raise incomplete(self.received, self.length)

    def _invite(self) -> None:
        if self.withheld and self._request.transport is not None:
            self._request.transport.write(CONTINUE)
        self._started = True

    async def _next(self) -> bytes | memoryview:
        """Whatever has arrived, b"" at the end."""
        payload = self._payload
        try:
            data = self._hand_over() if self._worthwhile() else payload.read_nowait()
            if self._intake is not None and not data:
                piece = await self._intake.next()
                if piece is not None:
                    return piece
                self._intake = None
            if data or payload.at_eof():
                self._pace.account(0, len(data))
                return data
            loop = asyncio.get_running_loop()
            before = loop.time()
            async with asyncio.timeout(max(self._pace.patience(), 0)):
                data = await payload.readany()
            self._pace.account(loop.time() - before, len(data))
            return data
        except TimeoutError:
            raise S3Error("RequestTimeout") from None
        except (EndOfStream, HttpProcessingError, RequestPayloadError) as error:
            raise incomplete(self.received, self.length) from error
        except (ConnectionError, RuntimeError) as error:  # aiohttp: "Connection closed."
            raise ClientGone from error

    def _worthwhile(self) -> bool:
        """Whether threads should receive the rest, now that it is known how fast the sender is."""
        if self._offload is None or not self._lending or self.length is None or self.received < RECEIVE_LEAST:
            return False
        return self._pace.waited * FAST <= self.received

    def _hand_over(self) -> bytes:
        """Let threads receive the rest, if they can take it; what has arrived already."""
        assert self._offload is not None and self.length is not None
        offload, self._offload = self._offload, None
        data, self._intake = offload.intake(self._request, self._pace, self.length)
        return data


def incomplete(received: int, length: int | None) -> S3Error:
    provided = None if length is None else received
    return S3Error("IncompleteBody", NumberBytesExpected=length, NumberBytesProvided=provided)
