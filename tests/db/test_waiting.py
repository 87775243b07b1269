"""Who waits for a verdict hears of it from the process that decides; who does not, costs nobody a word."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from gateway.db import waiting
from gateway.db.waiting import Waiting
from gateway.domain.objects import VersionRef

ONE, TWO = VersionRef(1, b"one", 11, 1), VersionRef(1, b"two", 22, 2)


class Fleet:
    """Processes over one table and one channel. Words reach every process, its speaker included, when deliver is
    called."""

    def __init__(self, many: int) -> None:
        self.scanning = {ONE, TWO}
        self.in_line: dict[VersionRef, int] = {}  # runs that no process has begun
        self.looked: Callable[[], Awaitable[None]] | None = None  # what happens between a look and its answer
        self.words: list[tuple[str, str]] = []
        self.said: list[str] = []
        self.processes = [Waiting(self, cap=10, publish=self.publish) for _ in range(many)]  # type: ignore[arg-type]

    async def fetch(self, _query: str, buckets: Any, keys: Any, seqs: Any, *_states: int) -> list[Any]:
        found = [(*ref.row, self.in_line.get(ref)) for ref in self.scanning if ref.seq in seqs]
        if self.looked is not None:
            looked, self.looked = self.looked, None
            await looked()
        return found

    def publish(self, kind: str, text: str) -> None:
        self.said.append(kind)
        self.words.append((kind, text))

    def deliver(self) -> None:
        while self.words:
            kind, text = self.words.pop(0)
            for process in self.processes:
                (process.asked if kind == "wanted" else process.heard)(text)

    def decide(self, process: Waiting, *refs: VersionRef) -> None:
        self.scanning -= set(refs)
        process.decide(refs)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "POLL", 3600.0)


def waits(process: Waiting, ref: VersionRef) -> asyncio.Task[bool]:
    return asyncio.create_task(process.decided(ref, 1, 5.0))


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_a_verdict_that_nobody_waits_for_is_told_to_nobody() -> None:
    async def main() -> None:
        fleet = Fleet(2)
        fleet.decide(fleet.processes[0], ONE, TWO)
        assert fleet.said == []

    asyncio.run(main())


def test_who_asks_is_told_once_it_is_decided() -> None:
    async def main() -> None:
        fleet = Fleet(2)
        decider, reader = fleet.processes
        task = waits(reader, ONE)
        await turns()
        fleet.deliver()
        fleet.decide(decider, TWO)
        fleet.decide(decider, ONE)
        fleet.deliver()
        assert await asyncio.wait_for(task, 1.0)
        assert fleet.said == ["wanted", "decided"]

    asyncio.run(main())


def test_a_verdict_that_falls_between_the_look_and_the_question_is_told() -> None:
    async def main() -> None:
        fleet = Fleet(2)
        decider, reader = fleet.processes

        async def decided() -> None:
            fleet.decide(decider, ONE)

        fleet.looked = decided  # after the question left, before it arrives
        task = waits(reader, ONE)
        await turns()
        assert fleet.said == ["wanted"]
        fleet.deliver()
        assert await asyncio.wait_for(task, 1.0)
        assert fleet.said == ["wanted", "decided"]

    asyncio.run(main())


def test_an_old_verdict_answers_one_question_only() -> None:
    """A version that is held anew is waited for anew: what was decided before says nothing of it."""

    async def main() -> None:
        fleet = Fleet(2)
        decider, reader = fleet.processes
        fleet.decide(decider, ONE)
        fleet.scanning.add(ONE)
        first = waits(reader, ONE)
        await turns()
        fleet.deliver()
        assert await asyncio.wait_for(first, 1.0)
        second = waits(reader, ONE)
        await turns()
        fleet.deliver()
        await turns()
        assert not second.done()
        fleet.decide(decider, ONE)
        fleet.deliver()
        assert await asyncio.wait_for(second, 1.0)

    asyncio.run(main())


def test_a_reader_of_the_deciding_process_needs_no_word() -> None:
    async def main() -> None:
        fleet = Fleet(1)
        (process,) = fleet.processes
        task = waits(process, ONE)
        await turns()
        fleet.deliver()
        fleet.decide(process, ONE)
        assert await asyncio.wait_for(task, 1.0)
        assert fleet.said == ["wanted"]

    asyncio.run(main())


def test_who_waits_for_a_run_in_line_has_it_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, and again with each look, for there may have been no room."""
    monkeypatch.setattr(waiting, "POLL", 0.01)

    async def main() -> None:
        fleet = Fleet(1)
        (process,) = fleet.processes
        fleet.in_line[ONE] = 7
        wanted: list[int] = []
        process.want = wanted.extend
        tasks = [waits(process, ONE), waits(process, TWO)]
        while len(wanted) < 3:
            await asyncio.sleep(0.005)
        assert set(wanted) == {7}
        fleet.decide(process, ONE, TWO)
        assert await asyncio.wait_for(asyncio.gather(*tasks), 1.0) == [True, True]

    asyncio.run(main())


def test_a_lost_question_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "POLL", 0.01)

    async def main() -> None:
        fleet = Fleet(2)
        decider, reader = fleet.processes
        task = waits(reader, ONE)
        await turns()
        fleet.words.clear()
        while not fleet.words:
            await asyncio.sleep(0.005)
        fleet.deliver()
        monkeypatch.setattr(waiting, "POLL", 3600.0)
        fleet.decide(decider, ONE)
        fleet.deliver()
        assert await asyncio.wait_for(task, 1.0)

    asyncio.run(main())


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "MEMORY", 3)

    async def main() -> None:
        fleet = Fleet(2)
        decider, reader = fleet.processes
        decider.decide([VersionRef(1, b"k", seq, 1) for seq in range(10)])
        reader.decide([ONE])
        for seq in range(10):
            decider.asked(f'["other", [[1, {100 + seq}]]]')
        assert len(decider._recent) == 3 and len(decider._wanted) == 3
        assert all(word == "decided" for word in fleet.said)
        for nonsense in ("", "{}", "[]", "1", '["x", [[1]]]', '["x", 5]'):
            decider.asked(nonsense)
            decider.heard(nonsense)

    asyncio.run(main())
