"""The errors of the inner layers as S3's: one table."""

from __future__ import annotations

from collections.abc import Mapping

import asyncpg

from gateway.db import errors
from gateway.s3.errors import S3Error
from storage_tiers.placement import InvalidStorageClass
from storage_tiers.tier import BlobCorrupt, BlobNotFound, TierError, TierFull, TierReadOnly, TierUnavailable

SOON = {"Retry-After": "1", "x-amz-retry-after": "1000"}
# What a row promises is not there, or is not what it was. S3 knows no better code: clients repeat it a few times, which
# is right while a backup is being restored, and it promises no time as Retry-After would.
DAMAGED = "The stored bytes of the object are missing or damaged. They are not served, and the operator has been told."
LOST = {"x-sluice-code": "blob-damaged"}

# error → (S3 code, sentence or None for the code's own, headers). The first row that fits counts.
TABLE: tuple[tuple[type[BaseException], str, str | None, Mapping[str, str]], ...] = (
    (errors.BucketGone, "NoSuchBucket", None, {}),
    (errors.NoSuchKey, "NoSuchKey", None, {}),
    (errors.NoSuchVersion, "NoSuchVersion", None, {}),
    (errors.NoSuchUpload, "NoSuchUpload", None, {}),
    (errors.WriteConflict, "ConditionalRequestConflict", None, {}),
    (errors.RestoreInProgress, "RestoreAlreadyInProgress", None, {}),
    (errors.Busy, "SlowDown", None, SOON),
    (errors.TooManyWaiters, "SlowDown", "Too many reads are waiting for processing.", SOON),
    (errors.StagingLost, "SlowDown", "The upload was interrupted and nothing was stored. Please try again.", SOON),
    (errors.SourceGone, "SlowDown", "The copy source changed while it was copied. Please try again.", SOON),
    (errors.Unknown, "ServiceUnavailable", "The outcome of the request is not known. Please try again.", SOON),
    (InvalidStorageClass, "InvalidStorageClass", None, {}),
    (TierFull, "ServiceUnavailable", "There is no space left to store the object.", SOON),
    (TierReadOnly, "ServiceUnavailable", "Nothing can be stored at the moment: the storage is read-only.", SOON),
    (TierUnavailable, "ServiceUnavailable", "The storage behind the object cannot be reached.", SOON),
    (BlobNotFound, "InternalError", DAMAGED, LOST),
    (BlobCorrupt, "InternalError", DAMAGED, LOST),
    (TierError, "ServiceUnavailable", "The storage behind the object failed.", SOON),  # EIO: another try may succeed
    (asyncpg.PostgresConnectionError, "ServiceUnavailable", None, SOON),
    (asyncpg.OperatorInterventionError, "ServiceUnavailable", None, SOON),  # starting up, shutting down, cancelled
    (asyncpg.InsufficientResourcesError, "ServiceUnavailable", None, SOON),  # its disk, its memory
    (asyncpg.ReadOnlySQLTransactionError, "ServiceUnavailable", None, SOON),  # a standby that is being promoted
    (asyncpg.TransactionRollbackError, "ServiceUnavailable", None, SOON),  # a deadlock it solved
    (asyncpg.LockNotAvailableError, "ServiceUnavailable", None, SOON),
    (asyncpg.InterfaceError, "ServiceUnavailable", None, SOON),
)


def translate(error: BaseException) -> S3Error | None:
    """The S3 error that an inner layer's means, or None when it is a bug."""
    if isinstance(error, S3Error):
        return error
    if isinstance(error, errors.PreconditionFailed):
        return S3Error("PreconditionFailed", Condition=error.condition)
    for kind, code, message, headers in TABLE:
        if isinstance(error, kind):
            return S3Error(code, message, headers=headers)
    if isinstance(error, OSError):  # what a lost database is, before a connection stands
        return S3Error("ServiceUnavailable", headers=SOON)
    return None
