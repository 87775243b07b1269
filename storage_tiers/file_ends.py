"""The two ends of a file tier: a sink that writes a staging file, a reader of a committed one."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from concurrent.futures import Executor
from contextlib import suppress
from typing import Protocol

from storage_tiers.allowance import Allowance
from storage_tiers.medium import start_writeback, translate
from storage_tiers.tier import BlobCorrupt, BlobId, Stored, TierError

READ = 1 << 20  # bytes per read
LEAST = 64 << 10  # the same when very many read at a time, and hold what they have read
BUDGET = 32 << 20  # bytes that are held so, about
WRITEBACK = 16 << 20  # begin writing to the disk every so many bytes


class Place(Protocol):
    """What a sink needs of its tier."""

    name: str

    async def publish(self, blob: BlobId, fd: int) -> Stored: ...
    async def withdraw(self, blob: BlobId, fd: int) -> None: ...


class FileSink:
    """Bytes on their way into a staging file. The descriptor may be written directly as well: the size is taken from
    the file."""

    def __init__(self, place: Place, blob: BlobId, fd: int) -> None:
        self._place = place
        self._blob = blob
        self._fd: int | None = fd
        self._lock = threading.Lock()  # a descriptor must not be closed, and given out anew, under a write
        self._written = 0
        self._flushed = 0
        self._publishing: asyncio.Task[Stored] | None = None
        self._clearing: asyncio.Task[None] | None = None
        self._done = False

    @property
    def fd(self) -> int | None:
        return self._fd

    def write(self, data: bytes | bytearray | memoryview) -> None:
        with self._lock, memoryview(data) as view:
            if self._fd is None:
                raise TierError(f"tier {self._place.name}: write after the end")
            try:
                done = 0
                while done < len(view):
                    done += os.write(self._fd, view[done:])
            except OSError as error:
                raise translate(error, self._place.name, "write") from error
            self._written += len(view)
            if self._written - self._flushed >= WRITEBACK:
                start_writeback(self._fd, self._flushed, self._written - self._flushed)
                self._flushed = self._written

    async def commit(self) -> Stored:
        if self._fd is None or self._publishing is not None:
            raise TierError(f"tier {self._place.name}: commit after the end")
        self._publishing = asyncio.create_task(self._place.publish(self._blob, self._fd))
        try:
            # The thread cannot be stopped: a cancelled caller leaves it running, and its abort waits for it.
            stored = await asyncio.shield(self._publishing)
        except OSError as error:
            # After a failed fsync the kernel may have dropped the pages and call them clean: never try again.
            await self.abort()
            raise translate(error, self._place.name, "commit") from error
        self._done = True
        self._close()
        return stored

    async def abort(self) -> None:
        if self._done:
            return
        self._done = True
        self._clearing = asyncio.create_task(self._clear())
        await asyncio.shield(self._clearing)

    async def _clear(self) -> None:
        if self._publishing is not None:
            await asyncio.wait([self._publishing])
            if not self._publishing.cancelled():
                self._publishing.exception()  # seen
        fd = self._take()
        if fd is not None:
            with suppress(OSError):  # what is left then has a row or is the reconciler's
                await self._place.withdraw(self._blob, fd)

    def _take(self) -> int | None:
        with self._lock:
            fd, self._fd = self._fd, None
            return fd

    def _close(self) -> None:
        fd = self._take()
        if fd is not None:
            with suppress(OSError):  # it is synced already
                os.close(fd)


_allowance = Allowance(BUDGET, READ, LEAST)


class FileReader:
    """length bytes of an open file from position on."""

    def __init__(self, tier: str, pool: Executor, fd: int, position: int, length: int) -> None:
        self._tier = tier
        self._pool = pool
        self._fd: int | None = fd
        self._position = position
        self._length = length
        self._reading: asyncio.Future[bytes] | None = None
        self._counted = False  # among those that hold what they have read

    @property
    def length(self) -> int:
        return self._length

    @property
    def fd(self) -> int | None:
        return self._fd

    @property
    def position(self) -> int:
        return self._position

    async def __aiter__(self) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        position, end = self._position, self._position + self._length
        if not self._counted:
            self._counted = True
            _allowance.held += 1
        while position < end:
            if self._fd is None:
                raise TierError(f"tier {self._tier}: read after close")
            size = min(_allowance.size(), end - position)
            self._reading = loop.run_in_executor(self._pool, os.pread, self._fd, size, position)
            try:
                data = await asyncio.shield(self._reading)
            except OSError as error:
                raise translate(error, self._tier, "read") from error
            if not data:
                raise BlobCorrupt(f"tier {self._tier}: a file ended {end - position} bytes early")
            position += len(data)
            yield data

    async def close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is None:
            return
        _allowance.held -= self._counted
        if self._reading is not None and not self._reading.done():
            # a cancelled reader's thread may still use the descriptor, which the next open would get
            self._reading.add_done_callback(lambda _: os.close(fd))
        else:
            os.close(fd)
