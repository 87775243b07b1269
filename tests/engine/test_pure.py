"""The engine's tables and decisions that need no database."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from processing import machine
from processing.content_types import extension
from processing.failures import BLOCK_REASONS, FAILURES, Park, dependency_code, retryable, sentence
from processing.maintenance.pruner import NARROW, WIDE, width_for
from processing.model import RunState
from processing.pipelines import Pipeline, Pipelines, Rule, parse_pipelines
from processing.registry import ConfigurationError, Definition, Registry, Step, Workflow, activity, planned
from processing.retry import Backoff, poll_interval

MIGRATION = Path(__file__).parents[2] / "migrations" / "0002_engine.sql"


def squeeze(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def test_check_of_the_schema_is_the_table() -> None:
    found = re.search(r"CONSTRAINT run_state CHECK \((.*?)\n    \)", MIGRATION.read_text(), re.DOTALL)
    assert found is not None
    assert squeeze(found[1]) == squeeze(machine.check_clause())


def test_every_state_is_reachable_and_terminal_ones_only_leave_by_retry() -> None:
    for state in RunState:
        assert state in machine.BORN or machine.sources(state)
    for state in machine.TERMINAL:
        leaves = [target for source, target in machine.TRANSITIONS if source is state]
        assert leaves in ([], [RunState.PENDING])
    assert not machine.may(RunState.COMPLETED, RunState.PENDING)
    assert "pending --> running: claim" in machine.diagram()


def test_backoff_is_exponential_capped_and_never_before_what_was_asked() -> None:
    backoff = Backoff(1.0, 30.0, 0.25)
    assert [backoff.delay(n, 0.0) for n in (1, 2, 3, 6, 100)] == [1, 2, 4, 30, 30]
    assert backoff.delay(1, 0.999) < 1.25
    assert backoff.delay(1, 0.5, least=60.0) >= 60.0


def test_poll_doubles_up_to_its_limit() -> None:
    pause = 0.05
    for _ in range(10):
        pause = poll_interval(pause, False, 0.05, 1.0)
    assert pause == 1.0
    assert poll_interval(pause, True, 0.05, 1.0) == 0.05


def test_every_code_has_a_sentence() -> None:
    for code in [*BLOCK_REASONS, *FAILURES]:
        assert sentence(code).endswith(".")
    assert sentence("my-own-word") == "Processing refused the content."
    assert not retryable("superseded")
    assert retryable("worker-lost")
    assert dependency_code("tier:cold") == "tier-unavailable"


def test_a_park_takes_one_reason() -> None:
    with pytest.raises(ValueError, match="exactly one"):
        Park(after=1.0, event="x")
    with pytest.raises(ValueError, match="exactly one"):
        Park()


@activity("first", eager=False)
def first(item: object, ctx: object) -> None: ...


@activity("second", attempts=5)
def second(item: object, ctx: object) -> None: ...


@activity("third", optional=True)
def third(item: object, ctx: object) -> None: ...


@activity("scan_malware")
def scan(item: object, ctx: object) -> None: ...


def known() -> Registry:
    registry = Registry()
    for thing in (first, second, third, scan):
        registry.add(thing)
    registry.add(Workflow("flow", (Step("first"), Step("second"), Step("third", required=True)), slots=6))
    registry.add(Workflow("post_upload", (Step("first"), Step("scan_malware")), finalize="finalize_upload"))
    return registry


def test_definition_resolves_what_steps_leave_open_and_survives_its_dump() -> None:
    definition = known().definition("flow")
    assert definition.lane == "flow"
    assert definition.steps == (
        Step("first", True, True, 3),
        Step("second", True, False, 5),
        Step("third", True, False, 3),
    )
    assert Definition.load(definition.dump(), definition.fingerprint) == definition


def test_fingerprint_depends_on_steps_and_policy() -> None:
    registry = known()
    one = registry.define("flow", "a", (Step("first"),))
    two = registry.define("flow", "a", (Step("first"),), policy="x")
    assert one.fingerprint != two.fingerprint
    assert one.fingerprint == registry.define("flow", "a", (Step("first"),)).fingerprint


@pytest.mark.parametrize(
    ("steps", "finalize"),
    [((Step("nobody"),), None), ((Step("first"), Step("first")), None), ((Step("first"),), "first")],
)
def test_a_workflow_that_does_not_fit_is_refused(steps: tuple[Step, ...], finalize: str | None) -> None:
    registry = known()
    registry.add(Workflow("bad", steps, finalize=finalize))
    with pytest.raises(ConfigurationError):
        registry.check()


def test_a_name_is_defined_once() -> None:
    registry = known()
    with pytest.raises(ConfigurationError, match="twice"):
        registry.add(Workflow("flow", ()))


def test_a_module_registers_what_it_holds() -> None:
    registry = Registry.load([__name__], discover=False)
    assert {"first", "second", "third", "scan_malware"} <= registry.activities.keys()


def definition_of(*names: str) -> Definition:
    return Definition("flow", "", tuple(Step(n, True, False, 3) for n in names)).sealed()


@pytest.mark.parametrize(
    ("stored", "current", "newer", "done", "expected"),
    [
        ("ac", "abc", True, "", "abc"),  # its place is ahead
        ("ac", "abc", True, "a", "abc"),
        ("ac", "abc", True, "ac", "ac"),  # passed
        ("ac", "abc", False, "", "ac"),  # this process is the older one
        ("ab", "abc", True, "a", "abc"),
        ("ab", "abc", True, "ab", "ab"),  # at its end already
        ("abc", "ac", True, "", "abc"),  # a run keeps what it was enqueued with
    ],
)
def test_added_steps_apply_where_their_place_is_ahead(
    stored: str, current: str, newer: bool, done: str, expected: str
) -> None:
    steps = planned(definition_of(*stored), definition_of(*current), newer, done)
    assert "".join(step.activity for step in steps) == expected


def test_the_most_specific_pipeline_wins() -> None:
    registry = known()
    steps = (Step("scan_malware"),)
    names = {
        "bucket": Rule(bucket="b"),
        "family": Rule(type="image/*"),
        "type": Rule(type="image/png"),
        "extension": Rule(extension="pdf"),
        "prefix": Rule(prefix=b"in/"),
        "deeper": Rule(prefix=b"in/deep/"),
    }
    pipelines = Pipelines(registry, [Pipeline(name, steps, rule) for name, rule in names.items()])

    def chosen(bucket: str, key: bytes, kind: str | None = None) -> str:
        return pipelines.select(bucket, key, kind).pipeline

    assert chosen("x", b"k") == ""
    assert chosen("b", b"k") == "bucket"
    assert chosen("b", b"k.pdf") == "extension"
    assert chosen("b", b"k", "image/gif") == "family"
    assert chosen("b", b"k", "image/png; a=b") == "type"
    assert chosen("b", b"in/k.pdf") == "prefix"
    assert chosen("b", b"in/deep/k") == "deeper"


def test_leaving_out_the_scan_has_to_be_said() -> None:
    with pytest.raises(ConfigurationError, match="unscanned"):
        Pipelines(known(), [Pipeline("p", (Step("first"),))])
    Pipelines(known(), [Pipeline("p", (Step("first"),), unscanned=True)])


def test_pipelines_of_the_configuration_file() -> None:
    (found,) = parse_pipelines(
        {"p": {"steps": ["first", {"activity": "second", "attempts": 7}], "prefix": "a/", "extension": ".PDF"}}
    )
    assert found.steps == (Step("first"), Step("second", attempts=7))
    assert found.rule == Rule(prefix=b"a/", extension="pdf")
    for bad in ({"p": {"steps": [], "x": 1}}, {"p": {"steps": ["a"], "wrong": 1}}, {"p": {"steps": [{"b": 1}]}}):
        with pytest.raises(ConfigurationError, match=r"pipelines\.p"):
            parse_pipelines(bad)


def test_extensions() -> None:
    assert [extension(k) for k in (b"a/b.TXT", b".hidden", b"a.b/c", b"x.tar.gz", b"")] == [
        "txt",
        "hidden",
        "",
        "gz",
        "",
    ]


def test_ranges_follow_the_rate() -> None:
    assert width_for(0.0) == NARROW
    assert width_for(2_560.0) == WIDE
    assert NARROW < width_for(20.0) < WIDE
