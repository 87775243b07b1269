"""How long a peer may keep us waiting: a stall limit, and a minimum rate after a grace period."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PaceLimits:
    """stall: seconds without a single byte. grace: seconds of waiting before rate (bytes a second) is asked for.

    A limit on each read alone never fires when one byte arrives just in time, and a limit on the whole body would
    cut honest slow links; so waiting time is set against the bytes that came.
    """

    stall: float = 30.0
    grace: float = 30.0
    rate: float = 1024.0


@dataclass(slots=True)
class Pace:
    """One body's account: only the time spent waiting for the peer counts, never our own."""

    limits: PaceLimits
    waited: float = 0.0
    moved: int = 0

    def patience(self) -> float:
        """Seconds that the next wait may take; 0 or less: the peer is too slow."""
        due = max(self.limits.grace, self.moved / self.limits.rate) - self.waited
        return min(self.limits.stall, due)

    def account(self, waited: float, moved: int) -> None:
        self.waited += waited
        self.moved += moved
