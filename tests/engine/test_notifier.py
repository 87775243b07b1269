"""Hints between processes: coalesced, re-made when the connection goes, and never needed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any

import asyncpg

from processing.context import Context, Item
from processing.model import NewRun, RunState
from processing.notifier import Notifier
from processing.registry import Step, Workflow, activity
from tests.engine.kit import running, until


@activity("quick", eager=False)
async def quick(item: Item, ctx: Context) -> Mapping[str, Any]:
    return {}


FLOW = Workflow("flow", (Step("quick"),))


async def kill_listeners(dsn: str) -> int:
    """Terminate every session that listens; how many."""
    conn = await asyncpg.connect(dsn)
    try:
        rows = await conn.fetch(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid()"
            " AND (query ILIKE 'LISTEN%' OR query LIKE '%pg_notify(%' OR query = 'SELECT 1')"
        )
        return len(rows)
    finally:
        await conn.close()


def test_hints_reach_subscribers_of_their_kind_once_per_payload(dsn: str) -> None:
    async def main() -> None:
        one, two = Notifier(dsn), Notifier(dsn)
        heard: list[tuple[str, str]] = []
        for kind in ("run", "bucket"):
            two.subscribe(kind, lambda payload, kind=kind: heard.append((kind, payload)))  # type: ignore[misc]
        await one.start()
        await two.start()
        for n in range(100):
            one.publish("run")
            one.publish("bucket", f"b{n % 3}")
        one.publish("other", "nobody")
        await until(lambda: len(heard) >= 4)
        assert set(heard) == {("run", ""), ("bucket", "b0"), ("bucket", "b1"), ("bucket", "b2")}
        assert len(heard) <= 8  # the first leaves at once, the others together
        await one.close()
        await two.close()

    asyncio.run(main())


def test_a_payload_too_large_becomes_a_look_around(dsn: str) -> None:
    async def main() -> None:
        notifier = Notifier(dsn)
        looked: list[int] = []
        heard: list[str] = []
        notifier.subscribe("decided", heard.append, lambda: looked.append(1))
        await notifier.start()
        assert looked == [1]
        notifier.publish("decided", "x" * 9000)
        await until(lambda: len(looked) == 2)
        assert heard == []
        await notifier.close()

    asyncio.run(main())


def test_a_killed_listener_listens_again_and_looks_around(dsn: str) -> None:
    """B195"""

    async def main() -> None:
        notifier = Notifier(dsn, pause=0.02, probe=1.0)
        looked: list[int] = []
        heard: list[str] = []
        notifier.on_resync(lambda: looked.append(1))
        notifier.subscribe("run", heard.append)
        await notifier.start()
        assert notifier.connected
        for _ in range(3):
            sessions, looks = notifier.sessions, len(looked)
            assert await kill_listeners(dsn) == 1
            await until(partial(again, notifier, sessions))
            assert len(looked) == looks + 1
        notifier.publish("run", "after")
        await until(lambda: heard == ["after"])
        await notifier.close()
        assert not notifier.connected

    asyncio.run(asyncio.wait_for(main(), 60))


def again(notifier: Notifier, sessions: int) -> bool:
    return notifier.connected and notifier.sessions > sessions


def test_a_link_that_has_silently_died_is_noticed(dsn: str) -> None:
    """B195: a connection that answers nothing any more, without being closed: the probe finds out."""

    async def main() -> None:
        notifier = Notifier(dsn, pause=0.02, probe=0.2)
        await notifier.start()
        conn = notifier._conn
        assert conn is not None
        conn._transport.pause_reading()  # type: ignore[attr-defined]  # nothing arrives from now on
        await until(lambda: notifier.sessions >= 2)
        await until(lambda: notifier.connected)
        await notifier.close()

    asyncio.run(asyncio.wait_for(main(), 60))


def test_an_unreachable_database_is_no_error(dsn: str) -> None:
    async def main() -> None:
        notifier = Notifier(dsn.replace("/t_", "/missing_t_"), pause=0.02)
        await notifier.start()
        notifier.publish("run")
        assert not notifier.connected
        await notifier.close()

    asyncio.run(asyncio.wait_for(main(), 30))


def test_work_moves_by_the_poll_while_nobody_listens(dsn: str) -> None:
    """B195"""

    async def main() -> None:
        async with running(dsn, quick, FLOW) as kit, running(dsn, quick, FLOW, claims=False) as source:
            await kit.notifier.close()
            await source.notifier.close()
            for n in range(5):
                (answer,) = await source.enqueue(NewRun(f"r{n}", "flow", 1))
                assert await source.ended(answer.run_id, 5) is RunState.COMPLETED

    asyncio.run(asyncio.wait_for(main(), 60))


def test_what_was_enqueued_while_nobody_listened_is_looked_for_on_return(dsn: str) -> None:
    """B197: with a poll that is far away, the look around after listening again finds the run."""

    async def main() -> None:
        async with (
            running(dsn, quick, FLOW, poll_least=30.0, poll_most=30.0) as kit,
            running(dsn, quick, FLOW, claims=False) as source,
        ):
            await until(lambda: kit.engine._worker.line.looks >= 1)
            await source.notifier.close()
            (answer,) = await source.enqueue(NewRun("r", "flow", 1))
            assert await source.state(answer.run_id) is RunState.PENDING
            await kill_listeners(dsn)
            assert await source.ended(answer.run_id, 10) is RunState.COMPLETED

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_hint_wakes_a_worker_whose_poll_is_far_away(dsn: str) -> None:
    async def main() -> None:
        async with (
            running(dsn, quick, FLOW, poll_least=30.0, poll_most=30.0) as kit,
            running(dsn, quick, FLOW, claims=False) as source,
        ):
            await until(lambda: kit.engine._worker.line.looks >= 1)
            (answer,) = await source.enqueue(NewRun("r", "flow", 1))
            assert await source.ended(answer.run_id, 10) is RunState.COMPLETED

    asyncio.run(asyncio.wait_for(main(), 60))
