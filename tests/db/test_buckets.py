"""Buckets: made once, changed with a new generation, removed only when nothing is in them."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

import asyncpg
import pytest

from gateway.db.buckets import BucketNotEmpty, Buckets, VersioningFixed
from gateway.db.cache import TTL
from gateway.db.errors import BucketGone
from gateway.domain.objects import Account, Bucket, State, Versioning
from tests.db.rows import Row, new_account, new_bucket, pool_of, put, put_part, put_upload, with_pool


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def new_name() -> str:
    return f"b-{secrets.token_hex(8)}"


def test_a_bucket_is_made_once(worker_dsn: str) -> None:
    async def main(pool: asyncpg.Pool) -> None:
        alice, bob, name, sent = await new_account(pool), await new_account(pool), new_name(), []
        buckets = Buckets(pool, lambda kind, payload: sent.append((kind, payload)))
        assert await buckets.get(name) is None
        bucket, created = await buckets.create(name, alice, "eu-west-1", "public-read", "BucketOwnerEnforced")
        assert created
        assert (bucket.name, bucket.owner, bucket.location, bucket.acl) == (name, alice, "eu-west-1", "public-read")
        assert (bucket.versioning, bucket.object_lock, bucket.config) == (Versioning.OFF, False, {})
        assert sent == [("bucket", name)]
        assert await buckets.create(name, alice, "", "private", "ObjectWriter") == (bucket, False)
        there, created = await buckets.create(name, bob)
        assert (there.owner, created) == (alice, False)
        assert (
            await Buckets(pool).get(name)
            == await buckets.get(name, fresh=True)
            == await buckets.by_id(bucket.id)
            == bucket
        )
        locked, _ = await buckets.create(new_name(), alice, object_lock=True)
        assert (locked.object_lock, locked.versioning) == (True, Versioning.ENABLED)

    with_pool(worker_dsn, main)


def test_one_of_many_concurrent_creations_wins(worker_dsn: str) -> None:
    async def main(pool: asyncpg.Pool) -> None:
        accounts, name = [await new_account(pool) for _ in range(8)], new_name()
        results = await asyncio.gather(*(Buckets(pool).create(name, account) for account in accounts))
        assert sum(created for _, created in results) == 1
        assert len({bucket.id for bucket, _ in results}) == 1

    with_pool(worker_dsn, main)


def test_names_that_no_bucket_can_have_are_found_nowhere(worker_dsn: str) -> None:
    async def main(pool: asyncpg.Pool) -> None:
        buckets = Buckets(pool)
        for name in ("a\x00b", "é", "\udce9"):
            assert await buckets.get(name) is None
            assert (await buckets.list(None, prefix=name)).buckets == ()

    with_pool(worker_dsn, main)


def test_a_change_moves_the_generation(worker_dsn: str) -> None:
    async def main(pool: asyncpg.Pool) -> None:
        sent: list[str] = []
        buckets, bucket = Buckets(pool, lambda kind, payload: sent.append(payload)), await new_bucket(pool)
        changed = await buckets.set_versioning(bucket, Versioning.SUSPENDED)
        assert (changed.versioning, changed.generation) == (Versioning.SUSPENDED, bucket.generation + 1)
        changed = await buckets.set_config(changed, {"when_failed": "refuse", "pipeline": {"a": None}})
        changed = await buckets.set_config(changed, {"mode": "sync", "when_failed": None})
        assert changed.config == {"mode": "sync", "pipeline": {"a": None}}
        changed = await buckets.set_acl(changed, "public-read")
        changed = await buckets.set_ownership(changed, "BucketOwnerPreferred")
        assert (changed.acl, changed.ownership, changed.generation) == ("public-read", "BucketOwnerPreferred", 6)
        assert await buckets.get(bucket.name) == await buckets.get(bucket.name, fresh=True) == changed
        assert sent == [bucket.name] * 5
        with pytest.raises(ValueError, match="never switched off"):
            await buckets.set_versioning(changed, Versioning.OFF)

    with_pool(worker_dsn, main)


def test_object_lock_keeps_versioning_enabled(worker_dsn: str) -> None:
    async def main(pool: asyncpg.Pool) -> None:
        buckets = Buckets(pool)
        bucket, _ = await buckets.create(new_name(), await new_account(pool), object_lock=True)
        with pytest.raises(VersioningFixed):
            await buckets.set_versioning(bucket, Versioning.SUSPENDED)
        assert (await buckets.set_versioning(bucket, Versioning.ENABLED)).versioning is Versioning.ENABLED

    with_pool(worker_dsn, main)


def test_other_processes_learn_of_a_change_by_word_or_by_time(worker_dsn: str) -> None:
    async def main(pool: asyncpg.Pool) -> None:
        clock = Clock()
        here, there, bucket = Buckets(pool), Buckets(pool, clock=clock), await new_bucket(pool)
        assert await there.get(bucket.name) == bucket
        changed = await here.set_versioning(bucket, Versioning.ENABLED)
        assert await there.get(bucket.name) == bucket
        there.invalidate(bucket.name)
        assert await there.get(bucket.name) == changed
        changed = await here.set_versioning(bucket, Versioning.SUSPENDED)
        clock.now = TTL + 1
        assert await there.get(bucket.name) == changed
        await here.delete(changed)
        assert await there.get(bucket.name) == changed
        assert await there.get(bucket.name, fresh=True) is await there.get(bucket.name) is None
        again, created = await here.create(bucket.name, bucket.owner)
        assert created
        assert again.id > bucket.id
        assert await there.get(bucket.name) == again  # that there was none is not remembered

    with_pool(worker_dsn, main)


def test_buckets_are_listed_by_name_and_page(worker_dsn: str) -> None:
    async def main(pool: asyncpg.Pool) -> None:
        buckets, alice, base = Buckets(pool), await new_account(pool), new_name()
        names = [f"{base}-{n}" for n in ("a", "a-b", "a.b", "b", "c")]
        for name in reversed(names):
            await buckets.create(name, alice, "eu-west-1" if name.endswith("b") else "")
        await new_bucket(pool)

        async def listed(**how: Any) -> list[str]:
            return [bucket.name for bucket in (await buckets.list(alice.id, **how)).buckets]

        assert await listed() == sorted(names)
        assert await listed(prefix=f"{base}-a") == sorted(names)[:3]
        assert await listed(prefix=f"{base}-a", after=f"{base}-a") == sorted(names)[1:3]
        assert await listed(location="eu-west-1") == [f"{base}-a-b", f"{base}-a.b", f"{base}-b"]
        assert await listed(prefix="zzz") == await listed(limit=0) == []
        seen, page = [], await buckets.list(alice.id, limit=2)
        while True:
            seen += [bucket.name for bucket in page.buckets]
            if not page.truncated:
                break
            page = await buckets.list(alice.id, limit=2, after=page.last or "")
        assert seen == sorted(names)
        everyone = await buckets.list(None, prefix=base)
        assert len(everyone.buckets) == 5

    with_pool(worker_dsn, main)


# --- delete --------------------------------------------------------------------------------------------------------


async def refusal(buckets: Buckets, bucket: Bucket) -> int | None:
    """The number of hidden versions that a refused deletion names; None when it is not refused."""
    try:
        await buckets.delete(bucket)
    except BucketNotEmpty as error:
        return error.hidden
    return None


@pytest.mark.parametrize(
    ("rows", "hidden"),
    [
        ([State.READY], 0),
        ([State.SCANNING], 0),
        ([State.MARKER], 0),
        ([State.READY, State.MARKER], 0),
        ([State.QUARANTINED], 1),
        ([State.QUARANTINED, State.FAILED], 2),
        ([State.READY, State.QUARANTINED], 0),
    ],
)
def test_a_bucket_with_any_version_stays(worker_dsn: str, rows: list[State], hidden: int) -> None:
    """B127"""

    async def main(pool: asyncpg.Pool) -> None:
        buckets, bucket = Buckets(pool), await new_bucket(pool)
        await put(pool, bucket, b"k", *(Row(state, False) for state in rows))
        assert await refusal(buckets, bucket) == hidden
        assert await buckets.get(bucket.name, fresh=True) == bucket

    with_pool(worker_dsn, main)


def test_open_uploads_go_with_their_bucket_and_their_blobs_are_queued(worker_dsn: str) -> None:
    async def main(pool: asyncpg.Pool) -> None:
        sent: list[tuple[str, str]] = []
        buckets = Buckets(pool, lambda kind, payload: sent.append((kind, payload)), blob_grace=3600)
        bucket, other = await new_bucket(pool), await new_bucket(pool)
        for b in (bucket, other):
            await put_upload(pool, b, b"k", "u")
        blobs = await put_part(pool, bucket, b"k", "u", 1) + await put_part(pool, bucket, b"k", "u", 2, extents=3)
        inline = await put_part(pool, bucket, b"k", "u", 3, tier="inline")
        kept = await put_part(pool, other, b"k", "u", 1)
        await buckets.delete(bucket)
        assert sent == [("bucket", bucket.name)]
        assert await buckets.get(bucket.name) is await buckets.by_id(bucket.id) is None
        for table in ("upload", "part", "part_extent"):
            assert await pool.fetchval(f"SELECT count(*) FROM {table} WHERE bucket_id = $1", bucket.id) == 0
        rows = await pool.fetch(
            "SELECT blob, due_at > now() + interval '50 minutes' AS later FROM blob_queue WHERE blob = ANY($1)",
            blobs + inline + kept,
        )
        assert {row["blob"]: row["later"] for row in rows} == {**dict.fromkeys(blobs, True), inline[0]: False}
        assert await pool.fetchval("SELECT count(*) FROM part WHERE bucket_id = $1", other.id) == 1
        with pytest.raises(BucketGone):
            await buckets.delete(bucket)
        with pytest.raises(BucketGone):
            await buckets.set_versioning(bucket, Versioning.ENABLED)
        with pytest.raises(BucketGone):
            await buckets.set_config(bucket, {})

    with_pool(worker_dsn, main)


def test_a_write_under_way_is_seen_by_the_deletion_that_waits_for_it(worker_dsn: str) -> None:
    """The writer holds the bucket FOR KEY SHARE, as every write does; the first look finds the bucket empty."""

    async def main() -> None:
        async with pool_of(worker_dsn) as pool:
            buckets, bucket = Buckets(pool), await new_bucket(pool)
            async with pool.acquire() as writer, writer.transaction():
                await writer.execute("SELECT FROM bucket WHERE id = $1 FOR KEY SHARE", bucket.id)
                deletion = asyncio.create_task(refusal(buckets, bucket))
                while not await pool.fetchval(
                    "SELECT EXISTS (SELECT FROM pg_stat_activity"
                    " WHERE datname = current_database() AND wait_event_type = 'Lock')"
                ):
                    assert not deletion.done()
                    await asyncio.sleep(0.01)
                await put(writer, bucket, b"k", Row(State.SCANNING))
            assert await deletion == 0
            assert await buckets.get(bucket.name, fresh=True) == bucket

    asyncio.run(main())


def test_a_reader_that_looked_before_a_change_does_not_undo_it(worker_dsn: str) -> None:
    """A lookup that began before a change and ends after it must not put the old bucket back into the cache."""

    class Slow:
        """A pool whose answer is held back until the change is made."""

        def __init__(self, pool: asyncpg.Pool) -> None:
            self.pool, self.looked, self.go = pool, asyncio.Event(), asyncio.Event()

        async def fetchrow(self, *args: Any) -> Any:
            row = await self.pool.fetchrow(*args)
            if not self.looked.is_set():
                self.looked.set()
                await self.go.wait()
            return row

    async def main(pool: asyncpg.Pool) -> None:
        bucket: Bucket = await new_bucket(pool)
        slow = Slow(pool)
        buckets = Buckets(slow)  # type: ignore[arg-type]
        reader = asyncio.create_task(buckets.get(bucket.name))
        await slow.looked.wait()
        changed = await buckets.set_versioning(bucket, Versioning.ENABLED)
        slow.go.set()
        assert await reader == bucket
        assert await buckets.get(bucket.name) == changed

    with_pool(worker_dsn, main)


def test_accounts_do_not_matter_to_the_name(worker_dsn: str) -> None:
    """One name space: a second owner finds the bucket, and who it belongs to."""

    async def main(pool: asyncpg.Pool) -> None:
        owner: Account = await new_account(pool)
        bucket = await new_bucket(pool, owner)
        there, created = await Buckets(pool).create(bucket.name, await new_account(pool))
        assert (there, created) == (bucket, False)

    with_pool(worker_dsn, main)
