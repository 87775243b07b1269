"""What an operation answers, and how it goes over the wire.

Heads are built by hand: S3's header names keep their case, a name may repeat, and nothing is added that S3 does not
send.
"""

from __future__ import annotations

import asyncio
import random
import time
from base64 import b64encode
from collections.abc import Iterable, Mapping
from email.utils import formatdate
from http import HTTPStatus
from typing import Any

import msgspec

from gateway.http.content import Content, ContentBroken, stream
from gateway.http.offload import Offload
from gateway.http.pace import PaceLimits
from gateway.http.request import Request
from gateway.s3 import messages
from gateway.s3.errors import S3Error

SERVER = "Sluice"
XML = "application/xml"
REASONS = {status.value: status.phrase for status in HTTPStatus}
BODILESS = frozenset({204, 304})
CONTROLS = dict.fromkeys([*range(0x20), 0x7F], " ")

Pair = tuple[str, str]


class Reply(msgspec.Struct):
    """An answer. Exactly one of body, content and length says what follows the head.

    length: the Content-Length of a body that is not sent (HEAD). note: what the log line says about the request.
    """

    status: int = 200
    headers: list[Pair] = []
    body: bytes = b""
    content: Content | None = None
    length: int | None = None
    note: dict[str, Any] = {}

    def add(self, headers: Mapping[str, str] | Iterable[Pair]) -> Reply:
        """Append headers; None values are left out."""
        pairs = headers.items() if isinstance(headers, Mapping) else headers
        self.headers.extend(pairs)
        return self


def document(body: bytes, status: int = 200) -> Reply:
    """An XML answer."""
    return Reply(status, [("Content-Type", XML)], body)


class Sent(msgspec.Struct):
    """What became of an answer.

    first: monotonic time at which the head was written. size: bytes of the body that were handed to the socket.
    broken: the body ended early and the connection was cut.
    """

    keep_alive: bool
    status: int
    first: float
    size: int
    broken: bool = False


async def send(
    request: Request,
    reply: Reply,
    request_id: str,
    host_id: str,
    limits: PaceLimits,
    close: bool = False,
    offload: Offload | None = None,
) -> Sent:
    """Write an answer. Raises ConnectionError when the peer is gone; a body that fails to come cuts the connection."""
    keep_alive = request.keep_alive and not close
    length = len(reply.body) if reply.length is None else reply.length
    if reply.content is not None:
        length = reply.content.length
    head = _head(request, reply, request_id, host_id, length, keep_alive)
    if request.method == "HEAD" or reply.status in BODILESS:
        if reply.content is not None:
            await reply.content.close()
        await _write(request, head, limits)
        return Sent(keep_alive, reply.status, time.monotonic(), 0)
    held: bytes | None = reply.body if reply.content is None else getattr(reply.content, "inline", None)
    if held is not None and len(held) == length:
        await _write(request, head + held, limits)
        return Sent(keep_alive, reply.status, time.monotonic(), length)
    assert reply.content is not None
    try:
        first, size = await stream(request, head, reply.content, limits, offload)
    except ContentBroken as broken:
        # Half an object must never look like a whole one: a reset is the only way left to say so.
        if request.transport is not None:
            request.transport.abort()
        return Sent(False, reply.status, broken.first, broken.size, broken=True)
    finally:
        await reply.content.close()
    return Sent(keep_alive, reply.status, first, size)


async def _write(request: Request, data: bytes, limits: PaceLimits) -> None:
    request.write(data)
    if request.protocol.writing_paused:
        try:
            async with asyncio.timeout(limits.stall):
                await request.drain()
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
            raise ConnectionResetError("the client does not read") from None


def _head(request: Request, reply: Reply, request_id: str, host_id: str, length: int, keep_alive: bool) -> bytes:
    minor = request.minor
    lines = [
        f"HTTP/1.{minor} {reply.status} {REASONS.get(reply.status, '')}\r\nx-amz-id-2: {host_id}\r\n"
        f"x-amz-request-id: {request_id}\r\nDate: {_date()}\r\nServer: {SERVER}"
    ]
    for name, value in reply.headers:
        lines.append(f"{name}: {value if value.isprintable() else value.translate(CONTROLS)}")
    if reply.status not in BODILESS:
        lines.append(f"Content-Length: {length}")
    if not keep_alive:
        lines.append("Connection: close")
    elif minor == 0:
        lines.append("Connection: keep-alive")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("utf-8", "surrogateescape")


_clock: tuple[int, str] = (0, "")


def _date() -> str:
    """The Date header; formatted once a second."""
    global _clock
    now = int(time.time())
    if _clock[0] != now:
        _clock = (now, formatdate(now, usegmt=True))
    return _clock[1]


async def malformed(request: Request, error: S3Error) -> None:
    """Answer what is no HTTP request; the connection closes after it."""
    request_id, host_id = new_request_id(), new_host_id()
    body = messages.error(error.code, error.message, resource=None, request_id=request_id, host_id=host_id)
    await send(request, document(body, error.status), request_id, host_id, PaceLimits(), close=True)


def new_request_id() -> str:
    """As S3's look: 16 upper-case hexadecimal digits. It is to be unlike others, nothing depends on its secrecy."""
    return f"{random.getrandbits(64):016X}"


def new_host_id() -> str:
    return b64encode(random.randbytes(36)).decode("ascii")  # noqa: S311
