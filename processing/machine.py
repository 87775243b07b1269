"""The states of a run and every legal step between them: one table.

The WHERE of each UPDATE in store.py names the states it starts from; the schema's CHECK holds what each state
requires (``check_clause`` is its text, compared by a test); the diagram of the documentation is ``diagram()``.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from processing.model import RunState

PENDING, RUNNING, PARKED = RunState.PENDING, RunState.RUNNING, RunState.PARKED
COMPLETED, FAILED, CANCELLED = RunState.COMPLETED, RunState.FAILED, RunState.CANCELLED

TRANSITIONS: Mapping[tuple[RunState, RunState], str] = MappingProxyType(
    {
        (PENDING, RUNNING): "claim",
        (RUNNING, PENDING): "hand back, reap, requeue",
        (RUNNING, PARKED): "park",
        (PARKED, PENDING): "timer, signal, resume, requeue",
        (RUNNING, COMPLETED): "finish",
        (RUNNING, FAILED): "finish",
        (PENDING, CANCELLED): "cancel",
        (RUNNING, CANCELLED): "cancel",
        (PARKED, CANCELLED): "cancel",
        (FAILED, PENDING): "retry",
        (CANCELLED, PENDING): "retry",
    }
)

BORN = (PENDING, RUNNING, PARKED)  # a delayed run is born parked on a timer
LIVE = (PENDING, RUNNING, PARKED)
TERMINAL = (COMPLETED, FAILED, CANCELLED)

# What a row in each state must have and must not have.
REQUIRES: Mapping[RunState, tuple[tuple[str, ...], tuple[str, ...]]] = MappingProxyType(
    {
        PENDING: ((), ("lease_token", "wake_at", "finished_at")),
        RUNNING: (("lease_token", "worker_id"), ("wake_at", "finished_at")),
        PARKED: (("wake_at", "park_deadline"), ("lease_token", "finished_at")),
        COMPLETED: (("finished_at",), ("lease_token", "wake_at")),
        FAILED: (("finished_at", "error_code"), ("lease_token", "wake_at")),
        CANCELLED: (("finished_at", "error_code"), ("lease_token", "wake_at")),
    }
)


def may(source: RunState, target: RunState) -> bool:
    """Whether a run may go from source to target."""
    return (source, target) in TRANSITIONS


def sources(target: RunState) -> tuple[RunState, ...]:
    """The states from which target can be reached."""
    return tuple(source for source, to in TRANSITIONS if to is target)


def check_clause() -> str:
    """The schema's CHECK on workflow_run."""
    arms = []
    for state, (needed, absent) in REQUIRES.items():
        terms = [f"state = {int(state)}"]
        terms += [f"{column} IS NOT NULL" for column in needed]
        terms += [f"{column} IS NULL" for column in absent]
        arms.append(" AND ".join(terms))
    return "\n        OR ".join(arms)


def diagram() -> str:
    """The table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2"]
    lines += [f"    [*] --> {state.name.lower()}" for state in BORN]
    lines += [f"    {a.name.lower()} --> {b.name.lower()}: {why}" for (a, b), why in TRANSITIONS.items()]
    return "\n".join(lines)
