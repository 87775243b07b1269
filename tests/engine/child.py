"""A worker process that tests kill: ``python -m tests.engine.child DSN [POINT N]`` dies passing POINT the N-th time."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any

import asyncpg

from processing.context import Context, Item
from processing.failures import Park
from processing.model import EngineSettings
from processing.registry import Step, Workflow, activity
from processing.surroundings import NoHooks
from tests.engine.kit import QUICK, running

TABLES = """
CREATE TABLE effect (run_id bigint, step text, pid int);
CREATE TABLE flag (name text);
"""


class Mine(NoHooks):
    """Dies without a word when a border is passed the n-th time."""

    def __init__(self, name: str, n: int) -> None:
        self.name, self.left = name, n

    def point(self, name: str) -> None:
        if name == self.name:
            self.left -= 1
            if self.left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)


async def effect(item: Item, ctx: Context) -> Mapping[str, Any]:
    pool: asyncpg.Pool = ctx.services["pool"]
    await pool.execute("INSERT INTO effect VALUES ($1, $2, $3)", item.run_id, item.step, os.getpid())
    return {"pid": os.getpid()}


@activity("one", eager=False)
async def one(item: Item, ctx: Context) -> Mapping[str, Any]:
    return await effect(item, ctx)


@activity("two")
async def two(item: Item, ctx: Context) -> Mapping[str, Any]:
    return await effect(item, ctx)


@activity("three")
async def three(item: Item, ctx: Context) -> Mapping[str, Any]:
    if not ctx.state:
        raise Park(after=0.01, state={"parked": True})
    return await effect(item, ctx)


@activity("four", eager=False)
async def four(item: Item, ctx: Context) -> Mapping[str, Any]:
    return await effect(item, ctx)


@activity("held")
async def held(item: Item, ctx: Context) -> Mapping[str, Any]:
    """Holds until a row says otherwise; the process that began first waits for it, others go on at once."""
    pool: asyncpg.Pool = ctx.services["pool"]
    first = await pool.fetchval("SELECT count(*) = 0 FROM effect WHERE run_id = $1 AND step = 'held'", item.run_id)
    await effect(item, ctx)
    while first and not await pool.fetchval("SELECT EXISTS (SELECT FROM flag WHERE name = 'go')"):
        ctx.heartbeat()
        await asyncio.sleep(0.02)
    return {"pid": os.getpid()}


@activity("deadly")
async def deadly(item: Item, ctx: Context) -> Mapping[str, Any]:
    await effect(item, ctx)
    if not ctx.services.get("immune"):
        os.kill(os.getpid(), signal.SIGKILL)
    return {}


ALL: tuple[Any, ...] = (
    one,
    two,
    three,
    four,
    held,
    deadly,
    Workflow("steps", (Step("one"), Step("two"), Step("three"), Step("four"))),
    Workflow("held", (Step("one"), Step("held"))),
    Workflow("deadly", (Step("one"), Step("deadly"))),
)
BRIEF: dict[str, Any] = {"ttl": 1.0, "heartbeat": 0.1, "max_recoveries": 1000, "slots": 8}


async def main(dsn: str, point: str, n: int, only: int | None = None) -> None:
    pool = await asyncpg.create_pool(dsn, min_size=1, max_size=2)
    settings = EngineSettings(**{**{f: getattr(QUICK, f) for f in QUICK.__slots__}, **BRIEF})
    async with running(
        dsn, *ALL, settings=settings, services={"pool": pool}, hooks=Mine(point, n), start=only is None
    ) as kit:
        if only is not None:
            sys.exit(0 if await kit.engine.run_only(only) else 1)
        print("ready", flush=True)
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()


if __name__ == "__main__":
    address, *rest = sys.argv[1:]
    if rest[:1] == ["--only"]:
        asyncio.run(main(address, "", 0, int(rest[1])))
    else:
        border, times = rest or ["", "0"]
        asyncio.run(main(address, border, int(times)))
