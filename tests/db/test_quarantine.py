"""Held versions as an operator pages through them, and the audit trail."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest

from gateway.db import audit
from gateway.db.quarantine import START, Held, Quarantine
from gateway.domain.objects import State
from tests.db.rows import Row, new_bucket, put, with_pool

READY, HELD, FAILED = State.READY, State.QUARANTINED, State.FAILED


async def pages(quarantine: Quarantine, bucket_id: int | None, limit: int, **how: Any) -> list[Held]:
    held: list[Held] = []
    page = await quarantine.list(bucket_id, limit=limit, **how)
    while True:
        assert len(page.held) <= limit
        held += page.held
        if page.next is None:
            return held
        page = await quarantine.list(bucket_id, limit=limit, after=page.next, **how)


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_held_versions_are_paged_by_bucket_and_prefix(dsn: str, limit: int) -> None:
    async def main(pool: asyncpg.Pool) -> None:
        quarantine, one, two = Quarantine(pool), await new_bucket(pool), await new_bucket(pool)
        await put(pool, one, b"a", Row(READY), Row(HELD, code="malware"), Row(HELD), Row(FAILED))
        await put(pool, one, b"b/1", Row(FAILED, False))
        await put(pool, one, b"b/2", Row(READY, False))
        await put(pool, two, b"a", Row(HELD, False))

        async def keys(bucket_id: int | None, **how: object) -> list[tuple[str, bytes, State]]:
            return [(h.bucket, h.ref.key, h.state) for h in await pages(quarantine, bucket_id, limit, **how)]

        first = [(one.name, b"a", HELD), (one.name, b"a", HELD), (one.name, b"a", FAILED), (one.name, b"b/1", FAILED)]
        assert await keys(one.id) == first
        assert await keys(None) == [*first, (two.name, b"a", HELD)]
        assert await keys(one.id, prefix=b"b/") == first[3:]
        assert await keys(one.id, states=frozenset((FAILED,))) == first[2:]
        assert await keys(None, states=frozenset((HELD,))) == [*first[:2], (two.name, b"a", HELD)]
        assert await quarantine.count_hidden(one.id) == 4
        with pytest.raises(ValueError, match="needs a bucket"):
            await quarantine.list(None, prefix=b"a", after=START)

    with_pool(dsn, main)


def test_one_held_version_is_shown_with_what_was_found(worker_dsn: str) -> None:
    async def main(pool: asyncpg.Pool) -> None:
        quarantine, bucket = Quarantine(pool), await new_bucket(pool)
        rows = await put(pool, bucket, b"k", Row(READY), Row(HELD, code="malware"), Row(FAILED, False, code="timeout"))
        await pool.execute(
            "UPDATE version SET processing = $3, detail = 'Eicar' WHERE bucket_id = $1 AND seq = $2",
            bucket.id,
            rows[1].seq,
            {"scan_malware": {"signature": "Eicar"}},
        )
        failed, held = await quarantine.show(bucket.id, b"k")
        assert (held.code, held.detail, held.state, held.version_id) == ("malware", "Eicar", HELD, "null")
        assert held.processing == {"scan_malware": {"signature": "Eicar"}}
        assert (held.ref.seq, held.account) == (rows[1].seq, bucket.owner.name)
        assert failed.version_id == failed.ref.version_id
        assert list(await quarantine.show(bucket.id, b"k", rows[2].seq)) == [failed]
        assert list(await quarantine.show(bucket.id, b"k", rows[0].seq)) == []  # it is ready

    with_pool(worker_dsn, main)


def test_the_audit_trail_is_written_with_the_deed(dsn: str) -> None:
    async def main(pool: asyncpg.Pool) -> None:
        async with pool.acquire() as conn:
            with pytest.raises(LookupError):
                async with conn.transaction():
                    await audit.record(conn, "ann", "release", {"key": "lost"})
                    raise LookupError
            first = await audit.record(conn, "ann", "release", {"bucket": "b", "key": "k"}, "false alarm")
            second = await audit.record(conn, "bob", "delete", {"bucket": "b"})
        newest, oldest = await audit.entries(pool)
        assert (newest.id, newest.who, newest.why) == (second, "bob", "")
        assert (oldest.what, oldest.target, oldest.why) == ("release", {"bucket": "b", "key": "k"}, "false alarm")
        assert await audit.entries(pool, before=second) == [oldest]
        assert await audit.entries(pool, what="delete") == [newest]
        assert await audit.entries(pool, limit=1) == [newest]
        assert first < second

    with_pool(dsn, main)
