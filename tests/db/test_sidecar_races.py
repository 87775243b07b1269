"""A sidecar that is attached while its version is deleted: both or none are left, and no byte of it stays behind."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from gateway.db import blobs
from gateway.db.deletion import DeleteItem
from gateway.db.runs import subject
from gateway.domain.objects import Bucket
from processing.ports import Conn, Content
from storage_tiers.ids import blob_id
from tests.db.rows import new_bucket
from tests.db.world import World, held_up, world


async def _stage(w: World) -> UUID:
    blob = blob_id()
    await w.subjects.stage(None, blob, "standard")
    sink = await w.tier.begin(blob)
    sink.write(b"what it says")
    await sink.commit()
    return blob


async def _upload(w: World, bucket: Bucket, key: bytes) -> Content:
    done = await w.put(bucket, key, b"text")
    content = await w.subjects.load(subject(done.ref))
    assert content is not None
    return content


async def _left(w: World) -> tuple[int, int, int]:
    """Versions, sidecars, and blobs once the collector has been round."""
    while await w.collector.collect() + await w.collector.unlink():
        pass
    row = await w.pool.fetchrow(
        "SELECT (SELECT count(*) FROM version), (SELECT count(*) FROM sidecar), (SELECT count(*) FROM blob)"
    )
    return tuple(row)


@pytest.mark.parametrize("point", ["before it is live", "before it commits"])
def test_a_delete_takes_the_sidecar_that_is_being_attached(dsn: str, monkeypatch: Any, point: str) -> None:
    async def main() -> None:
        async with world(dsn) as w:
            bucket = await new_bucket(w.pool)
            content, blob = await _upload(w, bucket, b"k"), await _stage(w)
            attaching, go_on, make_live = asyncio.Event(), asyncio.Event(), blobs.make_live

            async def paused(conn: Conn, ids: Sequence[UUID], *facts: Any) -> set[UUID]:
                if point == "before it is live":
                    attaching.set()
                    await go_on.wait()
                    return await make_live(conn, ids, *facts)
                made = await make_live(conn, ids, *facts)
                attaching.set()
                await go_on.wait()
                return made

            monkeypatch.setattr(blobs, "make_live", paused)
            attach = asyncio.create_task(w.subjects.attach_sidecar(content, "text", blob, "standard", 12))
            await attaching.wait()
            delete = asyncio.create_task(w.deletions.delete(bucket, [DeleteItem(b"k")], bucket.owner.id))
            await held_up(w, attach, delete)
            assert not delete.done()
            go_on.set()
            assert await attach
            assert not isinstance((await delete)[0], Exception)
            assert await _left(w) == (0, 0, 0)
            assert blob not in w.tier.blobs

    asyncio.run(main())


def test_what_was_deleted_gets_no_sidecar(dsn: str) -> None:
    async def main() -> None:
        async with world(dsn) as w:
            bucket = await new_bucket(w.pool)
            content, blob = await _upload(w, bucket, b"k"), await _stage(w)
            await w.deletions.delete(bucket, [DeleteItem(b"k")], bucket.owner.id)
            assert not await w.subjects.attach_sidecar(content, "text", blob, "standard", 12)
            await w.subjects.unstage(blob)
            assert await _left(w) == (0, 0, 0)

    asyncio.run(main())


def test_what_older_versions_left_behind_goes(dsn: str) -> None:
    mend = Path(__file__).parents[2] / "migrations" / "0010_orphaned_sidecars.sql"

    async def main() -> None:
        async with world(dsn) as w:
            bucket = await new_bucket(w.pool)
            for key in (b"kept", b"lost"):
                content = await _upload(w, bucket, key)
                assert await w.subjects.attach_sidecar(content, "text", await _stage(w), "standard", 12)
            await w.pool.execute("DELETE FROM version WHERE key = 'lost'")
            await w.pool.execute("DELETE FROM head WHERE key = 'lost'")
            await w.pool.execute(mend.read_text())
            assert await w.pool.fetch("SELECT key FROM sidecar") == [(b"kept",)]
            await w.pool.execute("DELETE FROM blob WHERE tier = 'inline' AND id NOT IN (SELECT blob FROM version)")
            assert await _left(w) == (1, 1, 2)
            assert len(w.tier.blobs) == 1

    asyncio.run(main())
