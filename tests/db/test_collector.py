"""The collector's pace: as fast as garbage is made, and idle otherwise."""

from __future__ import annotations

import asyncio
from typing import Any

from gateway.db import collector
from gateway.db.collector import LIMIT, Collector


class Counted(Collector):
    """Finds so much garbage, and says when it has none left."""

    def __init__(self, garbage: int, **options: Any) -> None:
        super().__init__(None, {}, log=None, **options)
        self.garbage, self.rounds, self.clean = garbage, 0, asyncio.Event()

    async def collect(self, limit: int = LIMIT) -> int:
        found = min(limit, self.garbage)
        self.garbage -= found
        self.rounds += 1
        if not self.garbage:
            self.clean.set()
        return found

    async def abandoned(self, limit: int = LIMIT) -> int:
        return 0

    async def unlink(self, limit: int = LIMIT) -> int:
        return 0

    async def forget(self) -> int:
        return 0

    async def _reconcile(self) -> None:
        return None


def test_plenty_of_garbage_does_not_wait_for_the_next_interval(monkeypatch: Any) -> None:
    monkeypatch.setattr(collector, "BREATH", 0.0)

    async def run() -> int:
        counted = Counted(25 * LIMIT, blob_grace=0.0, interval=3600.0)
        counted.start()
        await asyncio.wait_for(counted.clean.wait(), 10)
        await counted.stop()
        return counted.rounds

    assert 25 <= asyncio.run(run()) <= 26
