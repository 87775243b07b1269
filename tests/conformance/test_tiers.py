"""One suite over every tier, archive variant and wrapper: the contract of storage_tiers/tier.py, clause by clause."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from storage_tiers.staging import Staging
from storage_tiers.tier import (
    WHOLE,
    BlobArchived,
    BlobCorrupt,
    BlobId,
    BlobNotFound,
    ByteSpan,
    Readable,
    Speed,
    Tier,
    TierError,
)
from tests.tiers.places import MIB, PLACES, Place, moto_endpoint, place_named

ARCHIVES = ("file-archive", "s3-archive")
pytestmark = pytest.mark.xdist_group("tiers")


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with moto_endpoint() as url:
        yield url


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return place_named(request.param, tmp_path / "tier", lambda: request.getfixturevalue("endpoint"))


@pytest.fixture(params=ARCHIVES)
def archive(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return place_named(request.param, tmp_path / "tier", lambda: request.getfixturevalue("endpoint"))


def run(place: Place, body: Callable[[Tier], Awaitable[None]]) -> None:
    async def main() -> None:
        async with place.open() as tier:
            await body(tier)

    asyncio.run(main())


async def write(tier: Tier, data: bytes, blob: BlobId | None = None) -> BlobId:
    blob = blob or uuid4()
    sink = await tier.begin(blob)
    await asyncio.to_thread(sink.write, data)
    stored = await sink.commit()
    assert (stored.blob, stored.size) == (blob, len(data))
    return blob


async def read(tier: Tier, blob: BlobId, span: ByteSpan = WHOLE) -> bytes:
    reader = await tier.open(blob, span)
    try:
        data = b"".join([chunk async for chunk in reader])
        assert reader.length == len(data)
        return data
    finally:
        await reader.close()
        await reader.close()


async def thaw(place: Place, tier: Tier, blob: BlobId, days: int = 1) -> None:
    """Make a blob readable where that takes something."""
    if not place.archive:
        return
    await tier.restore(blob, days, Speed.STANDARD)
    place.clock.now += 60.0
    for _ in range(20):
        if (await tier.readable(blob)).state is Readable.READABLE:
            return
    raise AssertionError("never readable")


async def names(tier: Tier, older: float = 0.0) -> set[BlobId]:
    return {blob async for blob in tier.names(older)}


@pytest.mark.parametrize("size", [0, 1, 64 << 10, MIB + 1, 12 * MIB + 5])
def test_what_is_written_is_read(place: Place, size: int) -> None:
    async def body(tier: Tier) -> None:
        data = (hashlib.sha256(b"seed").digest() * (size // 32 + 1))[:size]
        blob = await write(tier, data)
        assert (await tier.stat(blob)).size == size
        await thaw(place, tier, blob)
        assert await read(tier, blob) == data

    run(place, body)


def test_many_writes_make_one_blob_and_buffers_may_be_reused(place: Place) -> None:
    async def body(tier: Tier) -> None:
        blob = uuid4()
        sink = await tier.begin(blob)
        buffer = bytearray(1000)

        def fill() -> None:
            for number in range(50):
                buffer[:] = bytes([number]) * 1000
                sink.write(memoryview(buffer))

        await asyncio.to_thread(fill)
        await sink.commit()
        await thaw(place, tier, blob)
        assert await read(tier, blob) == b"".join(bytes([number]) * 1000 for number in range(50))

    run(place, body)


def test_spans(place: Place) -> None:
    async def body(tier: Tier) -> None:
        data = bytes(range(256)) * 20
        blob = await write(tier, data)
        await thaw(place, tier, blob)
        for offset, length in [(0, None), (0, 1), (5, 100), (5119, 1), (5000, None), (0, 5120), (5120, None), (7, 0)]:
            end = len(data) if length is None else offset + length
            assert await read(tier, blob, ByteSpan(offset, length)) == data[offset:end], (offset, length)

    run(place, body)


@pytest.mark.parametrize(
    "span", [ByteSpan(0, 101), ByteSpan(100, 1), ByteSpan(101), ByteSpan(500, 5), ByteSpan(101, 0)]
)
def test_a_span_outside_is_corrupt_not_short(place: Place, span: ByteSpan) -> None:
    async def body(tier: Tier) -> None:
        blob = await write(tier, bytes(100))
        await thaw(place, tier, blob)
        with pytest.raises(BlobCorrupt):
            await read(tier, blob, span)

    run(place, body)


def test_nothing_is_seen_before_commit_but_its_name(place: Place) -> None:
    async def body(tier: Tier) -> None:
        blob = uuid4()
        sink = await tier.begin(blob)
        await asyncio.to_thread(sink.write, bytes(11 * MIB))
        with pytest.raises(BlobNotFound):
            await tier.stat(blob)
        with pytest.raises(BlobNotFound):
            await tier.open(blob)
        await sink.commit()
        assert (await tier.stat(blob)).size == 11 * MIB
        assert blob in await names(tier)

    run(place, body)


def test_abort_leaves_nothing(place: Place) -> None:
    async def body(tier: Tier) -> None:
        for size in (0, 10, 12 * MIB):
            blob = uuid4()
            sink = await tier.begin(blob)
            await asyncio.to_thread(sink.write, bytes(size))
            await sink.abort()
            await sink.abort()
            with pytest.raises(BlobNotFound):
                await tier.stat(blob)
            with pytest.raises(TierError):
                sink.write(b"x")
        assert await names(tier) == set()

    run(place, body)


def test_abort_after_commit_does_nothing(place: Place) -> None:
    async def body(tier: Tier) -> None:
        blob = uuid4()
        sink = await tier.begin(blob)
        sink.write(b"kept")
        await sink.commit()
        await sink.abort()
        assert (await tier.stat(blob)).size == 4

    run(place, body)


def test_a_commit_that_is_cancelled_and_aborted_leaves_nothing(place: Place) -> None:
    async def body(tier: Tier) -> None:
        for turns in range(6):
            blob = uuid4()
            sink = await tier.begin(blob)
            await asyncio.to_thread(sink.write, bytes(6 * MIB))
            commit = asyncio.ensure_future(sink.commit())
            for _ in range(turns):
                await asyncio.sleep(0)
            commit.cancel()
            await asyncio.wait([commit])
            if not commit.cancelled():  # it was faster
                await tier.delete(blob)
            await sink.abort()
            with pytest.raises(BlobNotFound):
                await tier.stat(blob)
        assert await names(tier) == set()

    run(place, body)


def test_delete_is_idempotent_and_takes_staging_too(place: Place) -> None:
    async def body(tier: Tier) -> None:
        blob = await write(tier, b"bytes")
        await thaw(place, tier, blob)
        await tier.delete(blob)
        await tier.delete(blob)
        await tier.delete(uuid4())
        with pytest.raises(BlobNotFound):
            await tier.open(blob)
        assert await names(tier) == set()

    run(place, body)


def test_what_is_missing_is_said_by_name(place: Place) -> None:
    async def body(tier: Tier) -> None:
        missing = uuid4()
        for call in (
            tier.stat(missing),
            tier.open(missing),
            tier.open(missing, ByteSpan(3, 0)),
            tier.readable(missing),
            tier.restore(missing, 1, Speed.BULK),
        ):
            with pytest.raises(BlobNotFound):
                await call

    run(place, body)


def test_names_tell_old_from_new(place: Place) -> None:
    async def body(tier: Tier) -> None:
        written = {await write(tier, bytes([number])) for number in range(5)}
        assert await names(tier) == written
        assert await names(tier, older=10 * 365 * 86_400.0) == set()

    run(place, body)


def test_committed_blobs_survive_a_restart_and_abandoned_ones_keep_a_name(place: Place) -> None:
    lost = uuid4()
    kept: list[BlobId] = []

    async def before(tier: Tier) -> None:
        kept.append(await write(tier, b"durable"))
        sink = await tier.begin(lost)
        await asyncio.to_thread(sink.write, bytes(6 * MIB))  # neither committed nor aborted, as after kill -9

    async def after(tier: Tier) -> None:
        assert (await tier.stat(kept[0])).size == 7
        with pytest.raises(BlobNotFound):
            await tier.stat(lost)
        assert await names(tier) <= {kept[0], lost}
        await tier.delete(lost)
        assert await names(tier) == {kept[0]}

    run(place, before)
    run(place, after)


def test_concurrent_writes_do_not_mix(place: Place) -> None:
    async def body(tier: Tier) -> None:
        async def one(number: int) -> None:
            data = bytes([number]) * (1000 * number)
            blob = await write(tier, data)
            await thaw(place, tier, blob)
            assert await read(tier, blob) == data

        await asyncio.gather(*(one(number) for number in range(1, 25)))

    run(place, body)


def test_readable_at_home(place: Place) -> None:
    async def body(tier: Tier) -> None:
        blob = await write(tier, b"x")
        await tier.probe()
        if not place.archive:
            assert (await tier.readable(blob)).state is Readable.HOME
            await tier.restore(blob, 1, Speed.STANDARD)
            assert (await tier.readable(blob)).state is Readable.HOME

    run(place, body)


def test_staging_fills_any_sink(place: Place) -> None:
    async def body(tier: Tier) -> None:
        staging = Staging({"cold": tier}, threads=4)
        sizes = [0, 1, 64 << 10, (64 << 10) + 1, 3 * MIB + 17, 11 * MIB]

        async def one(size: int) -> None:
            data = (b"%d," % size) * (size // 3 + 1)
            data = data[:size]

            async def chunks() -> AsyncIterator[bytes]:
                for start in range(0, size, 100_000):
                    yield data[start : start + 100_000]

            blob, md5, sha = uuid4(), hashlib.md5(), hashlib.sha256()
            sink = await tier.begin(blob)
            assert await staging.receive(chunks(), sink, [md5, sha]) == size
            await sink.commit()
            assert md5.digest() == hashlib.md5(data).digest()
            assert sha.digest() == hashlib.sha256(data).digest()
            await thaw(place, tier, blob)
            assert await read(tier, blob) == data

        await asyncio.gather(*(one(size) for size in sizes))
        staging.close()
        assert threading.active_count() < 200

    run(place, body)


# --- archives ----------------------------------------------------------------------------------------------------


def test_an_archived_blob_is_refused_until_restored(archive: Place) -> None:
    async def body(tier: Tier) -> None:
        assert tier.archive
        blob = await write(tier, b"cold bytes")
        assert (await tier.readable(blob)).state is Readable.ARCHIVED
        with pytest.raises(BlobArchived):
            await tier.open(blob)
        assert (await tier.stat(blob)).size == 10
        await thaw(archive, tier, blob)
        state = await tier.readable(blob)
        assert state.state is Readable.READABLE
        assert state.until is not None and state.until.tzinfo is not None
        assert await read(tier, blob, ByteSpan(5, 5)) == b"bytes"

    run(archive, body)


def test_a_restore_request_is_idempotent_and_survives_a_restart(archive: Place) -> None:
    blobs: list[BlobId] = []

    async def before(tier: Tier) -> None:
        blobs.append(await write(tier, b"cold"))
        await asyncio.gather(*(tier.restore(blobs[0], 2, Speed.BULK) for _ in range(5)))

    async def after(tier: Tier) -> None:
        assert (await tier.readable(blobs[0])).state in (Readable.PENDING, Readable.READABLE)
        await thaw(archive, tier, blobs[0], days=2)
        await tier.restore(blobs[0], 3, Speed.STANDARD)
        assert await read(tier, blobs[0]) == b"cold"

    run(archive, before)
    run(archive, after)
