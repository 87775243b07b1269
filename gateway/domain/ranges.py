"""Byte ranges (RFC 9110, 14) as S3 reads them, and the stricter range of UploadPartCopy."""

from __future__ import annotations

import re
from datetime import datetime

from gateway.domain.dates import parse_date, same_second
from gateway.s3.errors import S3Error
from storage_tiers.tier import ByteSpan

_RANGE = re.compile(r"\s*bytes=\s*([0-9]*)\s*-\s*([0-9]*)\s*", re.IGNORECASE | re.ASCII)
_COPY = re.compile(r"bytes=([0-9]{1,19})-([0-9]{1,19})", re.ASCII)
MAX_DIGITS = 32


def parse_range(header: str | None, size: int) -> ByteSpan | None:
    """What of an object of size bytes is asked for; None: all of it, answered 200.

    Whatever is no single range of bytes (another unit, several ranges, last before first, nonsense) is ignored.
    The span's length is cut to what there is. Raises InvalidRange (416, with Content-Range) when not one byte of it
    exists.
    """
    if header is None:
        return None
    found = _RANGE.fullmatch(header)
    if found is None or len(header) > 2 * MAX_DIGITS:
        return None
    first, last = found.groups()
    if first:
        start = int(first)
        if last and int(last) < start:
            return None
        if start >= size:
            raise _unsatisfiable(header, size)
        end = min(int(last), size - 1) if last else size - 1
        return ByteSpan(start, end - start + 1)
    if not last:
        return None
    length = min(int(last), size)
    if length == 0:  # bytes=-0, and any suffix of an empty object
        raise _unsatisfiable(header, size)
    return ByteSpan(size - length, length)


def parse_copy_range(header: str, size: int) -> ByteSpan:
    """``x-amz-copy-source-range``: both ends are needed and must lie inside the source of size bytes.

    Raises InvalidArgument, with S3's two messages: one for the form, one that names the source's size.
    """
    found = _COPY.fullmatch(header)
    if found is None or int(found[1]) > int(found[2]):
        raise S3Error("InvalidArgument", COPY_FORM, ArgumentName="x-amz-copy-source-range", ArgumentValue=header)
    start, end = int(found[1]), int(found[2])
    if end >= size:
        raise S3Error(
            "InvalidArgument",
            f"Range specified is not valid for source object of size: {size}",
            ArgumentName="x-amz-copy-source-range",
            ArgumentValue=header,
        )
    return ByteSpan(start, end - start + 1)


COPY_FORM = (
    "The x-amz-copy-source-range value must be of the form bytes=first-last where first and last are the zero-based "
    "offsets of the first and last bytes to copy"
)


def content_range(span: ByteSpan | None, size: int) -> str:
    """The Content-Range header: of a part of an object, or (None) of a range that cannot be satisfied."""
    if span is None:
        return f"bytes */{size}"
    length = size - span.offset if span.length is None else span.length
    return f"bytes {span.offset}-{span.offset + length - 1}/{size}"


def range_applies(if_range: str | None, etag: str, modified: datetime) -> bool:
    """Whether Range counts under If-Range: the etag is the object's, strongly compared, or the date is exactly
    Last-Modified. etag without quotes."""
    if if_range is None:
        return True
    value = if_range.strip()
    if value.startswith('"') and value.endswith('"'):
        return value[1:-1] == etag
    moment = parse_date(value)
    if moment is not None:
        return same_second(moment, modified)
    return value == etag


def _unsatisfiable(header: str, size: int) -> S3Error:
    headers = {"Content-Range": content_range(None, size)}
    return S3Error("InvalidRange", headers=headers, RangeRequested=header, ActualObjectSize=size)
