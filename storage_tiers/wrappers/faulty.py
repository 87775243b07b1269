"""Fails on purpose, for tests: the n-th call of an operation raises, or a reader breaks off after so many bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass

from storage_tiers.tier import (
    WHOLE,
    BlobId,
    ByteSpan,
    Reader,
    RestoreState,
    Sink,
    Speed,
    Stored,
    Tier,
    TierError,
)
from storage_tiers.wrappers.around import Around, AroundReader, AroundSink


@dataclass(frozen=True, slots=True)
class Fault:
    """Raise error on calls [call, call + times) of an operation, counted from 1.

    operation: begin, write, commit, open, read, delete, stat, restore, readable, probe. For read, after is the number
    of bytes given before it raises, and calls count the readers that were iterated.
    """

    operation: str
    error: TierError
    call: int = 1
    times: int = 1
    after: int = 0


class Faulty(Around):
    """A tier that fails as told. More faults may be added while it is in use."""

    def __init__(self, inner: Tier, *faults: Fault) -> None:
        super().__init__(inner)
        self.faults = list(faults)
        self.calls: Counter[str] = Counter()

    def due(self, operation: str) -> Fault | None:
        """Count a call; its fault, if it has one."""
        self.calls[operation] += 1
        count = self.calls[operation]
        for fault in self.faults:
            if fault.operation == operation and fault.call <= count < fault.call + fault.times:
                return fault
        return None

    def strike(self, operation: str) -> None:
        """Count a call and raise its fault."""
        fault = self.due(operation)
        if fault is not None:
            raise fault.error

    async def begin(self, blob: BlobId) -> Sink:
        self.strike("begin")
        return FaultySink(self, await self.inner.begin(blob))

    async def open(self, blob: BlobId, span: ByteSpan = WHOLE) -> Reader:
        self.strike("open")
        return FaultyReader(self, await self.inner.open(blob, span))

    async def delete(self, blob: BlobId) -> None:
        self.strike("delete")
        await self.inner.delete(blob)

    async def stat(self, blob: BlobId) -> Stored:
        self.strike("stat")
        return await self.inner.stat(blob)

    async def restore(self, blob: BlobId, days: int, speed: Speed) -> None:
        self.strike("restore")
        await self.inner.restore(blob, days, speed)

    async def readable(self, blob: BlobId) -> RestoreState:
        self.strike("readable")
        return await self.inner.readable(blob)

    async def probe(self) -> None:
        self.strike("probe")
        await self.inner.probe()


class FaultySink(AroundSink):
    def __init__(self, tier: Faulty, inner: Sink) -> None:
        super().__init__(inner)
        self._tier = tier

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._tier.strike("write")
        self.inner.write(data)

    async def commit(self) -> Stored:
        fault = self._tier.due("commit")
        if fault is not None:
            await self.inner.abort()
            raise fault.error
        return await self.inner.commit()


class FaultyReader(AroundReader):
    def __init__(self, tier: Faulty, inner: Reader) -> None:
        super().__init__(inner)
        self._tier = tier

    async def __aiter__(self) -> AsyncIterator[bytes]:
        fault = self._tier.due("read")
        given = 0
        async for data in self.inner:
            if fault is not None and given + len(data) > fault.after:
                if fault.after > given:
                    yield data[: fault.after - given]
                raise fault.error
            given += len(data)
            yield data
        if fault is not None:
            raise fault.error
