"""Pages of listings: objects, versions, open uploads, parts.

One rule holds for all of them: the entries of a listing are its keys and its common prefixes in byte order, and a page
is the first of those that lie strictly behind the marker. So a marker inside a group has that group behind it, and
following ``last`` neither repeats nor skips. The walks themselves are functions in ``migrations/0003_listing.sql``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from heapq import merge
from itertools import repeat
from operator import attrgetter
from typing import Generic, TypeVar

import asyncpg

from gateway.domain.listed import Entry
from gateway.domain.objects import NULL_ID, Account, State, VersionRef

END = b"\xff" * 1025  # behind every key: keys have at most 1,024 bytes, and UTF-8 has no 0xff


@dataclass(frozen=True, slots=True)
class Owner:
    id: int
    canonical_id: str
    display_name: str


@dataclass(frozen=True, slots=True)
class CommonPrefix:
    """All keys between the prefix and the next delimiter, rolled up into one entry."""

    name: bytes


@dataclass(frozen=True, slots=True)
class VersionEntry:
    """A version or a delete marker of ListObjectVersions, in whatever state."""

    ref: VersionRef
    is_null: bool
    state: State
    is_latest: bool
    etag: str
    size: int
    modified: datetime
    storage_class: str
    checksum_algorithms: tuple[str, ...]
    checksum_type: str | None
    owner: Owner | None

    @property
    def name(self) -> bytes:
        return self.ref.key

    @property
    def version_id(self) -> str:
        return NULL_ID if self.is_null else self.ref.version_id

    @property
    def is_marker(self) -> bool:
        return self.state is State.MARKER


@dataclass(frozen=True, slots=True)
class UploadEntry:
    key: bytes
    upload_id: str
    initiated: datetime
    initiator: Owner | None
    owner: Owner | None
    storage_class: str
    checksum_algorithm: str | None
    checksum_type: str | None

    @property
    def name(self) -> bytes:
        return self.key


@dataclass(frozen=True, slots=True)
class PartEntry:
    number: int
    size: int
    etag: str
    modified: datetime
    checksums: Mapping[str, str]


T = TypeVar("T")
Shown = TypeVar("Shown", Entry, VersionEntry, UploadEntry)


@dataclass(frozen=True, slots=True)
class Page(Generic[Shown]):
    """Items and common prefixes, each in the order of the listing; truncated: more follow the last of both."""

    items: Sequence[Shown]
    prefixes: Sequence[bytes]
    truncated: bool

    @property
    def last(self) -> bytes | None:
        """The name that continues behind this page, for NextMarker, NextKeyMarker and continuation tokens."""
        item = self.last_item
        return item.name if item is not None else self.prefixes[-1] if self.prefixes else None

    @property
    def last_item(self) -> Shown | None:
        """The item that ends the page; None when a common prefix does. Names differ, so the greater one is later."""
        if not self.items or (self.prefixes and self.prefixes[-1] > self.items[-1].name):
            return None
        return self.items[-1]

    @property
    def entries(self) -> list[Shown | CommonPrefix]:
        """Both in one sequence."""
        return list(merge(self.items, map(CommonPrefix, self.prefixes), key=attrgetter("name")))


@dataclass(frozen=True, slots=True)
class PartPage:
    entries: tuple[PartEntry, ...]
    truncated: bool

    @property
    def last(self) -> int | None:
        return self.entries[-1].number if self.entries else None


OBJECTS = "SELECT * FROM list_objects($1, $2, $3, $4, $5, $6, $7, $8)"

VERSIONS = """
SELECT f.*, a.canonical_id, a.display_name
  FROM list_versions($1, $2, $3, $4, $5, $6, $7, $8, $9) WITH ORDINALITY f
  LEFT JOIN account a ON a.id = f.owner_id
 ORDER BY f.ordinality
"""

UPLOADS = """
SELECT f.*, a.canonical_id, a.display_name, i.canonical_id AS initiator, i.display_name AS initiator_name
  FROM list_uploads($1, $2, $3, $4, $5, $6, $7, $8) WITH ORDINALITY f
  LEFT JOIN account a ON a.id = f.owner_id
  LEFT JOIN account i ON i.id = f.initiator_id
 ORDER BY f.ordinality
"""

PARTS = """
SELECT number, size, etag, modified, checksums
  FROM part
 WHERE bucket_id = $1 AND key = $2 AND upload_id = $3 AND number > $4
 ORDER BY bucket_id, key, upload_id, number
 LIMIT $5
"""


class Listing:
    """Every method is one round trip whose cost follows the page, not the bucket. limit 0 is an empty page."""

    def __init__(self, pool: asyncpg.Pool) -> None:
        self._pool = pool

    async def objects(
        self,
        bucket_id: int,
        *,
        prefix: bytes = b"",
        after: bytes = b"",
        delimiter: bytes = b"",
        limit: int = 1000,
        reenter: bool = False,
        owners: bool = True,
    ) -> Page[Entry]:
        """What LIST shows: keys whose current version exists and is no delete marker.

        after is exclusive, a key or a common prefix, empty for the beginning. reenter shows the group around a marker
        that lies inside it, instead of counting it as passed. owners: whether entries name theirs.
        """
        first, stop = first_key(prefix, after, delimiter, reenter), past(prefix)
        if limit <= 0 or first >= stop:
            return Page((), (), False)
        (row,) = await self._pool.fetch(
            OBJECTS, bucket_id, first, stop, limit + 1, len(prefix), delimiter, past(delimiter), owners
        )
        return _cut(_objects(row), row["prefixes"] or [], limit)

    async def versions(
        self,
        bucket_id: int,
        *,
        prefix: bytes = b"",
        after: bytes = b"",
        after_version: tuple[int, int] | str | None = None,
        delimiter: bytes = b"",
        limit: int = 1000,
    ) -> Page[VersionEntry]:
        """Versions and delete markers in every state, by key and newest first; of each key one ``null``.

        after is the key-marker. after_version is the version-id-marker, "null" or what parse_version_id returned:
        the page then begins inside the key ``after``, with what is older than that version. The version itself need
        not exist any more; after a ``null`` that is gone the key begins anew, so that nothing is left out.
        """
        grouped = group(prefix, after, delimiter) is not None
        inside = after_version is not None and not grouped and after.startswith(prefix)
        first, stop = after if inside else first_key(prefix, after, delimiter), past(prefix)
        if limit <= 0 or first >= stop:
            return Page((), (), False)
        rows = await self._pool.fetch(
            VERSIONS,
            bucket_id,
            first,
            stop,
            limit + 1,
            len(prefix),
            delimiter,
            past(delimiter),
            after_version[0] if inside and isinstance(after_version, tuple) else None,
            inside and after_version == NULL_ID,
        )
        owners: dict[int, Owner] = {}
        items = [_version(bucket_id, r, owners) for r in rows if not r["grouped"]]
        return _cut(items, [r["name"] for r in rows if r["grouped"]], limit)

    async def uploads(
        self,
        bucket_id: int,
        *,
        prefix: bytes = b"",
        after: bytes = b"",
        after_upload: str = "",
        delimiter: bytes = b"",
        limit: int = 1000,
    ) -> Page[UploadEntry]:
        """Open multipart uploads by key, those of one key in the order of their initiation.

        after is the key-marker; with after_upload, the upload-id-marker, the page goes on inside that key. It need
        not be open any more: upload ids begin with the time they were made at, so their order is the listing's.
        """
        grouped = group(prefix, after, delimiter) is not None
        inside = bool(after_upload) and not grouped and after.startswith(prefix)
        first, stop = after if inside else first_key(prefix, after, delimiter), past(prefix)
        if limit <= 0 or first >= stop:
            return Page((), (), False)
        rows = await self._pool.fetch(
            UPLOADS,
            bucket_id,
            first,
            after_upload.partition("\x00")[0] if inside else "",  # no id has U+0000, and Postgres takes none
            stop,
            limit + 1,
            len(prefix),
            delimiter,
            past(delimiter),
        )
        owners: dict[int, Owner] = {}
        items = [_upload(r, owners) for r in rows if not r["grouped"]]
        return _cut(items, [r["name"] for r in rows if r["grouped"]], limit)

    async def parts(self, bucket_id: int, key: bytes, upload_id: str, *, after: int = 0, limit: int = 1000) -> PartPage:
        """Parts with numbers above after. A page of an upload that does not exist is empty, like one without parts."""
        if limit <= 0 or "\x00" in upload_id:
            return PartPage((), False)
        rows = await self._pool.fetch(PARTS, bucket_id, key, upload_id, after, limit + 1)
        return PartPage(tuple(PartEntry(**row) for row in rows[:limit]), len(rows) > limit)


def past(text: bytes) -> bytes:
    """The smallest string greater than every key that begins with text."""
    stem = text.rstrip(b"\xff")
    return stem[:-1] + bytes((stem[-1] + 1,)) if stem else text + END


def group(prefix: bytes, name: bytes, delimiter: bytes) -> bytes | None:
    """The common prefix that name rolls up into, or None when it stands for itself (or lies outside prefix)."""
    if not delimiter or not name.startswith(prefix):
        return None
    cut = name.find(delimiter, len(prefix))
    return None if cut < 0 else name[: cut + len(delimiter)]


def first_key(prefix: bytes, after: bytes, delimiter: bytes, reenter: bool = False) -> bytes:
    """The smallest key that may be listed behind after."""
    if not after:
        return prefix
    around = group(prefix, after, delimiter)
    if around is not None and (around == after or not reenter):
        return past(around)
    return max(prefix, after + b"\x00")


def _cut(items: list[Shown], prefixes: list[bytes], limit: int) -> Page[Shown]:
    """The first limit of both; there may be one more, which says that the page is truncated."""
    truncated = len(items) + len(prefixes) > limit
    if truncated:
        if prefixes and (not items or prefixes[-1] > items[-1].name):
            prefixes.pop()
        else:
            items.pop()
    return Page(items, prefixes, truncated)


def _objects(row: asyncpg.Record) -> list[Entry]:
    keys = row["keys"]
    if not keys:
        return []
    known = {int(i): Account(int(i), of[0], "", of[1] or "", "", False) for i, of in (row["owners"] or {}).items()}
    owners = [known.get(i) for i in row["owner_ids"] or (0,)]
    checksums = [name and name.lower() for name in row["algorithms"]]
    shared = (_spread(column, len(keys)) for column in (row["classes"], owners, checksums, row["types"]))
    return list(map(Entry, keys, row["seconds"], row["etags"], row["sizes"], *shared))


def _spread(column: Sequence[T], count: int) -> Iterable[T]:
    """A column whose one element may stand for all."""
    return column if len(column) == count else repeat(column[0], count)


def _version(bucket_id: int, row: asyncpg.Record, owners: dict[int, Owner]) -> VersionEntry:
    return VersionEntry(
        VersionRef(bucket_id, row["name"], row["seq"], row["rnd"]),
        row["is_null"],
        State(row["state"]),
        row["is_latest"],
        row["etag"] or "",
        row["size"],
        row["modified"],
        row["storage_class"],
        _algorithms(row["checksums"]),
        row["checksum_type"],
        _owner(owners, row["owner_id"], row["canonical_id"], row["display_name"]),
    )


def _upload(row: asyncpg.Record, owners: dict[int, Owner]) -> UploadEntry:
    return UploadEntry(
        row["name"],
        row["upload_id"],
        row["initiated"],
        _owner(owners, row["initiator_id"], row["initiator"], row["initiator_name"]),
        _owner(owners, row["owner_id"], row["canonical_id"], row["display_name"]),
        row["storage_class"],
        row["checksum_algorithm"],
        row["checksum_type"],
    )


def _algorithms(checksums: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(sorted(name.upper() for name in checksums))


def _owner(owners: dict[int, Owner], owner_id: int | None, canonical_id: str | None, name: str | None) -> Owner | None:
    """One Owner an account and page: most pages have a single one."""
    if owner_id is None or canonical_id is None:
        return None
    owner = owners.get(owner_id)
    if owner is None:
        owner = owners[owner_id] = Owner(owner_id, canonical_id, name or "")
    return owner
