"""What an activity is given: the item (facts, frozen) and the context (what it may do)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from processing.failures import FatalError
from processing.ports import Content, Subjects
from storage_tiers.tier import WHOLE, ByteSpan


class Log(Protocol):
    """The part of a structlog logger that activities use."""

    def info(self, event: str, **fields: Any) -> Any: ...
    def warning(self, event: str, **fields: Any) -> Any: ...
    def error(self, event: str, **fields: Any) -> Any: ...


class StepLog:
    """A run's log, each line with the step it is of."""

    __slots__ = ("_log", "_step")

    def __init__(self, log: Log, step: str) -> None:
        self._log, self._step = log, step

    def info(self, event: str, **fields: Any) -> None:
        self._log.info(event, step=self._step, **fields)

    def warning(self, event: str, **fields: Any) -> None:
        self._log.warning(event, step=self._step, **fields)

    def error(self, event: str, **fields: Any) -> None:
        self._log.error(event, step=self._step, **fields)


@dataclass(frozen=True, slots=True)
class Item:
    """One call of one step. earlier holds the journaled outputs by step name, in order of execution."""

    run_id: int
    workflow: str
    step: str
    attempt: int  # 1 is the first
    facts: Content | None = None  # None: the run has no subject
    earlier: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    input: Mapping[str, Any] = field(default_factory=dict)
    tenant: int = 0
    attempts: int = 3  # how often this step is tried in all; attempt may pass it after a retry by a person

    @property
    def content(self) -> Content:
        """The subject's facts. Raises FatalError("configuration") in a run without a subject."""
        if self.facts is None:
            raise FatalError("configuration", "the step needs a subject")
        return self.facts

    @property
    def sniffed_type(self) -> str | None:
        """The type found by looking at the bytes: the last earlier output with a ``sniffed_type``."""
        found: str | None = None
        for output in self.earlier.values():
            value = output.get("sniffed_type")
            if isinstance(value, str):
                found = value
        return found

    @property
    def previous(self) -> Mapping[str, Any]:
        """The output of the step before this one."""
        return list(self.earlier.values())[-1] if self.earlier else {}


@dataclass(slots=True)
class Context:
    """What a running step may do. heartbeat and progress may be called from any thread."""

    item: Item
    subjects: Subjects
    services: Mapping[str, Any]
    log: Log
    state: dict[str, Any] = field(default_factory=dict)  # what this step stored when it parked
    signal: Mapping[str, Any] | None = None  # payload of the event it parked on
    settings: Any = None
    loop: asyncio.AbstractEventLoop | None = None
    on_progress: Callable[[Mapping[str, Any]], None] | None = None
    clock: Callable[[], float] = time.monotonic
    last_sign: float = 0.0  # monotonic time of the last sign of life
    untouched: bool = False  # set by an eager step that found nothing to do: its row rides with the next write

    def heartbeat(self) -> None:
        """Say that the step is alive: without it, a step longer than ``step_idle`` is cancelled."""
        self.last_sign = self.clock()

    def progress(self, pct: float, stage: str | None = None, **counts: int) -> None:
        """Publish progress, 0 to 100, with a human title and counts; counts as a heartbeat. Never content."""
        self.heartbeat()
        if self.on_progress is not None:
            event: dict[str, Any] = {"progress": max(0.0, min(100.0, float(pct)))}
            if stage:
                event["stage"] = stage
            if counts:
                event["counts"] = counts
            self.on_progress(event)

    def held(self, span: ByteSpan = WHOLE) -> bytes | None:
        """The same bytes at once, where they are at hand."""
        data = self.item.content.data
        if data is None:
            return None
        return data[span.offset :] if span.length is None else data[span.offset : span.offset + span.length]

    async def open(self, span: ByteSpan = WHOLE) -> AsyncIterator[bytes]:
        """The content's bytes. Raises the tiers' errors. Closing it early closes the source, and what it holds open."""
        held = self.held(span)
        if held is not None:
            if held:
                yield held
            return
        chunks = self.subjects.open(self.item.content, span)
        try:
            async for chunk in chunks:
                self.heartbeat()
                yield chunk
        finally:
            if isinstance(chunks, AsyncGenerator):
                await chunks.aclose()

    def read(self, span: ByteSpan = WHOLE) -> Iterator[bytes]:
        """The same bytes for a plain ``def`` activity, from its thread."""
        if self.loop is None:
            raise RuntimeError("Context.read needs the engine's loop")
        chunks = self.open(span)
        while True:
            try:
                yield asyncio.run_coroutine_threadsafe(anext_of(chunks), self.loop).result()
            except StopAsyncIteration:
                return


async def anext_of(chunks: AsyncIterator[bytes]) -> bytes:
    """anext as a coroutine, for run_coroutine_threadsafe."""
    return await chunks.__anext__()
