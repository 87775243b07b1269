"""Which blob folder and which master key belong to this database. A foreign one is refused before it does harm."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from uuid import UUID, uuid4

from processing.ports import Conn

MARK = "installation"  # file in the blob folder that names the database it belongs to


class ForeignInstallation(Exception):
    """Database, blob folder and master key do not belong together; the text says which, and what to do."""


async def check_installation(conn: Conn, blob_dir: Path, fingerprint: str) -> UUID:
    """Bind an empty database to this folder and key, or see that they are the ones it was bound to.

    Returns the installation's id. Raises ForeignInstallation. Processes that start together agree: the row decides.
    """
    marked = _read_mark(blob_dir / MARK)
    async with conn.transaction():
        await conn.execute("LOCK TABLE installation IN SHARE ROW EXCLUSIVE MODE")
        row = await conn.fetchrow("SELECT id, key_fingerprint FROM installation")
        if row is None:
            if marked is not None:
                raise ForeignInstallation(
                    f"The blob folder {blob_dir} belongs to another database (installation {marked}), and this "
                    "database is empty. Point DATABASE_URL at its own one, or use an empty folder (SLUICE_BLOB_DIR)."
                )
            row = await conn.fetchrow(
                "INSERT INTO installation (id, key_fingerprint) VALUES ($1, $2) RETURNING id, key_fingerprint",
                uuid4(),
                fingerprint,
            )
            assert row is not None
        installation: UUID = UUID(str(row["id"]))
        if row["key_fingerprint"] != fingerprint:
            raise ForeignInstallation(
                "The master key is not the one this database was set up with: its stored secrets could not be opened. "
                f"Set SLUICE_MASTER_KEY or SLUICE_MASTER_KEY_FILE to that key (by default {blob_dir}/master.key of the "
                "first instance)."
            )
        if marked is None:
            await _adopt(conn, blob_dir, installation)
        elif marked != installation:
            raise ForeignInstallation(
                f"The blob folder {blob_dir} belongs to another database (installation {marked}, this one is "
                f"{installation}). Set SLUICE_BLOB_DIR or DATABASE_URL so that they fit."
            )
    return installation


async def _adopt(conn: Conn, blob_dir: Path, installation: UUID) -> None:
    """Mark a folder as this database's, unless the database knows blobs that would have to lie in it."""
    known = await conn.fetchval("SELECT EXISTS (SELECT FROM blob WHERE state = 2 AND tier <> 'inline')")
    if known:
        raise ForeignInstallation(
            f"The blob folder {blob_dir} is not marked as this database's (file {MARK}), yet the database has blobs. "
            f"Is the volume mounted? If the folder is right, write the line {installation} into {blob_dir / MARK}."
        )
    blob_dir.mkdir(parents=True, exist_ok=True)
    fresh = blob_dir / f".{MARK}.{os.getpid()}"
    fresh.write_text(f"{installation}\n")
    with contextlib.suppress(FileExistsError):  # another instance of the same database was quicker
        os.link(fresh, blob_dir / MARK)
    fresh.unlink()


def _read_mark(path: Path) -> UUID | None:
    try:
        text = path.read_text().strip()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ForeignInstallation(f"{path} cannot be read: {error.strerror}.") from error
    try:
        return UUID(text)
    except ValueError as error:
        raise ForeignInstallation(f"{path} does not name an installation.") from error
