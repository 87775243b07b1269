"""The journal in its two forms: one row of a run that ends before anything of it was flushed, else a row a record."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gateway.db.migrate import find, migrate
from processing import queries, store
from processing.context import Context, Item
from processing.failures import FatalError
from processing.model import NewRun, RunState
from processing.registry import Step, Workflow, activity
from tests.engine.kit import Kit, run, running
from tests.pg import MIGRATIONS

ODD = {"text": 'quote " backslash \\ snow ☃ line \n', "number": 1.5e-3, "none": None, "list": [True, {"a": []}]}
LARGE = {"filler": "filler " * 4000}
calls: list[tuple[str, int]] = []
knobs: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def fresh() -> None:
    calls.clear()
    knobs.clear()


@activity("odd", eager=False)
async def odd(item: Item, ctx: Context) -> Mapping[str, Any]:
    calls.append(("odd", item.attempt))
    return knobs.get("output", ODD)


@activity("outside")
async def outside(item: Item, ctx: Context) -> Mapping[str, Any]:
    calls.append(("outside", item.attempt))
    return {"seen": item.earlier["odd"]}


@activity("breaks", eager=False)
async def breaks(item: Item, ctx: Context) -> Mapping[str, Any]:
    calls.append(("breaks", item.attempt))
    if knobs.get("breaks"):
        raise FatalError("internal", "as told")
    return {"seen": item.earlier["odd"]}


ALL: tuple[Any, ...] = (
    odd,
    outside,
    breaks,
    Workflow("whole", (Step("odd"), Step("breaks")), finalize="finalize_upload"),
    Workflow("parted", (Step("odd"), Step("outside")), finalize="finalize_upload"),
)


async def counts(kit: Kit, run_id: int) -> dict[str, int]:
    tables = ("run_journal", "workflow_step", "run_event")
    return {t: await kit.value(f"SELECT count(*) FROM {t} WHERE run_id = $1", run_id) for t in tables}


@pytest.mark.parametrize("output", [ODD, LARGE, {}], ids=["odd", "large", "empty"])
def test_both_forms_read_alike(dsn: str, output: Any) -> None:
    async def main() -> None:
        knobs["output"] = output
        async with running(dsn, *ALL) as kit:
            ids = {name: await kit.submit(name) for name in ("whole", "parted")}
            shown, told, history = {}, {}, {}
            for name, run_id in ids.items():
                assert await kit.ended(run_id) is RunState.COMPLETED
                found = await kit.engine.show(run_id)
                assert found is not None
                shown[name] = found["steps"]
                told[name] = await kit.engine.events(run_id)
                async with kit.pool.acquire() as conn:
                    history[name] = (await store.history(conn, [run_id]))[run_id]
                    last = told[name][-1]["id"]
                    assert await queries.events(conn, run_id, last - 1) == told[name][-1:]
                    assert await queries.events(conn, run_id, -1, 2) == told[name][:2]
            assert await counts(kit, ids["whole"]) == {"run_journal": 1, "workflow_step": 0, "run_event": 0}
            assert await counts(kit, ids["parted"]) == {"run_journal": 0, "workflow_step": 3, "run_event": 5}
            for one, two in zip(shown["whole"], shown["parted"], strict=True):
                assert one.keys() == two.keys()
                same = ("attempt", "status", "output", "code", "worker_id")
                assert [one[name] for name in same] == [two[name] for name in same]
                assert abs((one["started_at"] - two["started_at"]).total_seconds()) < 60
                assert type(one["seconds"]) is type(two["seconds"]) is float
            assert shown["whole"][0]["output"] == output
            for one, two in zip(told["whole"], told["parted"], strict=True):
                assert one.keys() == two.keys()
                assert (one["id"], one["kind"]) == (two["id"], two["kind"])
            assert [row.attempt for row in history["whole"]] == [1, 1, 1]
            assert [type(x) for row in history["whole"] for x in (row.started, row.seconds)] == [float] * 6
            assert [row.output for row in history["whole"]] == [row.output for row in history["parted"]]

    run(main)


def test_a_retry_goes_on_after_a_journal_in_one_row(dsn: str) -> None:
    """What is in there is not done again; attempts are numbered after it; nothing is recorded twice."""

    async def main() -> None:
        knobs["breaks"] = True
        async with running(dsn, *ALL) as kit:
            run_id = await kit.submit("whole")
            assert await kit.ended(run_id) is RunState.FAILED
            before = await kit.engine.events(run_id)
            assert await counts(kit, run_id) == {"run_journal": 1, "workflow_step": 0, "run_event": 0}
            await kit.engine.retry(run_id)
            assert await kit.ended(run_id) is RunState.FAILED
            knobs["breaks"] = False
            await kit.engine.retry(run_id)
            assert await kit.ended(run_id) is RunState.COMPLETED
            assert calls == [("odd", 1), ("breaks", 1), ("breaks", 2), ("breaks", 3)]
            assert await kit.journal(run_id) == [
                ("odd", 1, "completed"),
                ("breaks", 1, "failed"),
                ("breaks", 2, "failed"),
                ("breaks", 3, "completed"),
                ("finalize_upload", 1, "completed"),
            ]
            shown = await kit.engine.show(run_id)
            assert shown is not None
            assert shown["steps"][1]["code"] == "internal"
            assert shown["steps"][3]["output"] == {"seen": ODD}
            events = await kit.engine.events(run_id)
            assert events[: len(before)] == before
            assert [e["id"] for e in events] == sorted({e["id"] for e in events})
            assert (await counts(kit, run_id))["run_journal"] == 1

    run(main)


def test_an_end_from_outside_adds_its_event(dsn: str) -> None:
    async def main() -> None:
        async with running(dsn, *ALL, start=False) as kit:
            (answer,) = await kit.enqueue(NewRun("a", "whole", 1))
            async with kit.pool.acquire() as conn:
                await queries.end_now(conn, answer.run_id, RunState.CANCELLED, "cancelled")
                (event,) = await queries.events(conn, answer.run_id)
            assert (event["kind"], event["code"]) == ("ended", "cancelled")

    run(main)


def test_a_database_with_journals_is_brought_up_to_date(empty_dsn: str, tmp_path: Path) -> None:
    """Ranges made since the first migration get their partition; what was written reads as before."""
    for migration in find(MIGRATIONS):
        if migration.version < 6:
            shutil.copy(migration.path, tmp_path)

    async def main() -> None:
        await migrate(empty_dsn, tmp_path)
        async with running(empty_dsn, *ALL, start=False) as kit:
            (answer,) = await kit.enqueue(NewRun("a", "whole", 1))
            low, high = 1 << 20, (1 << 20) + (1 << 17)
            for table in ("workflow_step", "run_event"):
                part = f"{table}_{low} PARTITION OF {table} FOR VALUES FROM ({low}) TO ({high})"
                await kit.pool.execute(f"CREATE TABLE {part}")
            await kit.pool.execute("INSERT INTO journal_range (low, high) VALUES ($1, $2)", low, high)
            await kit.pool.execute(
                "INSERT INTO workflow_step VALUES ($1, 'odd', 1, 1, $2, NULL, 7, '2026-01-01Z', 0.5)",
                answer.run_id,
                store.dump(ODD),
            )
            await kit.pool.execute(
                "INSERT INTO run_event VALUES ($1, 1048576, '2026-01-01Z', 'started', '{}')", answer.run_id
            )
        await migrate(empty_dsn)
        async with running(empty_dsn, *ALL) as kit:
            await kit.pool.execute(f"ALTER TABLE workflow_run ALTER COLUMN run_id RESTART WITH {low + 5}")
            new = await kit.submit("whole")
            assert await kit.ended(new) is RunState.COMPLETED
            assert await kit.value(f"SELECT count(*) FROM run_journal_{low}") == 1
            shown = await kit.engine.show(answer.run_id)
            assert shown is not None
            assert [(s["step"], s["output"], s["worker_id"], s["seconds"]) for s in shown["steps"]][:1] == [
                ("odd", ODD, 7, 0.5)
            ]
            assert (await kit.engine.events(answer.run_id))[0]["kind"] == "started"

    run(main)


def test_output_that_is_no_json_does_not_stop_the_others(dsn: str) -> None:
    async def main() -> None:
        @activity("nul")
        async def nul(item: Item, ctx: Context) -> Mapping[str, Any]:
            return {"name": "a\0b"}

        @activity("opaque", attempts=1)
        async def opaque(item: Item, ctx: Context) -> Any:
            return object()

        flows = [Workflow(name, (Step(name),)) for name in ("nul", "opaque")]
        async with running(dsn, nul, opaque, *flows) as kit:
            first = await kit.submit("nul")
            second = await kit.submit("opaque")
            assert await kit.ended(first) is RunState.FAILED
            assert await kit.ended(second) is RunState.FAILED

    run(main)
