"""Two hundred recalls that wait for their archive: they cost nothing, hold nobody up, and survive a kill -9."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import asyncpg
import psutil

from tests.server import Server, StartServer

COUNT = 200
LONG = {"SLUICE_ARCHIVE_DELAY": "3600", "SLUICE_RECALL_POLL": "3600"}
SOON = {"SLUICE_ARCHIVE_DELAY": "0.1", "SLUICE_RECALL_POLL": "0.5"}
LOOK = 3.0  # seconds over which the cost of waiting is measured


def value(server: Server, statement: str) -> Any:
    async def ask() -> Any:
        assert server.database is not None
        conn = await asyncpg.connect(server.database)
        try:
            return await conn.fetchval(statement)
        finally:
            await conn.close()

    return asyncio.run(ask())


def until(check: Callable[[], bool], server: Server, patience: float = 120.0) -> None:
    deadline = time.monotonic() + patience
    while not check():
        assert time.monotonic() < deadline, server.tail()
        time.sleep(0.1)


def recalls(server: Server, state: int) -> int:
    statement = f"SELECT count(*) FROM workflow_run WHERE workflow = 'tier.recall' AND state = {state}"
    return int(value(server, statement))


def cost(server: Server) -> float:
    """Seconds of processor time that the serving processes use while nothing is asked of them."""

    def used() -> float:
        total = 0.0
        for each in server.children():
            times = psutil.Process(each.pid).cpu_times()
            total += times.user + times.system
        return total

    before = used()
    time.sleep(LOOK)  # what is measured is what passes by itself
    return used() - before


def uploads(server: Server, name: str, count: int = 20) -> float:
    """Seconds until so many new objects are processed."""
    client = server.client()
    start = time.monotonic()
    for i in range(count):
        client.put_object(Bucket="cold", Key=f"{name}{i}", Body=os.urandom(1000))
    for i in range(count):
        assert client.get_object(Bucket="cold", Key=f"{name}{i}")["Body"].read()  # waits for the verdict
    return time.monotonic() - start


def test_two_hundred_waiting_recalls(start_server: StartServer) -> None:
    server = start_server(LONG)
    client = server.client(max_pool_connections=16)
    client.create_bucket(Bucket="cold")
    idle, quick = cost(server), uploads(server, "before")
    keys = [f"box{i}" for i in range(COUNT)]

    def store(key: str) -> None:
        client.put_object(Bucket="cold", Key=key, Body=key.encode(), StorageClass="GLACIER")

    def restore(key: str) -> None:
        client.restore_object(Bucket="cold", Key=key, RestoreRequest={"Days": 1})

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(store, keys))
        moved = "SELECT count(*) FROM workflow_run WHERE workflow = 'tier.move' AND state = 4"
        until(lambda: value(server, moved) == COUNT, server)
        list(pool.map(restore, keys))
    until(lambda: recalls(server, 3) == COUNT, server)

    waiting = cost(server)
    assert waiting < idle + 0.1 * LOOK, f"{waiting:.2f} s of processor time in {LOOK} s, {idle:.2f} s without recalls"
    slow = uploads(server, "after")
    assert slow < 3 * quick + 1, f"{slow:.1f} s with recalls waiting, {quick:.1f} s without"
    assert recalls(server, 3) == COUNT

    server.kill()
    server.environment |= SOON
    # The archive forgets what it was asked for: the next look asks again, and the delay is short by now.
    for record in Path(server.environment["SLUICE_BLOB_DIR"]).glob("archive/*/*.restore"):
        record.unlink()
    server.start()
    assert recalls(server, 3) == COUNT
    value(server, "UPDATE workflow_run SET wake_at = clock_timestamp() WHERE state = 3 AND workflow = 'tier.recall'")
    until(lambda: recalls(server, 4) == COUNT, server)
    client = server.client(max_pool_connections=16)
    with ThreadPoolExecutor(8) as pool:
        bodies = list(pool.map(lambda key: client.get_object(Bucket="cold", Key=key)["Body"].read(), keys))
    assert bodies == [key.encode() for key in keys]
