"""The last step of a recall: copy the restored bytes home, verified, and record the copy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from processing.activities.tier_copy import copy_into, tier_named, unless_taken
from processing.context import Context, Item
from processing.failures import FatalError
from processing.registry import activity
from storage_tiers import failpoints
from storage_tiers.placement import STANDARD, Placement


@activity("tier_recall_promote", attempts=3, code="tier-unavailable")
async def tier_recall_promote(item: Item, ctx: Context) -> Mapping[str, Any]:
    """The archived copy stays; the new blob is a readable copy for ``days`` (0: for good). A repeated call makes
    another blob and records that one.

    Raises FatalError: recall-expired (the archive closed again), corrupt-source, superseded (the version is gone).
    """
    content = item.content
    if content.state != "ready":
        raise FatalError("superseded")
    days = int(item.input.get("days", 1))
    placement: Placement = ctx.services["placement"]
    home = tier_named(ctx, placement.landing(STANDARD))
    blob = await copy_into(ctx, content, home)
    async with unless_taken(ctx, blob):
        failpoints.point("recall.copied")
        if not await ctx.subjects.promote(content, blob, home.name, days):
            raise FatalError("superseded")
    failpoints.point("recall.promoted")
    return {"blob": str(blob), "tier": home.name, "bytes": content.size}
