"""What keeps the data whole, and how to take each of it away in a server's processes: the controls of the harness.

tests/durability/site/sitecustomize.py calls ``apply`` before anything else of a process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

from tests.durability import forked

VARIABLE = "SLUICETEST_CHANGES"  # names of CHANGES, with commas


def _soon() -> None:
    """A process that ended is replaced at once, however short its life was."""
    from gateway.cli import supervise

    supervise.STEADY = 0.0


def _together() -> None:
    """Runs of dead workers are executed where others are: an interpreter for each of them takes its time."""
    from gateway import policy

    policy.ISOLATE = ()  # type: ignore[assignment]


def _the_long_way() -> None:
    """Plain objects are stored as all others are: what the statement of the short way does cannot be taken apart."""
    from gateway.db import completion

    completion.plain = lambda c: False


# --- guards, taken away -----------------------------------------------------------------------------------------------


def _without_reaper() -> None:
    """Nobody takes back the runs of a dead worker."""
    from processing.maintenance.reaper import Reaper

    Reaper.run = _nothing  # type: ignore[method-assign]


def _without_journal() -> None:
    """A run that is taken up again does not look at what it has done."""
    from processing import store

    async def history(conn: Any, run_ids: Sequence[int]) -> dict[int, list[Any]]:
        return {run_id: [] for run_id in run_ids}

    store.history = history


def _without_transaction() -> None:
    """Each statement of a completion commits by itself."""
    from gateway.db.completion import Completions, Written

    async def commit(self: Any, write: Callable[[Any], Awaitable[Written]]) -> Written:
        async with self._pool.acquire() as conn:
            written = await write(conn)
        self._engine.launch(written.enqueued)
        return written

    _the_long_way()
    Completions._commit = commit  # type: ignore[method-assign]


def _answered_early() -> None:
    """A write is acknowledged before its commit."""
    from gateway.db.completion import Completions, Written
    from storage_tiers import failpoints

    under_way = set()

    async def commit(self: Any, write: Callable[[Any], Awaitable[Written]]) -> Written:
        conn = await self._pool.acquire()
        transaction = conn.transaction()
        await transaction.start()
        try:
            written = await write(conn)
        except BaseException:
            await transaction.rollback()
            await self._pool.release(conn)
            raise

        async def later() -> None:
            await asyncio.sleep(0.1)
            failpoints.point("complete.written")
            await transaction.commit()
            await self._pool.release(conn)
            self._engine.launch(written.enqueued)

        under_way.add(asyncio.create_task(later()))
        return written

    _the_long_way()
    Completions._commit = commit  # type: ignore[method-assign]


def _without_second_look() -> None:
    """The collector believes that what is queued has no reference left."""
    from gateway.db import collector

    collector.UNREFERENCED = "SELECT unnest($1::uuid[]) AS id"


def _without_abandoned() -> None:
    """Nobody takes back what a dead worker staged."""
    from gateway.db.collector import Collector

    Collector.abandoned = _nothing  # type: ignore[method-assign]


def _without_reconciler() -> None:
    """Names without a row stay: the net below the two that follow."""
    from gateway.db.collector import Collector

    Collector.reconcile_all = _nothing  # type: ignore[method-assign]


def _bytes_before_row() -> None:
    """An upload's blob gets its row when it is complete."""
    from gateway.db import blobs
    from gateway.domain.ids import blob_id

    async def stage(self: Any, tier: str) -> UUID:
        return blob_id()

    async def make_live(conn: Any, ids: Sequence[UUID], sizes: Sequence[int], digests: Sequence[Any]) -> set[UUID]:
        await conn.execute(
            """INSERT INTO blob (id, state, tier, size, sha256)
               SELECT i, 2, 'standard', s, d FROM unnest($1::uuid[], $2::bigint[], $3::bytea[]) AS q (i, s, d)
               ON CONFLICT (id) DO UPDATE SET state = 2, owner = NULL, size = excluded.size""",
            ids,
            sizes,
            digests,
        )
        return set(ids)

    _the_long_way()
    _without_reconciler()
    blobs.Blobs.stage = stage  # type: ignore[method-assign]
    blobs.make_live = make_live


def _row_dropped_first() -> None:
    """The collector drops the row of a blob before its bytes."""
    from gateway.db.collector import Collector
    from storage_tiers import failpoints

    async def unlink(self: Any, limit: int = 200) -> int:
        rows = await self._pool.fetch("DELETE FROM blob WHERE state = 3 RETURNING id, tier")
        for row in rows:
            if row["tier"] in self._tiers:
                failpoints.point("collect.marked")
                await self._tiers[row["tier"]].delete(row["id"])
        return len(rows)

    _without_reconciler()
    Collector.unlink = unlink  # type: ignore[method-assign]


def _lost_staging_taken() -> None:
    """A blob is made live whatever became of its staging row."""
    from gateway.db import blobs

    make_live = blobs.make_live

    async def taken(conn: Any, ids: Sequence[UUID], sizes: Sequence[int], digests: Sequence[Any]) -> set[UUID]:
        await make_live(conn, ids, sizes, digests)
        return set(ids)

    _the_long_way()
    blobs.make_live = taken


async def _nothing(self: Any, *_: Any) -> int:
    return 0


CHANGES: Mapping[str, Callable[[], None]] = {
    "forked": forked.apply,
    "soon": _soon,
    "together": _together,
    "without-reaper": _without_reaper,
    "without-journal": _without_journal,
    "without-transaction": _without_transaction,
    "answered-early": _answered_early,
    "without-second-look": _without_second_look,
    "without-abandoned": _without_abandoned,
    "bytes-before-row": _bytes_before_row,
    "row-dropped-first": _row_dropped_first,
    "lost-staging-taken": _lost_staging_taken,
}


def apply(names: str) -> None:
    """In every process of a server, before anything else."""
    for name in filter(None, names.split(",")):
        CHANGES[name]()
