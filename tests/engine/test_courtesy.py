"""Runs give way to uploads that follow each other closely; by a clock that the test moves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from processing.courtesy import Courtesy
from processing.fresh import Fresh
from processing.ports import Content
from processing.testing import fake_content

MS = 1 / 1024  # seconds that add up exactly


class Clock:
    def __init__(self) -> None:
        self.now = 100.0
        self.due: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[[], None], /) -> None:
        self.due.append((self.now + delay, callback))

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while self.due and min(self.due, key=lambda each: each[0])[0] <= end:
            first = min(self.due, key=lambda each: each[0])
            self.due.remove(first)
            self.now = max(self.now, first[0])
            first[1]()
        self.now = end


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def started() -> list[tuple[float, Sequence[int]]]:
    return []


@pytest.fixture
def courtesy(clock: Clock, started: list[tuple[float, Sequence[int]]]) -> Courtesy:
    def start(runs: Sequence[int]) -> None:
        started.append((clock.now - 100.0, list(runs)))

    return Courtesy(start, lambda: clock, quiet=4 * MS, age=20 * MS, group=16)


Started = list[tuple[float, Sequence[int]]]


def test_nobody_in_the_way_means_at_once(clock: Clock, courtesy: Courtesy, started: Started) -> None:
    for n in range(3):
        courtesy.arrive([n])
        clock.advance(4 * MS)
    courtesy.arrive([7, 8, 9])
    assert started == [(0, [0]), (4 * MS, [1]), (8 * MS, [2]), (12 * MS, [7, 8, 9])]


def test_runs_of_close_uploads_start_together_when_it_is_quiet(
    clock: Clock, courtesy: Courtesy, started: Started
) -> None:
    for n in range(5):
        courtesy.arrive([n])
        clock.advance(3 * MS)
    clock.advance(1.0)
    assert started == [(0, [0]), (16 * MS, [1, 2, 3, 4])]
    assert not clock.due


def test_no_run_waits_longer_than_the_age(clock: Clock, courtesy: Courtesy, started: Started) -> None:
    for n in range(40):
        courtesy.arrive([n])
        clock.advance(2 * MS)
    clock.advance(1.0)
    waited = [at - n * 2 * MS for at, runs in started for n in runs]
    assert len(waited) == 40 and max(waited) == 20 * MS
    assert len(started) < 8  # and they went in groups


def test_a_group_that_is_full_starts_whatever_the_time(clock: Clock, courtesy: Courtesy, started: Started) -> None:
    courtesy.arrive([0])
    courtesy.arrive(range(1, 16))
    assert len(started) == 1
    courtesy.arrive([16])
    assert started[1:] == [(0, list(range(1, 17)))]
    clock.advance(1.0)
    assert len(started) == 2


def test_whoever_asks_does_not_wait(clock: Clock, courtesy: Courtesy, started: Started) -> None:
    courtesy.arrive([0])
    courtesy.arrive([1])
    courtesy.arrive([2])
    assert len(courtesy) == 2
    courtesy.hurry()
    courtesy.hurry()
    assert started == [(0, [0]), (0, [1, 2])] and not len(courtesy)


def content(size: int) -> Content:
    return replace(fake_content(b"x"), data=bytes(size))


def test_what_is_fresh_is_taken_once_and_in_time() -> None:
    clock = Clock()
    fresh = Fresh(clock.time, age=2.0, size=100, count=3)
    one, two = content(3), content(3)
    fresh.keep(1, one)
    fresh.keep(2, two)
    assert fresh.size == 6
    assert fresh.take(1) is one and fresh.take(1) is None and fresh.size == 3
    clock.advance(2.5)
    assert fresh.take(2) is None and not len(fresh) and not fresh.size


def test_what_is_fresh_is_bounded() -> None:
    clock = Clock()
    fresh = Fresh(clock.time, age=2.0, size=100, count=3)
    for n in range(5):
        fresh.keep(n, content(10))
    assert [n for n in range(5) if n in fresh._kept] == [2, 3, 4]
    fresh.keep(5, content(95))
    assert list(fresh._kept) == [5] and fresh.size == 95
    fresh.keep(6, content(200))
    assert not len(fresh) and not fresh.size
    fresh.keep(7, fake_content(b"x"))  # no bytes at hand
    clock.advance(3.0)
    fresh.expire()
    assert not len(fresh)
