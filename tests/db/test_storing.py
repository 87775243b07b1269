"""The short ways: a plain write, and an end with nothing against it, each in one statement."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from gateway.db.completion import SCANNING_ROWS, Completed, Completion
from gateway.db.errors import BucketGone, StagingLost, Unknown
from gateway.db.insertion import Inline, Staged
from gateway.db.storing import Storing, plain
from gateway.domain.ids import blob_id
from gateway.domain.objects import Attributes, Bucket, State, WriteCondition
from processing import store
from processing.births import Prepared
from processing.model import Finish, Outcome, RunState, Verdict
from processing.ports import Ending
from tests.db.rows import new_bucket
from tests.db.world import World, world

VERSIONING = {"off": 0, "enabled": 1, "suspended": 2}


@pytest.fixture
def run(dsn: str) -> Callable[..., Any]:
    def go(story: Callable[[World], Awaitable[Any]], **more: Any) -> Any:
        async def main() -> Any:
            async with world(dsn, **more) as w:
                return await story(w)

        return asyncio.run(main())

    return go


def storing(w: World, pool: Any = None, fingerprint: str | None = "fp") -> Storing:
    return Storing(pool or w.pool, w.engine, choose=w.choose, verdict_ttl=3600.0, most=SCANNING_ROWS)


async def staged(w: World, c: Completion, state: int = 1) -> Completion:
    blob = blob_id()
    await w.pool.execute("INSERT INTO blob (id, state, tier) VALUES ($1, $2, 'standard')", blob, state)
    assert isinstance(c.source, Inline)
    return replace(c, source=Staged(blob, "standard", c.source.sha256))


@asynccontextmanager
async def held(w: World, bucket: Bucket, key: bytes) -> AsyncIterator[None]:
    """Another transaction has the key's head."""
    async with w.pool.acquire() as conn, conn.transaction():
        locked = "SELECT true FROM head WHERE bucket_id = $1 AND key = $2 FOR UPDATE"
        assert await conn.fetchval(locked, bucket.id, key)
        yield


@pytest.mark.parametrize("versioning", VERSIONING)
def test_what_is_stored_is_what_the_long_way_stores(run: Any, versioning: str) -> None:
    """Heads, versions, blobs and runs of both ways are alike, for new keys and for overwritten ones."""

    async def story(w: World) -> None:
        b = await new_bucket(w.pool)
        await w.pool.execute("UPDATE bucket SET versioning = $2 WHERE id = $1", b.id, VERSIONING[versioning])
        attributes = Attributes(
            content_type="text/plain", headers={"cache-control": "x"}, metadata={"a": "b"}, tags={"t": "v"}
        )
        for data in (b"one", b"", b"two"):
            short = w.completion(b, b"short", data, attributes=attributes, mode="sync")
            (one,) = await storing(w).store([short])
            assert isinstance(one, Completed)
            async with w.pool.acquire() as conn, conn.transaction():
                written = await w.completions.write(conn, [replace(short, key=b"long")])
            (two,) = written.results
            assert isinstance(two, Completed)
            assert (one.state, one.code) == (two.state, two.code) == (State.SCANNING, None)
            assert one.version_id == {"off": None, "enabled": one.ref.version_id, "suspended": "null"}[versioning]
            assert (one.version_id is None) == (two.version_id is None)
            assert one.run_id is not None and w.engine.runs[one.run_id].subject is not None
            assert w.engine.runs[one.run_id].run_key.startswith(f"post:{one.ref.version_id}:sha256:")
        await w.pool.execute("UPDATE version SET run_id = NULL")
        # What has to differ: names, sequences, moments, and the ids of blobs.
        head = "SELECT to_jsonb(h) - '{key,seq,current_seq,modified}'::text[] FROM head h WHERE key = $1"
        assert await w.pool.fetchval(head, b"short") == await w.pool.fetchval(head, b"long")
        version = """SELECT to_jsonb(v) - '{key,seq,rnd,modified,blob}'::text[] || jsonb_build_object(
                            'inline', (SELECT encode(bytes, 'escape') FROM blob WHERE id = v.blob),
                            'blob', (SELECT to_jsonb(l) - '{id,created_at}'::text[] FROM blob l WHERE l.id = v.blob))
                       FROM version v WHERE key = $1 ORDER BY seq"""
        shorts = [row[0] for row in await w.pool.fetch(version, b"short")]
        assert shorts == [row[0] for row in await w.pool.fetch(version, b"long")]
        assert [each["inline"] for each in shorts] == ["one", None, "two"]

    run(story, fingerprint="fp")


@pytest.mark.parametrize(("room", "calm"), [(True, True), (True, False), (False, True)])
def test_runs_of_the_short_way_are_those_of_the_engine(run: Any, room: bool, calm: bool) -> None:
    """Born claimed where there is room and nobody waits anywhere, else in line, which is then looked at."""

    async def story(w: World) -> None:
        b = await new_bucket(w.pool)
        token = uuid4() if room else None
        definition: Any = SimpleNamespace(lane="lane", fingerprint="definition")

        async def prepare(wishes: Any) -> Prepared:
            return Prepared([definition] * len(wishes), [token] * len(wishes), 7 if room else None, int(room))

        w.engine.births.prepare = prepare
        newest = "SELECT to_jsonb(r) - '{run_id,run_at,created_at}'::text[] FROM workflow_run r ORDER BY run_id DESC"
        lines = "SELECT tenant, lane, active FROM tenant_q ORDER BY 1, 2"

        async def quiet() -> None:
            await w.pool.execute("DELETE FROM tenant_q")
            if not calm:
                await w.pool.execute("INSERT INTO tenant_q (tenant, lane, active) VALUES (999, '', true)")

        await quiet()
        (done,) = await storing(w).store([w.completion(b, b"k", b"x")])
        assert isinstance(done, Completed) and done.run_id is not None
        short, activated = await w.pool.fetchval(newest), await w.pool.fetch(lines)
        await w.pool.execute("DELETE FROM workflow_run")
        await quiet()
        wanted = w.engine.runs[done.run_id]
        async with w.pool.acquire() as conn, conn.transaction():
            await store.enqueue(conn, [wanted], ["lane"], ["definition"], [token], 7 if room else None)
        long = await w.pool.fetchval(newest)
        assert (short.pop("started_at") is None) == (long.pop("started_at") is None)
        assert short == long
        assert short["state"] == (RunState.RUNNING if room and calm else RunState.PENDING)
        assert activated == await w.pool.fetch(lines)

    run(story)


def test_each_object_of_a_flight_has_its_own_fate(run: Any) -> None:
    async def story(w: World) -> None:
        b = await new_bucket(w.pool)
        gone = replace(b, id=b.id + 1_000_000)
        await w.put(b, b"held", b"1")
        lent = await w.put(b, b"lent", b"known content")
        await w.decide(lent)
        for n in range(SCANNING_ROWS):
            await w.put(b, b"crowd", b"%d" % n)
        flight = [
            w.completion(gone, b"k", b"of no bucket"),
            w.completion(b, b"held", b"2"),
            w.completion(b, b"lent", b"known content"),
            w.completion(b, b"crowd", b"too many"),
            await staged(w, w.completion(b, b"staged", b"whole")),
            await staged(w, w.completion(b, b"deleting", b"collected meanwhile"), state=3),
            await staged(w, w.completion(b, b"held too", b"3")),
            w.completion(b, b"plain", b"4"),
        ]
        await w.put(b, b"held too", b"0")
        async with held(w, b, b"held"), held(w, b, b"held too"):
            results = await storing(w).store(flight)
        assert [type(result).__name__ for result in results] == [
            "BucketGone", "Skipped", "NoneType", "NoneType", "Completed", "StagingLost", "Skipped", "Completed",
        ]  # fmt: skip
        stored = [result for result in results if isinstance(result, Completed)]
        assert [result.ref.key for result in stored] == [b"staged", b"plain"]
        for result in stored:
            assert await w.pool.fetchval("SELECT run_id FROM version WHERE key = $1", result.ref.key) == result.run_id
        states = {
            row["id"]: row["state"] for row in await w.pool.fetch("SELECT id, state FROM blob WHERE tier <> 'inline'")
        }
        blobs = [c.source.blob for c in flight if isinstance(c.source, Staged)]
        assert [states[blob] for blob in blobs] == [2, 3, 1], "live, untouched, still staged"
        heads = {row["key"] for row in await w.pool.fetch("SELECT key FROM head")}
        assert heads == {b"held", b"lent", b"crowd", b"staged", b"held too", b"plain"}, "none without a version"

        # The whole of it: what was left alone goes the long way, what was held waits for its lock.
        answers = await asyncio.gather(*[w.completions.complete(c) for c in flight], return_exceptions=True)
        assert isinstance(answers[0], BucketGone) and isinstance(answers[5], StagingLost)
        assert isinstance(answers[2], Completed) and answers[2].state is State.READY
        assert all(isinstance(answers[i], Completed) for i in (1, 3, 6, 7))

    run(story)


def test_conditions_parts_and_copies_are_not_plain(run: Any) -> None:
    async def story(w: World) -> None:
        b = await new_bucket(w.pool)
        c = w.completion(b, b"k", b"x")
        assert plain(c)
        assert not plain(replace(c, condition=WriteCondition(if_none_match=("*",))))

    run(story)


class Deaf:
    """A pool whose connections are lost after they have done what they were told."""

    def __init__(self, pool: asyncpg.Pool, does: bool) -> None:
        self._pool, self._does = pool, does
        self.fetch = pool.fetch

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[Any]:
        async with self._pool.acquire() as conn:
            deaf = self

            class Connection:
                async def fetch(self, *arguments: Any) -> Any:
                    if deaf._does:
                        await conn.fetch(*arguments)
                    raise asyncpg.ConnectionDoesNotExistError("gone")

            yield Connection()


@pytest.mark.parametrize("does", [True, False])
def test_an_answer_that_is_lost_is_looked_up(run: Any, does: bool) -> None:
    """What was committed is answered as stored; of the rest nobody says that it was not."""

    async def story(w: World) -> None:
        b = await new_bucket(w.pool)
        (result,) = await storing(w, Deaf(w.pool, does)).store([w.completion(b, b"k", b"x")])
        if not does:
            assert isinstance(result, Unknown)
            return
        assert isinstance(result, Completed)
        row = await w.pool.fetchrow("SELECT seq, rnd, run_id FROM version WHERE key = 'k'")
        assert row is not None and (result.ref.seq, result.ref.rnd, result.run_id) == tuple(row)

    run(story)


def test_flights_that_create_the_same_keys_wait_for_each_other_in_one_order(run: Any) -> None:
    """Two hundred flights over the same new keys, each in an order of its own: no deadlock, and each is stored."""

    async def story(w: World) -> None:
        b = await new_bucket(w.pool)
        keys = [b"%d" % n for n in range(5)]

        async def fly(turn: int) -> list[Any]:
            order = keys[turn % 5 :] + keys[: turn % 5]
            return await storing(w).store([w.completion(b, key, b"%d" % turn) for key in order])

        results = [result for batch in await asyncio.gather(*[fly(turn) for turn in range(200)]) for result in batch]
        names = {type(result).__name__ for result in results}
        assert names <= {"Completed", "Skipped", "NoneType"} and len(results) == 1000
        assert await w.pool.fetchval("SELECT count(*) FROM head WHERE current_seq IS NULL") == 0

    run(story)


# --- ends ------------------------------------------------------------------------------------------------------------


async def started(w: World, done: Completed) -> UUID:
    token = uuid4()
    await w.pool.execute(
        "UPDATE workflow_run SET state = 2, lease_token = $2, worker_id = 1 WHERE run_id = $1", done.run_id, token
    )
    return token


def finish(w: World, done: Completed, token: UUID, found: Any = None) -> Finish:
    assert done.run_id is not None
    outcome = Outcome(
        done.run_id,
        "post_upload",
        w.engine.runs[done.run_id].subject,
        RunState.COMPLETED,
        Verdict.READY,
        processing=found or {"sniffed_type": "text/plain"},
        input={"generation": 1},
    )
    return Finish(done.run_id, token, (), (), outcome=outcome, output='{"verdict":"ready"}')


def test_each_end_of_a_flight_has_its_own_fate(run: Any) -> None:
    async def story(w: World) -> None:
        b = await new_bucket(w.pool)
        done = {name: await w.put(b, name.encode(), name.encode()) for name in ("plain", "stale", "held", "gone")}
        done["cold"] = await w.put(b, b"cold", b"cold", attributes=Attributes(storage_class="GLACIER"))
        older = await w.put(b, b"over", b"older over")
        await w.decide(older)
        done["over"] = await w.put(b, b"over", b"newer over")
        await w.put(b, b"soon", b"older soon")  # awaits its own verdict
        done["soon"] = await w.put(b, b"soon", b"newer soon")
        done["late"] = await w.put(b, b"late", b"older late")
        await w.decide(await w.put(b, b"late", b"newer late"))
        again = await w.put(b, b"busy", b"older busy")
        await w.decide(again)
        await w.pool.execute("UPDATE workflow_run SET state = 1, finished_at = NULL WHERE run_id = $1", again.run_id)
        done["busy"] = await w.put(b, b"busy", b"newer busy")
        done["rescan"] = await w.put(b, b"rescan", b"rescan")
        tokens = {name: await started(w, each) for name, each in done.items()}
        tokens["stale"] = uuid4()
        await w.pool.execute("DELETE FROM version WHERE key = 'gone'")
        finishes = [
            finish(w, each, tokens[name], {"scan": {"rescan": True}} if name == "rescan" else None)
            for name, each in done.items()
        ]
        async with held(w, b, b"held"), w.pool.acquire() as conn:
            endings = await w.subjects.end_ready(conn, finishes)
        assert {name: endings.get(each.run_id or 0) for name, each in done.items()} == {
            "plain": Ending.ENDED,
            "stale": Ending.LOST,
            "held": Ending.LATER,
            "gone": Ending.LEFT,
            "cold": Ending.LEFT,  # it moves to another tier
            "over": Ending.ENDED,  # an older version goes
            "soon": Ending.LEFT,  # a run ends with it
            "late": Ending.LEFT,  # it is gone itself
            "busy": Ending.LEFT,  # the older one is looked at anew
            "rescan": None,  # not even asked
        }
        states = {
            row["key"]: row["state"]
            for row in await w.pool.fetch("SELECT key, state FROM version WHERE key NOT IN ('soon', 'busy', 'late')")
        }
        assert states == {b"plain": 2, b"over": 2, b"stale": 1, b"held": 1, b"cold": 1, b"rescan": 1}
        runs = dict(await w.pool.fetch("SELECT run_id, state FROM workflow_run"))
        assert {name: runs[each.run_id] for name, each in done.items()} == {
            **dict.fromkeys(done, 2),
            "plain": 4,
            "over": 4,
        }
        assert await w.read(b, b"plain") == "ready:plain"
        # What it remembers is what the long way would look for.
        assert (await w.put(b, b"again", b"plain")).state is State.READY

    run(story)


@pytest.mark.parametrize("versioning", VERSIONING)
@pytest.mark.parametrize("kind", ["inline", "staged", "empty", "allowed"])
def test_what_is_handed_to_a_run_is_what_it_would_find(run: Any, versioning: str, kind: str) -> None:
    async def story(w: World) -> None:
        b = await new_bucket(w.pool)
        await w.pool.execute("UPDATE bucket SET versioning = $2 WHERE id = $1", b.id, VERSIONING[versioning])
        attributes = Attributes(content_type="text/plain", metadata={"a": "b"}, storage_class="GLACIER")
        data = b"" if kind == "empty" else b"data"
        first = w.completion(b, b"k", data, attributes=attributes)
        if kind == "staged":
            first = await staged(w, first)
        if kind == "allowed":
            await w.pool.execute(
                "INSERT INTO allowed_digest (account_id, digest, who, why) VALUES ($1, $2, 'x', 'y')",
                b.owner.id,
                first.digest,
            )
        other = w.completion(b, b"other", b"something else")
        results = await storing(w).store([other, first])
        done = results[1]
        assert isinstance(done, Completed) and done.run_id is not None
        handed = w.engine.births.contents[done.run_id]
        assert handed == await w.subjects.load(handed.subject)
        assert handed.allowed is (kind == "allowed")
        assert handed.data == (None if kind == "staged" else data)
        assert handed.data is None or handed.data == b"".join([chunk async for chunk in w.subjects.open(handed)])

    run(story)


def test_an_overwrite_ends_as_by_the_long_way(run: Any) -> None:
    """The older version goes with its text and pieces, and every byte of it to the collector; quarantined ones stay."""

    async def story(w: World) -> None:
        b = await new_bucket(w.pool)
        ends = {}
        for key in (b"short", b"long"):
            bad = await w.put(b, key, b"bad " + key)
            await w.decide(bad, Verdict.QUARANTINED)
            older = await w.put(b, key, b"older " + key)
            await w.decide(older)
            blobs = [blob_id() for _ in range(3)]
            await w.pool.execute(
                "INSERT INTO blob (id, state, tier, size) SELECT u, 2, 'standard', 1 FROM unnest($1::uuid[]) u", blobs
            )
            row = (b.id, key, older.ref.seq)
            await w.pool.execute("INSERT INTO sidecar VALUES ($1, $2, $3, 'text', $4, 1)", *row, blobs[0])
            await w.pool.execute("INSERT INTO extent VALUES ($1, $2, $3, 0, 0, $4, 0, 1)", *row, blobs[1])
            await w.pool.execute("INSERT INTO version_part VALUES ($1, $2, $3, 1, 0, 1, 'e')", *row)
            await w.pool.execute("UPDATE version SET restored_blob = $4 WHERE (bucket_id, key, seq) = ($1, $2, $3)",
                                 *row, blobs[2])  # fmt: skip
            newer = await w.put(b, key, b"newer " + key)
            if key == b"short":
                async with w.pool.acquire() as conn:
                    end = finish(w, newer, await started(w, newer))
                    assert await w.subjects.end_ready(conn, [end]) == {newer.run_id: Ending.ENDED}
            else:
                await w.decide(newer)
            ends[key] = {
                "versions": [
                    tuple(row)
                    for row in await w.pool.fetch("SELECT state, etag IS NULL FROM version WHERE key = $1"
                                                  " ORDER BY seq", key)
                ],
                "left": await w.pool.fetchval(
                    "SELECT (SELECT count(*) FROM extent) + (SELECT count(*) FROM sidecar)"
                    " + (SELECT count(*) FROM version_part)"
                ),
                "queued": sorted(
                    tuple(row)
                    for row in await w.pool.fetch(
                        "SELECT b.tier, q.due_at > now() + interval '1 minute' FROM blob_queue q JOIN blob b"
                        " ON b.id = q.blob"
                    )
                ),
            }  # fmt: skip
            await w.pool.execute("DELETE FROM blob_queue")
            assert await w.read(b, key) == f"ready:newer {key.decode()}"
        assert ends[b"short"] == ends[b"long"]
        assert [state for state, _ in ends[b"short"]["versions"]] == [3, 2]
        assert (ends[b"short"]["left"], len(ends[b"short"]["queued"])) == (0, 4)

    run(story)


def test_an_end_that_is_written_twice_is_written_once(run: Any) -> None:
    async def story(w: World) -> None:
        b = await new_bucket(w.pool)
        done = await w.put(b, b"k", b"x")
        end = finish(w, done, await started(w, done))
        async with w.pool.acquire() as conn:
            assert await w.subjects.end_ready(conn, [end]) == {done.run_id: Ending.ENDED}
            before = await conn.fetchrow("SELECT * FROM version")
            assert await w.subjects.end_ready(conn, [end]) == {done.run_id: Ending.LOST}
            assert await conn.fetchrow("SELECT * FROM version") == before

    run(story)
