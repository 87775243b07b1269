"""Maintenance: ranges of the journal, retention, and the sweeps that make up for crashes between transactions."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from processing import store
from processing.context import Context, Item
from processing.failures import Park
from processing.maintenance import pruner
from processing.model import NewRun, RunState, Subject
from processing.queries import counts, worker_health
from processing.registry import Step, Workflow, activity
from tests.engine.kit import QUICK, running, until

State = RunState


@activity("quick", eager=False)
async def quick(item: Item, ctx: Context) -> Mapping[str, Any]:
    return {}


@activity("outside")
async def outside(item: Item, ctx: Context) -> Mapping[str, Any]:
    return {}


@activity("wait")
async def wait(item: Item, ctx: Context) -> Mapping[str, Any]:
    if not ctx.state:
        raise Park(event=item.input["key"], state={"asked": True})
    return {}


ALL: tuple[Any, ...] = (
    quick,
    wait,
    Workflow("flow", (Step("quick"),)),
    Workflow("decide", (Step("quick"),), finalize="finalize_upload"),
    Workflow("wait", (Step("wait"),)),
    outside,
    Workflow("outside", (Step("outside"),)),
)
QUIET = replace(QUICK, sweep=3600.0)
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


async def parts(conn: Any, table: str) -> set[str]:
    rows = await conn.fetch(
        "SELECT inhrelid::regclass::text AS n FROM pg_inherits WHERE inhparent = $1::text::regclass", table
    )
    return {row["n"] for row in rows}


async def first_sweeps(kit: Any) -> None:
    """The engine sweeps once when it starts; what a test prepares comes after that."""

    async def done() -> bool:
        return bool(
            await kit.value("SELECT count(*) FROM sweep WHERE ran_at > '2000-01-01'") == len(kit.engine._sweeps)
        )

    await until(done)


def test_a_row_without_a_range_is_kept_and_moved_into_one(dsn: str) -> None:
    async def main() -> None:
        async with running(dsn, *ALL, settings=QUIET) as kit:
            await first_sweeps(kit)
            far = 8 * pruner.NARROW + 5
            await kit.pool.execute(f"ALTER TABLE workflow_run ALTER COLUMN run_id RESTART WITH {far}")
            (answer,) = await kit.enqueue(NewRun("a", "flow", 1))
            assert answer.run_id == far
            (flushed,) = await kit.enqueue(NewRun("b", "outside", 1))
            runs = (answer.run_id, flushed.run_id)
            for run_id in runs:
                assert await kit.ended(run_id) is State.COMPLETED
            rests = [f"SELECT count(*) FROM {table}_rest" for table in pruner.TABLES]
            assert all([await kit.value(rest) for rest in rests])
            before = [(await kit.journal(run_id), await kit.engine.events(run_id)) for run_id in runs]
            async with kit.pool.acquire() as conn, conn.transaction():
                await pruner.make_ranges(conn, 0, LONG_AGO)
            assert not any([await kit.value(rest) for rest in rests])
            assert [(await kit.journal(run_id), await kit.engine.events(run_id)) for run_id in runs] == before
            # Two ranges lie ahead, and the new ones carry the key that makes recording exactly once.
            assert await kit.value("SELECT max(high) FROM journal_range") >= far + 2 * pruner.NARROW
            for table in pruner.TABLES:
                keys = await kit.value(
                    "SELECT count(*) FROM pg_inherits i JOIN pg_index x ON x.indrelid = i.inhrelid AND x.indisprimary"
                    " WHERE i.inhparent = $1::text::regclass",
                    table,
                )
                assert keys == len(await parts(kit.pool, table))

    asyncio.run(asyncio.wait_for(main(), 60))


def test_ended_runs_are_deleted_and_their_ranges_dropped_never_emptied(dsn: str) -> None:
    async def main() -> None:
        async with running(dsn, *ALL, settings=QUIET) as kit:
            await first_sweeps(kit)
            old = await kit.submit("decide")
            kept = await kit.submit("decide")
            for run_id in (old, kept):
                await kit.ended(run_id)
            await kit.pool.execute("UPDATE workflow_run SET finished_at = now() - interval '8 days'")
            kept_subject = next(o.subject for o in kit.subjects.outcomes if o.run_id == kept)

            async def undecided(conn: Any, subjects: Sequence[Subject]) -> set[Subject]:
                return {s for s in subjects if s == kept_subject}

            await kit.pool.execute(f"ALTER TABLE workflow_run ALTER COLUMN run_id RESTART WITH {3 * pruner.NARROW}")
            fresh = await kit.submit("flow")
            await kit.ended(fresh)
            async with kit.pool.acquire() as conn, conn.transaction():
                await pruner.prune(7 * 86_400.0, undecided)(conn, 0, LONG_AGO)
            assert await kit.value("SELECT array_agg(run_id ORDER BY run_id) FROM workflow_run") == [kept, fresh]
            async with kit.pool.acquire() as conn, conn.transaction():
                await pruner.drop_ranges(conn, 0, LONG_AGO)
            for table in pruner.TABLES:
                names = await parts(kit.pool, table)
                assert f"{table}_0" in names  # a run of it is kept
                assert f"{table}_{pruner.NARROW}" not in names
                assert f"{table}_{3 * pruner.NARROW}" in names
            async with kit.pool.acquire() as conn, conn.transaction():
                await pruner.prune(7 * 86_400.0, None)(conn, 0, LONG_AGO)
                await pruner.drop_ranges(conn, 0, LONG_AGO)
            for table in pruner.TABLES:
                assert f"{table}_0" not in await parts(kit.pool, table)
            again = await kit.submit("flow", key="decide:1")  # the key is free again
            assert await kit.ended(again) is State.COMPLETED

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_version_left_scanning_by_an_ended_run_is_failed(dsn: str) -> None:
    async def main() -> None:
        stuck: set[Subject] = set()

        async def undecided(conn: Any, subjects: Sequence[Subject]) -> set[Subject]:
            return {s for s in subjects if s in stuck}

        async with running(dsn, *ALL, undecided=undecided, scan_stale=0.0, settings=QUIET) as kit:
            await first_sweeps(kit)
            run_id = await kit.submit("decide")
            fine = await kit.submit("decide")
            for each in (run_id, fine):
                assert await kit.ended(each) is State.COMPLETED
            outcome = next(o for o in kit.subjects.outcomes if o.run_id == run_id)
            assert outcome.subject is not None
            stuck.add(outcome.subject)
            kit.subjects.outcomes.clear()
            await kit.engine.sweep()
            assert {(o.run_id, o.verdict, o.code) for o in kit.subjects.outcomes} == {(run_id, "failed", "worker-lost")}
            # A live run shields its subject.
            kit.subjects.outcomes.clear()
            await kit.enqueue(NewRun("shield", "wait", 1, outcome.subject, {"key": "never"}))
            await kit.engine.sweep()
            assert kit.subjects.outcomes == []

    asyncio.run(asyncio.wait_for(main(), 60))


def test_what_the_owner_of_the_subjects_misses_is_enqueued(dsn: str) -> None:
    async def main() -> None:
        async def missing(conn: Any) -> list[NewRun]:
            return [NewRun("missing", "flow", 1)]

        async with running(dsn, *ALL, wanted=[missing], settings=QUIET) as kit:
            await first_sweeps(kit)
            await kit.engine.sweep()
            await kit.engine.sweep()
            run_id = await kit.value("SELECT run_id FROM workflow_run WHERE run_key = 'missing'")
            assert await kit.ended(run_id) is State.COMPLETED
            assert await kit.value("SELECT count(*) FROM workflow_run") == 1

    asyncio.run(asyncio.wait_for(main(), 60))


def test_followers_whose_waker_died_are_woken(dsn: str) -> None:
    async def main() -> None:
        async with running(dsn, *ALL, settings=QUIET) as kit:
            await first_sweeps(kit)
            leader = await kit.submit("wait", input={"key": "e"})
            follower = await kit.submit("wait", input={"key": f"run:{leader}"})
            listener = await kit.submit("wait", input={"key": "lost"})
            for run_id in (leader, follower, listener):
                await kit.reaches(run_id, State.PARKED)
            # As if the process had died between the commits: an end and an event that woke nobody.
            await kit.pool.execute(
                "UPDATE workflow_run SET state = 6, error_code = 'cancelled', finished_at = now(), wake_at = NULL"
                " WHERE run_id = $1",
                leader,
            )
            await kit.pool.execute("INSERT INTO signal VALUES ('lost', '{}')")
            await kit.engine.sweep()
            assert await kit.ended(follower) is State.COMPLETED
            assert await kit.ended(listener) is State.COMPLETED

    asyncio.run(asyncio.wait_for(main(), 60))


def test_runs_parked_on_a_breaker_that_has_closed_are_woken(dsn: str) -> None:
    async def main() -> None:
        async with running(dsn, *ALL, settings=QUIET) as kit:
            await first_sweeps(kit)
            run_id = await kit.submit("wait", input={"key": "dep:scanner"})
            await kit.reaches(run_id, State.PARKED)
            async with kit.pool.acquire() as conn:
                assert await store.wake_waiting(conn, ["dep:other"], 1.0) == 0
            await kit.engine.sweep()
            assert await kit.value("SELECT wake_at < clock_timestamp() + interval '11 s' FROM workflow_run")

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_sweep_is_done_by_one_process_per_interval(dsn: str) -> None:
    async def main() -> None:
        times: list[int] = []

        async def missing(conn: Any) -> list[NewRun]:
            times.append(1)
            return []

        async with (
            running(dsn, *ALL, wanted=[missing], sweep=3600.0) as one,
            running(dsn, *ALL, wanted=[missing], sweep=3600.0),
        ):
            await until(lambda: len(times) >= 1)
            for _ in range(3):
                await one.engine._sweeps.run()
            assert len(times) == 1

    asyncio.run(asyncio.wait_for(main(), 60))


def test_readiness_sees_runs_without_a_worker(dsn: str) -> None:
    async def main() -> None:
        async with running(dsn, *ALL, start=False) as kit:
            await kit.enqueue(NewRun("a", "flow", 1))
            async with kit.pool.acquire() as conn:
                health = await worker_health(conn)
                assert (health["workers"], health["pending"]) == (0, 1)
                assert [c[:3] for c in await counts(conn)] == [("flow", "pending", 1)]

    asyncio.run(main())


def test_no_session_state_is_left_in_the_pool(dsn: str) -> None:
    """Behind a pooler in transaction mode a statement finds whatever session: nothing may depend on it."""

    async def main() -> None:
        async with running(dsn, *ALL) as kit:
            run_id = await kit.submit("decide")
            await kit.ended(run_id)
            await kit.engine.sweep()
            connections = [await kit.pool.acquire() for _ in range(6)]
            for conn in connections:
                assert await conn.fetchval("SHOW synchronous_commit") == "on"
                assert await conn.fetchval("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == 0
            for conn in connections:
                await kit.pool.release(conn)

    asyncio.run(main())
