"""Bounds how fast, and how many at once, a tier is used."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from storage_tiers.tier import WHOLE, BlobId, ByteSpan, Reader, Sink, Stored, Tier
from storage_tiers.wrappers.around import Around, AroundReader, AroundSink


class Rate:
    """A bucket of bytes that refills at rate a second and holds a second's worth. May go into debt: what was taken is
    paid for before the next piece, so that a piece larger than the bucket still passes."""

    def __init__(
        self,
        rate: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.rate = rate
        self._clock = clock
        self._sleep = sleep
        self._held = rate
        self._lock = threading.Lock()  # sinks take from their writers' threads
        self._at = clock()

    def take(self, count: int) -> None:
        """Count bytes that have passed. From any thread."""
        with self._lock:
            self._held -= count

    async def settle(self) -> None:
        """Wait until the debt is paid."""
        while True:
            with self._lock:
                now = self._clock()
                self._held = min(self.rate, self._held + (now - self._at) * self.rate)
                self._at = now
                debt = -self._held
            if debt < 1:  # less than a byte: what rounding leaves
                return
            await self._sleep(debt / self.rate)


class Throttled(Around):
    """rate: bytes a second, reads and writes together; None: no bound. at_once: open sinks and readers."""

    def __init__(self, inner: Tier, *, rate: Rate | None = None, at_once: int | None = None) -> None:
        super().__init__(inner)
        self._rate = rate
        self._slots = asyncio.Semaphore(at_once) if at_once is not None else None

    async def begin(self, blob: BlobId) -> Sink:
        slot = await self._enter()
        try:
            return ThrottledSink(await self.inner.begin(blob), self._rate, slot)
        except BaseException:
            slot.leave()
            raise

    async def open(self, blob: BlobId, span: ByteSpan = WHOLE) -> Reader:
        slot = await self._enter()
        try:
            return ThrottledReader(await self.inner.open(blob, span), self._rate, slot)
        except BaseException:
            slot.leave()
            raise

    async def _enter(self) -> Slot:
        if self._slots is not None:
            await self._slots.acquire()
        return Slot(self._slots)


class Slot:
    """One place among at_once; leaving twice gives back one."""

    def __init__(self, slots: asyncio.Semaphore | None) -> None:
        self._slots = slots

    def leave(self) -> None:
        slots, self._slots = self._slots, None
        if slots is not None:
            slots.release()


class ThrottledSink(AroundSink):
    def __init__(self, inner: Sink, rate: Rate | None, slot: Slot) -> None:
        super().__init__(inner)
        self._rate = rate
        self._slot = slot

    def write(self, data: bytes | bytearray | memoryview) -> None:
        # The debt is paid in room() and commit(): no thread sleeps.
        self.inner.write(data)
        if self._rate is not None:
            self._rate.take(len(data))

    async def room(self) -> None:
        if self._rate is not None:
            await self._rate.settle()
        await super().room()

    async def commit(self) -> Stored:
        if self._rate is not None:
            await self._rate.settle()
        stored = await self.inner.commit()
        self._slot.leave()
        return stored

    async def abort(self) -> None:
        try:
            await self.inner.abort()
        finally:
            self._slot.leave()


class ThrottledReader(AroundReader):
    def __init__(self, inner: Reader, rate: Rate | None, slot: Slot) -> None:
        super().__init__(inner)
        self._rate = rate
        self._slot = slot

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for data in self.inner:
            if self._rate is not None:
                await self._rate.settle()
                self._rate.take(len(data))
            yield data

    async def close(self) -> None:
        await self.inner.close()
        self._slot.leave()
