"""What a process does all the time, beside what it is asked for: it begins with start and ends with stop."""

from __future__ import annotations

import asyncio
import contextlib


class Keeper:
    """Its work is ``_loop``, which never returns."""

    _task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._loop())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _loop(self) -> None:
        raise NotImplementedError
