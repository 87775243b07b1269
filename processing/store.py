"""The engine's statements on the hot path: enqueue, claim, journal, park, finish, reap. Each is one round trip.

Every write of a running run names its lease token: a stale worker's writes match nothing. JSON travels as text, so
that no codec of the connection matters. Listing and operating are in queries.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

import msgspec
from asyncpg import Record

from processing.machine import LIVE
from processing.model import Entry, EventRow, Finish, Lease, NewRun, Parking, StepRow, StepStatus, Subject
from processing.ports import Conn as Connection

LIVE_STATES = ", ".join(str(int(state)) for state in LIVE)
_encode = msgspec.json.Encoder(order="deterministic").encode
_decode = msgspec.json.Decoder().decode


class NotJson(ValueError):
    """A value cannot be stored as JSON (foreign types, U+0000)."""


def dump(value: Any) -> str:
    """JSON text that Postgres takes as jsonb. Raises NotJson."""
    try:
        text = _encode(value).decode()
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise NotJson(type(error).__name__) from None
    if "\\u0000" in text:
        raise NotJson("U+0000")
    return text


def load(text: str | None) -> Any:
    return None if text is None else _decode(text)


# --- enqueue --------------------------------------------------------------------------------------------------------

_ENQUEUE = "SELECT * FROM engine_enqueue($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)"


async def enqueue(
    conn: Connection,
    runs: Sequence[NewRun],
    lanes: Sequence[str],
    fingerprints: Sequence[str],
    tokens: Sequence[UUID | None],
    worker_id: int | None,
) -> dict[str, tuple[int, int | None]]:
    """Insert runs in the caller's transaction: run_key → (run_id, state when new, else None)."""
    subjects = [run.subject for run in runs]
    rows = await conn.fetch(
        _ENQUEUE,
        [run.run_key for run in runs],
        [run.tenant for run in runs],
        lanes,
        [run.workflow for run in runs],
        [run.pipeline for run in runs],
        fingerprints,
        [s and s.bucket_id for s in subjects],
        [s and s.key for s in subjects],
        [s and s.seq for s in subjects],
        [s and s.rnd for s in subjects],
        [dump(run.input) for run in runs],
        [run.delay for run in runs],
        tokens,
        worker_id,
    )
    return {row["run_key"]: (row["run_id"], row["state"]) for row in rows}


async def define(conn: Connection, fingerprint: str, workflow: str, pipeline: str, body: str) -> int:
    """Make sure a definition is stored; its id, which orders definitions by first appearance."""
    await conn.execute(
        "INSERT INTO definition (fingerprint, workflow, pipeline, body) VALUES ($1, $2, $3, $4::text::jsonb)"
        " ON CONFLICT DO NOTHING",
        fingerprint,
        workflow,
        pipeline,
        body,
    )
    found = await conn.fetchval("SELECT id FROM definition WHERE fingerprint = $1", fingerprint)
    assert isinstance(found, int)
    return found


async def definition(conn: Connection, fingerprint: str) -> tuple[int, str] | None:
    """(id, JSON) of a stored definition."""
    row = await conn.fetchrow("SELECT id, body::text AS body FROM definition WHERE fingerprint = $1", fingerprint)
    return None if row is None else (row["id"], row["body"])


# --- claim ----------------------------------------------------------------------------------------------------------

_LEASE_COLUMNS = """run_id, lease_token, tenant, lane, workflow, pipeline, definition, bucket_id, key, seq, rnd,
    input::text AS input, epoch, failures, recoveries, park_deadline IS NOT NULL AS overdue, dependency,
    poll_state::text AS poll_state, retry_base::text AS retry_base, cancel_requested, wait_key IS NOT NULL AS waited,
    extract(epoch FROM clock_timestamp() - created_at)::float8 AS age"""
_CLAIM = f"SELECT {_LEASE_COLUMNS} FROM engine_claim($1, $2, $3, $4, $5)"
_CLAIM_WANTED = f"SELECT {_LEASE_COLUMNS} FROM engine_claim_wanted($1, $2, $3, $4, $5, $6)"
_TAKE = f"""
UPDATE workflow_run SET state = 2, epoch = epoch + 1, lease_token = gen_random_uuid(), worker_id = $2,
       started_at = coalesce(started_at, clock_timestamp())
WHERE run_id = $1 AND state = 1 RETURNING {_LEASE_COLUMNS}"""
_ADOPT = f"""
UPDATE workflow_run SET epoch = epoch + 1, lease_token = gen_random_uuid(), worker_id = $2
WHERE run_id = $1 AND state = 2 AND lease_token = $3 RETURNING {_LEASE_COLUMNS}"""


def lease_of(row: Record) -> Lease:
    subject = None if row["seq"] is None else Subject(row["bucket_id"], row["key"], row["seq"], row["rnd"])
    return Lease(
        run_id=row["run_id"],
        token=UUID(bytes=row["lease_token"].bytes),
        tenant=row["tenant"],
        lane=row["lane"],
        workflow=row["workflow"],
        pipeline=row["pipeline"],
        definition=row["definition"],
        subject=subject,
        input=load(row["input"]),
        epoch=row["epoch"],
        failures=row["failures"],
        recoveries=row["recoveries"],
        overdue=row["overdue"],
        dependency=row["dependency"],
        poll_state=load(row["poll_state"]) or {},
        retry_base=load(row["retry_base"]),
        cancel_requested=row["cancel_requested"],
        waited=row["waited"],
        age=row["age"],
    )


async def claim(
    conn: Connection, worker_id: int, want: int, cap: int, caps: Mapping[str, int]
) -> tuple[list[Lease], bool]:
    """Take up to want runs. The flag says that a locked tenant was passed over: look again soon."""
    rows = await conn.fetch(_CLAIM, worker_id, want, cap, list(caps), list(caps.values()))
    leases = [lease_of(row) for row in rows if row["run_id"] is not None]
    return leases, len(leases) < len(rows)


async def claim_wanted(
    conn: Connection, worker_id: int, run_ids: Sequence[int], want: int, cap: int, caps: Mapping[str, int]
) -> list[Lease]:
    """Take up to want of these runs, as far as they stand in line, past the line but not past the caps."""
    rows = await conn.fetch(_CLAIM_WANTED, worker_id, run_ids, want, cap, list(caps), list(caps.values()))
    return [lease_of(row) for row in rows]


async def take(conn: Connection, run_id: int, worker_id: int, token: UUID | None) -> Lease | None:
    """Claim one run by id, past the line: a pending one, or with token one that its holder hands over."""
    if token is None:
        row = await conn.fetchrow(_TAKE, run_id, worker_id)
    else:
        row = await conn.fetchrow(_ADOPT, run_id, worker_id, token)
    return None if row is None else lease_of(row)


async def wake(conn: Connection, most: int = 500) -> int:
    """Return parked runs whose time has come to pending."""
    found = await conn.fetchval("SELECT engine_wake($1)", most)
    return int(found or 0)


async def history(conn: Connection, run_ids: Sequence[int]) -> dict[int, list[StepRow]]:
    """The journals of runs, by run."""
    rows = await conn.fetch(
        "SELECT run_id, step_key, attempt, status, output::text AS output, code,"
        " extract(epoch FROM started_at)::float8 AS started, seconds"
        " FROM journal_step WHERE run_id = ANY ($1::bigint[]) ORDER BY run_id, started_at, attempt",
        run_ids,
    )
    found: dict[int, list[StepRow]] = {run_id: [] for run_id in run_ids}
    for row in rows:
        run_id, step, attempt, status, *rest = row
        found[run_id].append(StepRow(run_id, step, attempt, StepStatus(status), *rest))
    return found


async def payloads(conn: Connection, run_ids: Sequence[int]) -> dict[int, Mapping[str, Any]]:
    """The payloads of the events that woke these runs."""
    rows = await conn.fetch(
        "SELECT r.run_id, s.payload::text AS payload FROM workflow_run r JOIN signal s USING (wait_key)"
        " WHERE r.run_id = ANY ($1::bigint[])",
        run_ids,
    )
    return {row["run_id"]: load(row["payload"]) for row in rows}


# --- journal --------------------------------------------------------------------------------------------------------


def _writes(first: int) -> str:
    """CTEs that insert steps and events of the runs in ``mine``; parameters first … first + 12."""
    p = [f"${first + n}" for n in range(13)]
    return f"""
    s AS (
        INSERT INTO workflow_step (run_id, step_key, attempt, status, output, code, worker_id, started_at, seconds)
        SELECT t.run_id, t.step_key, t.attempt, t.status, t.output::jsonb, t.code, m.worker_id,
               to_timestamp(t.started), t.seconds
        FROM unnest({p[0]}::bigint[], {p[1]}::text[], {p[2]}::int[], {p[3]}::smallint[], {p[4]}::text[], {p[5]}::text[],
                    {p[6]}::float8[], {p[7]}::float4[])
             AS t(run_id, step_key, attempt, status, output, code, started, seconds)
        JOIN mine m ON m.run_id = t.run_id
        ON CONFLICT DO NOTHING RETURNING run_id
    ), e AS (
        INSERT INTO run_event (run_id, idx, at, kind, data)
        SELECT t.run_id, t.idx, to_timestamp(t.at), t.kind, t.data::jsonb
        FROM unnest({p[8]}::bigint[], {p[9]}::bigint[], {p[10]}::float8[], {p[11]}::text[], {p[12]}::text[])
             AS t(run_id, idx, at, kind, data)
        JOIN mine m ON m.run_id = t.run_id
        ON CONFLICT DO NOTHING
    )"""


def _columns(entries: Iterable[Entry]) -> list[list[Any]]:
    """The thirteen arrays of _writes."""
    steps: list[StepRow] = []
    events: list[EventRow] = []
    for entry in entries:
        steps.extend(entry.steps)
        events.extend(entry.events)
    return [
        [s.run_id for s in steps],
        [s.step for s in steps],
        [s.attempt for s in steps],
        [int(s.status) for s in steps],
        [s.output for s in steps],
        [s.code for s in steps],
        [s.started for s in steps],
        [s.seconds for s in steps],
        [e.run_id for e in events],
        [e.idx for e in events],
        [e.at for e in events],
        [e.kind for e in events],
        [e.data for e in events],
    ]


# A token says by itself that its run is running; more would let the planner take other ways (migrations/0009).
# The share lock keeps the lease from being taken away between this look and the commit. The commit need not be waited
# for: what a crash of the server loses is written again when the run ends, or its steps run again.
_JOURNAL = f"""
WITH hasty AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true)
), mine AS MATERIALIZED (
    SELECT r.run_id, r.worker_id, r.recoveries
    FROM unnest($1::bigint[], $2::uuid[]) AS u(run_id, token)
    JOIN workflow_run r ON r.run_id = u.run_id CROSS JOIN hasty
    WHERE r.lease_token = u.token
    ORDER BY r.run_id FOR SHARE OF r
), {_writes(3)}, proven AS (
    UPDATE workflow_run r SET recoveries = 0 FROM mine m
    WHERE r.run_id = m.run_id AND m.recoveries > 0 AND r.run_id IN (SELECT run_id FROM s)
)
SELECT run_id FROM mine"""


async def journal(conn: Connection, entries: Sequence[Entry]) -> set[int]:
    """Write journal rows; the runs whose lease still held. Recording a step clears the count of lost workers."""
    tokens = {entry.run_id: entry.token for entry in entries}
    rows = await conn.fetch(_JOURNAL, list(tokens), list(tokens.values()), *_columns(entries))
    return {row["run_id"] for row in rows}


# --- park -----------------------------------------------------------------------------------------------------------

_PARK_LOCKS = """
SELECT pg_advisory_xact_lock(k)
FROM (SELECT DISTINCT hashtextextended(w, 0) AS k FROM unnest($1::text[]) w ORDER BY 1) x"""

# An event that came first, a leading run that has ended, a breaker that has closed: then there is nothing to wait for.
_PARK = f"""
WITH u AS MATERIALIZED (
    SELECT * FROM unnest($1::bigint[], $2::uuid[], $3::bool[], $4::float8[], $5::float8[], $6::text[], $7::text[],
                         $8::bigint[], $9::text[], $10::text[], $11::text[], $12::int[])
        AS t(run_id, token, release, wake, deadline, reason, wait_key, wait_run, dependency, poll_state, cursor, failed)
), mine AS MATERIALIZED (
    SELECT r.run_id, r.worker_id, u.release, u.reason, u.wait_key, u.dependency, u.poll_state, u.cursor, u.failed,
           clock_timestamp() + u.wake * interval '1 second' AS wake_at,
           CASE WHEN u.dependency IS NOT NULL AND r.dependency = u.dependency THEN r.dependency_since
                WHEN u.dependency IS NOT NULL THEN clock_timestamp() END AS since,
           u.deadline * interval '1 second' AS patience,
           u.release OR EXISTS (SELECT FROM signal s WHERE s.wait_key = u.wait_key)
           OR u.wait_run IS NOT NULL AND NOT EXISTS (
               SELECT FROM workflow_run l WHERE l.run_id = u.wait_run AND l.state IN ({LIVE_STATES})) AS ready,
           u.dependency IS NOT NULL AND u.wait_key IS NOT NULL AND NOT EXISTS (
               SELECT FROM breaker b WHERE b.name = u.dependency AND b.is_open) AS mended
    FROM u JOIN workflow_run r ON r.run_id = u.run_id
    WHERE r.lease_token = u.token
    ORDER BY r.run_id FOR NO KEY UPDATE OF r
), parked AS (
    UPDATE workflow_run r SET
        state = CASE WHEN m.ready THEN 1 ELSE 3 END,
        lease_token = NULL,
        failures = r.failures + m.failed,
        run_at = CASE WHEN m.release THEN r.run_at ELSE clock_timestamp() END,
        wake_at = CASE WHEN NOT m.ready THEN least(
            CASE WHEN m.mended THEN clock_timestamp() + random() * $13::float8 * interval '1 second' ELSE m.wake_at END,
            coalesce(m.since, clock_timestamp()) + m.patience) END,
        park_deadline = CASE WHEN NOT m.ready THEN coalesce(m.since, clock_timestamp()) + m.patience END,
        park_reason = CASE WHEN NOT m.release THEN m.reason ELSE r.park_reason END,
        wait_key = CASE WHEN NOT m.release THEN m.wait_key ELSE r.wait_key END,
        dependency = CASE WHEN NOT m.release THEN m.dependency ELSE r.dependency END,
        dependency_since = CASE WHEN NOT m.release THEN m.since ELSE r.dependency_since END,
        poll_state = CASE WHEN NOT m.release THEN m.poll_state::jsonb ELSE r.poll_state END,
        cursor = coalesce(m.cursor, r.cursor)
    FROM mine m WHERE r.run_id = m.run_id
    RETURNING r.run_id, r.state, r.tenant, r.lane,
              extract(epoch FROM r.wake_at - clock_timestamp())::float8 AS wake
), {_writes(14)}, woken AS MATERIALIZED (
    SELECT engine_activate(array_agg(tenant), array_agg(lane)) FROM parked WHERE state = 1 HAVING count(*) > 0
)
SELECT p.run_id, p.wake, (SELECT count(*) FROM woken) AS active FROM parked p"""


async def lock_keys(conn: Connection, wait_keys: Sequence[str]) -> None:
    """In a transaction: exclude whoever parks on, or signals, these keys."""
    await conn.execute(_PARK_LOCKS, wait_keys)


async def park(conn: Connection, parkings: Sequence[Parking], spread: float) -> dict[int, float | None]:
    """End leases without ending runs: run → seconds until its timer (None: pending again). Missing: lease lost.

    Must run in a transaction when any has a wait_key: the advisory lock excludes whoever signals that key between the
    look for a signal and the commit.
    """
    keys = [p.wait_key for p in parkings if p.wait_key is not None]
    if keys:
        await lock_keys(conn, keys)
    rows = await conn.fetch(
        _PARK,
        [p.run_id for p in parkings],
        [p.token for p in parkings],
        [p.release for p in parkings],
        [p.wake for p in parkings],
        [p.deadline for p in parkings],
        [p.reason for p in parkings],
        [p.wait_key for p in parkings],
        [p.wait_run for p in parkings],
        [p.dependency for p in parkings],
        [p.poll_state for p in parkings],
        [p.cursor for p in parkings],
        [p.failed for p in parkings],
        spread,
        *_columns(parkings),
    )
    return {row["run_id"]: row["wake"] for row in rows}


async def signal(conn: Connection, wait_key: str, payload: str | None) -> int:
    """In a transaction: record an event (unless payload is None; the first write wins) and wake who waits for it."""
    await lock_keys(conn, [wait_key])
    if payload is not None:
        await conn.execute(
            "INSERT INTO signal (wait_key, payload) VALUES ($1, $2::text::jsonb) ON CONFLICT DO NOTHING",
            wait_key,
            payload,
        )
    return await wake_waiting(conn, [wait_key], 0.0)


_WAKE_SPREAD = """
WITH due AS (
    SELECT r.run_id FROM workflow_run r WHERE r.state = 3 AND r.wait_key = ANY ($1::text[])
    ORDER BY r.run_id FOR NO KEY UPDATE
), woken AS (
    UPDATE workflow_run r
    SET wake_at = least(r.wake_at, clock_timestamp() + random() * $2::float8 * interval '1 second')
    WHERE r.run_id = ANY (ARRAY(SELECT run_id FROM due)) AND r.state = 3
    RETURNING r.run_id
)
SELECT count(*) FROM woken"""


async def wake_waiting(conn: Connection, wait_keys: Sequence[str], spread: float) -> int:
    """Wake who is parked on these keys: at once, or by timers spread over so many seconds."""
    if spread > 0:
        return int(await conn.fetchval(_WAKE_SPREAD, wait_keys, spread))
    return int(await conn.fetchval("SELECT engine_wake_waiting($1)", wait_keys))


async def end_followers(conn: Connection, wait_keys: Sequence[str]) -> int:
    """In a transaction of its own, after these runs' ends have committed: wake who follows them."""
    return int(await conn.fetchval("SELECT engine_end_followers($1)", wait_keys))


# --- finish ---------------------------------------------------------------------------------------------------------

_HELD = """
SELECT r.run_id FROM unnest($1::bigint[], $2::uuid[]) AS u(run_id, token)
JOIN workflow_run r ON r.run_id = u.run_id
WHERE r.lease_token = u.token
ORDER BY r.run_id FOR UPDATE OF r"""

_FINISH = "SELECT engine_finish(" + ", ".join(f"${n}" for n in range(1, 27)) + ")"
_FIRST_EVENT = 1 << 20  # idx of the first event of a run's first lease


async def held(conn: Connection, finishes: Sequence[Finish]) -> set[int]:
    """Lock the runs whose lease still holds, in order of their ids."""
    rows = await conn.fetch(_HELD, [f.run_id for f in finishes], [f.token for f in finishes])
    return {row["run_id"] for row in rows}


async def finish(conn: Connection, finishes: Sequence[Finish]) -> set[int]:
    """End runs, with their events and every step row of this lease once more: those that a crash of the server lost
    after an unawaited commit are there again."""
    return set(await conn.fetchval(_FINISH, *ending_columns(finishes)))


def ending_columns(finishes: Sequence[Finish]) -> list[list[Any]]:
    """The arrays of engine_finish, in its order."""
    gaps = [(f.run_id, step, dependency) for f in finishes for step, dependency in f.gaps]
    whole = [_whole(f) for f in finishes]
    parted = [f for f, journal in zip(finishes, whole, strict=True) if journal is None]
    return [
        [f.run_id for f in finishes],
        [f.token for f in finishes],
        [int(f.outcome.state) for f in finishes],
        [f.outcome.code for f in finishes],
        [f.outcome.detail for f in finishes],
        [f.output for f in finishes],
        [f.failed for f in finishes],
        [journal and journal[0] for journal in whole],
        [journal and journal[1] for journal in whole],
        [gap[0] for gap in gaps],
        [gap[1] for gap in gaps],
        [gap[2] for gap in gaps],
        [position < f.again for f in parted for position in range(len(f.steps))],
        *_columns(parted),
    ]


def _whole(finish: Finish) -> tuple[str, str] | None:
    """Steps and events of a run as its one journal row; None when some were sent before. The first event leaves with
    whatever leaves first, so that a run that still has it has sent nothing."""
    if not finish.events or finish.events[0].idx != _FIRST_EVENT:
        return None
    steps = [
        (s.step, s.attempt, int(s.status), s.output and msgspec.Raw(s.output.encode()), s.code, s.started, s.seconds)
        for s in finish.steps
    ]
    events = [(e.idx, e.at, e.kind, msgspec.Raw(e.data.encode())) for e in finish.events]
    return _encode(steps).decode(), _encode(events).decode()


# --- workers and their leases ---------------------------------------------------------------------------------------

_BEAT = """
WITH hasty AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true)
), beat AS (
    UPDATE worker SET lease_until = clock_timestamp() + $2::float8 * interval '1 second' FROM hasty
    WHERE worker_id = $1 AND lease_until > clock_timestamp() RETURNING worker_id
)
SELECT (SELECT count(*) FROM beat) AS alive,
       ARRAY(SELECT run_id FROM workflow_run WHERE worker_id = $1 AND state = 2) AS held,
       ARRAY(SELECT run_id FROM workflow_run WHERE worker_id = $1 AND state = 2 AND cancel_requested) AS cancelled"""


async def register(conn: Connection, name: str, ttl: float, slots: int) -> int:
    found = await conn.fetchval(
        "INSERT INTO worker (name, lease_until, slots)"
        " VALUES ($1, clock_timestamp() + $2::float8 * interval '1 second', $3) RETURNING worker_id",
        name,
        ttl,
        slots,
    )
    return int(found)


async def beat(conn: Connection, worker_id: int, ttl: float) -> tuple[bool, list[int], list[int]]:
    """Renew a lease that has not expired: (renewed, runs held, those of them to cancel)."""
    row = await conn.fetchrow(_BEAT, worker_id, ttl)
    assert row is not None
    return row["alive"] == 1, row["held"], row["cancelled"]


async def resign(conn: Connection, worker_id: int) -> None:
    """The worker's lease ends now; what it may still hold is for the reaper."""
    await conn.execute(
        "UPDATE worker SET lease_until = clock_timestamp() WHERE worker_id = $1 AND lease_until > clock_timestamp()",
        worker_id,
    )


async def release_strays(conn: Connection, worker_id: int, run_ids: Sequence[int]) -> int:
    """Hand back runs that the database says this worker holds and this worker does not know (a commit whose answer was
    lost)."""
    found = await conn.fetchval(
        """
WITH mine AS (
    SELECT run_id FROM workflow_run WHERE run_id = ANY ($2::bigint[]) AND worker_id = $1 AND state = 2
    ORDER BY run_id FOR NO KEY UPDATE SKIP LOCKED
), freed AS (
    UPDATE workflow_run r SET state = 1, lease_token = NULL FROM mine m WHERE r.run_id = m.run_id
    RETURNING r.tenant, r.lane
), active AS MATERIALIZED (
    SELECT engine_activate(array_agg(tenant), array_agg(lane)) FROM freed HAVING count(*) > 0
)
SELECT count(*), (SELECT count(*) FROM active) AS active FROM freed""",
        worker_id,
        run_ids,
    )
    return int(found)


_DEAD = """r.state = 2 AND (w.worker_id IS NULL OR w.lease_until < clock_timestamp())
    AND pg_postmaster_start_time() < clock_timestamp() - $1::float8 * interval '1 second'"""
_REAP = f"""
WITH dead AS (
    SELECT r.run_id FROM workflow_run r LEFT JOIN worker w ON w.worker_id = r.worker_id
    WHERE {_DEAD} AND r.recoveries < $2
    ORDER BY r.run_id LIMIT 500 FOR UPDATE OF r SKIP LOCKED
), freed AS (
    UPDATE workflow_run r SET state = 1, lease_token = NULL, recoveries = recoveries + 1, run_at = clock_timestamp()
    FROM dead d WHERE r.run_id = d.run_id AND r.state = 2
    RETURNING r.run_id, r.tenant, r.lane
), active AS MATERIALIZED (
    SELECT engine_activate(array_agg(tenant), array_agg(lane)) FROM freed HAVING count(*) > 0
)
SELECT f.run_id, (SELECT count(*) FROM active) AS active FROM freed f"""


async def reap(conn: Connection, ttl: float, max_recoveries: int) -> list[int]:
    """Return the runs of dead workers to pending, a recovery counted. No lease is judged in the database's first ttl
    seconds: a worker could not renew it while the database was away."""
    return [row["run_id"] for row in await conn.fetch(_REAP, ttl, max_recoveries)]


async def worn_out(conn: Connection, ttl: float, max_recoveries: int) -> list[int]:
    """Runs of dead workers that have had all the recoveries they get."""
    rows = await conn.fetch(
        f"SELECT r.run_id FROM workflow_run r LEFT JOIN worker w ON w.worker_id = r.worker_id"
        f" WHERE {_DEAD} AND r.recoveries >= $2 ORDER BY r.run_id LIMIT 50",
        ttl,
        max_recoveries,
    )
    return [row["run_id"] for row in rows]


async def is_dead(conn: Connection, run_id: int, ttl: float) -> bool:
    """Whether a run's worker is dead, looked at again under the run's lock."""
    found = await conn.fetchval(
        f"SELECT true FROM workflow_run r LEFT JOIN worker w ON w.worker_id = r.worker_id"
        f" WHERE {_DEAD} AND r.run_id = $2",
        ttl,
        run_id,
    )
    return bool(found)
