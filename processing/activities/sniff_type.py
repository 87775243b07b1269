"""What the content is, by its first bytes; for zips by their directory as well."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from processing.activities.source import head
from processing.content_types import bare, families, recognized
from processing.context import Context, Item
from processing.failures import Retry
from processing.parsers.zip_type import TAIL
from processing.registry import activity
from processing.sandbox import Sandbox, SandboxError

HEAD = 8192  # bytes libmagic gets: its rules for common formats look no further
ROUNDS = 4  # spans of a zip that are read at most: tail, directory, one or two members
UNKNOWN, EMPTY = "application/octet-stream", "application/x-empty"

# What the content makes a child do to itself; anything else is a fault of ours.
_CONTENT_FAULTS = ("killed", "timeout", "memory", "too-complex", "failed")


@activity("sniff_type", eager=False, looks_at=("content",))
async def sniff_type(item: Item, ctx: Context) -> Mapping[str, Any]:
    """Records sniffed_type beside declared_type. Unrecognized content is no fault.

    A content that kills its parser each time is unrecognized too, and says so (``sniff: failed``).
    """
    content = item.content
    declared = bare(content.declared_type) or None
    if content.size == 0:
        return _result(EMPTY, declared)
    sandbox: Sandbox = ctx.services["sandbox"]
    start = await head(ctx, 0, min(HEAD, content.size))
    try:
        found = bare(str((await sandbox.call("magic", data=start)).value)) or UNKNOWN
        if start.startswith((b"PK\3\4", b"PK\5\6")) or "zip" in families(found):
            return await _zip(ctx, sandbox, found, declared)
        return _result(found, declared)
    except SandboxError as error:
        if error.code not in _CONTENT_FAULTS:
            raise
        if item.attempt < item.attempts:
            raise Retry(detail=f"sniff {error.code}") from None
        return _result(UNKNOWN, declared, sniff="failed")


async def _zip(ctx: Context, sandbox: Sandbox, found: str, declared: str | None) -> Mapping[str, Any]:
    size = ctx.item.content.size
    spans, data = [[max(0, size - TAIL), min(TAIL, size)]], b""
    answer: Mapping[str, Any] = {}
    for _ in range(ROUNDS):
        offset, length = spans[-1]
        data += await head(ctx, offset, length)
        answer = (await sandbox.call("zip", {"size": size, "spans": spans}, data)).value
        if "need" not in answer:
            break
        spans.append([int(answer["need"][0]), int(answer["need"][1])])
    looked = answer.get("type")
    if looked is None or (looked == "application/zip" and recognized(found) and "zip" not in families(found)):
        looked = found  # no readable directory; or libmagic knows a kind of zip that the directory does not tell
    extra = {"macros": True} if answer.get("macros") else {}
    return _result(str(looked), declared, **extra, **({"suspicious": "doctype"} if answer.get("suspicious") else {}))


def _result(sniffed: str, declared: str | None, **more: Any) -> Mapping[str, Any]:
    return {"sniffed_type": sniffed, "metadata": {"sniffed_type": sniffed, "declared_type": declared, **more}}
