"""Pages of listings: against a model over random keys, and the cases that other servers got wrong."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.db.listing import CommonPrefix, Listing, Page, UploadEntry, VersionEntry, first_key, group, past
from gateway.db.pool import open_pool
from gateway.domain.listed import Entry
from gateway.domain.objects import Bucket, State
from tests.db.rows import Row, new_bucket, put, put_heads, put_part, put_upload, with_pool

READY, SCANNING, MARKER, FAILED, HELD = State.READY, State.SCANNING, State.MARKER, State.FAILED, State.QUARANTINED
MODEL = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])

# Few letters, so that groups, prefixes and markers meet; 0x00, 0x7f and 0xff are where successors go wrong.
letters = st.sampled_from(
    [b"a", b"a", b"b", b"/", b"/", b"\x00", b"\x7f", "é".encode(), "\U0001f600".encode(), b"\xff"]
)
text = st.lists(letters, max_size=4).map(b"".join)
keys = st.sets(text.filter(bool), min_size=1, max_size=14)


@dataclass(frozen=True)
class Question:
    """What one listing asks for. limit is small, so that pages end everywhere."""

    prefix: bytes
    after: bytes
    delimiter: bytes
    limit: int


def questions(names: Iterable[bytes]) -> st.SearchStrategy[list[Question]]:
    """Questions whose prefix and marker are mostly made of pieces of the names there are."""
    pieces = st.builds(lambda name, end: name[:end], st.sampled_from(sorted(names)), st.integers(0, 8))
    return st.lists(
        st.builds(
            Question,
            st.one_of(st.just(b""), pieces, text),
            st.one_of(st.just(b""), pieces, st.builds(bytes.__add__, pieces, text), text),
            st.one_of(st.just(b""), st.just(b"/"), letters, st.builds(bytes.__add__, letters, letters)),
            st.integers(1, 5),
        ),
        min_size=8,
        max_size=8,
    )


class Database:
    """One pool for all examples of a test: most of an example's time would go into connecting."""

    def __init__(self, dsn: str) -> None:
        self.runner = asyncio.Runner()
        self.pool = self.runner.run(open_pool(dsn, 2))

    def run(self, work: Callable[[asyncpg.Pool], Coroutine[Any, Any, None]]) -> None:
        self.runner.run(work(self.pool))

    def close(self) -> None:
        self.runner.run(self.pool.close())
        self.runner.close()


@pytest.fixture(scope="module")
def database(worker_dsn: str) -> Iterator[Database]:
    made = Database(worker_dsn)
    yield made
    made.close()


def names(page: Page[Entry] | Page[VersionEntry] | Page[UploadEntry]) -> list[bytes]:
    return [entry.name for entry in page.entries]


def model(keys: set[bytes], prefix: bytes, after: bytes, delimiter: bytes) -> list[bytes]:
    """What the whole rest of a listing is: the sorted entries behind the marker."""
    entries = {group(prefix, key, delimiter) or key for key in keys if key.startswith(prefix)}
    return sorted(entry for entry in entries if entry > after)


# --- objects -----------------------------------------------------------------------------------------------------


@MODEL
@given(keys, keys, st.data())
def test_objects_page_is_what_the_model_says(
    database: Database, shown: set[bytes], hidden: set[bytes], data: st.DataObject
) -> None:
    asked = data.draw(questions(shown | hidden))

    async def main(pool: asyncpg.Pool) -> None:
        bucket, listing = await new_bucket(pool), Listing(pool)
        await put_heads(pool, bucket, list(shown))
        await put_heads(pool, bucket, list(hidden - shown), listable=False)
        for q in asked:
            expected = model(shown, q.prefix, q.after, q.delimiter)
            seen: list[bytes] = []
            after = q.after
            while True:
                page = await listing.objects(
                    bucket.id, prefix=q.prefix, after=after, delimiter=q.delimiter, limit=q.limit
                )
                seen += names(page)
                assert page.truncated == (len(seen) < len(expected)), q
                for entry in page.entries:
                    rolled_up = group(q.prefix, entry.name, q.delimiter) is not None
                    assert isinstance(entry, CommonPrefix) == rolled_up, q
                if not page.truncated:
                    break
                assert len(page.entries) == q.limit
                assert page.last is not None
                after = page.last
            assert seen == expected, q

    database.run(main)


def listed(dsn: str, keys: list[bytes], *pages: dict[str, object]) -> list[Page[Entry]]:
    async def main(pool: asyncpg.Pool) -> list[Page[Entry]]:
        bucket = await new_bucket(pool)
        await put_heads(pool, bucket, keys)
        return [await Listing(pool).objects(bucket.id, **page) for page in pages]  # type: ignore[arg-type]

    return with_pool(dsn, main)


async def all_pages(listing: Listing, bucket: Bucket, limit: int, **how: Any) -> list[Page[Entry]]:
    pages = [await listing.objects(bucket.id, limit=limit, **how)]
    while pages[-1].truncated:
        last = pages[-1].last
        assert last is not None
        pages.append(await listing.objects(bucket.id, limit=limit, **{**how, "after": last}))
    return pages


def test_a_page_that_ends_with_the_last_key_is_the_last_page(worker_dsn: str) -> None:
    """B059"""

    async def main(pool: asyncpg.Pool) -> None:
        listing, bucket = Listing(pool), await new_bucket(pool)
        await put_heads(pool, bucket, [b"a", b"b", b"c"])
        pages = await all_pages(listing, bucket, 1)
        assert [names(page) for page in pages] == [[b"a"], [b"b"], [b"c"]]
        assert [page.truncated for page in pages] == [True, True, False]
        await put_heads(pool, bucket, [b"k%04d" % i for i in range(997)])
        assert [len(page.entries) for page in await all_pages(listing, bucket, 1000)] == [1000]
        await put_heads(pool, bucket, [b"z"])
        assert [len(page.entries) for page in await all_pages(listing, bucket, 1000)] == [1000, 1]

    with_pool(worker_dsn, main)


@pytest.mark.parametrize(
    ("delimiter", "prefix"), [(b"/", b"p/"), (b"/1", b"p"), (b"/", b"p"), (b"p/", b""), (b"p/", b"p/")]
)
def test_a_group_is_listed_once_however_small_the_page(worker_dsn: str, delimiter: bytes, prefix: bytes) -> None:
    """B065"""
    keys = [b"p/1/%04d" % i for i in range(2500)] + [b"p/2/%d" % i for i in range(10)] + [b"p/3"]

    async def main(pool: asyncpg.Pool) -> None:
        bucket = await new_bucket(pool)
        await put_heads(pool, bucket, keys)
        expected = model(set(keys), prefix, b"", delimiter)
        pages = await all_pages(
            Listing(pool), bucket, 1 if len(expected) < 10 else 500, prefix=prefix, delimiter=delimiter
        )
        assert [name for page in pages for name in names(page)] == expected

    with_pool(worker_dsn, main)


def test_a_marker_inside_a_group_has_the_group_behind_it(worker_dsn: str) -> None:
    """B065"""
    keys = [b"p/1/a", b"p/1/z", b"p/2/a"]
    page, before, again, whole = listed(
        worker_dsn,
        keys,
        {"prefix": b"p/", "delimiter": b"/", "after": b"p/1/m"},
        {"prefix": b"p/", "delimiter": b"/", "after": b"p/1"},
        {"prefix": b"p/", "delimiter": b"/", "after": b"p/1/m", "reenter": True},
        {"prefix": b"p/", "delimiter": b"/", "after": b"p/1/", "reenter": True},
    )
    assert names(page) == names(whole) == [b"p/2/"]
    assert names(before) == names(again) == [b"p/1/", b"p/2/"]


def test_a_leading_slash_is_a_group_of_its_own(worker_dsn: str) -> None:
    """B157"""
    root, below, leaf = listed(
        worker_dsn,
        [b"/dev/x"],
        {"delimiter": b"/"},
        {"delimiter": b"/", "prefix": b"/"},
        {"delimiter": b"/", "prefix": b"/dev/"},
    )
    assert (root.prefixes, below.prefixes, [e.key for e in leaf.items]) == ([b"/"], [b"/dev/"], [b"/dev/x"])


def test_order_is_that_of_bytes(worker_dsn: str) -> None:
    """B067"""
    keys = [
        k.encode()
        for k in ("B", "a", "_", "a-b", "a/b", "aB", "é", "z", "\uffff", "\U00010000", "a\x00", "R&D <x> \"q\" 'a'")
    ]
    (page,) = listed(worker_dsn, keys, {})
    assert names(page) == sorted(keys)


def test_an_entry_says_what_the_head_says(worker_dsn: str) -> None:
    async def main(pool: asyncpg.Pool) -> None:
        bucket = await new_bucket(pool)
        await put(pool, bucket, b"k", Row(READY), etag="abc-2", size=7)
        (entry,) = (await Listing(pool).objects(bucket.id)).items
        assert (entry.etag, entry.size, entry.storage_class) == ("abc-2", 7, "STANDARD")
        assert (entry.checksum, entry.checksum_type) == ("crc32", "FULL_OBJECT")
        assert entry.owner is not None
        assert entry.owner.canonical_id == bucket.owner.canonical_id
        assert entry.owner.display_name == bucket.owner.display_name

    with_pool(worker_dsn, main)


def test_an_empty_page_is_asked_for_with_zero(worker_dsn: str) -> None:
    (page,) = listed(worker_dsn, [b"a"], {"limit": 0})
    assert (page.entries, page.truncated, page.last) == ([], False, None)


def test_cost_follows_the_page_and_not_the_bucket(worker_dsn: str) -> None:
    """Buffers touched by a page are the same in a bucket a hundred times larger, group by group and key by key."""
    none, stop, slash = "''::bytea", r"'\xff'::bytea", "'/'::bytea, '0'::bytea"
    walks = {
        "keys": f"list_objects({{bucket}}, {none}, {stop}, 20, 0, {none}, {none}, true)",
        "groups": f"list_objects({{bucket}}, {none}, {stop}, 20, 0, {slash}, true)",
        "versions": f"list_versions({{bucket}}, {none}, {stop}, 20, 0, {none}, {none}, NULL, false)",
        "groups of versions": f"list_versions({{bucket}}, {none}, {stop}, 20, 0, {slash}, NULL, false)",
        "uploads": f"list_uploads({{bucket}}, {none}, '', {stop}, 20, 0, {none}, {none})",
        "groups of uploads": f"list_uploads({{bucket}}, {none}, '', {stop}, 20, 0, {slash})",
    }

    async def buffers(pool: asyncpg.Pool, walk: str) -> int:
        async with pool.acquire() as conn:
            await conn.fetch(f"SELECT count(*) FROM {walk}")  # plans are made on first use
            plan = await conn.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT count(*) FROM {walk}")
        root = json.loads(plan)[0]["Plan"]
        return int(root["Shared Hit Blocks"] + root["Shared Read Blocks"])

    async def main(pool: asyncpg.Pool) -> None:
        cost: dict[str, list[int]] = {name: [] for name in walks}
        for size in (20, 400):
            bucket = await new_bucket(pool)
            await put_heads(pool, bucket, [b"a%06d" % i for i in range(size)], listable=False)
            await put_heads(pool, bucket, [b"g%02d/%05d" % (g, i) for g in range(25) for i in range(size)])
            await pool.execute(
                """INSERT INTO version (bucket_id, key, seq, rnd, is_null, state, modified, owner_id)
                   SELECT bucket_id, key, n, 1, false, 2, modified, owner_id FROM head, generate_series(1, 2) n
                    WHERE bucket_id = $1""",
                bucket.id,
            )
            await pool.execute(
                """INSERT INTO upload (bucket_id, key, upload_id, initiated, initiator_id, owner_id, storage_class)
                   SELECT bucket_id, key, 'u', modified, owner_id, owner_id, 'STANDARD' FROM head
                    WHERE bucket_id = $1 AND key > 'b'""",
                bucket.id,
            )
            for name, walk in walks.items():
                cost[name].append(await buffers(pool, walk.format(bucket=bucket.id)))
        for small, large in cost.values():
            assert large <= 2 * small + 40, cost

    with_pool(worker_dsn, main)


# --- versions ----------------------------------------------------------------------------------------------------

version_rows = st.lists(st.tuples(st.sampled_from(State), st.booleans()), min_size=1, max_size=5)


def shown_versions(rows: list[Row]) -> list[Row]:
    """Newest first, with the one null that a read resolves to."""
    nulls = [row for row in rows if row.is_null]
    deciding = [row for row in nulls if row.state in (SCANNING, READY, MARKER)]
    null = max(deciding or nulls, key=lambda row: row.seq, default=None)
    return sorted((row for row in rows if not row.is_null or row is null), key=lambda row: -row.seq)


def current_of(rows: list[Row]) -> Row:
    deciding = [row for row in rows if row.state in (SCANNING, READY, MARKER)]
    return max(deciding or rows, key=lambda row: row.seq)


@MODEL
@given(st.dictionaries(text.filter(bool), version_rows, min_size=1, max_size=6), st.data())
def test_versions_page_is_what_the_model_says(
    database: Database, written: dict[bytes, list[tuple[State, bool]]], data: st.DataObject
) -> None:
    asked = data.draw(questions(written))

    async def main(pool: asyncpg.Pool) -> None:
        bucket, listing = await new_bucket(pool), Listing(pool)
        rows = {key: await put(pool, bucket, key, *(Row(*row) for row in given)) for key, given in written.items()}
        for q in asked:
            expected: list[tuple[bytes, int, bool]] = []
            for name in model(set(rows), q.prefix, q.after, q.delimiter):
                if group(q.prefix, name, q.delimiter) is not None:
                    expected.append((name, 0, False))
                else:
                    current = current_of(rows[name])
                    expected += [(name, row.seq, row is current) for row in shown_versions(rows[name])]
            seen: list[tuple[bytes, int, bool]] = []
            after, marker = q.after, None
            while True:
                page = await listing.versions(
                    bucket.id, prefix=q.prefix, after=after, after_version=marker, delimiter=q.delimiter, limit=q.limit
                )
                assert len(page.entries) <= q.limit
                for e in page.entries:
                    seen.append((e.name, 0, False) if isinstance(e, CommonPrefix) else (e.name, e.ref.seq, e.is_latest))
                if not page.truncated:
                    break
                last = page.entries[-1]
                after, marker = last.name, last_marker(last)
            assert seen == expected, q

    database.run(main)


def last_marker(entry: VersionEntry | CommonPrefix) -> tuple[int, int] | str | None:
    if isinstance(entry, CommonPrefix):
        return None
    return "null" if entry.is_null else (entry.ref.seq, entry.ref.rnd)


def versions_of(dsn: str, rows: list[Row], **how: object) -> list[VersionEntry]:
    async def main(pool: asyncpg.Pool) -> list[VersionEntry]:
        bucket = await new_bucket(pool)
        await put(pool, bucket, b"k", *rows)
        return (await Listing(pool).versions(bucket.id, **how)).items  # type: ignore[arg-type]

    return with_pool(dsn, main)


def test_every_state_is_listed_and_the_current_one_is_latest(worker_dsn: str) -> None:
    rows = [Row(READY, False), Row(MARKER, False), Row(SCANNING, False), Row(HELD, False), Row(FAILED, False)]
    entries = versions_of(worker_dsn, rows)
    assert [entry.state for entry in entries] == [FAILED, HELD, SCANNING, MARKER, READY]
    assert [entry.is_latest for entry in entries] == [False, False, True, False, False]
    assert [entry.is_marker for entry in entries] == [False, False, False, True, False]
    assert entries[0].checksum_algorithms == ("CRC32",)
    assert entries[3].checksum_algorithms == ()


def test_with_only_hidden_versions_the_newest_is_latest(worker_dsn: str) -> None:
    entries = versions_of(worker_dsn, [Row(HELD, False), Row(FAILED, False)])
    assert [(entry.state, entry.is_latest) for entry in entries] == [(FAILED, True), (HELD, False)]


@pytest.mark.parametrize(
    ("states", "shown"),
    [
        ([READY, SCANNING], SCANNING),
        ([READY, HELD, FAILED], READY),
        ([HELD, FAILED, HELD], HELD),
        ([FAILED, MARKER, HELD], MARKER),
        ([READY, SCANNING, FAILED], SCANNING),
    ],
)
def test_one_null_a_key_is_listed(worker_dsn: str, states: list[State], shown: State) -> None:
    (entry,) = versions_of(worker_dsn, [Row(state) for state in states])
    assert (entry.state, entry.version_id, entry.is_latest) == (shown, "null", True)


def test_a_failed_version_that_the_bucket_keeps_current_is_the_null_shown(worker_dsn: str) -> None:
    """when_failed = refuse: the head names a failed version, and that is what reads resolve to."""

    async def main(pool: asyncpg.Pool) -> None:
        bucket = await new_bucket(pool)
        rows = await put(pool, bucket, b"k", Row(READY), Row(FAILED))
        await pool.execute("UPDATE head SET current_seq = $2 WHERE bucket_id = $1", bucket.id, rows[1].seq)
        (entry,) = (await Listing(pool).versions(bucket.id)).items
        assert (entry.state, entry.is_latest) == (FAILED, True)

    with_pool(worker_dsn, main)


def test_a_page_goes_on_inside_a_key_after_any_version_of_it(worker_dsn: str) -> None:
    async def main(pool: asyncpg.Pool) -> None:
        bucket, listing = await new_bucket(pool), Listing(pool)
        rows = await put(pool, bucket, b"k", Row(READY, False), Row(READY), Row(READY, False))
        await put(pool, bucket, b"l", Row(READY, False))

        async def rest(marker: tuple[int, int] | str | None, after: bytes = b"k") -> list[int]:
            page = await listing.versions(bucket.id, after=after, after_version=marker)
            return [entry.ref.seq for entry in page.items if entry.name == b"k"] + [0] * (names(page)[-1:] == [b"l"])

        first, null, last = (row.seq for row in rows)
        assert await rest((last, 1)) == [null, first, 0]
        assert await rest("null") == [first, 0]
        assert await rest((first, 1)) == [0]
        assert await rest((null, 1)) == [first, 0]  # an id that names no version: what is older follows
        assert await rest(None) == [0]
        assert await rest("null", b"j") == [last, null, first, 0]  # no such key: the next one begins
        await pool.execute("DELETE FROM version WHERE bucket_id = $1 AND is_null", bucket.id)
        assert await rest("null") == [last, first, 0]  # gone meanwhile: repeated rather than left out

    with_pool(worker_dsn, main)


# --- uploads and parts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_every_upload_is_listed_once_by_following_both_markers(worker_dsn: str, limit: int) -> None:
    """B071; and an upload that is aborted between two pages does not move the rest."""
    wanted = [(b"a", "id1")] + [(b"k", f"id{i}") for i in range(5)] + [(b"k/x", "id2"), (b"z", "id3")]

    async def main(pool: asyncpg.Pool) -> None:
        bucket, listing = await new_bucket(pool), Listing(pool)
        for key, upload_id in reversed(wanted):
            await put_upload(pool, bucket, key, upload_id)
        page, seen = await listing.uploads(bucket.id, limit=limit), []
        while True:
            seen += [(e.key, e.upload_id) for e in page.items]
            assert all(e.owner and e.initiator and e.owner.id == bucket.owner.id for e in page.items)
            if not page.truncated:
                break
            last = page.items[-1]
            await pool.execute(
                "DELETE FROM upload WHERE bucket_id = $1 AND upload_id = $2 AND key = $3",
                bucket.id,
                last.upload_id,
                last.key,
            )
            page = await listing.uploads(bucket.id, after=last.key, after_upload=last.upload_id, limit=limit)
        assert seen == wanted

    with_pool(worker_dsn, main)


@MODEL
@given(st.sets(st.tuples(text.filter(bool), st.sampled_from(["1", "2", "3"])), min_size=1, max_size=12), st.data())
def test_uploads_page_is_what_the_model_says(
    database: Database, written: set[tuple[bytes, str]], data: st.DataObject
) -> None:
    asked = data.draw(questions(key for key, _ in written))

    async def main(pool: asyncpg.Pool) -> None:
        bucket, listing = await new_bucket(pool), Listing(pool)
        for key, upload_id in written:
            await put_upload(pool, bucket, key, upload_id)
        for q in asked:
            expected: list[tuple[bytes, str]] = []
            for name in model({key for key, _ in written}, q.prefix, q.after, q.delimiter):
                rolled_up = group(q.prefix, name, q.delimiter) is not None
                ids = [""] if rolled_up else sorted(i for key, i in written if key == name)
                expected += [(name, upload_id) for upload_id in ids]
            seen: list[tuple[bytes, str]] = []
            after, marker = q.after, ""
            while True:
                page = await listing.uploads(
                    bucket.id, prefix=q.prefix, after=after, after_upload=marker, delimiter=q.delimiter, limit=q.limit
                )
                seen += [(e.name, "" if isinstance(e, CommonPrefix) else e.upload_id) for e in page.entries]
                if not page.truncated:
                    break
                after, marker = seen[-1]
            assert seen == expected, q

    database.run(main)


def test_without_an_upload_id_marker_the_marker_key_is_passed(worker_dsn: str) -> None:
    async def main(pool: asyncpg.Pool) -> None:
        bucket = await new_bucket(pool)
        for key in (b"a", b"b"):
            await put_upload(pool, bucket, key, "1")
        assert names(await Listing(pool).uploads(bucket.id, after=b"a")) == [b"b"]
        assert names(await Listing(pool).uploads(bucket.id, after=b"a", after_upload="0\x00")) == [b"a", b"b"]

    with_pool(worker_dsn, main)


def test_parts_follow_their_marker_and_their_limit(worker_dsn: str) -> None:
    """B069"""

    async def main(pool: asyncpg.Pool) -> None:
        bucket, listing = await new_bucket(pool), Listing(pool)
        await put_upload(pool, bucket, b"k", "u")
        for number in range(1, 8):
            await put_part(pool, bucket, b"k", "u", number, checksums={"sha256": "x"})
        page = await listing.parts(bucket.id, b"k", "u", after=2, limit=2)
        assert ([e.number for e in page.entries], page.truncated, page.last) == ([3, 4], True, 4)
        assert page.entries[0].checksums == {"sha256": "x"}
        page = await listing.parts(bucket.id, b"k", "u", after=5)
        assert ([e.number for e in page.entries], page.truncated) == ([6, 7], False)
        assert (await listing.parts(bucket.id, b"k", "v")).entries == ()
        assert (await listing.parts(bucket.id, b"k", "u\x00")).entries == ()

    with_pool(worker_dsn, main)


# --- bounds ------------------------------------------------------------------------------------------------------


@given(st.binary(max_size=4), st.binary(max_size=4))
def test_past_is_the_first_string_behind_all_that_begin_alike(stem: bytes, other: bytes) -> None:
    bound = past(stem)
    assert stem + other < bound
    if other >= bound:
        assert not other.startswith(stem)
    if not other.startswith(stem) and other > stem:
        assert other >= bound


def test_first_key_never_lies_before_the_prefix() -> None:
    assert first_key(b"p/", b"a", b"/") == b"p/"
    assert first_key(b"p/", b"", b"/") == b"p/"
    assert first_key(b"", b"a/b", b"") == b"a/b\x00"
    assert first_key(b"", b"a/b", b"/") == b"a0"
