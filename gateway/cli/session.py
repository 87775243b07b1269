"""A command's way to the database: the configured one, that of a running service, or the embedded one for a moment."""

from __future__ import annotations

import asyncio
import getpass
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import asyncpg

from gateway.cli.embedded import DataDirBusy, DirectoryLock, EmbeddedError, EmbeddedPostgres, running_dsn
from gateway.cli.exits import CommandError, Exit
from gateway.cli.prepare import folders, ring_of
from gateway.db.migrate import MigrationError, migrate, pending
from gateway.db.pool import open_pool
from gateway.domain.objects import Bucket
from gateway.keys.ring import KeyRing, KeyRingError
from gateway.settings import Settings

if TYPE_CHECKING:
    from gateway.core import Core

T = TypeVar("T")
HINTS = 0.1  # seconds in which word of what was done reaches the running processes


@dataclass(frozen=True, slots=True)
class Session:
    settings: Settings
    dsn: str
    pool: asyncpg.Pool
    ring: KeyRing


def with_database(settings: Settings, work: Callable[[Session], Awaitable[T]]) -> T:
    """Run work with a connection to the service's database. Raises CommandError."""
    folders(settings)
    dsn, end = find_database(settings)
    try:
        return asyncio.run(_run(settings, dsn, work))
    finally:
        end()


def find_database(settings: Settings) -> tuple[str, Callable[[], None]]:
    """The address (of the database itself, where there is a pooler), and what to call when done with it.

    Raises CommandError.
    """
    if settings.database_url is not None:
        return settings.listen_url or settings.database_url, lambda: None
    lock = DirectoryLock(settings.data_dir)
    try:
        lock.acquire()
    except DataDirBusy:
        dsn = running_dsn(settings.data_dir)
        if dsn is None:
            raise CommandError(
                Exit.UNAVAILABLE, f"The service on {settings.data_dir} is starting or stopping; try again."
            ) from None
        return dsn, lambda: None
    try:
        server = EmbeddedPostgres(settings.data_dir)
        dsn = server.start()
        asyncio.run(migrate(dsn))
    except (EmbeddedError, MigrationError) as error:
        lock.release()
        raise CommandError(Exit.UNAVAILABLE, str(error)) from error

    def end() -> None:
        server.stop()
        lock.release()

    return dsn, end


async def _run(settings: Settings, dsn: str, work: Callable[[Session], Awaitable[T]]) -> T:
    async with connected(dsn) as pool:
        return await work(Session(settings, dsn, pool, ring_of(settings)))


@asynccontextmanager
async def connected(dsn: str) -> AsyncIterator[asyncpg.Pool]:
    """A small pool on a migrated database. Raises CommandError."""
    try:
        pool = await open_pool(dsn, 4)
    except (OSError, ValueError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise CommandError(Exit.UNAVAILABLE, f"The database cannot be used: {error}.") from error
    try:
        async with pool.acquire() as conn:
            missing = await pending(conn)
        if missing:
            raise CommandError(Exit.CONFIG, f"The database lacks migrations ({', '.join(missing)}): sluice migrate.")
        yield pool
    except MigrationError as error:
        raise CommandError(Exit.CONFIG, str(error)) from error
    finally:
        await pool.close()


def with_core(settings: Settings, work: Callable[[Core], Awaitable[T]]) -> T:
    """Run work with everything the service has but ports: for what operators do to runs and versions.

    No run is executed in this process. Raises CommandError.
    """
    from gateway.telemetry import logs

    logs.configure("warning", settings.log_format)  # to standard error: standard output is for data
    folders(settings)
    dsn, end = find_database(settings)
    try:
        return asyncio.run(_run_core(settings.replace(database_url=dsn, pool_size=4), work))
    finally:
        end()


async def _run_core(settings: Settings, work: Callable[[Core], Awaitable[T]]) -> T:
    from gateway.core import build
    from gateway.policy import PolicyError

    assert settings.database_url is not None
    async with connected(settings.database_url):
        pass  # says what is wrong with the database
    try:
        async with AsyncExitStack() as stack:
            core = await build(settings, stack, claims=False)
            done = await work(core)
            await asyncio.sleep(HINTS)
            return done
    except (PolicyError, KeyRingError) as error:
        raise CommandError(Exit.CONFIG, str(error)) from error


async def bucket_of(core: Core, name: str) -> Bucket:
    """Raises CommandError."""
    bucket = await core.services.buckets.get(name, fresh=True)
    if bucket is None:
        raise CommandError(Exit.NOT_FOUND, f"There is no bucket {name}.")
    return bucket


def who() -> str:
    """Who does this, for the audit trail."""
    return f"cli:{getpass.getuser()}"
