"""Bodies on their way out: the one place that knows how an object's bytes reach the socket.

Every GET passes through ``stream``. Content that is one span of one file leaves by sendfile (``offload``) over plain
HTTP; all else is copied through the event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Protocol

from gateway.http.offload import Offload
from gateway.http.pace import Pace, PaceLimits
from gateway.http.request import Request


class Content(Protocol):
    """Bytes to be sent: exactly length of them.

    Where they are one span of one file, it may have ``fd`` (None otherwise) and ``position``; where all of them are
    at hand, ``inline``.
    """

    @property
    def length(self) -> int: ...

    def __aiter__(self) -> AsyncIterator[bytes]: ...

    async def close(self) -> None: ...


class ContentBroken(Exception):
    """The body did not come whole after its head had left. first: when the head left; size: bytes sent."""

    def __init__(self, first: float, size: int, cause: str) -> None:
        super().__init__(cause)
        self.first, self.size = first, size


class ContentMissing(Exception):
    """No byte of a body that should have some; nothing has been sent."""


async def stream(
    request: Request, head: bytes, content: Content, limits: PaceLimits, offload: Offload | None = None
) -> tuple[float, int]:
    """Write head and content. Returns (monotonic time of the head, bytes of the body).

    An error before the first byte of the body is the content's own and is raised as it is: nothing has been sent yet,
    so it can still become an error document. Later ones, a short body and a reader below the minimum rate raise
    ContentBroken. Raises ConnectionError when the peer is gone.
    """
    outlet = offload.outlet(request, head, content, content.length) if offload is not None else None
    if outlet is not None:
        try:
            if await outlet.send(limits):
                return outlet.started, outlet.sent
        except ConnectionError:
            raise
        except Exception as error:
            if not outlet.started:
                raise
            raise ContentBroken(outlet.started, outlet.sent, str(error)) from error
    protocol = request.protocol
    pace = Pace(limits)
    size = 0
    started = 0.0
    chunks = content.__aiter__()
    length = content.length
    while size < length:
        try:
            chunk = await chunks.__anext__()
        except StopAsyncIteration:
            if not started:
                raise ContentMissing(f"not one of {length} bytes came") from None
            raise ContentBroken(started, size, f"content ended after {size} of {length} bytes") from None
        except Exception as error:
            if not started:
                raise
            raise ContentBroken(started, size, f"content failed: {type(error).__name__}") from error
        if len(chunk) > length - size:
            chunk = chunk[: length - size]
        if not started:
            started = time.monotonic()
            request.write(head + chunk if len(chunk) <= 65536 else head)
            if len(chunk) > 65536:
                request.write(chunk)
        else:
            request.write(chunk)
        size += len(chunk)
        if protocol.writing_paused:
            before = time.monotonic()
            try:
                async with asyncio.timeout(max(pace.patience(), 0)):
                    await request.drain()
            except TimeoutError:
                raise ContentBroken(started, size, "the reader is below the minimum rate") from None
            pace.account(time.monotonic() - before, 0)
        pace.account(0, len(chunk))
    if not started:
        started = time.monotonic()
        request.write(head)
    return started, size
