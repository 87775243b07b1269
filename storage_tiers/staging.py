"""The digesting writer: bytes are hashed and written while they arrive, off the event loop, in bounded memory."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from storage_tiers import failpoints
from storage_tiers.allowance import Allowance
from storage_tiers.tier import Paced, Sink, Tier

SLICE = 1 << 20  # bytes handed to the threads at once; measured: below that the hand-over shows, above only memory
LEAST = 64 << 10  # when very many bodies come at a time
BUDGET = 64 << 20  # bytes of all slices, about: beyond it they are smaller
INLINE = 64 << 10  # a body up to this size is hashed on the event loop: a hand-over costs more
SPARES = 16  # slice buffers kept for the next request


class Hash(Protocol):
    """Anything that digests: hashlib's objects, a CRC."""

    def update(self, data: bytes | bytearray | memoryview, /) -> None: ...


class Staging:
    """Receives bodies into sinks. One per process; threads bounds all its hashing and writing.

    Memory: two slices for each body above 64 KiB, whatever its size, and smaller ones when there are many. The jobs
    never wait for each other, so a small pool serves any number of bodies.
    """

    def __init__(self, tiers: Mapping[str, Tier], threads: int | None = None) -> None:
        self.tiers = tiers
        threads = threads or max(4, 2 * (os.cpu_count() or 1))
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="staging")
        self._spares: list[bytearray] = []
        self._allowance = Allowance(BUDGET, SLICE, LEAST)

    def close(self) -> None:
        """Give the threads back; no receive may be running."""
        self._pool.shutdown(wait=False)

    async def receive(
        self, chunks: AsyncIterator[bytes | memoryview], sink: Sink | None, hashes: Sequence[Hash]
    ) -> int:
        """Write all chunks to the sink and update all hashes, in order; the number of bytes.

        sink None: only hash. The sink is neither committed nor aborted; when this returns or raises, cancelled or
        not, no thread touches it any more. Raises what chunks raises, and TierFull, TierUnavailable, TierError.
        """
        small = bytearray()
        async for chunk in chunks:
            if len(small) + len(chunk) > INLINE:
                return await self._receive_large(small, chunk, chunks, sink, hashes)
            small += chunk
        for job in _lanes(sink, hashes):
            job(small)
        return len(small)

    async def _receive_large(
        self,
        held: bytearray,
        first: bytes | memoryview,
        chunks: AsyncIterator[bytes | memoryview],
        sink: Sink | None,
        hashes: Sequence[Hash],
    ) -> int:
        buffers = self._take()
        flight = Flight(self._pool, sink, _lanes(sink, hashes), buffers)
        try:
            await flight.feed(held)
            await flight.feed(first)
            async for chunk in chunks:
                await flight.feed(chunk)
            return await flight.land()
        finally:
            await flight.settle()
            self._allowance.held -= 2
            if len(self._spares) < SPARES and len(buffers[0]) == SLICE:
                self._spares += buffers

    def _take(self) -> tuple[bytearray, bytearray]:
        size = self._allowance.size()
        self._allowance.held += 2
        if size == SLICE and self._spares:
            return self._spares.pop(), self._spares.pop()
        return bytearray(size), bytearray(size)


class Flight:
    """Two buffers: one is filled from the network while the threads have the other, each lane on its own."""

    def __init__(
        self, pool: ThreadPoolExecutor, sink: Sink | None, lanes: Sequence[Lane], buffers: tuple[bytearray, bytearray]
    ) -> None:
        self._pool = pool
        self._paced = sink if isinstance(sink, Paced) else None
        self._lanes = lanes
        self._filling, self._flying = buffers
        self._slice = len(self._filling)
        self._used = 0
        self._total = 0
        self._jobs: list[asyncio.Future[None]] = []

    async def feed(self, chunk: bytes | bytearray | memoryview) -> None:
        """Take all of chunk. Raises what a lane raised on an earlier slice."""
        self._total += len(chunk)
        with memoryview(chunk) as view:
            taken = 0
            while taken < len(view):
                count = min(self._slice - self._used, len(view) - taken)
                self._filling[self._used : self._used + count] = view[taken : taken + count]
                self._used += count
                taken += count
                if self._used == self._slice:
                    await self._launch()

    async def land(self) -> int:
        """Send what is left and wait for the threads; the number of bytes fed. Raises what a lane raised."""
        if self._used:
            await self._launch()
        await self._finish()
        return self._total

    async def _launch(self) -> None:
        await self._finish()
        if self._paced is not None:
            await self._paced.room()
        loop = asyncio.get_running_loop()
        view = memoryview(self._filling)[: self._used]
        self._filling, self._flying, self._used = self._flying, self._filling, 0
        self._jobs = [loop.run_in_executor(self._pool, lane, view) for lane in self._lanes]
        failpoints.point("upload.midway")

    async def _finish(self) -> None:
        await self.settle()
        jobs, self._jobs = self._jobs, []
        for job in jobs:
            job.result()

    async def settle(self) -> None:
        """Wait until no thread has a buffer, however often the caller is cancelled meanwhile."""
        cancelled: asyncio.CancelledError | None = None
        while any(not job.done() for job in self._jobs):
            try:
                await asyncio.wait(self._jobs)  # cancels none of them
            except asyncio.CancelledError as error:
                cancelled = error
        for job in self._jobs:
            job.exception()  # seen, in case nobody asks for it any more
        if cancelled is not None:
            raise cancelled


Lane = Callable[[bytearray | memoryview], None]


def _lanes(sink: Sink | None, hashes: Sequence[Hash]) -> list[Lane]:
    """What may run side by side on one slice: MD5, by far the slowest hash; the other hashes; the write."""
    slow: list[Lane] = [each.update for each in hashes if getattr(each, "name", "") == "md5"]
    rest: list[Lane] = [each.update for each in hashes if getattr(each, "name", "") != "md5"]
    writes: list[Lane] = [] if sink is None else [sink.write]
    return [_in_order(steps) for steps in (slow, rest, writes) if steps]


def _in_order(steps: Sequence[Lane]) -> Lane:
    if len(steps) == 1:
        return steps[0]

    def lane(data: bytearray | memoryview) -> None:
        for step in steps:
            step(data)

    return lane
