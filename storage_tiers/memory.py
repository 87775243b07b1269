"""A tier in memory, for tests: the contract without a medium."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable

from storage_tiers.tier import (
    WHOLE,
    BlobCorrupt,
    BlobId,
    BlobNotFound,
    ByteSpan,
    Readable,
    Reader,
    RestoreState,
    Sink,
    Speed,
    Stored,
    TierError,
)

READ = 1 << 20


class MemoryTier:
    """Blobs in two dictionaries, which a test may share between tiers to play a restart."""

    archive = False
    poll_every = 15.0

    def __init__(
        self, name: str, blobs: dict[BlobId, bytes] | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self.name = name
        self.blobs: dict[BlobId, bytes] = {} if blobs is None else blobs
        self.staging: dict[BlobId, bytearray] = {}
        self.written: dict[BlobId, float] = {}
        self.clock = clock

    async def begin(self, blob: BlobId) -> Sink:
        if blob in self.staging:
            raise TierError(f"tier {self.name}: this blob is being written already")
        self.staging[blob] = bytearray()
        self.written[blob] = self.clock()
        return MemorySink(self, blob)

    async def open(self, blob: BlobId, span: ByteSpan = WHOLE) -> Reader:
        data = self._find(blob)
        end = len(data) if span.length is None else span.offset + span.length
        if span.offset > end or end > len(data):
            raise BlobCorrupt(f"tier {self.name}: blob {blob} has {len(data)} bytes, {span} was asked for")
        return MemoryReader(memoryview(data)[span.offset : end])

    async def delete(self, blob: BlobId) -> None:
        self.blobs.pop(blob, None)
        self.staging.pop(blob, None)
        self.written.pop(blob, None)

    async def stat(self, blob: BlobId) -> Stored:
        return Stored(blob, len(self._find(blob)))

    async def restore(self, blob: BlobId, days: int, speed: Speed) -> None:
        self._find(blob)

    async def readable(self, blob: BlobId) -> RestoreState:
        self._find(blob)
        return RestoreState(Readable.HOME)

    async def names(self, older: float = 0.0) -> AsyncIterator[BlobId]:
        for blob in [*self.blobs, *self.staging]:
            if not older or self.clock() - self.written.get(blob, 0.0) >= older:
                yield blob

    async def probe(self) -> None:
        return None

    async def close(self) -> None:
        return None

    def _find(self, blob: BlobId) -> bytes:
        try:
            return self.blobs[blob]
        except KeyError:
            raise BlobNotFound(f"tier {self.name}: no blob {blob}") from None


class MemorySink:
    fd = None

    def __init__(self, tier: MemoryTier, blob: BlobId) -> None:
        self._tier = tier
        self._blob = blob
        self._open = True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._open:
            raise TierError(f"tier {self._tier.name}: write after the end")
        self._tier.staging[self._blob] += data

    async def commit(self) -> Stored:
        if not self._open:
            raise TierError(f"tier {self._tier.name}: commit after the end")
        self._open = False
        data = bytes(self._tier.staging.pop(self._blob))
        self._tier.blobs[self._blob] = data
        self._tier.written[self._blob] = self._tier.clock()
        return Stored(self._blob, len(data))

    async def abort(self) -> None:
        if self._open:
            self._open = False
            self._tier.staging.pop(self._blob, None)


class MemoryReader:
    fd = None
    position = 0

    def __init__(self, data: memoryview) -> None:
        self._data = data

    @property
    def length(self) -> int:
        return len(self._data)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for start in range(0, len(self._data), READ):
            yield bytes(self._data[start : start + READ])

    async def close(self) -> None:
        return None
