"""What an endpoint does before it acknowledges a write: said by its database, and seen from outside with strace."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import time
from collections import Counter

import asyncpg

from bench.endpoint import Client, Refused
from bench.site import SMALL, Site

SHOWN = ("fsync", "synchronous_commit", "full_page_writes", "wal_sync_method")
CALLS = "fsync,fdatasync,syncfs,sync_file_range,openat"
PUTS = 20
ATTACH = 10.0  # seconds


def describe(site: Site, setting: str, *, trace: bool) -> str:
    """One line of text. setting is what the endpoint was configured with."""
    parts = [setting or site.endpoint.note]
    if site.endpoint.dsn:
        parts.append(", ".join(f"{name}={value}" for name, value in server_settings(site.endpoint.dsn).items()))
    if trace:
        parts.append(traced(site))
    return "; ".join(part for part in parts if part)


def server_settings(dsn: str) -> dict[str, str]:
    """Read from the running server."""

    async def read() -> dict[str, str]:
        connection = await asyncpg.connect(dsn)
        try:
            return {name: str(await connection.fetchval(f"SHOW {name}")) for name in SHOWN}
        finally:
            await connection.close()

    return asyncio.run(read())


def traced(site: Site) -> str:
    """How often the family syncs in 20 PUTs of 4 KiB, one after the other."""
    family = site.endpoint.family
    if family is None or shutil.which("strace") is None or not site.endpoint.signed:
        return ""
    log = site.folder / f"{site.name}.strace"
    pids = [word for pid in family.members() for word in ("-p", str(pid))]
    tracer = subprocess.Popen(["strace", "-f", "-e", f"trace={CALLS}", "-o", str(log), *pids], stderr=subprocess.PIPE)
    try:
        _attached(tracer, len(pids) // 2)
        client = Client(site.endpoint)
        for _ in range(PUTS):
            key = f"/bench-small/traced/{site.run}/{site.serial():09}"
            client.good("PUT", key, body=os.urandom(SMALL))
        client.close()
    except (Refused, OSError) as error:
        return f"not traced: {error}"
    finally:
        assert tracer.stderr is not None
        os.set_blocking(tracer.stderr.fileno(), True)
        tracer.send_signal(signal.SIGINT)
        tracer.communicate()
    return count(log.read_text(errors="replace"), PUTS)


def _attached(tracer: subprocess.Popen[bytes], wanted: int) -> None:
    """Until strace has said of each process that it is attached; it goes without those that have ended."""
    assert tracer.stderr is not None
    os.set_blocking(tracer.stderr.fileno(), False)
    said, end = b"", time.monotonic() + ATTACH
    while said.count(b"attached") < wanted and time.monotonic() < end:
        said += tracer.stderr.read() or b""
        time.sleep(0.05)


def count(log: str, puts: int) -> str:
    """strace's lines in numbers per PUT."""
    found: Counter[str] = Counter()
    for line in log.splitlines():
        _, _, call = line.strip().partition(" ")
        name = call.strip().partition("(")[0]
        if name == "openat":
            if "O_SYNC" in call or "O_DSYNC" in call:
                found["open with O_SYNC or O_DSYNC"] += 1
        elif name in CALLS:
            found[name] += 1
    text = ", ".join(f"{number / puts:.2g} {name}" for name, number in sorted(found.items()) if name)
    return f"seen per PUT: {text or 'nothing is synced'}"
