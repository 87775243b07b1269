"""One key's life at the level of statements: what is current, in which order verdicts come, what is left behind."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from gateway.db import assembly
from gateway.db.buckets import Buckets
from gateway.db.deletion import DeleteCondition, Deleted, DeleteItem
from gateway.db.errors import NoSuchKey, NoSuchUpload, PreconditionFailed, SourceGone
from gateway.db.insertion import Inline, Shared
from gateway.db.runs import subject
from gateway.db.uploads import PartRow, Upload
from gateway.domain.objects import Attributes, State, Versioning, WriteCondition, parse_version_id
from processing.model import Outcome, RunState, Verdict
from tests.db.rows import new_bucket
from tests.db.world import World, world

ANY = WriteCondition(if_none_match=("*",))


@pytest.fixture
def run(dsn: str) -> Callable[..., Any]:
    def go(story: Callable[[World], Awaitable[Any]], **more: Any) -> Any:
        async def main() -> Any:
            async with world(dsn, **more) as w:
                return await story(w)

        return asyncio.run(main())

    return go


def sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


async def rows(w: World, table: str) -> int:
    count: int = await w.pool.fetchval(f"SELECT count(*) FROM {table}")
    return count


def test_scanning_then_ready_then_overwritten(run: Any) -> None:
    async def story(w: World) -> None:
        b = await new_bucket(w.pool)
        one = await w.put(b, b"k", b"one")
        assert await w.read(b, b"k") == "scanning:"
        await w.decide(one)
        assert await w.read(b, b"k") == "ready:one"
        two = await w.put(b, b"k", b"two")
        assert await w.read(b, b"k") == "scanning:"
        assert two.ref.seq > one.ref.seq
        await w.decide(two)
        assert await w.read(b, b"k") == "ready:two"
        assert await rows(w, "version") == 1  # one S3 id, one row
        assert w.engine.superseded == [one.run_id]
        while await w.collector.collect():
            pass
        assert await rows(w, "blob") == 1

    run(story)


def test_malware_never_destroys_what_was_verified(run: Any) -> None:
    async def story(w: World) -> None:
        b = await new_bucket(w.pool)
        await w.decide(await w.put(b, b"k", b"good"))
        await w.decide(await w.put(b, b"k", b"evil"), Verdict.QUARANTINED, "malware")
        assert await w.read(b, b"k") == "ready:good newer quarantined"
        await w.decide(await w.put(b, b"only", b"evil2"), Verdict.QUARANTINED, "malware")
        assert await w.read(b, b"only") == "quarantined:"
        assert (await w.put(b, b"only", b"x", condition=ANY)).state is State.SCANNING  # counts as absent

    run(story)


def test_failed_is_skipped_unless_the_bucket_refuses(run: Any) -> None:
    async def story(w: World) -> None:
        b = await new_bucket(w.pool)
        await w.decide(await w.put(b, b"k", b"good"))
        await w.decide(await w.put(b, b"k", b"bad"), Verdict.FAILED, "internal")
        assert await w.read(b, b"k") == "ready:good newer failed"
        b = await Buckets(w.pool).set_config(b, {"when_failed": "refuse"})
        await w.decide(await w.put(b, b"k", b"bad2"), Verdict.FAILED, "internal")
        assert await w.read(b, b"k") == "failed:"
        with pytest.raises(PreconditionFailed):
            await w.put(b, b"k", b"x", condition=ANY)
        await w.decide(await w.put(b, b"s", b"bad3", mode="sync"), Verdict.FAILED, "internal")
        assert (await w.put(b, b"s", b"x", condition=ANY)).state is State.SCANNING  # a sync write is skipped

    run(story)


def test_finalize_out_of_order(run: Any) -> None:
    """The newer of two null rows becomes ready first; the older one's verdict must not bring it back."""

    async def story(w: World) -> None:
        b = await new_bucket(w.pool)
        one, two = await w.put(b, b"k", b"one"), await w.put(b, b"k", b"two")
        await w.decide(two)
        assert await w.read(b, b"k") == "ready:two"
        await w.decide(one)
        assert await w.read(b, b"k") == "ready:two"
        assert await rows(w, "version") == 1

    run(story)


def test_a_replayed_verdict_changes_nothing(run: Any) -> None:
    async def story(w: World) -> None:
        b = await new_bucket(w.pool)
        one = await w.put(b, b"k", b"one")
        await w.decide(one)
        await w.decide(one, Verdict.QUARANTINED, "malware")
        assert await w.read(b, b"k") == "ready:one"

    run(story)


def test_conditions_see_scanning_versions(run: Any) -> None:
    async def story(w: World) -> None:
        b = await new_bucket(w.pool)
        done = await w.put(b, b"k", b"one", condition=ANY)
        with pytest.raises(PreconditionFailed):
            await w.put(b, b"k", b"two", condition=ANY)
        with pytest.raises(PreconditionFailed):
            await w.put(b, b"k", b"two", condition=WriteCondition(if_match=("0" * 32,)))
        with pytest.raises(NoSuchKey):
            await w.put(b, b"missing", b"two", condition=WriteCondition(if_match=("0" * 32,)))
        assert await rows(w, "head") == 1
        etag = w.completion(b, b"k", b"one").etag
        assert (await w.put(b, b"k", b"two", condition=WriteCondition(if_match=(etag,)))).ref.seq > done.ref.seq

    run(story)


def test_of_fifty_parallel_creators_one_wins(run: Any) -> None:
    async def story(w: World) -> None:
        b = await new_bucket(w.pool)
        results = await asyncio.gather(
            *(w.put(b, b"lock", f"{i}".encode(), condition=ANY) for i in range(50)), return_exceptions=True
        )
        won = [r for r in results if not isinstance(r, BaseException)]
        assert len(won) == 1
        assert all(isinstance(r, PreconditionFailed) for r in results if isinstance(r, BaseException))

    run(story)


def test_many_keys_share_flights(run: Any) -> None:
    async def story(w: World) -> None:
        b = await new_bucket(w.pool)
        done = await asyncio.gather(*(w.put(b, f"k{i}".encode(), b"x%d" % i) for i in range(300)))
        assert len({d.ref.key for d in done}) == 300
        assert await rows(w, "version") == 300

    run(story)


def test_delete_in_a_bucket_without_versioning_removes_every_row(run: Any) -> None:
    async def story(w: World) -> None:
        b = await new_bucket(w.pool)
        await w.decide(await w.put(b, b"k", b"good"))
        await w.decide(await w.put(b, b"k", b"evil"), Verdict.QUARANTINED, "malware")
        late = await w.put(b, b"k", b"late")
        assert await w.deletions.delete(b, [DeleteItem(b"k")], b.owner.id) == [Deleted()]
        assert await w.read(b, b"k") == "nothing"
        await w.decide(late)  # its verdict comes after the delete
        assert await w.read(b, b"k") == "nothing"
        assert await rows(w, "version") == await rows(w, "head") == 0

    run(story)


def test_suspended_bucket_keeps_one_null(run: Any) -> None:
    """B129, B131: three deletes make one marker; only a ready object takes its place."""

    async def story(w: World) -> None:
        buckets = Buckets(w.pool)
        b = await new_bucket(w.pool)
        b = await buckets.set_versioning(b, Versioning.ENABLED)
        kept = await w.put(b, b"k", b"kept")
        await w.decide(kept)
        b = await buckets.set_versioning(b, Versioning.SUSPENDED)
        for _ in range(3):
            (deleted,) = await w.deletions.delete(b, [DeleteItem(b"k")], b.owner.id)
            assert deleted == Deleted(None, True, "null")
        assert await rows(w, "version") == 2
        bad = await w.put(b, b"k", b"bad")
        await w.decide(bad, Verdict.FAILED, "internal")
        assert (await w.read(b, b"k")).startswith("marker:")
        good = await w.put(b, b"k", b"good")
        assert good.version_id == "null"
        await w.decide(good)
        assert await w.read(b, b"k") == "ready:good"
        assert await rows(w, "version") == 2
        assert await w.read(b, b"k", parse_version_id(kept.ref.version_id)) == "ready:kept"

    run(story)


def test_versioned_deletes(run: Any) -> None:
    """B133: an unknown version id answers 204, echoes the id, and makes no marker."""

    async def story(w: World) -> None:
        b = await Buckets(w.pool).set_versioning(await new_bucket(w.pool), Versioning.ENABLED)
        one = await w.put(b, b"k", b"one")
        await w.decide(one)
        (marked,) = await w.deletions.delete(b, [DeleteItem(b"k")], b.owner.id)
        assert isinstance(marked, Deleted) and marked.is_marker and marked.marker_id
        unknown = "0" * 15 + "1" + "0" * 16
        assert await w.deletions.delete(b, [DeleteItem(b"k", parse_version_id(unknown))], 1) == [Deleted(unknown)]
        (undone,) = await w.deletions.delete(b, [DeleteItem(b"k", parse_version_id(marked.marker_id))], b.owner.id)
        assert undone == Deleted(marked.marker_id, True)
        assert await w.read(b, b"k") == "ready:one"

    run(story)


def test_delete_conditions(run: Any) -> None:
    async def story(w: World) -> None:
        b = await new_bucket(w.pool)
        await w.put(b, b"k", b"one")
        wrong = DeleteItem(b"k", None, DeleteCondition(etag="0" * 32))
        (refused,) = await w.deletions.delete(b, [wrong], b.owner.id)
        assert isinstance(refused, PreconditionFailed)
        missing = DeleteItem(b"nope", None, DeleteCondition(etag="0" * 32))
        assert await w.deletions.delete(b, [missing], b.owner.id) == [Deleted()]
        right = DeleteItem(b"k", None, DeleteCondition(size=3))
        assert await w.deletions.delete(b, [right, right], b.owner.id) == [Deleted(), Deleted()]

    run(story)


def test_a_key_overwritten_faster_than_scanned_keeps_eight_rows(run: Any) -> None:
    async def story(w: World) -> None:
        b = await new_bucket(w.pool)
        for i in range(20):
            last = await w.put(b, b"k", b"%d" % i)
        assert await rows(w, "version") == 8
        await w.decide(last)
        assert await w.read(b, b"k") == "ready:19"
        assert await rows(w, "version") == 1

    run(story)


def test_a_verdict_is_reused_for_the_same_extension_only(run: Any) -> None:
    async def story(w: World) -> None:
        b = await new_bucket(w.pool)
        await w.decide(await w.put(b, b"a.txt", b"same"))
        again = await w.put(b, b"b.txt", b"same")
        assert again.state is State.READY and again.run_id is None
        assert await w.read(b, b"b.txt") == "ready:same"
        assert (await w.put(b, b"b.exe", b"same")).state is State.SCANNING
        await w.decide(await w.put(b, b"e.txt", b"evil"), Verdict.QUARANTINED, "malware")
        evil = await w.put(b, b"f.txt", b"evil")
        assert (evil.state, evil.code) == (State.QUARANTINED, "malware")
        assert await w.read(b, b"f.txt") == "quarantined:"
        await w.decide(await w.put(b, b"u.txt", b"odd"), Verdict.QUARANTINED, "unscannable")
        assert (await w.put(b, b"v.txt", b"odd")).state is State.SCANNING  # never lent

    run(story)


def test_copies_share_blobs_and_inherit_ready(run: Any) -> None:
    async def story(w: World) -> None:
        b = await new_bucket(w.pool)
        done = await w.put(b, b"a.txt", b"data")
        with pytest.raises(SourceGone):  # not ready yet
            await w.put(b, b"b.txt", b"data", source=Shared(done.ref))
        await w.decide(done)
        await w.pool.execute("DELETE FROM verdict")
        copy = await w.put(b, b"b.txt", b"data", source=Shared(done.ref))
        assert copy.state is State.READY
        assert (await w.put(b, b"b.exe", b"data", source=Shared(done.ref))).state is State.SCANNING
        assert await rows(w, "blob") == 1
        await w.deletions.delete(b, [DeleteItem(b"a.txt")], b.owner.id)
        await w.collector.collect()
        assert await w.read(b, b"b.txt") == "ready:data"
        await w.deletions.delete(b, [DeleteItem(b"b.txt"), DeleteItem(b"b.exe")], b.owner.id)
        await w.collector.collect()
        assert await rows(w, "blob") == 0

    run(story)


def test_ready_in_an_archive_class_is_moved(run: Any) -> None:
    async def story(w: World) -> None:
        b = await new_bucket(w.pool)
        cold = Attributes(content_type="text/plain", storage_class="GLACIER")
        follow_ups = await w.decide(await w.put(b, b"k", b"cold", attributes=cold))
        assert [run.workflow for run in follow_ups] == ["tier.move"]
        await w.put(b, b"k2", b"cold", attributes=cold)  # by a reused verdict
        assert [run.workflow for run in w.engine.runs.values()] == ["post_upload", "tier.move"]

    run(story)


def combined(upload: Upload, parts: Any, numbers: list[int]) -> assembly.Combined:
    size = sum(parts[n].size for n in numbers)
    return assembly.Combined(numbers, f"etag-{len(numbers)}", size, "sha256-tree:x", {}, None, b"r", lambda v: f"<{v}>")


def test_multipart_moves_no_byte(run: Any) -> None:
    async def story(w: World) -> None:
        b = await new_bucket(w.pool)
        up = await w.uploads.create(b, b"m", b.owner.id, b.owner.id, Attributes(), None, None, None)
        for number, data in ((1, b"aaa"), (2, b"bb"), (7, b"c"), (2, b"BB")):
            await w.uploads.put_part(
                up, PartRow(number, len(data), f"e{number}", sha256(data)), Inline(data, sha256(data))
            )
        done = await assembly.complete_upload(
            w.completions, b, b"m", up.upload_id, lambda u, p: combined(u, p, [1, 2]), condition=None, mode="async"
        )
        assert done.document == "<None>"
        await w.decide(done)
        resolved = await w.versions.resolve(b, b"m")
        reader = await w.blobs.open(resolved)
        assert b"".join([chunk async for chunk in reader]) == b"aaaBB"
        part = await w.versions.part(done.ref, 2)
        assert part is not None and (part.start, part.size) == (3, 2)
        repeat = await w.uploads.completed(b, b"m", up.upload_id)
        assert repeat is not None and repeat.document == "<None>" and repeat.ref == done.ref
        with pytest.raises(NoSuchUpload):
            await w.uploads.abort(b, b"m", up.upload_id)
        await w.collector.collect()
        assert await rows(w, "blob") == 2  # the replaced part and the one left out are gone
        assert await rows(w, "part") == 0

    run(story)


def test_a_check_that_fails_leaves_the_upload_as_it_was(run: Any) -> None:
    async def story(w: World) -> None:
        b = await new_bucket(w.pool)
        up = await w.uploads.create(b, b"m", b.owner.id, b.owner.id, Attributes(), None, None, None)
        await w.uploads.put_part(up, PartRow(1, 3, "e", b"s"), Inline(b"aaa", b"s"))

        def refuse(upload: Upload, parts: Any) -> assembly.Combined:
            raise ValueError("wrong etag")

        with pytest.raises(ValueError, match="wrong etag"):
            await assembly.complete_upload(w.completions, b, b"m", up.upload_id, refuse, condition=None, mode="async")
        assert await rows(w, "head") == 0
        assert (await w.uploads.get(b, b"m", up.upload_id)).upload_id == up.upload_id
        await w.uploads.abort(b, b"m", up.upload_id)
        await w.collector.collect()
        assert await rows(w, "blob") == 0

    run(story)


def test_waiting_is_woken_by_the_verdict(run: Any) -> None:
    async def story(w: World) -> None:
        b = await new_bucket(w.pool)
        done = await w.put(b, b"k", b"x")
        assert not await w.waiting.decided(done.ref, 1, 0.01)
        waiter = asyncio.create_task(w.waiting.decided(done.ref, 1, 20))
        while not len(w.waiting):
            await asyncio.sleep(0)
        await w.decide(done)
        assert await asyncio.wait_for(waiter, 1)

    run(story)


def test_the_chosen_pipeline_goes_with_the_run(run: Any) -> None:
    async def story(w: World) -> None:
        b = await new_bucket(w.pool)
        done = await w.put(b, b"k", b"x")
        assert done.run_id is not None and w.engine.runs[done.run_id].pipeline == "chosen"

    run(story, pipeline="chosen")


def test_what_was_let_through_unscanned_is_scanned_later(run: Any) -> None:
    """B169: allow is no verdict: it is lent to nobody, goes with no copy, and is looked at again."""

    async def story(w: World) -> None:
        b = await new_bucket(w.pool)
        scan = {"scan": {"scanned": False, "reason": "unreachable", "allowed": True, "rescan": True}}
        one = await w.put(b, b"k", b"x")
        await w.decide(one, found=scan)
        assert await w.read(b, b"k") == "ready:x"
        assert (await w.put(b, b"k2", b"x")).state is State.SCANNING
        assert (await w.put(b, b"k3", b"x", source=Shared(one.ref))).state is State.SCANNING
        assert await w.review.rescan() == 0  # not yet
        await w.pool.execute("UPDATE rescan SET due_at = now()")
        assert await w.review.rescan() == 1
        assert await rows(w, "rescan") == 0
        generation, run_id = await w.pool.fetchrow("SELECT generation, run_id FROM version WHERE key = 'k'")  # type: ignore[misc]
        assert generation == 2 and w.engine.runs[run_id].input == {"generation": 2, "from": int(State.READY)}
        assert await w.read(b, b"k") == "ready:x"  # served meanwhile

    run(story)


def test_quarantine_has_a_retention(run: Any) -> None:
    async def story(w: World) -> None:
        b = await new_bucket(w.pool)
        await w.decide(await w.put(b, b"k", b"evil"), Verdict.QUARANTINED, "malware")
        assert await w.review.expire() == 0
        await w.pool.execute("UPDATE version SET modified = now() - interval '2 hours'")
        assert await w.review.expire() == 1
        assert await rows(w, "version") == await rows(w, "head") == 0

    run(story)


def test_a_later_run_fills_what_was_left_out(run: Any) -> None:
    async def story(w: World) -> None:
        b = await new_bucket(w.pool)
        done = await w.put(b, b"k", b"x")
        left_out = {"a": 1, "degraded": {"extract_text": "extract-failed", "embed_text": "embed-failed"}}
        await w.decide(done, found=left_out)
        for step, rest in (("extract_text", {"embed_text": "embed-failed"}), ("embed_text", None)):
            outcome = Outcome(
                99,
                "post_upload.fill",
                subject(done.ref),
                RunState.COMPLETED,
                processing={step: "done"},
                fills=(step,),
            )
            async with w.pool.acquire() as conn, conn.transaction():
                await w.subjects.settle(conn, [outcome])
            resolved = await w.versions.resolve(b, b"k")
            assert resolved.version is not None and resolved.version.state is State.READY
            assert resolved.version.processing.get("degraded") == rest
            assert resolved.version.processing[step] == "done" and resolved.version.processing["a"] == 1

    run(story)


def test_previous_while_scanning_tells_of_what_is_newer(run: Any) -> None:
    async def story(w: World) -> None:
        b = await new_bucket(w.pool)
        await w.decide(await w.put(b, b"k", b"good"))
        later = await w.put(b, b"k", b"evil")
        resolved = await w.versions.resolve(b, b"k", prefer_ready=True)
        assert resolved.inline == b"good" and resolved.newer is None
        await w.decide(later, Verdict.QUARANTINED, "malware")
        resolved = await w.versions.resolve(b, b"k", prefer_ready=True)
        assert resolved.inline == b"good"
        assert (resolved.newer, resolved.newer_run) == (State.QUARANTINED, later.run_id)

    run(story)
