"""What a run costs the database, in figures that a busy machine hardly changes: transactions, flushes and bytes of the
write-ahead log. In a cluster of its own, with the settings that users get: the counters are the whole cluster's."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from gateway.cli.embedded import EmbeddedPostgres
from gateway.db.migrate import migrate
from processing.context import Context, Item
from processing.model import NewRun
from processing.registry import Step, Workflow, activity
from processing.surroundings import NoHooks
from tests import pg
from tests.engine.kit import running

RUNS = 256
# Of one six-step run with its events: transactions, flushes, bytes of the log; steps that lie in its one journal row.
GATES = {
    "six": (1.0, 0.35, 9_000, 0),  # three of the steps through the journal before the next begins
    "light": (0.7, 0.25, 4_000, 6),  # nothing is flushed before the end
}


@activity("cheap", eager=False)
async def cheap(item: Item, ctx: Context) -> Mapping[str, Any]:
    return {"metadata": {"cheap": 1}}


@activity("cheap_too", eager=False)
async def cheap_too(item: Item, ctx: Context) -> Mapping[str, Any]:
    return {}


@activity("cheap_three", eager=False)
async def cheap_three(item: Item, ctx: Context) -> Mapping[str, Any]:
    return {}


@activity("outside")
async def outside(item: Item, ctx: Context) -> Mapping[str, Any]:
    return {"metadata": {"outside": item.attempt}}


@activity("outside_too")
async def outside_too(item: Item, ctx: Context) -> Mapping[str, Any]:
    return {"done": True}


@activity("outside_three")
async def outside_three(item: Item, ctx: Context) -> Mapping[str, Any]:
    return {"done": True}


SIX = (cheap, cheap_too, outside, outside_too, outside_three, cheap_three)
WORKFLOW = Workflow("six", tuple(Step(each.__activity__.name) for each in SIX))  # type: ignore[attr-defined]


@activity("cheap_four", eager=False)
async def cheap_four(item: Item, ctx: Context) -> Mapping[str, Any]:
    return {"metadata": {"cheap": 4}}


@activity("cheap_five", eager=False)
async def cheap_five(item: Item, ctx: Context) -> Mapping[str, Any]:
    return {"done": True}


@activity("cheap_six", eager=False)
async def cheap_six(item: Item, ctx: Context) -> Mapping[str, Any]:
    return {"done": True}


CHEAP = (cheap, cheap_too, cheap_three, cheap_four, cheap_five, cheap_six)
LIGHT = Workflow("light", tuple(Step(each.__activity__.name) for each in CHEAP))  # type: ignore[attr-defined]
ALL = (*SIX, cheap_four, cheap_five, cheap_six, WORKFLOW, LIGHT)


@pytest.fixture
def cluster() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="g-", dir=pg.session_root()) as name:
        Path(name).chmod(0o711)  # its own user has to reach it
        server = EmbeddedPostgres(Path(name))
        try:
            yield server.start()
        finally:
            server.stop()


class Ended(NoHooks):
    """Hears the end of each run: a poll would be counted with what it asks about."""

    def __init__(self) -> None:
        self.left = RUNS
        self.all = asyncio.Event()

    def run(self, workflow: str, outcome: str, seconds: float) -> None:
        self.left -= 1
        if not self.left:
            self.all.set()


async def counted(dsn: str) -> tuple[int, int, int]:
    """(transactions, flushes of the log, bytes of the log) of the sessions that have ended, and so have reported."""
    conn = await asyncpg.connect(dsn)
    try:
        row = await conn.fetchrow(
            """SELECT (SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()),
                      (SELECT sum(fsyncs) FROM pg_stat_io WHERE object = 'wal')::bigint,
                      pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint"""
        )
        assert row is not None
        return row[0], row[1], row[2]
    finally:
        await conn.close()


async def flushes_are_counted(dsn: str) -> bool:
    conn = await asyncpg.connect(dsn)
    try:
        return bool(await conn.fetchval("SELECT count(*) FROM pg_stat_io WHERE object = 'wal'"))
    except asyncpg.UndefinedTableError:
        return False
    finally:
        await conn.close()


@pytest.mark.parametrize("workflow", GATES)
def test_a_run_costs_the_database_little(cluster: str, workflow: str) -> None:
    most_transactions, most_flushes, most_wal, whole = GATES[workflow]

    async def main() -> None:
        await migrate(cluster)
        if not await flushes_are_counted(cluster):
            pytest.skip("this PostgreSQL does not count flushes of the log (before 18)")
        quiet = {"ttl": 30.0, "heartbeat": 10.0, "poll_least": 0.05, "poll_most": 1.0}
        async with running(cluster, *ALL, start=False, **quiet) as kit:
            subjects = [kit.subjects.add(b"x", seq=n, key=b"k%d" % n).subject for n in range(1, RUNS + 1)]
            await kit.enqueue(*[NewRun(f"{workflow}:{s.seq}", workflow, 1, s) for s in subjects], launch=False)
            await kit.pool.execute("CHECKPOINT")  # the first change of each page after it is logged whole: once
        subjects_of = kit.subjects  # whoever wants runs has paid for their insert: from here on it is the engine's cost
        before = await counted(cluster)
        hooks = Ended()
        async with running(cluster, *ALL, subjects=subjects_of, hooks=hooks, **quiet) as kit:
            await asyncio.wait_for(hooks.all.wait(), 60)
            assert await kit.value("SELECT count(*) FROM journal_step") == 6 * RUNS
            assert await kit.value("SELECT count(*) FROM workflow_step") == (6 - whole) * RUNS
        after = await counted(cluster)
        transactions, flushes, wal = ((b - a) / RUNS for a, b in zip(before, after, strict=True))
        assert 0 < transactions <= most_transactions, f"{transactions:.2f} transactions a run"
        assert 0 < flushes <= most_flushes, f"{flushes:.2f} flushes a run"
        assert 0 < wal <= most_wal, f"{wal:.0f} bytes of log a run"

    asyncio.run(main())
