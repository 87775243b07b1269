"""Leases: what a worker that lost one still tries matches nothing, and what it held is done by others."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from processing import store
from processing.execution import Execution
from processing.journal import OUTAGES
from processing.model import (
    Enqueued,
    Entry,
    EventRow,
    Finish,
    NewRun,
    Outcome,
    Parking,
    RunState,
    StepRow,
    StepStatus,
)
from tests.engine.child import ALL, BRIEF, TABLES
from tests.engine.kit import Kit, running, until

ROOT = Path(__file__).parents[2]
POINTS = ("claimed", "started", "flushed", "parking", "parked", "finishing", "finished")


@asynccontextmanager
async def child(dsn: str, *arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.engine.child", dsn, *arguments, cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@asynccontextmanager
async def worker(dsn: str, **changes: Any) -> AsyncIterator[Kit]:
    """The test's own process: a worker with short leases whose steps leave effects."""
    pool = await asyncpg.create_pool(dsn, min_size=1, max_size=3)
    services = {"pool": pool, "immune": True}
    async with running(dsn, *ALL, services=services, **{**BRIEF, **changes}) as kit:
        yield kit
    await pool.close()


async def tables(dsn: str) -> None:
    conn = await asyncpg.connect(dsn)
    await conn.execute(TABLES)
    await conn.close()


def rows_of(run_id: int, token: Any) -> dict[str, Any]:
    step = StepRow(run_id, "stale", 1, StepStatus.COMPLETED, "{}", None, 0.0, 0.0)
    return {"run_id": run_id, "token": token, "steps": (step,), "events": (EventRow(run_id, 5, 0.0, "x", "{}"),)}


def test_every_write_names_its_lease(dsn: str) -> None:
    async def main() -> None:
        async with running(dsn, *ALL, start=False) as kit:
            (answer,) = await kit.enqueue(NewRun("a", "steps", 1))
            run_id = answer.run_id
            async with kit.pool.acquire() as conn:
                old = await store.take(conn, run_id, 1, None)
                assert old is not None
                new = await store.take(conn, run_id, 2, old.token)
                assert new is not None
                before = await kit.pool.fetchrow("SELECT * FROM workflow_run")
                for token in (old.token, uuid4()):
                    rows = rows_of(run_id, token)
                    outcome = Outcome(run_id, "steps", None, RunState.COMPLETED)
                    assert await store.journal(conn, [Entry(**rows)]) == set()
                    assert await store.park(conn, [Parking(**rows, wake=1, deadline=2)], 1.0) == {}
                    assert await store.park(conn, [Parking(**rows, release=True)], 1.0) == {}
                    finish = Finish(**rows, outcome=outcome, output="{}", gaps=(("stale", "x"),))
                    assert await store.held(conn, [finish]) == set()
                    whole = replace(finish, events=(EventRow(run_id, 1 << 20, 0.0, "started", "{}"),))
                    assert await store.finish(conn, [finish]) == await store.finish(conn, [whole]) == set()
                assert await kit.pool.fetchrow("SELECT * FROM workflow_run") == before
                for table in ("workflow_step", "run_event", "run_journal", "gap"):
                    assert await kit.value(f"SELECT count(*) FROM {table}") == 0
                assert await store.journal(conn, [Entry(**rows_of(run_id, new.token))]) == {run_id}

    asyncio.run(main())


def test_without_the_guard_stale_writes_would_land(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the test above: it is the token that keeps them out."""
    guard = "r.lease_token = u.token"
    for name in ("_JOURNAL", "_PARK"):
        statement = getattr(store, name)
        assert statement.count(guard) == 1
        monkeypatch.setattr(store, name, statement.replace(guard, "u.token IS NOT NULL"))

    async def main() -> None:
        async with running(dsn, *ALL, start=False) as kit:
            finish = await kit.value("SELECT pg_get_functiondef('engine_finish'::regproc)")
            assert finish.count(guard) == 1
            await kit.pool.execute(finish.replace(guard, "u.token IS NOT NULL"))
            answers = await kit.enqueue(*[NewRun(f"r{n}", "steps", 1) for n in range(3)])
            async with kit.pool.acquire() as conn:
                rows = []
                for answer in answers:
                    assert await store.take(conn, answer.run_id, 1, None) is not None
                    rows.append(rows_of(answer.run_id, uuid4()))
                assert len(await store.journal(conn, [Entry(**rows[0])])) == 1
                assert len(await store.park(conn, [Parking(**rows[1], wake=1, deadline=2)], 1.0)) == 1
                outcome = Outcome(answers[2].run_id, "steps", None, RunState.COMPLETED)
                assert len(await store.finish(conn, [Finish(**rows[2], outcome=outcome, output="{}")])) == 1

    asyncio.run(main())


@pytest.mark.parametrize("rewrite", [True, False])
def test_step_rows_that_a_crash_of_the_server_lost_are_written_again_at_the_end(
    dsn: str, monkeypatch: pytest.MonkeyPatch, rewrite: bool
) -> None:
    """Steps commit without waiting for the disk; a crash of the server may take the last of them. As its control, the
    same without the second writing: the journal has holes."""
    if not rewrite:
        fields = Execution._fields
        monkeypatch.setattr(Execution, "_fields", lambda self, everything=False: fields(self))

    async def main() -> None:
        await tables(dsn)
        async with worker(dsn, ttl=10.0) as kit:
            (answer,) = await kit.enqueue(NewRun("a", "held", 1))
            await until(lambda: effects(kit, answer.run_id, 2))
            execution = kit.engine._worker.held[answer.run_id]
            await execution.flush()
            assert await kit.value("SELECT count(*) FROM workflow_step") == 1
            await kit.pool.execute("DELETE FROM workflow_step")
            await kit.pool.execute("INSERT INTO flag VALUES ('go')")
            assert await kit.ended(answer.run_id) is RunState.COMPLETED
            steps = [step for step, _, _ in await kit.journal(answer.run_id)]
            assert steps == (["one", "held"] if rewrite else ["held"])

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_journal_write_keeps_its_lease_until_it_has_committed(dsn: str) -> None:
    """Whoever takes the run away waits for the write, or the write matches nothing: never both."""

    async def main() -> None:
        async with running(dsn, *ALL, start=False) as kit:
            (answer,) = await kit.enqueue(NewRun("a", "steps", 1))
            one, two = await asyncpg.connect(dsn), await asyncpg.connect(dsn)
            lease = await store.take(one, answer.run_id, 1, None)
            assert lease is not None
            transaction = one.transaction()
            await transaction.start()
            assert await store.journal(one, [Entry(**rows_of(lease.run_id, lease.token))]) == {lease.run_id}
            assert await store.reap(two, -1e9, 5) == []  # locked: passed over
            await transaction.commit()
            assert await store.reap(two, -1e9, 5) == [lease.run_id]
            await one.close()
            await two.close()

    asyncio.run(main())


def test_a_heartbeat_renews_only_what_has_not_expired(dsn: str) -> None:
    async def main() -> None:
        conn = await asyncpg.connect(dsn)
        worker_id = await store.register(conn, "w", 60.0, 4)
        assert (await store.beat(conn, worker_id, 60.0))[0]
        await store.resign(conn, worker_id)
        assert not (await store.beat(conn, worker_id, 60.0))[0]
        await conn.close()

    asyncio.run(main())


def test_no_lease_is_judged_right_after_the_database_started(dsn: str) -> None:
    async def main() -> None:
        async with running(dsn, *ALL, start=False) as kit:
            (answer,) = await kit.enqueue(NewRun("a", "steps", 1))
            async with kit.pool.acquire() as conn:
                await store.take(conn, answer.run_id, 12345, None)  # a worker whose row is gone counts as dead
                assert await store.reap(conn, 1e9, 5) == []
                assert await store.reap(conn, 0.0, 5) == [answer.run_id]
                assert await kit.value("SELECT recoveries FROM workflow_run") == 1

    asyncio.run(main())


def test_a_worker_stopped_past_its_lease_writes_nothing_when_it_goes_on(dsn: str) -> None:
    async def main() -> None:
        await tables(dsn)
        async with child(dsn) as process:
            assert process.stdout is not None
            await process.stdout.readline()
            async with running(dsn, *ALL, claims=False) as source:
                (answer,) = await source.enqueue(NewRun("a", "held", 1))
                await until(lambda: effects(source, answer.run_id, 2))
                os.kill(process.pid, signal.SIGSTOP)
                async with worker(dsn) as kit:
                    assert await kit.ended(answer.run_id) is RunState.COMPLETED
                    await kit.pool.execute("INSERT INTO flag VALUES ('go')")
                    os.kill(process.pid, signal.SIGCONT)
                    # The stopped one registers under a new name, and its own step comes to nothing.
                    await until(lambda: workers_named(kit, process.pid, 2))
                    shown = await kit.engine.show(answer.run_id)
                    assert shown is not None
                    assert [(s["step"], s["attempt"]) for s in shown["steps"]] == [("one", 1), ("held", 1)]
                    assert shown["steps"][1]["output"] == {"pid": os.getpid()}
                    assert shown["state"] == "completed"

    asyncio.run(asyncio.wait_for(main(), 60))


async def effects(kit: Kit, run_id: int, count: int) -> bool:
    return bool(await kit.value("SELECT count(*) FROM effect WHERE run_id = $1", run_id) >= count)


async def workers_named(kit: Kit, pid: int, count: int) -> bool:
    found = await kit.value("SELECT count(*) FROM worker WHERE name LIKE $1", f"%:{pid}")
    return bool(found >= count)


def test_workers_killed_at_every_border_lose_nothing_and_record_nothing_twice(dsn: str) -> None:
    """B193: SIGKILL at the n-th passing of each border, over and over; then one that lives finishes what is left."""

    async def main() -> None:
        await tables(dsn)
        async with running(dsn, *ALL, claims=False) as source:
            await source.enqueue(*[NewRun(f"r{n}", "steps", n % 3) for n in range(24)])
            for number, point in enumerate(POINTS):
                async with child(dsn, point, str(1 + number % 3)) as process:
                    await asyncio.wait_for(process.wait(), 30)
                    assert process.returncode == -signal.SIGKILL
                if number % 2:
                    await source.enqueue(*[NewRun(f"more{number}.{n}", "steps", n) for n in range(3)])
            async with worker(dsn) as kit:

                async def all_done() -> bool:
                    return not await kit.value("SELECT count(*) FROM workflow_run WHERE state <> 4")

                await until(all_done, 40)
                rows = await kit.pool.fetch("SELECT run_id, step_key, attempt, status FROM journal_step")
                total = await kit.value("SELECT count(*) FROM workflow_run")
                assert len(rows) == 4 * total  # no hole, nothing twice
                assert {(r["attempt"], r["status"]) for r in rows} == {(1, 1)}
                # What had been recorded was not done again: eager steps at most once more per kill.
                again = await kit.value(
                    "SELECT count(*) FROM (SELECT FROM effect WHERE step IN ('two', 'three')"
                    " GROUP BY run_id, step HAVING count(*) > 1) x"
                )
                assert again <= 8 * len(POINTS)

    asyncio.run(asyncio.wait_for(main(), 150))


def test_a_run_that_keeps_killing_its_worker_ends(dsn: str) -> None:
    async def main() -> None:
        await tables(dsn)
        async with running(dsn, *ALL, claims=False, ttl=0.6, heartbeat=0.1, max_recoveries=2) as source:
            (answer,) = await source.enqueue(NewRun("d", "deadly", 1))
            for _ in range(3):
                async with child(dsn) as process:
                    await asyncio.wait_for(process.wait(), 30)
            assert await source.ended(answer.run_id) is RunState.FAILED
            row = await source.pool.fetchrow("SELECT error_code, recoveries FROM workflow_run")
            assert row is not None
            assert tuple(row) == ("worker-lost", 2)
            # A person may try again, from the start of the count.
            await source.engine.retry(answer.run_id)
            async with worker(dsn) as kit:
                assert await kit.ended(answer.run_id) is RunState.COMPLETED

    asyncio.run(asyncio.wait_for(main(), 90))


def test_a_run_with_recoveries_executes_in_a_child_of_its_own(dsn: str) -> None:
    async def main() -> None:
        await tables(dsn)
        command = (sys.executable, "-m", "tests.engine.child", dsn, "--only", "{run}")
        async with running(dsn, *ALL, start=False) as source:
            (answer,) = await source.enqueue(NewRun("a", "steps", 1))
            await source.pool.execute("UPDATE workflow_run SET recoveries = 1")
        async with worker(dsn, isolate=command) as kit:
            assert await kit.ended(answer.run_id, 30) is RunState.COMPLETED
            pids = await kit.pool.fetch("SELECT DISTINCT pid FROM effect WHERE step <> 'four'")
            assert os.getpid() not in {row["pid"] for row in pids} or len(pids) > 1
            # What it recorded in there cleared it.
            assert await kit.value("SELECT recoveries FROM workflow_run") == 0

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_child_that_cannot_be_started_gives_the_run_back(dsn: str) -> None:
    async def main() -> None:
        await tables(dsn)
        async with running(dsn, *ALL, start=False) as source:
            (answer,) = await source.enqueue(NewRun("a", "steps", 1))
            await source.pool.execute("UPDATE workflow_run SET recoveries = 1")
        async with worker(dsn, isolate=("/nowhere/sluice", "{run}")) as kit:

            async def given_back() -> bool:
                return bool(await kit.value("SELECT epoch > 1 FROM workflow_run"))

            await until(given_back)
        async with worker(dsn) as kit:
            assert await kit.ended(answer.run_id) is RunState.COMPLETED

    asyncio.run(asyncio.wait_for(main(), 60))


def test_going_down_does_not_wait_for_runs_that_wait_for_a_child(dsn: str, tmp_path: Path) -> None:
    """Children are told to end; the runs behind them go back at once, and nobody's recoveries are counted."""
    script = f"echo $$ >> {tmp_path}/pids; exec sleep 600"

    async def main() -> None:
        await tables(dsn)
        async with running(dsn, *ALL, start=False) as source:
            await source.enqueue(*[NewRun(f"r{i}", "steps", 1) for i in range(8)])
            await source.pool.execute("UPDATE workflow_run SET recoveries = 1")
        async with worker(dsn, isolate=("/bin/sh", "-c", script, "{run}"), drain=30.0) as kit:

            async def two_run() -> bool:
                pids = tmp_path / "pids"
                return pids.exists() and len(pids.read_text().split()) == 2

            await until(two_run)
            began = time.monotonic()
            await kit.engine.drain()
            assert time.monotonic() - began < 10
            assert await kit.value("SELECT count(*) FROM workflow_run WHERE state IN (1, 3) AND recoveries = 1") == 8
        for pid in (tmp_path / "pids").read_text().split():
            assert not Path(f"/proc/{pid}").exists()

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_process_whose_heartbeat_is_not_confirmed_stops_its_steps(dsn: str) -> None:
    async def main() -> None:
        await tables(dsn)
        async with worker(dsn, ttl=1.0, heartbeat=0.1) as kit:
            (answer,) = await kit.enqueue(NewRun("a", "held", 1))
            await until(lambda: effects(kit, answer.run_id, 2))
            old = kit.engine.worker_id
            await kit.pool.execute("UPDATE worker SET lease_until = clock_timestamp() - interval '1 s'")
            await until(lambda: kit.engine.worker_id != old)
            assert await kit.ended(answer.run_id) is RunState.COMPLETED  # reaped, and done by its new self
            assert await kit.value("SELECT recoveries FROM workflow_run") <= 1
            assert (await kit.journal(answer.run_id)).count(("held", 1, "completed")) == 1

    asyncio.run(asyncio.wait_for(main(), 60))


def test_killed_connections_are_only_a_pause(dsn: str) -> None:
    async def main() -> None:
        await tables(dsn)
        async with worker(dsn) as kit:
            answers = []
            for n in range(20):
                answers += await stubborn(kit, NewRun(f"r{n}", "steps", 1))
                if n % 5 == 0:
                    outside = await asyncpg.connect(dsn)
                    await outside.execute(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
                    )
                    await outside.close()
            for answer in answers:
                assert await kit.ended(answer.run_id, 30) is RunState.COMPLETED

    asyncio.run(asyncio.wait_for(main(), 90))


async def stubborn(kit: Kit, run: NewRun) -> list[Enqueued]:
    """As a client whose write was not acknowledged: again, under the same key."""
    while True:
        try:
            return await kit.enqueue(run)
        except (*OUTAGES, asyncpg.PostgresError):
            await asyncio.sleep(0.01)
