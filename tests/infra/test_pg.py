"""The test database itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import asyncpg


def test_each_test_gets_a_migrated_database(dsn: str, new_database: Callable[[], str]) -> None:
    async def main() -> None:
        for address in (dsn, new_database()):
            conn = await asyncpg.connect(address)
            assert await conn.fetchval("SELECT count(*) FROM account") == 0
            await conn.execute("INSERT INTO account (canonical_id, name, display_name) VALUES ('c', 'n', 'd')")
            await conn.close()

    asyncio.run(main())


def test_nothing_is_left_from_another_test(dsn: str, empty_dsn: str) -> None:
    async def main() -> None:
        conn = await asyncpg.connect(dsn)
        assert await conn.fetchval("SELECT count(*) FROM account") == 0
        await conn.close()
        conn = await asyncpg.connect(empty_dsn)
        assert await conn.fetchval("SELECT to_regclass('account')") is None
        await conn.close()

    asyncio.run(main())
