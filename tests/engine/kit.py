"""What the engine's tests share: an engine over a database of its own, subjects in memory, polls with a deadline."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import asyncpg

from processing.engine import Engine
from processing.model import EngineSettings, Enqueued, NewRun, RunState
from processing.notifier import Notifier
from processing.registry import Registry
from processing.testing import FakeSubjects

QUICK = EngineSettings(
    ttl=4.0,
    heartbeat=0.2,
    backoff_base=0.02,
    backoff_cap=0.1,
    wake_spread=0.05,
    poll_least=0.01,
    poll_most=0.1,
    drain=2.0,
    sweep=30.0,
    database_pause=0.05,
)


@dataclass
class Kit:
    dsn: str
    pool: asyncpg.Pool
    engine: Engine
    notifier: Notifier
    subjects: FakeSubjects
    registry: Registry
    hooks: Any = None
    extra: list[Any] = field(default_factory=list)

    async def enqueue(self, *runs: NewRun, launch: bool = True) -> list[Enqueued]:
        async with self.pool.acquire() as conn, conn.transaction():
            answers = await self.engine.enqueue(conn, runs)
        if launch:
            self.engine.launch(answers)
        return answers

    async def submit(self, workflow: str, data: bytes = b"data", tenant: int = 1, key: str = "", **more: Any) -> int:
        """Enqueue one run about a new subject; its id."""
        seq = len(self.subjects.contents) + 1
        content = self.subjects.add(data, seq=seq, key=f"k{seq}".encode())
        run = NewRun(key or f"{workflow}:{seq}", workflow, tenant, content.subject, **more)
        return (await self.enqueue(run))[0].run_id

    async def value(self, statement: str, *arguments: Any) -> Any:
        return await self.pool.fetchval(statement, *arguments)

    async def ended(self, run_id: int, timeout: float = 15.0) -> RunState:
        state = await self.engine.wait(run_id, timeout)
        assert state is not None, await self.engine.why(run_id)
        return state

    async def state(self, run_id: int) -> RunState:
        return RunState(await self.value("SELECT state FROM workflow_run WHERE run_id = $1", run_id))

    async def reaches(self, run_id: int, state: RunState) -> None:
        async def there() -> bool:
            return await self.state(run_id) is state

        await until(there)

    async def journal(self, run_id: int) -> list[tuple[str, int, str]]:
        shown = await self.engine.show(run_id)
        assert shown is not None
        return [(s["step"], s["attempt"], s["status"]) for s in shown["steps"]]


async def until(check: Callable[[], bool | Awaitable[bool]], timeout: float = 15.0) -> None:
    """Poll until check holds. Fails after timeout seconds."""
    deadline = asyncio.get_running_loop().time() + timeout
    while True:
        answer = check()
        if await answer if inspect.isawaitable(answer) else answer:
            return
        assert asyncio.get_running_loop().time() < deadline, "it never came to hold"
        await asyncio.sleep(0.01)


def registry_of(*things: Any) -> Registry:
    registry = Registry()
    for thing in things:
        registry.add(thing)
    registry.check()
    return registry


@asynccontextmanager
async def running(
    dsn: str,
    *things: Any,
    subjects: FakeSubjects | None = None,
    start: bool = True,
    services: dict[str, Any] | None = None,
    hooks: Any = None,
    size: int = 12,
    settings: EngineSettings = QUICK,
    undecided: Any = None,
    wanted: Sequence[Any] = (),
    **changes: Any,
) -> AsyncIterator[Kit]:
    """An engine that knows these activities and workflows. changes are fields of EngineSettings."""
    pool = await asyncpg.create_pool(dsn, min_size=1, max_size=size)
    notifier = Notifier(dsn, probe=1.0, pause=0.05)
    await notifier.start()
    registry = registry_of(*things)
    subjects = subjects or FakeSubjects()
    engine = Engine(
        pool,
        settings=replace(settings, **changes),
        registry=registry,
        subjects=subjects,
        services=services or {},
        notifier=notifier,
        dsn=dsn,
        hooks=hooks,
        undecided=undecided,
        wanted=wanted,
    )
    if start:
        await engine.start()
    try:
        yield Kit(dsn, pool, engine, notifier, subjects, registry, hooks)
    finally:
        if start:
            await engine.drain()
        await notifier.close()
        await pool.close()


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """One test's story, which never hangs."""
    asyncio.run(asyncio.wait_for(main(), 60))
