"""The short way of a write: everything that a plain new object needs, in one statement that is its own transaction.

``store_objects`` (migrations/0006) takes the locks, gives out the sequences and writes blob, head, version and run, for
all objects of a flight at once. What it leaves alone (a known verdict, a crowd of versions that await theirs), and what
is no plain write (conditions, parts, copies), goes the long way of ``completion``.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from uuid import UUID

import asyncpg

from gateway.db import blobs, heads, runs, verdicts
from gateway.db.errors import BucketGone, Busy, StagingLost, Unknown
from gateway.db.insertion import Completed, Completion, Inline, Skipped, Staged
from gateway.domain.ids import blob_id, random64
from gateway.domain.objects import NULL_ID, State, Versioning, VersionRef
from processing.births import Prepared, Wish
from processing.model import NewRun
from processing.ports import Content, Piece
from storage_tiers import failpoints

LOST = (OSError, asyncpg.InterfaceError, asyncpg.PostgresConnectionError)

# Tenants are its first argument, digests its 15th.
STORE = f"""
WITH s AS (SELECT * FROM store_objects({", ".join(f"${n}" for n in range(1, 31))}))
SELECT s.*, EXISTS (SELECT FROM allowed_digest a
                     WHERE a.account_id = ($1::bigint[])[s.i + 1] AND a.digest = ($15::text[])[s.i + 1]) AS allowed
  FROM s"""


class Fate(IntEnum):
    """What became of an object: store_objects' outcome."""

    STORED = 0
    BUCKET_GONE = 1
    HELD = 2
    LOST = 3
    LEFT = 4


def plain(c: Completion) -> bool:
    """Whether the short way may be tried."""
    return c.condition is None and isinstance(c.source, Inline | Staged)


class Storing:
    """Stores plain objects. most: how many null versions of a key may await their verdicts at once."""

    def __init__(
        self, pool: asyncpg.Pool, engine: heads.Runs, *, choose: runs.Choose, verdict_ttl: float, most: int
    ) -> None:
        self._pool, self._engine = pool, engine
        self._choose, self._ttl, self._most = choose, verdict_ttl, most

    async def store(self, batch: Sequence[Completion]) -> list[Completed | Exception | None]:
        """One result for each object, None for those that were left alone. Keys are distinct.

        Raises Busy when nothing was stored, Unknown when that cannot be known.
        """
        if not batch:
            return []
        chosen = [self._choose(c.bucket, c.key, c.attributes.content_type) for c in batch]
        tenants = [c.bucket.owner.id for c in batch]
        random = [random64() for _ in batch]
        names = [blob_name(c) for c in batch]
        prepared = await self._engine.births.prepare(
            [Wish("post_upload", each.pipeline, tenant) for each, tenant in zip(chosen, tenants, strict=True)]
        )
        sent = False
        try:
            async with self._pool.acquire() as conn:
                arguments = self._arguments(batch, tenants, random, names, chosen, prepared)
                failpoints.point("store.sending")
                sent = True
                rows = await conn.fetch(STORE, *arguments)
                failpoints.point("store.stored")
        except LOST as error:
            self._engine.births.release(prepared)
            if not sent:
                raise Busy("the database connection was lost") from error
            return await self._found(batch, random, error)
        except BaseException:
            self._engine.births.release(prepared)
            raise
        made: list[NewRun | None] = []
        contents: list[Content | None] = []
        results: list[Completed | Exception | None] = []
        for row, c, tenant, rnd, each, blob in zip(rows, batch, tenants, random, chosen, names, strict=True):
            fate, seq = row["outcome"], row["seq"]
            stored = fate == Fate.STORED
            ref = VersionRef(c.bucket.id, c.key, seq, rnd) if stored else None
            made.append(runs.post_upload(tenant, ref, c.digest, each.pipeline) if ref is not None else None)
            contents.append(_content(ref, c, blob, row) if ref is not None else None)
            results.append(_completed(ref, row) if ref is not None else _failure(Fate(fate), c))
        found = [(row["run_id"], row["run_state"]) for row in rows]
        self._engine.launch(self._engine.births.admit(prepared, made, found, contents))
        return results

    def _arguments(
        self,
        batch: Sequence[Completion],
        tenants: Sequence[int],
        random: Sequence[int],
        names: Sequence[UUID | None],
        chosen: Sequence[runs.Chosen],
        prepared: Prepared,
    ) -> tuple[object, ...]:
        """The columns that store_objects takes, in its order."""
        sources = [c.source for c in batch]
        return (
            tenants,
            [c.bucket.id for c in batch],
            [c.key for c in batch],
            random,
            [c.etag for c in batch],
            [c.size for c in batch],
            [c.attributes.storage_class for c in batch],
            [c.attributes.content_type for c in batch],
            [c.attributes.headers for c in batch],
            [c.attributes.metadata for c in batch],
            [c.attributes.tags for c in batch],
            [c.checksums for c in batch],
            [c.checksum_type for c in batch],
            [next((name.upper() for name in c.checksums), None) for c in batch],
            [c.digest for c in batch],
            [c.attributes.acl for c in batch],
            [c.owner_id for c in batch],
            names,
            [s.data if isinstance(s, Inline) and s.data else None for s in sources],
            [s.sha256 for s in sources if isinstance(s, Inline | Staged)],
            [each.fingerprint for each in chosen],
            [c.mode == "sync" for c in batch],
            [
                each.fingerprint and verdicts.verdict_key(c.digest, each.fingerprint, c.key, c.attributes.content_type)
                for c, each in zip(batch, chosen, strict=True)
            ],
            self._ttl,
            self._most,
            [each.pipeline for each in chosen],
            [definition.fingerprint for definition in prepared.definitions],
            [definition.lane for definition in prepared.definitions],
            prepared.tokens,
            prepared.worker_id,
        )

    async def _found(
        self, batch: Sequence[Completion], random: Sequence[int], error: Exception
    ) -> list[Completed | Exception | None]:
        """After a statement without an answer: what is there was stored, of the rest nothing is known."""
        try:
            rows = await self._pool.fetch(
                """SELECT q.i, v.seq, v.run_id, b.versioning, v.modified
                     FROM unnest($1::int[], $2::bigint[], $3::bytea[], $4::bigint[]) AS q (i, b, k, r)
                     JOIN version v ON v.bucket_id = q.b AND v.key = q.k AND v.rnd = q.r
                     JOIN bucket b ON b.id = q.b""",
                list(range(len(batch))),
                [c.bucket.id for c in batch],
                [c.key for c in batch],
                random,
            )
        except (OSError, asyncpg.InterfaceError, asyncpg.PostgresError):
            rows = []
        unknown = Unknown("the database connection was lost while it stored")
        unknown.__cause__ = error
        results: list[Completed | Exception | None] = [unknown] * len(batch)
        for row in rows:
            c = batch[row["i"]]
            results[row["i"]] = _completed(VersionRef(c.bucket.id, c.key, row["seq"], random[row["i"]]), row)
        return results


def shown_id(ref: VersionRef, versioning: Versioning) -> str | None:
    """The version id that a write answers; None in a bucket that never had versioning."""
    return {Versioning.OFF: None, Versioning.SUSPENDED: NULL_ID}.get(versioning, ref.version_id)


def _completed(ref: VersionRef, row: asyncpg.Record) -> Completed:
    return Completed(
        ref=ref,
        version_id=shown_id(ref, Versioning(row["versioning"])),
        state=State.SCANNING,
        code=None,
        detail=None,
        run_id=row["run_id"],
        modified=row["modified"],
    )


def blob_name(c: Completion) -> UUID | None:
    """Of the blob that holds it; an empty object has none."""
    if not c.size:
        return None
    return c.source.blob if isinstance(c.source, Staged) else blob_id()


def _content(ref: VersionRef, c: Completion, blob: UUID | None, row: asyncpg.Record) -> Content:
    """What was just stored, as its run would find it (subjects.content_of)."""
    source, attributes = c.source, c.attributes
    tier = source.tier if isinstance(source, Staged) else blobs.INLINE
    return Content(
        subject=runs.subject(ref),
        tenant=c.bucket.owner.id,
        bucket=c.bucket.name,
        key=c.key,
        version_id=ref.version_id if row["versioning"] == Versioning.ENABLED else NULL_ID,
        state=State.SCANNING.word,
        size=c.size,
        digest=c.digest,
        declared_type=attributes.content_type,
        storage_class=attributes.storage_class,
        metadata=attributes.metadata,
        processing={},
        pieces=[Piece(blob, 0, c.size, tier)] if blob is not None else [],
        allowed=row["allowed"],
        restore={"restoring": False, "n": 0},
        data=source.data if isinstance(source, Inline) else None,
    )


def _failure(fate: Fate, c: Completion) -> Exception | None:
    match fate:
        case Fate.BUCKET_GONE:
            return BucketGone(c.bucket.name)
        case Fate.HELD:
            return Skipped(repr(c.key))
        case Fate.LOST:
            assert isinstance(c.source, Staged)
            return StagingLost(str(c.source.blob))
    return None
