"""The connection pool: what every session has in common, and nothing that a transaction pooler would lose."""

from __future__ import annotations

from typing import Any, cast

import asyncpg
import msgspec

from gateway.db.connection import Connection

APPLICATION = "sluice"
IDLE_IN_TRANSACTION = "60s"  # a transaction left open holds its locks, and vacuum back, for as long
CLIENT_CHECK = "2s"  # a statement that nobody waits for any more ends so soon, and gives back its locks
PATIENCE = 10.0

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


async def open_pool(dsn: str, size: int, *, statement_cache: bool = True, patience: float = PATIENCE) -> asyncpg.Pool:
    """A pool of up to size connections; jsonb goes in and comes out as plain Python values.

    dsn is a URL as libpq reads it; a unix socket is ``postgresql://user@/name?host=/folder``. statement_cache off is
    for a pooler in transaction mode: no prepared statement outlives its use, and no start parameter that such a
    pooler refuses is sent (set ``idle_in_transaction_session_timeout`` on the role there). patience: seconds until a
    connection that does not become free, and an answer that does not come, are given up.

    Raises OSError or asyncpg.PostgresError when the first connection fails.
    """
    settings = {"application_name": APPLICATION}
    if statement_cache:
        settings |= {
            "idle_in_transaction_session_timeout": IDLE_IN_TRANSACTION,
            "client_connection_check_interval": CLIENT_CHECK,
            **PLANS,
        }
    more: dict[str, Any] = {} if statement_cache else {"statement_cache_size": 0}
    return await Pool(
        dsn,
        patience=patience,
        min_size=min(2, size),
        max_size=size,
        max_queries=50_000,
        max_inactive_connection_lifetime=300.0,
        init=prepare,
        reset=_keep,
        loop=None,
        connection_class=Connection,
        record_class=asyncpg.Record,
        server_settings=settings,
        timeout=patience,
        command_timeout=patience,
        **more,
    )


class Pool(asyncpg.Pool):
    """asyncpg's pool, in which nobody stands in line for longer than patience seconds.

    A connection that is at hand is taken, and one that is whole and idle given back, without the task and the timers
    that asyncpg makes for either.
    """

    def __init__(self, *args: Any, patience: float, **options: Any) -> None:
        super().__init__(*args, **options)
        self.patience = patience

    async def _acquire(self, timeout: float | None) -> Any:
        """Raises TimeoutError. The bound is also that of giving the connection back (asyncpg remembers it)."""
        patience = self.patience if timeout is None else timeout
        try:
            queue = cast(Any, self)._queue
            if queue is not None and not queue.empty():
                connection = await super()._acquire(None)  # type: ignore[misc]
                connection._holder._timeout = patience
                return connection
            return await super()._acquire(patience)  # type: ignore[misc]
        except TimeoutError as error:
            raise TimeoutError(f"no database connection within {patience:g} s") from error

    async def release(self, connection: Any, *, timeout: float | None = None) -> None:
        holder, own = connection._holder, connection._con
        if own is None or holder._pool is not self or not _whole(holder) or own._listeners or own._log_listeners:
            return await super().release(connection, timeout=timeout)
        protocol = own._protocol
        if protocol.is_in_transaction() or own._top_xact is not None or protocol._is_cancelling():
            return await super().release(connection, timeout=timeout)
        own._on_release()
        holder._timeout = None
        holder._release()
        holder._setup_inactive_callback()


def _whole(holder: Any) -> bool:
    """Whether a pool's connection is open, of its present generation, and not yet to be replaced."""
    connection = holder._con
    return (
        connection is not None
        and not connection.is_closed()
        and holder._generation == holder._pool._generation
        and connection._protocol.queries_count < holder._max_queries
    )


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
