"""The text of a document as passages, in a sidecar beside it. The journal gets counts, never text."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any

from processing.activities.settings import settings_of
from processing.activities.source import read
from processing.activities.tier_copy import unless_taken
from processing.context import Context, Item
from processing.failures import DependencyDown, FatalError, Retry
from processing.registry import activity
from processing.sandbox import Sandbox, SandboxError
from processing.text_kinds import kind_of
from storage_tiers import failpoints
from storage_tiers.ids import blob_id
from storage_tiers.tier import Tier, TierFull, TierUnavailable

SIDECAR = "text"
WHOLE_DIGEST = "sha256:"

# How a child's answer ends the step. Whatever is not here is tried again: a full machine kills children too.
_FATAL = {"corrupt-source": "corrupt-source", "too-complex": "too-complex", "unsupported-type": "unsupported-type"}


@activity("extract_text", optional=True, code="extract-failed", looks_at=("content", "extension", "declared_type"))
async def extract_text(item: Item, ctx: Context) -> Mapping[str, Any]:
    """Writes the normalized model (processing.parsers.passages) as the version's ``text`` sidecar.

    Raises FatalError (``corrupt-source``, ``too-complex``, ``superseded``),
    DependencyDown("tier"), Retry("extract-failed").
    """
    content, settings = item.content, settings_of(ctx)
    kind = kind_of(item.sniffed_type, content.declared_type, content.key)
    if kind is None or content.size == 0:
        ctx.untouched = True
        return {}
    if content.size > settings.extract_bytes:
        ctx.untouched = True
        return {"metadata": {"text": {"skipped": "too-large", "limit": settings.extract_bytes}}}
    counts, model = await _extract(item, ctx, kind, settings.extract_seconds)
    if counts["passages"]:
        await _store(ctx, model)
    return {"metadata": {"text": {"kind": kind, **counts}}}


async def _extract(item: Item, ctx: Context, kind: str, seconds: float) -> tuple[Mapping[str, Any], bytes]:
    sandbox: Sandbox = ctx.services["sandbox"]
    content = item.content
    whole = content.digest.startswith(WHOLE_DIGEST)  # the digest of a composite is not one of its bytes
    params = {"kind": kind, "sha256": content.digest.removeprefix(WHOLE_DIGEST) if whole else None}
    try:
        async with aclosing(read(ctx)) as chunks:
            result = await sandbox.call("text", params, chunks, length=content.size, wall=seconds)
    except SandboxError as error:
        if error.code in _FATAL:
            raise FatalError(_FATAL[error.code]) from None
        raise Retry("extract-failed", detail=error.code) from None
    return result.value, result.payload


async def _store(ctx: Context, model: bytes) -> None:
    """Row, then bytes, then the reference: a crash in between leaves a staging row, which the collector finds."""
    name = ctx.services["placement"].landing("STANDARD")  # sidecars stay warm, wherever their object goes
    tier: Tier = ctx.services["tiers"][name]
    blob, content = blob_id(), ctx.item.content
    await ctx.subjects.stage(None, blob, name)
    async with unless_taken(ctx, blob):
        try:
            sink = await tier.begin(blob)
            try:
                await asyncio.to_thread(sink.write, model)
                stored = await sink.commit()
            except BaseException:
                await sink.abort()
                raise
        except (TierUnavailable, TierFull):
            raise DependencyDown("tier") from None
        failpoints.point("sidecar.durable")
        if not await ctx.subjects.attach_sidecar(content, SIDECAR, blob, name, stored.size):
            raise FatalError("superseded")
    failpoints.point("sidecar.attached")
