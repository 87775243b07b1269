"""Runs give way to requests: while uploads follow each other closely, those of their runs that this process has in hand
start together, a little later. A group costs a round trip to the sandbox and a commit, where each alone costs its own,
and the next upload does not meet the run of the last one.

A run starts at once when no upload came shortly before; when somebody asks for it; and in any case after ``AGE``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

QUIET = 0.012  # seconds without an upload after which nobody is in the way
AGE = 0.1  # seconds that a run waits at most
GROUP = 16  # runs that start whatever else


class Timers(Protocol):
    """The part of an event loop that is used here."""

    def time(self) -> float: ...
    def call_later(self, delay: float, callback: Callable[[], None], /) -> object: ...


class Courtesy:
    """start takes runs, in the order of their arrival, each once."""

    def __init__(
        self,
        start: Callable[[Sequence[int]], None],
        timers: Callable[[], Timers],
        *,
        quiet: float = QUIET,
        age: float = AGE,
        group: int = GROUP,
    ) -> None:
        self._start, self._timers = start, timers
        self._quiet, self._age, self._group = quiet, age, group
        self._waiting: list[int] = []
        self._first = self._last = float("-inf")  # when the oldest of them came, when the last upload did
        self._armed = False

    def __len__(self) -> int:
        return len(self._waiting)

    def arrive(self, runs: Iterable[int]) -> None:
        """Runs of uploads that were just answered."""
        now = self._timers().time()
        calm = not self._waiting and now - self._last >= self._quiet
        self._last = now
        if not self._waiting:
            self._first = now
        self._waiting += runs
        if calm or len(self._waiting) >= self._group:
            self.hurry()
        elif not self._armed:
            self._arm(now)

    @property
    def busy(self) -> bool:
        """Whether uploads follow each other closely just now."""
        return self._timers().time() - self._last < self._quiet

    def hurry(self) -> None:
        """Start all that wait."""
        if self._waiting:
            runs, self._waiting = self._waiting, []
            self._start(runs)

    def _arm(self, now: float) -> None:
        self._armed = True
        due = min(self._first + self._age, self._last + self._quiet)
        self._timers().call_later(max(0.001, due - now), self._look)

    def _look(self) -> None:
        self._armed = False
        if not self._waiting:
            return
        now = self._timers().time()
        if now - self._last >= self._quiet or now - self._first >= self._age:
            self.hurry()
        else:
            self._arm(now)
