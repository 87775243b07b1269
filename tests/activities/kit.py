"""An item, a context and a subjects port that keeps everything in memory, for calling an activity as a function."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from processing.activities.settings import SERVICE, ActivitySettings
from processing.context import Context, Item
from processing.model import NewRun, Outcome, Subject
from processing.ports import Content
from storage_tiers.tier import WHOLE, ByteSpan, Stored, TierUnavailable


class Quiet:
    """A logger that keeps what it is told."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def info(self, event: str, **fields: Any) -> None:
        self.lines.append((event, fields))

    warning = error = info


class FakeSubjects:
    """One content; ``chunk`` bytes at a time."""

    def __init__(self, data: bytes = b"", chunk: int = 1 << 16) -> None:
        self.data = data
        self.chunk = chunk
        self.opened: list[ByteSpan] = []
        self.staged: list[tuple[UUID, str]] = []
        self.sidecars: list[tuple[str, UUID, str, int]] = []
        self.gone = False
        self.fails: Exception | None = None

    async def load(self, subject: Subject) -> Content | None:
        return None

    async def open(self, content: Content, span: ByteSpan = WHOLE) -> AsyncIterator[bytes]:
        self.opened.append(span)
        if self.fails is not None:
            raise self.fails
        end = len(self.data) if span.length is None else span.offset + span.length
        for start in range(span.offset, end, self.chunk):
            yield self.data[start : min(end, start + self.chunk)]

    async def lock(self, conn: Any, subjects: Sequence[Subject], wait: bool = False) -> set[Subject]:
        return set(subjects)

    async def settle(self, conn: Any, outcomes: Sequence[Outcome]) -> list[NewRun]:
        return []

    def settled(self, outcomes: Sequence[Outcome]) -> None: ...

    async def reopen(self, conn: Any, outcome_of: Subject, workflow: str, run_id: int) -> None: ...

    async def stage(self, conn: Any, blob: UUID, tier: str) -> None:
        self.staged.append((blob, tier))

    async def unstage(self, blob: UUID) -> None:
        self.staged = [each for each in self.staged if each[0] != blob]

    async def swap_pieces(self, content: Content, blob: UUID, tier: str) -> bool:
        return not self.gone

    async def promote(self, content: Content, blob: UUID, tier: str, days: int) -> bool:
        return not self.gone

    async def attach_sidecar(self, content: Content, kind: str, blob: UUID, tier: str, size: int) -> bool:
        self.sidecars.append((kind, blob, tier, size))
        return not self.gone


@dataclass
class FakeTier:
    """Keeps committed blobs; ``down`` makes it unavailable. Only what a writer of sidecars uses."""

    name: str = "warm"
    archive: bool = False
    down: bool = False
    blobs: dict[UUID, bytes] = field(default_factory=dict)
    aborted: int = 0

    async def begin(self, blob: UUID) -> FakeSink:
        if self.down:
            raise TierUnavailable("down")
        return FakeSink(self, blob)


@dataclass
class FakeSink:
    tier: FakeTier
    blob: UUID
    data: bytearray = field(default_factory=bytearray)

    def write(self, data: bytes) -> None:
        assert threading.current_thread() is not threading.main_thread(), "write blocks: not on the event loop"
        self.data += data

    async def commit(self) -> Stored:
        self.tier.blobs[self.blob] = bytes(self.data)
        return Stored(self.blob, len(self.data))

    async def abort(self) -> None:
        self.tier.aborted += 1


class FakePlacement:
    def landing(self, storage_class: str) -> str:
        assert storage_class == "STANDARD"
        return "warm"


def content(
    data: bytes, key: str = "file", declared: str | None = None, digest: str | None = None, **facts: Any
) -> Content:
    return Content(
        subject=Subject(1, key.encode(), 1, 1),
        tenant=1,
        bucket="bucket",
        key=key.encode(),
        version_id="null",
        state="scanning",
        size=facts.pop("size", len(data)),
        digest=digest or "sha256:" + hashlib.sha256(data).hexdigest(),
        declared_type=declared,
        storage_class="STANDARD",
        metadata={},
        processing={},
        pieces=(),
        **facts,
    )


def call_of(
    data: bytes,
    key: str = "file",
    declared: str | None = None,
    *,
    subjects: FakeSubjects | None = None,
    services: Mapping[str, Any] | None = None,
    settings: ActivitySettings | None = None,
    earlier: Mapping[str, Mapping[str, Any]] | None = None,
    attempt: int = 1,
    **facts: Any,
) -> tuple[Item, Context]:
    """What an activity is called with."""
    item = Item(
        run_id=1,
        workflow="post_upload",
        step="step",
        attempt=attempt,
        facts=content(data, key, declared, **facts),
        earlier=earlier or {},
    )
    known = {SERVICE: settings or ActivitySettings(), **(services or {})}
    return item, Context(item, subjects or FakeSubjects(data), known, Quiet())


async def until(condition: Any, deadline: float = 10.0) -> None:
    """Poll a condition on the loop."""
    async with asyncio.timeout(deadline):
        while not condition():
            await asyncio.sleep(0.005)
