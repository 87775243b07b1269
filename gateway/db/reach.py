"""Whether the database can be reached at all, which no single statement can tell."""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

import asyncpg
import structlog

log = structlog.get_logger("sluice.db")


class Reachable(asyncpg.Pool):
    """asyncpg's pool, which can be told that the database does not answer.

    A network that is cut says nothing: a statement would wait for as long as TCP does, a quarter of an hour. No limit
    on statements tells that from one that takes long, but whoever hears from the database regularly can. Until it is
    heard again, statements under way end and new ones fail, as they do when a connection is lost.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.reached = True
        self._open: WeakSet[asyncpg.Connection] = WeakSet()

    def reach(self, reached: bool) -> None:
        """Whether the database answers."""
        if self.reached == reached:
            return
        self.reached = reached
        if reached:
            log.warning("database-answers")
            return
        log.error("database-silent", connections=len(self._open))
        for conn in list(self._open):
            conn.terminate()

    async def _acquire(self, timeout: float | None) -> Any:
        self._refuse()
        return await super()._acquire(timeout)  # type: ignore[misc]

    async def _get_new_connection(self) -> asyncpg.Connection:
        self._refuse()
        conn: asyncpg.Connection = await super()._get_new_connection()  # type: ignore[misc]
        self._open.add(conn)
        return conn

    def _refuse(self) -> None:
        if not self.reached:
            raise asyncpg.ConnectionDoesNotExistError("the database does not answer")
