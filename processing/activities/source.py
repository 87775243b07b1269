"""The content of an item as these activities read it: the tiers' errors in the words of the engine."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import cast

from processing.context import Context
from processing.failures import DependencyDown, FatalError
from storage_tiers.tier import WHOLE, BlobCorrupt, ByteSpan, TierUnavailable


async def read(ctx: Context, span: ByteSpan = WHOLE) -> AsyncGenerator[bytes, None]:
    """The bytes of a span. Raises DependencyDown("tier"), FatalError("corrupt-source"), and what else a tier raises."""
    async with aclosing(cast(AsyncGenerator[bytes, None], ctx.open(span))) as chunks:
        try:
            async for chunk in chunks:
                yield chunk
        except TierUnavailable:
            raise DependencyDown("tier") from None
        except BlobCorrupt:
            raise FatalError("corrupt-source") from None


async def head(ctx: Context, offset: int, length: int) -> bytes:
    """A short span as one piece."""
    held = ctx.held(ByteSpan(offset, length))
    if held is not None:
        return held
    async with aclosing(read(ctx, ByteSpan(offset, length))) as chunks:
        return b"".join([chunk async for chunk in chunks])
