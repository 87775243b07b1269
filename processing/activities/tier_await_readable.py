"""The middle step of a recall: poll the archive until all blobs of the version can be read, parked in between."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from processing.activities.tier_copy import INLINE, tier_errors, tier_named
from processing.activities.tier_restore_request import speed_of
from processing.context import Context, Item
from processing.failures import FatalError, Park
from processing.registry import activity
from storage_tiers.tier import Readable, Tier

POLLS = 600  # at least so many before giving up
INTERVAL = 15.0  # seconds; the default of both the tiers' own interval and the setting recall_poll
WINDOW = 9_000.0  # seconds


@activity("tier_await_readable", attempts=3, code="tier-unavailable")
async def tier_await_readable(item: Item, ctx: Context) -> Mapping[str, Any]:
    """All polls are one attempt; their count is the parked state. Raises FatalError("recall-timeout") at their end.

    Output: polls, and until (ISO time, or None) when the first of the restored blobs expires.
    """
    polls = int(ctx.state.get("polls", 0)) + 1
    pending: list[Tier] = []
    untils = []
    for blob, name in {p.blob: p.tier for p in item.content.pieces if p.tier != INLINE}.items():
        ctx.heartbeat()
        tier = tier_named(ctx, name)
        with tier_errors(name):
            state = await tier.readable(blob)
            if state.state is Readable.ARCHIVED:
                # expired while another blob was awaited, or the store lost the request: ask again, keep counting
                days = max(1, int(item.input.get("days", 1)))
                await tier.restore(blob, days, speed_of(item.input.get("speed")))
        if state.state in (Readable.ARCHIVED, Readable.PENDING):
            pending.append(tier)
        elif state.until is not None:
            untils.append(state.until)
    if not pending:
        return {"polls": polls, "until": min(untils).isoformat() if untils else None}
    every, limit = pace(pending, ctx.settings)
    if polls >= limit:
        raise FatalError("recall-timeout")
    raise Park(after=every, state={"polls": polls}, deadline=max(60.0, 20 * every))


def pace(pending: list[Tier], settings: Any) -> tuple[float, int]:
    """Seconds between polls, and how many of them: what the slowest tier asks for, scaled by the setting recall_poll
    against its default; at least POLLS, and enough to fill recall_window."""
    scale = float(getattr(settings, "recall_poll", INTERVAL)) / INTERVAL
    every = max(float(getattr(tier, "poll_every", INTERVAL)) for tier in pending) * scale
    window = float(getattr(settings, "recall_window", WINDOW))
    return every, max(POLLS, math.ceil(window / every))
