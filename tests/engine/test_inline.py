"""The kit for tests of activities: as the engine would, without a database and without waiting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from processing.context import Context, Item
from processing.failures import Block, DependencyDown, FatalError, Park
from processing.model import RunState, Verdict
from processing.registry import Step, Workflow, activity
from processing.testing import FakeClock, FakeSubjects, run_inline
from tests.engine.kit import registry_of


@activity("count")
async def count(item: Item, ctx: Context) -> Mapping[str, Any]:
    size = 0
    async for chunk in ctx.open():
        size += len(chunk)
    ctx.progress(50, "Counting", bytes=size)
    return {"size": size, "metadata": {"counted": size}}


@activity("words")
def words(item: Item, ctx: Context) -> Mapping[str, Any]:
    return {"words": sum(len(chunk.split()) for chunk in ctx.read())}


@activity("poll")
async def poll(item: Item, ctx: Context) -> Mapping[str, Any]:
    polls = ctx.state.get("polls", 0)
    if polls < 3:
        raise Park(after=15.0, state={"polls": polls + 1})
    return {"polls": polls}


@activity("listen")
async def listen(item: Item, ctx: Context) -> Mapping[str, Any]:
    if ctx.signal is None:
        raise Park(event="the-event")
    return {"heard": ctx.signal["word"]}


@activity("refuse")
async def refuse(item: Item, ctx: Context) -> None:
    raise Block("malware", "Eicar", {"scan": {"found": True}})


@activity("flaky", attempts=3)
async def flaky(item: Item, ctx: Context) -> Mapping[str, Any]:
    if item.attempt < 3:
        raise RuntimeError("content that must not be stored")
    return {"attempt": item.attempt}


@activity("broken", attempts=2, code="extract-failed")
async def broken(item: Item, ctx: Context) -> None:
    raise RuntimeError("secret words")


def test_an_activity_alone() -> None:
    result = run_inline(count, content=b"12345")
    assert result.output["size"] == 5
    assert result.outcome is not None
    assert result.outcome.processing == {"counted": 5}
    assert {"kind": "progress", "step": "count", "progress": 50.0, "stage": "Counting", "counts": {"bytes": 5}} in (
        result.events
    )


def test_a_plain_function_reads_in_its_thread() -> None:
    assert run_inline(words, content=b"one two three").output == {"words": 3}


def test_polls_cost_no_attempts_and_move_the_clock() -> None:
    clock = FakeClock()
    began = clock.now
    result = run_inline(poll, clock=clock)
    assert result.output == {"polls": 3}
    assert clock.now - began == 45.0
    assert [(row.step, row.attempt) for row in result.journal] == [("poll", 1)]


def test_an_event_has_to_come() -> None:
    assert run_inline(listen).outcome is None
    assert run_inline(listen, signals={"the-event": {"word": "now"}}).output == {"heard": "now"}


def test_retries_are_waited_for_and_nothing_of_an_exception_is_kept() -> None:
    result = run_inline(flaky)
    assert result.output == {"attempt": 3}
    assert result.waited == 3.0  # 1 s and 2 s
    assert "content that" not in repr(result.journal) + repr(result.events)
    failed = run_inline(broken)
    assert (failed.state, failed.code) == (RunState.FAILED, "extract-failed")
    assert "secret" not in repr(failed.journal) + repr(failed.events) + repr(failed.outcome)


def test_a_workflow_that_decides() -> None:
    subjects = FakeSubjects()
    content = subjects.add(b"abc")
    flow = Workflow("up", (Step("count"), Step("refuse"), Step("broken")), finalize="finalize_upload")
    result = run_inline(flow, content=content, subjects=subjects, registry=registry_of(count, refuse, broken))
    assert (result.verdict, result.code) == (Verdict.QUARANTINED, "malware")
    assert [row.step for row in result.journal] == ["count", "refuse", "finalize_upload"]
    assert subjects.contents[content.subject].state == "quarantined"
    assert subjects.contents[content.subject].processing == {"counted": 3, "scan": {"found": True}}


def test_optional_steps_degrade() -> None:
    flow = Workflow("up", (Step("broken", required=False), Step("count")), finalize="finalize_upload")
    result = run_inline(flow, content=b"x", registry=registry_of(count, broken))
    assert result.verdict is Verdict.READY
    assert result.outcome is not None
    assert result.outcome.processing == {"counted": 1, "degraded": {"broken": "extract-failed"}}


def test_fatal_is_not_tried_again_and_a_dependency_costs_nothing() -> None:
    calls = []

    @activity("fatal")
    async def fatal(item: Item, ctx: Context) -> None:
        calls.append(item.attempt)
        raise FatalError("too-large")

    @activity("away")
    async def away(item: Item, ctx: Context) -> Mapping[str, Any]:
        calls.append(item.attempt)
        if len(calls) < 6:
            raise DependencyDown("scanner")
        return {}

    assert run_inline(fatal).code == "too-large"
    assert calls == [1]
    result = run_inline(away)
    assert result.state is RunState.COMPLETED
    assert calls == [1] * 6
