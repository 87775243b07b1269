"""What readiness depends on, one function per row of the report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from gateway.db.migrate import pending
from gateway.http.health import Check, Degraded, Failed
from gateway.telemetry.writable import Writable
from processing import queries
from processing.scanner import Scanner, ScannerError
from storage_tiers.tier import Tier, TierError, TierFull, TierReadOnly

if TYPE_CHECKING:
    import asyncpg

    from gateway.core import Core

LAG = 60.0  # seconds a run may wait for a worker before somebody should look


def checks(core: Core) -> Mapping[str, Check]:
    services = core.services
    found = {
        "database": database(services.pool),
        "migrations": migrations(services.pool),
        **{f"tier:{name}": tier(each, core.writable) for name, each in services.tiers.items()},
        "scanner": scanner(core.scanner),
        "workers": workers(services.pool),
    }
    return found


def database(pool: asyncpg.Pool) -> Check:
    async def check() -> None:
        await pool.fetchval("SELECT 1")

    return check


def migrations(pool: asyncpg.Pool) -> Check:
    async def check() -> None:
        async with pool.acquire() as conn:
            missing = await pending(conn)
        if missing:
            raise Failed(f"the database lacks {', '.join(missing)}")

    return check


def tier(each: Tier, writable: Writable) -> Check:
    """An archive that cannot be reached keeps restores waiting, nothing else; what cannot be written is still read."""

    async def check() -> None:
        try:
            await each.probe()
        except (TierFull, TierReadOnly) as error:
            raise Degraded(f"{error}; reads go on, writes are answered 503") from error
        except TierError as error:
            kind: Callable[[str], Exception] = Degraded if each.archive else Failed
            raise kind(str(error) or type(error).__name__) from error
        if failure := writable.failures.get(each.name):
            raise Degraded(f"{failure}; reads go on, writes are answered 503")

    return check


def scanner(found: Scanner | None) -> Check:
    """Uploads are still accepted while the scanner is away; they wait for it."""

    async def check() -> None:
        if found is None:
            return
        try:
            await found.ping()
        except ScannerError as error:
            raise Degraded(f"the scanner does not answer: {error}") from error

    return check


def workers(pool: asyncpg.Pool) -> Check:
    async def check() -> None:
        async with pool.acquire() as conn:
            health = await queries.worker_health(conn)
        if health["pending"] and not health["workers"]:
            raise Failed(f"{health['pending']} runs are waiting and no process works on them")
        if health["lag"] > LAG:
            raise Degraded(f"the oldest run has waited {health['lag']:.0f} s for a worker")

    return check
