"""The first step of a recall: ask the archive for every blob of the version."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from processing.activities.tier_copy import INLINE, tier_errors, tier_named
from processing.context import Context, Item
from processing.failures import FatalError, Park
from processing.registry import activity
from storage_tiers import failpoints
from storage_tiers.tier import Speed

VERDICT_POLL = 5.0  # seconds between looks at a version that is not decided yet
VERDICT_DEADLINE = 7 * 86_400.0


@activity("tier_restore_request", attempts=3, code="tier-unavailable")
async def tier_restore_request(item: Item, ctx: Context) -> Mapping[str, Any]:
    """Idempotent: a tier folds a repeated request into the first.

    input: days (0: for good), speed (a Speed, default Standard). A version still being scanned is waited for, parked;
    one that was refused is not brought back. Output: how many blobs were asked for.
    """
    content = item.content
    if content.state == "scanning":
        raise Park(after=VERDICT_POLL, state={"waiting": "verdict"}, deadline=VERDICT_DEADLINE)
    if content.state != "ready":
        raise FatalError("superseded")
    days, speed = int(item.input.get("days", 1)), speed_of(item.input.get("speed"))
    blobs = {piece.blob: piece.tier for piece in content.pieces if piece.tier != INLINE}
    for blob, name in blobs.items():
        ctx.heartbeat()
        with tier_errors(name):
            await tier_named(ctx, name).restore(blob, max(1, days), speed)
            failpoints.point("recall.asked")
    return {"blobs": len(blobs), "days": days}


def speed_of(word: object) -> Speed:
    """The Speed a request named; Standard when it named none or none we know."""
    try:
        return Speed(str(word))
    except ValueError:
        return Speed.STANDARD
