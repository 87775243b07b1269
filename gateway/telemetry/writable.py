"""Can the file tiers be written? Tried now and then with a few bytes, for readiness, metrics and ``sluice doctor``.

A disk that is full or was remounted read-only still serves every read, so nothing of this takes the service away from
its clients: writes are answered 503, and this says why before somebody has to look for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import structlog

from gateway.keeper import Keeper
from storage_tiers.file import FileTier
from storage_tiers.tier import Tier, TierError
from storage_tiers.wrappers.around import Around

log = structlog.get_logger("sluice.tiers")
PATIENCE = 10.0  # seconds until a mount that does not answer counts as one that cannot be written


class Writable(Keeper):
    """failures: what is wrong, by the name of the tier; nothing of those that can be written."""

    def __init__(self, tiers: Mapping[str, Tier], interval: float) -> None:
        self._tiers = {name: found for name, tier in tiers.items() if (found := _file(tier)) is not None}
        self._interval = interval
        self.failures: dict[str, str] = {}

    async def look(self) -> None:
        """Try each tier once."""
        await asyncio.gather(*(self._try(name, tier) for name, tier in self._tiers.items()))

    def samples(self) -> list[tuple[tuple[str, ...], float]]:
        """By tier: 1 when it could be written at the last try."""
        return [((name,), float(name not in self.failures)) for name in self._tiers]

    async def _try(self, name: str, tier: FileTier) -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                await tier.try_write()
        except (TierError, TimeoutError) as error:
            if name not in self.failures:
                log.error("tier-not-writable", tier=name, error=str(error))
            self.failures[name] = str(error) or f"no answer within {PATIENCE:g} s"
        else:
            if self.failures.pop(name, None) is not None:
                log.info("tier-writable", tier=name)

    async def _loop(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(self._interval)


def _file(tier: Tier) -> FileTier | None:
    while isinstance(tier, Around):
        tier = tier.inner
    return tier if isinstance(tier, FileTier) else None
