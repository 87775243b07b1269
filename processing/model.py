"""The engine's values: runs, subjects, outcomes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID


class RunState(IntEnum):
    """The numbers are those of ``workflow_run.state``; legal transitions are in machine.py."""

    PENDING = 1
    RUNNING = 2
    PARKED = 3
    COMPLETED = 4
    FAILED = 5
    CANCELLED = 6


@dataclass(frozen=True, slots=True, order=True)
class Subject:
    """What a run is about, as an opaque name that its port understands (a version of a key)."""

    bucket_id: int
    key: bytes
    seq: int
    rnd: int


@dataclass(frozen=True, slots=True)
class NewRun:
    """A run to enqueue. run_key is deterministic: a repeated enqueue folds into the first."""

    run_key: str
    workflow: str
    tenant: int
    subject: Subject | None = None
    input: Mapping[str, Any] = field(default_factory=dict)  # JSON; ids, digests, counts and codes only
    delay: float = 0.0  # seconds before it may be claimed
    pipeline: str = ""  # which definition of the workflow: "" is the workflow's own list of steps


@dataclass(frozen=True, slots=True)
class Enqueued:
    """created: false when the key was known. claimed: born leased to this process."""

    run_id: int
    created: bool
    claimed: bool


class Verdict(StrEnum):
    READY = "ready"
    QUARANTINED = "quarantined"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended, for the port that owns its subject.

    state is COMPLETED, FAILED or CANCELLED. verdict is set for post_upload runs. code is a block reason (quarantined)
    or a failure code (failed, cancelled); detail never holds content. processing is the merged JSON of the steps:
    what goes under the version's ``processing``. results are the journaled outputs by step name.
    """

    run_id: int
    workflow: str
    subject: Subject | None
    state: RunState
    verdict: Verdict | None = None
    code: str | None = None
    detail: str | None = None
    processing: Mapping[str, Any] = field(default_factory=dict)
    results: Mapping[str, Any] = field(default_factory=dict)
    input: Mapping[str, Any] = field(default_factory=dict)
    fills: tuple[str, ...] = ()  # optional steps an earlier run left out: merge processing, leave the state alone


@dataclass(frozen=True, slots=True)
class Lease:
    """A run held by this process. token guards every write of it."""

    run_id: int
    token: UUID
    tenant: int
    lane: str
    workflow: str
    pipeline: str
    definition: str
    subject: Subject | None
    input: Mapping[str, Any]
    epoch: int
    failures: int = 0
    recoveries: int = 0
    overdue: bool = False  # it was woken by its park's deadline
    dependency: str | None = None
    poll_state: Mapping[str, Any] = field(default_factory=dict)
    retry_base: Mapping[str, int] | None = None
    cancel_requested: bool = False
    waited: bool = False  # it was parked on an event, whose payload may be there
    age: float = 0.0  # seconds since it was enqueued


class StepStatus(IntEnum):
    """The numbers are those of ``workflow_step.status``."""

    COMPLETED = 1
    FAILED = 2
    DEGRADED = 3
    BLOCKED = 4


class StepRow(NamedTuple):
    """One attempt of a step in the journal. started in Unix seconds."""

    run_id: int
    step: str
    attempt: int
    status: StepStatus
    output: str | None  # JSON
    code: str | None
    started: float
    seconds: float


class EventRow(NamedTuple):
    run_id: int
    idx: int
    at: float
    kind: str
    data: str  # JSON


@dataclass(frozen=True, slots=True)
class Entry:
    """Journal rows of one run on their way to the database."""

    run_id: int
    token: UUID
    steps: tuple[StepRow, ...]
    events: tuple[EventRow, ...]


@dataclass(frozen=True, slots=True)
class Parking(Entry):
    """The end of a lease without the end of its run. release: back to pending at once, at its place in line."""

    release: bool = False
    wake: float = 0.0  # seconds from now
    deadline: float = 0.0
    reason: str = ""
    wait_key: str | None = None
    wait_run: int | None = None  # the run whose end is awaited
    dependency: str | None = None
    poll_state: str | None = None  # JSON
    cursor: str | None = None
    failed: int = 0  # attempts that failed in this lease


@dataclass(frozen=True, slots=True)
class Finish(Entry):
    """The end of a run."""

    outcome: Outcome
    output: str  # JSON
    failed: int = 0
    again: int = 0  # so many of its steps were sent to the journal before
    gaps: tuple[tuple[str, str], ...] = ()  # (optional step, dependency) left out


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Times in seconds."""

    ttl: float = 15.0  # a worker's lease
    heartbeat: float = 3.0
    slots: int = 128  # runs in progress in this process
    tenant_slots: int = 192  # runs in progress per tenant, everywhere
    max_recoveries: int = 5  # after that many lost workers a run fails worker-lost
    dependency_deadline: float = 86_400.0  # from a run's first park on a dependency
    park_deadline: float = 7 * 86_400.0
    step_idle: float = 1_800.0  # a step without a sign of life for so long is cancelled
    backoff_base: float = 1.0
    backoff_cap: float = 30.0
    backoff_jitter: float = 0.25
    wake_spread: float = 10.0  # over how long a closing breaker wakes its runs
    poll_least: float = 0.05
    poll_most: float = 1.0
    batch: int = 256  # rows of one journal or finalize transaction
    flights: int = 1
    drain: float = 10.0  # how long running steps may go on after SIGTERM before they are handed back
    sweep: float = 60.0  # pause between sweeps
    scan_stale: float = 600.0
    retention: float = 7 * 86_400.0  # of ended runs and their journals
    database_pause: float = 1.0  # after an error of the database
    isolate: tuple[str, ...] = ()  # command for a run with recoveries, "{run}" is its id; empty: run it here
    patience: float = 5.0  # how long runs nobody waits for stand back behind a crowd of uploads
    crowd: Path | None = None  # where the processes of a machine tell each other of crowds
    claims: bool = True  # false: enqueue and operate only, run nothing here
    exclusive: bool = False  # true: never claim from the queue, execute only what run_only is given

    @property
    def takes(self) -> bool:
        """Whether this process takes runs by itself."""
        return self.claims and not self.exclusive
