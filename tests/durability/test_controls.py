"""The controls of the fail points: with a guard taken away, kills leave behind just what the guard is there to prevent.

Without them nobody would know whether the harness sees anything.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import pg
from tests.durability.killing import run_round, running_site


@dataclass(frozen=True)
class Control:
    """guard: of unguarded.CHANGES. finding: the check that has to fail, with an offender that says so. settle: what
    cleaning up takes, with all guards: what is found after that stays."""

    guard: str
    names: tuple[str, ...]
    finding: str
    settle: float = 5.0
    action: str = "kill"
    hold: float = 0.0
    deeds: int = 50
    says: str = ""


CONTROLS = (
    Control("without-reaper", ("run.claimed", "run.stepped", "run.flushed"), "live", 12.0),
    Control("without-journal", ("run.flushed", "run.flushed", "run.finishing", "run.finishing"), "steps again"),
    Control("without-transaction", ("complete.enqueued",) * 3, "unreferenced", 8.0),
    Control("answered-early", ("complete.written",) * 4, "lost", 20.0),
    Control("without-second-look", ("collect.marking", "collect.marked"), "dangling", deeds=200),
    Control("without-abandoned", ("upload.begun", "upload.midway", "upload.durable"), "leftover", 20.0),
    Control("bytes-before-row", ("upload.begun", "upload.midway", "upload.durable"), "files", says="has no row"),
    Control("row-dropped-first", ("collect.marked",) * 3, "files", says="has no row"),
    # Stopped until others have taken for dead what it staged, 15 seconds at least.
    Control("lost-staging-taken", ("upload.durable",), "dangling", 5.0, "stop", 18.0),
)

QUICK = ("without-transaction", "row-dropped-first")  # part of the suite; the others take half a minute each


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="k-", dir=pg.session_root(), ignore_cleanup_errors=True) as name:
        path = Path(name)
        path.chmod(0o711)
        yield path


@pytest.mark.slow
@pytest.mark.parametrize(
    "control",
    [pytest.param(each, id=each.guard, marks=[] if each.guard in QUICK else [pytest.mark.long]) for each in CONTROLS],
)
def test_without_its_guard_the_harness_fails(control: Control, folder: Path, new_database: Callable[[], str]) -> None:
    with running_site(folder, new_database(), "forked", "together", control.guard, workers=3) as site:
        found = run_round(
            site,
            "control",
            control.names,
            control.action,
            hold=control.hold,
            deeds=control.deeds,
            patience=60.0,
            settle=control.settle,
            clients=3,
        )
        assert "not reached" not in found
        offenders = found.get(control.finding, [])
        assert any(control.says in each for each in offenders), f"{control.guard}: nothing but {found}"
