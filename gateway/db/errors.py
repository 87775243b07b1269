"""The few ways in which a statement on gateway tables can fail; ``ops`` turns them into S3's."""

from __future__ import annotations


class DatabaseError(Exception):
    """Root of what this package raises on purpose."""


class BucketGone(DatabaseError):
    """The bucket was deleted after the caller looked it up."""


class PreconditionFailed(DatabaseError):
    """If-Match or If-None-Match does not hold for what is current. condition names the header."""

    def __init__(self, condition: str) -> None:
        super().__init__(condition)
        self.condition = condition


class NoSuchKey(DatabaseError):
    """If-Match on a key that does not exist."""


class WriteConflict(DatabaseError):
    """A conditional write met another writer that did not finish in time."""


class Busy(DatabaseError):
    """The key's lock was not to be had in time; nothing was stored."""


class StagingLost(DatabaseError):
    """The staged blob is not staging any more (its owner was taken for dead); nothing was stored."""


class NoSuchUpload(DatabaseError):
    """No open multipart upload of that id on that key."""


class NoSuchVersion(DatabaseError):
    """The version is not there any more."""


class SourceGone(DatabaseError):
    """A copy's source can no longer be served: resolve it again."""


class TooManyWaiters(DatabaseError):
    """The tenant already has as many reads waiting for verdicts as it may."""


class RestoreInProgress(DatabaseError):
    """A restore of this version is under way."""


class NotReviewable(DatabaseError):
    """The version is in no state in which this can be asked of it. The text says why."""


class Unknown(DatabaseError):
    """The connection broke during COMMIT and the outcome could not be learned; nothing may be unlinked."""
