"""Whether a name may hold what it says it holds: a denylist of extensions, and types that contradict each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from processing.activities.settings import settings_of
from processing.content_types import contradiction, extension
from processing.context import Context, Item
from processing.failures import Block
from processing.registry import activity


@activity("extension_policy", eager=False, looks_at=("content", "extension", "declared_type"))
async def extension_policy(item: Item, ctx: Context) -> Mapping[str, Any]:
    """Raises Block: ``blocked-extension``, and with enforce_type_match ``type-mismatch``.

    Without enforce_type_match a contradiction is recorded only (``type_mismatch``: extension or declared).
    """
    settings, content = settings_of(ctx), item.content
    name = extension(content.key)
    if name in settings.blocked:
        raise Block("blocked-extension", name)
    against = contradiction(item.sniffed_type, content.declared_type, name)
    if against is None:
        return {}
    found = {"type_mismatch": against}
    if settings.enforce_type_match:
        claim = f".{name}" if against == "extension" else str(content.declared_type)
        raise Block("type-mismatch", f"{item.sniffed_type} as {claim}"[:200], found)
    return {"metadata": found}
