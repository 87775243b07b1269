"""Repeats what failed because the tier was away for a moment, and resumes a reader where it broke off."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from storage_tiers.tier import (
    WHOLE,
    BlobId,
    ByteSpan,
    Reader,
    RestoreState,
    Sink,
    Speed,
    Stored,
    Tier,
    TierUnavailable,
)
from storage_tiers.wrappers.around import Around

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Backoff:
    """attempts in all; pauses of first seconds, doubling up to longest, each lengthened by up to a half at random."""

    attempts: int = 4
    first: float = 0.1
    longest: float = 2.0

    def pause(self, failures: int, chance: float) -> float:
        """Seconds before the next attempt after so many failures; chance in [0, 1)."""
        return min(self.longest, self.first * 2.0 ** (failures - 1)) * (1 + chance / 2)


class Retrying(Around):
    """Retries TierUnavailable only. A write is not repeated once it has begun: its bytes are gone by then."""

    def __init__(
        self,
        inner: Tier,
        backoff: Backoff | None = None,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        super().__init__(inner)
        self.backoff = backoff or Backoff()
        self._sleep = sleep
        self._chance = chance

    async def begin(self, blob: BlobId) -> Sink:
        return await self._repeat(lambda: self.inner.begin(blob))

    async def open(self, blob: BlobId, span: ByteSpan = WHOLE) -> Reader:
        return ResumingReader(self, blob, span, await self.reopen(blob, span))

    async def reopen(self, blob: BlobId, span: ByteSpan) -> Reader:
        """The inner reader, with attempts."""
        return await self._repeat(lambda: self.inner.open(blob, span))

    async def delete(self, blob: BlobId) -> None:
        await self._repeat(lambda: self.inner.delete(blob))

    async def stat(self, blob: BlobId) -> Stored:
        return await self._repeat(lambda: self.inner.stat(blob))

    async def restore(self, blob: BlobId, days: int, speed: Speed) -> None:
        await self._repeat(lambda: self.inner.restore(blob, days, speed))

    async def readable(self, blob: BlobId) -> RestoreState:
        return await self._repeat(lambda: self.inner.readable(blob))

    async def wait(self, failures: int) -> None:
        """Pause after a failure."""
        await self._sleep(self.backoff.pause(failures, self._chance()))

    async def _repeat(self, call: Callable[[], Awaitable[T]]) -> T:
        failures = 0
        while True:
            try:
                return await call()
            except TierUnavailable:
                failures += 1
                if failures >= self.backoff.attempts:
                    raise
                await self.wait(failures)


class ResumingReader:
    """Opens the rest of the span anew when a read breaks off; gives up after attempts without a byte in between."""

    def __init__(self, tier: Retrying, blob: BlobId, span: ByteSpan, inner: Reader) -> None:
        self._tier = tier
        self._blob = blob
        self._offset = span.offset
        self._length = inner.length
        self._inner = inner

    @property
    def length(self) -> int:
        return self._length

    @property
    def fd(self) -> int | None:
        return self._inner.fd

    @property
    def position(self) -> int:
        return self._inner.position

    async def __aiter__(self) -> AsyncIterator[bytes]:
        done = failures = 0
        while True:
            try:
                async for data in self._inner:
                    done += len(data)
                    failures = 0 if data else failures
                    yield data
                return
            except TierUnavailable:
                failures += 1
                if failures >= self._tier.backoff.attempts:
                    raise
            await self._inner.close()
            await self._tier.wait(failures)
            self._inner = await self._tier.reopen(self._blob, ByteSpan(self._offset + done, self._length - done))

    async def close(self) -> None:
        await self._inner.close()
