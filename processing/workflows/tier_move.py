"""tier.move: a version goes to the tier of its storage class."""

from __future__ import annotations

from processing.activities.tier_move import tier_move as tier_move_activity
from processing.registry import Step, Workflow

__all__ = ["tier_move", "tier_move_activity"]

tier_move = Workflow("tier.move", (Step("tier_move", required=True),))


def move_key(version_id: str, tier: str, generation: int = 1) -> str:
    """The run key of a move to a tier; generation tells apart moves that lie between others."""
    return f"move:{version_id}:{tier}:{generation}"
