"""Group commit without a database: who is answered may come again at once, and a crowd shares flights."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from gateway.db.batching import Batcher
from processing.journal import CROWD


def test_who_is_answered_may_submit_again_at_once() -> None:
    async def main() -> None:
        async def fly(items: list[int]) -> Sequence[int]:
            await asyncio.sleep(0)
            return items

        batcher: Batcher[int, int] = Batcher(fly, flights=1)
        for number in range(50):
            assert await asyncio.wait_for(batcher.submit(number), 5) == number

    asyncio.run(main())


def test_a_crowd_gathers_and_a_single_item_never_waits() -> None:
    """gather is so long here that a single item that waited for it would be noticed."""

    async def main() -> None:
        flights: list[int] = []

        async def fly(items: list[int]) -> Sequence[int]:
            flights.append(len(items))
            return items

        batcher: Batcher[int, int] = Batcher(fly, flights=1, gather=0.05)
        loop = asyncio.get_running_loop()
        began = loop.time()
        await batcher.submit(0)
        await batcher.submit(1)
        assert loop.time() - began < 0.05 and flights == [1, 1]
        crowd = [asyncio.ensure_future(batcher.submit(n)) for n in range(CROWD)]
        late: list[asyncio.Future[int]] = []
        loop.call_later(0.01, lambda: late.extend(asyncio.ensure_future(batcher.submit(n)) for n in range(3)))
        await asyncio.gather(*crowd)
        while len(late) < 3:
            await asyncio.sleep(0.001)
        await asyncio.gather(*late)
        assert flights == [1, 1, CROWD, 3], "those that came while it gathered fly together"

    asyncio.run(main())
