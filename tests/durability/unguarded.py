"""What keeps the data whole, and how to take each of it away in a server's processes: the controls of the harness."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tests.durability import forked

VARIABLE = "SLUICETEST_CHANGES"  # names of CHANGES, with commas


def _soon() -> None:
    """A process that ended is replaced at once, however short its life was."""
    from gateway.cli import supervise

    supervise.STEADY = 0.0


def _together() -> None:
    """Runs of dead workers are executed where others are: an interpreter for each of them takes its time."""
    from gateway import policy

    policy.ISOLATE = ()  # type: ignore[assignment]


CHANGES: Mapping[str, Callable[[], None]] = {
    "forked": forked.apply,
    "soon": _soon,
    "together": _together,
}


def apply(names: str) -> None:
    """In every process of a server, before anything else."""
    for name in filter(None, names.split(",")):
        CHANGES[name]()
