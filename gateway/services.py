"""Everything an operation may reach for, in one frozen value; made by gateway/app.py, given to every handler."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

import asyncpg

from gateway.db.blobs import Blobs
from gateway.db.buckets import Buckets
from gateway.db.completion import Completions
from gateway.db.deletion import Deletions
from gateway.db.identities import Identities
from gateway.db.listing import Listing
from gateway.db.recalls import Recalls
from gateway.db.uploads import Uploads
from gateway.db.versions import Versions
from gateway.db.waiting import Waiting
from gateway.settings import Settings
from storage_tiers.placement import Placement
from storage_tiers.staging import Staging
from storage_tiers.tier import Tier


class RequestMetrics(Protocol):
    """What the pipeline reports of requests (gateway/telemetry/metrics.py)."""

    def request_started(self) -> None: ...

    def request_ended(
        self,
        operation: str,
        status: int,
        code: str | None,
        seconds: float,
        first_byte: float | None,
        received: int,
        sent: int,
    ) -> None: ...

    def auth_failed(self, reason: str) -> None: ...


def utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Services:
    """One process's parts, by the name operations know them under."""

    settings: Settings
    pool: asyncpg.Pool
    identities: Identities
    buckets: Buckets
    versions: Versions
    completions: Completions
    uploads: Uploads
    deletions: Deletions
    recalls: Recalls
    listing: Listing
    blobs: Blobs
    waiting: Waiting
    tiers: Mapping[str, Tier]
    placement: Placement
    staging: Staging
    metrics: RequestMetrics
    clock: Callable[[], datetime] = utc_now
