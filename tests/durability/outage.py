"""A database of a test's own that can be taken away in every way, and clients who keep account of what they were told.

``running(…)`` gives a server with two serving processes on such a database. ``Clients`` write and read all the while
and remember each answer; ``Clients.check`` compares afterwards: what was acknowledged is there, whole; what was refused
was refused with 503 and Retry-After; nobody waited for longer than is documented; nobody's connection was cut.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import secrets
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
import psutil
from botocore.exceptions import BotoCoreError, ClientError

from gateway.cli.embedded import EmbeddedPostgres
from tests import pg
from tests.durability.pair import ONCE
from tests.server import Server, make_server

TIMEOUT = 1.0  # seconds: SLUICE_DATABASE_TIMEOUT
BOUND = 4 * TIMEOUT + 5.0  # the longest a request may take: docs/operations.md, and what a busy machine adds
PATIENCE = 60.0
QUICK = {
    "SLUICE_DATABASE_TIMEOUT": str(TIMEOUT),
    "SLUICE_READ_WAIT": "1",
    "SLUICE_ENGINE_TTL": "3",
    "SLUICE_ENGINE_HEARTBEAT": "0.3",
    "SLUICE_ENGINE_SWEEP": "0.5",
    "SLUICE_ENGINE_BACKOFF_CAP": "1",
    "SLUICE_VERDICT_TTL": "0",
}


class Cluster:
    """A PostgreSQL of its own, with a database ``sluice``."""

    def __init__(self, folder: Path) -> None:
        self.server = EmbeddedPostgres(folder, {**pg.FAST, "max_connections": "100"}, die_with_parent=False)
        self.dsn = self.server.start()

    def restart(self, how: signal.Signals = signal.SIGQUIT) -> None:
        """SIGQUIT: at once, with recovery at the start. SIGINT: sessions are cut, everything is written."""
        assert self.server.process is not None
        self.server.process.send_signal(how)
        self.server.process.wait(PATIENCE)
        self.server.start()

    def family(self) -> list[psutil.Process]:
        assert self.server.process is not None
        postmaster = psutil.Process(self.server.process.pid)
        return [postmaster, *postmaster.children(recursive=True)]

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Nobody answers: connections stand, and new ones are made, but nothing comes."""
        stopped = self.family()
        for each in stopped:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.suspend()
        try:
            yield
        finally:
            for each in reversed(stopped):
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.resume()


@contextmanager
def session(dsn: str) -> Iterator[Callable[[str], Any]]:
    """A session of the operator's: call(statement) → the first value."""
    with asyncio.Runner() as runner:
        conn = runner.run(_connect(dsn))
        try:
            yield lambda statement: runner.run(_value(conn, statement))
        finally:
            conn.terminate()


async def _connect(dsn: str) -> asyncpg.Connection:
    return await asyncpg.connect(dsn)


async def _value(conn: asyncpg.Connection, statement: str) -> Any:
    return await conn.fetchval(statement)


def ask(dsn: str, statement: str) -> Any:
    with session(dsn) as call:
        return call(statement)


@dataclass(frozen=True, slots=True)
class Answer:
    """What one request came to. status 0: no answer at all."""

    operation: str
    status: int
    retry_after: bool
    seconds: float
    error: str


@dataclass
class Clients:
    """Threads that put new objects, small and large, and get what was acknowledged."""

    server: Server
    bucket: str
    threads: int = 4
    answers: list[Answer] = field(default_factory=list)
    acknowledged: dict[str, str] = field(default_factory=dict)
    over: threading.Event = field(default_factory=threading.Event)
    wrong: list[str] = field(default_factory=list)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Until they have got going, and on to the end of the block."""
        self.server.client().create_bucket(Bucket=self.bucket)
        with ThreadPoolExecutor(self.threads) as pool:
            futures = [pool.submit(self._run, number) for number in range(self.threads)]
            try:
                self.until(lambda: len(self.acknowledged) > 10)
                yield
            finally:
                self.over.set()
        for future in futures:
            future.result()

    def until(self, condition: Callable[[], Any], patience: float = PATIENCE) -> None:
        end = time.monotonic() + patience
        while not condition():
            assert time.monotonic() < end, f"{self.count()}\n{self.server.tail()}"
            time.sleep(0.01)

    def more(self, acknowledged: int = 10) -> None:
        """Until writes are acknowledged again."""
        reached = len(self.acknowledged) + acknowledged
        self.until(lambda: len(self.acknowledged) >= reached)

    def refused(self, least: int = 4) -> None:
        """Until so many more requests were refused."""
        reached = self.count().get(503, 0) + least
        self.until(lambda: self.count().get(503, 0) >= reached)

    def count(self) -> dict[int, int]:
        found: dict[int, int] = {}
        for answer in list(self.answers):
            found[answer.status] = found.get(answer.status, 0) + 1
        return found

    def _run(self, number: int) -> None:
        client = self.server.client(connect_timeout=5, read_timeout=90, **ONCE)
        count = 0
        while not self.over.is_set():
            key = f"{number}-{count}"
            count += 1
            body = os.urandom(3000 if count % 2 else 60_000)
            if self._ask("put", lambda k=key, b=body: client.put_object(Bucket=self.bucket, Key=k, Body=b)):
                self.acknowledged[key] = hashlib.sha256(body).hexdigest()
            else:
                self.over.wait(0.02)  # the pace of a client that tries again
            if self.acknowledged:
                self._ask("get", lambda c=client: self._get(c, secrets.choice(list(self.acknowledged))))

    def _get(self, client: Any, key: str) -> None:
        body = client.get_object(Bucket=self.bucket, Key=key)["Body"].read()
        if hashlib.sha256(body).hexdigest() != self.acknowledged[key]:
            self.wrong.append(key)

    def _ask(self, operation: str, call: Callable[[], Any]) -> bool:
        begun = time.monotonic()
        status, retry_after, text = 200, False, ""
        try:
            call()
        except ClientError as error:
            answer = error.response["ResponseMetadata"]
            status, text = answer["HTTPStatusCode"], str(error)
            retry_after = "retry-after" in answer["HTTPHeaders"]
        except (BotoCoreError, OSError) as error:
            status, text = 0, repr(error)
        self.answers.append(Answer(operation, status, retry_after, time.monotonic() - begun, text))
        return status == 200

    def check(self, bound: float = BOUND) -> None:
        """Everything that was promised; raises AssertionError."""
        assert not self.wrong
        bad = [each for each in self.answers if each.status not in (200, 503)]
        assert not bad, (bad[:3], self.server.tail())
        silent = [each for each in self.answers if each.status == 503 and not each.retry_after]
        assert not silent, silent[:3]
        slow = max(self.answers, key=lambda each: each.seconds)
        assert slow.seconds < bound, slow
        client = self.server.client()
        for key in self.acknowledged:
            self.server.wait_state(self.bucket, key)
            self._get(client, key)
        assert not self.wrong
        listed = {
            item["Key"]
            for page in client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket)
            for item in page.get("Contents", [])
        }
        assert set(self.acknowledged) <= listed


@dataclass
class Running:
    server: Server
    cluster: Cluster
    serving: set[int]  # the processes at the start

    def clients(self) -> Clients:
        return Clients(self.server, f"b-{secrets.token_hex(6)}")

    def same_processes(self) -> None:
        """Nobody had to be started again."""
        assert {each.pid for each in self.server.children()} == self.serving, self.server.tail()

    def settled(self) -> None:
        """Until every run has ended: work goes on by itself."""
        statement = "SELECT count(*) FROM workflow_run WHERE state IN (1, 2, 3)"
        with session(self.cluster.dsn) as call:
            end = time.monotonic() + PATIENCE
            while call(statement):
                assert time.monotonic() < end, self.server.tail()
                time.sleep(0.05)
            assert not call("SELECT count(*) FROM workflow_run WHERE state = 5")
            assert not call("SELECT count(*) FROM version WHERE state = 1")


@contextmanager
def folder_of_its_own() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="o-", dir=pg.session_root()))
    folder.chmod(0o711)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def running(
    environment: Mapping[str, str] | None = None, through: Callable[[Cluster, Path], Mapping[str, str]] | None = None
) -> Iterator[Running]:
    """Two serving processes on a cluster of their own. through: puts something in between, and says so."""
    with folder_of_its_own() as folder:
        home = folder / "pg"
        home.mkdir()
        cluster = Cluster(home)
        try:
            between = through(cluster, folder) if through is not None else {}
            server = make_server(folder, {**QUICK, **between, **(environment or {})}, database=cluster.dsn, workers=2)
            try:
                server.start()
                deadline = time.monotonic() + PATIENCE
                while server.metrics().get("sluice_workers") != 2:
                    assert time.monotonic() < deadline, server.tail()
                yield Running(server, cluster, {each.pid for each in server.children()})
            finally:
                server.kill()
        finally:
            cluster.server.stop()
