"""tier.recall: an archived version becomes readable for a while."""

from __future__ import annotations

from processing.activities.tier_await_readable import tier_await_readable
from processing.activities.tier_recall_promote import tier_recall_promote
from processing.activities.tier_restore_request import tier_restore_request
from processing.registry import Step, Workflow

__all__ = ["tier_await_readable", "tier_recall", "tier_recall_promote", "tier_restore_request"]

tier_recall = Workflow(
    "tier.recall",
    (
        Step("tier_restore_request", required=True),
        Step("tier_await_readable", required=True),
        Step("tier_recall_promote", required=True),
    ),
)


def recall_key(version_id: str, restore: int) -> str:
    """The run key of the n-th restore of a version: reads that ask for the same one fold into one run."""
    return f"recall:{version_id}:{restore}"
