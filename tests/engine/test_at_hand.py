"""What its upload left at hand serves a run's first lease only; and runs that give way wait for nobody who asks."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from processing import courtesy
from processing.context import Context, Item
from processing.failures import Retry
from processing.model import NewRun, RunState, Subject
from processing.ports import Content
from processing.registry import Step, Workflow, activity
from processing.testing import FakeSubjects
from tests.engine.kit import run, running, until

seen: list[tuple[int, bytes]] = []


@activity("read")
async def read(item: Item, ctx: Context) -> Mapping[str, Any]:
    seen.append((item.attempt, b"".join([chunk async for chunk in ctx.open()])))
    if item.attempt < item.input.get("good", 1):
        raise Retry("scanner-unavailable")
    return {}


UPLOAD = Workflow("upload", (Step("read"),), finalize="finalize_upload")


class Counting(FakeSubjects):
    loads = 0

    async def load(self, subject: Subject) -> Content | None:
        self.loads += 1
        return await super().load(subject)


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    seen.clear()


def test_the_first_lease_takes_what_is_at_hand_and_later_ones_look(dsn: str) -> None:
    async def main() -> None:
        subjects = Counting()
        content = subjects.add(b"stored")
        async with running(dsn, read, UPLOAD, subjects=subjects) as kit:
            new = NewRun("r", "upload", 1, content.subject, input={"good": 2})
            (born,) = await kit.enqueue(new, launch=False)
            kit.engine._worker.fresh.keep(born.run_id, replace(content, data=b"at hand"))
            kit.engine.launch([born])
            assert await kit.ended(born.run_id) is RunState.COMPLETED
            assert seen == [(1, b"at hand"), (2, b"stored")]
            assert subjects.loads == 1 and not len(kit.engine._worker.fresh)

    run(main)


def test_a_run_in_line_takes_it_too(dsn: str) -> None:
    async def main() -> None:
        subjects = Counting()
        content = subjects.add(b"stored")
        async with running(dsn, read, UPLOAD, subjects=subjects, tenant_slots=0) as kit:
            (waiting,) = await kit.enqueue(NewRun("r", "upload", 1, content.subject), launch=False)
            assert not waiting.claimed
            kit.engine._worker.fresh.keep(waiting.run_id, replace(content, data=b"at hand"))
            await kit.value("UPDATE tenant_q SET max_running = 1")
            kit.engine.launch([waiting])
            assert await kit.ended(waiting.run_id) is RunState.COMPLETED
            assert seen == [(1, b"at hand")] and subjects.loads == 0

    run(main)


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that give way do so until somebody asks."""
    kept = {"quiet": 3600.0, "age": 3600.0, "group": 1000}
    monkeypatch.setattr(courtesy.Courtesy.__init__, "__kwdefaults__", kept)


@pytest.mark.usefixtures("endless")
@pytest.mark.parametrize("who", ["reader", "caller", "drain"])
def test_a_run_that_gives_way_starts_when_somebody_asks(dsn: str, who: str) -> None:
    async def main() -> None:
        async with running(dsn, read, UPLOAD) as kit:
            first = await kit.submit("upload")
            assert await kit.ended(first) is RunState.COMPLETED
            second = await kit.submit("upload")
            await asyncio.sleep(0.05)
            assert kit.engine._worker.reserved and await kit.state(second) is RunState.RUNNING and len(seen) == 1
            if who == "reader":
                subject = kit.engine._worker.reserved[second].subject
                assert subject is not None
                kit.engine.hurry([(subject.bucket_id, subject.seq + 1)])
                assert kit.engine._worker.reserved
                kit.engine.hurry([(subject.bucket_id, subject.seq)])
                assert not kit.engine._worker.reserved
            if who == "caller":
                assert await kit.ended(second) is RunState.COMPLETED
        assert len(seen) == 2

    run(main)


@pytest.mark.usefixtures("endless")
def test_a_run_that_is_superseded_while_it_gives_way_never_starts(dsn: str) -> None:
    async def main() -> None:
        async with running(dsn, read, UPLOAD) as kit:
            assert await kit.ended(await kit.submit("upload")) is RunState.COMPLETED
            second = await kit.submit("upload")
            async with kit.pool.acquire() as conn, conn.transaction():
                await kit.engine.supersede(conn, [second])
            assert not kit.engine._worker.reserved
            kit.engine._worker._courtesy.hurry()
            await until(lambda: not kit.engine.in_progress)
            assert await kit.state(second) is RunState.CANCELLED
        assert len(seen) == 1

    run(main)
