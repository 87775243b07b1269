"""GetObjectAttributes: what HEAD says, as a document, with a page of the parts."""

from __future__ import annotations

from gateway.domain import conditions
from gateway.domain.dates import http_date
from gateway.domain.serving import state_headers
from gateway.http.reply import Reply, document
from gateway.ops import access, outcome, reading
from gateway.ops.reading import Sight
from gateway.s3 import messages
from gateway.s3.call import Call
from gateway.s3.errors import invalid_argument
from gateway.services import Services

NAMES = frozenset({"ETag", "Checksum", "ObjectParts", "StorageClass", "ObjectSize"})
MAX_PARTS = 1000


async def get_object_attributes(call: Call, sv: Services) -> Reply:
    """The attributes named by x-amz-object-attributes. Like HEAD it waits for nothing."""
    wanted = _names(call)
    limit = _number(call, "x-amz-max-parts", MAX_PARTS)
    marker = _number(call, "x-amz-part-number-marker", 0)
    sight = await reading.find(call, sv, access.place(call), access.key(call), call.query.get("versionId"))
    version = sight.version
    conditions.check_source(conditions.read_condition(call.headers), version.etag, version.modified)
    reading.check_visible(sv, sight)
    parts = None
    if "ObjectParts" in wanted and version.parts:
        parts = await _parts(sv, sight, marker, min(limit, MAX_PARTS))
    body = messages.object_attributes(
        etag=version.etag if "ETag" in wanted else None,
        values=version.checksums if "Checksum" in wanted else None,
        kind=version.checksum_type,
        parts=parts,
        storage_class=version.storage_class if "StorageClass" in wanted else None,
        size=version.size if "ObjectSize" in wanted else None,
    )
    reply = document(body)
    reply.note = outcome.note(sight)
    return reply.add({"Last-Modified": http_date(version.modified), **sight.id_header, **state_headers(sight.resolved)})


async def _parts(sv: Services, sight: Sight, marker: int, limit: int) -> messages.AttributeParts:
    """A page of the parts, by the numbers they were uploaded as."""
    found = await sv.versions.parts(sight.version.ref, marker, limit + 1) if limit else []
    page = found[:limit]
    return messages.AttributeParts(
        total=sight.version.parts,
        marker=marker,
        next_marker=page[-1].number if page else 0,
        limit=limit,
        truncated=len(found) > limit,
        parts=[
            messages.PartEntry(each.number, sight.version.modified, each.etag, each.size, each.checksums)
            for each in page
        ],
    )


def _names(call: Call) -> frozenset[str]:
    given = [name.strip() for name in (call.headers.get("x-amz-object-attributes") or "").split(",")]
    names = frozenset(name for name in given if name)
    if not names or names - NAMES:
        wrong = next(iter(sorted(names - NAMES)), None)
        raise invalid_argument("x-amz-object-attributes", wrong, "Invalid attribute name specified.")
    return names


def _number(call: Call, name: str, default: int) -> int:
    text = call.headers.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise invalid_argument(name, text, f"Provided {name} not an integer or within integer range")
    return int(text)
