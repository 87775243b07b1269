"""The connection pool: what every session has in common, and nothing that a transaction pooler would lose."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, cast

import asyncpg
import msgspec

from gateway.db.reach import Reachable

APPLICATION = "sluice"
CONNECT = 10.0  # seconds
IDLE_IN_TRANSACTION = "60s"  # a transaction left open holds its locks, and vacuum back, for as long

# Every statement names its rows by key, a handful or a few hundred: one plan, nested loops over indexes, is right
# for all of them. Left alone, the planner makes a new plan for nearly each call (1.0 ms instead of 0.3 for one lookup),
# and one that was made while a table was empty would read all of it until the next ANALYZE.
PLANS = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode
_JSONB_FORMAT = b"\x01"  # the one version of jsonb's binary form


async def open_pool(dsn: str, size: int, *, statement_cache: bool = True) -> Reachable:
    """A pool of up to size connections; jsonb goes in and comes out as plain Python values.

    dsn is a URL as libpq reads it; a unix socket is ``postgresql://user@/name?host=/folder``. statement_cache off is
    for a pooler in transaction mode: no prepared statement outlives its use, and no start parameter that such a
    pooler refuses is sent (set ``idle_in_transaction_session_timeout`` on the role there).

    Raises OSError or asyncpg.PostgresError when the first connection fails.
    """
    settings = {"application_name": APPLICATION}
    if statement_cache:
        settings |= {"idle_in_transaction_session_timeout": IDLE_IN_TRANSACTION, **PLANS}
    more: dict[str, Any] = {} if statement_cache else {"statement_cache_size": 0}
    return await Reachable(
        dsn,
        min_size=min(2, size),
        max_size=size,
        max_queries=50_000,
        max_inactive_connection_lifetime=300.0,
        init=prepare,
        setup=None,
        reset=_keep,
        loop=None,
        connection_class=Connection,
        record_class=asyncpg.Record,
        server_settings=settings,
        timeout=CONNECT,
        **more,
    )


class Connection(asyncpg.Connection):
    """asyncpg's connection, which is lost as soon as the server has said its last word.

    Between that word (an administrator ends the session, a server shuts down) and the end of the stream asyncpg takes
    the connection for usable and fails each statement with InternalClientError, which nobody could tell from a bug.
    All statements go through these methods; each raises ConnectionDoesNotExistError then.
    """

    async def execute(self, *args: Any, **options: Any) -> str:
        return cast(str, await self._said(super().execute(*args, **options)))

    async def _execute(self, *args: Any, **options: Any) -> Any:
        return await self._said(super()._execute(*args, **options))  # type: ignore[misc]

    async def _executemany(self, *args: Any, **options: Any) -> Any:
        return await self._said(super()._executemany(*args, **options))  # type: ignore[misc]

    async def _prepare(self, *args: Any, **options: Any) -> Any:
        return await self._said(super()._prepare(*args, **options))  # type: ignore[misc]

    async def _said(self, statement: Awaitable[Any]) -> Any:
        try:
            return await statement
        except asyncpg.InternalClientError as error:
            self.terminate()  # or the pool would hand it out again
            raise asyncpg.ConnectionDoesNotExistError("the server has ended this connection") from error


async def prepare(conn: asyncpg.Connection) -> None:
    """What a connection outside the pool needs to read and write gateway tables as the pool's do."""
    await conn.set_type_codec(
        "jsonb", schema="pg_catalog", format="binary", encoder=_encode_jsonb, decoder=_decode_jsonb
    )


async def _keep(conn: asyncpg.Connection) -> None:
    """asyncpg's own reset costs a round trip each time a connection goes back, to undo session state of which there
    is none here. An open transaction is rolled back before this is called."""


def _encode_jsonb(value: Any) -> bytes:
    return _JSONB_FORMAT + _encode(value)


def _decode_jsonb(raw: bytes) -> Any:
    return _decode(raw[1:])
