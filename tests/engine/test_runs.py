"""Runs end to end over a real database: steps, verdicts, retries, parks, events, operators."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from processing.context import Context, Item
from processing.failures import Block, Conflict, FatalError, Park, Retry
from processing.model import NewRun, Outcome, RunState, Subject, Verdict
from processing.registry import Step, Workflow, activity, activity_of
from tests.engine.kit import Kit, run, running, until

State = RunState
calls: list[tuple[str, int]] = []
gate: dict[str, asyncio.Event] = {}
knobs: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def fresh() -> None:
    calls.clear()
    gate.clear()
    knobs.clear()


@activity("sniff", eager=False)
async def sniff(item: Item, ctx: Context) -> Mapping[str, Any]:
    calls.append(("sniff", item.attempt))
    return {"sniffed_type": "text/plain", "metadata": {"type": "text/plain"}}


@activity("scan")
async def scan(item: Item, ctx: Context) -> Mapping[str, Any]:
    calls.append(("scan", item.attempt))
    assert item.sniffed_type == "text/plain"
    assert item.previous["sniffed_type"] == "text/plain"
    if knobs.get("infected"):
        raise Block("malware", "Eicar")
    return {"clean": True, "metadata": {"scan": {"clean": True}}}


@activity("extract", optional=True, code="extract-failed")
def extract(item: Item, ctx: Context) -> Mapping[str, Any]:
    calls.append(("extract", item.attempt))
    if knobs.get("extract-fails"):
        raise ValueError("the text of the content")
    return {"text": sum(len(chunk) for chunk in ctx.read())}


@activity("flaky")
async def flaky(item: Item, ctx: Context) -> Mapping[str, Any]:
    calls.append(("flaky", item.attempt))
    if item.attempt <= knobs.get("failures", 0):
        raise Retry("scanner-unavailable")
    return {"attempt": item.attempt}


@activity("fatal")
async def fatal(item: Item, ctx: Context) -> None:
    calls.append(("fatal", item.attempt))
    raise FatalError(knobs["fatal"])


@activity("hold")
async def hold(item: Item, ctx: Context) -> Mapping[str, Any]:
    calls.append(("hold", item.attempt))
    ctx.progress(30, "Holding", things=3)
    gate.setdefault("entered", asyncio.Event()).set()
    await gate.setdefault("hold", asyncio.Event()).wait()
    return {}


@activity("poll")
async def poll(item: Item, ctx: Context) -> Mapping[str, Any]:
    polls = ctx.state.get("polls", 0)
    calls.append(("poll", polls))
    if polls < knobs.get("polls", 5):
        raise Park(after=0.01, state={"polls": polls + 1})
    return {"polls": polls}


@activity("listen")
async def listen(item: Item, ctx: Context) -> Mapping[str, Any]:
    calls.append(("listen", item.attempt))
    if ctx.signal is None:
        raise Park(event=item.input["event"], deadline=knobs.get("deadline"))
    return {"heard": ctx.signal}


@activity("follow")
async def follow(item: Item, ctx: Context) -> Mapping[str, Any]:
    calls.append(("follow", item.attempt))
    if not ctx.state:
        raise Park(event=f"run:{item.input['leader']}", state={"asked": True})
    return {}


UPLOAD = Workflow("upload", (Step("sniff"), Step("scan"), Step("extract")), finalize="finalize_upload")
ALL: tuple[Any, ...] = (
    sniff,
    scan,
    extract,
    flaky,
    fatal,
    hold,
    poll,
    listen,
    follow,
    UPLOAD,
    Workflow("flaky", (Step("sniff"), Step("flaky")), finalize="finalize_upload"),
    Workflow("fatal", (Step("sniff"), Step("fatal")), finalize="finalize_upload"),
    Workflow("hold", (Step("sniff"), Step("hold")), finalize="finalize_upload"),
    Workflow("poll", (Step("poll"),)),
    Workflow("listen", (Step("listen"),)),
    Workflow("follow", (Step("follow"),)),
)


def version(kit: Kit, run_id: int) -> str:
    outcome = next(o for o in kit.subjects.outcomes if o.run_id == run_id)
    assert outcome.subject is not None
    return kit.subjects.contents[outcome.subject].state


def test_a_clean_upload(dsn: str) -> None:
    async def main() -> None:
        async with running(dsn, *ALL) as kit:
            run_id = await kit.submit("upload", b"hello")
            assert await kit.ended(run_id) is State.COMPLETED
            assert await kit.journal(run_id) == [
                ("sniff", 1, "completed"),
                ("scan", 1, "completed"),
                ("extract", 1, "completed"),
                ("finalize_upload", 1, "completed"),
            ]
            (outcome,) = kit.subjects.outcomes
            assert outcome.verdict is Verdict.READY
            assert outcome.processing == {"type": "text/plain", "scan": {"clean": True}}
            assert outcome.results["extract"] == {"text": 5}
            assert kit.subjects.told == [outcome]
            assert version(kit, run_id) == "ready"
            events = await kit.engine.events(run_id)
            assert [e["kind"] for e in events] == ["started", *["step"] * 4, "ended"]
            assert events[-1]["verdict"] == "ready"
            assert [e["id"] for e in events] == sorted(e["id"] for e in events)
            assert await kit.engine.events(run_id, after=events[-2]["id"]) == events[-1:]
            assert await kit.engine.why(run_id) == ["It ended completed."]

    run(main)


def test_a_blocked_upload_is_not_opened_any_further(dsn: str) -> None:
    async def main() -> None:
        knobs["infected"] = True
        async with running(dsn, *ALL) as kit:
            run_id = await kit.submit("upload")
            assert await kit.ended(run_id) is State.COMPLETED
            assert version(kit, run_id) == "quarantined"
            assert ("extract", 1) not in calls
            (outcome,) = kit.subjects.outcomes
            assert (outcome.code, outcome.detail) == ("malware", "Eicar")
            shown = await kit.engine.show(run_id)
            assert shown is not None
            assert (shown["error_code"], shown["output"]["verdict"]) == ("malware", "quarantined")

    run(main)


def test_a_repeated_enqueue_folds_into_the_first(dsn: str) -> None:
    async def main() -> None:
        async with running(dsn, *ALL) as kit:
            first = await kit.submit("upload", key="same")
            again = await kit.enqueue(
                NewRun("same", "upload", 1), NewRun("other", "upload", 1), NewRun("other", "upload", 1)
            )
            assert again[0].run_id == first
            assert [a.created for a in again] == [False, True, False]
            assert again[1].run_id == again[2].run_id
            assert await kit.value("SELECT count(*) FROM workflow_run") == 2

    run(main)


def test_no_run_is_born_claimed_past_the_slots_or_a_tenants_share(dsn: str) -> None:
    async def main() -> None:
        async with running(dsn, *ALL, slots=8, tenant_slots=3) as kit:
            answers = await kit.enqueue(*[NewRun(f"a{n}", "hold", 1) for n in range(5)])
            assert sum(a.claimed for a in answers) <= 5
            await until(lambda: kit.engine.in_progress >= 3)
            more = await kit.enqueue(NewRun("a-more", "hold", 1), NewRun("b", "hold", 2))
            assert not more[0].claimed
            gate.setdefault("hold", asyncio.Event()).set()
            for answer in [*answers, *more]:
                assert await kit.ended(answer.run_id) is State.COMPLETED

    run(main)


def test_a_failed_attempt_waits_parked_and_is_tried_again(dsn: str) -> None:
    async def main() -> None:
        knobs["failures"] = 2
        async with running(dsn, *ALL) as kit:
            run_id = await kit.submit("flaky")
            assert await kit.ended(run_id) is State.COMPLETED
            assert await kit.journal(run_id) == [
                ("sniff", 1, "completed"),
                ("flaky", 1, "failed"),
                ("flaky", 2, "failed"),
                ("flaky", 3, "completed"),
                ("finalize_upload", 1, "completed"),
            ]
            assert calls.count(("sniff", 1)) == 1  # replayed, not run again
            assert await kit.value("SELECT failures FROM workflow_run") == 2

    run(main)


def test_attempts_used_up_fail_the_run_and_a_person_gives_one_more(dsn: str) -> None:
    async def main() -> None:
        knobs["failures"] = 4
        async with running(dsn, *ALL) as kit:
            run_id = await kit.submit("flaky")
            assert await kit.ended(run_id) is State.FAILED
            assert version(kit, run_id) == "failed"
            assert await kit.value("SELECT error_code FROM workflow_run") == "scanner-unavailable"
            await kit.engine.retry(run_id)
            assert await kit.ended(run_id) is State.FAILED
            assert calls == [("sniff", 1), *[("flaky", n) for n in (1, 2, 3, 4)]]
            await kit.engine.retry(run_id)
            assert await kit.ended(run_id) is State.COMPLETED
            assert calls[-1] == ("flaky", 5)
            assert [o.verdict for o in kit.subjects.outcomes] == [Verdict.FAILED, Verdict.FAILED, Verdict.READY]
            assert version(kit, run_id) == "ready"

    run(main)


def test_optional_steps_degrade(dsn: str) -> None:
    async def main() -> None:
        knobs["extract-fails"] = True
        async with running(dsn, *ALL) as kit:
            run_id = await kit.submit("upload")
            assert await kit.ended(run_id) is State.COMPLETED
            assert [c for c in calls if c[0] == "extract"] == [("extract", 1), ("extract", 2), ("extract", 3)]
            (outcome,) = kit.subjects.outcomes
            assert outcome.processing["degraded"] == {"extract": "extract-failed"}
            assert version(kit, run_id) == "ready"
            stored = str(await kit.engine.show(run_id)) + str(await kit.engine.events(run_id))
            assert "text of the content" not in stored

    run(main)


def test_fatal_stops_at_once_and_some_failures_cannot_be_retried(dsn: str) -> None:
    async def main() -> None:
        async with running(dsn, *ALL) as kit:
            for code in ("too-large", "configuration"):
                knobs["fatal"] = code
                run_id = await kit.submit("fatal")
                assert await kit.ended(run_id) is State.FAILED
                if code == "too-large":
                    with pytest.raises(Conflict) as refused:
                        await kit.engine.retry(run_id)
                    assert refused.value.code == "too-large"
                else:
                    await kit.engine.retry(run_id)
                    assert await kit.ended(run_id) is State.FAILED
            assert [c for c in calls if c[0] == "fatal"] == [("fatal", 1), ("fatal", 1), ("fatal", 2)]

    run(main)


def test_polls_are_no_attempts(dsn: str) -> None:
    async def main() -> None:
        async with running(dsn, *ALL) as kit:
            run_id = await kit.submit("poll")
            assert await kit.ended(run_id) is State.COMPLETED
            assert [n for name, n in calls] == [0, 1, 2, 3, 4, 5]
            assert await kit.journal(run_id) == [("poll", 1, "completed")]
            kinds = [e["kind"] for e in await kit.engine.events(run_id)]
            assert kinds.count("parked") == 1

    run(main)


def test_events_wake_whoever_waits_and_the_first_payload_wins(dsn: str) -> None:
    async def main() -> None:
        async with running(dsn, *ALL) as kit:
            before = await kit.submit("listen", input={"event": "e1"})
            await kit.reaches(before, State.PARKED)
            assert await kit.engine.signal("e1", {"n": 1}) == 1
            assert await kit.engine.signal("e1", {"n": 2}) == 0
            assert await kit.ended(before) is State.COMPLETED
            after = await kit.submit("listen", input={"event": "e1"})  # the event came first
            assert await kit.ended(after) is State.COMPLETED
            for run_id in (before, after):
                shown = await kit.engine.show(run_id)
                assert shown is not None
                assert shown["steps"][0]["output"] == {"heard": {"n": 1}}

    run(main)


def test_a_signal_racing_a_park_is_never_lost(dsn: str) -> None:
    async def main() -> None:
        async with running(dsn, *ALL) as kit:
            ids = []
            for n in range(30):
                ids.append(await kit.submit("listen", input={"event": f"race{n}"}))
                await kit.engine.signal(f"race{n}", {})
            for run_id in ids:
                assert await kit.ended(run_id, 5) is State.COMPLETED

    run(main)


def test_a_follower_waits_for_its_leader(dsn: str) -> None:
    async def main() -> None:
        async with running(dsn, *ALL) as kit:
            leader = await kit.submit("hold")
            follower = await kit.submit("follow", input={"leader": leader})
            await kit.reaches(follower, State.PARKED)
            gate.setdefault("hold", asyncio.Event()).set()
            assert await kit.ended(leader) is State.COMPLETED
            assert await kit.ended(follower, 5) is State.COMPLETED
            late = await kit.submit("follow", input={"leader": leader})
            assert await kit.ended(late, 5) is State.COMPLETED

    run(main)


def test_a_park_past_its_deadline_fails(dsn: str) -> None:
    async def main() -> None:
        knobs["deadline"] = 0.05
        async with running(dsn, *ALL) as kit:
            run_id = await kit.submit("listen", input={"event": "never"})
            assert await kit.ended(run_id) is State.FAILED
            assert await kit.value("SELECT error_code FROM workflow_run") == "configuration"

    run(main)


def test_resume_and_requeue(dsn: str) -> None:
    async def main() -> None:
        async with running(dsn, *ALL) as kit:
            run_id = await kit.submit("listen", input={"event": "never"})
            await kit.reaches(run_id, State.PARKED)
            epoch = await kit.value("SELECT epoch FROM workflow_run")
            await kit.engine.resume(run_id)
            await until(lambda: len(calls) == 2)
            await kit.reaches(run_id, State.PARKED)
            assert await kit.value("SELECT epoch FROM workflow_run") == epoch + 1
            assert "waits for the event never" in " ".join(await kit.engine.why(run_id))
            held = await kit.submit("hold")
            await until(lambda: kit.engine.in_progress == 1)
            with pytest.raises(Conflict) as refused:
                await kit.engine.requeue(held)
            assert refused.value.code == "leased"
            await kit.engine.requeue(held, force=True)
            gate.setdefault("hold", asyncio.Event()).set()
            assert await kit.ended(held) is State.COMPLETED
            assert (await kit.journal(held)).count(("hold", 1, "completed")) == 1
            with pytest.raises(Conflict):
                await kit.engine.requeue(held)
            with pytest.raises(Conflict):
                await kit.engine.resume(999)

    run(main)


def test_cancel_in_every_state(dsn: str) -> None:
    async def main() -> None:
        async with running(dsn, *ALL) as kit:
            parked = await kit.submit("listen", input={"event": "never"})
            held = await kit.submit("hold")
            await kit.reaches(parked, State.PARKED)
            await until(lambda: "entered" in gate and gate["entered"].is_set())
            assert await kit.engine.cancel(parked) is State.CANCELLED
            assert await kit.engine.cancel(held) is State.RUNNING
            assert await kit.ended(held) is State.CANCELLED
            assert version(kit, held) == "failed"
            with pytest.raises(Conflict):
                await kit.engine.cancel(held)
            gate["hold"].set()
            await kit.engine.retry(held)
            assert await kit.ended(held) is State.COMPLETED
            assert version(kit, held) == "ready"

    run(main)


def test_a_run_of_another_process_is_cancelled_with_its_heartbeat(dsn: str) -> None:
    async def main() -> None:
        async with running(dsn, *ALL) as kit, running(dsn, *ALL, claims=False) as other:
            held = await kit.submit("hold")
            await until(lambda: "entered" in gate and gate["entered"].is_set())
            assert await other.engine.cancel(held) is State.RUNNING
            assert await other.ended(held) is State.CANCELLED

    run(main)


def test_a_subject_that_is_gone_supersedes_its_run(dsn: str) -> None:
    async def main() -> None:
        async with running(dsn, *ALL) as kit:
            (gone,) = await kit.enqueue(NewRun("g", "upload", 1, Subject(1, b"gone", 1, 1)))
            assert await kit.ended(gone.run_id) is State.CANCELLED
            assert await kit.value("SELECT error_code FROM workflow_run") == "superseded"
            with pytest.raises(Conflict):
                await kit.engine.retry(gone.run_id)
            held = await kit.submit("hold")
            await until(lambda: "entered" in gate and gate["entered"].is_set())
            async with kit.pool.acquire() as conn, conn.transaction():
                await kit.engine.supersede(conn, [held, gone.run_id])
            assert await kit.ended(held) is State.CANCELLED
            await until(lambda: kit.engine.in_progress == 0)

    run(main)


def test_settling_enqueues_what_follows(dsn: str) -> None:
    async def main() -> None:
        async with running(dsn, *ALL) as kit:

            def follow_up(outcome: Outcome) -> list[NewRun]:
                if outcome.workflow != "upload":
                    return []
                return [NewRun(f"move:{outcome.run_id}", "poll", 1, outcome.subject)]

            kit.subjects.follow = follow_up
            run_id = await kit.submit("upload")
            assert await kit.ended(run_id) is State.COMPLETED
            moved = await kit.value("SELECT run_id FROM workflow_run WHERE run_key = $1", f"move:{run_id}")
            assert await kit.ended(moved) is State.COMPLETED

    run(main)


def test_a_locked_subject_rides_in_a_later_flight_and_does_not_hold_up_others(dsn: str) -> None:
    async def main() -> None:
        async with running(dsn, *ALL) as kit:
            seq = len(kit.subjects.contents) + 1
            kit.subjects.locked_elsewhere.add(Subject(1, f"k{seq}".encode(), seq, seq))
            stuck = await kit.submit("upload")
            free = await kit.submit("upload")
            assert await kit.ended(free) is State.COMPLETED
            assert await kit.ended(stuck) is State.COMPLETED  # after some tries it waits for the lock

    run(main)


def test_a_settle_that_fails_for_one_run_spares_its_neighbours(dsn: str) -> None:
    async def main() -> None:
        async with running(dsn, *ALL) as kit:
            settle = kit.subjects.settle
            times: list[int] = []

            async def failing(conn: Any, outcomes: Any) -> Any:
                if any(o.subject.seq == 1 for o in outcomes) and len(times) < 4:
                    times.append(len(outcomes))
                    raise ValueError("a bug")
                return await settle(conn, outcomes)

            kit.subjects.settle = failing  # type: ignore[method-assign]
            ids = [await kit.submit("upload") for _ in range(5)]
            for run_id in ids:
                assert await kit.ended(run_id) is State.COMPLETED
            assert calls.count(("scan", 1)) == 5

    run(main)


def test_shutdown_hands_back_without_counting(dsn: str) -> None:
    async def main() -> None:
        async with running(dsn, *ALL, drain=0.05) as kit:
            run_id = await kit.submit("hold")
            await until(lambda: "entered" in gate and gate["entered"].is_set())
            subjects = kit.subjects
        async with running(dsn, *ALL, subjects=subjects, start=False) as kit:
            assert await kit.state(run_id) is State.PENDING
            row = await kit.pool.fetchrow("SELECT recoveries, failures FROM workflow_run")
            assert row is not None
            assert tuple(row) == (0, 0)
            assert await kit.journal(run_id) == [("sniff", 1, "completed")]  # what was done is kept
            assert "No worker is alive." in await kit.engine.why(run_id)
        gate["hold"].set()
        async with running(dsn, *ALL, subjects=subjects) as kit:
            assert await kit.ended(run_id) is State.COMPLETED
        assert calls.count(("sniff", 1)) == 1

    run(main)


def test_a_step_without_a_sign_of_life_is_cancelled(dsn: str) -> None:
    async def main() -> None:
        async with running(dsn, *ALL, step_idle=0.2) as kit:
            run_id = await kit.submit("hold")
            assert await kit.ended(run_id) is State.FAILED
            assert await kit.journal(run_id) == [("sniff", 1, "completed"), *[("hold", n, "failed") for n in (1, 2, 3)]]

    run(main)


def test_progress_is_seen_while_the_step_runs(dsn: str) -> None:
    async def main() -> None:
        async with running(dsn, *ALL) as kit:
            run_id = await kit.submit("hold")

            async def seen() -> bool:
                return any(e["kind"] == "progress" for e in await kit.engine.events(run_id))

            await until(seen)
            progress = next(e for e in await kit.engine.events(run_id) if e["kind"] == "progress")
            assert (progress["progress"], progress["stage"], progress["counts"]) == (30, "Holding", {"things": 3})
            gate["hold"].set()
            assert await kit.ended(run_id) is State.COMPLETED

    run(main)


def test_a_delayed_run_waits_parked(dsn: str) -> None:
    async def main() -> None:
        async with running(dsn, *ALL) as kit:
            (later, far) = await kit.enqueue(NewRun("l", "upload", 1, delay=0.2), NewRun("f", "upload", 1, delay=3600))
            assert await kit.state(far.run_id) is State.PARKED
            began = time.monotonic()
            await until(lambda: ("sniff", 1) in calls)
            assert time.monotonic() - began > 0.05
            assert not later.claimed

    run(main)


def test_an_unknown_activity_parks_visibly_and_a_removed_one_fails(dsn: str) -> None:
    async def main() -> None:
        newer = replace(activity_of(sniff), name="newer")
        async with running(dsn, *ALL, start=False) as kit:
            kit.registry.add(newer)
            kit.registry.define("upload", "next", (Step("sniff"), Step("newer")))
            await kit.enqueue(NewRun("n", "upload", 1, pipeline="next"))
        # A process that has never heard of the step: older, as far as it can tell.
        async with running(dsn, *ALL) as kit:
            run_id = await kit.value("SELECT run_id FROM workflow_run WHERE run_key = 'n'")
            await kit.reaches(run_id, State.PARKED)
            assert await kit.value("SELECT park_reason FROM workflow_run") == "unknown-activity:newer"
            assert "unknown-activity:newer" in " ".join(await kit.engine.why(run_id))
        # A later definition of the same pipeline without the step: removed on purpose.
        async with running(dsn, *ALL, start=False) as kit:
            kit.registry.define("upload", "next", (Step("sniff"), Step("scan")))
            await kit.engine.start()
            try:
                await kit.engine.resume(run_id)
                assert await kit.ended(run_id) is State.FAILED
                assert await kit.value("SELECT error_code FROM workflow_run") == "configuration"
            finally:
                await kit.engine.drain()

    run(main)


def test_listing_and_filters(dsn: str) -> None:
    async def main() -> None:
        async with running(dsn, *ALL) as kit:
            knobs["fatal"] = "too-large"
            done = await kit.submit("upload", tenant=1)
            failed = await kit.submit("fatal", tenant=2)
            await kit.ended(done)
            await kit.ended(failed)

            async def ids(**filters: Any) -> list[int]:
                return [r["run_id"] for r in await kit.engine.list_runs(**filters)]

            assert await ids() == [failed, done]
            assert await ids(states=[State.FAILED]) == [failed]
            assert await ids(workflow="upload") == [done]
            assert await ids(tenant=2) == [failed]
            assert await ids(code="too-large") == [failed]
            assert await ids(before=failed) == [done]
            assert await ids(older_than=60) == []
            assert await kit.engine.show(12345) is None
            assert await kit.engine.why(12345) == ["There is no run 12345."]

    run(main)
