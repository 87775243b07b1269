"""The digesting writer: bounded memory, and no thread in a sink once receive is over."""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
import tracemalloc
from collections.abc import AsyncIterator, Sequence

import pytest

from storage_tiers.allowance import Allowance
from storage_tiers.staging import SLICE, Staging
from storage_tiers.tier import Stored, TierFull
from tests.tiers.places import MIB


class Probe:
    """A sink that keeps only a hash; waits before a write when told, and knows when a thread is inside."""

    fd = None

    def __init__(self) -> None:
        self.hash = hashlib.sha256()
        self.sizes: list[int] = []
        self.threads: set[int] = set()
        self.inside = 0
        self.entered = threading.Event()
        self.gate = threading.Event()
        self.gate.set()
        self.error: Exception | None = None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.inside += 1
        self.entered.set()
        try:
            assert self.gate.wait(20)
            if self.error is not None:
                raise self.error
            self.hash.update(data)
            self.sizes.append(len(data))
            self.threads.add(threading.get_ident())
        finally:
            self.inside -= 1

    async def commit(self) -> Stored:
        raise AssertionError

    async def abort(self) -> None:
        raise AssertionError


async def pieces(data: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]
        await asyncio.sleep(0)


@pytest.mark.parametrize("size", [0, 1, 65_536, 65_537, SLICE, SLICE + 65_536, 3 * SLICE + 1])
@pytest.mark.parametrize("step", [1_000, 65_536, 5 * MIB])
def test_all_bytes_in_order_whatever_the_cut(size: int, step: int) -> None:
    async def main() -> None:
        staging = Staging({}, threads=2)
        data = hashlib.shake_128(b"x").digest(size)
        sink, md5, sha = Probe(), hashlib.md5(), hashlib.sha256()
        assert await staging.receive(pieces(data, step), sink, [md5, sha]) == size
        assert sink.hash.digest() == sha.digest() == hashlib.sha256(data).digest()
        assert md5.digest() == hashlib.md5(data).digest()
        assert max(sink.sizes, default=0) <= SLICE
        if size > 65_536:
            assert threading.get_ident() not in sink.threads
        else:
            assert sink.threads == {threading.get_ident()}
        staging.close()

    asyncio.run(main())


def test_hashing_alone_needs_no_sink() -> None:
    async def main() -> None:
        staging = Staging({}, threads=2)
        sha = hashlib.sha256()
        assert await staging.receive(pieces(bytes(2 * MIB), 100_000), None, [sha]) == 2 * MIB
        assert sha.digest() == hashlib.sha256(bytes(2 * MIB)).digest()
        staging.close()

    asyncio.run(main())


def test_cancelled_in_the_middle_no_thread_writes_on() -> None:
    async def main() -> None:
        staging = Staging({}, threads=4)
        sink = Probe()
        sink.gate.clear()
        task = asyncio.ensure_future(staging.receive(pieces(bytes(8 * MIB), 65_536), sink, [hashlib.md5()]))
        await asyncio.to_thread(sink.entered.wait, 20)
        for _ in range(3):  # again and again, as shutdown does
            task.cancel()
            await asyncio.sleep(0)
        assert not task.done()
        assert sink.inside == 1
        sink.gate.set()
        await asyncio.wait([task])
        assert task.cancelled()
        assert sink.inside == 0
        assert len(sink.sizes) == 1
        staging.close()

    asyncio.run(main())


def test_a_source_that_breaks_off_waits_for_the_thread_too() -> None:
    async def broken(sink: Probe) -> AsyncIterator[bytes]:
        yield bytes(SLICE + 1)
        await asyncio.to_thread(sink.entered.wait, 20)
        asyncio.get_running_loop().call_later(0.01, sink.gate.set)
        raise ConnectionResetError

    async def main() -> None:
        staging = Staging({}, threads=2)
        sink = Probe()
        sink.gate.clear()
        with pytest.raises(ConnectionResetError):
            await staging.receive(broken(sink), sink, [])
        assert sink.inside == 0
        staging.close()

    asyncio.run(main())


@pytest.mark.parametrize("size", [100, 5 * MIB])
def test_a_full_tier_is_reported(size: int) -> None:
    async def main() -> None:
        staging = Staging({}, threads=2)
        sink = Probe()
        sink.error = TierFull("full")
        with pytest.raises(TierFull):
            await staging.receive(pieces(bytes(size), 65_536), sink, [hashlib.md5(), hashlib.sha256()])
        assert sink.inside == 0
        staging.close()

    asyncio.run(main())


class Slow(Probe):
    """A paced sink: room only when told."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.free = asyncio.Event()

    async def room(self) -> None:
        self.asked += 1
        await self.free.wait()


def test_a_slow_sink_holds_the_request_not_a_thread() -> None:
    async def main() -> None:
        staging = Staging({}, threads=1)
        slow, quick = Slow(), Probe()
        task = asyncio.ensure_future(staging.receive(pieces(bytes(4 * MIB), 65_536), slow, []))
        while not slow.asked:
            await asyncio.sleep(0)
        assert await staging.receive(pieces(bytes(4 * MIB), 65_536), quick, []) == 4 * MIB
        assert slow.sizes == []
        slow.free.set()
        assert await task == 4 * MIB
        staging.close()

    asyncio.run(main())


def test_memory_is_bounded_for_many_bodies_at_once() -> None:
    bodies, size = 64, 24 * MIB
    chunk = bytes(64 << 10)

    async def body() -> AsyncIterator[bytes]:
        for _ in range(size // len(chunk)):
            yield bytes(bytearray(chunk))  # a new one each time, as from a socket
            await asyncio.sleep(0)

    async def main() -> Sequence[int]:
        staging = Staging({}, threads=4)
        try:
            return await asyncio.gather(
                *(staging.receive(body(), Counter(), [hashlib.sha256()]) for _ in range(bodies))
            )
        finally:
            staging.close()

    class Counter(Probe):
        def write(self, data: bytes | bytearray | memoryview) -> None:
            return None

    tracemalloc.start()
    try:
        sizes = asyncio.run(main())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert list(sizes) == [size] * bodies
    assert peak < bodies * 3 * MIB, peak


def test_buffers_are_large_while_few_and_small_when_many() -> None:
    allowance = Allowance(64 << 20, 1 << 20, 64 << 10)
    total, sizes = 0, []
    for _ in range(2000):
        sizes.append(allowance.size())
        total += sizes[-1]
        allowance.held += 1
    assert sizes[0] == sizes[60] == 1 << 20
    assert sizes[-1] == 64 << 10
    assert sizes == sorted(sizes, reverse=True)
    assert total < 384 << 20
    allowance.held = 0
    assert allowance.size() == 1 << 20


def test_many_bodies_at_a_time_are_whole_and_give_their_buffers_back() -> None:
    """So many that their slices are the smallest."""

    async def run() -> None:
        staging = Staging({})
        bodies = [os.urandom(200_000 + number) for number in range(300)]
        gate = asyncio.Event()

        async def chunks(body: bytes) -> AsyncIterator[bytes]:
            yield body[:70_000]
            await gate.wait()
            yield body[70_000:]

        digests = [hashlib.sha256() for _ in bodies]
        work = [
            asyncio.create_task(staging.receive(chunks(body), None, [digest]))
            for body, digest in zip(bodies, digests, strict=True)
        ]
        while staging._allowance.held < 2 * len(bodies):
            await asyncio.sleep(0)
        gate.set()
        assert await asyncio.gather(*work) == [len(body) for body in bodies]
        assert [each.digest() for each in digests] == [hashlib.sha256(body).digest() for body in bodies]
        assert staging._allowance.held == 0
        assert staging._allowance.size() == SLICE
        staging.close()

    asyncio.run(run())
