"""The pool: jsonb as Python values, its session settings, and nothing left behind in a session."""

from __future__ import annotations

import asyncio
import json

import asyncpg
import pytest

from gateway.db.pool import open_pool
from tests.db.rows import pool_of, with_pool

TIMEOUT = "idle_in_transaction_session_timeout"


@pytest.mark.parametrize(
    "value", [{}, {"a": [1, 2.5, None, True, "é\U0001f600"]}, [], "text", 1 << 60, {"nested": {"x-amz": "ü"}}]
)
def test_jsonb_comes_back_as_it_went_in(worker_dsn: str, value: object) -> None:
    async def main(pool: asyncpg.Pool) -> None:
        assert await pool.fetchval("SELECT $1::jsonb", value) == value
        assert json.loads(await pool.fetchval("SELECT ($1::jsonb)::text", value)) == value

    with_pool(worker_dsn, main)


@pytest.mark.parametrize("statement_cache", [True, False])
def test_sessions_have_a_name_and_lose_idle_transactions(worker_dsn: str, statement_cache: bool) -> None:
    async def main() -> None:
        pool = await open_pool(worker_dsn, 1, statement_cache=statement_cache)
        try:
            for _ in range(3):
                assert await pool.fetchval("SELECT $1::jsonb", {"a": 1}) == {"a": 1}
            kept = await pool.fetchval("SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE '%$1::jsonb'")
            assert bool(kept) == statement_cache
            assert await pool.fetchval("SHOW application_name") == "sluice"
            limit = await pool.fetchval("SELECT setting || source FROM pg_settings WHERE name = $1", TIMEOUT)
            assert (limit == "60000client") == statement_cache
        finally:
            await pool.close()

    asyncio.run(main())


def test_a_connection_given_back_has_no_open_transaction(worker_dsn: str) -> None:
    async def main() -> None:
        # An abandoned transaction is reported to the loop's exception handler, too.
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        async with pool_of(worker_dsn, size=1) as pool:
            async with pool.acquire() as conn:
                await conn.execute("BEGIN")
                await conn.execute("CREATE TABLE left_behind ()")
            assert await pool.fetchval("SELECT to_regclass('left_behind')") is None

    asyncio.run(main())


def test_giving_a_connection_back_costs_no_statement(worker_dsn: str) -> None:
    async def main(pool: asyncpg.Pool) -> None:
        sent: list[str] = []
        async with pool.acquire() as conn:
            conn.add_query_logger(lambda record: sent.append(record.query))
            await conn.execute("SELECT 1")
        await asyncio.sleep(0)  # loggers are called in the loop's next turn
        assert sent == ["SELECT 1"]

    with_pool(worker_dsn, main)


def test_giving_a_connection_back_takes_no_turn_of_the_loop(worker_dsn: str) -> None:
    async def main(pool: asyncpg.Pool) -> None:
        turns = 0

        def count() -> None:
            nonlocal turns
            turns += 1
            loop.call_soon(count)

        loop = asyncio.get_running_loop()
        async with pool.acquire() as conn:
            await conn.fetchval("SELECT 1")
            loop.call_soon(count)
            connection, holder = conn._con, conn._holder
        assert turns == 0 and holder._in_use is None
        async with pool.acquire() as conn:
            assert turns == 0 and conn._con is connection, "what was just given back is at hand"

    with_pool(worker_dsn, main)


def test_a_connection_that_ended_meanwhile_is_replaced(worker_dsn: str) -> None:
    async def main() -> None:
        async with pool_of(worker_dsn, size=1) as pool:
            async with pool.acquire() as conn:
                first = await conn.fetchval("SELECT pg_backend_pid()")
                conn.terminate()
            assert await pool.fetchval("SELECT pg_backend_pid()") != first

    asyncio.run(main())
