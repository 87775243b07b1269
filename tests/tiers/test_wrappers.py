"""What each wrapper adds."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

from storage_tiers.memory import MemoryTier
from storage_tiers.tier import BlobNotFound, ByteSpan, Speed, TierFull, TierUnavailable
from storage_tiers.wrappers.faulty import Fault, Faulty
from storage_tiers.wrappers.retrying import Backoff, Retrying
from storage_tiers.wrappers.throttled import Rate, Throttled

AWAY = TierUnavailable("away")
BLOB = uuid4()


class Pauses:
    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.seconds.append(seconds)


def retrying(*faults: Fault, data: bytes = b"0123456789", attempts: int = 4) -> tuple[Retrying, Faulty, Pauses]:
    faulty = Faulty(MemoryTier("m", {BLOB: data}), *faults)
    pauses = Pauses()
    return Retrying(faulty, Backoff(attempts), sleep=pauses.sleep, chance=lambda: 0.5), faulty, pauses


def test_calls_are_repeated_with_growing_pauses() -> None:
    async def main() -> None:
        tier, faulty, pauses = retrying(Fault("stat", AWAY, times=3))
        assert (await tier.stat(BLOB)).size == 10
        assert faulty.calls["stat"] == 4
        assert pauses.seconds == [0.125, 0.25, 0.5]

    asyncio.run(main())


@pytest.mark.parametrize("operation", ["begin", "open", "delete", "stat", "restore", "readable"])
def test_attempts_end(operation: str) -> None:
    async def main() -> None:
        tier, faulty, _ = retrying(Fault(operation, AWAY, times=99))
        calls = {
            "begin": lambda: tier.begin(uuid4()),
            "open": lambda: tier.open(BLOB),
            "delete": lambda: tier.delete(BLOB),
            "stat": lambda: tier.stat(BLOB),
            "restore": lambda: tier.restore(BLOB, 1, Speed.BULK),
            "readable": lambda: tier.readable(BLOB),
        }
        with pytest.raises(TierUnavailable):
            await calls[operation]()  # type: ignore[no-untyped-call]
        assert faulty.calls[operation] == 4

    asyncio.run(main())


@pytest.mark.parametrize("error", [TierFull("full"), BlobNotFound("gone")])
def test_what_waiting_cannot_mend_is_not_repeated(error: TierFull | BlobNotFound) -> None:
    async def main() -> None:
        tier, faulty, pauses = retrying(Fault("stat", error))
        with pytest.raises(type(error)):
            await tier.stat(BLOB)
        assert (faulty.calls["stat"], pauses.seconds) == (1, [])

    asyncio.run(main())


@pytest.mark.parametrize("span", [ByteSpan(), ByteSpan(2), ByteSpan(2, 7)])
@pytest.mark.parametrize("after", [0, 1, 5])
def test_a_reader_resumes_where_it_broke_off(span: ByteSpan, after: int) -> None:
    async def main() -> None:
        tier, _, _ = retrying(Fault("read", AWAY, times=2, after=after))
        reader = await tier.open(BLOB, span)
        end = 10 if span.length is None else span.offset + span.length
        assert b"".join([chunk async for chunk in reader]) == b"0123456789"[span.offset : end]
        await reader.close()

    asyncio.run(main())


def test_a_reader_without_progress_gives_up() -> None:
    async def main() -> None:
        tier, faulty, _ = retrying(Fault("read", AWAY, times=99))
        with pytest.raises(TierUnavailable):
            async for _chunk in await tier.open(BLOB):
                pass
        assert faulty.calls["read"] == 4

    asyncio.run(main())


def test_a_rate_is_kept_over_time() -> None:
    now = 0.0

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    async def main() -> None:
        rate = Rate(1000.0, clock=lambda: now, sleep=sleep)
        tier = Throttled(MemoryTier("m"), rate=rate)
        blob = uuid4()
        sink = await tier.begin(blob)
        assert sink.fd is None
        for _ in range(50):
            await sink.room()  # type: ignore[attr-defined]
            sink.write(bytes(100))
        await sink.commit()
        assert now == pytest.approx(4.0)  # 5,000 bytes, 1,000 of them on credit
        reader = await tier.open(blob)
        assert len(b"".join([chunk async for chunk in reader])) == 5000
        await rate.settle()
        assert now == pytest.approx(9.0)

    asyncio.run(main())


def test_at_once_counts_open_ends() -> None:
    async def main() -> None:
        tier = Throttled(MemoryTier("m", {BLOB: b"x"}), at_once=2)
        first, second = await tier.open(BLOB), await tier.begin(uuid4())
        third = asyncio.ensure_future(tier.open(BLOB))
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(third), 0.01)
        await second.abort()
        await second.abort()
        reader = await third
        await first.close()
        await first.close()
        with pytest.raises(BlobNotFound):
            await tier.open(uuid4())  # gives its place back
        again = await tier.open(BLOB)
        await reader.close()
        await again.close()

    asyncio.run(main())


def test_faults_strike_as_scripted() -> None:
    async def main() -> None:
        tier = Faulty(MemoryTier("m"), Fault("write", TierFull("full"), call=2), Fault("commit", AWAY, call=2))
        sink = await tier.begin(BLOB)
        sink.write(b"a")
        with pytest.raises(TierFull):
            sink.write(b"b")
        sink.write(b"c")
        assert (await sink.commit()).size == 2
        other = uuid4()
        sink = await tier.begin(other)
        with pytest.raises(TierUnavailable):
            await sink.commit()
        assert [name async for name in tier.names()] == [BLOB]

    asyncio.run(main())
