"""The database layer without an engine: runs are rows made by a stand-in, verdicts are given by hand."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal

import asyncpg

from gateway.db.blobs import Blobs
from gateway.db.buckets import Buckets
from gateway.db.collector import Collector
from gateway.db.completion import Completed, Completion, Completions, Inline, Shared
from gateway.db.deletion import Deletions
from gateway.db.review import Review
from gateway.db.runs import Chosen
from gateway.db.subjects import VersionSubjects
from gateway.db.uploads import Uploads
from gateway.db.versions import Versions
from gateway.db.waiting import Waiting
from gateway.domain.objects import Attributes, Bucket, VersionRef, WriteCondition
from processing.model import Enqueued, NewRun, Outcome, RunState, Verdict
from processing.ports import Conn
from storage_tiers.memory import MemoryTier
from storage_tiers.placement import Placement
from tests.births import Births
from tests.db.rows import pool_of

PATIENCE = 20.0  # seconds


class Engine:
    """Remembers what was enqueued and superseded."""

    def __init__(self) -> None:
        self.ids = itertools.count(1_000_000)  # of runs that are only remembered; store_objects inserts its own
        self.runs: dict[int, NewRun] = {}
        self.births: Any = Births(self, claimed=False)
        self.superseded: list[int] = []

    async def enqueue(self, conn: Conn, runs: Sequence[NewRun]) -> list[Enqueued]:
        made = []
        for run in runs:
            number = next(self.ids)
            self.runs[number] = run
            made.append(Enqueued(number, True, False))
        return made

    def launch(self, enqueued: Sequence[Enqueued]) -> None:
        pass

    def abandon(self, enqueued: Sequence[Enqueued]) -> None:
        for run in enqueued:
            self.runs.pop(run.run_id, None)

    async def supersede(self, conn: Conn, run_ids: Sequence[int]) -> None:
        self.superseded += run_ids


class Silent:
    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None


class World:
    def __init__(self, pool: asyncpg.Pool, fingerprint: str | None = "fp", pipeline: str = "") -> None:
        self.pool = pool
        self.engine = Engine()
        self.tier = MemoryTier("standard")
        self.placement = Placement({"STANDARD": "standard", "GLACIER": "archive"}, frozenset({"archive"}))
        self.versions = Versions(pool)
        self.blobs = Blobs(pool, {"standard": self.tier}, self.versions, lambda: None)
        self.waiting = Waiting(pool, cap=100)
        self.subjects = VersionSubjects(
            pool, self.blobs, self.placement, self.waiting, owner=lambda: None, blob_grace=0.0, lifecycle_day=86400.0
        )
        self.subjects.engine = self.engine

        def choose(bucket: Bucket, key: bytes, declared_type: str | None) -> Chosen:
            return Chosen(pipeline, fingerprint)

        self.choose = choose
        self.completions = Completions(
            pool,
            self.engine,
            self.placement,
            choose=choose,
            blob_grace=0.0,
            verdict_ttl=3600.0,
        )
        self.review = Review(
            pool,
            self.engine,
            self.placement,
            self.waiting,
            Buckets(pool),
            choose=choose,
            blob_grace=0.0,
            retention=3600.0,
        )
        self.deletions = Deletions(pool, self.engine, blob_grace=0.0)
        self.uploads = Uploads(pool, blob_grace=0.0)
        self.collector = Collector(pool, {"standard": self.tier}, blob_grace=0.0, log=Silent())

    def completion(
        self,
        bucket: Bucket,
        key: bytes,
        data: bytes,
        condition: WriteCondition | None = None,
        attributes: Attributes | None = None,
        source: Shared | None = None,
        mode: Literal["sync", "async"] = "async",
    ) -> Completion:
        digest = hashlib.sha256(data)
        return Completion(
            bucket,
            key,
            bucket.owner.id,
            attributes or Attributes(content_type="text/plain"),
            hashlib.md5(data).hexdigest(),
            len(data),
            f"sha256:{digest.hexdigest()}",
            {"crc64nvme": "AAAAAAAAAAA="},
            "FULL_OBJECT",
            source or Inline(data, digest.digest()),
            condition,
            mode,
        )

    async def put(self, bucket: Bucket, key: bytes, data: bytes, **more: Any) -> Completed:
        return await self.completions.complete(self.completion(bucket, key, data, **more))

    async def decide(
        self,
        done: Completed,
        verdict: Verdict = Verdict.READY,
        code: str | None = None,
        found: Mapping[str, Any] | None = None,
    ) -> list[NewRun]:
        """End the run of a version, as the engine does."""
        assert done.run_id is not None
        run = self.engine.runs[done.run_id]
        assert run.subject is not None
        state = RunState.FAILED if verdict is Verdict.FAILED else RunState.COMPLETED
        outcome = Outcome(
            done.run_id, "post_upload", run.subject, state, verdict, code, None, found or {"sniffed": "x"}
        )
        async with self.pool.acquire() as conn, conn.transaction():
            assert await self.subjects.lock(conn, [run.subject]) == {run.subject}
            follow_ups = await self.subjects.settle(conn, [outcome])
            await conn.execute("UPDATE workflow_run SET state = 4, finished_at = now() WHERE run_id = $1", done.run_id)
        self.subjects.settled([outcome])
        return follow_ups

    async def read(self, bucket: Bucket, key: bytes, which: Any = None) -> str:
        """What a reader finds, as "state:content"."""
        resolved = await self.versions.resolve(bucket, key, which)
        if resolved.version is None:
            return "nothing"
        content = resolved.inline.decode() if resolved.inline is not None else ""
        newer = f" newer {resolved.newer.word}" if resolved.newer else ""
        return f"{resolved.version.state.word}:{content}{newer}"

    async def ref(self, bucket: Bucket, key: bytes) -> VersionRef:
        resolved = await self.versions.resolve(bucket, key)
        assert resolved.version is not None
        return resolved.version.ref


@asynccontextmanager
async def world(dsn: str, **more: Any) -> AsyncIterator[World]:
    async with pool_of(dsn, 8) as pool:
        yield World(pool, **more)


async def held_up(w: World, *tasks: asyncio.Task[Any]) -> None:
    """Until a task waits for a lock of the database, or has ended."""
    statement = """SELECT count(*) FROM pg_stat_activity
                    WHERE datname = current_database() AND wait_event_type = 'Lock'"""
    end = asyncio.get_running_loop().time() + PATIENCE
    while not any(task.done() for task in tasks) and not await w.pool.fetchval(statement):
        assert asyncio.get_running_loop().time() < end
        await asyncio.sleep(0.01)
