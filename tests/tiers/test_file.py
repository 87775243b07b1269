"""What only the file tier promises: order of syncs, shared folder syncs, final errors, mounts, restore records."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from storage_tiers import restores
from storage_tiers.file import FileTier
from storage_tiers.tier import (
    BlobArchived,
    BlobCorrupt,
    BlobId,
    BlobNotFound,
    ByteSpan,
    Readable,
    Speed,
    TierError,
    TierFull,
    TierReadOnly,
    TierUnavailable,
)
from tests.tiers.places import MIB, Clock


def run(tier: FileTier, body: Callable[[FileTier], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        await tier.start()
        try:
            await body(tier)
        finally:
            await tier.close()

    asyncio.run(main())


async def write(tier: FileTier, data: bytes = b"data", blob: BlobId | None = None) -> BlobId:
    blob = blob or uuid4()
    sink = await tier.begin(blob)
    sink.write(data)
    await sink.commit()
    return blob


def path_of(fd: int) -> str:
    return os.readlink(f"/proc/self/fd/{fd}")


class Disk:
    """Stands for fsync: records what is synced, waits or fails when told."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.fail: Callable[[str], OSError | None] = lambda path: None
        self.gate = threading.Event()
        self.gate.set()

    def fsync(self, fd: int) -> None:
        path = path_of(fd)
        self.gate.wait(20)
        self.log.append(path)
        error = self.fail(path)
        if error is not None:
            raise error


def test_file_before_rename_before_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B213: an acknowledged blob needs its bytes and its name on the disk, in this order."""
    disk = Disk()
    rename = Path.rename

    def logged(self: Path, target: Path) -> Path:
        disk.log.append(f"rename {self.name}")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", logged)

    async def body(tier: FileTier) -> None:
        disk.log.clear()
        blob = await write(tier)
        folder = str(tmp_path / blob.hex[:2])
        assert disk.log == [f"{folder}/{blob.hex}.part", f"rename {blob.hex}.part", folder]

    run(FileTier("t", tmp_path, fsync=disk.fsync), body)


def test_the_folders_themselves_are_synced(tmp_path: Path) -> None:
    disk = Disk()

    async def body(tier: FileTier) -> None:
        assert disk.log == [str(tmp_path / "new"), str(tmp_path)]

    run(FileTier("t", tmp_path / "new", fsync=disk.fsync), body)


def test_durable_off_syncs_nothing(tmp_path: Path) -> None:
    disk = Disk()

    async def body(tier: FileTier) -> None:
        await write(tier)
        await tier.restore(await write(tier), 1, Speed.BULK)
        assert disk.log == []

    run(FileTier("t", tmp_path, fsync=disk.fsync, durable=False, archive=True), body)


def test_commits_that_wait_together_share_folder_syncs(tmp_path: Path) -> None:
    disk = Disk()

    async def body(tier: FileTier) -> None:
        blobs = [BlobId(hex=f"ab{number:030x}") for number in range(40)]
        sinks = [await tier.begin(blob) for blob in blobs]
        disk.log.clear()
        await asyncio.gather(*(sink.commit() for sink in sinks))
        folder = str(tmp_path / "ab")
        assert disk.log.count(folder) == tier.folders.flights < 40
        assert len(disk.log) - disk.log.count(folder) == 40

    run(FileTier("t", tmp_path, fsync=disk.fsync), body)


def test_a_commit_never_rides_with_a_sync_that_began_before_it(tmp_path: Path) -> None:
    disk = Disk()

    async def body(tier: FileTier) -> None:
        folder = tmp_path / "cd"
        disk.gate.clear()
        first = asyncio.ensure_future(tier.folders.sync(folder))
        while tier.folders.flights == 0:
            await asyncio.sleep(0)
        second = asyncio.ensure_future(tier.folders.sync(folder))
        third = asyncio.ensure_future(tier.folders.sync(folder))
        await asyncio.sleep(0)
        disk.gate.set()
        await asyncio.gather(first, second, third)
        assert tier.folders.flights == 2

    run(FileTier("t", tmp_path, fsync=disk.fsync), body)


@pytest.mark.parametrize("part", [".part", "folder"])
@pytest.mark.parametrize(("code", "kind"), [(errno.EIO, TierError), (errno.ENOSPC, TierFull), (errno.EDQUOT, TierFull)])
def test_an_fsync_error_is_final(tmp_path: Path, part: str, code: int, kind: type[TierError]) -> None:
    disk = Disk()
    broken: list[str] = []

    def fail(path: str) -> OSError | None:
        hit = path.endswith(".part") if part == ".part" else len(Path(path).name) == 2
        if hit and not broken:  # once: a second fsync would succeed, and mean nothing
            broken.append(path)
            return OSError(code, os.strerror(code))
        return None

    async def body(tier: FileTier) -> None:
        disk.fail = fail
        blob = uuid4()
        sink = await tier.begin(blob)
        sink.write(b"lost")
        with pytest.raises(kind):
            await sink.commit()
        assert broken
        with pytest.raises(BlobNotFound):
            await tier.stat(blob)
        assert [name async for name in tier.names()] == []
        with pytest.raises(TierError):
            await sink.commit()

    run(FileTier("t", tmp_path, fsync=disk.fsync), body)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (errno.ENOSPC, TierFull),
        (errno.EDQUOT, TierFull),
        (errno.EROFS, TierReadOnly),
        (errno.EACCES, TierUnavailable),
        (errno.EIO, TierError),
    ],
)
def test_what_write_and_begin_raise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[TierError]
) -> None:
    def fail(*_: object, **__: object) -> int:
        raise OSError(code, os.strerror(code))

    async def body(tier: FileTier) -> None:
        sink = await tier.begin(uuid4())
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", fail)
            with pytest.raises(kind) as caught:
                sink.write(b"x")
            assert type(caught.value) is kind
            assert str(tmp_path) not in str(caught.value)
        await sink.abort()
        with monkeypatch.context() as patch:
            patch.setattr(os, "open", fail)
            with pytest.raises(kind):
                await tier.begin(uuid4())

    run(FileTier("t", tmp_path), body)


def test_a_full_disk_of_bytes_or_inodes_shows_in_probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B217: inodes may run out first."""

    async def body(tier: FileTier) -> None:
        await tier.probe()
        real = os.statvfs(tmp_path)
        for field, word in ((4, "bytes"), (7, "inodes")):
            values = list(real)
            values[field] = 0
            monkeypatch.setattr(os, "statvfs", lambda _, values=values: os.statvfs_result(values))
            with pytest.raises(TierFull, match=word):
                await tier.probe()

    run(FileTier("t", tmp_path), body)


def test_a_mount_that_is_away_is_no_missing_blob(tmp_path: Path) -> None:
    async def body(tier: FileTier) -> None:
        blob = await write(tier)
        tier.root.rename(tmp_path / "elsewhere")
        tier.root.mkdir()  # what lies below a mount point
        for call in (tier.open, tier.stat, tier.delete, tier.readable, tier.begin):
            with pytest.raises(TierUnavailable):
                await call(blob)
        with pytest.raises(TierUnavailable):
            await tier.probe()
        with pytest.raises(TierUnavailable):
            assert [name async for name in tier.names()] == []
        assert list(tier.root.iterdir()) == []
        tier.root.rmdir()
        (tmp_path / "elsewhere").rename(tier.root)
        assert (await tier.stat(blob)).size == 4

    run(FileTier("t", tmp_path / "mount"), body)


def test_a_folder_somebody_removed_is_made_again(tmp_path: Path) -> None:
    async def body(tier: FileTier) -> None:
        blob = uuid4()
        (tmp_path / blob.hex[:2]).rmdir()
        await write(tier, blob=blob)
        assert (await tier.stat(blob)).size == 4

    run(FileTier("t", tmp_path), body)


def test_a_file_that_shrinks_under_a_reader_is_corrupt(tmp_path: Path) -> None:
    async def body(tier: FileTier) -> None:
        blob = await write(tier, bytes(3 * MIB))
        reader = await tier.open(blob)
        os.truncate(tier.path(blob), 2 * MIB + 5)
        got = 0
        with pytest.raises(BlobCorrupt):
            async for chunk in reader:
                got += len(chunk)
        assert got == 2 * MIB + 5
        await reader.close()

    run(FileTier("t", tmp_path), body)


def test_descriptors_may_be_used_directly(tmp_path: Path) -> None:
    async def body(tier: FileTier) -> None:
        blob = uuid4()
        sink = await tier.begin(blob)
        assert sink.fd is not None
        sink.write(b"through write, ")
        os.write(sink.fd, b"and past it")
        assert (await sink.commit()).size == 26
        assert sink.fd is None
        reader = await tier.open(blob, ByteSpan(15, 3))
        assert reader.fd is not None
        assert os.pread(reader.fd, reader.length, reader.position) == b"and"
        await reader.close()
        assert reader.fd is None

    run(FileTier("t", tmp_path), body)


def test_one_writer_a_blob(tmp_path: Path) -> None:
    async def body(tier: FileTier) -> None:
        blob = uuid4()
        sink = await tier.begin(blob)
        with pytest.raises(TierError):
            await tier.begin(blob)
        await sink.abort()
        await write(tier, blob=blob)

    run(FileTier("t", tmp_path), body)


def test_cancelled_calls_leave_no_descriptor_and_no_file(tmp_path: Path) -> None:
    async def body(tier: FileTier) -> None:
        blob = await write(tier)
        await asyncio.gather(*(tier.stat(blob) for _ in range(16)))  # the threads exist
        before = set(os.listdir("/proc/self/fd"))
        tasks: list[asyncio.Future[Any]] = [asyncio.ensure_future(tier.begin(uuid4())) for _ in range(20)]
        tasks += [asyncio.ensure_future(tier.open(blob)) for _ in range(20)]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await asyncio.gather(*(tier.stat(blob) for _ in range(32)))  # the cancelled jobs stood before these

        async def settled() -> None:
            while set(os.listdir("/proc/self/fd")) - before:
                await asyncio.sleep(0)

        await asyncio.wait_for(settled(), 10)
        assert [name async for name in tier.names()] == [blob]

    run(FileTier("t", tmp_path), body)


# --- the archive ---------------------------------------------------------------------------------------------------


def archive(root: Path, clock: Clock) -> FileTier:
    return FileTier("a", root, archive=True, delay=60.0, day=100.0, clock=clock)


def test_a_restore_is_pending_then_readable_then_over(tmp_path: Path) -> None:
    clock = Clock()
    start = clock.now

    async def body(tier: FileTier) -> None:
        blob = await write(tier)
        await tier.restore(blob, 2, Speed.STANDARD)
        assert (await tier.readable(blob)).state is Readable.PENDING
        with pytest.raises(BlobArchived):
            await tier.open(blob)
        clock.now = start + 60
        state = await tier.readable(blob)
        assert state.state is Readable.READABLE
        assert state.until == datetime.fromtimestamp(start + 260, UTC)
        clock.now = start + 259
        await (await tier.open(blob)).close()
        clock.now = start + 260
        assert (await tier.readable(blob)).state is Readable.ARCHIVED
        with pytest.raises(BlobArchived):
            await tier.open(blob)
        await tier.restore(blob, 1, Speed.STANDARD)
        assert (await tier.readable(blob)).state is Readable.PENDING

    run(archive(tmp_path, clock), body)


def test_a_repeated_request_neither_delays_nor_shortens(tmp_path: Path) -> None:
    clock = Clock()
    start = clock.now

    async def body(tier: FileTier) -> None:
        blob = await write(tier)
        await tier.restore(blob, 5, Speed.STANDARD)
        clock.now = start + 30
        await tier.restore(blob, 1, Speed.STANDARD)
        clock.now = start + 60
        assert (await tier.readable(blob)).until == datetime.fromtimestamp(start + 560, UTC)
        await tier.restore(blob, 1, Speed.STANDARD)
        assert (await tier.readable(blob)).until == datetime.fromtimestamp(start + 560, UTC)
        await tier.restore(blob, 9, Speed.STANDARD)
        assert (await tier.readable(blob)).until == datetime.fromtimestamp(start + 960, UTC)

    run(archive(tmp_path, clock), body)


def test_two_processes_extending_at_once_keep_the_longest(tmp_path: Path) -> None:
    record = tmp_path / "r.restore"
    restores.request(record, 0.0, 1.0, 10.0, durable=False)
    workers = [
        threading.Thread(target=restores.request, args=(record, 5.0, 1.0, float(period), False))
        for period in (20, 500, 30, 40, 100, 60)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert restores.read(record) == restores.Restore(1.0, 505.0)


def test_a_torn_record_counts_as_none(tmp_path: Path) -> None:
    clock = Clock()

    async def body(tier: FileTier) -> None:
        blob = await write(tier)
        (tmp_path / blob.hex[:2] / f"{blob.hex}.restore").write_bytes(b'{"ready": 12')
        assert (await tier.readable(blob)).state is Readable.ARCHIVED
        await tier.restore(blob, 1, Speed.STANDARD)
        assert (await tier.readable(blob)).state is Readable.PENDING

    run(archive(tmp_path, clock), body)


def test_a_record_left_behind_by_a_crash_is_found_and_deleted(tmp_path: Path) -> None:
    async def body(tier: FileTier) -> None:
        blob = await write(tier)
        await tier.restore(blob, 1, Speed.STANDARD)
        tier.path(blob).unlink()
        assert [name async for name in tier.names()] == [blob]
        await tier.delete(blob)
        assert [name async for name in tier.names()] == []

    run(archive(tmp_path, Clock()), body)
