"""What an answer of an S3-compatible store, or none, means for a tier: one table by error code, one by status."""

from __future__ import annotations

from collections.abc import Mapping

from botocore.exceptions import BotoCoreError, ClientError

from storage_tiers.tier import (
    BlobArchived,
    BlobCorrupt,
    BlobNotFound,
    TierError,
    TierFull,
    TierMissing,
    TierUnavailable,
)

# By error code (Amazon S3 API reference, "Error responses"; MinIO's own for a full disk).
CODES: Mapping[str, type[TierError]] = {
    "NoSuchKey": BlobNotFound,
    "NoSuchBucket": TierMissing,
    "InvalidObjectState": BlobArchived,
    "InvalidRange": BlobCorrupt,
    "BadDigest": TierUnavailable,  # the bytes changed on the way; another attempt carries them anew
    "QuotaExceeded": TierFull,
    "XMinioStorageFull": TierFull,
    "InsufficientCapacity": TierFull,
    "GlacierExpeditedRetrievalNotAvailable": TierUnavailable,
    "RequestTimeout": TierUnavailable,
    "RequestTimeTooSkewed": TierUnavailable,
    "PreconditionFailed": BlobCorrupt,  # the object was replaced under a reader that pinned its ETag
}

# By status, for codes not listed: credentials may be mended, an overloaded store recovers.
STATUSES: Mapping[int, type[TierError]] = {
    401: TierUnavailable,
    403: TierUnavailable,
    404: BlobNotFound,
    408: TierUnavailable,
    416: BlobCorrupt,
    429: TierUnavailable,
    507: TierFull,
}

# What the client raises: answers that say no, and no answers.
FAILURES = (BotoCoreError, ClientError, TimeoutError, OSError)


def code_of(error: BaseException) -> str:
    """The S3 error code of an answer; empty when there was none. HEAD answers give their status as the code."""
    return str(error.response.get("Error", {}).get("Code", "")) if isinstance(error, ClientError) else ""


def status_of(error: BaseException) -> int:
    """The HTTP status of an answer; 0 when there was none."""
    if not isinstance(error, ClientError):
        return 0
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def translate(error: BaseException, tier: str, doing: str) -> TierError:
    """The tier's error for one of FAILURES, or for what a cut body raises.

    Names the code and the status, never what the store wrote.
    """
    code, status = code_of(error), status_of(error)
    if not status:
        return TierUnavailable(f"tier {tier}: {doing}: {type(error).__name__}")
    kind = CODES.get(code) or STATUSES.get(status) or (TierUnavailable if status >= 500 else TierError)
    return kind(f"tier {tier}: {doing}: {code or 'no code'} ({status})")
