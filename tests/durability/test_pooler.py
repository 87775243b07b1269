"""PgBouncer in transaction mode between the processes and the database: few server connections for all of them, each
transaction on another one, and the pooler itself restarted under load."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import asyncpg
import pytest

from gateway.db.pool import open_pool
from tests.durability.outage import Cluster, Running, running

PROGRAM = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
SERVERS = 3  # connections to the database, fewer than any one process would like
pytestmark = pytest.mark.skipif(
    PROGRAM is None, reason="pgbouncer is not installed (Debian: apt-get install pgbouncer)"
)


class Pooler:
    def __init__(self, cluster: Cluster, folder: Path) -> None:
        lay = cluster.server.layout
        self.folder = folder / "bouncer"
        self.folder.mkdir()
        (self.folder / "users").write_text('"sluice" ""\n')
        (self.folder / "pgbouncer.ini").write_text(
            f"""[databases]
sluice = host={lay.socket} dbname=sluice user=sluice
[pgbouncer]
listen_addr =
unix_socket_dir = {self.folder}
listen_port = 6432
auth_type = trust
auth_file = {self.folder}/users
logfile = {self.folder}/log
pool_mode = transaction
default_pool_size = {SERVERS}
max_client_conn = 200
server_round_robin = 1
server_login_retry = 1
"""
        )
        self.identity = {} if lay.uid is None else {"user": lay.uid, "group": lay.gid, "extra_groups": []}
        if lay.uid is not None:
            for path in (self.folder, *self.folder.iterdir()):
                os.chown(path, lay.uid, lay.gid or -1)
        self.dsn = f"postgresql://sluice@/sluice?host={self.folder}&port=6432"
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        assert PROGRAM is not None
        (self.folder / ".s.PGSQL.6432").unlink(missing_ok=True)
        self.process = subprocess.Popen(
            [PROGRAM, "-q", str(self.folder / "pgbouncer.ini")], stdin=subprocess.DEVNULL, **self.identity
        )  # type: ignore[call-overload]

    def stop(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()


@contextmanager
def pooled() -> Iterator[tuple[Running, Pooler]]:
    poolers: list[Pooler] = []

    def between(cluster: Cluster, folder: Path) -> Mapping[str, str]:
        poolers.append(Pooler(cluster, folder))
        return {"DATABASE_URL": poolers[0].dsn, "SLUICE_LISTEN_URL": cluster.dsn, "SLUICE_POOL_SIZE": "8"}

    try:
        with running(through=between) as made:
            yield made, poolers[0]
    finally:
        for each in poolers:
            each.stop()


@pytest.fixture(scope="module")
def service() -> Iterator[tuple[Running, Pooler]]:
    with pooled() as made:
        yield made


def test_statements_keep_together_what_belongs_together(service: tuple[Running, Pooler]) -> None:
    """A statement goes out in two steps, which the pooler may give to two servers: many at once, of equal shape, and
    none may be answered by what somebody else had parsed there."""
    _, pooler = service

    async def main() -> None:
        pool = await open_pool(pooler.dsn, 16, statement_cache=False)

        async def ask(number: int) -> None:
            sign = "+" if number % 2 else "-"
            for _ in range(50):
                assert await pool.fetchval(f"SELECT $1::int {sign} 1", number) == number + (1 if number % 2 else -1)

        try:
            await asyncio.gather(*(ask(number) for number in range(16)))
            with pytest.raises(asyncpg.DivisionByZeroError):
                await pool.fetchval("SELECT 1 / $1::int", 0)
            assert await pool.fetchval("SELECT $1::int", 5) == 5
        finally:
            await pool.close()

    asyncio.run(main())


def test_everything_works_through_it(service: tuple[Running, Pooler]) -> None:
    running, _ = service
    clients = running.clients()
    with clients.at_work():
        clients.more(60)
    clients.check()
    running.settled()
    assert running.server.metrics()["sluice_listening"] == 2
    client = running.server.client()
    upload = client.create_multipart_upload(Bucket=clients.bucket, Key="m")["UploadId"]
    etag = client.upload_part(Bucket=clients.bucket, Key="m", UploadId=upload, PartNumber=1, Body=b"part")["ETag"]
    parts = {"Parts": [{"PartNumber": 1, "ETag": etag}]}
    client.complete_multipart_upload(Bucket=clients.bucket, Key="m", UploadId=upload, MultipartUpload=parts)
    client.copy_object(Bucket=clients.bucket, Key="c", CopySource=f"{clients.bucket}/m")
    client.delete_object(Bucket=clients.bucket, Key="m")
    assert client.get_object(Bucket=clients.bucket, Key="c")["Body"].read() == b"part"


def test_commands_work_beside_it(service: tuple[Running, Pooler]) -> None:
    running, _ = service
    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(lambda words: running.server.sluice(*words).stdout, [("key", "list"), ("bucket", "list")]))
    assert running.server.access_key in done[0]


@pytest.mark.parametrize("what", ["database", "pooler"])
def test_restarted(service: tuple[Running, Pooler], what: str) -> None:
    running, pooler = service
    clients = running.clients()
    with clients.at_work():
        if what == "database":
            running.cluster.restart()
        else:
            pooler.stop()
            clients.refused()
            pooler.start()
        clients.more()
    clients.check()
    running.settled()
    running.same_processes()


def test_unreachable(service: tuple[Running, Pooler]) -> None:
    """The pooler still takes statements, and nothing comes back."""
    running, _ = service
    clients = running.clients()
    with clients.at_work():
        with running.cluster.frozen():
            clients.refused()
        clients.more()
    clients.check()
    running.settled()
    running.same_processes()
