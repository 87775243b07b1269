"""The guide's own activity, run as the guide shows it."""

from __future__ import annotations

import asyncio
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from examples import no_drafts as example
from examples.no_drafts import MARK, no_drafts
from processing.activities.settings import SERVICE, ActivitySettings
from processing.clamd import Clamd, ClamdAddress
from processing.model import RunState, Verdict
from processing.pipelines import Pipelines, parse_pipelines
from processing.registry import Registry, Step, Workflow
from processing.sandbox import Sandbox
from processing.scanner import ScannerMeter, Unmetered
from processing.testing import FakeSubjects, InlineResult, fake_content, run_inline, run_inline_async
from tests.activities import documents
from tests.activities.clamd import SIGNATURE, ClamdServer, clamd, eicar
from tests.activities.fake_clamd import Behaviour, FakeClamd
from tests.activities.kit import FakePlacement, FakeTier

__all__ = ["clamd"]

GUIDE = Path(__file__).parents[2] / "docs" / "activities.md"


def blocks(language: str) -> Iterator[str]:
    return (match.group(1) for match in re.finditer(rf"```{language}\n(.*?)```", GUIDE.read_text(), re.DOTALL))


def test_the_guide_shows_the_module_as_it_is() -> None:
    shown, tested = blocks("python")
    assert shown.strip() in Path(example.__file__).read_text()
    exec(tested, {"no_drafts": no_drafts})


def test_the_guide_names_every_step() -> None:
    registry = Registry.load(["processing.workflows.post_upload"], discover=False)
    text = GUIDE.read_text()
    for step in registry.definition("post_upload").steps:
        assert f"| `{step.activity}` |" in text


@pytest.mark.parametrize("before", [0, 5, 65_536 - 10, 200_000])
def test_marked_content_is_blocked(before: int) -> None:
    result = run_inline(no_drafts, content=b"x" * before + MARK + b"x" * 10)
    assert (result.state, result.code) == (RunState.COMPLETED, "draft")


def test_other_content_passes() -> None:
    result = run_inline(no_drafts, content=b"x" * 100_000)
    assert result.output == {"looked_at": 100_000, "metadata": {"draft": False}}
    assert result.code is None


def test_registered_from_the_configuration_as_shown() -> None:
    """The TOML of the guide, loaded as the gateway loads it; the pipeline's steps then decide a version."""
    (text,) = blocks("toml")
    told = tomllib.loads(text)
    registry = Registry.load(["processing.workflows.post_upload", *told["activities"]], discover=False)
    pipelines = Pipelines(registry, parse_pipelines(told["pipelines"]))
    chosen = pipelines.select("contracts", b"a.txt", "text/plain")
    assert "no_drafts" in chosen.names
    assert "no_drafts" not in pipelines.select("elsewhere", b"a.txt", "text/plain").names
    registry.add(
        Workflow("contracts", tuple(map(Step, told["pipelines"]["contracts"]["steps"])), finalize="finalize_upload")
    )
    found = process(b"a " + MARK, workflow="contracts", registry=registry)
    assert (found.verdict, found.code) == (Verdict.QUARANTINED, "draft")
    assert process(b"fine", workflow="contracts", registry=registry).verdict is Verdict.READY


# --- the whole of post_upload over the engine's own execution ---


def process(
    data: bytes,
    *,
    scanner: str | None = None,
    settings: ActivitySettings | None = None,
    workflow: str = "post_upload",
    registry: Registry | None = None,
    **facts: Any,
) -> InlineResult:
    async def main() -> InlineResult:
        return await process_async(
            data, scanner=scanner, settings=settings, workflow=workflow, registry=registry, **facts
        )

    return asyncio.run(main())


async def process_async(
    data: bytes,
    *,
    scanner: str | None = None,
    settings: ActivitySettings | None = None,
    workflow: str = "post_upload",
    registry: Registry | None = None,
    meter: ScannerMeter | None = None,
    **facts: Any,
) -> InlineResult:
    subjects, pool = FakeSubjects(), Sandbox()
    content = fake_content(data, **facts)
    subjects.contents[content.subject], subjects.bytes[content.subject] = content, data
    services = {
        SERVICE: settings or ActivitySettings(),
        "sandbox": pool,
        "scanner": Clamd(ClamdAddress.parse(scanner), meter=meter) if scanner else None,
        "tiers": {"warm": FakeTier()},
        "placement": FakePlacement(),
    }
    try:
        return await run_inline_async(
            workflow,
            content=content,
            subjects=subjects,
            registry=registry or Registry.load(["processing.workflows.post_upload"], discover=False),
            services=services,
        )
    finally:
        await pool.close()


@pytest.mark.clamd
def test_clean_file(clamd: ClamdServer) -> None:
    result = process(b"hello there\n", scanner=clamd.unix, key=b"a.txt", declared_type="text/plain")
    assert result.verdict is Verdict.READY
    assert result.outcome is not None
    found = result.outcome.processing
    assert found["sniffed_type"] == "text/plain"
    assert found["scan"]["result"] == "clean"
    assert found["text"]["passages"] == 1
    assert [row.step for row in result.journal] == [
        "sniff_type",
        "extension_policy",
        "scan_malware",
        "extract_text",
        "embed_text",
        "finalize_upload",
    ]


@pytest.mark.clamd
def test_infected_file_is_not_opened_for_its_text(clamd: ClamdServer) -> None:
    result = process(eicar(), scanner=clamd.tcp, key=b"a.txt")
    assert (result.verdict, result.code) == (Verdict.QUARANTINED, "malware")
    assert result.outcome is not None
    assert result.outcome.detail == SIGNATURE
    assert "extract_text" not in [row.step for row in result.journal]


def test_executable_named_pdf() -> None:
    facts: dict[str, Any] = {"key": b"report.pdf", "declared_type": "application/pdf"}
    free = process(documents.executable(), **facts)
    assert free.verdict is Verdict.READY
    assert free.outcome is not None
    assert free.outcome.processing["type_mismatch"] == "extension"
    strict = process(documents.executable(), settings=ActivitySettings(enforce_type_match=True), **facts)
    assert (strict.verdict, strict.code) == (Verdict.QUARANTINED, "type-mismatch")


@pytest.mark.parametrize("behaviour", [Behaviour.GARBAGE, Behaviour.EMPTY, Behaviour.CLOSE_EARLY, Behaviour.CUT_REPLY])
def test_eicar_is_never_ready_whatever_the_scanner_does(behaviour: Behaviour) -> None:
    async def main() -> None:
        async with FakeClamd(behaviour) as fake:
            result = await process_async(eicar(), scanner=fake.address)
            assert (result.verdict, result.code) == (Verdict.QUARANTINED, "unscannable")
            assert len(fake.streams) == 3
            assert fake.most_open == 1
            delays = [park.wake for park in result.parks]
            assert len(delays) == 2
            assert delays[0] < delays[1], "each attempt waits longer than the one before"

    asyncio.run(main())


def test_a_scanner_that_is_down_costs_no_attempt_and_the_run_goes_on_by_itself() -> None:
    async def main() -> None:
        async with FakeClamd(Behaviour.REFUSE) as fake:

            class Back(Unmetered):
                """Lets the scanner come back once somebody was refused."""

                task: asyncio.Task[None] | None = None

                def error(self, reason: str) -> None:
                    assert reason == "connect_failed"
                    self.task = self.task or asyncio.ensure_future(fake.up())

            result = await process_async(b"hello", scanner=fake.address, meter=Back())
            assert result.verdict is Verdict.READY
            assert result.parks
            assert all(park.dependency == "scanner" for park in result.parks)
            assert [row.attempt for row in result.journal if row.step == "scan_malware"] == [1]

    asyncio.run(main())
