"""A tier around another one: everything passes through. The wrappers override what they change."""

from __future__ import annotations

from collections.abc import AsyncIterator

from storage_tiers.tier import (
    WHOLE,
    BlobId,
    ByteSpan,
    Paced,
    Reader,
    RestoreState,
    Sink,
    Speed,
    Stored,
    Tier,
)


class Around:
    """Forwards every call of the contract to inner."""

    def __init__(self, inner: Tier) -> None:
        self.inner = inner
        self.name = inner.name
        self.archive = inner.archive
        self.poll_every: float = getattr(inner, "poll_every", 15.0)

    async def begin(self, blob: BlobId) -> Sink:
        return await self.inner.begin(blob)

    async def open(self, blob: BlobId, span: ByteSpan = WHOLE) -> Reader:
        return await self.inner.open(blob, span)

    async def delete(self, blob: BlobId) -> None:
        await self.inner.delete(blob)

    async def stat(self, blob: BlobId) -> Stored:
        return await self.inner.stat(blob)

    async def restore(self, blob: BlobId, days: int, speed: Speed) -> None:
        await self.inner.restore(blob, days, speed)

    async def readable(self, blob: BlobId) -> RestoreState:
        return await self.inner.readable(blob)

    def names(self, older: float = 0.0) -> AsyncIterator[BlobId]:
        return self.inner.names(older)

    async def probe(self) -> None:
        await self.inner.probe()

    async def close(self) -> None:
        await self.inner.close()


class AroundSink:
    """Forwards to inner; hides the descriptor, since bytes written to it would pass by the wrapper."""

    fd = None

    def __init__(self, inner: Sink) -> None:
        self.inner = inner

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.inner.write(data)

    async def room(self) -> None:
        if isinstance(self.inner, Paced):
            await self.inner.room()

    async def commit(self) -> Stored:
        return await self.inner.commit()

    async def abort(self) -> None:
        await self.inner.abort()


class AroundReader:
    """Forwards to inner; hides the descriptor, as AroundSink does."""

    fd = None
    position = 0

    def __init__(self, inner: Reader) -> None:
        self.inner = inner

    @property
    def length(self) -> int:
        return self.inner.length

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for data in self.inner:
            yield data

    async def close(self) -> None:
        await self.inner.close()
