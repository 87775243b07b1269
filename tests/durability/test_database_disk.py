"""The embedded database's disk is full: writes are refused, the server itself gives up, and comes back with space."""

from __future__ import annotations

import os
import secrets
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import asyncpg
import pytest

from gateway.cli.embedded import running_dsn
from tests.durability.outage import QUICK, Clients, ask, folder_of_its_own, session
from tests.server import Server, make_server

SIZE = "160m"  # a new cluster takes about 60 MB
GAVE_UP = "the embedded database ended"
USE_UP = """DO $$ BEGIN
    FOR i IN 1..50 LOOP
        PERFORM pg_logical_emit_message(true, 'x', 'x');
        PERFORM pg_switch_wal();
    END LOOP;
END $$"""


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[None]:
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small file system")
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if done.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Take all that is free of a file system."""
    filler = folder / "filler"
    with filler.open("ab") as file:
        for piece in (1 << 20, 4096):
            try:
                while True:
                    os.write(file.fileno(), bytes(piece))
            except OSError:
                continue
    return filler


@contextmanager
def service(folder: Path) -> Iterator[tuple[Server, Path]]:
    server = make_server(folder, QUICK, workers=2)
    home = server.data_dir / "postgres"
    home.mkdir()
    with small_disk(home, SIZE):
        try:
            yield server.start(), home
        finally:
            server.stop()


def test_no_space_for_the_database() -> None:
    with folder_of_its_own() as folder, service(folder) as (server, home):
        serving = {each.pid for each in server.children()}
        clients = Clients(server, f"b-{secrets.token_hex(6)}")
        with clients.at_work():
            dsn = running_dsn(server.data_dir)
            assert dsn is not None
            lost = suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError)
            # The write-ahead log needs a new segment and there is no room: PostgreSQL's answer is a panic, a recovery
            # that needs room as well, and the end. Old segments are used up first, faster than a checkpoint recycles
            # them, and by a session from before: a new one may find no room for its cache.
            with session(dsn) as call:
                filler = fill(home)
                clients.refused()
                with lost:
                    call(USE_UP)
            end = time.monotonic() + 60
            while not any(str(line.get("event", "")).startswith(GAVE_UP) for line in server.logs()):
                assert time.monotonic() < end, server.tail()
                with lost:
                    ask(dsn, USE_UP)
            server.wait_log(lambda line: str(line.get("event", "")).startswith(GAVE_UP), 30)
            clients.refused()
            filler.unlink()
            clients.more()
        clients.check()
        assert {each.pid for each in server.children()} == serving
