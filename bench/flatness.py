"""Whether a measured value stays where it is: the slope of a robust line through it, against a limit."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limit:
    """Growth over the whole time that still counts as flat: a share of the median, or an absolute value."""

    share: float
    absolute: float

    def of(self, median: float) -> float:
        return max(self.share * abs(median), self.absolute)


@dataclass(frozen=True, slots=True)
class Verdict:
    """median of the values; growth: what the line through them gains from the first to the last."""

    median: float
    growth: float
    allowed: float
    flat: bool

    def __str__(self) -> str:
        word = "flat" if self.flat else "GROWS"
        return f"{word:6} median {self.median:.1f}, {self.growth:+.1f} over the time, {self.allowed:.1f} allowed"


def slope(at: Sequence[float], values: Sequence[float]) -> float:
    """The median of the slopes between all pairs (Theil and Sen): one outlier, or ten, do not turn it."""
    slopes = [
        (values[j] - values[i]) / (at[j] - at[i])
        for i in range(len(at))
        for j in range(i + 1, len(at))
        if at[j] != at[i]
    ]
    return statistics.median(slopes) if slopes else 0.0


def judge(at: Sequence[float], values: Sequence[float], limit: Limit) -> Verdict:
    """A value that sinks is flat."""
    if not values:
        return Verdict(0.0, 0.0, limit.absolute, True)
    median = statistics.median(values)
    growth = slope(at, values) * (at[-1] - at[0])
    allowed = limit.of(median)
    return Verdict(median, growth, allowed, growth <= allowed)
