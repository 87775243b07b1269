"""A PostgreSQL for the whole test session, and a fresh, migrated database for every test that asks.

One cluster is shared by all xdist workers: whoever needs it first starts it, the controller stops it at the end. It
runs without fsync: tests kill our processes, never the machine.

Fixtures: ``dsn`` (one database for one test), ``worker_dsn`` (one for all tests of a worker; tests must not assume it
empty), ``empty_dsn`` (nothing migrated), ``new_database`` (a factory, for two servers or none).
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from gateway.cli.embedded import EmbeddedPostgres, layout, stop_cluster

ROOT_VARIABLE = "SLUICETEST_ROOT"  # the session's folder, handed down to xdist workers by the environment
MIGRATIONS = Path(__file__).parent.parent / "migrations"
TEMPLATE = "sluice_template"
FAST = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "on", "max_connections": "500",
        "shared_buffers": "128MB", "autovacuum_naptime": "60s", "log_min_messages": "error"}  # fmt: skip


def session_root() -> Path:
    """The folder of this test session, made by the process that asks first (the controller, see conftest)."""
    root = os.environ.get(ROOT_VARIABLE)
    if root is None:
        root = tempfile.mkdtemp(prefix="sluice-test-")
        Path(root).chmod(0o711)  # the database's own user passes through when we are root
        os.environ[ROOT_VARIABLE] = root
    return Path(root)


def end_session() -> None:
    """Stop the cluster, if one was started, and remove the folder. For the controller."""
    root = os.environ.pop(ROOT_VARIABLE, None)
    if root is None:
        return
    if (Path(root) / "pg" / "postgres" / "cluster").exists():
        stop_cluster(layout(Path(root) / "pg"))
    shutil.rmtree(root, ignore_errors=True)


@contextmanager
def _exclusive(name: str) -> Iterator[None]:
    with (session_root() / name).open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def address(database: str) -> str:
    """The address of a database of the session's cluster, which is started when it does not run."""
    with _exclusive("pg.lock"):
        note = session_root() / "pg.json"
        if not note.exists():
            home = session_root() / "pg"
            home.mkdir(exist_ok=True)
            server = EmbeddedPostgres(home, FAST, die_with_parent=False)
            server.start()
            note.write_text(json.dumps({"socket": str(server.layout.socket)}))
        socket = json.loads(note.read_text())["socket"]
    return f"postgresql://sluice@/{database}?host={socket}"


async def apply_migrations(dsn: str) -> None:
    """Bring a database to the current schema, by the product's own code."""
    from gateway.db.migrate import migrate

    await migrate(dsn)


def _run(work: Coroutine[Any, Any, None]) -> None:
    """Also where the caller is inside a running loop: in a thread of its own."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, work).result()


async def _execute(dsn: str, statement: str) -> None:
    conn = await asyncpg.connect(dsn)
    try:
        await conn.execute(statement)
    finally:
        await conn.close()


def _template() -> str:
    """The migrated database that the others are copies of. Made once a session."""
    server = address("postgres")
    with _exclusive("template.lock"):
        done = session_root() / "template.done"
        if not done.exists():
            _run(_execute(server, f"CREATE DATABASE {TEMPLATE}"))
            _run(apply_migrations(address(TEMPLATE)))
            done.touch()
    return TEMPLATE


def create_database(migrated: bool = True) -> str:
    """A new database; returns its address. The lock: a template may not be in use while it is copied."""
    name = f"t_{uuid.uuid4().hex[:20]}"
    source = _template() if migrated else "template0"
    with _exclusive("create.lock"):
        _run(_execute(address("postgres"), f"CREATE DATABASE {name} TEMPLATE {source}"))
    return address(name)


def drop_database(dsn: str) -> None:
    name = dsn.partition("@/")[2].partition("?")[0]
    _run(_execute(address("postgres"), f"DROP DATABASE IF EXISTS {name} WITH (FORCE)"))


@pytest.fixture
def dsn() -> Iterator[str]:
    made = create_database()
    yield made
    drop_database(made)


@pytest.fixture(scope="session")
def worker_dsn() -> Iterator[str]:
    made = create_database()
    yield made
    drop_database(made)


@pytest.fixture
def empty_dsn() -> Iterator[str]:
    made = create_database(migrated=False)
    yield made
    drop_database(made)


@pytest.fixture
def new_database() -> Iterator[Callable[[], str]]:
    made: list[str] = []

    def make() -> str:
        made.append(create_database())
        return made[-1]

    yield make
    for each in made:
        drop_database(each)
