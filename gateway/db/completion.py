"""Complete an upload: blob, version, head and run appear together or not at all.

One flight is one transaction for everything that arrived while the last one was committing. Locks are taken in the one
order of the schema: buckets, heads sorted by (bucket, key), blobs, runs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial

import asyncpg

from gateway.db import blobs, heads, runs, verdicts
from gateway.db.batching import Batcher
from gateway.db.errors import (
    BucketGone,
    Busy,
    NoSuchKey,
    PreconditionFailed,
    SourceGone,
    StagingLost,
    Unknown,
    WriteConflict,
)
from gateway.db.insertion import (
    Completed,
    Completion,
    Inline,
    Layout,
    Parts,
    Shared,
    Skipped,
    Staged,
    insert_parts,
    insert_versions,
    share_parts,
    share_source,
)
from gateway.db.storing import Storing, plain, shown_id
from gateway.domain.ids import blob_id, random64
from gateway.domain.objects import State, Versioning, VersionRef, WriteCondition
from processing.journal import GATHER
from processing.model import Enqueued, NewRun
from processing.ports import Conn
from storage_tiers import failpoints
from storage_tiers.placement import Placement

__all__ = ["Completed", "Completion", "Completions", "Inline", "Parts", "Shared", "Staged"]

SCANNING_ROWS = 8  # null versions of one key that may await a verdict at once
LOCK_TIMEOUT = "5s"


class Excluded(Exception):
    """Items of a batch that cannot be written: roll back and write the others."""

    def __init__(self, failures: Mapping[int, Exception]) -> None:
        self.failures = failures


@dataclass(slots=True)
class Written:
    results: list[Completed | Exception]
    enqueued: list[Enqueued]


class Completions:
    """Stores new versions; choose names the pipeline that decides about each."""

    def __init__(
        self,
        pool: asyncpg.Pool,
        engine: heads.Runs,
        placement: Placement,
        *,
        choose: runs.Choose,
        blob_grace: float,
        verdict_ttl: float,
    ) -> None:
        self._pool, self._engine, self._placement = pool, engine, placement
        self._choose, self.grace, self._ttl = choose, blob_grace, verdict_ttl
        self._storing = Storing(pool, engine, choose=choose, verdict_ttl=verdict_ttl, most=SCANNING_ROWS)
        self._batches: Batcher[Completion, Completed] = Batcher(
            self._fly,
            key=lambda c: (c.bucket.id, c.key),
            tenant=lambda c: c.bucket.owner.id,
            weight=lambda c: len(c.source.data) if isinstance(c.source, Inline) else 0,
            flights=1,
            gather=GATHER,
        )

    async def complete(self, completion: Completion) -> Completed:
        """Store one object. Raises the errors of gateway.db.errors; after any but Unknown nothing was stored."""
        try:
            return await self._batches.submit(completion)
        except Skipped:
            return await self.alone(completion.condition is not None, lambda conn: self.write(conn, [completion], True))

    async def alone(self, conditional: bool, write: Callable[[Conn], Awaitable[Written]]) -> Completed:
        """One write that waits for its locks, up to LOCK_TIMEOUT each."""
        for _ in range(3):  # a head that its last holder deleted is made anew
            try:
                return await self.transact(write)
            except Skipped:
                continue
            except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError):
                break
        raise (WriteConflict if conditional else Busy)("another writer holds the key")

    async def _fly(self, batch: list[Completion]) -> Sequence[Completed | Exception]:
        """The short way for what is plain, then the long way for the rest."""
        short = [i for i, c in enumerate(batch) if plain(c)]
        stored = await self._storing.store([batch[i] for i in short])
        results = {i: result for i, result in zip(short, stored, strict=True) if result is not None}
        left = [i for i in range(len(batch)) if i not in results]
        while left:
            try:
                written = await self._commit(partial(self.write, batch=[batch[i] for i in left]))
            except Excluded as excluded:
                results |= {left[i]: error for i, error in excluded.failures.items()}
            except Exception as error:  # what the short way stored stays stored
                if not short:
                    raise
                results |= dict.fromkeys(left, error)
            else:
                results |= dict(zip(left, written.results, strict=True))
            left = [i for i in left if i not in results]
        return [results[i] for i in range(len(batch))]

    def abandon(self, written: Written) -> None:
        """Give back what a transaction reserved that will not commit."""
        self._engine.abandon(written.enqueued)

    async def transact(self, write: Callable[[Conn], Awaitable[Written]]) -> Completed:
        """One write in a transaction of its own."""
        try:
            written = await self._commit(write)
        except Excluded as excluded:
            raise excluded.failures[0] from None
        result = written.results[0]
        if isinstance(result, Exception):
            raise result
        return result

    async def _commit(self, write: Callable[[Conn], Awaitable[Written]]) -> Written:
        """Run write in a transaction; launch its runs after the commit, abandon them otherwise."""
        written: Written | None = None
        try:
            async with self._pool.acquire() as conn:
                transaction = conn.transaction()
                await transaction.start()
                try:
                    failpoints.point("complete.begun")
                    written = await write(conn)
                    failpoints.point("complete.written")
                except BaseException:
                    if not conn.is_closed():
                        await transaction.rollback()
                    raise
                await transaction.commit()
                failpoints.point("complete.committed")
        except (OSError, asyncpg.InterfaceError, asyncpg.PostgresConnectionError) as error:
            if written is None:
                raise Busy("the database connection was lost") from error
            if not await self._stored(written):
                self._engine.abandon(written.enqueued)
                raise Unknown("the database connection was lost during the commit") from error
        except BaseException:
            if written is not None:
                self._engine.abandon(written.enqueued)
            raise
        self._engine.launch(written.enqueued)
        return written

    async def _stored(self, written: Written) -> bool:
        """After a COMMIT without an answer: are the rows there?"""
        refs = [r.ref for r in written.results if isinstance(r, Completed)]
        try:
            found = await self._pool.fetchval(
                """SELECT count(*) FROM version v
                     JOIN unnest($1::bigint[], $2::bytea[], $3::bigint[], $4::bigint[]) AS q (b, k, s, r)
                       ON v.bucket_id = q.b AND v.key = q.k AND v.seq = q.s AND v.rnd = q.r""",
                [ref.bucket_id for ref in refs],
                [ref.key for ref in refs],
                [ref.seq for ref in refs],
                [ref.rnd for ref in refs],
            )
        except (OSError, asyncpg.InterfaceError, asyncpg.PostgresError):
            return False
        return bool(refs) and found == len(refs)

    async def write(self, conn: Conn, batch: Sequence[Completion], alone: bool = False) -> Written:
        """All rows of a batch with distinct keys, in the caller's transaction."""
        facts = await bucket_facts(conn, {c.bucket.id for c in batch})
        results: dict[int, Completed | Exception] = {
            i: BucketGone(c.bucket.name) for i, c in enumerate(batch) if c.bucket.id not in facts
        }
        if alone:
            await conn.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
        open_items = [i for i in range(len(batch)) if i not in results]
        # If-Match needs a key that exists: no head is made for it.
        creating = [i for i in open_items if not (batch[i].condition and batch[i].condition.if_match)]  # type: ignore[union-attr]
        if creating:
            await heads.insert_missing(conn, [(batch[i].bucket.id, batch[i].key) for i in creating])
        locked = await heads.lock(conn, [(batch[i].bucket.id, batch[i].key) for i in open_items], not alone)
        for i in open_items:
            key = batch[i].bucket.id, batch[i].key
            head = locked.get(key)
            if head is None:
                results[i] = Skipped(str(key)) if i in creating else await self._absent(conn, key)
            elif failure := refusal(batch[i].condition, head.listable, head.etag):
                results[i] = failure
        writing = [i for i in open_items if i not in results]
        if writing:
            try:
                written = await self._insert(conn, [batch[i] for i in writing], locked, facts)
            except Excluded as excluded:
                raise Excluded({writing[i]: error for i, error in excluded.failures.items()}) from None
            results |= dict(zip(writing, written.results, strict=True))
        else:
            written = Written([], [])
        refused = [(batch[i].bucket.id, batch[i].key) for i in creating if i not in writing and i in results]
        if any(key in locked and locked[key].current_seq is None for key in refused):
            await heads.recompute(conn, [key for key in refused if key in locked])
        return Written([results[i] for i in range(len(batch))], written.enqueued)

    async def _absent(self, conn: Conn, key: heads.Key) -> Exception:
        """Why a conditional write found no head to lock: there is none, or another process holds it."""
        there = await conn.fetchval("SELECT true FROM head WHERE bucket_id = $1 AND key = $2", *key)
        return Skipped(str(key)) if there else NoSuchKey(repr(key[1]))

    async def _insert(
        self,
        conn: Conn,
        batch: Sequence[Completion],
        locked: Mapping[heads.Key, heads.Head],
        facts: Mapping[int, Versioning],
    ) -> Written:
        """Write a batch whose heads are locked and whose conditions hold."""
        refs = [VersionRef(c.bucket.id, c.key, locked[c.bucket.id, c.key].seq + 1, random64()) for c in batch]
        content = [await self._content(conn, i, c) for i, c in enumerate(batch)]
        await self._blobs(conn, batch, content)
        chosen = [self._choose(c.bucket, c.key, c.attributes.content_type) for c in batch]
        prints = [each.fingerprint for each in chosen]
        known = await self._known(conn, batch, content, prints)
        scanning = [i for i in range(len(batch)) if known[i] is None]
        new_runs = [
            runs.post_upload(batch[i].bucket.owner.id, refs[i], batch[i].digest, chosen[i].pipeline) for i in scanning
        ]
        for i, verdict in enumerate(known):
            if verdict is not None and verdict.state is State.READY:
                new_runs += self.follow_ups(batch[i].bucket.owner.id, refs[i], batch[i].attributes.storage_class)
        enqueued = await self._engine.enqueue(conn, new_runs) if new_runs else []
        run_ids = {i: enqueued[n].run_id for n, i in enumerate(scanning)}
        try:
            failpoints.point("complete.enqueued")
            nulls = [facts[c.bucket.id] is not Versioning.ENABLED for c in batch]
            modified = await insert_versions(conn, batch, refs, nulls, content, prints, known, run_ids)
            for i, c in enumerate(batch):
                if isinstance(c.source, Parts):
                    await insert_parts(conn, c, refs[i])
                elif isinstance(c.source, Shared):
                    await share_parts(conn, c.source.source, refs[i], content[i])
            await self._raise_heads(conn, batch, refs, known, modified)
            ready = [refs[i] for i, v in enumerate(known) if v is not None and v.state is State.READY and nulls[i]]
            await heads.settle_nulls(conn, self._engine, ready, self.grace)
            crowded = [refs[i] for i in scanning if nulls[i] and locked[batch[i].bucket.id, batch[i].key].listable]
            await self._thin_out(conn, crowded)
        except BaseException:
            self._engine.abandon(enqueued)
            raise
        results: list[Completed | Exception] = []
        for i, ref in enumerate(refs):
            verdict, versioning = known[i], facts[ref.bucket_id]
            results.append(
                Completed(
                    ref=ref,
                    version_id=shown_id(ref, versioning),
                    state=verdict.state if verdict else State.SCANNING,
                    code=verdict.code if verdict else None,
                    detail=verdict.detail if verdict else None,
                    run_id=run_ids.get(i),
                    modified=modified,
                )
            )
        return Written(results, enqueued)

    def follow_ups(self, tenant: int, ref: VersionRef, storage_class: str) -> list[NewRun]:
        """What has to run once a version is ready: the move to its class's tier, when that is another one."""
        if self._placement.landing(storage_class) == self._placement.tier_of(storage_class):
            return []
        return [runs.move(tenant, ref, storage_class)]

    async def _content(self, conn: Conn, index: int, c: Completion) -> Layout:
        """Which extents the new version has. Locks the blobs that it shares."""
        source = c.source
        if isinstance(source, Inline | Staged):
            if not c.size:
                return Layout(None, 0, 0, 0)
            return Layout(blob_id() if isinstance(source, Inline) else source.blob, 0, 1, 0)
        if isinstance(source, Parts):
            blob, offset = source.only or (None, 0)
            return Layout(blob, offset, source.extents, len(source.numbers))
        layout = await share_source(conn, source)
        if layout is None:
            raise Excluded({index: SourceGone(source.source.version_id)})
        return layout

    async def _blobs(self, conn: Conn, batch: Sequence[Completion], content: Sequence[Layout]) -> None:
        inline = [(content[i].blob, c.source) for i, c in enumerate(batch) if isinstance(c.source, Inline) and c.size]
        await blobs.insert_inline(
            conn,
            [blob for blob, _ in inline if blob is not None],
            [source.data for _, source in inline],
            [source.sha256 for _, source in inline],
        )
        staged = {i: c.source for i, c in enumerate(batch) if isinstance(c.source, Staged)}
        live = await blobs.make_live(
            conn,
            [source.blob for source in staged.values()],
            [batch[i].size for i in staged],
            [source.sha256 for source in staged.values()],
        )
        if lost := {i: StagingLost(str(s.blob)) for i, s in staged.items() if s.blob not in live}:
            raise Excluded(lost)

    async def _known(
        self, conn: Conn, batch: Sequence[Completion], content: Sequence[Layout], prints: Sequence[str | None]
    ) -> list[verdicts.KnownVerdict | None]:
        """A verdict for each item that needs no run: its own content's, or its source's."""
        keys: list[tuple[int, bytes] | None] = []
        for c, fingerprint in zip(batch, prints, strict=True):
            if fingerprint is None:
                keys.append(None)
                continue
            key = verdicts.verdict_key(c.digest, fingerprint, c.key, c.attributes.content_type)
            keys.append((c.bucket.owner.id, key))
        found = await verdicts.lookup(conn, [k for k in keys if k is not None], self._ttl)
        known: list[verdicts.KnownVerdict | None] = []
        for c, layout, fingerprint, lookup_key in zip(batch, content, prints, keys, strict=True):
            verdict = found.get(lookup_key) if lookup_key is not None else None
            if layout.inherits(c, fingerprint):
                verdict = verdicts.KnownVerdict(State.READY, None, None, layout.processing)
            known.append(verdict)
        return known

    async def _raise_heads(
        self,
        conn: Conn,
        batch: Sequence[Completion],
        refs: Sequence[VersionRef],
        known: Sequence[verdicts.KnownVerdict | None],
        modified: datetime,
    ) -> None:
        """Point the locked heads at the new versions; a version that is skipped from birth only takes its sequence."""
        shown = [verdict is None or verdict.state is not State.QUARANTINED for verdict in known]
        await conn.execute(
            """UPDATE head h
                  SET seq = q.seq,
                      current_seq = CASE WHEN q.shown THEN q.seq ELSE h.current_seq END,
                      listable = q.shown OR h.listable,
                      etag = CASE WHEN q.shown THEN q.etag ELSE h.etag END,
                      size = CASE WHEN q.shown THEN q.size ELSE h.size END,
                      modified = CASE WHEN q.shown THEN $8 ELSE h.modified END,
                      storage_class = CASE WHEN q.shown THEN q.class ELSE h.storage_class END,
                      checksum_algorithm = CASE WHEN q.shown THEN q.algorithm ELSE h.checksum_algorithm END,
                      checksum_type = CASE WHEN q.shown THEN q.kind ELSE h.checksum_type END,
                      owner_id = CASE WHEN q.shown THEN q.owner ELSE h.owner_id END
                 FROM unnest($1::bigint[], $2::bytea[], $3::bigint[], $4::bool[], $5::text[], $6::bigint[], $7::text[],
                             $9::text[], $10::text[], $11::bigint[])
                      AS q (bucket_id, key, seq, shown, etag, size, class, algorithm, kind, owner)
                WHERE h.bucket_id = q.bucket_id AND h.key = q.key""",
            [ref.bucket_id for ref in refs],
            [ref.key for ref in refs],
            [ref.seq for ref in refs],
            shown,
            [c.etag for c in batch],
            [c.size for c in batch],
            [c.attributes.storage_class for c in batch],
            modified,
            [next((name.upper() for name in c.checksums), None) for c in batch],
            [c.checksum_type for c in batch],
            [c.owner_id for c in batch],
        )

    async def _thin_out(self, conn: Conn, refs: Sequence[VersionRef]) -> None:
        """Of a key overwritten faster than it is scanned, keep the newest scanning null rows, and those whose run is
        under way: else none would ever become ready."""
        if not refs:
            return
        rows = await conn.fetch(
            """SELECT v.bucket_id, v.key, v.seq, v.rnd
                 FROM unnest($1::bigint[], $2::bytea[]) AS q (b, k), LATERAL (
                      SELECT * FROM version v WHERE v.bucket_id = q.b AND v.key = q.k AND v.is_null AND v.state = 1
                       ORDER BY v.seq DESC OFFSET $3 LIMIT 16) v
                WHERE NOT EXISTS (SELECT FROM workflow_run r WHERE r.run_id = v.run_id AND r.state = 2)""",
            [ref.bucket_id for ref in refs],
            [ref.key for ref in refs],
            SCANNING_ROWS,
        )
        await heads.remove_versions(conn, self._engine, [VersionRef(*row) for row in rows], self.grace)


def refusal(condition: WriteCondition | None, exists: bool, etag: str | None) -> Exception | None:
    """Whether a write's condition holds for what is current, as an error or None."""
    if condition is None:
        return None
    if condition.if_match is not None:
        if not exists:
            return NoSuchKey("")
        if "*" not in condition.if_match and etag not in condition.if_match:
            return PreconditionFailed("If-Match")
    unwanted = condition.if_none_match
    if exists and unwanted is not None and ("*" in unwanted or etag in unwanted):
        return PreconditionFailed("If-None-Match")
    return None


async def bucket_facts(conn: Conn, ids: set[int]) -> dict[int, Versioning]:
    """Lock buckets against deletion and tell their versioning as of now."""
    rows = await conn.fetch(
        "SELECT id, versioning FROM bucket WHERE id = ANY($1::bigint[]) ORDER BY id FOR KEY SHARE", sorted(ids)
    )
    return {row["id"]: Versioning(row["versioning"]) for row in rows}
