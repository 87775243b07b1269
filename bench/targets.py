"""What this gateway is to reach, as ratios within one run. Missed means below 0.95 of it in three runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.endpoint import OURS
from bench.outcome import Sample
from bench.stats import best, middle, ratios

PEERS = ("seaweedfs", "versitygw", "minio")
SLACK = 0.95


@dataclass(frozen=True, slots=True)
class Target:
    """value of ours over that of the best of peers; without peers ours is held against limit as it is (ms, bytes)."""

    load: str
    field: str  # of Sample or Outcome
    limit: float
    peers: tuple[str, ...] = ()
    at_least: bool = True


TARGETS = (
    Target("put-new-32", "value", 1.8, PEERS),
    Target("put-new-32", "settled", 0.8, PEERS),
    Target("get-32", "value", 1.0, ("versitygw",)),
    Target("get-32", "value", 2.2, ("minio", "seaweedfs")),
    Target("put-new-1", "p50", 0.55, ("minio",), at_least=False),
    Target("list-8", "value", 4.4, ("seaweedfs",)),
    Target("put-large-1", "value", 1.0, PEERS),
    Target("put-large-4", "value", 0.8, PEERS),
    Target("get-large-1", "value", 0.8, ("versitygw",)),
    Target("get-large-4", "value", 0.95, ("versitygw",)),
    Target("get-large-1", "cpu", 1.3, ("nginx",), at_least=False),
    Target("copy-large", "value", 50.0, at_least=False),
    Target("complete-large", "value", 50.0, at_least=False),
    Target("complete-10000", "value", 1000.0, at_least=False),
    Target("ready-idle", "p50", 15.0, at_least=False),
    Target("ready-busy", "p99", 250.0, at_least=False),
)


def number(sample: Sample, field: str) -> float:
    """A field of a sample or of its outcome."""
    return float(getattr(sample if hasattr(sample, field) else sample.outcome, field))


def reached(target: Target, samples: Mapping[str, Sequence[Sample]]) -> float:
    """The median of what ours is, as target counts it; NaN when it was not measured."""
    ours = [number(sample, target.field) for sample in samples.get(OURS, ())]
    if not target.peers:
        return middle(ours)
    peers = [samples[name] for name in target.peers if name in samples]
    # What counts of a peer that finishes at once and of one that puts work off is what it answered.
    field = "value" if target.field == "settled" else target.field
    theirs = [[number(sample, field) for sample in each] for each in peers]
    return middle(ratios(ours, best(theirs, more_is_better=target.at_least)))


def verdict(target: Target, value: float) -> str:
    if math.isnan(value):
        return "not measured"
    good = value >= target.limit if target.at_least else value <= target.limit
    near = value >= target.limit * SLACK if target.at_least else value <= target.limit / SLACK
    return "reached" if good else "within 5 %" if near else "MISSED"
