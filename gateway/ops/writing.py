"""The shared write path: bytes from a request into the database or a tier, hashed on the way, undone on any error."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast
from uuid import UUID

from gateway.db.errors import Unknown
from gateway.db.insertion import Inline, Staged
from gateway.domain import checksums
from gateway.domain.checksums import Algorithm, Hasher, Wanted
from gateway.domain.objects import Digests
from gateway.http.body import Body
from gateway.s3.call import Call
from gateway.s3.errors import S3Error
from gateway.services import Services
from storage_tiers import failpoints
from storage_tiers.staging import Hash
from storage_tiers.tier import Sink

MAX_SINGLE = 5 << 30  # bytes of one PutObject or UploadPart (S3 user guide, "Amazon S3 multipart upload limits")

T = TypeVar("T")
Chunk = bytes | memoryview
_running: set[asyncio.Task[Any]] = set()


class Tally:
    """Everything that is computed over a body in its one pass: MD5 (ETag), SHA-256 (digest), and checksums."""

    def __init__(self, algorithms: Iterable[Algorithm] = ()) -> None:
        self.md5 = hashlib.md5(usedforsecurity=False)
        self.sha256 = hashlib.sha256()
        own: dict[str, Hasher] = {"md5": self.md5, "sha256": self.sha256}
        self._checksums = {each.name: own.get(each.name) or each.start() for each in algorithms}
        more = [cast(Hash, each) for name, each in self._checksums.items() if name not in own]
        self.hashes: tuple[Hash, ...] = (self.md5, self.sha256, *more)

    def update(self, data: bytes) -> None:
        for each in self.hashes:
            each.update(data)

    def digests(self, size: int) -> Digests:
        found = {name: checksums.encode(each.digest()) for name, each in self._checksums.items()}
        return Digests(size, self.md5.digest(), self.sha256.digest(), found)


@dataclass(frozen=True, slots=True)
class Received:
    """A body that has arrived whole, and passed every check the client asked for."""

    source: Inline | Staged
    digests: Digests

    @property
    def etag(self) -> str:
        return self.digests.md5.hex()


async def receive(
    sv: Services,
    body: Body,
    tier: str,
    wanted: Wanted,
    algorithms: Sequence[Algorithm] = (),
    limit: int = MAX_SINGLE,
) -> Received:
    """Take a body in: small ones into memory (they travel in the completing transaction), others into a tier.

    wanted: what the client asks to be computed and checked; algorithms: what else to compute.
    Raises EntityTooLarge, BadDigest and its like, what Body raises, and the tiers' errors; nothing stays behind.
    """
    if body.length is not None and body.length > limit:
        raise S3Error("EntityTooLarge", ProposedSize=body.length, MaxSizeAllowed=limit)
    tally = Tally((wanted.algorithm, *algorithms))
    threshold = sv.settings.inline_threshold
    if body.length is not None and body.length <= threshold and (data := body.at_hand()) is not None:
        return _inline(data, body, wanted, tally)
    chunks = aiter(body)
    held: list[Chunk] = []
    if body.length is None or body.length <= threshold:
        async for chunk in chunks:
            held.append(chunk)
            if body.received > threshold:
                break
        else:
            return _inline(b"".join(held), body, wanted, tally)
    blob = await _stage(sv, tier)
    sink: Sink | None = None
    try:
        failpoints.point("upload.staged")
        sink = await sv.tiers[tier].begin(blob)
        failpoints.point("upload.begun")
        body.lend()  # staging copies each piece into its own slices
        size = await sv.staging.receive(_bounded(held, chunks, limit), sink, tally.hashes)
        digests = verify(body, wanted, tally.digests(size))
        await sink.commit()
        failpoints.point("upload.durable")
    except BaseException:
        await unhurried(_undo(sv, blob, sink))
        raise
    return Received(Staged(blob, tier, digests.sha256), digests)


def _inline(data: bytes, body: Body, wanted: Wanted, tally: Tally) -> Received:
    tally.update(data)
    digests = verify(body, wanted, tally.digests(len(data)))
    return Received(Inline(data, digests.sha256), digests)


async def read_document(call: Call, sv: Services) -> bytes:
    """The whole XML body of a request, checked as the bodies of uploads are. Raises MaxMessageLengthExceeded."""
    body: Body = call.body
    if call.operation.name == "CompleteMultipartUpload":
        # There x-amz-checksum-* speaks of the object, not of this document.
        wanted = Wanted(md5=checksums.content_md5(call.headers))
    else:
        wanted = checksums.requested(call.headers)
    data = await body.read(call.operation.limit, "MaxMessageLengthExceeded")
    tally = Tally((wanted.algorithm,) if wanted.declared else ())
    tally.update(data)
    verify(body, wanted, tally.digests(len(data)))
    return data


def verify(body: Body, wanted: Wanted, digests: Digests) -> Digests:
    """digests, once they agree with all that was said of the body."""
    if body.sha256 is not None and body.sha256 != digests.sha256.hex():
        raise S3Error(
            "XAmzContentSHA256Mismatch",
            ClientComputedContentSHA256=body.sha256,
            S3ComputedContentSHA256=digests.sha256.hex(),
        )
    value = digests.checksums.get(wanted.algorithm.name)
    wanted.check(checksums.decode(wanted.algorithm, value) if value else b"", digests.md5, body.trailers)
    return digests


async def conclude(sv: Services, received: Received, write: Awaitable[T]) -> T:
    """Await the transaction that makes a received body part of an object, whatever becomes of the client meanwhile.

    When the transaction says that nothing was stored, the staged bytes go; when its outcome is not known, they stay.
    Bytes that travel in the transaction leave nothing to see to.
    """
    staged = received.source
    if not isinstance(staged, Staged):
        return await write

    async def run() -> T:
        try:
            return await write
        except Unknown:
            raise
        except BaseException:
            await sv.blobs.discard(staged.blob)
            raise

    return await unhurried(run())


async def unhurried(work: Coroutine[Any, Any, T]) -> T:
    """Await work that goes on to its end even when the caller is cancelled."""
    task = asyncio.create_task(work)
    _running.add(task)
    task.add_done_callback(_ended)
    return await asyncio.shield(task)


def _ended(task: asyncio.Task[Any]) -> None:
    _running.discard(task)
    if not task.cancelled():
        task.exception()  # retrieved: the caller may be gone


async def _stage(sv: Services, tier: str) -> UUID:
    """A blob's staging row; when the caller is cancelled meanwhile, the row that comes into being all the same goes."""

    async def stage() -> UUID:
        blob = await sv.blobs.stage(tier)
        if left:
            await sv.blobs.discard(blob)
        return blob

    left: list[bool] = []
    try:
        return await unhurried(stage())
    except asyncio.CancelledError:
        left.append(True)
        raise


async def _undo(sv: Services, blob: UUID, sink: Sink | None) -> None:
    if sink is not None:
        await sink.abort()
    await sv.blobs.discard(blob)


async def _bounded(held: list[Chunk], rest: AsyncIterator[Chunk], limit: int) -> AsyncIterator[Chunk]:
    size = 0
    for chunk in held:
        size += len(chunk)
        yield chunk
    held.clear()
    async for chunk in rest:
        size += len(chunk)
        if size > limit:
            raise S3Error("EntityTooLarge", ProposedSize=size, MaxSizeAllowed=limit)
        yield chunk
