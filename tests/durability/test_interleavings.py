"""Each lock of the write path, with the one interleaving that it forbids held open by hand.

Two ``World``s over one database are two processes. A transaction is stopped in its middle (``pause``), the other one
started, and the first let go once the other waits for it, or has ended, which is what it does where a lock is missing.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from gateway.db import assembly, blobs, completion, heads, waiting
from gateway.db.batching import Batcher
from gateway.db.blobs import Blobs
from gateway.db.buckets import BucketNotEmpty, Buckets
from gateway.db.collector import Collector
from gateway.db.deletion import Deleted, DeleteItem
from gateway.db.errors import BucketGone, NoSuchUpload, PreconditionFailed, SourceGone
from gateway.db.insertion import Completed, Inline, Shared, Staged
from gateway.db.uploads import PartRow, Upload, remove_upload
from gateway.domain.objects import Attributes, Bucket, Versioning, WriteCondition
from processing.model import Verdict
from tests.db.rows import new_bucket
from tests.db.world import PATIENCE, Silent, World, held_up, world

ANY = WriteCondition(if_none_match=("*",))
Story = Callable[[World, World, Bucket], Awaitable[None]]


@pytest.fixture
def run(dsn: str) -> Callable[[Story], None]:
    """Runs a story with two processes and a bucket."""

    async def main(story: Story) -> None:
        async with two(dsn) as (a, b):
            await asyncio.wait_for(story(a, b, await new_bucket(a.pool)), 60)

    return lambda story: asyncio.run(main(story))


@asynccontextmanager
async def two(dsn: str) -> AsyncIterator[tuple[World, World]]:
    """Two processes with one database, one tier, and runs that either may end."""
    async with world(dsn) as a, world(dsn) as b:
        b.engine.ids = itertools.count(1_000_001)
        b.engine.runs = a.engine.runs
        b.tier = a.tier
        b.blobs = Blobs(b.pool, {"standard": a.tier}, b.versions, lambda: None)
        b.collector = Collector(b.pool, {"standard": a.tier}, blob_grace=0.0, log=Silent())
        yield a, b


@pytest.fixture
def long_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain writes go statement by statement too, so that they can be stopped between two."""
    monkeypatch.setattr(completion, "plain", lambda _: False)


class Pause:
    """Stops the first call of a method of an object before it begins, until go is set."""

    def __init__(self, owner: Any, name: str) -> None:
        self.reached, self.go = asyncio.Event(), asyncio.Event()
        self._method = getattr(owner, name)
        setattr(owner, name, self._call)

    async def _call(self, *args: Any, **kwargs: Any) -> Any:
        if not self.reached.is_set():
            self.reached.set()
            await self.go.wait()
        return await self._method(*args, **kwargs)


async def race(
    w: World, pause: Pause, first: Coroutine[Any, Any, Any], second: Callable[[], Coroutine[Any, Any, Any]]
) -> tuple[Any, Any]:
    """The answers of both, exceptions as values. second starts while first is stopped."""
    one = asyncio.ensure_future(first)
    await asyncio.wait_for(pause.reached.wait(), PATIENCE)
    other = asyncio.ensure_future(second())
    await held_up(w, other)
    pause.go.set()
    answers = await asyncio.gather(one, other, return_exceptions=True)
    return answers[0], answers[1]


async def rows(w: World, table: str) -> int:
    count: int = await w.pool.fetchval(f"SELECT count(*) FROM {table}")
    return count


async def put_file(w: World, bucket: Bucket, key: bytes, data: bytes) -> Completed:
    """An object whose bytes lie in the tier."""
    blob = await w.blobs.stage("standard")
    sink = await w.tier.begin(blob)
    sink.write(data)
    await sink.commit()
    source = Staged(blob, "standard", hashlib.sha256(data).digest())
    return await w.completions.complete(replace(w.completion(bucket, key, data), source=source))


async def content(w: World, bucket: Bucket, key: bytes) -> bytes:
    reader = await w.blobs.open(await w.versions.resolve(bucket, key))
    return b"".join([chunk async for chunk in reader])


# --- heads ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("there", [False, True], ids=["new-head", "head-of-a-hidden-version"])
def test_a_condition_is_decided_under_the_lock_of_its_head(run: Any, there: bool) -> None:
    async def story(a: World, b: World, bucket: Bucket) -> None:
        if there:
            await a.decide(await a.put(bucket, b"k", b"old"), Verdict.FAILED, "internal")
        pause = Pause(a.engine, "enqueue")
        answers = await race(
            a, pause, a.put(bucket, b"k", b"a", condition=ANY), lambda: b.put(bucket, b"k", b"b", condition=ANY)
        )
        assert isinstance(answers[0], Completed), answers
        assert isinstance(answers[1], PreconditionFailed), answers

    run(story)


def test_writes_of_one_key_get_sequences_one_after_the_other(run: Any, long_way: None) -> None:
    async def story(a: World, b: World, bucket: Bucket) -> None:
        await a.decide(await a.put(bucket, b"k", b"old"))
        pause = Pause(a.engine, "enqueue")
        first, second = await race(a, pause, a.put(bucket, b"k", b"a"), lambda: b.put(bucket, b"k", b"b"))
        assert isinstance(first, Completed) and isinstance(second, Completed), (first, second)
        assert first.ref.seq < second.ref.seq
        await b.decide(second)
        assert await a.read(bucket, b"k") == "ready:b"

    run(story)


def test_a_delete_waits_for_a_write_under_way_and_takes_it_along(run: Any, long_way: None) -> None:
    async def story(a: World, b: World, bucket: Bucket) -> None:
        await a.decide(await a.put(bucket, b"k", b"old"))
        pause = Pause(a.engine, "enqueue")
        stored, deleted = await race(
            a,
            pause,
            a.put(bucket, b"k", b"new"),
            lambda: b.deletions.delete(bucket, [DeleteItem(b"k")], bucket.owner.id),
        )
        assert isinstance(stored, Completed) and deleted == [Deleted()]
        assert await a.read(bucket, b"k") == "nothing"
        assert await rows(a, "version") == await rows(a, "head") == 0

    run(story)


def test_a_verdict_passes_over_a_key_that_is_being_written(run: Any, long_way: None) -> None:
    """It rides in the next flight: the end of a run changes what is current, so it holds the head too."""

    async def story(a: World, b: World, bucket: Bucket) -> None:
        done = await a.put(bucket, b"k", b"old")
        assert done.run_id is not None
        subject = a.engine.runs[done.run_id].subject
        assert subject is not None
        pause = Pause(a.engine, "enqueue")
        writing = asyncio.ensure_future(a.put(bucket, b"k", b"new"))
        await pause.reached.wait()
        async with b.pool.acquire() as conn, conn.transaction():
            assert await b.subjects.lock(conn, [subject]) == set()
        pause.go.set()
        await writing

    run(story)


@pytest.mark.parametrize("work", ["insert_missing", "lock"])
def test_locks_are_taken_in_one_order(dsn: str, work: str) -> None:
    """Two batches name the same keys in opposite orders while the key in the middle is held: each would have one end
    and wait for the other's."""
    order = [b"a", b"m", b"z"]

    async def main() -> None:
        async with two(dsn) as (a, b):
            bucket = await new_bucket(a.pool)
            keys = [(bucket.id, key) for key in order]
            if work == "lock":
                async with a.pool.acquire() as conn:
                    for key in keys[::-1]:  # the order of the rows is not that of the keys
                        await heads.insert_missing(conn, [key])

            async def take(w: World, wanted: list[heads.Key]) -> None:
                async with w.pool.acquire() as conn, conn.transaction():
                    if work == "lock":
                        await heads.lock(conn, wanted, skip_locked=False)
                    else:
                        await heads.insert_missing(conn, wanted)

            async with a.pool.acquire() as holder:
                transaction = holder.transaction()
                await transaction.start()
                await heads.insert_missing(holder, [keys[1]])
                await heads.lock(holder, [keys[1]])
                one = asyncio.ensure_future(take(a, keys))
                await held_up(a, one)
                other = asyncio.ensure_future(take(b, keys[::-1]))
                await waiting_backends(a, 2, one, other)
                await transaction.rollback()
            await asyncio.gather(one, other)

    asyncio.run(asyncio.wait_for(main(), 60))


async def waiting_backends(w: World, count: int, *tasks: asyncio.Task[Any]) -> None:
    """Until so many backends wait for a lock."""
    statement = """SELECT count(*) FROM pg_stat_activity
                    WHERE datname = current_database() AND wait_event_type = 'Lock'"""
    end = asyncio.get_running_loop().time() + PATIENCE
    while await w.pool.fetchval(statement) < count:
        assert asyncio.get_running_loop().time() < end and not any(task.done() for task in tasks)
        await asyncio.sleep(0.01)


def test_equal_keys_share_no_flight_and_never_fly_at_once() -> None:
    flights: list[list[str]] = []
    in_the_air: set[str] = set()

    async def fly(items: list[str]) -> list[str]:
        assert len(set(items)) == len(items), items
        assert not in_the_air & set(items), items
        in_the_air.update(items)
        flights.append(items)
        for _ in range(3):
            await asyncio.sleep(0)
        in_the_air.difference_update(items)
        return items

    async def main() -> None:
        batcher: Batcher[str, str] = Batcher(fly, key=lambda item: item, flights=3)
        wanted = ["k", "k", "other", "k", "other", "k", *(f"x{i}" for i in range(10))]
        assert await asyncio.gather(*(batcher.submit(item) for item in wanted)) == wanted
        assert len(flights) < len(wanted)

    asyncio.run(main())


# --- multipart uploads ------------------------------------------------------------------------------------------------


async def upload_of_one_part(w: World, bucket: Bucket) -> Upload:
    upload = await w.uploads.create(bucket, b"m", bucket.owner.id, bucket.owner.id, Attributes(), None, None, None)
    await part(w, upload, b"part")
    return upload


async def part(w: World, upload: Upload, data: bytes) -> Any:
    digest = hashlib.sha256(data).digest()
    return await w.uploads.put_part(upload, PartRow(1, len(data), "etag", digest), Inline(data, digest))


async def complete(w: World, bucket: Bucket, upload: Upload) -> Completed:
    def combine(_: Upload, parts: Any) -> assembly.Combined:
        return assembly.Combined([1], "e-1", parts[1].size, "sha256-tree:x", {}, None, b"r", lambda v: "<done/>")

    return await assembly.complete_upload(
        w.completions, bucket, b"m", upload.upload_id, combine, condition=None, mode="async"
    )


def test_an_abort_during_complete_is_too_late(run: Any) -> None:
    async def story(a: World, b: World, bucket: Bucket) -> None:
        upload = await upload_of_one_part(a, bucket)
        pause = Pause(a.engine, "enqueue")
        done, aborted = await race(
            a, pause, complete(a, bucket, upload), lambda: b.uploads.abort(bucket, b"m", upload.upload_id)
        )
        assert isinstance(done, Completed) and isinstance(aborted, NoSuchUpload), (done, aborted)
        await a.decide(done)
        await b.collector.collect()
        assert await content(b, bucket, b"m") == b"part"

    run(story)


def test_a_complete_during_abort_is_too_late(run: Any) -> None:
    async def story(a: World, b: World, bucket: Bucket) -> None:
        upload = await upload_of_one_part(a, bucket)
        async with a.pool.acquire() as conn:
            async with conn.transaction():
                await conn.execute("SELECT FROM upload WHERE upload_id = $1 FOR UPDATE", upload.upload_id)
                done = asyncio.ensure_future(complete(b, bucket, upload))
                await held_up(a, done)
                await remove_upload(conn, bucket.id, b"m", upload.upload_id, (), 0.0)
            with pytest.raises(NoSuchUpload):
                await done
        assert await a.read(bucket, b"m") == "nothing"

    run(story)


@pytest.mark.parametrize("end", ["abort", "complete"])
def test_a_part_under_way_is_stored_before_its_upload_ends(run: Any, end: str) -> None:
    """Else its row, and its bytes, would stay for ever beside an upload that is gone."""

    async def story(a: World, b: World, bucket: Bucket) -> None:
        upload = await upload_of_one_part(a, bucket)
        pause = Pause(a.uploads, "_upsert")

        async def finish() -> Any:
            if end == "abort":
                return await b.uploads.abort(bucket, b"m", upload.upload_id)
            return await complete(b, bucket, upload)

        stored, ended = await race(a, pause, part(a, upload, b"newer part"), finish)
        assert not isinstance(stored, BaseException) and not isinstance(ended, BaseException), (stored, ended)
        assert await rows(a, "part") == await rows(a, "upload") == 0
        await b.collector.collect()
        assert await rows(a, "blob") == (0 if end == "abort" else 1)
        if end == "complete":
            await a.decide(ended)
            assert await content(b, bucket, b"m") == b"newer part"

    run(story)


def test_an_upload_ends_once(run: Any) -> None:
    async def story(a: World, b: World, bucket: Bucket) -> None:
        upload = await upload_of_one_part(a, bucket)
        await a.decide(await complete(a, bucket, upload))
        for late in (
            complete(b, bucket, upload),
            part(b, upload, b"x"),
            b.uploads.abort(bucket, b"m", upload.upload_id),
        ):
            with pytest.raises(NoSuchUpload):
                await late
        await b.collector.collect()
        assert await content(b, bucket, b"m") == b"part"
        assert await rows(a, "part") == 0

    run(story)


# --- shared bytes and the collector -----------------------------------------------------------------------------------


async def clean_up(w: World) -> None:
    await w.collector.collect()
    await w.collector.unlink()


def test_a_copy_under_way_keeps_its_bytes_from_the_collector(run: Any) -> None:
    async def story(a: World, b: World, bucket: Bucket) -> None:
        source = await put_file(a, bucket, b"source.txt", b"data")
        await a.decide(source)
        pause = Pause(a.engine, "enqueue")  # of another extension: the copy is scanned, and its blobs are locked by now

        async def delete_and_collect() -> None:
            await b.deletions.delete(bucket, [DeleteItem(b"source.txt")], bucket.owner.id)
            await b.collector.collect()

        shared = Shared(source.ref)
        copied, gone = await race(
            a, pause, a.put(bucket, b"copy.bin", b"data", source=shared), lambda: delete_and_collect()
        )
        assert isinstance(copied, Completed) and gone is None, (copied, gone)
        await clean_up(b)  # the queue kept the blob, which is referred to again by now
        await a.decide(copied)
        assert await content(b, bucket, b"copy.bin") == b"data"
        await b.deletions.delete(bucket, [DeleteItem(b"copy.bin")], bucket.owner.id)
        await clean_up(b)
        assert await rows(a, "blob") == 0 and [name async for name in a.tier.names()] == []

    run(story)


def test_bytes_the_collector_took_are_not_shared(run: Any) -> None:
    """The copy has seen its source; by the time it reaches the blob, the collector has that."""

    async def story(a: World, b: World, bucket: Bucket) -> None:
        source = await put_file(a, bucket, b"source.txt", b"data")
        await a.decide(source)
        blob: UUID = await a.pool.fetchval("SELECT id FROM blob")
        async with b.pool.acquire() as conn:
            async with conn.transaction():
                await conn.execute("SELECT FROM blob WHERE id = $1 FOR UPDATE", blob)
                copying = asyncio.ensure_future(a.put(bucket, b"copy.txt", b"data", source=Shared(source.ref)))
                await held_up(a, copying)
                await b.deletions.delete(bucket, [DeleteItem(b"source.txt")], bucket.owner.id)
                assert await b.collector._collect(conn, [blob]) == 1
            with pytest.raises(SourceGone):
                await copying

    run(story)


class Watched:
    """A connection on which something happens just before the first statement that holds a word."""

    def __init__(self, conn: Any, word: str, deed: Callable[[], Awaitable[Any]]) -> None:
        self._conn, self._word, self._deed = conn, word, deed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._conn, name)

    async def fetch(self, statement: str, *args: Any) -> Any:
        if self._word and self._word in statement:
            self._word = ""
            await self._deed()
        return await self._conn.fetch(statement, *args)


def test_the_collector_looks_for_references_under_its_lock(run: Any) -> None:
    """A reference that is committed just before the lock is taken is seen by the look that follows it."""

    async def story(a: World, b: World, bucket: Bucket) -> None:
        source = await put_file(a, bucket, b"source.txt", b"data")
        await a.decide(source)
        pause = Pause(a.engine, "enqueue")
        copying = asyncio.ensure_future(a.put(bucket, b"copy.bin", b"data", source=Shared(source.ref)))
        await pause.reached.wait()
        await b.deletions.delete(bucket, [DeleteItem(b"source.txt")], bucket.owner.id)

        async def appear() -> None:
            pause.go.set()
            await copying

        blob: UUID = await a.pool.fetchval("SELECT id FROM blob")
        async with b.pool.acquire() as conn, conn.transaction():
            watched: Any = Watched(conn, "FOR UPDATE", appear)
            assert await b.collector._collect(watched, [blob]) == 0
        await clean_up(b)
        await a.decide(await copying)
        assert await content(b, bucket, b"copy.bin") == b"data"

    run(story)


# --- verdicts ---------------------------------------------------------------------------------------------------------


def test_a_verdict_counts_once_and_only_of_the_run_that_owns_the_version(run: Any) -> None:
    async def story(a: World, b: World, bucket: Bucket) -> None:
        first = await a.put(bucket, b"k", b"data")
        await a.decide(first, Verdict.QUARANTINED, "malware")
        await b.decide(first)  # a replay
        assert await a.read(bucket, b"k") == "quarantined:"
        run_id = await a.review.reprocess(bucket, first.ref, who="test", hold=True)
        await b.decide(first)  # of the run before: the version is scanning, but not for it
        assert await a.read(bucket, b"k") == "scanning:"
        await b.decide(replace(first, run_id=run_id))
        assert await a.read(bucket, b"k") == "ready:data"

    run(story)


def test_the_older_of_two_rows_never_comes_back(run: Any) -> None:
    """Verdicts out of order, in two processes, with the versioning switched and a delete in between."""

    async def story(a: World, b: World, bucket: Bucket) -> None:
        one, two_ = await a.put(bucket, b"k", b"one"), await b.put(bucket, b"k", b"two")
        await b.decide(two_)
        await a.decide(one)
        assert await a.read(bucket, b"k") == "ready:two" and await rows(a, "version") == 1
        late = await a.put(bucket, b"k", b"late")
        await Buckets(b.pool).set_versioning(bucket, Versioning.ENABLED)
        kept = await a.put(bucket, b"k", b"kept")  # by what the bucket is now, though this process believes otherwise
        assert kept.version_id not in (None, "null")
        await b.decide(kept)
        await b.decide(late)
        assert await a.read(bucket, b"k") == "ready:kept"
        assert await rows(a, "version") == 2  # the null rows before are one row
        await Buckets(b.pool).set_versioning(bucket, Versioning.SUSPENDED)
        last = await a.put(bucket, b"k", b"last")
        assert last.version_id == "null"
        await b.deletions.delete(bucket, [DeleteItem(b"k")], bucket.owner.id)
        await a.decide(last)
        assert (await a.read(bucket, b"k")).startswith("marker")

    run(story)


def test_a_held_row_that_is_cleared_after_a_newer_one_is_ready_gives_way(run: Any) -> None:
    """Quarantined rows stay when a newer one becomes ready; cleared by a new look, one of them must not come back."""

    async def story(a: World, b: World, bucket: Bucket) -> None:
        first = await a.put(bucket, b"k", b"odd")
        await a.decide(first, Verdict.QUARANTINED, "unscannable")
        await b.decide(await b.put(bucket, b"k", b"new"))
        assert await rows(a, "version") == 2
        run_id = await a.review.reprocess(bucket, first.ref, who="test", hold=True)
        await b.decide(replace(first, run_id=run_id))
        assert await a.read(bucket, b"k") == "ready:new"
        assert await rows(a, "version") == 1

    run(story)


def test_a_verdict_that_falls_before_the_wait_is_seen_at_once(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "POLL", 3600.0)

    async def story(a: World, b: World, bucket: Bucket) -> None:
        done = await a.put(bucket, b"k", b"data")
        await b.decide(done)  # in another process, whose word was lost
        assert await a.waiting.decided(done.ref, 1, 0.5)

    run(story)


# --- buckets ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("writer", ["put", "upload"])
def test_a_bucket_is_not_deleted_under_a_writer(run: Any, long_way: None, writer: str) -> None:
    async def story(a: World, b: World, bucket: Bucket) -> None:
        if writer == "put":
            pause = Pause(a.engine, "enqueue")
            done, gone = await race(a, pause, a.put(bucket, b"k", b"data"), lambda: Buckets(b.pool).delete(bucket))
            assert isinstance(done, Completed) and isinstance(gone, BucketNotEmpty), (done, gone)
            await a.decide(done)
            assert await b.read(bucket, b"k") == "ready:data"
            return
        upload = await upload_of_one_part(a, bucket)
        pause = Pause(a.uploads, "_upsert")
        stored, gone = await race(a, pause, part(a, upload, b"more"), lambda: Buckets(b.pool).delete(bucket))
        assert not isinstance(stored, BaseException) and gone is None, (stored, gone)
        assert await rows(a, "part") == await rows(a, "upload") == 0

    run(story)


def test_nothing_is_written_into_a_bucket_that_is_being_deleted(run: Any) -> None:
    async def story(a: World, b: World, bucket: Bucket) -> None:
        async with b.pool.acquire() as conn:
            async with conn.transaction():
                await conn.execute("SELECT FROM bucket WHERE id = $1 FOR UPDATE", bucket.id)
                writes = [
                    asyncio.ensure_future(a.put(bucket, b"k", b"data")),
                    asyncio.ensure_future(upload_of_one_part(a, bucket)),
                ]
                with contextlib.suppress(AssertionError):
                    await waiting_backends(a, 2, *writes)
                await conn.execute("DELETE FROM bucket WHERE id = $1", bucket.id)
            answers = await asyncio.gather(*writes, return_exceptions=True)
            assert [type(answer) for answer in answers] == [BucketGone, BucketGone]
        assert await rows(a, "version") == await rows(a, "head") == await rows(a, "upload") == 0

    run(story)


def test_blobs_lost_by_the_lease_are_not_made_live(run: Any) -> None:
    """A staging row that the collector took is no object's any more: the write is refused, nothing is half there."""

    async def story(a: World, b: World, bucket: Bucket) -> None:
        blob = await a.blobs.stage("standard")
        async with a.pool.acquire() as conn:
            assert await blobs.make_live(conn, [blob], [1], [None]) == {blob}
            assert await blobs.make_live(conn, [blob], [1], [None]) == set()
            assert not await blobs.share(conn, [blob, UUID(int=0)])

    run(story)
