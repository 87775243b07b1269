"""Dependencies that do not answer: nothing is spent, nobody hammers, everything goes on when they are back."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import asyncpg
import pytest

from processing.breakers import Breakers
from processing.context import Context, Item
from processing.failures import DependencyDown
from processing.model import NewRun, RunState
from processing.registry import Step, Workflow, activity
from processing.retry import Backoff
from tests.engine.kit import Kit, running, until

down = False
calls = 0
done = 0


@pytest.fixture(autouse=True)
def fresh() -> None:
    global down, calls, done
    down, calls, done = False, 0, 0


async def use() -> Mapping[str, Any]:
    global calls, done
    calls += 1
    if down:
        raise DependencyDown("scanner")
    done += 1
    return {"metadata": {"used": True}}


@activity("scan", dependency="scanner")
async def scan(item: Item, ctx: Context) -> Mapping[str, Any]:
    return await use()


@activity("unsaid")
async def unsaid(item: Item, ctx: Context) -> Mapping[str, Any]:
    return await use()


@activity("maybe", optional=True, dependency="scanner")
async def maybe(item: Item, ctx: Context) -> Mapping[str, Any]:
    return await use()


@activity("other")
async def other(item: Item, ctx: Context) -> Mapping[str, Any]:
    return {"metadata": {"other": True}}


ALL: tuple[Any, ...] = (
    scan,
    unsaid,
    maybe,
    other,
    Workflow("scan", (Step("other"), Step("scan")), finalize="finalize_upload"),
    Workflow("unsaid", (Step("unsaid"),)),
    Workflow("maybe", (Step("maybe"), Step("other")), finalize="finalize_upload"),
)


async def count(kit: Kit, state: RunState) -> int:
    return int(await kit.value("SELECT count(*) FROM workflow_run WHERE state = $1", int(state)))


@pytest.mark.parametrize("workflow", ["scan", "unsaid"])
def test_an_outage_parks_runs_and_spends_nothing(dsn: str, workflow: str) -> None:
    async def main() -> None:
        global down
        down = True
        async with running(dsn, *ALL) as kit:
            ids = [await kit.submit(workflow) for _ in range(40)]

            async def parked() -> bool:
                return await count(kit, RunState.PARKED) >= 39

            await until(parked)
            during = calls
            waiting = await kit.value("SELECT max(run_id) FROM workflow_run WHERE state = 3")
            assert "It waits for scanner since" in " ".join(await kit.engine.why(waiting))
            # Probes go on, one at a time, paced; nobody else tries.
            await until(lambda: calls >= during + 4)
            down = False
            for run_id in ids:
                assert await kit.ended(run_id) is RunState.COMPLETED
            assert done == 40
            assert await kit.value("SELECT count(*) FROM journal_step WHERE status = 2") == 0
            assert await kit.value("SELECT sum(failures) FROM workflow_run") == 0
            assert not await kit.value("SELECT is_open FROM breaker")

    asyncio.run(asyncio.wait_for(main(), 60))


def test_new_runs_wait_while_the_breaker_is_open(dsn: str) -> None:
    async def main() -> None:
        global down
        down = True
        async with running(dsn, *ALL, backoff_base=30.0, backoff_cap=30.0) as kit:
            first = await kit.submit("scan")
            await kit.reaches(first, RunState.PARKED)
            assert calls == 1
            rest = [await kit.submit("scan") for _ in range(10)]
            for run_id in rest:
                await kit.reaches(run_id, RunState.PARKED)
            assert calls == 1  # no probe is due

    asyncio.run(asyncio.wait_for(main(), 60))


def test_one_probe_in_the_fleet(dsn: str) -> None:
    async def main() -> None:
        pool = await asyncpg.create_pool(dsn, min_size=2, max_size=10)
        fleet = [Breakers(pool, backoff=Backoff(0.0, 1.0), spread=0.1) for _ in range(8)]
        await fleet[0].down("scanner")
        permits = await asyncio.gather(*(b.probe("scanner") for b in fleet))
        won = [p for p in permits if p is not None]
        assert len(won) == 1
        assert await fleet[3].is_open("scanner")
        await fleet[0].down("scanner", won[0])  # the probe failed: another is due later
        assert await pool.fetchval("SELECT failures FROM breaker") == 2
        second = await fleet[1].probe("scanner")  # at once: the pause is zero here
        assert second is not None
        await fleet[1].up(won[0])  # a permit that is void closes nothing
        assert await pool.fetchval("SELECT is_open FROM breaker")
        await fleet[1].up(second)
        assert not await pool.fetchval("SELECT is_open FROM breaker")
        await pool.close()

    asyncio.run(main())


def test_the_failures_that_pile_up_while_it_is_open_do_not_slow_its_probes(dsn: str) -> None:
    """Many runs notice an outage at once; only probes count towards the pause."""

    async def main() -> None:
        pool = await asyncpg.create_pool(dsn, min_size=1, max_size=4)
        breakers = Breakers(pool, backoff=Backoff(1.0, 30.0), spread=0.1)
        for _ in range(10):
            await breakers.down("scanner")
        assert await pool.fetchval("SELECT failures FROM breaker") == 1
        assert await pool.fetchval("SELECT next_probe < clock_timestamp() + interval '2 s' FROM breaker")
        await pool.close()

    asyncio.run(main())


def test_a_dependency_that_stays_away_too_long_fails_the_run(dsn: str) -> None:
    async def main() -> None:
        global down
        down = True
        async with running(dsn, *ALL, dependency_deadline=0.5) as kit:
            run_id = await kit.submit("scan")
            assert await kit.ended(run_id) is RunState.FAILED
            assert await kit.value("SELECT error_code FROM workflow_run") == "scanner-unavailable"
            down = False
            await kit.engine.retry(run_id)
            assert await kit.ended(run_id) is RunState.COMPLETED

    asyncio.run(asyncio.wait_for(main(), 60))


def test_the_deadline_counts_from_the_first_park(dsn: str) -> None:
    async def main() -> None:
        global down
        down = True
        async with running(dsn, *ALL) as kit:
            run_id = await kit.submit("scan")
            await kit.reaches(run_id, RunState.PARKED)
            since = await kit.value("SELECT dependency_since FROM workflow_run")
            before = calls
            await until(lambda: calls > before + 1)  # it was the probe, twice
            await kit.reaches(run_id, RunState.PARKED)
            assert await kit.value("SELECT dependency_since FROM workflow_run") == since

    asyncio.run(asyncio.wait_for(main(), 60))


def test_optional_steps_are_left_out_and_filled_in_afterwards(dsn: str) -> None:
    async def main() -> None:
        global down
        down = True
        async with running(dsn, *ALL, sweep=0.1) as kit:
            ids = [await kit.submit("maybe") for _ in range(5)]
            for run_id in ids:
                assert await kit.ended(run_id) is RunState.COMPLETED
            assert all(c.state == "ready" for c in kit.subjects.contents.values())
            assert all(
                c.processing["degraded"] == {"maybe": "scanner-unavailable"} for c in kit.subjects.contents.values()
            )
            down = False

            async def filled() -> bool:
                return all("used" in c.processing for c in kit.subjects.contents.values())

            await until(filled)
            fills = [o for o in kit.subjects.outcomes if o.fills]
            assert {o.fills for o in fills} == {("maybe",)}
            assert all(o.verdict is None and o.workflow == "maybe.fill" for o in fills)
            assert await kit.value("SELECT count(*) FROM gap") == 0
            assert all(c.state == "ready" for c in kit.subjects.contents.values())

    asyncio.run(asyncio.wait_for(main(), 60))


def test_two_hundred_parked_runs_cost_an_idle_worker_nothing(dsn: str) -> None:
    """What is parked is not looked at: claims and timers touch none of it, and fresh work starts at once."""

    async def main() -> None:
        async with running(dsn, *ALL) as kit:
            await kit.enqueue(*[NewRun(f"p{n}", "scan", 1, delay=3600.0) for n in range(200)])
            assert await count(kit, RunState.PARKED) == 200
            await kit.pool.execute("ANALYZE workflow_run")
            before = await reads(kit)
            looks = kit.engine._worker.line.looks
            await until(lambda: kit.engine._worker.line.looks >= looks + 5)
            assert kit.engine.in_progress == 0
            assert await reads(kit) - before <= 20
            run_id = await kit.submit("unsaid")
            assert await kit.ended(run_id, 2) is RunState.COMPLETED
            assert await count(kit, RunState.PARKED) == 200

    async def reads(kit: Kit) -> int:
        await kit.pool.execute("SELECT pg_stat_force_next_flush()")
        return int(
            await kit.value("SELECT coalesce(n_tup_upd, 0) FROM pg_stat_user_tables WHERE relname = 'workflow_run'")
        )

    asyncio.run(asyncio.wait_for(main(), 60))
