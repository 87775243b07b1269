"""The three lists that say what is expected of every test, and how a run compares with them.

passing.txt: must pass, over HTTP and over TLS. left_out.txt: needs an operation that is not there; not judged.
failing.txt: known to fail, each with its reason. A test is in exactly one of them, but for those that fail over one
transport only: they are in passing.txt too, and their reason begins with "http: " or "tls: ".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True, slots=True)
class Lists:
    """Tests by id ("test_s3.py::test_…"); the reason of those not expected to pass."""

    passing: frozenset[str]
    left_out: Mapping[str, str]
    failing: Mapping[str, str]


def load(transport: str, folder: Path = HERE) -> Lists:
    """What is expected over a transport, "http" or "tls". Raises ValueError for a test in two lists."""
    passing = frozenset(_read(folder / "passing.txt"))
    left_out, failing = _read(folder / "left_out.txt"), _read(folder / "failing.txt")
    other = {"http": "tls: ", "tls": "http: "}[transport]
    failing = {test: reason for test, reason in failing.items() if not reason.startswith(other)}
    passing -= {test for test, reason in failing.items() if reason.startswith(f"{transport}: ")}
    twice = (passing & left_out.keys()) | (passing & failing.keys()) | (left_out.keys() & failing.keys())
    if twice:
        raise ValueError(f"in two lists: {', '.join(sorted(twice))}")
    return Lists(passing, left_out, failing)


def _read(path: Path) -> dict[str, str]:
    rows: dict[str, str] = {}
    for line in path.read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            test, _, reason = line.strip().partition(" ")
            rows[test] = reason.strip()
    return rows


@dataclass(frozen=True, slots=True)
class Verdict:
    """lost: listed as passing, did not pass. missing: listed as passing, did not run. unlisted: failed and stands
    in no list. gained: passed though not listed as passing. All by test id."""

    lost: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    unlisted: tuple[str, ...] = ()
    gained: tuple[str, ...] = ()
    judged: int = 0
    passed: int = 0

    @property
    def good(self) -> bool:
        return not (self.lost or self.missing or self.unlisted)


def compare(lists: Lists, outcomes: Mapping[str, str], *, partial: bool = False) -> Verdict:
    """outcomes: by test id, "passed" or anything else. partial: a selection was run, so that nothing is missing."""
    passed = {test for test, outcome in outcomes.items() if outcome == "passed"}
    failed = outcomes.keys() - passed
    known = lists.passing | lists.left_out.keys() | lists.failing.keys()
    return Verdict(
        lost=tuple(sorted(failed & lists.passing)),
        missing=() if partial else tuple(sorted(lists.passing - outcomes.keys())),
        unlisted=tuple(sorted(failed - known)),
        gained=tuple(sorted(passed - lists.passing)),
        judged=len(outcomes.keys() - lists.left_out.keys()),
        passed=len(passed - lists.left_out.keys()),
    )


def write_passing(tests: frozenset[str], folder: Path = HERE) -> None:
    head = "# Tests that must pass, over HTTP and over TLS. Written by: make conformance ARGS=--update\n"
    (folder / "passing.txt").write_text(head + "".join(f"{test}\n" for test in sorted(tests)))
