"""The S3 port in this process, over a real database, with an engine whose verdicts are given by the key's name.

Keys that begin with ``scan/`` stay scanning until a test decides; ``bad/`` are quarantined, ``broken/`` fail; all
others are ready as soon as they are stored.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import ssl
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import boto3
import uvloop
from botocore.config import Config

from gateway.db.blobs import Blobs
from gateway.db.buckets import Buckets
from gateway.db.completion import Completions
from gateway.db.deletion import Deletions
from gateway.db.identities import Identities
from gateway.db.listing import Listing
from gateway.db.pool import open_pool
from gateway.db.recalls import Recalls
from gateway.db.runs import Chosen
from gateway.db.subjects import VersionSubjects
from gateway.db.uploads import Uploads
from gateway.db.versions import Versions
from gateway.db.waiting import Waiting
from gateway.http.listener import Listener
from gateway.http.pipeline import Pipeline
from gateway.services import Services
from gateway.settings import Settings
from processing.model import Enqueued, NewRun, Outcome, RunState, Verdict
from processing.ports import Conn
from storage_tiers.memory import MemoryTier
from storage_tiers.placement import Placement
from storage_tiers.staging import Staging
from tests.births import Births

T = TypeVar("T")
PATIENCE = 20.0
ROOT = ("ROOTKEY", "rootsecret-rootsecret")
OTHER = ("OTHERKEY", "othersecret-othersecret")


class Ring:
    def seal(self, plain: bytes, bound: bytes = b"") -> bytes:
        return plain

    def open(self, sealed: bytes, bound: bytes = b"") -> bytes:
        return sealed


class Metrics:
    """Keeps what was reported of each request."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, int, str | None]] = []
        self.in_flight = 0
        self.refused: list[str] = []

    def request_started(self) -> None:
        self.in_flight += 1

    def request_ended(
        self,
        operation: str,
        status: int,
        code: str | None,
        seconds: float,
        first_byte: float | None,
        received: int,
        sent: int,
    ) -> None:
        self.in_flight -= 1
        self.requests.append((operation, status, code))

    def auth_failed(self, reason: str) -> None:
        self.refused.append(reason)


class Engine:
    """Stands in for the real one: a run's outcome follows from its key."""

    def __init__(self) -> None:
        self.ids = itertools.count(1)
        self.runs: dict[int, NewRun] = {}
        self.births: Any = Births(self, claimed=True)
        self.decide: Callable[[int, Verdict], Coroutine[Any, Any, None]] | None = None
        self.tasks: set[asyncio.Task[None]] = set()

    async def enqueue(self, conn: Conn, runs: Sequence[NewRun]) -> list[Enqueued]:
        made = []
        for run in runs:
            number = next(self.ids)
            self.runs[number] = run
            made.append(Enqueued(number, True, True))
        return made

    def launch(self, enqueued: Sequence[Enqueued]) -> None:
        for each in enqueued:
            run = self.runs[each.run_id]
            if run.workflow != "post_upload" or run.subject is None or run.subject.key.startswith(b"scan/"):
                continue
            assert self.decide is not None
            verdict = Verdict.READY
            if run.subject.key.startswith(b"bad/"):
                verdict = Verdict.QUARANTINED
            elif run.subject.key.startswith(b"broken/"):
                verdict = Verdict.FAILED
            task = asyncio.create_task(self.decide(each.run_id, verdict))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    def abandon(self, enqueued: Sequence[Enqueued]) -> None:
        for run in enqueued:
            self.runs.pop(run.run_id, None)

    async def supersede(self, conn: Conn, run_ids: Sequence[int]) -> None:
        for number in run_ids:
            self.runs.pop(number, None)


class House:
    """One serving process's parts on an event loop of their own, in a thread, so that tests can block."""

    def __init__(self, dsn: str, tls: ssl.SSLContext | None = None, **settings: Any) -> None:
        self.dsn, self.tls = dsn, tls
        self.settings = Settings(
            **{"read_wait": 10.0, "sync_timeout": 10.0, "pool_size": 8, "domain": "s3.test", **settings}
        )
        self.engine = Engine()
        self.metrics = Metrics()
        self.tiers = {"standard": MemoryTier("standard")}
        self.loop = uvloop.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.port = 0

    # --- life ----------------------------------------------------------------------------------------------------

    def start(self) -> House:
        self.thread.start()
        self.run(self._start())
        return self

    def stop(self) -> None:
        self.run(self._stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(PATIENCE)
        self.loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the house's loop and wait for it."""
        return self.submit(work).result(PATIENCE)

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    async def _start(self) -> None:
        pool = self.pool = await open_pool(self.dsn, self.settings.pool_size)
        placement = Placement({"STANDARD": "standard", "GLACIER": "archive"}, frozenset({"archive"}))
        versions = Versions(pool)
        blobs = Blobs(pool, self.tiers, versions, lambda: None)
        waiting = Waiting(pool, cap=self.settings.max_waiters)
        self.subjects = VersionSubjects(
            pool, blobs, placement, waiting, owner=lambda: None, blob_grace=0.0, lifecycle_day=86400.0
        )
        self.subjects.engine = self.engine
        self.engine.decide = self.decide_run
        identities = Identities(pool, Ring())
        await identities.ensure_root(*ROOT)
        if await identities.account_by_name("other") is None:
            await identities.create_account("other", "Other", "other@example.com")
            await identities.create_key("other", *OTHER)
        self.services = Services(
            settings=self.settings,
            pool=pool,
            identities=identities,
            buckets=Buckets(pool, blob_grace=0.0),
            versions=versions,
            completions=Completions(
                pool, self.engine, placement, choose=lambda *_: Chosen("", None), blob_grace=0.0, verdict_ttl=0.0
            ),
            uploads=Uploads(pool, blob_grace=0.0),
            deletions=Deletions(pool, self.engine, blob_grace=0.0),
            recalls=Recalls(pool, self.engine, lifecycle_day=86400.0, blob_grace=0.0),
            listing=Listing(pool),
            blobs=blobs,
            waiting=waiting,
            tiers=self.tiers,
            placement=placement,
            staging=Staging(self.tiers, 2),
            metrics=self.metrics,
        )
        self.pipeline = Pipeline(self.services)
        self.listener = Listener(self.pipeline.handle, head_timeout=self.settings.header_timeout)
        sock = socket.create_server(("127.0.0.1", 0))
        await self.listener.start([sock], self.tls)
        self.port = self.listener.ports[0]

    async def _stop(self) -> None:
        await self.listener.stop(1.0)
        for task in list(self.engine.tasks):
            task.cancel()
        self.services.staging.close()
        self.pipeline.close()
        self.pool.terminate()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0)

    # --- verdicts ------------------------------------------------------------------------------------------------

    async def decide_run(self, run_id: int, verdict: Verdict) -> None:
        run = self.engine.runs[run_id]
        assert run.subject is not None
        state = RunState.FAILED if verdict is Verdict.FAILED else RunState.COMPLETED
        code = {Verdict.QUARANTINED: "malware", Verdict.FAILED: "internal"}.get(verdict)
        outcome = Outcome(run_id, "post_upload", run.subject, state, verdict, code, None, {})
        async with self.pool.acquire() as conn, conn.transaction():
            await self.subjects.lock(conn, [run.subject], wait=True)
            await self.subjects.settle(conn, [outcome])
        self.subjects.settled([outcome])

    def decide(self, key: str, verdict: Verdict = Verdict.READY) -> None:
        """End the newest undecided run of a key."""
        number = max(n for n, run in self.engine.runs.items() if run.subject and run.subject.key == key.encode())
        self.run(self.decide_run(number, verdict))

    # --- talking to it -------------------------------------------------------------------------------------------

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self, keys: tuple[str, str] | None = ROOT, region: str = "us-east-1", **options: Any) -> Any:
        """A boto3 client that does not repeat requests; anonymous for None."""
        if keys is None:
            from botocore import UNSIGNED

            options["signature_version"] = UNSIGNED
        config = Config(
            **{"retries": {"total_max_attempts": 1}, "s3": {"addressing_style": "path"}, "read_timeout": 30, **options}
        )
        access_key, secret = keys or (None, None)
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=access_key,
            aws_secret_access_key=secret,
            region_name=region,
            config=config,
        )

    def wait(self, condition: Callable[[], bool]) -> None:
        """Until a condition holds."""
        end = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < end, "the condition did not come true"
            time.sleep(0.005)
