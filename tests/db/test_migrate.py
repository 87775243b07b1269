"""Migrations: each once, in order, by any number of processes at a time, and never backwards."""

from __future__ import annotations

import asyncio
from pathlib import Path

import asyncpg
import pytest

from gateway.db import migrate as module
from gateway.db.migrate import MigrationError, find, migrate, pending


def folder(path: Path, **files: str) -> Path:
    path.mkdir(exist_ok=True)
    for name, sql in files.items():
        (path / f"{name[1:]}.sql").write_text(sql)
    return path


async def ask(dsn: str, query: str) -> object:
    conn = await asyncpg.connect(dsn)
    try:
        return await conn.fetchval(query)
    finally:
        await conn.close()


async def missing(dsn: str, path: Path | None = None) -> list[str]:
    conn = await asyncpg.connect(dsn)
    try:
        return await pending(conn, path)
    finally:
        await conn.close()


def test_the_shipped_migrations_apply_once(empty_dsn: str) -> None:
    async def main() -> None:
        names = [m.name for m in find()]
        assert names[0] == "0001_gateway"
        assert await missing(empty_dsn) == names
        assert await migrate(empty_dsn) == names
        assert await migrate(empty_dsn) == []
        assert await missing(empty_dsn) == []

    asyncio.run(main())


def test_processes_that_start_together_share_the_work(empty_dsn: str, tmp_path: Path) -> None:
    path = folder(
        tmp_path, _0001_a="CREATE TABLE a ()", _0002_b="CREATE TABLE b (); SELECT pg_sleep(0.05)", _0003_c="SELECT 1"
    )

    async def main() -> None:
        done = await asyncio.gather(*(migrate(empty_dsn, path) for _ in range(4)))
        assert sorted(name for names in done for name in names) == ["0001_a", "0002_b", "0003_c"]

    asyncio.run(main())


def test_a_migration_that_fails_leaves_nothing_and_keeps_what_came_before(empty_dsn: str, tmp_path: Path) -> None:
    path = folder(tmp_path, _0001_a="CREATE TABLE a ()", _0002_b="CREATE TABLE b (); SELECT 1 / 0")

    async def main() -> None:
        with pytest.raises(asyncpg.DivisionByZeroError):
            await migrate(empty_dsn, path)
        assert await missing(empty_dsn, path) == ["0002_b"]
        assert await ask(empty_dsn, "SELECT to_regclass('a') IS NOT NULL AND to_regclass('b') IS NULL")
        folder(tmp_path, _0002_b="CREATE TABLE b ()")
        assert await migrate(empty_dsn, path) == ["0002_b"]

    asyncio.run(main())


def test_a_database_of_a_newer_release_is_refused_by_name(empty_dsn: str, tmp_path: Path) -> None:
    new = folder(tmp_path / "new", _0001_a="SELECT 1", _0002_later="CREATE TABLE later ()")
    old = folder(tmp_path / "old", _0001_a="")

    async def main() -> None:
        await migrate(empty_dsn, new)
        for attempt in (migrate(empty_dsn, old), missing(empty_dsn, old)):
            with pytest.raises(MigrationError, match=r"newer release .*0002_later.*0001_a"):
                await attempt

    asyncio.run(main())


def test_a_server_that_is_too_old_is_refused(empty_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OLDEST_SERVER", 990000)
    with pytest.raises(MigrationError, match="PostgreSQL 15 or newer"):
        asyncio.run(migrate(empty_dsn))


@pytest.mark.parametrize("files", [{}, {"_1_a": ""}, {"_0001_a": "", "_0001_b": ""}])
def test_a_folder_that_makes_no_order_is_refused(tmp_path: Path, files: dict[str, str]) -> None:
    with pytest.raises(MigrationError):
        find(folder(tmp_path, **files))
