"""Filling the gaps that a dependency's outage left: a later run of just the optional steps that were passed over."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from processing.model import NewRun, Subject
from processing.ports import Conn as Connection
from processing.registry import Definition, Step

Insert = Callable[[Connection, Sequence[NewRun], Sequence[Definition]], Awaitable[None]]


def filling(workflow: str, step: str) -> Definition:
    """The definition of a run that fills one step in. It decides nothing about its subject."""
    return Definition(f"{workflow}.fill", step, (Step(step, False, False, None),)).sealed()


async def fill(conn: Connection, insert: Insert, dependency: str | None, most: int) -> int:
    """Enqueue filling runs: for one dependency, as its probe; or, with None, for all whose breaker has closed."""
    async with conn.transaction():
        rows = await conn.fetch(
            """
WITH taken AS (
    SELECT g.run_id, g.step_key FROM gap g
    WHERE CASE WHEN $1::text IS NULL
        THEN NOT EXISTS (SELECT FROM breaker b WHERE b.name = g.dependency AND b.is_open)
        ELSE g.dependency = $1 END
    ORDER BY g.run_id LIMIT $2 FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM gap g USING taken t WHERE g.run_id = t.run_id AND g.step_key = t.step_key
    RETURNING g.run_id, g.step_key
)
SELECT r.run_id, g.step_key, r.tenant, r.workflow, r.bucket_id, r.key, r.seq, r.rnd
FROM gone g JOIN workflow_run r ON r.run_id = g.run_id WHERE r.state = 4""",
            dependency,
            most,
        )
        runs, definitions = [], []
        for row in rows:
            step = row["step_key"]
            definition = filling(row["workflow"].removesuffix(".fill"), step)
            subject = None if row["seq"] is None else Subject(row["bucket_id"], row["key"], row["seq"], row["rnd"])
            runs.append(
                NewRun(
                    f"fill:{row['run_id']}:{step}",
                    definition.workflow,
                    row["tenant"],
                    subject,
                    {"fills": [step], "of": row["run_id"]},
                    pipeline=step,
                )
            )
            definitions.append(definition)
        if runs:
            await insert(conn, runs, definitions)
    return len(runs)
