"""Medians, percentiles and ratios of rounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

NAN = float("nan")


def middle(values: Sequence[float]) -> float:
    """The median of what was measured; NaN when nothing was."""
    known = [value for value in values if not math.isnan(value)]
    return median(known) if known else NAN


def percentile(values: Sequence[float], share: float) -> float:
    """The nearest-rank percentile; share is between 0 and 1. NaN of no values."""
    if not values:
        return NAN
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """ours / theirs, round by round; NaN where a round has no value of both."""
    return [a / b if b else NAN for a, b in zip(ours, theirs, strict=False)]


def best(peers: Sequence[Sequence[float]], *, more_is_better: bool = True) -> list[float]:
    """Of each round, the best value any peer had."""
    choose = max if more_is_better else min
    rounds = zip(*peers, strict=False)
    known = [[value for value in values if not math.isnan(value)] for values in rounds]
    return [choose(values) if values else NAN for values in known]
