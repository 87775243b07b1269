"""Folder syncs shared by all commits that wait for one at the same time."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from pathlib import Path


class FolderSync:
    """Group commit of folders: while one flight of fsyncs is under way, the next one collects its passengers.

    A rename is durable only once its folder has been synced. On a journalling file system the first folder of a
    flight commits the journal for all renames before it, so the others cost next to nothing.
    """

    def __init__(self, pool: Executor, fsync: Callable[[int], None] = os.fsync) -> None:
        self._pool = pool
        self._fsync = fsync
        self._waiting: dict[Path, asyncio.Future[OSError | None]] = {}
        self._flight: asyncio.Task[None] | None = None
        self.flights = 0  # how many so far, for tests and figures

    async def sync(self, folder: Path) -> None:
        """Return when an fsync of folder that began after this call has succeeded. Raises OSError."""
        loop = asyncio.get_running_loop()
        future = self._waiting.get(folder)
        if future is None:
            future = self._waiting[folder] = loop.create_future()
        if self._flight is None:
            self._flight = loop.create_task(self._fly())
        error = await asyncio.shield(future)
        if error is not None:
            # a new one for each passenger: a shared exception would collect the tracebacks of all
            raise OSError(error.errno, error.strerror)

    async def _fly(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, {}
                self.flights += 1
                errors = await loop.run_in_executor(self._pool, self._sync_all, list(batch))
                for future, error in zip(batch.values(), errors, strict=True):
                    future.set_result(error)
        finally:
            self._flight = None

    def _sync_all(self, folders: Sequence[Path]) -> list[OSError | None]:
        return [self._sync_one(folder) for folder in folders]

    def _sync_one(self, folder: Path) -> OSError | None:
        try:
            sync_folder(folder, self._fsync)
        except OSError as error:
            return error
        return None


def sync_folder(folder: Path, fsync: Callable[[int], None] = os.fsync) -> None:
    """fsync one folder. Blocking. Raises OSError."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fsync(fd)
    finally:
        os.close(fd)
