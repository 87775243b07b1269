"""A folder as a tier: a temporary name inside it, fsync, rename, fsync of the folder.

Blobs lie in 256 folders by the first two digits of their id, beside their staging name (``.part``) and, in an
archive, their restore record (``.restore``). All are made, and synced, when the tier is opened: a folder that is
missing later means that the mount is away, never that a blob is gone.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar
from uuid import UUID

from storage_tiers import failpoints, restores
from storage_tiers.file_ends import FileReader, FileSink
from storage_tiers.folders import FolderSync, sync_folder
from storage_tiers.medium import translate
from storage_tiers.tier import (
    WHOLE,
    BlobArchived,
    BlobCorrupt,
    BlobId,
    BlobNotFound,
    ByteSpan,
    Readable,
    Reader,
    RestoreState,
    Sink,
    Speed,
    Stored,
    TierError,
    TierFull,
    TierReadOnly,
    TierUnavailable,
)

T = TypeVar("T")
MARKER = "sluice-tier"
DAY = 86_400.0
NAME = re.compile(r"([0-9a-f]{32})(|\.part|\.restore|\.restore-new)")
NAMES_AT_ONCE = 1_000
LONGEST_POLL = 15.0
PROBE = bytes(16 << 10)  # more than a file system keeps inside an inode


@dataclass(frozen=True, slots=True)
class Usage:
    """Free space of the file system below a tier: bytes, and inodes (which run out apart from bytes)."""

    free_bytes: int
    free_inodes: int
    total_bytes: int
    total_inodes: int


class FileTier:
    """Files under root. Durable by default; ``durable=False`` skips every fsync (scratch use only).

    archive: reading needs restore first; a request is answered ``delay`` seconds later, for days of ``day`` seconds.
    """

    def __init__(
        self,
        name: str,
        root: Path,
        *,
        durable: bool = True,
        archive: bool = False,
        delay: float = 10.0,
        day: float = DAY,
        clock: Callable[[], float] = time.time,
        fsync: Callable[[int], None] = os.fsync,
        threads: int = 16,
    ) -> None:
        self.name = name
        self.archive = archive
        self.root = root
        self.durable = durable
        self._delay = delay
        self._day = day
        self._clock = clock
        self._fsync = fsync
        # Short calls and fsyncs apart: a slow disk must not keep a reader from opening its file.
        self._calls = ThreadPoolExecutor(threads, thread_name_prefix=f"tier-{name}")
        self._syncs = ThreadPoolExecutor(threads, thread_name_prefix=f"tier-{name}-sync")
        self.folders = FolderSync(self._syncs, fsync)

    @property
    def poll_every(self) -> float:
        """Seconds between two looks at a pending restore: a quarter of the delay, a quarter to 15 seconds."""
        return min(LONGEST_POLL, max(0.25, self._delay / 4))

    async def start(self) -> None:
        """Make the folders. Raises TierFull, TierUnavailable."""
        await self._run(self._calls, "open", self._lay_out)

    async def begin(self, blob: BlobId) -> Sink:
        fd = await self._run(self._calls, "begin", partial(self._create, blob), undo=partial(self._discard, blob))
        return FileSink(self, blob, fd)

    async def open(self, blob: BlobId, span: ByteSpan = WHOLE) -> Reader:
        fd, length = await self._run(self._calls, "open", partial(self._open, blob, span), undo=_close_opened)
        return FileReader(self.name, self._calls, fd, span.offset, length)

    async def delete(self, blob: BlobId) -> None:
        await self._run(self._calls, "delete", partial(self._delete, blob))

    async def stat(self, blob: BlobId) -> Stored:
        size = await self._run(self._calls, "stat", partial(self._size, blob))
        return Stored(blob, size)

    async def restore(self, blob: BlobId, days: int, speed: Speed) -> None:
        await self._run(self._calls, "restore", partial(self._restore, blob, days))

    async def readable(self, blob: BlobId) -> RestoreState:
        return await self._run(self._calls, "readable", partial(self._readable, blob))

    async def names(self, older: float = 0.0) -> AsyncIterator[BlobId]:
        for folder in self._all_folders():
            entries = self._entries(folder, older)
            while batch := await self._run(self._calls, "list", partial(_some, entries)):
                for blob in batch:
                    yield blob

    async def probe(self) -> None:
        usage = await self.usage()
        await self._run(self._calls, "probe", self._check_mounted)
        if usage.free_bytes == 0 or (usage.total_inodes and usage.free_inodes == 0):
            raise TierFull(f"tier {self.name}: no {'bytes' if usage.free_bytes == 0 else 'inodes'} left")

    async def try_write(self) -> None:
        """Write a few bytes as a blob's are, and remove them. Raises TierFull, TierReadOnly, TierUnavailable."""
        await self._run(self._calls, "write", self._try_write)

    async def usage(self) -> Usage:
        """Free bytes and inodes. Raises TierUnavailable."""
        found = await self._run(self._calls, "statvfs", lambda: os.statvfs(self.root))
        return Usage(found.f_bavail * found.f_frsize, found.f_favail, found.f_blocks * found.f_frsize, found.f_files)

    async def close(self) -> None:
        self._calls.shutdown(wait=False)
        self._syncs.shutdown(wait=False)

    # --- names -------------------------------------------------------------------------------------------------

    def path(self, blob: BlobId) -> Path:
        """Where the blob lies once it is committed."""
        return self._folder(blob) / blob.hex

    def _folder(self, blob: BlobId) -> Path:
        return self.root / blob.hex[:2]

    def _staging(self, blob: BlobId) -> Path:
        return self._folder(blob) / f"{blob.hex}.part"

    def _record(self, blob: BlobId) -> Path:
        return self._folder(blob) / f"{blob.hex}.restore"

    def _all_folders(self) -> Iterator[Path]:
        return (self.root / f"{number:02x}" for number in range(256))

    def _entries(self, folder: Path, older: float) -> Iterator[BlobId]:
        with os.scandir(folder) as entries:
            for entry in entries:
                name = NAME.fullmatch(entry.name)
                if name is None:
                    continue
                try:
                    if older and self._clock() - entry.stat(follow_symlinks=False).st_mtime < older:
                        continue
                except FileNotFoundError:  # committed or deleted meanwhile
                    continue
                yield UUID(name[1])

    # --- what runs in a thread ---------------------------------------------------------------------------------

    def _lay_out(self) -> None:
        self.root.mkdir(mode=0o750, parents=True, exist_ok=True)
        for folder in self._all_folders():
            folder.mkdir(mode=0o750, exist_ok=True)
        # Several processes may start on one empty folder: each sees it complete and synced before it goes on.
        (self.root / MARKER).touch(mode=0o640)
        if self.durable:
            sync_folder(self.root, self._fsync)
            sync_folder(self.root.parent, self._fsync)

    def _check_mounted(self) -> None:
        if not (self.root / MARKER).exists():
            raise TierUnavailable(f"tier {self.name}: its folder is not there; is it mounted?")
        if os.statvfs(self.root).f_flag & os.ST_RDONLY:
            raise TierReadOnly(f"tier {self.name}: its file system is read-only")

    def _try_write(self) -> None:
        self._check_mounted()
        path = self.root / f".probe-{os.getpid()}-{threading.get_ident()}"
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o640)
        try:
            if os.write(fd, PROBE) < len(PROBE):
                raise TierFull(f"tier {self.name}: no bytes left")
            if self.durable:
                self._fsync(fd)
        finally:
            os.close(fd)
            path.unlink(missing_ok=True)

    def _create(self, blob: BlobId) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            return os.open(self._staging(blob), flags, 0o640)
        except FileExistsError:
            raise TierError(f"tier {self.name}: this blob is being written already") from None
        except FileNotFoundError:
            # an emptied folder that some copy program left out; a missing mount is told apart by its marker
            self._check_mounted()
            self._lay_out()
            return os.open(self._staging(blob), flags, 0o640)

    def _discard(self, blob: BlobId, fd: int) -> None:
        os.close(fd)
        self._staging(blob).unlink(missing_ok=True)

    def _missing(self, blob: BlobId) -> TierError:
        if self._folder(blob).is_dir():
            return BlobNotFound(f"tier {self.name}: no blob {blob}")
        return TierUnavailable(f"tier {self.name}: its folder is not there; is it mounted?")

    def _open(self, blob: BlobId, span: ByteSpan) -> tuple[int, int]:
        try:
            fd = os.open(self.path(blob), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            raise self._missing(blob) from None
        try:
            if self.archive and self._state(blob).state is not Readable.READABLE:
                raise BlobArchived(f"tier {self.name}: blob {blob} has to be restored first")
            size = os.fstat(fd).st_size
            length = size - span.offset if span.length is None else span.length
            if length < 0 or span.offset + length > size:
                raise BlobCorrupt(f"tier {self.name}: blob {blob} has {size} bytes, {span} was asked for")
            return fd, length
        except BaseException:
            os.close(fd)
            raise

    def _delete(self, blob: BlobId) -> None:
        # The record last: while it is there, names() still finds what a crash in between left.
        for path in (self.path(blob), self._staging(blob), self._record(blob)):
            path.unlink(missing_ok=True)
        if not self._folder(blob).is_dir():
            raise self._missing(blob)

    def _size(self, blob: BlobId) -> int:
        try:
            return self.path(blob).stat().st_size
        except FileNotFoundError:
            raise self._missing(blob) from None

    def _restore(self, blob: BlobId, days: int) -> None:
        self._size(blob)
        if self.archive:
            period = days * self._day
            restores.request(self._record(blob), self._clock(), self._delay, period, self.durable, self._fsync)

    def _readable(self, blob: BlobId) -> RestoreState:
        self._size(blob)
        return self._state(blob) if self.archive else RestoreState(Readable.HOME)

    def _state(self, blob: BlobId) -> RestoreState:
        record = restores.read(self._record(blob))
        return record.at(self._clock()) if record is not None else RestoreState(Readable.ARCHIVED)

    # --- for FileSink ------------------------------------------------------------------------------------------

    async def publish(self, blob: BlobId, fd: int) -> Stored:
        """fsync the open file, rename it to its final name, sync the folder. Raises OSError."""
        loop = asyncio.get_running_loop()
        size = await loop.run_in_executor(self._syncs, self._sync_and_rename, blob, fd)
        if self.durable:
            await self.folders.sync(self._folder(blob))
        return Stored(blob, size)

    def _sync_and_rename(self, blob: BlobId, fd: int) -> int:
        if self.durable:
            self._fsync(fd)
        size = os.fstat(fd).st_size
        failpoints.point("upload.synced")
        self._staging(blob).rename(self.path(blob))
        failpoints.point("upload.renamed")
        return size

    async def withdraw(self, blob: BlobId, fd: int) -> None:
        """Remove both names and close the file. Raises OSError."""
        await asyncio.get_running_loop().run_in_executor(self._calls, self._withdraw, blob, fd)

    def _withdraw(self, blob: BlobId, fd: int) -> None:
        os.close(fd)
        self._staging(blob).unlink(missing_ok=True)
        self.path(blob).unlink(missing_ok=True)

    async def _run(
        self, pool: Executor, doing: str, job: Callable[[], T], undo: Callable[[T], None] | None = None
    ) -> T:
        """Run job in a thread; its OSError becomes the tier's error. undo takes a result nobody waits for any more."""
        future = asyncio.get_running_loop().run_in_executor(pool, job)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            if undo is not None:
                future.add_done_callback(partial(_undo, undo))
            raise
        except OSError as error:
            raise translate(error, self.name, doing) from error


def _some(entries: Iterator[BlobId]) -> list[BlobId]:
    return list(itertools.islice(entries, NAMES_AT_ONCE))


def _undo(undo: Callable[[T], None], future: asyncio.Future[T]) -> None:
    if not future.cancelled() and future.exception() is None:
        undo(future.result())


def _close_opened(opened: tuple[int, int]) -> None:
    os.close(opened[0])
