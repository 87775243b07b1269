"""Ranges of the journal made ahead and dropped behind, and ended runs deleted after their retention."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import structlog

from processing.maintenance.sweeps import Undecided
from processing.model import Subject
from processing.ports import Conn as Connection

log = structlog.get_logger("sluice.engine")

NARROW, WIDE = 1 << 17, 1 << 23  # runs per range
SPAN = 6 * 3600.0  # seconds of runs that a range should hold
TABLES = ("workflow_step", "run_event", "run_journal")


def width_for(rate: float) -> int:
    """Runs per range at so many runs per second: a power of two between NARROW and WIDE."""
    width = NARROW
    while width < WIDE and width < rate * SPAN:
        width *= 2
    return width


async def top_run(conn: Connection) -> int:
    """The newest run id given out."""
    found = await conn.fetchval(
        "SELECT coalesce(pg_sequence_last_value(pg_get_serial_sequence('workflow_run', 'run_id')::regclass), 0)"
    )
    return int(found or 0)


async def make_ranges(conn: Connection, cursor: int, ran_at: datetime) -> int:
    """Keep two ranges ahead of the newest run, wide enough for the rate since the last look. The cursor is that run."""
    top = await top_run(conn)
    elapsed = max(1.0, (datetime.now(UTC) - ran_at).total_seconds())
    width = width_for(max(0, top - cursor) / elapsed if cursor else 0.0)
    high = int(await conn.fetchval("SELECT coalesce(max(high), 0) FROM journal_range"))
    while high < top + 2 * width:
        await make_range(conn, high, high + width)
        high += width
    return top


async def make_range(conn: Connection, low: int, high: int) -> None:
    """A partition of each table, with the rows that had no range until now.

    Attaching takes a weaker lock on the parent than creating as a partition does; the rest's lock keeps a row from
    arriving there between the move and the attachment.
    """
    async with conn.transaction():
        await conn.execute("SET LOCAL lock_timeout = '2s'")
        for table in TABLES:
            name = f"{table}_{low}"
            await conn.execute(f"CREATE TABLE {name} (LIKE {table} INCLUDING ALL)")
            await conn.execute(f"LOCK TABLE {table}_rest IN ACCESS EXCLUSIVE MODE")
            await conn.execute(
                f"WITH stray AS (DELETE FROM {table}_rest WHERE run_id >= {low} AND run_id < {high} RETURNING *)"
                f" INSERT INTO {name} SELECT * FROM stray"
            )
            await conn.execute(f"ALTER TABLE {table} ATTACH PARTITION {name} FOR VALUES FROM ({low}) TO ({high})")
        await conn.execute("INSERT INTO journal_range (low, high) VALUES ($1, $2)", low, high)


async def drop_ranges(conn: Connection, cursor: int, ran_at: datetime) -> int:
    """Ranges whose runs are all gone, and that no new run can fall into."""
    top = await top_run(conn)
    rows = await conn.fetch(
        "SELECT low, high FROM journal_range g WHERE high <= $1"
        " AND NOT EXISTS (SELECT FROM workflow_run r WHERE r.run_id >= g.low AND r.run_id < g.high) ORDER BY low",
        top,
    )
    for row in rows:
        async with conn.transaction():
            await conn.execute("SET LOCAL lock_timeout = '2s'")
            for table in TABLES:
                await conn.execute(f"DROP TABLE {table}_{row['low']}")
            await conn.execute("DELETE FROM journal_range WHERE low = $1", row["low"])
        log.info("journal-range-dropped", low=row["low"], high=row["high"])
    return cursor


def prune(
    retention: float, undecided: Undecided | None, at_once: int = 5_000
) -> Callable[[Connection, int, datetime], Awaitable[int]]:
    """Delete runs that ended longer ago than retention (but for those whose subject still waits), and what else has
    had its time: signals, dead workers, gaps of deleted runs. Keys are unique within the retention."""

    async def run(conn: Connection, cursor: int, ran_at: datetime) -> int:
        rows = await conn.fetch(
            "SELECT run_id, bucket_id, key, seq, rnd FROM workflow_run WHERE run_id > $1 AND state IN (4, 5, 6)"
            " AND finished_at < clock_timestamp() - $2::float8 * interval '1 second'"
            " ORDER BY run_id LIMIT $3 FOR UPDATE SKIP LOCKED",
            cursor,
            retention,
            at_once,
        )
        subjects = {
            Subject(row["bucket_id"], row["key"], row["seq"], row["rnd"]) for row in rows if row["seq"] is not None
        }
        kept = await undecided(conn, sorted(subjects)) if undecided is not None and subjects else set()
        doomed = [
            row["run_id"]
            for row in rows
            if row["seq"] is None or Subject(row["bucket_id"], row["key"], row["seq"], row["rnd"]) not in kept
        ]
        if doomed:
            await conn.execute("DELETE FROM workflow_run WHERE run_id = ANY ($1::bigint[])", doomed)
            log.info("runs-pruned", count=len(doomed))
        for statement in (
            "DELETE FROM signal WHERE at < clock_timestamp() - $1::float8 * interval '1 second'",
            "DELETE FROM gap WHERE created_at < clock_timestamp() - $1::float8 * interval '1 second'"
            " AND NOT EXISTS (SELECT FROM workflow_run r WHERE r.run_id = gap.run_id)",
        ):
            await conn.execute(statement, retention)
        # A worker's row stays for a day: staging blobs and running runs name it.
        await conn.execute(
            "DELETE FROM worker w WHERE w.lease_until < clock_timestamp() - interval '1 day'"
            " AND NOT EXISTS (SELECT FROM workflow_run r WHERE r.worker_id = w.worker_id AND r.state = 2)"
        )
        return rows[-1]["run_id"] if len(rows) == at_once else 0

    return run
