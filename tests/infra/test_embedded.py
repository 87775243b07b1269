"""The embedded PostgreSQL: where it lies, whom it outlives, whom it refuses."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from gateway.cli.embedded import (
    SOCKET_LIMIT,
    SOCKET_NAME,
    DataDirBusy,
    DirectoryLock,
    EmbeddedError,
    EmbeddedPostgres,
    running_dsn,
    stop_cluster,
)
from tests import pg


@pytest.fixture
def folder() -> Iterator[Path]:
    """A data directory that the database's own user can reach."""
    with tempfile.TemporaryDirectory(prefix="e-", dir=pg.session_root()) as name:
        Path(name).chmod(0o711)
        yield Path(name)


def ask(dsn: str, question: str) -> object:
    async def main() -> object:
        conn = await asyncpg.connect(dsn)
        try:
            return await conn.fetchval(question)
        finally:
            await conn.close()

    return asyncio.run(main())


def test_it_is_durable_and_only_on_a_socket(folder: Path) -> None:
    server = EmbeddedPostgres(folder)
    dsn = server.start()
    try:
        for name, value in (("fsync", "on"), ("synchronous_commit", "on"), ("full_page_writes", "on")):
            assert ask(dsn, f"SHOW {name}") == value
        assert ask(dsn, "SHOW listen_addresses") == ""
        assert ask(dsn, "SHOW data_checksums") == "on"
        assert ask(dsn, "SHOW server_encoding") == "UTF8"
        assert running_dsn(folder) == dsn
        assert server.layout.socket.stat().st_mode & 0o077 == 0
    finally:
        server.stop()
    assert running_dsn(folder) is None


def test_data_survives_a_killed_server_and_one_left_running_is_stopped_first(folder: Path) -> None:
    first = EmbeddedPostgres(folder)
    dsn = first.start()
    ask(dsn, "CREATE TABLE kept AS SELECT 1 AS a")
    assert first.process is not None
    os.kill(first.process.pid, signal.SIGKILL)
    first.process.wait()
    second = EmbeddedPostgres(folder, die_with_parent=False)
    assert ask(second.start(), "SELECT a FROM kept") == 1
    assert second.process is not None
    left = second.process.pid
    third = EmbeddedPostgres(folder)
    try:
        assert ask(third.start(), "SELECT a FROM kept") == 1
        assert third.process is not None
        assert third.process.pid != left
        second.process.wait(10)
    finally:
        third.stop()


def test_a_stale_pid_file_that_names_another_process_does_not_matter(folder: Path) -> None:
    server = EmbeddedPostgres(folder)
    server.start()
    server.stop()
    (server.layout.cluster / "postmaster.pid").write_text(f"{os.getpid()}\n{server.layout.cluster}\n")
    server.start()
    server.stop()


def test_a_long_path_has_its_socket_elsewhere(folder: Path) -> None:
    deep = folder / ("d" * 60) / ("e" * 60)
    deep.mkdir(parents=True)
    server = EmbeddedPostgres(deep)
    dsn = server.start()
    try:
        assert len(os.fsencode(server.layout.socket / SOCKET_NAME)) <= SOCKET_LIMIT
        assert ask(dsn, "SELECT 1") == 1
        assert running_dsn(deep) == dsn
    finally:
        server.stop()


def test_a_folder_its_user_cannot_reach(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As root: below a private folder, as /root is one. For an ordinary user there is nothing special about it."""
    outside = folder / "outside"
    outside.mkdir()
    monkeypatch.setattr("gateway.cli.embedded.OUTSIDE", outside)
    private = folder / "private"
    private.mkdir(mode=0o700)
    data = private / "data"
    data.mkdir()
    server = EmbeddedPostgres(data)
    dsn = server.start()
    ask(dsn, "CREATE TABLE kept AS SELECT 1 AS a")
    server.stop()
    again = EmbeddedPostgres(data)
    try:
        assert ask(again.start(), "SELECT a FROM kept") == 1
        assert (data / "postgres").is_symlink() == (os.geteuid() == 0)
        assert private.stat().st_mode & 0o777 == 0o700, "no parent folder is opened"
    finally:
        again.stop()


def test_half_a_creation_is_begun_anew(folder: Path) -> None:
    server = EmbeddedPostgres(folder)
    (server.layout.home / "cluster.new" / "base").mkdir(parents=True)
    server.start()
    server.stop()


def test_a_cluster_of_another_version_is_refused(folder: Path) -> None:
    server = EmbeddedPostgres(folder)
    server.layout.cluster.mkdir()
    (server.layout.cluster / "PG_VERSION").write_text("9\n")
    with pytest.raises(EmbeddedError, match="made by PostgreSQL 9"):
        server.start()


def test_one_owner(folder: Path) -> None:
    lock = DirectoryLock(folder)
    lock.acquire()
    with pytest.raises(DataDirBusy, match=str(os.getpid())):
        DirectoryLock(folder).acquire()
    lock.release()
    second = DirectoryLock(folder)
    second.acquire()
    second.release()


def test_the_lock_goes_with_its_process(folder: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from gateway.cli.embedded import DirectoryLock;"
        f"lock = DirectoryLock(Path({str(folder)!r})); lock.acquire(); print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    with pytest.raises(DataDirBusy, match=str(holder.pid)):
        DirectoryLock(folder).acquire()
    holder.kill()
    holder.wait()
    lock = DirectoryLock(folder)
    lock.acquire()
    lock.release()


def test_stopping_what_does_not_run_is_nothing(folder: Path) -> None:
    stop_cluster(EmbeddedPostgres(folder).layout)
