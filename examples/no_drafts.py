"""An own activity: documents marked as drafts are quarantined.

Name this module in the configuration and put the step into a pipeline:

    activities = ["examples.no_drafts"]

    [pipelines.contracts]
    bucket = "contracts"
    steps = ["sniff_type", "extension_policy", "scan_malware", "no_drafts", "extract_text"]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from processing.context import Context, Item
from processing.failures import Block
from processing.registry import activity

MARK = b"DRAFT - DO NOT DISTRIBUTE"


@activity("no_drafts", looks_at=("content",))
async def no_drafts(item: Item, ctx: Context) -> Mapping[str, Any]:
    """Raises Block("draft") when the mark is anywhere in the content."""
    seen, tail = 0, b""
    async for chunk in ctx.open():
        seen += len(chunk)
        window = tail + chunk
        if MARK in window:
            raise Block("draft", f"within the first {seen} bytes")
        tail = window[-(len(MARK) - 1) :]  # a mark may lie across two chunks
        ctx.progress(100 * seen / max(1, item.content.size), "Looking for draft marks")
    return {"looked_at": seen, "metadata": {"draft": False}}
