"""What the gateway knows of buckets, versions and blobs: values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum
from typing import Any
from uuid import UUID

import msgspec


class State(IntEnum):
    """A version's state; the numbers are those of the ``version`` table."""

    SCANNING = 1
    READY = 2
    QUARANTINED = 3
    FAILED = 4
    MARKER = 5

    def __init__(self, _: int) -> None:
        self.word: str = self._name_.lower()  # as ``x-sluice-state`` shows it


class Versioning(IntEnum):
    OFF = 0
    ENABLED = 1
    SUSPENDED = 2


@dataclass(frozen=True, slots=True)
class Account:
    """An owner of buckets: the tenant."""

    id: int
    canonical_id: str
    name: str
    display_name: str
    email: str
    is_root: bool


@dataclass(frozen=True, slots=True)
class Bucket:
    id: int
    name: str
    owner: Account
    created: datetime
    location: str
    versioning: Versioning
    acl: str
    ownership: str
    object_lock: bool
    config: Mapping[str, Any]
    generation: int

    def region(self, home: str) -> str:
        """Where the bucket lies: the location it was given, or the region that this endpoint is in."""
        return self.location or home


class VersionRef(msgspec.Struct, frozen=True):
    """Names one version for good: seq is unique per key, rnd guards against reuse."""

    bucket_id: int
    key: bytes
    seq: int
    rnd: int

    @property
    def row(self) -> tuple[int, bytes, int, int]:
        """The four columns that name and guard the version's row, in the order statements take them."""
        return self.bucket_id, self.key, self.seq, self.rnd

    @property
    def version_id(self) -> str:
        """S3's version id: seq and rnd, 32 hexadecimal characters."""
        return f"{self.seq & MASK:016x}{self.rnd & MASK:016x}"


MASK = (1 << 64) - 1
NULL_ID = "null"


def parse_version_id(text: str) -> tuple[int, int] | None:
    """(seq, rnd) of a version id made by VersionRef, or None when it is malformed.

    rnd is a signed 64-bit integer, as Postgres stores it.
    """
    if len(text) != 32 or not text.isascii() or text.lower() != text:
        return None
    try:
        seq, rnd = int(text[:16], 16), int(text[16:], 16)
    except ValueError:
        return None
    if seq >> 63:
        return None
    return seq, rnd - (1 << 64) if rnd >> 63 else rnd


@dataclass(frozen=True, slots=True)
class Extent:
    """length bytes of a blob from offset on. tier names where the blob lies; "inline": in Postgres.

    damaged: the blob's bytes are known to be missing or wrong. digest: SHA-256 of the extent, where it is known.
    """

    blob: UUID
    offset: int
    length: int
    tier: str
    damaged: bool = False
    digest: bytes | None = None


class Version(msgspec.Struct, frozen=True):
    """One version (or delete marker) as a read needs it."""

    ref: VersionRef
    is_null: bool
    state: State
    etag: str  # without quotes
    size: int
    modified: datetime
    storage_class: str
    content_type: str | None
    headers: Mapping[str, str]  # system metadata by lower-case header name
    metadata: Mapping[str, str]  # user metadata, names without x-amz-meta-
    tags: Mapping[str, str]
    checksums: Mapping[str, str]  # {"crc32": base64}
    checksum_type: str | None
    digest: str | None
    acl: str
    owner_id: int
    parts: int  # 0: not multipart
    extents: int
    code: str | None
    detail: str | None
    processing: Mapping[str, Any]
    generation: int
    run_id: int | None
    restoring: bool
    restored_until: datetime | None
    expires_at: datetime | None

    @property
    def version_id(self) -> str:
        return NULL_ID if self.is_null else self.ref.version_id


class Resolved(msgspec.Struct, frozen=True):
    """What a key (or one of its versions) is at this moment.

    version is None when there is nothing at all under that name. newer is the state (failed or
    quarantined) of a version newer than the one that decides, with its run. extents and inline are those of
    the first extent only when the version has a single one; ops load the others.
    """

    generation: int  # of the bucket; 0: the bucket is gone
    version: Version | None
    newer: State | None = None
    newer_run: int | None = None
    is_current: bool = True
    extent: Extent | None = None
    inline: bytes | None = None
    now: datetime | None = None  # the database's clock


@dataclass(frozen=True, slots=True)
class Attributes:
    """What a client says about an object when it writes one."""

    content_type: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    storage_class: str = "STANDARD"
    acl: str = "private"


@dataclass(frozen=True, slots=True)
class Digests:
    """What was computed while bytes arrived."""

    size: int
    md5: bytes
    sha256: bytes
    checksums: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WriteCondition:
    """If-Match and If-None-Match of a write. etags are without quotes; "*" stands for any."""

    if_match: tuple[str, ...] | None = None
    if_none_match: tuple[str, ...] | None = None
