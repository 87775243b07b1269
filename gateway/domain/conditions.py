"""Conditional requests: of reads, copy sources, writes and deletes.

S3 reference, "Conditional requests"; RFC 9110, 13. Parsing gives frozen values; deciding takes what the key is now.
A date that cannot be read is ignored, as RFC 9110 asks; an etag list that cannot be read matches nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from gateway.domain import etags
from gateway.domain.dates import parse_date, same_second, whole_second
from gateway.domain.fields import Fields
from gateway.domain.objects import WriteCondition
from gateway.s3.errors import S3Error


@dataclass(frozen=True, slots=True)
class ReadCondition:
    """The four preconditions of a read or of a copy source. etags without quotes."""

    if_match: tuple[str, ...] | None = None
    if_none_match: tuple[str, ...] | None = None
    modified_since: datetime | None = None
    unmodified_since: datetime | None = None


@dataclass(frozen=True, slots=True)
class DeleteCondition:
    """What a delete expects of the object: each given fact must agree."""

    if_match: tuple[str, ...] | None = None
    modified: datetime | None = None
    size: int | None = None


@dataclass(frozen=True, slots=True)
class Present:
    """What a condition sees of an object, or of a delete marker (etag "", size 0). etag without quotes."""

    etag: str
    modified: datetime
    size: int = 0


COPY_SOURCE = "x-amz-copy-source-"


def read_condition(headers: Fields, prefix: str = "") -> ReadCondition | None:
    """The preconditions of a request; None when it has none. prefix: COPY_SOURCE for those on a copy's source."""
    match, none_match = headers.get(prefix + "if-match"), headers.get(prefix + "if-none-match")
    since, until = headers.get(prefix + "if-modified-since"), headers.get(prefix + "if-unmodified-since")
    if match is None and none_match is None and since is None and until is None:
        return None
    return ReadCondition(
        None if match is None else etags.parse_list(match, weak=False),
        None if none_match is None else etags.parse_list(none_match, weak=True),
        None if since is None else parse_date(since),
        None if until is None else parse_date(until),
    )


def failed_read(condition: ReadCondition, etag: str, modified: datetime) -> str | None:
    """The name of the precondition that does not hold for an existing object, or None.

    An etag condition outranks the date condition of its pair, in both directions: If-Match that holds silences
    If-Unmodified-Since, If-None-Match silences If-Modified-Since. Failures of If-Match and If-Unmodified-Since
    come first.
    """
    if condition.if_match is not None:
        if not etags.matches(condition.if_match, etag):
            return "If-Match"
    elif condition.unmodified_since is not None and whole_second(modified) > condition.unmodified_since:
        return "If-Unmodified-Since"
    if condition.if_none_match is not None:
        if etags.matches(condition.if_none_match, etag):
            return "If-None-Match"
    elif condition.modified_since is not None and whole_second(modified) <= condition.modified_since:
        return "If-Modified-Since"
    return None


_NOT_MODIFIED = ("If-None-Match", "If-Modified-Since")


def check_read(condition: ReadCondition | None, etag: str, modified: datetime) -> bool:
    """True: answer the read; False: answer 304. Raises PreconditionFailed (412)."""
    failed = None if condition is None else failed_read(condition, etag, modified)
    if failed is None:
        return True
    if failed in _NOT_MODIFIED:
        return False
    raise S3Error("PreconditionFailed", Condition=failed)


def check_source(condition: ReadCondition | None, etag: str, modified: datetime) -> None:
    """For a copy's source. There is no 304 here: raises PreconditionFailed (412) for all four."""
    failed = None if condition is None else failed_read(condition, etag, modified)
    if failed is not None:
        raise S3Error("PreconditionFailed", Condition=COPY_SOURCE + failed)


def write_condition(headers: Fields) -> WriteCondition | None:
    """If-Match and If-None-Match of PutObject, CompleteMultipartUpload and CopyObject; None without either.

    AWS documents only "*" for If-None-Match; an etag is compared here. If-Unmodified-Since would have to guard the
    write as well, so it is refused (501) rather than ignored; If-Modified-Since has no meaning for a write
    (RFC 9110, 13.1.3).
    """
    if "if-unmodified-since" in headers:
        raise S3Error("NotImplemented", Header="If-Unmodified-Since")
    match, none_match = headers.get("if-match"), headers.get("if-none-match")
    if match is None and none_match is None:
        return None
    return WriteCondition(
        None if match is None else etags.parse_list(match, weak=False),
        None if none_match is None else etags.parse_list(none_match, weak=True),
    )


def check_write(condition: WriteCondition | None, etag: str | None) -> None:
    """etag: that of the current object, None when the key counts as absent.

    Raises NoSuchKey (404) for If-Match on an absent key, PreconditionFailed (412) for what does not hold.
    """
    if condition is None:
        return
    if condition.if_match is not None:
        if etag is None:
            raise S3Error("NoSuchKey")
        if not etags.matches(condition.if_match, etag):
            raise S3Error("PreconditionFailed", Condition="If-Match")
    if condition.if_none_match is not None and etags.matches(condition.if_none_match, etag):
        raise S3Error("PreconditionFailed", Condition="If-None-Match")


def delete_condition(headers: Fields) -> DeleteCondition | None:
    """If-Match, x-amz-if-match-last-modified-time and x-amz-if-match-size of DeleteObject; None without any.

    Raises InvalidArgument for a time or size that cannot be read: ignoring it would delete unguarded.
    """
    match = headers.get("if-match")
    time, size = headers.get("x-amz-if-match-last-modified-time"), headers.get("x-amz-if-match-size")
    if match is None and time is None and size is None:
        return None
    modified = None
    if time is not None:
        modified = parse_date(time)
        if modified is None:
            raise _unreadable("x-amz-if-match-last-modified-time", time)
    if size is not None and not (size.isascii() and size.isdigit() and len(size) < 20):
        raise _unreadable("x-amz-if-match-size", size)
    return DeleteCondition(
        None if match is None else etags.parse_list(match, weak=False), modified, None if size is None else int(size)
    )


def check_delete(condition: DeleteCondition | None, current: Present | None) -> None:
    """current: the version (or marker) that would go; None: nothing is there, and the delete succeeds as ever.

    Raises PreconditionFailed (412).
    """
    if condition is None or current is None:
        return
    if condition.if_match is not None and not etags.matches(condition.if_match, current.etag):
        raise S3Error("PreconditionFailed", Condition="If-Match")
    if condition.modified is not None and not same_second(condition.modified, current.modified):
        raise S3Error("PreconditionFailed", Condition="x-amz-if-match-last-modified-time")
    if condition.size is not None and condition.size != current.size:
        raise S3Error("PreconditionFailed", Condition="x-amz-if-match-size")


def _unreadable(name: str, value: str) -> S3Error:
    return S3Error("InvalidArgument", f"Invalid value for {name}", ArgumentName=name, ArgumentValue=value)
