"""One run in the hands of this process: its steps in order, until it ends, parks or is taken away.

Nothing here writes: an execution flushes eager steps through its journal and answers how its lease ends (Finish or
Parking); the worker writes that.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Mapping, Sequence
from enum import StrEnum
from functools import partial
from types import CoroutineType
from typing import Any
from uuid import UUID

import structlog

from processing.breakers import Permit, wait_key
from processing.context import Context, Item, StepLog
from processing.failures import Block, DependencyDown, FatalError, Park, Retry, retryable, sentence
from processing.journal import OUTAGES
from processing.model import (
    Entry,
    EventRow,
    Finish,
    Lease,
    Outcome,
    Parking,
    RunState,
    StepRow,
    StepStatus,
    Verdict,
)
from processing.ports import Content
from processing.registry import Activity, Definition, Step, planned
from processing.retry import Backoff
from processing.store import NotJson, dump, load
from processing.surroundings import Surroundings

log = structlog.get_logger("sluice.engine")

NET = 300.0  # a run parked on a breaker looks again after NET to 2 NET seconds, whatever was lost
EVENT_SHIFT = 20  # event index = epoch << EVENT_SHIFT | n
DONE = (StepStatus.COMPLETED, StepStatus.DEGRADED)
WORDS = {status: status.name.lower() for status in StepStatus}


class Interrupt(StrEnum):
    """Why a step is cancelled from outside."""

    IDLE = "idle"  # no sign of life
    LOST = "lost"  # the lease is gone: stop, write nothing
    CANCEL = "cancel"
    DRAIN = "drain"  # the process ends: hand back


class LeaseLost(Exception):
    """Somebody else has the run now, or nobody; whatever this side still knows of it is void."""


class Execution:
    """A claimed run. ``run`` is called once, in a task that ``interrupt`` may cancel."""

    def __init__(
        self,
        lease: Lease,
        around: Surroundings,
        journal: Sequence[StepRow] = (),
        payload: Mapping[str, Any] | None = None,
        facts: Content | None = None,
    ) -> None:
        """facts: the subject's, when they are at hand."""
        self.lease = lease
        self.log = log.bind(run=lease.run_id)
        self.task: asyncio.Task[None] | None = None
        self.reason: Interrupt | None = None
        self.context: Context | None = None  # while a step runs
        self.idle = around.settings.step_idle
        self._around = around
        self._payload = payload
        self._facts = facts
        self._journal = journal  # of earlier leases
        self._tries = Counter(row.step for row in journal if row.status is StepStatus.FAILED)
        self._steps: list[StepRow] = []  # of this lease
        self._events: list[EventRow] = []
        self._flushed_steps = 0
        self._flushed_events = 0
        self._next_event = 0
        self._earlier: dict[str, Mapping[str, Any]] = {}
        self._failed = 0
        self._untouched = False  # the last step did nothing that a repetition would do twice
        self.told: dict[str, str] = {}  # step → how its last attempt ended, for the log
        self._degraded: dict[str, str] = {}
        self._gaps: list[tuple[str, str]] = []
        self._poll_state: dict[str, Any] = dict(lease.poll_state)
        self._definition: Definition | None = None
        self._began = around.monotonic()

    # --- from outside, on the loop ---

    def interrupt(self, reason: Interrupt) -> None:
        """Cancel what the run does now. Idle only counts while a step runs."""
        if self.reason in (Interrupt.LOST, reason) or (reason is Interrupt.IDLE and self.context is None):
            return
        self.reason = reason
        if self.task is not None:
            self.task.cancel()

    def stalled(self) -> bool:
        """Whether the step has shown no sign of life for too long."""
        context = self.context
        return context is not None and self._around.monotonic() - context.last_sign > self.idle

    def unflushed(self) -> Entry | None:
        """Events that wait for a write while a step runs; taken means written."""
        return self._entry() if len(self._events) > self._flushed_events else None

    # --- the run ---

    async def run(self) -> Finish | Parking:
        """Execute until the lease ends. Raises LeaseLost, CancelledError (foreign)."""
        try:
            if self.lease.cancel_requested:
                return self._end(RunState.CANCELLED, "cancelled")
            return await self._run()
        except asyncio.CancelledError:
            if self.reason is None:
                raise
            if self.task is not None:
                self.task.uncancel()
            if self.reason is Interrupt.LOST:
                raise LeaseLost from None
            if self.reason is Interrupt.CANCEL:
                return self._end(RunState.CANCELLED, "cancelled")
            return self.hand_back()

    def hand_back(self) -> Parking:
        """Back to pending at its place in line; nothing is counted."""
        return Parking(**self._fields(), release=True, failed=self._failed)

    def put_off(self) -> Parking:
        """Something around the run failed, not the run: park for a moment, nothing is counted."""
        return self._park("engine", self._cursor(), after=self._backoff().delay(3, self._around.chance()))

    async def _run(self) -> Finish | Parking:
        around, lease = self._around, self.lease
        self._event("started", {})
        found = await self._find_definition()
        if found is None:
            return self._park_visibly("unknown-definition")
        self._definition, order = found
        current = self._current()
        newer = current is not None and around.order_of(current.fingerprint) > order
        for row in self._journal:
            if row.status in DONE:
                self._earlier[row.step] = load(row.output) or {}
                if row.status is StepStatus.DEGRADED:
                    self._degraded[row.step] = row.code or "internal"
        steps = planned(self._definition, current, newer, self._earlier)
        facts, self._facts = self._facts, None
        if facts is None and lease.subject is not None:
            try:
                facts = await around.subjects.load(lease.subject)
            except Exception as error:
                self.log.warning("subject-unreadable", error=type(error).__name__)
                return self._park("subject", after=self._backoff().delay(1, around.chance()))
            if facts is None:
                return self._end(RunState.CANCELLED, "superseded")
        for position, step in enumerate(steps):
            if step.activity in self._earlier:
                continue
            activity = around.registry.activities.get(step.activity)
            if activity is None:
                removed = current is not None and newer and step.activity not in current.names
                if removed:
                    return self._end(RunState.FAILED, "configuration", f"step {step.activity} was removed")
                return self._park_visibly(f"unknown-activity:{step.activity}", step.activity)
            ending = await self._step(step, activity, facts, position, len(steps))
            if ending is not None:
                return ending
        return self._end(RunState.COMPLETED)

    async def _find_definition(self) -> tuple[Definition, int] | None:
        current = self._current()
        if current is not None and current.fingerprint == self.lease.definition:
            return current, self._around.order_of(current.fingerprint)
        return await self._around.definition(self.lease.definition)

    def _current(self) -> Definition | None:
        try:
            return self._around.registry.definition(self.lease.workflow, self.lease.pipeline)
        except ValueError:
            return None

    async def _step(
        self, step: Step, activity: Activity, facts: Content | None, position: int, total: int
    ) -> Finish | Parking | None:
        """One step, until it is done (None) or the lease ends. A failed attempt ends the lease: the wait is parked."""
        around, lease = self._around, self.lease
        name = step.activity
        attempt = self._tries[name] + 1 if self._tries else 1
        if lease.overdue and name == self._cursor():
            code = self._overdue_code()
            return await self._failed_attempt(step, activity, attempt, code, "deadline", 0.0, final=True)
        dependency = activity.dependency or around.breakers.learnt.get(name)
        permit: Permit | None = None
        if dependency is not None and await around.breakers.is_open(dependency):
            permit = await around.breakers.probe(dependency)
            if permit is None and await around.breakers.is_open(dependency):
                return await self._dependency_down(step, DependencyDown(dependency), 0.0)
        started = around.monotonic()
        try:
            around.hooks.point("stepping")
            output = await self._attempt(step, activity, facts, attempt)
            around.hooks.point("stepped")
        except DependencyDown as down:
            around.breakers.learnt[name] = down.name
            mine = permit if permit is not None and permit.name == down.name else None
            if permit is not None and mine is None:
                await around.breakers.forgo(permit)
            await around.breakers.down(down.name, mine)
            return await self._dependency_down(step, down, around.monotonic() - started)
        except asyncio.CancelledError:
            if permit is not None and self.reason is not Interrupt.LOST:
                self._spare(around.breakers.forgo(permit))
            if self.reason is not Interrupt.IDLE:
                raise
            if self.task is not None:
                self.task.uncancel()
            self.reason = None
            seconds = around.monotonic() - started
            return await self._failed_attempt(step, activity, attempt, activity.code, "idle", seconds)
        except BaseException as raised:
            if permit is not None:
                await around.breakers.up(permit)
            if not isinstance(raised, Exception):
                raise
            return await self._raised(step, activity, attempt, raised, around.monotonic() - started)
        if permit is not None:
            await around.breakers.up(permit)
        seconds = around.monotonic() - started
        self._record(name, attempt, StepStatus.COMPLETED, output, None, seconds, 100.0 * (position + 1) / (total + 1))
        if not step.lazy and not self._untouched:
            await self.flush()
        return None

    async def _attempt(self, step: Step, activity: Activity, facts: Content | None, attempt: int) -> str:
        """Call the activity; its result as JSON. Raises what it raises, and NotJson: what cannot be journaled cannot
        be replayed, so that attempt failed."""
        around, lease = self._around, self.lease
        item = Item(
            run_id=lease.run_id,
            workflow=lease.workflow,
            step=step.activity,
            attempt=attempt,
            attempts=self._limit(step, activity),
            facts=facts,
            earlier=dict(self._earlier),
            input=lease.input,
            tenant=lease.tenant,
        )
        context = Context(
            item=item,
            subjects=around.subjects,
            services=around.services,
            log=StepLog(self.log, step.activity),
            state=dict(self._poll_state.get(step.activity) or {}),
            signal=self._payload,
            settings=around.app_settings,
            loop=asyncio.get_running_loop(),
            on_progress=partial(self._progress, step.activity),
            clock=around.monotonic,
            last_sign=around.monotonic(),
        )
        self.idle = activity.idle if activity.idle is not None else around.settings.step_idle
        self.context = context
        try:
            if activity.threaded:
                call = partial(activity.function, item, context)
                result = await asyncio.get_running_loop().run_in_executor(around.threads, call)
            else:
                result = activity.function(item, context)
                if isinstance(result, CoroutineType):
                    result = await result
        finally:
            self.context = None
        self._untouched = context.untouched
        if not result and (result is None or type(result) is dict):
            return "{}"
        if not isinstance(result, dict | Mapping):
            raise NotJson(type(result).__name__)
        return dump(result)

    async def _raised(
        self, step: Step, activity: Activity, attempt: int, error: Exception, seconds: float
    ) -> Finish | Parking | None:
        """What an activity's exception means."""
        name = step.activity
        match error:
            case Park():
                return self._parked(step, error)
            case Block():
                told = {"reason": error.reason, "detail": error.detail}
                try:
                    output = dump({**told, "metadata": error.metadata})
                except NotJson:  # the refusal stands, whatever was to be said beside it
                    output = dump(told)
                self._record(name, attempt, StepStatus.BLOCKED, output, error.reason, seconds)
                return self._end(RunState.COMPLETED, error.reason, error.detail, blocked=True)
            case FatalError():
                return await self._failed_attempt(
                    step, activity, attempt, error.code, error.detail, seconds, final=True
                )
            case Retry():
                return await self._failed_attempt(
                    step, activity, attempt, error.code, error.detail, seconds, least=error.after
                )
        if isinstance(error, OUTAGES) and not isinstance(error, OSError):
            # The database went away while the step read content out of it: that spends no attempt.
            self.log.warning("step-interrupted", step=name, error=type(error).__name__)
            return self._park("database", name, after=self._backoff().delay(1, self._around.chance()))
        # Its text may hold content: the kind of the exception has to do.
        self.log.warning("step-raised", step=name, attempt=attempt, error=type(error).__name__)
        return await self._failed_attempt(step, activity, attempt, activity.code, type(error).__name__, seconds)

    async def _failed_attempt(
        self,
        step: Step,
        activity: Activity,
        attempt: int,
        code: str,
        detail: str | None,
        seconds: float,
        *,
        final: bool = False,
        least: float = 0.0,
    ) -> Finish | Parking | None:
        """Journal a failed attempt; then wait parked, go on degraded, or fail the run."""
        name = step.activity
        self._failed += 1
        limit = self._limit(step, activity)
        output = dump({"detail": detail}) if detail else None
        self._record(name, attempt, StepStatus.FAILED, output, code, seconds)
        if not final and attempt < limit:
            self._around.hooks.retry(name)
            delay = self._backoff().delay(attempt, self._around.chance(), least)
            return self._park("retry", name, after=delay)
        if step.required and not self.lease.input.get("fills"):
            return self._end(RunState.FAILED, code, detail)
        await self._degrade(step, code, seconds)
        return None

    def _limit(self, step: Step, activity: Activity) -> int:
        """The number of the last attempt: the ceiling, or one fresh attempt after a retry by a person."""
        base = self.lease.retry_base
        return (step.attempts or activity.attempts) if base is None else base.get(step.activity, 0) + 1

    async def _degrade(self, step: Step, code: str, seconds: float) -> None:
        """Go on without an optional step: a row of its own, attempt 0, so that a replay goes on too."""
        self._degraded[step.activity] = code
        self._record(step.activity, 0, StepStatus.DEGRADED, "{}", code, seconds)
        if not step.lazy:
            await self.flush()

    async def _dependency_down(self, step: Step, down: DependencyDown, seconds: float) -> Finish | Parking | None:
        """No attempt is spent: a required step waits parked, an optional one is left for later."""
        name = step.activity
        self._around.hooks.step(name, "dependency-down", seconds)
        self.log.info("dependency-down", step=name, dependency=down.name)
        if step.required or self.lease.input.get("fills"):
            state = dict(self._poll_state)
            state["down"] = down.code
            return self._park(
                "dependency",
                name,
                after=NET * (1.0 + self._around.chance()),
                deadline=self._around.settings.dependency_deadline,
                dependency=down.name,
                key=wait_key(down.name),
                poll_state=state,
            )
        self._gaps.append((name, down.name))
        await self._degrade(step, down.code, seconds)
        return None

    def _overdue_code(self) -> str:
        """A wait for a dependency ends with its code, any other past its deadline as a matter of configuration."""
        code = self._poll_state.get("down") if self.lease.dependency is not None else None
        return code if isinstance(code, str) else "configuration"

    def _cursor(self) -> str | None:
        cursor = self._poll_state.get("at")
        return cursor if isinstance(cursor, str) else None

    # --- parking ---

    def _backoff(self) -> Backoff:
        s = self._around.settings
        return Backoff(s.backoff_base, s.backoff_cap, s.backoff_jitter)

    def _parked(self, step: Step, park: Park) -> Parking:
        name = step.activity
        state = dict(self._poll_state)
        state.pop("down", None)
        if park.state is not None:
            state[name] = dict(park.state)
        deadline = self._around.settings.park_deadline if park.deadline is None else park.deadline
        if park.event is not None:
            return self._park("event", name, after=deadline, deadline=deadline, key=park.event, poll_state=state)
        after = park.after if park.after is not None else (park.until or 0.0) - self._around.now()
        return self._park("timer", name, after=max(0.0, after), deadline=deadline, poll_state=state)

    def _park_visibly(self, reason: str, step: str | None = None) -> Parking:
        """This process does not know what to do; another may. Look again in a minute or so."""
        self.log.warning("run-not-understood", workflow=self.lease.workflow, reason=reason)
        return self._park(reason, step, after=60.0 * (1.0 + self._around.chance()))

    def _park(
        self,
        reason: str,
        step: str | None = None,
        *,
        after: float,
        deadline: float | None = None,
        dependency: str | None = None,
        key: str | None = None,
        poll_state: dict[str, Any] | None = None,
    ) -> Parking:
        state = dict(self._poll_state if poll_state is None else poll_state)
        if step is not None:
            state["at"] = step
        event: dict[str, Any] = {"reason": reason, "step": step}
        if dependency is not None:
            event["dependency"] = dependency
        if reason != "timer" or step not in self._poll_state:  # of a poll only the first wait is an event
            self._event("parked", event)
        try:
            stored = dump(state)
        except NotJson:
            self.log.error("park-state-not-json", step=step)
            stored = dump({"at": step})
        awaited = key.removeprefix("run:") if key is not None and key.startswith("run:") else ""
        return Parking(
            **self._fields(),
            wake=after,
            deadline=self._around.settings.park_deadline if deadline is None else deadline,
            reason=reason,
            wait_key=key,
            wait_run=int(awaited) if awaited.isdecimal() else None,
            dependency=dependency,
            poll_state=stored,
            cursor=step,
            failed=self._failed,
        )

    # --- the end ---

    def _end(
        self, state: RunState, code: str | None = None, detail: str | None = None, *, blocked: bool = False
    ) -> Finish:
        lease, definition = self.lease, self._definition or self._current()
        verdict: Verdict | None = None
        if definition is not None and definition.finalize is not None:
            verdict = (
                Verdict.FAILED if state is not RunState.COMPLETED else Verdict.QUARANTINED if blocked else Verdict.READY
            )
            if state is RunState.COMPLETED:
                decided = dump({"verdict": verdict})
                self._record(definition.finalize, 1, StepStatus.COMPLETED, decided, None, 0.0)
        processing = self._merged()
        results = {
            name: output for name, output in self._earlier.items() if name != (definition and definition.finalize)
        }
        fills = tuple(lease.input.get("fills") or ()) if state is RunState.COMPLETED else ()
        outcome = Outcome(
            run_id=lease.run_id,
            workflow=lease.workflow,
            subject=lease.subject,
            state=state,
            verdict=verdict,
            code=code,
            detail=detail,
            processing=processing,
            results=results,
            input=lease.input,
            fills=tuple(name for name in fills if name not in self._degraded),
        )
        ended: dict[str, Any] = {"status": state.name.lower(), "progress": 100}
        if code is not None:
            ended |= {
                "code": code,
                "retryable": state is not RunState.COMPLETED and retryable(code),
                "text": sentence(code),
            }
        if verdict is not None:
            ended["verdict"] = verdict
        self._event("ended", ended)
        summary: dict[str, Any] = {"processing": processing}
        if verdict is not None:
            summary["verdict"] = verdict
        # After an earlier lease nothing is taken for new: its last rows may have come through after all.
        again = self._flushed_steps if lease.epoch == 1 else len(self._steps)
        return Finish(
            **self._fields(everything=True),
            again=again,
            outcome=outcome,
            output=dump(summary),
            failed=self._failed,
            gaps=tuple(self._gaps),
        )

    def _merged(self) -> dict[str, Any]:
        """What goes under the subject's ``processing``: the metadata of all results, a blocking one included."""
        merged: dict[str, Any] = {}
        for output in self._earlier.values():
            found = output.get("metadata")
            if isinstance(found, dict):
                merged.update(found)
        for row in self._steps:
            if row.status is StepStatus.BLOCKED:
                merged.update((load(row.output) or {}).get("metadata") or {})
        if self._degraded:
            merged["degraded"] = dict(self._degraded)
        return merged

    # --- journal ---

    async def flush(self) -> None:
        """Through the group committer with everything recorded so far. Raises LeaseLost."""
        entry = self._entry()
        self._around.hooks.point("flushing")
        if not await self._around.flush(entry):
            raise LeaseLost
        self._around.hooks.point("flushed")

    def _record(
        self,
        name: str,
        attempt: int,
        status: StepStatus,
        output: str | None,
        code: str | None,
        seconds: float,
        progress: float | None = None,
    ) -> None:
        around = self._around
        row = StepRow(self.lease.run_id, name, attempt, status, output, code, around.now() - seconds, seconds)
        word = WORDS[status]
        self._steps.append(row)
        if status in DONE:
            self._earlier[name] = load(output) or {}  # what a replay would see
            self._poll_state.pop(name, None)
        elif status is StepStatus.FAILED:
            self._tries[name] += 1
        event: dict[str, Any] = {"step": name, "status": word, "ms": round(seconds * 1000, 1)}
        if attempt > 1:
            event["attempt"] = attempt
        if code is not None:
            event["code"] = code
        if progress is not None:
            event["progress"] = round(progress)
        self._event("step", event)
        around.hooks.step(name, word, seconds)
        self.told[name] = word
        self.log.debug("step", step=name, attempt=attempt, status=word, code=code)

    def _progress(self, step: str, event: Mapping[str, Any]) -> None:
        self._event("progress", {"step": step, **event})

    def _event(self, kind: str, data: Mapping[str, Any]) -> None:
        index = self.lease.epoch << EVENT_SHIFT | self._next_event
        self._next_event += 1
        self._events.append(EventRow(self.lease.run_id, index, self._around.now(), kind, dump(data)))

    def _entry(self) -> Entry:
        return Entry(**self._fields())

    def _fields(self, everything: bool = False) -> dict[str, Any]:
        """Rows not handed to the journal yet (every step row of this lease once more at the end). Taking them counts
        as writing: a write that fails ends the lease."""
        steps = self._steps if everything else self._steps[self._flushed_steps :]
        events = self._events[self._flushed_events :]
        self._flushed_steps, self._flushed_events = len(self._steps), len(self._events)
        run_id, token = self.lease.run_id, self.lease.token
        return {"run_id": run_id, "token": token, "steps": tuple(steps), "events": tuple(events)}

    def _spare(self, work: Awaitable[None]) -> None:
        """Do something that a cancelled task cannot wait for."""
        task = asyncio.ensure_future(work)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())

    @property
    def token(self) -> UUID:
        return self.lease.token

    @property
    def seconds(self) -> float:
        return self._around.monotonic() - self._began
