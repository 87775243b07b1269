"""What only the s3 tier promises: what it sends, how it fails, how it restores."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from uuid import uuid4

import boto3
import pytest
from aiohttp import web
from moto.moto_api import state_manager

from storage_tiers.s3 import S3Tier, restore_state
from storage_tiers.staging import Staging
from storage_tiers.tier import (
    BlobArchived,
    BlobNotFound,
    ByteSpan,
    Readable,
    Speed,
    TierError,
    TierFull,
    TierMissing,
    TierUnavailable,
)
from storage_tiers.wrappers.retrying import Backoff, Retrying
from tests.tiers.places import CREDENTIALS, MIB, moto_endpoint, new_bucket, opened, s3_tier

pytestmark = pytest.mark.xdist_group("tiers")


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with moto_endpoint() as url:
        yield url


class Store:
    """A scripted S3 store: answers by (method, sub-resource); keeps the requests and counts those under way."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, dict[str, str], int]] = []
        self.answer: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]] = self.accept
        self.under_way = 0
        self.most = 0
        self.hold = asyncio.Event()
        self.hold.set()

    async def accept(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.method == "POST" and "uploads" in request.query:
            text = "<InitiateMultipartUploadResult><UploadId>u1</UploadId></InitiateMultipartUploadResult>"
            return web.Response(text=text, content_type="application/xml")
        if request.method == "POST":
            text = '<CompleteMultipartUploadResult><ETag>"e"</ETag></CompleteMultipartUploadResult>'
            return web.Response(text=text, content_type="application/xml")
        return web.Response(headers={"ETag": '"e"'})

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        size = 0
        if "Expect" in request.headers:
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        async for chunk in request.content.iter_any():
            size += len(chunk)
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.requests.append((request.method, request.path_qs, headers, size))
        if "partNumber" in request.query:
            self.under_way += 1
            self.most = max(self.most, self.under_way)
            await self.hold.wait()
            self.under_way -= 1
        return await self.answer(request)


@asynccontextmanager
async def scripted(storage_class: str | None = None, parallel: int = 16) -> AsyncIterator[tuple[Store, S3Tier]]:
    store = Store()
    runner = web.ServerRunner(web.Server(store.handle))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    tier = S3Tier(
        "cold",
        "bucket",
        endpoint=f"http://{host}:{port}",
        access_key="a",
        secret_key="s",
        storage_class=storage_class,
        part_size=5 * MIB,
        parallel=parallel,
        attempts=1,
    )
    await tier.start()
    try:
        yield store, tier
    finally:
        await tier.close()
        await runner.cleanup()


def failing(status: int, code: str) -> Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]:
    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(status=status, text=f"<Error><Code>{code}</Code></Error>", content_type="application/xml")

    return answer


def test_bodies_are_sent_as_they_are_and_guarded() -> None:
    async def main() -> None:
        async with scripted("GLACIER") as (store, tier):
            for size in (10, 11 * MIB):
                sink = await tier.begin(uuid4())
                await asyncio.to_thread(sink.write, bytes(size))
                await sink.commit()
        bodies = [request for request in store.requests if request[0] == "PUT"]
        assert [request[3] for request in bodies if "partNumber" not in request[1]] == [10]
        assert sorted(request[3] for request in bodies if "partNumber" in request[1]) == [MIB, 5 * MIB, 5 * MIB]
        for _, _, headers, size in bodies:
            assert "aws-chunked" not in headers.get("content-encoding", "")
            assert not any(name.startswith(("x-amz-trailer", "x-amz-sdk-checksum")) for name in headers)
            assert headers["content-length"] == str(size)
            assert "content-md5" in headers
            assert headers["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD"
        classed = [request[2].get("x-amz-storage-class") for request in store.requests]
        assert classed.count("GLACIER") == 2  # the small object, and the creation of the upload

    asyncio.run(main())


def test_parts_go_side_by_side_but_bounded_for_the_tier() -> None:
    async def main() -> None:
        async with scripted(parallel=3) as (store, tier):
            store.hold.clear()
            sinks = [await tier.begin(uuid4()) for _ in range(4)]
            for sink in sinks:
                await asyncio.to_thread(sink.write, bytes(16 * MIB))
            commits = asyncio.gather(*(sink.commit() for sink in sinks))
            while store.under_way < 3:
                await asyncio.sleep(0.005)
            store.hold.set()
            await commits
        assert store.most == 3

    asyncio.run(main())


def test_a_slow_store_holds_its_writer_and_abort_frees_it() -> None:
    async def main() -> None:
        async with scripted() as (store, tier):
            store.hold.clear()
            sink = await tier.begin(uuid4())
            raised: list[Exception] = []

            def write() -> None:
                try:
                    for _ in range(100):
                        sink.write(bytes(5 * MIB))
                except TierError as error:
                    raised.append(error)

            writer = threading.Thread(target=write)
            writer.start()
            while store.under_way < 4:
                await asyncio.sleep(0.005)
            assert writer.is_alive()
            asyncio.get_running_loop().call_later(0.05, store.hold.set)
            await sink.abort()
            await asyncio.to_thread(writer.join, 10)
            assert not writer.is_alive()
            assert len(raised) == 1
            assert store.most <= 5
            assert any(method == "DELETE" and "uploadId" in path for method, path, _, _ in store.requests)

    asyncio.run(main())


def test_staging_waits_for_room_without_a_thread() -> None:
    async def body() -> AsyncIterator[bytes]:
        for _ in range(60):
            yield bytes(MIB)

    async def main() -> None:
        async with scripted() as (store, tier):
            store.hold.clear()
            staging = Staging({}, threads=1)
            sink = await tier.begin(uuid4())
            task = asyncio.ensure_future(staging.receive(body(), sink, []))
            while store.under_way < 3:
                await asyncio.sleep(0.005)
            other: list[int] = []
            await asyncio.wait_for(
                asyncio.get_running_loop().run_in_executor(staging._pool, other.append, 1), 10
            )  # the one thread is free
            assert not task.done()
            store.hold.set()
            assert await task == 60 * MIB
            assert (await sink.commit()).size == 60 * MIB
            staging.close()

    asyncio.run(main())


def test_a_failed_part_fails_the_writer_and_the_commit() -> None:
    async def main() -> None:
        async with scripted() as (store, tier):

            async def answer(request: web.BaseRequest) -> web.StreamResponse:
                return await (
                    failing(503, "SlowDown")(request) if "partNumber" in request.query else store.accept(request)
                )

            store.answer = answer
            sink = await tier.begin(uuid4())
            await asyncio.to_thread(sink.write, bytes(6 * MIB))
            with pytest.raises(TierUnavailable):
                await sink.commit()
            with pytest.raises(TierError):
                sink.write(b"x")
            assert any(method == "DELETE" and "uploadId" in path for method, path, _, _ in store.requests)

    asyncio.run(main())


def test_a_completion_whose_answer_was_lost_counts_when_the_object_is_there() -> None:
    async def main() -> None:
        for size, fine in ((6 * MIB, True), (1, False)):
            async with scripted() as (store, tier):

                async def answer(request: web.BaseRequest, size: int = size) -> web.StreamResponse:
                    if request.method == "POST" and "uploadId" in request.query:
                        return await failing(404, "NoSuchUpload")(request)
                    if request.method == "HEAD":
                        return web.Response(headers={"Content-Length": str(size)})
                    return await store.accept(request)

                store.answer = answer
                sink = await tier.begin(uuid4())
                await asyncio.to_thread(sink.write, bytes(6 * MIB))
                if fine:
                    assert (await sink.commit()).size == 6 * MIB
                else:
                    with pytest.raises(TierError):
                        await sink.commit()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (503, "SlowDown", TierUnavailable),
        (500, "InternalError", TierUnavailable),
        (403, "AccessDenied", TierUnavailable),
        (429, "TooManyRequests", TierUnavailable),
        (404, "NoSuchBucket", TierMissing),
        (404, "NoSuchKey", BlobNotFound),
        (403, "InvalidObjectState", BlobArchived),
        (507, "XMinioStorageFull", TierFull),
        (400, "MalformedXML", TierError),
    ],
)
def test_what_an_answer_means(status: int, code: str, kind: type[TierError]) -> None:
    async def main() -> None:
        async with scripted() as (store, tier):
            store.answer = failing(status, code)
            with pytest.raises(kind) as caught:
                await tier.open(uuid4())
            assert type(caught.value) is kind
            if kind is not BlobNotFound:
                sink = await tier.begin(uuid4())
                sink.write(b"x")
                with pytest.raises(kind):
                    await sink.commit()

    asyncio.run(main())


def test_no_answer_is_unavailable() -> None:
    async def main() -> None:
        tier = s3_tier("http://127.0.0.1:9", "nowhere")
        async with opened(tier):
            for call in (tier.open(uuid4()), tier.stat(uuid4()), tier.delete(uuid4()), tier.probe()):
                with pytest.raises(TierUnavailable):
                    await call

    asyncio.run(main())


def test_a_body_that_breaks_off_is_resumed() -> None:
    data = bytes(range(256)) * 4096

    async def main() -> None:
        async with scripted() as (store, tier):

            async def answer(request: web.BaseRequest) -> web.StreamResponse:
                start = 0
                if "Range" in request.headers:
                    start = int(request.headers["Range"].removeprefix("bytes=").partition("-")[0])
                response = web.StreamResponse(status=206 if start else 200)
                response.content_length = len(data) - start
                if start:
                    response.headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
                await response.prepare(request)
                await response.write(data[start : start + 300_000])
                if start + 300_000 < len(data):
                    assert request.transport is not None
                    await asyncio.sleep(0)
                    request.transport.close()
                return response

            store.answer = answer
            with pytest.raises(TierUnavailable):
                async for _ in await tier.open(uuid4()):
                    pass
            reader = await Retrying(tier, Backoff(first=0.0)).open(uuid4())
            assert b"".join([chunk async for chunk in reader]) == data
            await reader.close()

    asyncio.run(main())


def test_a_bucket_that_is_gone_is_told_from_a_blob(endpoint: str) -> None:
    async def main() -> None:
        async with opened(s3_tier(endpoint, "never-made")) as tier:
            for call in (tier.stat(uuid4()), tier.open(uuid4()), tier.probe(), tier.readable(uuid4())):
                with pytest.raises(TierMissing):
                    await call
        async with opened(s3_tier(endpoint, new_bucket(endpoint))) as tier:
            with pytest.raises(BlobNotFound):
                await tier.stat(uuid4())

    asyncio.run(main())


def test_a_pending_restore_of_the_store(endpoint: str) -> None:
    async def main() -> None:
        async with opened(s3_tier(endpoint, new_bucket(endpoint), "DEEP_ARCHIVE")) as tier:
            blob = uuid4()
            sink = await tier.begin(blob)
            sink.write(b"cold")
            await sink.commit()
            await tier.restore(blob, 1, Speed.EXPEDITED)
            seen = [(await tier.readable(blob)).state for _ in range(6)]
            assert seen[0] is Readable.PENDING
            assert seen[-1] is Readable.READABLE
            reader = await tier.open(blob, ByteSpan(1, 2))
            assert b"".join([chunk async for chunk in reader]) == b"ol"

    state_manager.set_transition("s3::keyrestore", {"progression": "manual", "times": 2})
    try:
        asyncio.run(main())
    finally:
        state_manager.unset_transition("s3::keyrestore")


def test_foreign_objects_are_no_names(endpoint: str) -> None:
    async def main() -> None:
        bucket = new_bucket(endpoint)
        client = boto3.client("s3", endpoint_url=endpoint, **CREDENTIALS)
        for key in ("blobs/readme.txt", f"other/{uuid4().hex}", uuid4().hex):
            client.put_object(Bucket=bucket, Key=key, Body=b"x")
        async with opened(s3_tier(endpoint, bucket)) as tier:
            assert [name async for name in tier.names()] == []

    asyncio.run(main())


NOW = datetime(2030, 1, 2, tzinfo=UTC)
TOMORROW = datetime(2030, 1, 3, tzinfo=UTC)


@pytest.mark.parametrize(
    ("header", "state", "until"),
    [
        (None, Readable.ARCHIVED, None),
        ("", Readable.ARCHIVED, None),
        ("nonsense", Readable.ARCHIVED, None),
        ('ongoing-request="true"', Readable.PENDING, None),
        ('ongoing-request="false"', Readable.READABLE, None),
        ('ongoing-request="false", expiry-date="Thu, 03 Jan 2030 00:00:00 GMT"', Readable.READABLE, TOMORROW),
        ('ongoing-request="false", expiry-date="Wed, 02 Jan 2030 00:00:00 GMT"', Readable.ARCHIVED, None),
    ],
)
def test_the_restore_header(header: str | None, state: Readable, until: datetime | None) -> None:
    found = restore_state(header, NOW)
    assert (found.state, found.until) == (state, until)
