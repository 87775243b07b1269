"""The locks of the short way of a write, one statement: a lock that it wants stops it in its middle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway.db.buckets import BucketNotEmpty, Buckets
from gateway.db.deletion import Deleted, DeleteItem
from gateway.db.insertion import Completed
from gateway.domain.objects import Bucket
from tests.db.world import World
from tests.durability.test_interleavings import held_up, rows, run, waiting_backends

__all__ = ["run"]  # the fixture


@asynccontextmanager
async def stopped(w: World, bucket: Bucket) -> AsyncIterator[None]:
    """The short way of a write waits in its middle: it has its bucket and its heads, and wants its tenant's line."""
    async with w.pool.acquire() as conn:
        line = "INSERT INTO tenant_q (tenant, lane) VALUES ($1, '') ON CONFLICT DO NOTHING"
        await conn.execute(line, bucket.owner.id)
        async with conn.transaction():
            await conn.execute("SELECT FROM tenant_q WHERE tenant = $1 FOR UPDATE", bucket.owner.id)
            yield


@pytest.mark.parametrize("there", [False, True], ids=["new-head", "old-head"])
def test_the_short_way_keeps_other_writers_of_its_key_waiting(run: Any, there: bool) -> None:
    async def story(a: World, b: World, bucket: Bucket) -> None:
        if there:
            await a.decide(await a.put(bucket, b"k", b"old"))
        async with stopped(b, bucket):
            one = asyncio.ensure_future(a.put(bucket, b"k", b"a"))
            await held_up(a, one)
            other = asyncio.ensure_future(b.put(bucket, b"k", b"b"))
            await waiting_backends(a, 2, one, other)
        first, second = await asyncio.gather(one, other)
        assert first.ref.seq < second.ref.seq
        await b.decide(second)
        assert await a.read(bucket, b"k") == "ready:b"

    run(story)


def test_the_short_way_keeps_deletes_and_verdicts_waiting(run: Any) -> None:
    async def story(a: World, b: World, bucket: Bucket) -> None:
        done = await a.put(bucket, b"k", b"old")
        assert done.run_id is not None
        subject = a.engine.runs[done.run_id].subject
        assert subject is not None
        async with stopped(b, bucket):
            writing = asyncio.ensure_future(a.put(bucket, b"k", b"new"))
            await held_up(a, writing)
            async with b.pool.acquire() as conn, conn.transaction():
                assert await b.subjects.lock(conn, [subject]) == set(), "a verdict rides in the next flight"
            deleting = asyncio.ensure_future(b.deletions.delete(bucket, [DeleteItem(b"k")], bucket.owner.id))
            await waiting_backends(a, 2, writing, deleting)
        answers = await asyncio.gather(writing, deleting, return_exceptions=True)
        assert isinstance(answers[0], Completed) and answers[1] == [Deleted()], answers
        assert await rows(a, "version") == await rows(a, "head") == 0

    run(story)


def test_the_short_way_keeps_the_end_of_its_bucket_waiting(run: Any) -> None:
    async def story(a: World, b: World, bucket: Bucket) -> None:
        async with stopped(b, bucket):
            writing = asyncio.ensure_future(a.put(bucket, b"k", b"data"))
            await held_up(a, writing)
            ending = asyncio.ensure_future(Buckets(b.pool).delete(bucket))
            await waiting_backends(a, 2, writing, ending)
        done, gone = await asyncio.gather(writing, ending, return_exceptions=True)
        assert isinstance(done, Completed) and isinstance(gone, BucketNotEmpty), (done, gone)

    run(story)
