"""Claims: who is served next, how many at once, and that nobody is forgotten."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

import asyncpg

from processing import store
from processing.context import Context, Item
from processing.maintenance.sweeps import reactivate
from processing.model import Enqueued, Lease, NewRun, RunState
from processing.registry import Step, Workflow, activity
from tests.engine.kit import running, until

INSERT = """
INSERT INTO workflow_run (run_key, tenant, lane, workflow, pipeline, definition, input, state)
SELECT format('%s:%s:%s', $1::bigint, $2::text, i), $1, $2, 'w', '', 'f', '{}', 1 FROM generate_series(1, $3::int) i"""


async def fill(conn: Any, tenant: int, count: int, lane: str = "") -> None:
    async with conn.transaction():
        await conn.execute(INSERT, tenant, lane, count)
        await conn.execute("SELECT engine_activate(ARRAY[$1::bigint], ARRAY[$2::text])", tenant, lane)


async def claim(
    conn: Any, want: int, cap: int = 64, worker: int = 1, caps: Mapping[str, int] | None = None
) -> tuple[list[Lease], bool]:
    return await store.claim(conn, worker, want, cap, caps or {})


async def release(conn: Any, leases: Sequence[Lease]) -> None:
    await conn.execute(
        "UPDATE workflow_run SET state = 4, lease_token = NULL, finished_at = now() WHERE run_id = ANY ($1::bigint[])",
        [lease.run_id for lease in leases],
    )


def test_oldest_first_within_a_tenant_and_round_robin_between_them(dsn: str) -> None:
    async def main() -> None:
        conn = await asyncpg.connect(dsn)
        for tenant in (1, 2, 3):
            await fill(conn, tenant, 5)
        leases, _ = await claim(conn, 6)
        assert Counter(lease.tenant for lease in leases) == {1: 2, 2: 2, 3: 2}
        assert sorted(lease.run_id for lease in leases if lease.tenant == 1) == [1, 2]
        order = [(await claim(conn, 1))[0][0].tenant for _ in range(6)]
        assert sorted(order[:3]) == [1, 2, 3]
        assert order[:3] == order[3:]
        await conn.close()

    asyncio.run(main())


def test_what_one_tenant_leaves_another_gets(dsn: str) -> None:
    async def main() -> None:
        conn = await asyncpg.connect(dsn)
        await fill(conn, 1, 20)
        await fill(conn, 2, 1)
        leases, _ = await claim(conn, 10)
        assert Counter(lease.tenant for lease in leases) == {1: 9, 2: 1}
        await conn.close()

    asyncio.run(main())


def test_caps_of_lanes_and_tenants(dsn: str) -> None:
    async def main() -> None:
        conn = await asyncpg.connect(dsn)
        await fill(conn, 1, 20)
        await fill(conn, 1, 20, "heavy")
        await fill(conn, 2, 20)
        await conn.execute("UPDATE tenant_q SET max_running = 2 WHERE tenant = 2")
        taken: list[Lease] = []
        for _ in range(5):
            taken += (await claim(conn, 50, cap=8, caps={"heavy": 3}))[0]
        assert Counter((lease.tenant, lease.lane) for lease in taken) == {(1, ""): 8, (1, "heavy"): 3, (2, ""): 2}
        await release(conn, [lease for lease in taken if lease.lane == "heavy"][:2])
        assert [lease.lane for lease in (await claim(conn, 50, cap=8, caps={"heavy": 3}))[0]] == ["heavy"] * 2
        await conn.close()

    asyncio.run(main())


def test_the_cap_is_exact_under_concurrent_claims(dsn: str) -> None:
    """Claims and ends race; whatever moment one looks, no tenant has more than its cap in progress."""

    async def main() -> None:
        pool = await asyncpg.create_pool(dsn, min_size=8, max_size=10)
        async with pool.acquire() as conn:
            await fill(conn, 1, 400)
            await fill(conn, 2, 150)
        seen: list[int] = []
        done: set[int] = set()

        async def worker(number: int) -> None:
            async with pool.acquire() as conn:
                idle = 0
                while idle < 3:
                    leases, passed = await claim(conn, 5, cap=8, worker=number)
                    idle = 0 if leases or passed else idle + 1
                    for lease in leases:
                        assert lease.run_id not in done
                        done.add(lease.run_id)
                    await release(conn, leases)

        async def observer() -> None:
            async with pool.acquire() as conn:
                while True:
                    seen.append(
                        await conn.fetchval(
                            "SELECT coalesce(max(n), 0) FROM (SELECT count(*) AS n FROM workflow_run"
                            " WHERE state = 2 GROUP BY tenant) c"
                        )
                    )

        watching = asyncio.create_task(observer())
        await asyncio.gather(*(worker(n) for n in range(6)))
        watching.cancel()
        assert max(seen) <= 8
        assert len(done) == 550
        assert await pool.fetchval("SELECT count(*) FROM tenant_q WHERE active") == 0
        await pool.close()

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_flood_of_one_tenant_does_not_delay_another(dsn: str) -> None:
    """B199: 10,000 runs of A, then one of B, while A keeps adding: B starts within (workers + 1) claims."""

    async def main() -> None:
        conn = await asyncpg.connect(dsn)
        await fill(conn, 1, 10_000)
        workers = 2
        for _ in range(3):
            await claim(conn, 1, cap=1_000_000)
        await conn.execute(INSERT.replace("'%s:%s:%s'", "'late%s:%s:%s'"), 2, "", 1)
        await conn.execute("SELECT engine_activate(ARRAY[2::bigint], ARRAY[''])")
        for number in range(1, workers + 2):
            await conn.execute(INSERT.replace("'%s:%s:%s'", f"'more{number}%s:%s:%s'"), 1, "", 100)
            leases, _ = await claim(conn, 1, cap=1_000_000, worker=number)
            if leases[0].tenant == 2:
                break
        else:
            raise AssertionError("the one run did not start")
        await conn.close()

    asyncio.run(main())


def test_a_claim_that_passes_over_a_locked_tenant_says_so(dsn: str) -> None:
    async def main() -> None:
        one, two = await asyncpg.connect(dsn), await asyncpg.connect(dsn)
        await fill(one, 1, 3)
        async with one.transaction():
            assert len((await claim(one, 1))[0]) == 1
            assert await claim(two, 1) == ([], True)
        leases, passed = await claim(two, 1)
        assert (len(leases), passed) == (1, False)
        await one.close()
        await two.close()

    asyncio.run(main())


def test_a_tenant_is_not_switched_off_while_somebody_enqueues_for_it(dsn: str) -> None:
    """The race that loses activations: the claim finds the tenant empty while a run of it is about to commit."""

    async def main() -> None:
        one, two = await asyncpg.connect(dsn), await asyncpg.connect(dsn)
        await fill(one, 1, 1)
        await release(one, (await claim(one, 5))[0])
        await one.execute("UPDATE tenant_q SET active = true")
        # The tenant is on, and empty. An enqueue that is not committed yet keeps it on.
        async with one.transaction():
            await one.execute(INSERT.replace("'%s:%s:%s'", "'next%s:%s:%s'"), 1, "", 1)
            await one.execute("SELECT engine_activate(ARRAY[1::bigint], ARRAY[''])")
            assert (await claim(two, 5))[0] == []
        assert await two.fetchval("SELECT active FROM tenant_q")
        assert len((await claim(two, 5))[0]) == 1
        await two.execute("UPDATE tenant_q SET active = true")
        # And one that begins while the claim is switching it off waits, and switches it on again.
        async with two.transaction():
            await claim(two, 5)
            assert not await two.fetchval("SELECT active FROM tenant_q")
            late = asyncio.create_task(fill_late(one))
            await until(lambda: waiting(dsn))
        await late
        assert await two.fetchval("SELECT active FROM tenant_q")
        assert len((await claim(two, 5))[0]) == 1
        await one.close()
        await two.close()

    async def fill_late(conn: Any) -> None:
        async with conn.transaction():
            await conn.execute(INSERT.replace("'%s:%s:%s'", "'late%s:%s:%s'"), 1, "", 1)
            await conn.execute("SELECT engine_activate(ARRAY[1::bigint], ARRAY[''])")

    asyncio.run(main())


async def waiting(dsn: str) -> bool:
    conn = await asyncpg.connect(dsn)
    try:
        return bool(
            await conn.fetchval(
                "SELECT EXISTS (SELECT FROM pg_locks l JOIN pg_stat_activity a USING (pid)"
                " WHERE NOT l.granted AND a.datname = current_database())"
            )
        )
    finally:
        await conn.close()


def test_the_sweep_switches_forgotten_tenants_on(dsn: str) -> None:
    async def main() -> None:
        conn = await asyncpg.connect(dsn)
        await fill(conn, 1, 1)
        await conn.execute("UPDATE tenant_q SET active = false")
        assert (await claim(conn, 5))[0] == []
        async with conn.transaction():
            await reactivate(conn, 0, None)  # type: ignore[arg-type]
        assert len((await claim(conn, 5))[0]) == 1
        await conn.close()

    asyncio.run(main())


@activity("quick", eager=False)
async def quick(item: Item, ctx: Context) -> Mapping[str, Any]:
    return {}


FLOW = Workflow("flow", (Step("quick"),))


def test_no_run_is_left_behind_by_races_of_enqueue_claim_and_switch_off(dsn: str) -> None:
    """Many small enqueues from a process that never claims, while two others claim, empty and switch off."""

    async def main() -> None:
        async with (
            running(dsn, quick, FLOW) as kit,
            running(dsn, quick, FLOW),
            running(dsn, quick, FLOW, claims=False) as source,
        ):
            total = 300

            async def some(number: int) -> None:
                for n in range(total // 6):
                    await source.enqueue(NewRun(f"r{number}.{n}", "flow", number % 3))

            await asyncio.gather(*(some(n) for n in range(6)))

            async def all_done() -> bool:
                return bool(await kit.value("SELECT count(*) FROM workflow_run WHERE state = 4") == total)

            await until(all_done, 20)

    asyncio.run(main())


def test_a_run_is_born_claimed_only_while_nobody_waits(dsn: str) -> None:
    async def main() -> None:
        async with running(dsn, quick, FLOW, poll_least=5.0, poll_most=5.0) as kit:
            (alone,) = await kit.enqueue(NewRun("a", "flow", 1))
            assert alone.claimed
            for turn in range(50):  # the one that waits may be claimed before the next is enqueued
                async with kit.pool.acquire() as conn:
                    await fill(conn, 7 + turn, 1)
                (later,) = await kit.enqueue(NewRun(f"b{turn}", "flow", 1))
                if not later.claimed:
                    break
            assert not later.claimed
            assert await kit.ended(later.run_id) is RunState.COMPLETED

    asyncio.run(main())


def test_an_abandoned_enqueue_leaves_nothing_and_gives_its_slots_back(dsn: str) -> None:
    async def main() -> None:
        async with running(dsn, quick, FLOW, slots=2) as kit:
            for _ in range(5):
                async with kit.pool.acquire() as conn:
                    transaction = conn.transaction()
                    await transaction.start()
                    answers = await kit.engine.enqueue(conn, [NewRun(f"r{n}", "flow", 1) for n in range(2)])
                    await transaction.rollback()
                assert [a.claimed for a in answers] == [True, True]
                kit.engine.abandon(answers)
            assert await kit.value("SELECT count(*) FROM workflow_run") == 0

    asyncio.run(main())


def test_a_commit_whose_answer_was_lost_is_found_by_the_heartbeat(dsn: str) -> None:
    """The run is in the database as running here, but nobody here knows of it: it goes back and is executed."""

    async def main() -> None:
        async with running(dsn, quick, FLOW, heartbeat=0.05) as kit:
            (answer,) = await kit.enqueue(NewRun("a", "flow", 1), launch=False)
            assert answer.claimed
            kit.engine.abandon([Enqueued(answer.run_id, True, True)])
            assert await kit.ended(answer.run_id) is RunState.COMPLETED
            assert await kit.value("SELECT recoveries FROM workflow_run") == 0

    asyncio.run(main())


def test_a_token_is_new_with_every_claim(dsn: str) -> None:
    async def main() -> None:
        conn = await asyncpg.connect(dsn)
        await fill(conn, 1, 2)
        leases, _ = await claim(conn, 2)
        assert leases[0].token != leases[1].token
        assert await store.take(conn, leases[0].run_id, 9, uuid4()) is None
        taken = await store.take(conn, leases[0].run_id, 9, leases[0].token)
        assert taken is not None
        assert taken.token != leases[0].token
        await conn.close()

    asyncio.run(main())
