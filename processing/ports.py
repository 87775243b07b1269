"""What the engine and its activities need from whoever owns the subjects (implemented in the gateway)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias
from uuid import UUID

from asyncpg import Connection
from asyncpg.pool import PoolConnectionProxy

from processing.model import Finish, NewRun, Outcome, Subject
from storage_tiers.tier import WHOLE, ByteSpan

if TYPE_CHECKING:
    Conn: TypeAlias = Connection[Any] | PoolConnectionProxy[Any]  # with a transaction open, where one is asked for
else:
    Conn = Connection | PoolConnectionProxy


@dataclass(frozen=True, slots=True)
class Piece:
    """length bytes of a blob; tier "inline" means the bytes lie in the database."""

    blob: UUID
    offset: int
    length: int
    tier: str


@dataclass(frozen=True, slots=True)
class Content:
    """A subject as an activity sees it. state is a word: scanning, ready, quarantined, failed."""

    subject: Subject
    tenant: int
    bucket: str
    key: bytes
    version_id: str
    state: str
    size: int
    digest: str  # typed: "sha256:hex" or "sha256-tree:hex"
    declared_type: str | None
    storage_class: str
    metadata: Mapping[str, str]
    processing: Mapping[str, Any]
    pieces: Sequence[Piece]
    allowed: bool = False  # its digest was released for this tenant: the scan is recorded as passed by that
    generation: int = 1
    restore: Mapping[str, Any] = field(default_factory=dict)
    data: bytes | None = field(default=None, repr=False, compare=False)  # all of it, where it is still at hand
    part_sizes: Sequence[int] = ()  # of a multipart content, in order: a sha256-tree digest is checked part by part


class Ending(Enum):
    """What became of a run whose end the owner of its subject wrote."""

    ENDED = "ended"
    LOST = "lost"  # the lease: nothing was written
    LATER = "later"  # its subject is locked: once more with the next flight
    LEFT = "left"  # not simple enough: nothing was written


class Subjects(Protocol):
    """Lock order: heads, then versions (lock), then the engine locks its runs, then settle writes."""

    async def load(self, subject: Subject) -> Content | None:
        """None when the subject is gone. Batched across calls by the implementation."""

    def open(self, content: Content, span: ByteSpan = WHOLE) -> AsyncIterator[bytes]:
        """The bytes of a span, over all pieces. Raises the tiers' errors (storage_tiers.tier)."""

    async def lock(self, conn: Conn, subjects: Sequence[Subject], wait: bool = False) -> set[Subject]:
        """Lock the heads and versions in order; SKIP LOCKED unless wait. Returns those locked or gone for good:
        what is missing from the answer rides in the next flight."""

    async def end_ready(self, conn: Conn, finishes: Sequence[Finish]) -> dict[int, Ending]:
        """A shortcut past lock, settle and the engine's finish (engine_finish, which it has to call for what it ends):
        one statement, a transaction of its own. Runs that it does not know how to end so are missing, or LEFT."""

    async def settle(self, conn: Conn, outcomes: Sequence[Outcome]) -> list[NewRun]:
        """Write what these terminal outcomes mean for their subjects, in the engine's transaction, after lock.

        A compare-and-swap: a subject that is not in the expected state any more is left alone (idempotent replay).
        Returns runs to enqueue in the same transaction (a tier.move, say).
        """

    def settled(self, outcomes: Sequence[Outcome]) -> None:
        """Called after the commit, never raises: wakes whoever waits for these subjects, here and elsewhere."""

    async def reopen(self, conn: Conn, outcome_of: Subject, workflow: str, run_id: int) -> None:
        """Before a failed or cancelled run returns to pending: failed → scanning. Raises SubjectSuperseded."""

    # --- tiers -------------------------------------------------------------------------------------------------

    async def stage(self, conn: Conn | None, blob: UUID, tier: str) -> None:
        """Write the staging row of a blob before its first byte (own transaction when conn is None)."""

    async def unstage(self, blob: UUID) -> None:
        """Give up a staged blob that nothing refers to: its bytes and its row go, now or by the collector. One that
        became live is left alone."""

    async def swap_pieces(self, content: Content, blob: UUID, tier: str) -> bool:
        """tier.move: make blob (staged, whole, size and digest verified) the one piece of this version, by
        compare-and-swap on its pieces; the old ones go to the collector. False when it lost the swap."""

    async def promote(self, content: Content, blob: UUID, tier: str, days: int) -> bool:
        """tier.recall: record blob as the readable temporary copy for days. False when the version is gone."""

    async def attach_sidecar(self, content: Content, kind: str, blob: UUID, tier: str, size: int) -> bool:
        """Make a staged blob the version's sidecar of a kind (live). False when the version is gone."""


class SubjectSuperseded(Exception):
    """The subject is gone, or a newer one of the same S3 id exists."""
