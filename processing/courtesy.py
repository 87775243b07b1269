"""Runs give way to requests: while uploads follow each other closely, those of their runs that this process has in hand
start together, a little later. A group costs a round trip to the sandbox and a commit, where each alone costs its own,
and the next upload does not meet the run of the last one.

A run starts at once when no upload came shortly before; when somebody asks for it; and in any case after ``AGE``.

While uploads crowd the process (several share each flight to the database), their runs stand in line instead, and the
line waits (worker.py): a burst is acknowledged as fast as it can be stored, and processed after it.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol

QUIET = 0.012  # seconds without an upload after which nobody is in the way
AGE = 0.1  # seconds that a run waits at most
GROUP = 16  # runs that start whatever else
CROWD = 4  # uploads in one flight are a crowd
CROWDED = 0.1  # seconds that the last crowd is remembered
MOMENT = struct.Struct("d")


class Timers(Protocol):
    """The part of an event loop that is used here."""

    def time(self) -> float: ...
    def call_later(self, delay: float, callback: Callable[[], None], /) -> object: ...


class Crowd:
    """When uploads last crowded a process, by the machine's monotonic clock. With a path, all processes that have it
    know it of each other: they share their processors, whoever accepts the connections."""

    def __init__(self, path: Path | None = None) -> None:
        self._last = float("-inf")
        self._fd = -1
        if path is not None:
            with contextlib.suppress(OSError):  # then each process knows of its own only, as on a full disk
                path.parent.mkdir(parents=True, exist_ok=True)
                self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def mark(self, now: float) -> None:
        self._last = now
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.pwrite(self._fd, MOMENT.pack(now), 0)

    def since(self, now: float) -> float:
        """Seconds."""
        last = self._last
        if self._fd >= 0 and now - last >= CROWDED and len(raw := os.pread(self._fd, MOMENT.size, 0)) == MOMENT.size:
            (theirs,) = MOMENT.unpack(raw)
            if theirs <= now:  # else it is from before the machine was started
                last = max(last, theirs)
        return now - last

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


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
        crowd: Crowd | None = None,
    ) -> None:
        self._start, self._timers = start, timers
        self._quiet, self._age, self._group = quiet, age, group
        self._waiting: list[int] = []
        self._first = self._last = float("-inf")  # when the oldest of them came, when the last upload did
        self._armed = False
        self._crowd = crowd or Crowd()

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

    def stored(self, uploads: int) -> None:
        """So many uploads share a flight."""
        if uploads >= CROWD:
            self._crowd.mark(self._timers().time())

    @property
    def crowded(self) -> bool:
        """Whether uploads crowd the processes here just now."""
        return self._crowd.since(self._timers().time()) < CROWDED

    def close(self) -> None:
        self._crowd.close()

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
