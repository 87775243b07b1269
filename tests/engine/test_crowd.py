"""In a crowd of uploads runs stand in line and the line waits; what somebody waits for is claimed past it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from processing import courtesy, store
from processing.courtesy import MOMENT, Courtesy, Crowd
from processing.model import Lease, NewRun, RunState
from tests.engine.kit import Kit, run, running
from tests.engine.test_claim import FLOW, claim, fill, quick
from tests.engine.test_courtesy import Clock


async def fetch(conn: Any, run_ids: Sequence[int], want: int = 16, cap: int = 64, **caps: int) -> list[Lease]:
    return await store.claim_wanted(conn, 9, run_ids, want, cap, caps)


def test_wanted_runs_go_past_the_line(dsn: str) -> None:
    async def main() -> None:
        conn = await asyncpg.connect(dsn)
        await fill(conn, 1, 5)
        await fill(conn, 2, 2)
        (lease,) = await fetch(conn, [4, 99])
        assert (lease.run_id, lease.tenant, lease.epoch) == (4, 1, 1)
        row = await conn.fetchrow("SELECT state, worker_id, lease_token FROM workflow_run WHERE run_id = 4")
        assert tuple(row) == (RunState.RUNNING, 9, lease.token)
        assert await fetch(conn, [4]) == []
        assert [each.run_id for each in await fetch(conn, [7, 6, 5], want=2)] in ([5, 6], [5, 7], [6, 7], [6, 5])
        assert [each.run_id for each in (await claim(conn, 1))[0]] == [1]  # turns are as they were
        await conn.close()

    run(main)


def test_wanted_runs_keep_to_the_caps(dsn: str) -> None:
    async def main() -> None:
        conn = await asyncpg.connect(dsn)
        await fill(conn, 1, 5)
        await fill(conn, 1, 3, "slow")
        assert len(await fetch(conn, range(1, 9), cap=2, slow=1)) == 3
        assert await fetch(conn, range(1, 9), cap=2, slow=1) == []
        await conn.execute("UPDATE tenant_q SET max_running = 3 WHERE lane = ''")
        assert [lease.lane for lease in await fetch(conn, range(1, 9), cap=2, slow=1)] == [""]
        await conn.close()

    run(main)


def test_the_caps_hold_against_claims_at_the_same_time(dsn: str) -> None:
    async def main() -> None:
        pool = await asyncpg.create_pool(dsn, min_size=8, max_size=8)
        async with pool.acquire() as conn:
            await fill(conn, 1, 400)
        most = 0

        async def some(wanted: bool) -> None:
            nonlocal most
            for turn in range(40):
                async with pool.acquire() as conn:
                    if wanted:
                        leases = await fetch(conn, range(400 - 9 * turn, 400), cap=8)
                    else:
                        leases, _ = await claim(conn, 8, cap=8)
                    most = max(most, await conn.fetchval("SELECT count(*) FROM workflow_run WHERE state = 2"))
                    await conn.execute(
                        "UPDATE workflow_run SET state = 4, lease_token = NULL, finished_at = now()"
                        " WHERE run_id = ANY ($1::bigint[])",
                        [lease.run_id for lease in leases],
                    )

        await asyncio.gather(*(some(n % 2 == 0) for n in range(8)))
        assert 0 < most <= 8
        await pool.close()

    run(main)


@pytest.fixture
def lasting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A crowd does not pass."""
    monkeypatch.setattr(courtesy, "CROWDED", 3600.0)


async def crowd(kit: Kit) -> None:
    """Uploads crowd the engine, and it has begun to give way."""
    kit.engine._worker.stored(courtesy.CROWD)
    (first,) = await kit.enqueue(NewRun("first", "flow", 1))
    assert not first.claimed
    assert await kit.ended(first.run_id) is RunState.COMPLETED


async def stands(kit: Kit, key: str) -> int:
    """A run that stands in line, and goes on to do so."""
    (answer,) = await kit.enqueue(NewRun(key, "flow", 1))
    await asyncio.sleep(0.3)
    assert await kit.state(answer.run_id) is RunState.PENDING
    return answer.run_id


@pytest.mark.usefixtures("lasting")
def test_in_a_crowd_the_line_waits_but_for_what_is_wanted(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with running(dsn, quick, FLOW, patience=3600.0) as kit:
            await crowd(kit)
            one, two = await stands(kit, "one"), await stands(kit, "two")
            kit.engine.want([two])
            assert await kit.ended(two) is RunState.COMPLETED
            assert await kit.state(one) is RunState.PENDING
            monkeypatch.setattr(courtesy, "CROWDED", 0.0)
            assert await kit.ended(one) is RunState.COMPLETED
            (calm,) = await kit.enqueue(NewRun("calm", "flow", 1))
            assert await kit.ended(calm.run_id) is RunState.COMPLETED

    run(main)


@pytest.mark.usefixtures("lasting")
def test_the_line_waits_no_longer_than_its_patience(dsn: str) -> None:
    async def main() -> None:
        async with running(dsn, quick, FLOW, patience=0.5) as kit:
            await crowd(kit)
            (answer,) = await kit.enqueue(NewRun("one", "flow", 1))
            assert not answer.claimed
            assert await kit.ended(answer.run_id) is RunState.COMPLETED

    run(main)


def test_who_runs_nothing_fetches_nothing(dsn: str) -> None:
    async def main() -> None:
        async with running(dsn, quick, FLOW, claims=False) as kit:
            (answer,) = await kit.enqueue(NewRun("one", "flow", 1))
            kit.engine.want([answer.run_id])
            await asyncio.sleep(0.1)
            assert await kit.state(answer.run_id) is RunState.PENDING

    run(main)


def test_many_uploads_in_one_flight_are_a_crowd_for_a_moment() -> None:
    clock = Clock()
    polite = Courtesy(lambda runs: None, lambda: clock)
    assert not polite.crowded
    polite.stored(courtesy.CROWD - 1)
    assert not polite.crowded
    polite.stored(courtesy.CROWD)
    assert polite.crowded
    clock.advance(courtesy.CROWDED * 1.01)
    assert not polite.crowded


def test_processes_tell_each_other_of_a_crowd(tmp_path: Path) -> None:
    path = tmp_path / "run" / "crowd"
    one, two, alone = Crowd(path), Crowd(path), Crowd()
    assert one.since(50.0) == float("inf")
    two.mark(49.0)
    alone.mark(49.5)
    assert (one.since(50.0), two.since(50.0), alone.since(50.0)) == (1.0, 1.0, 0.5)
    one.mark(49.75)
    assert two.since(50.0) == 0.25
    path.write_bytes(MOMENT.pack(1e9))  # from before the machine was started
    assert one.since(50.0) == 0.25 and two.since(50.0) == 1.0
    path.write_bytes(b"")
    assert two.since(50.0) == 1.0
    for each in (one, two, alone):
        each.close()
        each.close()
