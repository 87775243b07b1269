"""A connection of the pool: it never waits for ever, and it is lost as soon as it is known to be.

Between a server's last word (an administrator ends the session, a server shuts down) and the end of the stream asyncpg
takes the connection for usable and fails each statement with InternalClientError, which nobody could tell from a bug.
A server that is frozen, or behind a link that swallows, says nothing at all: asyncpg's ``command_timeout`` ends the
wait, and the connection is given up with it, since what still comes on it belongs to no question.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, cast

import asyncpg


class Connection(asyncpg.Connection):
    """All statements go through these methods; each raises ConnectionDoesNotExistError for a lost connection.

    A statement whose answer did not come in time may have been executed all the same: whoever commits asks what is
    there (``Completions``), as after any lost connection.
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
        except TimeoutError as error:
            self.terminate()
            raise asyncpg.ConnectionDoesNotExistError("the server did not answer in time") from error
