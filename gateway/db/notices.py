"""What a command tells the running processes, which keep a notifier for it (processing/notifier.py)."""

from __future__ import annotations

from collections.abc import Sequence

import asyncpg

from processing.notifier import CHANNEL


async def tell(pool: asyncpg.Pool, kind: str, payloads: Sequence[str]) -> None:
    """Send hints of a kind, after the deed was committed. A hint that is lost only delays what it speaks of."""
    await pool.execute(
        "SELECT pg_notify($1, p) FROM unnest($2::text[]) AS p", CHANNEL, [f"{kind}:{each}" for each in payloads]
    )
