"""Accounts and access keys: sealed secrets, cached lookups, and how a change reaches every cache."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest

from gateway.db.cache import TTL, Recent
from gateway.db.identities import (
    AccessKeyExists,
    AccountExists,
    Identities,
    InvalidIdentity,
    NoSuchAccessKey,
    NoSuchAccount,
)
from tests.db.rows import with_pool


class Mirror:
    """A ring that turns bytes around: enough to see that nothing is stored as it is."""

    def seal(self, plain: bytes) -> bytes:
        return b"sealed:" + plain[::-1]

    def open(self, sealed: bytes) -> bytes:
        return sealed.removeprefix(b"sealed:")[::-1]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def identities(pool: asyncpg.Pool, sent: list[tuple[str, str]] | None = None, clock: Clock | None = None) -> Identities:
    publish = None if sent is None else lambda kind, payload: sent.append((kind, payload))
    return Identities(pool, Mirror(), publish, clock=clock or Clock())


def run(dsn: str, work: Any) -> None:
    with_pool(dsn, work)


def test_a_key_is_found_with_its_secret_and_account(dsn: str) -> None:
    async def main(pool: asyncpg.Pool) -> None:
        ids = identities(pool)
        account = await ids.create_account("alice", "Alice", "a@example.org")
        assert len(account.canonical_id) == 64
        assert int(account.canonical_id, 16) > 0
        given = await ids.create_key("alice", "AKALICE", "secret-of-alice")
        made = await ids.create_key(account.id)
        assert (len(made.access_key), len(made.secret)) == (20, 40)
        for identity in (given, made):
            assert await identities(pool).find(identity.access_key) == identity
            assert identity.account == account
        assert "secret-of-alice" not in repr(given)
        assert b"secret-of-alice" not in await pool.fetchval(
            "SELECT secret FROM access_key WHERE access_key = 'AKALICE'"
        )
        assert await ids.find("AKNOBODY") is None
        assert await ids.find("not/a/key") is await ids.find("nul\x00") is None
        assert await ids.account(account.id) == await ids.account_by_canonical(account.canonical_id) == account
        assert await ids.account_by_name("alice") == account
        assert (
            await ids.account(0) is await ids.account_by_canonical("f" * 64) is await ids.account_by_name("x") is None
        )
        assert [key.access_key for key in await ids.list_keys("alice")] == ["AKALICE", made.access_key]
        assert await ids.list_keys("bob") == []
        assert await ids.list_accounts() == [account]

    run(dsn, main)


def test_what_is_taken_or_unusable_is_refused(dsn: str) -> None:
    async def main(pool: asyncpg.Pool) -> None:
        ids = identities(pool)
        await ids.create_account("alice")
        await ids.create_account("bob")
        await ids.create_key("alice", "AK1", "secret-1")
        with pytest.raises(AccountExists):
            await ids.create_account("alice")
        for account, key, secret, error in [
            ("bob", "AK1", "secret-2", AccessKeyExists),
            ("nobody", "AK2", "secret-2", NoSuchAccount),
            ("bob", "a/b", "secret-2", InvalidIdentity),
            ("bob", "AK2", "short", InvalidIdentity),
            ("bob", "AK2", "secret-\n2", InvalidIdentity),
        ]:
            with pytest.raises(error):
                await ids.create_key(account, key, secret)
        for name in ("", "a b", "x" * 65):
            with pytest.raises(InvalidIdentity):
                await ids.create_account(name)
        for change in (ids.disable, ids.enable, ids.delete, ids.rotate):
            with pytest.raises(NoSuchAccessKey):
                await change("AK9")
        found = await ids.find("AK1")
        assert found is not None
        assert found.secret == "secret-1"

    run(dsn, main)


def test_a_change_is_told_after_it_is_made_and_forgets_what_was_known(dsn: str) -> None:
    async def main(pool: asyncpg.Pool) -> None:
        sent: list[tuple[str, str]] = []
        here, there = identities(pool, sent), identities(pool)
        await here.create_account("alice")
        await here.create_key("alice", "AK1", "secret-1")
        assert sent == [("identity", "AK1")]
        assert await here.find("AK1") == await there.find("AK1") is not None

        await here.disable("AK1")
        assert await here.find("AK1") is None
        assert await there.find("AK1") is not None  # word has not come yet
        there.invalidate(sent[-1][1])
        assert await there.find("AK1") is None
        await here.enable("AK1")
        assert await there.find("AK1") is not None  # that there was none is not remembered

        rotated = await here.rotate("AK1", "secret-2")
        assert (await here.find("AK1")) == rotated
        there.invalidate()  # after a gap in the notifications
        assert (await there.find("AK1")) == rotated
        await here.delete("AK1")
        assert await here.find("AK1") is None
        assert sent == [("identity", "AK1")] * 5

    run(dsn, main)


def test_a_lost_notification_is_made_good_by_time(dsn: str) -> None:
    async def main(pool: asyncpg.Pool) -> None:
        clock = Clock()
        here, there = identities(pool), identities(pool, clock=clock)
        account = await here.create_account("alice")
        await here.create_key("alice", "AK1", "secret-1")
        await there.find("AK1")
        await there.account(account.id)
        await here.delete("AK1")
        await pool.execute("UPDATE account SET display_name = 'New'")
        clock.now = TTL - 1
        assert await there.find("AK1") is not None
        clock.now = TTL + 1
        assert await there.find("AK1") is None
        renamed = await there.account(account.id)
        assert renamed is not None
        assert renamed.display_name == "New"

    run(dsn, main)


def test_root_is_what_configuration_says(dsn: str) -> None:
    async def main(pool: asyncpg.Pool) -> None:
        ids = identities(pool)
        roots = await asyncio.gather(*(identities(pool).ensure_root("ROOT", "root-secret") for _ in range(4)))
        assert len(set(roots)) == 1
        assert roots[0].account.is_root
        assert await ids.find("ROOT") == roots[0]
        sealed = await pool.fetchval("SELECT secret FROM access_key")
        await ids.ensure_root("ROOT", "root-secret")
        assert await pool.fetchval("SELECT secret FROM access_key") == sealed
        await ids.disable("ROOT")
        changed = await ids.ensure_root("ROOT", "other-secret")
        assert await ids.find("ROOT") == changed
        assert changed.account == roots[0].account
        await ids.create_account("alice")
        await ids.create_key("alice", "AK1", "secret-1")
        with pytest.raises(AccessKeyExists):
            await ids.ensure_root("AK1", "root-secret")

    run(dsn, main)


def test_a_value_whose_lookup_began_before_a_drop_is_not_kept() -> None:
    cache: Recent[str, int] = Recent(Clock())
    epoch = cache.epoch
    cache.drop("a")
    cache.put("a", 1, epoch)
    assert cache.get("a") is None
    cache.put("a", 1, cache.epoch)
    assert cache.get("a") == 1


def test_the_oldest_values_leave_a_full_cache() -> None:
    cache: Recent[int, int] = Recent(Clock(), capacity=2)
    for i in range(3):
        cache.put(i, i, cache.epoch)
    assert [cache.get(i) for i in range(3)] == [None, 1, 2]
