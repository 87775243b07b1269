"""Blobs: staging rows before bytes, and reading content over its extents."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any
from uuid import UUID

import asyncpg
import structlog

from gateway.db.batching import Batcher
from gateway.db.damage import Damage
from gateway.db.versions import Versions
from gateway.domain.ids import blob_id
from gateway.domain.objects import Extent, Resolved
from processing.ports import Conn
from storage_tiers.staging import Hash
from storage_tiers.tier import WHOLE, BlobCorrupt, BlobNotFound, ByteSpan, Reader, Tier

log = structlog.get_logger("sluice.blobs")
LOST = (OSError, asyncpg.InterfaceError, asyncpg.PostgresError)  # the database, for now
DISCARD_WAIT = 1.0  # seconds that a request which has failed waits for its bytes to go
ASIDE = 256 << 10  # bytes from which a piece is hashed in a thread
INLINE = "inline"  # the tier name of bytes that lie in the blob's row


class ContentReader:
    """The bytes of one version, over all its extents. Content is checked to be as long as length says.

    fd and position are set where the content is one extent of one file, for sendfile; inline where the bytes are
    at hand. An extent whose digest is known is compared with it, and its last piece given only when it is right.
    close ends it, any number of times.
    """

    def __init__(self, length: int, pieces: Sequence[Extent], source: Blobs, inline: bytes | None = None) -> None:
        self.length = length
        self.inline = inline
        self._pieces = pieces
        self._source = source
        self._reader: Reader | None = None

    async def start(self) -> None:
        """Open the first extent, so that a missing blob is known before the first byte leaves."""
        if self.inline is None and self._pieces:
            self._reader = await self._source.open_extent(self._pieces[0])

    @property
    def fd(self) -> int | None:
        plain = self._reader is not None and len(self._pieces) == 1 and self._pieces[0].digest is None
        return self._reader.fd if self._reader is not None and plain else None

    @property
    def position(self) -> int:
        return self._reader.position if self._reader is not None else 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self.inline is not None:
            yield self.inline
            return
        for index, piece in enumerate(self._pieces):
            reader = self._reader if index == 0 and self._reader is not None else await self._source.open_extent(piece)
            self._reader, given = reader, 0
            sha256, held = hashlib.sha256(), b""
            async for chunk in reader:
                given += len(chunk)
                if piece.digest is not None:
                    await _update(sha256, chunk)
                    held, chunk = chunk, held
                if chunk:
                    yield chunk
            if given != piece.length:
                raise BlobCorrupt(f"blob {piece.blob}: {given} of {piece.length} bytes")
            if piece.digest is not None and sha256.digest() != piece.digest:
                error = BlobCorrupt(f"blob {piece.blob}: the bytes differ from their digest")
                await self._source.damaged(piece, error)
                raise error
            if held:
                yield held
            await reader.close()

    async def close(self) -> None:
        if self._reader is not None:
            await self._reader.close()


class Blobs:
    """owner tells the id of this process's ``worker`` row, whose heartbeat is the lease of what it stages.

    verify: whole contents of fewer bytes are compared with their digests as they are read.
    """

    def __init__(
        self,
        pool: asyncpg.Pool,
        tiers: Mapping[str, Tier],
        versions: Versions,
        owner: Callable[[], int | None],
        damage: Damage | None = None,
        *,
        verify: int = 256 << 10,
    ) -> None:
        self._pool, self._tiers, self._versions, self._owner = pool, tiers, versions, owner
        self._damage, self._verify = damage or Damage(pool), verify
        self._stagings: Batcher[str, UUID] = Batcher(self._stage)
        self._discards: set[asyncio.Task[None]] = set()
        self._inline: Batcher[UUID, bytes | None] = Batcher(self._fetch_inline, rows=64)

    async def stage(self, tier: str) -> UUID:
        """A new blob's id, its staging row durable: row before bytes."""
        return await self._stagings.submit(tier)

    async def _stage(self, tiers: list[str]) -> Sequence[UUID]:
        ids = [blob_id() for _ in tiers]
        async with self._pool.acquire() as conn:
            await insert_staging(conn, ids, tiers, self._owner())
        return ids

    async def discard(self, blob: UUID) -> None:
        """Drop a staged blob whose sink was aborted or whose completion failed. A live blob is left alone.

        While the database is away, or slow, it goes on behind the caller's back: nobody else would collect what is
        staged by a process that lives on.
        """
        first = self._aside(self._discard(blob))
        await asyncio.wait({first}, timeout=DISCARD_WAIT)
        try:
            if first.done():
                return first.result()
        except LOST as error:
            log.warning("discard-put-off", blob=str(blob), error=type(error).__name__)
        self._aside(self._discard_later(blob, first))

    def _aside(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._discards.add(task)
        task.add_done_callback(self._discards.discard)
        return task

    async def _discard_later(self, blob: UUID, attempt: asyncio.Task[None]) -> None:
        pause = 1.0
        while True:
            with suppress(*LOST):
                return await attempt
            await asyncio.sleep(pause)
            pause = min(pause * 2, 30.0)
            attempt = self._aside(self._discard(blob))

    async def _discard(self, blob: UUID) -> None:
        row = await self._pool.fetchrow(
            "UPDATE blob SET state = 3, owner = NULL WHERE id = $1 AND state = 1 RETURNING tier", blob
        )
        if row is not None:
            await self._tiers[row["tier"]].delete(blob)
            await self._pool.execute("DELETE FROM blob WHERE id = $1 AND state = 3", blob)

    async def open(self, resolved: Resolved, span: ByteSpan = WHOLE) -> ContentReader:
        """The bytes of a span of what was resolved. may_serve has said yes before. Raises the tiers' errors."""
        version = resolved.version
        assert version is not None
        length = version.size - span.offset if span.length is None else span.length
        if resolved.inline is not None:
            return ContentReader(length, (), self, resolved.inline[span.offset : span.offset + length])
        if resolved.extent is not None:
            extents: Sequence[Extent] = (replace(resolved.extent, digest=sha256_of(version.digest or "")),)
        else:
            extents = await self._versions.extents(version) if version.size else ()
        if version.size >= self._verify:
            extents = [replace(extent, digest=None) for extent in extents]
        return await self.open_extents(extents, ByteSpan(span.offset, length))

    async def open_extents(self, extents: Sequence[Extent], span: ByteSpan) -> ContentReader:
        """span must have a length. Raises BlobCorrupt when the extents do not reach that far, or are known to be
        damaged."""
        assert span.length is not None
        pieces = cut(extents, span.offset, span.length)
        if sum(piece.length for piece in pieces) != span.length:
            raise BlobCorrupt("the extents are shorter than the object")
        if damaged := [piece.blob for piece in pieces if piece.damaged]:
            raise BlobCorrupt(f"blob {damaged[0]} is marked as damaged")
        reader = ContentReader(span.length, pieces, self, None if span.length else b"")
        await reader.start()
        return reader

    async def open_extent(self, extent: Extent) -> Reader:
        """One extent, wherever it lies."""
        if extent.tier == INLINE:
            data = await self._inline.submit(extent.blob)
            if data is None:
                raise BlobNotFound(str(extent.blob))
            return Held(data[extent.offset : extent.offset + extent.length])
        try:
            return await self._tiers[extent.tier].open(extent.blob, ByteSpan(extent.offset, extent.length))
        except (BlobNotFound, BlobCorrupt) as error:
            await self.damaged(extent, error)
            raise

    async def damaged(self, extent: Extent, error: BlobNotFound | BlobCorrupt) -> None:
        """Bytes are not there that a row promises, or not the same: say so once, and refuse them from now on. A
        database that is away keeps nobody from the answer."""
        with suppress(*LOST):
            await self._damage.found(extent.blob, extent.tier, error)

    async def _fetch_inline(self, blobs: list[UUID]) -> Sequence[bytes | None]:
        rows = await self._pool.fetch("SELECT id, bytes FROM blob WHERE id = ANY($1)", blobs)
        found = {row["id"]: row["bytes"] for row in rows}
        return [found.get(blob) for blob in blobs]


class Held:
    """A reader of bytes that are at hand."""

    fd = None
    position = 0

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.length = len(data)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._data:
            yield self._data

    async def close(self) -> None:
        pass


def sha256_of(digest: str) -> bytes | None:
    """The SHA-256 of a typed digest; None of any other kind, whose value is not one of the bytes."""
    kind, _, value = digest.partition(":")
    return bytes.fromhex(value) if kind == "sha256" else None


async def _update(sha256: Hash, chunk: bytes) -> None:
    """Short pieces here; longer ones would hold up everybody else (measured: 1.4 GB/s)."""
    if len(chunk) < ASIDE:
        sha256.update(chunk)
    else:
        await asyncio.to_thread(sha256.update, chunk)


def cut(extents: Sequence[Extent], offset: int, length: int) -> list[Extent]:
    """The extents of a span of the content that extents make up, in bytes."""
    pieces: list[Extent] = []
    start = 0
    for extent in extents:
        begin, end = max(offset, start), min(offset + length, start + extent.length)
        if begin < end:
            digest = extent.digest if end - begin == extent.length else None
            where = extent.offset + begin - start
            pieces.append(Extent(extent.blob, where, end - begin, extent.tier, extent.damaged, digest))
        start += extent.length
        if start >= offset + length:
            break
    return pieces


async def insert_staging(conn: Conn, ids: Sequence[UUID], tiers: Sequence[str], owner: int | None) -> None:
    """Staging rows of new blobs, durable when the caller's transaction is."""
    await conn.execute(
        "INSERT INTO blob (id, state, tier, owner) SELECT i, 1, t, $3 FROM unnest($1::uuid[], $2::text[]) AS q (i, t)",
        ids,
        tiers,
        owner,
    )


async def insert_inline(conn: Conn, ids: Sequence[UUID], data: Sequence[bytes], digests: Sequence[bytes]) -> None:
    """Live blobs whose bytes travel in the same transaction."""
    if not ids:
        return
    await conn.execute(
        """INSERT INTO blob (id, state, tier, size, sha256, bytes)
           SELECT id, 2, 'inline', length(bytes), sha256, bytes
             FROM unnest($1::uuid[], $2::bytea[], $3::bytea[]) AS q (id, bytes, sha256)""",
        ids,
        data,
        digests,
    )


async def make_live(
    conn: Conn, ids: Sequence[UUID], sizes: Sequence[int], digests: Sequence[bytes | None]
) -> set[UUID]:
    """staging → live; the answer lacks those that are not staging any more."""
    if not ids:
        return set()
    rows = await conn.fetch(
        """UPDATE blob b SET state = 2, owner = NULL, size = q.size, sha256 = q.sha256
             FROM unnest($1::uuid[], $2::bigint[], $3::bytea[]) AS q (id, size, sha256)
            WHERE b.id = q.id AND b.state = 1 RETURNING b.id""",
        ids,
        sizes,
        digests,
    )
    return {row["id"] for row in rows}


async def share(conn: Conn, ids: Sequence[UUID]) -> bool:
    """Lock live blobs against the collector for a new reference. False when one is not live any more."""
    wanted = sorted(set(ids))
    rows = await conn.fetch(
        "SELECT id FROM blob WHERE id = ANY($1::uuid[]) AND state = 2 ORDER BY id FOR KEY SHARE", wanted
    )
    return len(rows) == len(wanted)


async def drop_references(conn: Conn, ids: Sequence[UUID], grace: float) -> None:
    """Queue blobs that lost a reference for the collector, due after grace seconds.

    Inline bytes are due at once: a reader has them in its snapshot, and no file has to outlive a slow download.
    """
    if ids:
        await conn.execute(
            """INSERT INTO blob_queue (blob, due_at)
               SELECT b.id, now() + CASE WHEN b.tier = 'inline' THEN interval '0' ELSE $2 * interval '1 second' END
                 FROM blob b WHERE b.id = ANY($1::uuid[]) ORDER BY b.id
               ON CONFLICT DO NOTHING""",
            list(set(ids)),
            float(grace),
        )
