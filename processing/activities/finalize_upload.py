"""What the steps found, as one verdict. The engine appends this step and turns its answer into the version's state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from processing.activities.source import blocked
from processing.context import Context, Item
from processing.model import Verdict
from processing.registry import activity


@activity("finalize_upload", looks_at=())
async def finalize_upload(item: Item, ctx: Context) -> Mapping[str, Any]:
    """``quarantined`` with the reason of the first step that blocked, else ``ready``. Writes nothing itself."""
    found = blocked(item)
    if found is None:
        return {"verdict": Verdict.READY.value}
    return {"verdict": Verdict.QUARANTINED.value, "reason": found["reason"], "detail": found.get("detail")}
