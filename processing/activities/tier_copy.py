"""What moving and recalling share: bytes copied into a new blob, their digest verified on the way, and the tiers'
errors put into the engine's words."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import cast
from uuid import UUID

from processing.context import Context
from processing.digests import Verifier
from processing.failures import DependencyDown, FatalError
from processing.ports import Content
from storage_tiers import failpoints
from storage_tiers.ids import blob_id
from storage_tiers.staging import Staging
from storage_tiers.tier import (
    BlobArchived,
    BlobCorrupt,
    BlobNotFound,
    Tier,
    TierFull,
    TierMissing,
    TierUnavailable,
)

INLINE = "inline"  # the word for bytes that lie in the database, in no tier
PROGRESS_EVERY = 64 << 20  # bytes


def tier_named(ctx: Context, name: str) -> Tier:
    """A tier by name. Raises FatalError("configuration") when it is not configured any more."""
    tiers: Mapping[str, Tier] = ctx.services["tiers"]
    try:
        return tiers[name]
    except KeyError:
        raise FatalError("configuration", f"no tier {name}") from None


@contextmanager
def tier_errors(name: str, archived: str = "recall-expired") -> Iterator[None]:
    """Translate a tier's errors: away or full is a dependency that is down and costs no attempt; gone is fatal.

    archived: the failure code for bytes that cannot be read without another restore.
    """
    try:
        yield
    except (TierUnavailable, TierFull) as error:
        raise DependencyDown(f"tier:{name}") from error
    except TierMissing as error:
        raise FatalError("configuration", f"the container of tier {name} is gone") from error
    except BlobArchived as error:
        raise FatalError(archived) from error
    except (BlobNotFound, BlobCorrupt) as error:
        raise FatalError("corrupt-source") from error


@asynccontextmanager
async def unless_taken(ctx: Context, blob: UUID) -> AsyncIterator[None]:
    """Give a staged blob up when what is done with it fails: nobody else does while this process lives."""
    try:
        yield
    except BaseException:
        await ctx.subjects.unstage(blob)
        raise


async def copy_into(ctx: Context, content: Content, target: Tier) -> UUID:
    """Copy all bytes of content into a new, staged, durable blob of target, and return its id.

    The row is written before the first byte. Raises FatalError("corrupt-source") when length or digest differ;
    nothing is left then.
    """
    blob = blob_id()
    await ctx.subjects.stage(None, blob, target.name)
    async with unless_taken(ctx, blob):
        failpoints.point("copy.staged")
        with tier_errors(target.name):
            sink = await target.begin(blob)
        try:
            digest = Verifier(content.digest, content.part_sizes)
            staging: Staging = ctx.services["staging"]
            async with aclosing(_watched(ctx, content)) as chunks:
                with tier_errors(_source(content, target)):
                    size = await staging.receive(chunks, sink, [digest])
            failpoints.point("copy.received")
            if size != content.size or not digest.matches():
                raise FatalError("corrupt-source")
            with tier_errors(target.name):
                await sink.commit()
        except BaseException:
            await sink.abort()
            raise
    return blob


def _source(content: Content, target: Tier) -> str:
    """The tier that an error in the middle of a copy most likely came from: where the bytes are read."""
    return next((piece.tier for piece in content.pieces if piece.tier not in (INLINE, target.name)), target.name)


async def _watched(ctx: Context, content: Content) -> AsyncGenerator[bytes, None]:
    done = told = 0
    async with aclosing(cast(AsyncGenerator[bytes, None], ctx.subjects.open(content))) as chunks:
        async for chunk in chunks:
            ctx.heartbeat()
            done += len(chunk)
            if done - told >= PROGRESS_EVERY:
                told = done
                ctx.progress(100.0 * done / max(1, content.size), "Copying", bytes=done)
            yield chunk
