"""Names in a tier without rows: the reconciler deletes those that nobody is responsible for, and none while they look
like a database that lacks its youngest rows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from gateway.db import collector as module
from gateway.db.blobs import insert_staging
from gateway.db.collector import Collector, Orphans
from storage_tiers.ids import blob_id
from storage_tiers.memory import MemoryTier
from tests.db.world import world


class Log:
    def __init__(self) -> None:
        self.errors: list[tuple[str, dict[str, Any]]] = []

    def error(self, event: str, **facts: Any) -> None:
        self.errors.append((event, facts))


class Churning(MemoryTier):
    """Somebody deletes these blobs, bytes before rows, after the first list that shows them."""

    def __init__(self, pool: asyncpg.Pool, going: set[UUID]) -> None:
        super().__init__("standard")
        self.pool, self.going = pool, going

    async def names(self, older: float = 0.0) -> AsyncIterator[UUID]:
        for blob in list(self.blobs):
            yield blob
        for blob in self.going:
            await self.delete(blob)
        await self.pool.execute("DELETE FROM blob WHERE id = ANY($1::uuid[])", list(self.going))


def _stored(tier: MemoryTier, count: int) -> list[UUID]:
    blobs = [blob_id() for _ in range(count)]
    tier.blobs.update(dict.fromkeys(blobs, b"x"))
    return blobs


@pytest.mark.parametrize("batch", [3, 5000])
def test_what_has_no_row_goes_once_it_is_old(dsn: str, monkeypatch: Any, batch: int) -> None:
    monkeypatch.setattr(module, "BATCH", batch)

    async def main() -> None:
        async with world(dsn) as w:
            log = Log()
            kept, orphans = _stored(w.tier, 20), _stored(w.tier, 10)
            await insert_staging(w.pool, kept, ["standard"] * 20, None)
            patient = Collector(w.pool, {"standard": w.tier}, blob_grace=3600.0, log=log)
            assert await patient.reconcile("standard") == Orphans("standard", 30, 0, 0, False)
            assert len(w.tier.blobs) == 30
            await asyncio.sleep(0.002)  # ids have milliseconds
            prompt = Collector(w.pool, {"standard": w.tier}, blob_grace=0.0, log=log)
            assert await prompt.reconcile("standard") == Orphans("standard", 30, 10, 10, False)
            assert set(w.tier.blobs) == set(kept)
            assert set(orphans).isdisjoint(w.tier.blobs)
            assert not log.errors

    asyncio.run(main())


def test_too_many_are_left_alone_and_reported(dsn: str) -> None:
    async def main() -> None:
        async with world(dsn) as w:
            log = Log()
            kept, _ = _stored(w.tier, 20), _stored(w.tier, 11)
            await insert_staging(w.pool, kept, ["standard"] * 20, None)
            await asyncio.sleep(0.002)
            found = await Collector(w.pool, {"standard": w.tier}, blob_grace=0.0, log=log).reconcile("standard")
            assert found == Orphans("standard", 31, 11, 0, True)
            assert len(w.tier.blobs) == 31
            assert log.errors == [("names without rows", {"tier": "standard", "orphans": 11, "names": 31})]

    asyncio.run(main())


def test_what_is_deleted_meanwhile_is_no_orphan(dsn: str) -> None:
    """The list was made before; its bytes went before its row did, so a second list lacks it."""

    async def main() -> None:
        async with world(dsn) as w:
            log = Log()
            tier = Churning(w.pool, set())
            blobs = _stored(tier, 40)
            tier.going = set(blobs[:15])
            await insert_staging(w.pool, blobs, ["standard"] * 40, None)
            await asyncio.sleep(0.002)
            found = await Collector(w.pool, {"standard": tier}, blob_grace=0.0, log=log).reconcile("standard")
            assert found == Orphans("standard", 40, 0, 0, False)
            assert set(tier.blobs) == set(blobs[15:])
            assert not log.errors

    asyncio.run(main())
