"""The scrubber: reads every blob of the file tiers again, slowly, and compares it with its row.

A disk that loses or turns bits says nothing of it, and a range of a file cannot be checked when it is read: this finds
out before a reader does. One process at a time does it, by a lease in the database, at a rate that readers do not feel;
a round goes through the blobs by their ids, oldest first, and goes on where it was after a restart. Blobs that are
marked as damaged are looked at every MARKED_AGAIN seconds, so that a file that came back from a backup is served soon.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import structlog

from gateway.db.damage import UNREADABLE, Damage
from gateway.keeper import Keeper
from storage_tiers.tier import BlobArchived, BlobCorrupt, BlobNotFound, Tier, TierError, TierMissing, TierUnavailable

log = structlog.get_logger("sluice.scrubber")
LEASE = 60.0  # seconds; renewed while it works
MARKED_AGAIN = 30.0
WINDOW = 1000  # rows per look, most of which may be inline
NIL = UUID(int=0)


@dataclass(frozen=True, slots=True)
class Row:
    """A blob as the database knows it. sha256 None: of one that was put together from parts."""

    id: UUID
    tier: str
    size: int
    sha256: bytes | None
    corrupt: bool


class Scrubber(Keeper):
    """rate: bytes a second, 0 for no bound. interval: seconds from the beginning of a round to that of the next."""

    def __init__(
        self,
        pool: asyncpg.Pool,
        tiers: Mapping[str, Tier],
        damage: Damage,
        *,
        rate: float,
        interval: float,
        report: Callable[[int], None] = lambda size: None,
        idle: float = 5.0,
    ) -> None:
        self._pool, self._tiers, self._damage = pool, tiers, damage
        self._rate, self._interval, self._report, self._idle = rate, interval, report, idle
        self._me = uuid4()
        self._renewed = self._looked = float("-inf")

    def unbounded(self) -> Scrubber:
        """The same, as fast as it goes."""
        return Scrubber(self._pool, self._tiers, self._damage, rate=0, interval=0, report=self._report)

    async def _loop(self) -> None:
        while True:
            busy = False
            try:
                busy = await self.turn()
            except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, TierError) as error:
                log.warning("scrub put off", error=type(error).__name__)
            if not busy:
                await asyncio.sleep(self._idle)

    async def turn(self) -> bool:
        """A window of blobs, if this process may and a round is due. Returns whether there is more to do now."""
        state = await self._lease()
        if state is None:
            return False
        if time.monotonic() - self._looked > min(MARKED_AGAIN, self._interval):
            self._looked = time.monotonic()
            await self.marked()
        if not self._rate or (state["ended"] is not None and not state["due"]):
            return False
        if state["begun"] is None or state["ended"] is not None:
            await self._note("begun = now(), ended = NULL, position = NULL")
            state = {**state, "position": None}
        last = await self.window(state["position"] or NIL)
        if last is None:
            await self._note("ended = now(), position = NULL, verified = begun")
            return False
        await self._note("position = $2", last)
        return True

    async def marked(self) -> int:
        """Look at the damaged ones again. Returns how many are right by now."""
        rows = await self._rows("corrupt AND state = 2 ORDER BY id LIMIT $1", WINDOW)
        results = [await self.examine(row) for row in rows]
        return results.count(True)

    async def window(self, after: UUID) -> UUID | None:
        """Examine the next blobs after an id. Returns the last id that was looked at, None at the end."""
        ids = await self._pool.fetch("SELECT id FROM blob WHERE id > $1 ORDER BY id LIMIT $2", after, WINDOW)
        if not ids:
            return None
        last: UUID = ids[-1]["id"]
        for row in await self._rows("id > $1 AND id <= $2 AND state = 2 AND tier <> 'inline' ORDER BY id", after, last):
            await self.examine(row)
        return last

    async def examine(self, row: Row) -> bool:
        """Read one blob. False when it is damaged, which is marked then. Raises TierUnavailable."""
        tier = self._tiers.get(row.tier)
        if tier is None:
            return not row.corrupt
        try:
            digest = await (self._sized(tier, row) if tier.archive else self._read(tier, row))
        except BlobArchived:
            return True
        except (TierUnavailable, TierMissing):
            raise
        except (BlobNotFound, BlobCorrupt) as error:
            await self._damage.found(row.id, row.tier, error)
            return False
        except TierError as error:  # the medium's
            await self._damage.found(row.id, row.tier, error, UNREADABLE)
            return False
        if row.corrupt:
            await self._damage.mended(row.id)
        elif row.sha256 is None and digest is not None:
            await self._pool.execute("UPDATE blob SET sha256 = $2 WHERE id = $1 AND sha256 IS NULL", row.id, digest)
        return True

    async def _sized(self, tier: Tier, row: Row) -> bytes | None:
        """What is archived can only be asked for its size."""
        stored = await tier.stat(row.id)
        if stored.size != row.size:
            raise BlobCorrupt(f"{stored.size} bytes instead of {row.size}")
        return None

    async def _read(self, tier: Tier, row: Row) -> bytes:
        reader = await tier.open(row.id)
        try:
            if reader.length != row.size:
                raise BlobCorrupt(f"{reader.length} bytes instead of {row.size}")
            sha256 = hashlib.sha256()
            begun, done = time.monotonic(), 0
            async for chunk in reader:
                await asyncio.to_thread(sha256.update, chunk)
                done += len(chunk)
                self._report(len(chunk))
                if self._rate:
                    await asyncio.sleep(max(0.0, begun + done / self._rate - time.monotonic()))
                if time.monotonic() - self._renewed > LEASE / 3:
                    await self._lease()
        finally:
            await reader.close()
        if row.sha256 is not None and sha256.digest() != row.sha256:
            raise BlobCorrupt("the bytes differ from their digest")
        return sha256.digest()

    async def _lease(self) -> dict[str, Any] | None:
        """Take or keep the right to scrub; None while another process has it."""
        row = await self._pool.fetchrow(
            """UPDATE scrub SET owner = $1, lease_until = now() + $2 * interval '1 second'
                WHERE owner = $1 OR lease_until < now()
               RETURNING position, begun, ended, begun + $3 * interval '1 second' < now() AS due""",
            self._me,
            LEASE,
            self._interval,
        )
        self._renewed = time.monotonic()
        return None if row is None else dict(row)

    async def _note(self, what: str, *arguments: Any) -> None:
        """Nothing, when the lease has gone to another process meanwhile."""
        await self._pool.execute(f"UPDATE scrub SET {what} WHERE owner = $1", self._me, *arguments)

    async def _rows(self, where: str, *arguments: Any) -> Sequence[Row]:
        rows = await self._pool.fetch(f"SELECT id, tier, size, sha256, corrupt FROM blob WHERE {where}", *arguments)
        return [Row(*row) for row in rows]


async def everything(scrubber: Scrubber, each: Callable[[UUID], Awaitable[None]] | None = None) -> None:
    """All blobs, now; each is told how far it has come."""
    last: UUID | None = NIL
    while last is not None:
        last = await scrubber.window(last)
        if last is not None and each is not None:
            await each(last)
