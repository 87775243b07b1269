"""Forward-only schema migrations: numbered SQL files, each applied once, in order."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import asyncpg

from processing.ports import Conn

LOCK = 0x736C7569  # "slui": one advisory lock a database, so that processes that start together do not race
OLDEST_SERVER = 150000
_NAME = re.compile(r"(\d{4})_\w+\.sql")


class MigrationError(Exception):
    """The database cannot be used as it is; the text says why, for an operator."""


@dataclass(frozen=True, slots=True)
class Migration:
    version: int
    name: str
    path: Path


def find(folder: Path | None = None) -> list[Migration]:
    """The migrations this release knows, in order: inside the installed package, or next to the source."""
    found = []
    for path in sorted((folder or _folder()).glob("*.sql")):
        match = _NAME.fullmatch(path.name)
        if match is None:
            raise MigrationError(f"{path} is not named like 0001_what.sql")
        found.append(Migration(int(match[1]), path.stem, path))
    if not found:
        raise MigrationError("no migrations found: this installation is incomplete")
    if len({m.version for m in found}) != len(found):
        raise MigrationError("two migrations have the same number")
    return found


async def pending(conn: Conn, folder: Path | None = None) -> list[str]:
    """Names of the migrations that this database still lacks. Raises MigrationError when it is newer than we are."""
    return [m.name for m in await _missing(conn, find(folder))]


async def migrate(dsn: str, folder: Path | None = None) -> list[str]:
    """Bring a database up to date, and say which migrations that took (none: it was).

    Each runs in a transaction of its own under one lock, so any number of processes may call this at once.
    Raises MigrationError when the server or the database does not fit.
    """
    known = find(folder)
    applied: list[str] = []
    conn = await asyncpg.connect(dsn, statement_cache_size=0)
    try:
        await _check_server(conn)
        while True:
            async with conn.transaction():
                await conn.execute("SELECT pg_advisory_xact_lock($1)", LOCK)
                await conn.execute(
                    "CREATE TABLE IF NOT EXISTS schema_migration ("
                    "version integer PRIMARY KEY, name text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now())"
                )
                missing = await _missing(conn, known)
                if not missing:
                    return applied
                step = missing[0]
                await conn.execute(step.path.read_text("utf-8"))
                await conn.execute(
                    "INSERT INTO schema_migration (version, name) VALUES ($1, $2)", step.version, step.name
                )
            applied.append(step.name)
    finally:
        await conn.close()


async def _missing(conn: Conn, known: list[Migration]) -> list[Migration]:
    if await conn.fetchval("SELECT to_regclass('schema_migration')") is None:
        return known
    rows = await conn.fetch("SELECT version, name FROM schema_migration ORDER BY version")
    done = {row["version"]: row["name"] for row in rows}
    unknown = [name for version, name in done.items() if version not in {m.version for m in known}]
    if unknown:
        raise MigrationError(
            f"this database was migrated by a newer release (it has {unknown[-1]}, this release ends at "
            f"{known[-1].name}): run that release or a later one; migrations only go forward"
        )
    return [m for m in known if m.version not in done]


async def _check_server(conn: asyncpg.Connection) -> None:
    row = await conn.fetchrow(
        "SELECT current_setting('server_version_num')::int AS version, current_setting('server_version') AS text,"
        " current_setting('server_encoding') AS encoding"
    )
    assert row is not None
    if row["version"] < OLDEST_SERVER:
        raise MigrationError(f"PostgreSQL 15 or newer is needed, this server is {row['text']}")
    if row["encoding"] != "UTF8":
        raise MigrationError(f"the database must be encoded in UTF8, this one is in {row['encoding']}")


def _folder() -> Path:
    here = Path(__file__).resolve().parent
    inside, beside = here.parent / "migrations", here.parent.parent / "migrations"
    return inside if inside.is_dir() else beside
