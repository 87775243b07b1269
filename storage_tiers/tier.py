"""The contract of a tier: immutable bytes by opaque id. Nothing here knows of buckets, keys or clients."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol, runtime_checkable
from uuid import UUID

BlobId = UUID


class TierError(Exception):
    """A tier could not do what was asked; the cause is a dependency or the medium."""


class TierUnavailable(TierError):
    """The tier cannot be reached now; the same call may succeed later."""


class TierReadOnly(TierUnavailable):
    """The tier can be read and not written."""


class TierMissing(TierError):
    """The tier's own container (its bucket) is gone: a matter of configuration, no wait mends it."""


class TierFull(TierError):
    """No space (or inodes, or quota) is left to write."""


class BlobNotFound(TierError):
    """No blob of this id lies in the tier."""


class BlobArchived(TierError):
    """The blob lies in an archive and has to be restored first."""


class BlobCorrupt(TierError):
    """The tier holds fewer bytes than it says, or they differ."""


class Speed(StrEnum):
    EXPEDITED = "Expedited"
    STANDARD = "Standard"
    BULK = "Bulk"


class Readable(StrEnum):
    PENDING = "pending"  # archived, a restore is under way
    ARCHIVED = "archived"  # archived, no restore asked for
    READABLE = "readable"  # restored, until a time
    HOME = "home"  # not archived at all


@dataclass(frozen=True, slots=True)
class ByteSpan:
    """length bytes from offset on; length None: to the end."""

    offset: int = 0
    length: int | None = None


WHOLE = ByteSpan()


@dataclass(frozen=True, slots=True)
class Stored:
    """A blob that is whole and durable. size in bytes."""

    blob: BlobId
    size: int


@dataclass(frozen=True, slots=True)
class RestoreState:
    state: Readable
    until: datetime | None = None


class Sink(Protocol):
    """Bytes on their way into a tier. Exactly one of commit and abort ends it; abort after commit does nothing."""

    @property
    def fd(self) -> int | None:
        """A file descriptor that may be written directly, where the tier is a file; else None."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append all of data, keeping no reference to it. Blocking; from any one thread at a time.

        Raises TierFull, TierUnavailable, TierError.
        """

    async def commit(self) -> Stored:
        """Make the bytes visible under the id, whole and durable (file synced, renamed, folder synced).

        An error of fsync is final: the blob does not exist then. Raises TierFull, TierUnavailable, TierError.
        """

    async def abort(self) -> None:
        """Leave nothing behind. Never raises."""


@runtime_checkable
class Paced(Protocol):
    """A sink whose writes may have to wait for a slow medium.

    Whoever writes awaits room() between writes, so that a thread does not have to block inside write.
    """

    async def room(self) -> None:
        """Return once the next slice of about 1 MiB can be taken without waiting. Never raises a tier's error:
        that is what write and commit are for."""


class Reader(Protocol):
    """Bytes on their way out. close ends it, any number of times."""

    @property
    def length(self) -> int:
        """How many bytes this reader will give."""

    @property
    def fd(self) -> int | None:
        """A descriptor whose bytes [position, position + length) are the content, for sendfile; else None."""

    @property
    def position(self) -> int: ...

    def __aiter__(self) -> AsyncIterator[bytes]:
        """The bytes in order. Raises BlobCorrupt when fewer come than length says, TierUnavailable."""

    async def close(self) -> None: ...


class Tier(Protocol):
    """Immutable bytes by id. A write is atomic: a blob exists whole and durable, or not at all."""

    name: str
    archive: bool  # reading needs restore first

    async def begin(self, blob: BlobId) -> Sink:
        """Start writing a new blob. Raises TierFull, TierUnavailable."""

    async def open(self, blob: BlobId, span: ByteSpan = WHOLE) -> Reader:
        """Raises BlobNotFound, BlobArchived, BlobCorrupt (the span lies outside), TierUnavailable."""

    async def delete(self, blob: BlobId) -> None:
        """Idempotent: deleting what is not there succeeds. Raises TierUnavailable."""

    async def stat(self, blob: BlobId) -> Stored:
        """Raises BlobNotFound, TierUnavailable. Works for archived blobs too."""

    async def restore(self, blob: BlobId, days: int, speed: Speed) -> None:
        """Ask an archive to make the blob readable for days. Idempotent; nothing to do when it is at home.

        Raises BlobNotFound, TierUnavailable.
        """

    async def readable(self, blob: BlobId) -> RestoreState:
        """Raises BlobNotFound, TierUnavailable."""

    def names(self, older: float = 0.0) -> AsyncIterator[BlobId]:
        """Every blob and staging name in the tier, in no order, for the reconciler; a name may come twice.

        older: only names that were last written at least so many seconds ago. Raises TierUnavailable.
        """

    async def probe(self) -> None:
        """Cheap check that the tier answers. Raises TierUnavailable, TierFull."""

    async def close(self) -> None: ...
