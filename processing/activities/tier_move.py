"""Moving a version to the tier of its storage class: a new blob, then a swap of the version's pieces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from processing.activities.tier_copy import copy_into, tier_named, unless_taken
from processing.context import Context, Item
from processing.failures import FatalError
from processing.registry import activity
from storage_tiers import failpoints
from storage_tiers.placement import Placement


@activity("tier_move", attempts=3, code="tier-unavailable")
async def tier_move(item: Item, ctx: Context) -> Mapping[str, Any]:
    """Idempotent: what lies where it should is left alone, and a lost swap leaves everything as it was.

    input: tier (its name; default: the tier of the version's storage class). The old blobs are never removed here:
    another version may share them. Output: moved.
    """
    content = item.content
    placement: Placement = ctx.services["placement"]
    name = str(item.input.get("tier") or placement.tier_of(content.storage_class))
    target = tier_named(ctx, name)
    if all(piece.tier == name for piece in content.pieces):
        return {"moved": False, "tier": name}
    if content.state != "ready":
        raise FatalError("superseded")
    blob = await copy_into(ctx, content, target)
    async with unless_taken(ctx, blob):
        failpoints.point("move.copied")
        swapped = await ctx.subjects.swap_pieces(content, blob, name)
    if not swapped:
        await ctx.subjects.unstage(blob)
        return {"moved": False, "tier": name}
    failpoints.point("move.swapped")
    return {"moved": True, "tier": name, "blob": str(blob), "bytes": content.size}
