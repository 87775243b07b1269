"""Which bytes of an object a read asks for, and the headers that say so: ranges, parts, checksums."""

from __future__ import annotations

import msgspec

from gateway.domain import checksums, conditions, metadata
from gateway.domain.ranges import content_range, parse_range, range_applies
from gateway.domain.serving import state_headers
from gateway.ops.reading import Sight, restore_headers
from gateway.s3.call import Call
from gateway.s3.errors import S3Error, invalid_argument
from gateway.services import Services
from storage_tiers.tier import ByteSpan

MAX_PARTS = 10_000


class View(msgspec.Struct, frozen=True):
    """A part of an object, or the whole. span has a length."""

    status: int
    span: ByteSpan
    headers: dict[str, str] = {}


class Asked(msgspec.Struct, frozen=True):
    """What the request says before any object is looked at."""

    part: int | None
    range: str | None
    if_range: str | None
    checksums: bool
    overrides: dict[str, str]


def asked(call: Call) -> Asked:
    """Parse what GetObject and HeadObject have in common. Raises InvalidArgument, InvalidRequest."""
    part = call.query.get("partNumber")
    header = call.headers.get("range")
    if part is not None and header is not None:
        raise S3Error("InvalidRequest", "Cannot specify both Range header and partNumber query parameter")
    return Asked(
        part=None if part is None else part_number(part),
        range=header,
        if_range=call.headers.get("if-range"),
        checksums=checksums.shown(call.headers),
        overrides=metadata.overrides(call.query, signed=call.caller.signed),
    )


def part_number(text: str | None) -> int:
    """Raises InvalidArgument for anything but 1 to 10,000."""
    if text is None or not text.isascii() or not text.isdigit() or len(text) > 5 or not 1 <= int(text) <= MAX_PARTS:
        message = f"Part number must be an integer between 1 and {MAX_PARTS}, inclusive"
        raise invalid_argument("partNumber", text, message)
    return int(text)


def check_fresh(call: Call, sight: Sight) -> None:
    """Preconditions. Raises PreconditionFailed (412) and NotModified (304, with what a cache wants to know)."""
    version = sight.version
    if not conditions.check_read(conditions.read_condition(call.headers), version.etag, version.modified):
        headers = metadata.not_modified_headers(version, versioned=sight.versioned)
        raise S3Error("NotModified", headers=headers)


async def view(sv: Services, sight: Sight, wanted: Asked) -> View:
    """The bytes asked for. Raises InvalidRange (416), InvalidPart."""
    version = sight.version
    if wanted.part is not None:
        return await _part(sv, sight, wanted.part, wanted.checksums)
    span = None
    if range_applies(wanted.if_range, version.etag, version.modified):
        try:
            span = parse_range(wanted.range, version.size)
        except S3Error as error:
            error.headers["Content-Range"] = content_range(None, version.size)
            raise
    if span is not None:  # a checksum of the whole says nothing about a range
        return View(206, span, {"Content-Range": content_range(span, version.size)})
    shown = checksums.response_headers(version.checksums, version.checksum_type) if wanted.checksums else {}
    return View(200, ByteSpan(0, version.size), shown)


async def _part(sv: Services, sight: Sight, number: int, with_checksums: bool) -> View:
    """One part of a multipart object, by the number it was uploaded as. Any other object is its own part 1."""
    version = sight.version
    if not version.parts:
        if number != 1:
            raise S3Error("InvalidPart")
        shown = checksums.response_headers(version.checksums, version.checksum_type) if with_checksums else {}
        span = ByteSpan(0, version.size)
        if not version.size:
            return View(200, span, shown)
        return View(206, span, {"Content-Range": content_range(span, version.size), **shown})
    part = await sv.versions.part(version.ref, number)
    if part is None:
        raise S3Error("InvalidPart")
    headers = {"x-amz-mp-parts-count": str(version.parts)}
    span = ByteSpan(part.start, part.size)
    if part.size:
        headers["Content-Range"] = content_range(span, version.size)
    if with_checksums:
        headers |= checksums.response_headers(part.checksums, version.checksum_type)
    return View(206 if part.size else 200, span, headers)


def headers_of(sight: Sight, found: View, wanted: Asked) -> dict[str, str]:
    """All headers of a GET or HEAD of what was found."""
    return {
        **metadata.object_headers(sight.version, versioned=sight.versioned),
        **found.headers,
        **restore_headers(sight),
        **state_headers(sight.resolved),
        **wanted.overrides,
    }
