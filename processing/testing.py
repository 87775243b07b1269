"""A kit for tests of activities and workflows: subjects in memory, a clock that is set, runs without a database.

    result = run_inline(my_activity, content=b"hello")
    assert result.output == {"words": 1}

``run_inline`` takes an activity or a workflow, executes it as the engine would (attempts, parks, journal) and never
sleeps: waiting moves the clock.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, cast
from uuid import UUID, uuid4

from asyncpg import Connection

from processing.breakers import Breakers
from processing.execution import Execution
from processing.model import (
    EngineSettings,
    Entry,
    Finish,
    Lease,
    NewRun,
    Outcome,
    Parking,
    RunState,
    StepRow,
    StepStatus,
    Subject,
    Verdict,
)
from processing.ports import Conn, Content, Ending, SubjectSuperseded
from processing.registry import Activity, Registry, Step, Workflow, activity_of
from processing.store import load
from processing.surroundings import NoHooks, Surroundings
from storage_tiers.tier import WHOLE, ByteSpan


class FakeClock:
    """Time as a number that a test moves."""

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


def fake_content(
    data: bytes = b"",
    *,
    key: bytes = b"file.txt",
    bucket: str = "bucket",
    declared_type: str | None = "application/octet-stream",
    seq: int = 1,
    **more: Any,
) -> Content:
    """Facts of a scanning version with these bytes."""
    facts: dict[str, Any] = {
        "subject": Subject(1, key, seq, seq),
        "tenant": 1,
        "bucket": bucket,
        "key": key,
        "version_id": f"{seq:016x}{seq:016x}",
        "state": "scanning",
        "size": len(data),
        "digest": "sha256:" + hashlib.sha256(data).hexdigest(),
        "declared_type": declared_type,
        "storage_class": "STANDARD",
        "metadata": {},
        "processing": {},
        "pieces": (),
    }
    return Content(**{**facts, **more})


class FakeSubjects:
    """The port in memory: contents by subject, compare-and-swap as the gateway does it."""

    def __init__(self, chunk: int = 65_536) -> None:
        self.contents: dict[Subject, Content] = {}
        self.bytes: dict[Subject, bytes] = {}
        self.outcomes: list[Outcome] = []  # settled, in order
        self.told: list[Outcome] = []  # after the commit
        self.follow: Callable[[Outcome], Sequence[NewRun]] = lambda outcome: ()
        self.locked_elsewhere: set[Subject] = set()
        self.sidecars: dict[tuple[Subject, str], UUID] = {}
        self.chunk = chunk

    def add(self, data: bytes = b"", **facts: Any) -> Content:
        """A new scanning version."""
        content = fake_content(data, **facts)
        self.contents[content.subject] = content
        self.bytes[content.subject] = data
        return content

    async def load(self, subject: Subject) -> Content | None:
        return self.contents.get(subject)

    def open(self, content: Content, span: ByteSpan = WHOLE) -> AsyncIterator[bytes]:
        data = self.bytes[content.subject][span.offset :]
        return self._chunks(data if span.length is None else data[: span.length])

    async def _chunks(self, data: bytes) -> AsyncIterator[bytes]:
        for start in range(0, len(data), self.chunk):
            yield data[start : start + self.chunk]

    async def lock(self, conn: Conn, subjects: Sequence[Subject], wait: bool = False) -> set[Subject]:
        return {subject for subject in subjects if wait or subject not in self.locked_elsewhere}

    async def end_ready(self, conn: Conn, finishes: Sequence[Finish]) -> dict[int, Ending]:
        return {}

    async def settle(self, conn: Conn, outcomes: Sequence[Outcome]) -> list[NewRun]:
        new: list[NewRun] = []
        for outcome in outcomes:
            self.outcomes.append(outcome)
            content = self.contents.get(cast(Subject, outcome.subject))
            if content is None:
                continue
            if outcome.fills:
                self.contents[content.subject] = replace(
                    content, processing={**content.processing, **outcome.processing}
                )
            elif outcome.verdict is not None and content.state == "scanning":
                self.contents[content.subject] = replace(
                    content,
                    state=str(outcome.verdict),
                    processing={**content.processing, **outcome.processing},
                )
            new.extend(self.follow(outcome))
        return new

    def settled(self, outcomes: Sequence[Outcome]) -> None:
        self.told.extend(outcomes)

    async def reopen(self, conn: Conn, outcome_of: Subject, workflow: str, run_id: int) -> None:
        content = self.contents.get(outcome_of)
        if content is None:
            raise SubjectSuperseded
        if content.state == "failed":
            self.contents[outcome_of] = replace(content, state="scanning")

    async def stage(self, conn: Conn | None, blob: UUID, tier: str) -> None:
        return None

    async def unstage(self, blob: UUID) -> None:
        return None

    async def swap_pieces(self, content: Content, blob: UUID, tier: str) -> bool:
        return content.subject in self.contents

    async def promote(self, content: Content, blob: UUID, tier: str, days: int) -> bool:
        return content.subject in self.contents

    async def attach_sidecar(self, content: Content, kind: str, blob: UUID, tier: str, size: int) -> bool:
        self.sidecars[content.subject, kind] = blob
        return content.subject in self.contents


class _NoBreakers(Breakers):
    """Nothing is ever down for long: a park on a dependency only moves the clock."""

    def __init__(self) -> None:
        self.learnt = {}
        self.seen: list[str] = []

    async def is_open(self, name: str) -> bool:
        return False

    async def down(self, name: str, permit: Any = None) -> None:
        self.seen.append(name)


@dataclass(slots=True)
class InlineResult:
    """What a run came to. outcome is None when it was still parked after the parks allowed."""

    outcome: Outcome | None
    journal: list[StepRow] = field(default_factory=list)
    events: list[Mapping[str, Any]] = field(default_factory=list)
    parks: list[Parking] = field(default_factory=list)
    waited: float = 0.0  # seconds the clock was moved

    @property
    def output(self) -> Mapping[str, Any]:
        """The last step's journaled output (without the finalizing one)."""
        completed = [row for row in self.journal if row.status == 1 and not row.step.startswith("finalize")]
        return cast(Mapping[str, Any], load(completed[-1].output)) if completed else {}

    @property
    def code(self) -> str | None:
        """Failure code or block reason."""
        return None if self.outcome is None else self.outcome.code

    @property
    def state(self) -> RunState | None:
        return None if self.outcome is None else self.outcome.state

    @property
    def verdict(self) -> Verdict | None:
        return None if self.outcome is None else self.outcome.verdict


def run_inline(
    what: Callable[..., Any] | Activity | Workflow | str,
    *,
    content: bytes | Content | None = None,
    subjects: FakeSubjects | None = None,
    registry: Registry | None = None,
    earlier: Mapping[str, Mapping[str, Any]] | None = None,
    input: Mapping[str, Any] | None = None,
    services: Mapping[str, Any] | None = None,
    settings: Any = None,
    state: Mapping[str, Any] | None = None,
    signals: Mapping[str, Mapping[str, Any]] | None = None,
    clock: FakeClock | None = None,
    parks: int = 1_000,
) -> InlineResult:
    """Execute an activity, or a workflow (by value, or by name in registry), to its end.

    content: the subject's bytes, or facts known to subjects. earlier: outputs of steps taken for done. state: what the
    first step stored when it parked. signals: payloads by wait key; a park on an event that is not there ends the
    inline run. parks: how many parks are waited for.
    """
    return asyncio.run(
        run_inline_async(
            what,
            content=content,
            subjects=subjects,
            registry=registry,
            earlier=earlier,
            input=input,
            services=services,
            settings=settings,
            state=state,
            signals=signals,
            clock=clock,
            parks=parks,
        )
    )


async def run_inline_async(
    what: Callable[..., Any] | Activity | Workflow | str,
    *,
    content: bytes | Content | None = None,
    subjects: FakeSubjects | None = None,
    registry: Registry | None = None,
    earlier: Mapping[str, Mapping[str, Any]] | None = None,
    input: Mapping[str, Any] | None = None,
    services: Mapping[str, Any] | None = None,
    settings: Any = None,
    state: Mapping[str, Any] | None = None,
    signals: Mapping[str, Mapping[str, Any]] | None = None,
    clock: FakeClock | None = None,
    parks: int = 1_000,
) -> InlineResult:
    """As run_inline, inside a running loop."""
    clock = clock or FakeClock()
    subjects = subjects or FakeSubjects()
    registry, workflow = _registered(what, registry)
    definition = registry.definition(workflow)
    if isinstance(content, bytes):
        content = subjects.add(content)
    elif content is not None and content.subject not in subjects.contents:
        subjects.contents[content.subject] = content
        subjects.bytes.setdefault(content.subject, b"")
    result = InlineResult(None)
    written: list[StepRow] = []

    async def flush(entry: Entry) -> bool:
        written.extend(entry.steps)
        result.events.extend({"kind": e.kind, **load(e.data)} for e in entry.events)
        return True

    async def stored(fingerprint: str) -> None:
        return None

    first = definition.steps[0].activity
    lease = Lease(
        run_id=1,
        token=uuid4(),
        tenant=1,
        lane=definition.lane,
        workflow=workflow,
        pipeline="",
        definition=definition.fingerprint,
        subject=None if content is None else content.subject,
        input=dict(input or {}),
        epoch=1,
        poll_state={first: dict(state)} if state else {},
    )
    payload: Mapping[str, Any] | None = None
    known = [
        StepRow(1, name, 1, StepStatus.COMPLETED, _text(output), None, clock.now, 0.0)
        for name, output in (earlier or {}).items()
    ]
    with ThreadPoolExecutor(1) as threads:
        around = Surroundings(
            settings=EngineSettings(),
            registry=registry,
            subjects=cast(Any, subjects),
            services=services or {},
            app_settings=settings,
            breakers=_NoBreakers(),
            threads=threads,
            hooks=NoHooks(),
            flush=flush,
            definition=cast(Any, stored),
            order_of=lambda fingerprint: 1,
            now=clock,
            chance=lambda: 0.0,
        )
        while True:
            execution = Execution(lease, around, [*known, *written], payload)
            ending = await execution.run()
            await flush(replace_entry(ending, written))
            if isinstance(ending, Finish):
                result.outcome = ending.outcome
                if ending.outcome.subject is not None:
                    await subjects.settle(cast(Connection, None), [ending.outcome])
                break
            result.parks.append(ending)
            key = ending.wait_key
            payload = None
            wait = min(ending.wake, ending.deadline)
            if key is not None and ending.dependency is None:
                if key not in (signals or {}):
                    break
                payload, wait = (signals or {})[key], 0.0
            if len(result.parks) > parks:
                break
            clock.advance(wait)
            result.waited += wait
            lease = replace(
                lease,
                epoch=lease.epoch + 1,
                poll_state=load(ending.poll_state) or {},
                failures=lease.failures + ending.failed,
                dependency=ending.dependency,
                overdue=key is None and ending.wake >= ending.deadline,
            )
    result.journal = written
    return result


def replace_entry(ending: Finish | Parking, written: Sequence[StepRow]) -> Entry:
    """The rows of an ending that are not written yet."""
    have = {(row.step, row.attempt) for row in written}
    steps = tuple(row for row in ending.steps if (row.step, row.attempt) not in have)
    return Entry(ending.run_id, ending.token, steps, ending.events)


def _text(output: Mapping[str, Any]) -> str:
    from processing.store import dump

    return dump(output)


def _registered(
    what: Callable[..., Any] | Activity | Workflow | str, registry: Registry | None
) -> tuple[Registry, str]:
    registry = registry or Registry()
    if isinstance(what, str):
        return registry, what
    if isinstance(what, Workflow):
        if what.name not in registry.workflows:
            registry.add(what)
        registry.check()
        return registry, what.name
    single = what if isinstance(what, Activity) else activity_of(what)
    if single.name not in registry.activities:
        registry.add(single)
    workflow = Workflow(f"only:{single.name}", (Step(single.name, required=True),))
    registry.add(workflow)
    return registry, workflow.name
