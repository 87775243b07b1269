"""What has to be right before the first process serves: database, schema, key ring, blob folder, root credentials."""

from __future__ import annotations

import asyncio
import configparser
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import asyncpg

from gateway.cli.embedded import EmbeddedPostgres
from gateway.cli.exits import CommandError, Exit
from gateway.db.errors import DatabaseError
from gateway.db.identities import Identities, new_access_key, new_secret
from gateway.db.installation import ForeignInstallation, check_installation
from gateway.db.migrate import MigrationError, migrate
from gateway.db.pool import open_pool
from gateway.keys.ring import KeyRing, KeyRingError, load_ring
from gateway.settings import Settings

CONNECT_PATIENCE = 15.0  # seconds


@dataclass(frozen=True, slots=True)
class Prepared:
    """overlay: settings found out here, that the serving processes need. fresh: the secret was made just now."""

    overlay: Mapping[str, str]
    access_key: str
    secret_key: str
    fresh: bool
    migrations: tuple[str, ...]


def credentials_path(settings: Settings) -> Path:
    return settings.data_dir / "credentials"


def ring_of(settings: Settings) -> KeyRing:
    """Raises CommandError."""
    try:
        return load_ring(settings.master_key, settings.blobs / "master.key")
    except KeyRingError as error:
        raise CommandError(Exit.CONFIG, str(error)) from error


def folders(settings: Settings) -> None:
    """The folders everything else lies in. Raises CommandError."""
    try:
        for folder, mode in ((settings.data_dir, 0o711), (settings.run_dir, 0o700), (settings.blobs, 0o700)):
            folder.mkdir(parents=True, exist_ok=True, mode=mode)
        probe = settings.run_dir / f".probe-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise CommandError(Exit.CONFIG, f"The folder {error.filename} cannot be used: {error.strerror}.") from error


def database(settings: Settings) -> tuple[str, EmbeddedPostgres | None]:
    """The address of the database to use, and the embedded server if that is it: it has been started then."""
    if settings.database_url is not None:
        return settings.database_url, None
    server = EmbeddedPostgres(settings.data_dir)
    return server.start(), server


def prepare(settings: Settings, dsn: str) -> Prepared:
    """Raises CommandError: the database cannot be used, or something does not belong to it."""
    return asyncio.run(_prepare(settings, dsn))


async def _prepare(settings: Settings, dsn: str) -> Prepared:
    try:
        async with asyncio.timeout(CONNECT_PATIENCE):
            await (await asyncpg.connect(dsn)).close()
    except (OSError, ValueError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        where = "DATABASE_URL" if settings.database_url is not None else "the embedded database"
        raise CommandError(
            Exit.UNAVAILABLE, f"The database ({where}) cannot be used: {error or type(error).__name__}."
        ) from error
    try:
        direct = settings.listen_url or dsn  # not through a pooler: each of these is a session
        done = await migrate(direct)
        ring = ring_of(settings)
        pool = await open_pool(direct, 2)
        try:
            async with pool.acquire() as conn:
                await check_installation(conn, settings.blobs, ring.fingerprint)
            access_key, secret_key, fresh = root_credentials(settings)
            await Identities(pool, ring).ensure_root(access_key, secret_key)
        finally:
            await pool.close()
    except (MigrationError, ForeignInstallation, DatabaseError, KeyRingError) as error:
        raise CommandError(Exit.CONFIG, str(error) or type(error).__name__) from error
    write_credentials(settings, access_key, secret_key)
    overlay = {"database_url": dsn, "root_access_key": access_key, "root_secret_key": secret_key}
    return Prepared(overlay, access_key, secret_key, fresh, tuple(done))


def root_credentials(settings: Settings) -> tuple[str, str, bool]:
    """As configured, else as kept from an earlier start, else new ones (True)."""
    if settings.root_access_key is not None and settings.root_secret_key is not None:
        return settings.root_access_key, settings.root_secret_key, False
    kept = read_credentials(settings)
    if kept is not None:
        return *kept, False
    return new_access_key(), new_secret(), True


def read_credentials(settings: Settings) -> tuple[str, str] | None:
    parser = configparser.RawConfigParser()
    try:
        parser.read_string(credentials_path(settings).read_text())
        return parser["default"]["aws_access_key_id"], parser["default"]["aws_secret_access_key"]
    except (OSError, KeyError, configparser.Error):
        return None


def write_credentials(settings: Settings, access_key: str, secret_key: str) -> None:
    """In the format of AWS_SHARED_CREDENTIALS_FILE, readable by the owner alone."""
    path = credentials_path(settings)
    fresh = path.with_name(".credentials.new")
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(f"[default]\naws_access_key_id = {access_key}\naws_secret_access_key = {secret_key}\n")
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
