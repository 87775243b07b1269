"""Is this process alive, started, ready? Each answer is JSON with its reasons."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

TIMEOUT = 3.0  # seconds for one check
FRESH = 1.0  # seconds an answer is reused: a probe must not become load


class Degraded(Exception):
    """The check found something wrong that does not keep the service from serving."""


class Failed(Exception):
    """The check found something that does."""


Check = Callable[[], Awaitable[None]]


@dataclass(slots=True)
class Health:
    """checks by name; each returns, or raises Degraded, Failed, or anything else (which counts as failed)."""

    checks: Mapping[str, Check]
    started: bool = False
    draining: bool = False
    _known: tuple[float, dict[str, Any]] | None = None
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def live(self) -> tuple[int, dict[str, Any]]:
        """Whoever gets to answer lives."""
        return 200, {"state": "ok", "checks": {"loop": {"state": "ok"}}}

    def startup(self) -> tuple[int, dict[str, Any]]:
        state = "ok" if self.started else "failed"
        return (200 if self.started else 503), {"state": state, "checks": {"start": {"state": state}}}

    async def ready(self) -> tuple[int, dict[str, Any]]:
        """503 when a check failed; degraded is still 200. Draining: 503 at once, so that balancers look elsewhere."""
        if self.draining or not self.started:
            reason = "stopping" if self.draining else "starting"
            return 503, {"state": "failed", "checks": {"process": {"state": "failed", "reason": reason}}}
        async with self._lock:
            if self._known is None or self._known[0] < time.monotonic():
                rows = await asyncio.gather(*(self._one(check) for check in self.checks.values()))
                states = {row["state"] for row in rows}
                state = "failed" if "failed" in states else "degraded" if "degraded" in states else "ok"
                report = {"state": state, "checks": dict(zip(self.checks, rows, strict=True))}
                self._known = time.monotonic() + FRESH, report
            report = self._known[1]
        return (503 if report["state"] == "failed" else 200), report

    async def _one(self, check: Check) -> dict[str, str]:
        try:
            async with asyncio.timeout(TIMEOUT):
                await check()
        except Degraded as found:
            return {"state": "degraded", "reason": str(found)}
        except TimeoutError:
            return {"state": "failed", "reason": f"no answer within {TIMEOUT:g} s"}
        except Exception as error:  # a check says what is wrong by raising, whatever it is
            return {"state": "failed", "reason": str(error) or type(error).__name__}
        return {"state": "ok"}
