"""What a step staged in vain goes at once, and the collector outlives whatever its jobs raise."""

from __future__ import annotations

import asyncio
from typing import Any

from gateway.db import blobs
from gateway.db.collector import Collector
from storage_tiers.ids import blob_id
from storage_tiers.tier import TierUnavailable
from tests.db.world import Silent, world


def test_a_blob_that_nobody_takes_goes_with_its_row(dsn: str) -> None:
    """Nobody else would see to it while its worker lives."""

    async def main() -> None:
        async with world(dsn) as w:
            blob = blob_id()
            await w.subjects.stage(None, blob, "standard")
            sink = await w.tier.begin(blob)
            sink.write(b"copy")
            await sink.commit()
            await w.subjects.unstage(blob)
            assert await w.pool.fetchval("SELECT count(*) FROM blob") == 0
            assert blob not in w.tier.blobs

    asyncio.run(main())


def test_one_that_became_live_stays(dsn: str) -> None:
    """The outcome of a commit is not always known to those who give up."""

    async def main() -> None:
        async with world(dsn) as w:
            blob = blob_id()
            await w.subjects.stage(None, blob, "standard")
            sink = await w.tier.begin(blob)
            sink.write(b"copy")
            await sink.commit()
            async with w.pool.acquire() as conn:
                assert await blobs.make_live(conn, [blob], [4], [None]) == {blob}
            await w.subjects.unstage(blob)
            assert await w.pool.fetchval("SELECT state FROM blob") == 2
            assert blob in w.tier.blobs

    asyncio.run(main())


def test_while_its_tier_is_away_the_collector_has_it(dsn: str) -> None:
    async def main() -> None:
        async with world(dsn) as w:
            blob = blob_id()
            await w.subjects.stage(None, blob, "standard")
            delete = w.tier.delete

            async def away(_: Any) -> None:
                raise TierUnavailable("away")

            w.tier.delete = away  # type: ignore[method-assign]
            await w.subjects.unstage(blob)
            assert await w.pool.fetchval("SELECT state FROM blob") == 3
            w.tier.delete = delete  # type: ignore[method-assign]
            await w.collector.unlink()
            assert await w.pool.fetchval("SELECT count(*) FROM blob") == 0

    asyncio.run(main())


def test_the_collector_goes_on_after_an_error_nobody_expected(dsn: str) -> None:
    async def main() -> None:
        async with world(dsn) as w:
            calls: list[str] = []
            again = asyncio.Event()

            async def broken() -> int:
                calls.append("broken")
                raise KeyError("unexpected")

            async def after() -> int:
                calls.append("after")
                if len(calls) > 2:
                    again.set()
                return 0

            collector = Collector(
                w.pool, {"standard": w.tier}, blob_grace=0.0, log=Silent(), sweeps=(broken, after), interval=0.0
            )
            collector.start()
            await asyncio.wait_for(again.wait(), 20)
            await collector.stop()
            assert calls[:4] == ["broken", "after", "broken", "after"]

    asyncio.run(main())
