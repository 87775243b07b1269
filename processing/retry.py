"""How long to wait before trying again. Pure: randomness comes in as a number in [0, 1)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential: base, 2 base, 4 base … up to cap seconds, plus up to jitter times that."""

    base: float = 1.0
    cap: float = 30.0
    jitter: float = 0.25

    def delay(self, failed: int, chance: float, least: float = 0.0) -> float:
        """Seconds after the failed-th failure (1 is the first). Jitter only adds, so least is never undercut."""
        plain = min(self.cap, self.base * 2.0 ** min(max(failed - 1, 0), 32))
        return max(plain, least) + plain * self.jitter * chance


def poll_interval(current: float, found: bool, least: float, most: float) -> float:
    """The next pause of an adaptive poll: least after a find, twice the last one otherwise, up to most."""
    return least if found else min(most, max(least, current * 2.0))
