"""What every execution of a process shares, and what the engine tells whoever measures it."""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, Protocol

from processing.breakers import Breakers
from processing.model import EngineSettings, Entry
from processing.ports import Subjects
from processing.registry import Definition, Registry


class Hooks(Protocol):
    """What the engine tells whoever measures it. Every method returns at once and never raises."""

    def step(self, step: str, outcome: str, seconds: float) -> None: ...
    def retry(self, step: str) -> None: ...
    def run(self, workflow: str, outcome: str, seconds: float) -> None: ...
    def verdict(self, verdict: str, reason: str) -> None: ...
    def recovery(self, kind: str, count: int) -> None: ...
    def point(self, name: str) -> None:
        """A border that crash tests stop at: ``run.`` and the name, in the table of storage_tiers/failpoints.py."""


class NoHooks:
    """Measures nothing."""

    def step(self, step: str, outcome: str, seconds: float) -> None: ...
    def retry(self, step: str) -> None: ...
    def run(self, workflow: str, outcome: str, seconds: float) -> None: ...
    def verdict(self, verdict: str, reason: str) -> None: ...
    def recovery(self, kind: str, count: int) -> None: ...
    def point(self, name: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What every execution of a process shares."""

    settings: EngineSettings
    registry: Registry
    subjects: Subjects
    services: Mapping[str, Any]
    app_settings: Any
    breakers: Breakers
    threads: Executor
    hooks: Hooks
    flush: Callable[[Entry], Awaitable[bool]]  # False: the lease is lost
    definition: Callable[[str], Awaitable[tuple[Definition, int] | None]]  # stored definition and its order
    order_of: Callable[[str], int]  # of a definition this process enqueues with; 0: unknown
    now: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    chance: Callable[[], float] = random.random
