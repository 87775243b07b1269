"""Facts and bytes of subjects that this process has just stored, kept for the first leases of their runs.

What is kept is what a look at the database would have found then; a lease taken later than ``age``, or by another
process, looks for itself. Nothing is decided by what lies here: every write of a run names its lease and its version.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from processing.ports import Content

AGE = 10.0  # seconds
BYTES = 8 << 20  # of contents, together
COUNT = 2048


class Fresh:
    """By run. Holds at most ``count`` contents, of ``size`` bytes together: the oldest go first."""

    def __init__(self, clock: Callable[[], float], *, age: float = AGE, size: int = BYTES, count: int = COUNT) -> None:
        self._clock, self._age, self._most, self._count = clock, age, size, count
        self._kept: OrderedDict[int, tuple[float, Content]] = OrderedDict()
        self.size = 0

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, run_id: int, content: Content) -> None:
        now = self._clock()
        self._kept[run_id] = now, content
        self.size += len(content.data or b"")
        self._thin_out(now)

    def expire(self) -> None:
        """Let go what nobody may take any more."""
        self._thin_out(self._clock())

    def _thin_out(self, now: float) -> None:
        while self._kept:
            kept, (since, _) = next(iter(self._kept.items()))
            if self.size <= self._most and len(self._kept) <= self._count and now - since <= self._age:
                return
            self._remove(kept)

    def take(self, run_id: int) -> Content | None:
        """Once: who comes again has to look."""
        if run_id not in self._kept:
            return None
        since, content = self._remove(run_id)
        return content if self._clock() - since <= self._age else None

    def _remove(self, run_id: int) -> tuple[float, Content]:
        entry = self._kept.pop(run_id)
        self.size -= len(entry[1].data or b"")
        return entry
