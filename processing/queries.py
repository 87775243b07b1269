"""What operators ask and do: list, show, why, events, counts; and the locks under which a run is ended or revived."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from processing.failures import sentence
from processing.machine import LIVE
from processing.model import RunState, Subject
from processing.ports import Conn as Connection
from processing.store import LIVE_STATES, load

_SHOWN = """run_id, run_key, tenant, lane, workflow, pipeline, definition, bucket_id, key, seq, rnd, state, epoch,
    failures, recoveries, worker_id, run_at, wake_at, wait_key, park_deadline, park_reason, dependency,
    dependency_since, cursor, cancel_requested, error_code, detail, created_at, started_at, finished_at,
    input::text AS input, output::text AS output"""


def _shown(row: Any) -> dict[str, Any]:
    """A run as JSON-able values; key as text with escapes, times as datetimes."""
    run = dict(row)
    run["state"] = RunState(row["state"]).name.lower()
    run["input"], run["output"] = load(row["input"]), load(row["output"])
    run["key"] = None if row["key"] is None else row["key"].decode("utf-8", "backslashreplace")
    run["text"] = None if row["error_code"] is None else sentence(row["error_code"])
    return run


async def list_runs(
    conn: Connection,
    *,
    states: Sequence[RunState] = (),
    workflow: str | None = None,
    tenant: int | None = None,
    bucket_id: int | None = None,
    code: str | None = None,
    older_than: float | None = None,
    before: int | None = None,
    limit: int = 100,
) -> list[dict[str, Any]]:
    """Runs, newest first. older_than: seconds since they were enqueued; before: run ids below (the next page)."""
    rows = await conn.fetch(
        f"""
SELECT {_SHOWN} FROM workflow_run
WHERE (cardinality($1::smallint[]) = 0 OR state = ANY ($1::smallint[]))
  AND ($2::text IS NULL OR workflow = $2) AND ($3::bigint IS NULL OR tenant = $3)
  AND ($4::bigint IS NULL OR bucket_id = $4) AND ($5::text IS NULL OR error_code = $5)
  AND ($6::float8 IS NULL OR created_at < clock_timestamp() - $6::float8 * interval '1 second')
  AND ($7::bigint IS NULL OR run_id < $7)
ORDER BY run_id DESC LIMIT $8""",
        [int(state) for state in states],
        workflow,
        tenant,
        bucket_id,
        code,
        older_than,
        before,
        limit,
    )
    return [_shown(row) for row in rows]


async def show(conn: Connection, run_id: int) -> dict[str, Any] | None:
    """A run with its journal under ``steps``."""
    row = await conn.fetchrow(f"SELECT {_SHOWN} FROM workflow_run WHERE run_id = $1", run_id)
    if row is None:
        return None
    steps = await conn.fetch(
        "SELECT step_key AS step, attempt, status, output::text AS output, code, worker_id, started_at, seconds"
        " FROM journal_step WHERE run_id = $1 ORDER BY started_at, attempt",
        run_id,
    )
    words = {1: "completed", 2: "failed", 3: "degraded", 4: "blocked"}
    return _shown(row) | {
        "steps": [dict(s) | {"status": words[s["status"]], "output": load(s["output"])} for s in steps]
    }


async def events(conn: Connection, run_id: int, after: int = -1, limit: int = 500) -> list[dict[str, Any]]:
    """Progress events with an index above after, in order."""
    rows = await conn.fetch(
        "SELECT idx, at, kind, data::text AS data FROM journal_event"
        " WHERE run_id = $1 AND idx > $2 ORDER BY idx LIMIT $3",
        run_id,
        after,
        limit,
    )
    return [{"id": row["idx"], "at": row["at"], "kind": row["kind"], **load(row["data"])} for row in rows]


async def state_of(conn: Connection, run_id: int) -> RunState | None:
    found = await conn.fetchval("SELECT state FROM workflow_run WHERE run_id = $1", run_id)
    return None if found is None else RunState(found)


async def live_runs(conn: Connection, subject: Subject, workflow: str | None = None) -> list[int]:
    """Runs about a subject that have not ended."""
    rows = await conn.fetch(
        f"SELECT run_id FROM workflow_run WHERE bucket_id = $1 AND key = $2 AND seq = $3 AND rnd = $4"
        f" AND state IN ({LIVE_STATES}) AND ($5::text IS NULL OR workflow = $5) ORDER BY run_id",
        subject.bucket_id,
        subject.key,
        subject.seq,
        subject.rnd,
        workflow,
    )
    return [row["run_id"] for row in rows]


async def counts(conn: Connection) -> list[tuple[str, str, int, float]]:
    """(workflow, state, how many, seconds the oldest has been in the system) of live runs, for gauges."""
    rows = await conn.fetch(
        f"SELECT workflow, state, count(*) AS n,"
        f" extract(epoch FROM clock_timestamp() - min(created_at))::float8 AS oldest"
        f" FROM workflow_run WHERE state IN ({LIVE_STATES}) GROUP BY 1, 2 ORDER BY 1, 2"
    )
    return [(r["workflow"], RunState(r["state"]).name.lower(), r["n"], r["oldest"]) for r in rows]


async def worker_health(conn: Connection) -> dict[str, Any]:
    """Live workers that execute, pending runs and the age of the oldest, for readiness."""
    row = await conn.fetchrow(
        """
SELECT (SELECT count(*) FROM worker WHERE lease_until > clock_timestamp() AND slots > 0) AS workers,
       (SELECT count(*) FROM (SELECT FROM workflow_run WHERE state = 1 LIMIT 10000) p) AS pending,
       (SELECT coalesce(extract(epoch FROM clock_timestamp() - min(run_at)), 0)::float8
        FROM workflow_run WHERE state = 1) AS lag"""
    )
    assert row is not None
    return dict(row)


async def lock_run(conn: Connection, run_id: int) -> dict[str, Any] | None:
    """A run under its lock, after its subject was locked."""
    row = await conn.fetchrow(
        f"SELECT {_SHOWN}, lease_token, key AS raw_key FROM workflow_run WHERE run_id = $1 FOR UPDATE", run_id
    )
    return None if row is None else dict(row) | {"state": RunState(row["state"]), "input": load(row["input"])}


async def peek(conn: Connection, run_id: int) -> tuple[RunState, Subject | None] | None:
    """State and subject of a run, unlocked: for taking the locks in order."""
    row = await conn.fetchrow("SELECT state, bucket_id, key, seq, rnd FROM workflow_run WHERE run_id = $1", run_id)
    if row is None:
        return None
    subject = None if row["seq"] is None else Subject(row["bucket_id"], row["key"], row["seq"], row["rnd"])
    return RunState(row["state"]), subject


async def end_now(conn: Connection, run_id: int, state: RunState, code: str, detail: str | None = None) -> None:
    """End a run that is locked, whoever holds its lease: the token goes, which fences the holder."""
    await conn.execute(
        f"UPDATE workflow_run SET state = $2, error_code = $3, detail = $4, finished_at = clock_timestamp(),"
        f" lease_token = NULL, wake_at = NULL, park_deadline = NULL, cancel_requested = false"
        f" WHERE run_id = $1 AND state IN ({LIVE_STATES})",
        run_id,
        int(state),
        code,
        detail,
    )
    await conn.execute(
        """
INSERT INTO run_event (run_id, idx, at, kind, data)
SELECT $1, (r.epoch + 1)::bigint << 20, clock_timestamp(), 'ended',
       jsonb_build_object('status', $2::text, 'code', $3::text, 'progress', 100)
FROM workflow_run r WHERE r.run_id = $1 ON CONFLICT DO NOTHING""",
        run_id,
        state.name.lower(),
        code,
    )
    await conn.execute("UPDATE workflow_run SET epoch = epoch + 1 WHERE run_id = $1", run_id)


async def request_cancel(conn: Connection, run_id: int) -> bool:
    """Ask the holder of a running run to end it; it sees that with its next heartbeat."""
    return bool(
        await conn.fetchval(
            "UPDATE workflow_run SET cancel_requested = true WHERE run_id = $1 AND state = 2 RETURNING true", run_id
        )
    )


async def supersede(conn: Connection, run_ids: Sequence[int]) -> list[int]:
    """In the caller's transaction, whose subjects are locked and going: end those of these runs that live."""
    rows = await conn.fetch(
        f"""
WITH gone AS (
    SELECT run_id FROM workflow_run WHERE run_id = ANY ($1::bigint[]) AND state IN ({LIVE_STATES})
    ORDER BY run_id FOR UPDATE
)
UPDATE workflow_run r SET state = 6, error_code = 'superseded', finished_at = clock_timestamp(), lease_token = NULL,
       wake_at = NULL, park_deadline = NULL
FROM gone g WHERE r.run_id = g.run_id AND r.state IN ({LIVE_STATES}) RETURNING r.run_id""",
        run_ids,
    )
    return [row["run_id"] for row in rows]


async def revive(conn: Connection, run_id: int) -> bool:
    """A failed or cancelled run, locked, back to its tenant's line: recoveries cleared, one fresh attempt per
    remaining step, counted from what is journaled now."""
    return bool(
        await conn.fetchval(
            """
WITH tried AS (
    SELECT coalesce(jsonb_object_agg(step_key, n), '{}') AS base
    FROM (SELECT step_key, count(*) FILTER (WHERE status = 2) AS n FROM journal_step WHERE run_id = $1 GROUP BY 1) t
), back AS (
    UPDATE workflow_run r SET state = 1, retry_base = tried.base, recoveries = 0, run_at = clock_timestamp(),
           finished_at = NULL, error_code = NULL, detail = NULL, output = NULL, cancel_requested = false,
           wait_key = NULL, park_deadline = NULL, dependency = NULL, dependency_since = NULL
    FROM tried WHERE r.run_id = $1 AND r.state IN (5, 6) RETURNING r.tenant, r.lane
), active AS MATERIALIZED (
    SELECT engine_activate(array_agg(tenant), array_agg(lane)) FROM back HAVING count(*) > 0
)
SELECT count(*), (SELECT count(*) FROM active) AS active FROM back""",
            run_id,
        )
    )


async def requeue(conn: Connection, run_id: int, force: bool) -> str:
    """Parked, or running under a dead lease (or any, by force), back to pending: "moved", "leased", or the state's
    word when there is nothing to do, "" when the run is unknown."""
    row = await conn.fetchrow(
        """
WITH run AS (
    SELECT r.run_id, r.state,
           r.state = 2 AND EXISTS (SELECT FROM worker w WHERE w.worker_id = r.worker_id
                                   AND w.lease_until > clock_timestamp()) AS leased
    FROM workflow_run r WHERE r.run_id = $1 FOR NO KEY UPDATE
), moved AS (
    UPDATE workflow_run r SET state = 1, lease_token = NULL, wake_at = NULL, park_deadline = NULL,
           run_at = clock_timestamp()
    FROM run WHERE r.run_id = run.run_id AND run.state IN (2, 3) AND (NOT run.leased OR $2)
    RETURNING r.tenant, r.lane
), active AS MATERIALIZED (
    SELECT engine_activate(array_agg(tenant), array_agg(lane)) FROM moved HAVING count(*) > 0
)
SELECT run.state, run.leased, (SELECT count(*) FROM moved) AS moved, (SELECT count(*) FROM active) AS active
FROM run""",
        run_id,
        force,
    )
    if row is None:
        return ""
    if row["moved"]:
        return "moved"
    return "leased" if row["leased"] else RunState(row["state"]).name.lower()


async def why(
    conn: Connection, run_id: int, *, cap: int, caps: dict[str, int], now: datetime | None = None
) -> list[str]:
    """Sentences that say why a run does not move."""
    row = await conn.fetchrow(
        "SELECT r.*, w.lease_until > clock_timestamp() AS alive, w.name AS worker,"
        " q.active, q.max_running, extract(epoch FROM r.wake_at - clock_timestamp())::float8 AS wakes,"
        " (SELECT count(*) FROM workflow_run o WHERE o.tenant = r.tenant AND o.lane = r.lane AND o.state = 2)"
        " AS running,"
        " (SELECT count(*) FROM workflow_run o WHERE o.tenant = r.tenant AND o.lane = r.lane AND o.state = 1"
        "  AND (o.run_at, o.run_id) < (r.run_at, r.run_id)) AS ahead,"
        " (SELECT count(*) FROM worker v WHERE v.lease_until > clock_timestamp() AND v.slots > 0) AS workers,"
        " b.is_open, extract(epoch FROM b.next_probe - clock_timestamp())::float8 AS probe,"
        " d.fingerprint IS NOT NULL AS defined"
        " FROM workflow_run r LEFT JOIN worker w ON w.worker_id = r.worker_id"
        " LEFT JOIN tenant_q q ON q.tenant = r.tenant AND q.lane = r.lane"
        " LEFT JOIN breaker b ON b.name = r.dependency LEFT JOIN definition d ON d.fingerprint = r.definition"
        " WHERE r.run_id = $1",
        run_id,
    )
    if row is None:
        return [f"There is no run {run_id}."]
    state = RunState(row["state"])
    if state not in LIVE:
        ended = f"It ended {state.name.lower()}"
        return [ended + (f" ({row['error_code']}): {sentence(row['error_code'])}" if row["error_code"] else ".")]
    said = []
    if not row["defined"]:
        said.append("Its definition is unknown to this database.")
    if row["cancel_requested"]:
        said.append("Its cancellation has been asked for.")
    if state is RunState.RUNNING:
        holder = f"worker {row['worker_id']} ({row['worker'] or 'unknown'})"
        said.append(
            f"It is running on {holder}." if row["alive"] else f"Its {holder} is dead; it is about to be reaped."
        )
    elif state is RunState.PARKED:
        said.append(f"It is parked at {row['cursor'] or 'its start'} ({row['park_reason']}),"
                    f" for {max(0.0, row['wakes']):.0f} s more at most.")  # fmt: skip
        if row["wait_key"] and not row["dependency"]:
            said.append(f"It waits for the event {row['wait_key']}.")
        if row["dependency"]:
            breaker = "open" if row["is_open"] else "closed"
            said.append(f"It waits for {row['dependency']} since {row['dependency_since']}; that breaker is {breaker}.")
    else:
        limit = row["max_running"] or caps.get(row["lane"], cap)
        if row["workers"] == 0:
            said.append("No worker is alive.")
        if row["running"] >= limit:
            said.append(f"Its tenant has {row['running']} runs in progress, its cap is {limit}.")
        said.append(f"{row['ahead']} runs of its tenant are in line before it.")
        if not row["active"]:
            said.append("Its tenant is not marked as waiting; a sweep repairs that within a minute.")
    if row["recoveries"]:
        said.append(f"{row['recoveries']} workers were lost while they held it.")
    return said
