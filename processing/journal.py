"""Group commit: what arrives while the last batches are in flight makes up the next one.

An idle committer writes at once. A busy one waits a moment before each batch: what a batch costs is mostly its own, and
under load many items are about to come.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

import asyncpg
import structlog

CROWD = 4  # items in a batch from which on it waits
GATHER = 0.002  # seconds

T = TypeVar("T")
R = TypeVar("R")
log = structlog.get_logger("sluice.engine")


def jitter() -> float:
    """A factor of 0.5 to 1.5, so that processes do not come back all at once."""
    return 0.5 + random.random()  # noqa: S311


class Later(Exception):
    """A result: this item could not be written now (its subject is locked) and rides with a later flight."""


# Errors that say nothing about the batch: the database is not there, or not able to do anything now.
OUTAGES = (
    OSError,
    TimeoutError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # what asyncpg makes of a connection killed under a statement
    asyncpg.PostgresConnectionError,
    asyncpg.exceptions.OperatorInterventionError,
    asyncpg.exceptions.InsufficientResourcesError,
    asyncpg.exceptions.TransactionRollbackError,
    asyncpg.exceptions.ObjectNotInPrerequisiteStateError,
    asyncpg.exceptions.ReadOnlySQLTransactionError,
)


class Committer(Generic[T, R]):
    """Collects items into batches and writes up to flights of them at a time.

    write gets a batch and how patient to be (True after items were put off several times), and returns one result per
    item: a value, Later, or an exception for that item. A batch that fails as a whole is tried once more row by row;
    in an outage of the database everything waits and tries again while ``open``.
    """

    def __init__(
        self,
        write: Callable[[Sequence[T], bool], Awaitable[Sequence[R | Exception]]],
        *,
        flights: int = 2,
        most: int = 256,
        pause: float = 1.0,
    ) -> None:
        self._write = write
        self._flights = flights
        self._most = most
        self._pause = pause
        self._queue: deque[tuple[T, asyncio.Future[R], int]] = deque()
        self._flying: set[asyncio.Task[None]] = set()
        self.open = True

    def submit(self, item: T) -> asyncio.Future[R]:
        """A future of the item's result; raises what the write of it raised."""
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._queue.append((item, future, 0))
        if len(self._flying) < self._flights:
            self._depart()
        return future

    async def settle(self) -> None:
        """Wait until nothing is queued or in flight."""
        while self._flying or self._queue:
            if not self._flying:
                self._depart()
            await asyncio.wait(set(self._flying))

    def _depart(self) -> None:
        batch = [self._queue.popleft() for _ in range(min(self._most, len(self._queue)))]
        if batch:
            task = asyncio.get_running_loop().create_task(self._fly(batch))
            self._flying.add(task)
            task.add_done_callback(self._landed)

    def _landed(self, task: asyncio.Task[None]) -> None:
        self._flying.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("committer-failed", error=type(task.exception()).__name__)
        if self._queue and len(self._flying) < self._flights and not task.get_loop().is_closed():
            self._depart()

    async def _fly(self, batch: list[tuple[T, asyncio.Future[R], int]]) -> None:
        try:
            if len(batch) >= CROWD:
                await asyncio.sleep(GATHER)
                batch += [self._queue.popleft() for _ in range(min(self._most - len(batch), len(self._queue)))]
            late = await self._land(batch)
        except BaseException:
            for _, future, _ in batch:
                if not future.done():
                    future.cancel()
            raise
        if late:
            # Whoever holds what these need is about to let go; each put-off waits a little longer.
            await asyncio.sleep(min(0.002 * 2 ** min(late[0][2], 6), 0.1) * jitter())
            self._queue.extendleft(reversed(late))

    async def _land(self, batch: list[tuple[T, asyncio.Future[R], int]]) -> list[tuple[T, asyncio.Future[R], int]]:
        late = []
        for entry, result in zip(batch, await self._results(batch), strict=True):
            item, future, put_off = entry
            if isinstance(result, Later):
                late.append((item, future, put_off + 1))
            elif future.done():
                continue
            elif isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)
        return late

    async def _results(self, batch: list[tuple[T, asyncio.Future[R], int]]) -> Sequence[R | Exception]:
        items = [item for item, _, _ in batch]
        patient = any(put_off >= 3 for _, _, put_off in batch)
        while True:
            try:
                return await self._write(items, patient)
            except OUTAGES as error:
                if not self.open:
                    return [error] * len(items)
                log.warning("database-pause", error=type(error).__name__, rows=len(items))
                # The first repetition comes soon: a deadlock or a killed connection is over by then.
                await asyncio.sleep(self._pause * (0.05 if isinstance(error, _SHORT) else jitter()))
            except Exception as error:
                if len(items) == 1:
                    return [error]
                break
        results: list[R | Exception] = []
        for item in items:
            try:
                results.extend(await self._write([item], patient))
            except Exception as error:
                results.append(error)
        return results


_SHORT = (asyncpg.exceptions.TransactionRollbackError, asyncpg.exceptions.ConnectionDoesNotExistError)
