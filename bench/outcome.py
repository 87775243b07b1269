"""What one load on one endpoint in one round gave."""

from __future__ import annotations

from dataclasses import dataclass

from bench.stats import NAN, percentile
from bench.wrk import WrkResult


@dataclass(frozen=True, slots=True)
class Outcome:
    """value is in the load's unit; latencies in milliseconds; done is what CPU time is divided by."""

    value: float
    done: int
    p50: float
    p99: float
    seconds: float
    errors: int = 0
    note: str = ""


@dataclass(frozen=True, slots=True)
class Sample:
    """An outcome and what it took: cpu in seconds per request, settling included; pss in bytes.

    settled is the rate when the time is counted in which the endpoint finished what it had put off; flush is how long
    the machine then took to write what the endpoint had left in memory.
    """

    outcome: Outcome
    cpu: float = NAN
    pss: float = NAN
    settled: float = NAN
    flush: float = NAN


def of_wrk(found: WrkResult, note: str = "") -> Outcome:
    good = found.answers - found.refused
    return Outcome(found.rate, good, found.p50, found.p99, found.seconds, found.errors, note)


def of_times(value: float, times: list[float], seconds: float, errors: int = 0, note: str = "") -> Outcome:
    """times: seconds of each operation."""
    millis = [each * 1000 for each in times]
    return Outcome(value, len(times), percentile(millis, 0.5), percentile(millis, 0.99), seconds, errors, note)
