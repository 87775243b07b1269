"""Group commit: concurrent callers share one flight (one transaction, or one statement).

A flight takes whatever has arrived, at most ``rows`` items of ``size`` bytes together, fair over tenants. An idle
batcher flies at once, and while its flights are under way the next batch collects; under load it may wait a moment more
(gather), since a flight costs much the same for few as for many. Items with equal
keys never share a flight, nor fly at the same time. A flight that fails with an SQL error is bisected, so that one bad
item never fails its neighbours; errors of the connection are the flight's own business (it knows whether it committed).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Generic, TypeVar

import asyncpg

from processing.journal import CROWD

Item = TypeVar("Item")
Result = TypeVar("Result")
Flight = Callable[[list[Item]], Awaitable[Sequence[Result | Exception]]]


class Batcher(Generic[Item, Result]):
    """fly gets a list of items and answers one result, or one exception as data, for each, in order."""

    def __init__(
        self,
        fly: Flight[Item, Result],
        *,
        rows: int = 256,
        size: int = 4 << 20,
        flights: int = 2,
        gather: float = 0.0,
        key: Callable[[Item], Hashable] | None = None,
        tenant: Callable[[Item], Hashable] | None = None,
        weight: Callable[[Item], int] | None = None,
    ) -> None:
        self._fly = fly
        self._rows, self._size, self._flights = rows, size, flights
        self._gather, self._last = gather, 0
        self._key, self._tenant, self._weight = key, tenant, weight
        self._lines: OrderedDict[Hashable, deque[tuple[Item, asyncio.Future[Result]]]] = OrderedDict()
        self._busy: set[Hashable] = set()
        self._flying = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def submit(self, item: Item) -> Result:
        """The result of item's flight. A cancelled caller's item still flies if it was taken already."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()  # once: it asks the system who this process is (up to Python 3.11)
        future: asyncio.Future[Result] = self._loop.create_future()
        line = self._lines.setdefault(self._tenant(item) if self._tenant else None, deque())
        line.append((item, future))
        self._launch()
        return await future

    def _launch(self) -> None:
        if self._lines and self._flying < self._flights:
            self._flying += 1
            task = asyncio.create_task(self._run())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _run(self) -> None:
        try:
            while True:
                if self._gather and self._last >= CROWD:
                    await asyncio.sleep(self._gather)
                batch = self._take()
                self._last = len(batch)
                if not batch:
                    return
                self._launch()
                keys = {self._key(item) for item, _ in batch} if self._key else set()
                self._busy |= keys
                try:
                    await self._deliver(batch)
                finally:
                    # Items held back for these keys are taken when this flight comes round again.
                    self._busy -= keys
        finally:
            # Not when the task is seen to be done: who was just answered may submit again before that.
            self._flying -= 1

    def _take(self) -> list[tuple[Item, asyncio.Future[Result]]]:
        """The next batch: one item of each tenant in turn, skipping items whose key is in the air."""
        batch: list[tuple[Item, asyncio.Future[Result]]] = []
        keys: set[Hashable] = set()
        size = 0
        held: dict[Hashable, deque[tuple[Item, asyncio.Future[Result]]]] = {}
        while self._lines and len(batch) < self._rows:
            tenant, line = self._lines.popitem(last=False)
            item, future = line.popleft()
            if line:
                self._lines[tenant] = line
            if future.done():  # the caller went away before its flight
                continue
            key = self._key(item) if self._key else None
            if self._key and (key in self._busy or key in keys):
                held.setdefault(tenant, deque()).append((item, future))
                continue
            weight = self._weight(item) if self._weight else 0
            if batch and size + weight > self._size:
                held.setdefault(tenant, deque()).append((item, future))
                break
            batch.append((item, future))
            keys.add(key)
            size += weight
        for tenant, line in held.items():
            line.extend(self._lines.pop(tenant, ()))
            self._lines[tenant] = line
        return batch

    async def _deliver(self, batch: list[tuple[Item, asyncio.Future[Result]]]) -> None:
        try:
            results = await self._fly([item for item, _ in batch])
        except asyncpg.PostgresError as error:
            if len(batch) == 1 or isinstance(error, asyncpg.PostgresConnectionError):
                results = [error] * len(batch)
            else:
                middle = len(batch) // 2
                await self._deliver(batch[:middle])
                await self._deliver(batch[middle:])
                return
        except asyncio.CancelledError:
            for _, future in batch:
                future.cancel()
            raise
        except Exception as error:
            results = [error] * len(batch)
        for (_, future), result in zip(batch, results, strict=True):
            if future.done():
                continue
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)
