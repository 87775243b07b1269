"""A tier whose operations are counted and timed."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from storage_tiers.file import FileTier
from storage_tiers.tier import (
    WHOLE,
    BlobArchived,
    BlobCorrupt,
    BlobId,
    BlobNotFound,
    ByteSpan,
    Reader,
    RestoreState,
    Sink,
    Speed,
    Stored,
    Tier,
    TierError,
    TierFull,
    TierUnavailable,
)
from storage_tiers.wrappers.around import Around

T = TypeVar("T")
Report = Callable[[str, str, str, float], None]  # tier, operation, outcome, seconds
OUTCOMES: tuple[tuple[type[TierError], str], ...] = (
    (TierUnavailable, "unavailable"),
    (TierFull, "full"),
    (BlobNotFound, "not_found"),
    (BlobArchived, "archived"),
    (BlobCorrupt, "corrupt"),
    (TierError, "error"),
)


class Measured(Around):
    """Reports every operation: how it ended and how long it took."""

    def __init__(self, inner: Tier, report: Report) -> None:
        super().__init__(inner)
        self._report = report

    async def begin(self, blob: BlobId) -> Sink:
        return await self._timed("begin", self.inner.begin(blob))

    async def open(self, blob: BlobId, span: ByteSpan = WHOLE) -> Reader:
        return await self._timed("open", self.inner.open(blob, span))

    async def delete(self, blob: BlobId) -> None:
        await self._timed("delete", self.inner.delete(blob))

    async def stat(self, blob: BlobId) -> Stored:
        return await self._timed("stat", self.inner.stat(blob))

    async def restore(self, blob: BlobId, days: int, speed: Speed) -> None:
        await self._timed("restore", self.inner.restore(blob, days, speed))

    async def readable(self, blob: BlobId) -> RestoreState:
        return await self._timed("readable", self.inner.readable(blob))

    async def probe(self) -> None:
        await self._timed("probe", self.inner.probe())

    async def _timed(self, op: str, work: Awaitable[T]) -> T:
        start = time.monotonic()
        outcome = "ok"
        try:
            return await work
        except TierError as error:
            outcome = next(word for kind, word in OUTCOMES if isinstance(error, kind))
            raise
        finally:
            self._report(self.name, op, outcome, time.monotonic() - start)


async def space(tiers: Mapping[str, Tier]) -> list[tuple[tuple[str, str], float]]:
    """What is free of the file systems below file tiers, by tier and resource; nothing of one that is away."""
    samples = []
    for name, tier in tiers.items():
        while isinstance(tier, Around):
            tier = tier.inner
        if isinstance(tier, FileTier):
            try:
                usage = await tier.usage()
            except TierError:
                continue
            shares = (("bytes", usage.free_bytes, usage.total_bytes), ("inodes", usage.free_inodes, usage.total_inodes))
            samples += [((name, resource), free / total) for resource, free, total in shares if total]
    return samples
