"""Copies: of objects, and into parts. Bytes are shared, not moved; what has to be known anew is read and hashed."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.db.blobs import cut
from gateway.db.errors import SourceGone
from gateway.db.insertion import Completed, Completion, Shared
from gateway.db.uploads import PartRow
from gateway.domain import checksums, conditions
from gateway.domain.checksums import Algorithm
from gateway.domain.metadata import copy_attributes
from gateway.domain.objects import Digests
from gateway.domain.ranges import parse_copy_range
from gateway.domain.serving import Serve
from gateway.http.reply import Reply, document
from gateway.ops import access, outcome, reading, sources
from gateway.ops.parts import checksum_of, part_number, shown_checksums, upload_id
from gateway.ops.reading import Sight
from gateway.ops.writing import MAX_SINGLE, Tally, unhurried
from gateway.s3 import messages
from gateway.s3.call import Call
from gateway.s3.errors import S3Error
from gateway.services import Services
from storage_tiers.tier import BlobCorrupt, ByteSpan

TOO_LARGE = f"The specified copy source is larger than the maximum allowable size for a copy source: {MAX_SINGLE}"
TRIES = 3  # a source that is moved, or overwritten and collected, while it is copied is looked up again


@dataclass(frozen=True, slots=True)
class Checksums:
    values: dict[str, str]
    kind: str | None


async def copy_object(call: Call, sv: Services) -> Reply:
    """Make a version out of another one's bytes, metadata by directive. Waits for the source as a GET does."""
    place, key = access.place(call), access.key(call)
    source = sources.parse_source(call.headers.get(sources.HEADER) or "")
    mode = outcome.mode(call, sv, place.bucket)
    condition = conditions.write_condition(call.headers)
    algorithm = checksums.chosen_algorithm(call.headers)
    look = sources.looking(call, sv, source)
    for attempt in range(1, TRIES + 1):
        sight = await reading.servable(sv, look, by_id=source.version_id is not None)
        version = sight.version
        if version.size > MAX_SINGLE:
            raise S3Error("InvalidRequest", TOO_LARGE)
        onto_itself = version.ref.bucket_id == place.bucket.id and version.ref.key == key and sight.resolved.is_current
        described = copy_attributes(call.headers, version, onto_itself=onto_itself)
        described, owner_id = access.owned(call, place.bucket, described)
        found = await _checksums(sv, sight, algorithm)
        completion = Completion(
            bucket=place.bucket,
            key=key,
            owner_id=owner_id,
            attributes=described,
            etag=version.etag,
            size=version.size,
            digest=version.digest or "",
            checksums=found.values,
            checksum_type=found.kind,
            source=Shared(version.ref, archived=_restored(sv, sight)),
            condition=condition,
            mode=mode,
        )
        try:
            done: Completed = await unhurried(sv.completions.complete(completion))
            break
        except SourceGone:
            if attempt == TRIES:
                raise
    headers = await outcome.settle(sv, place.bucket, done, mode)
    reply = document(messages.copy_result(version.etag, done.modified, found.values, found.kind))
    reply.note = outcome.written(done)
    return reply.add(sources.id_header(sight)).add(headers)


async def upload_part_copy(call: Call, sv: Services) -> Reply:
    """Make a part out of (a range of) another object: its extents are shared; its digests are read unless known."""
    place, key = access.place(call), access.key(call)
    number = part_number(call)
    source = sources.parse_source(call.headers.get(sources.HEADER) or "")
    header = call.headers.get("x-amz-copy-source-range")
    upload = await sv.uploads.get(place.bucket, key, upload_id(call))
    kind = checksum_of(upload)
    look = sources.looking(call, sv, source, content=True)
    for attempt in range(1, TRIES + 1):
        sight = await reading.servable(sv, look, by_id=source.version_id is not None)
        version = sight.version
        span = ByteSpan(0, version.size) if header is None else parse_copy_range(header, version.size)
        assert span.length is not None
        if span.length > MAX_SINGLE:
            raise S3Error("InvalidRequest", TOO_LARGE)
        digests = _known(sight, span, kind.algorithm) or await _read(sv, sight, span, kind.algorithm)
        part = PartRow(number, span.length, digests.md5.hex(), digests.sha256, digests.checksums)
        extents = [sight.resolved.extent] if sight.resolved.extent else await sv.versions.extents(version)
        try:
            pieces = cut(extents, span.offset, span.length)
            modified = await unhurried(sv.uploads.copy_part(upload, part, version.ref, pieces))
            break
        except SourceGone:
            if attempt == TRIES:
                raise
    shown = shown_checksums(upload, digests.checksums)
    return document(messages.copy_part_result(part.etag, modified, shown)).add(sources.id_header(sight))


async def _checksums(sv: Services, sight: Sight, algorithm: Algorithm | None) -> Checksums:
    """The copy's checksums: the source's, or one by another algorithm, computed by reading and writing nothing."""
    version = sight.version
    known = dict(version.checksums)
    if algorithm is None or (algorithm.name in known and version.checksum_type == checksums.FULL_OBJECT):
        return Checksums(known, version.checksum_type)
    digests = await _read(sv, sight, ByteSpan(0, version.size), algorithm)
    if (version.digest or "").startswith("sha256:") and version.digest != f"sha256:{digests.sha256.hex()}":
        raise BlobCorrupt("the source differs from its digest")  # a new checksum must not vouch for it
    return Checksums(dict(digests.checksums), checksums.FULL_OBJECT)


def _known(sight: Sight, span: ByteSpan, algorithm: Algorithm) -> Digests | None:
    """What is recorded of a whole object that was put in one piece: its ETag is its MD5, its digest its SHA-256."""
    version = sight.version
    value = version.checksums.get(algorithm.name)
    whole = span.offset == 0 and span.length == version.size
    if not whole or version.parts or value is None or version.checksum_type != checksums.FULL_OBJECT:
        return None
    name, _, digest = (version.digest or "").partition(":")
    if name != "sha256" or len(version.etag) != 32:
        return None
    return Digests(version.size, bytes.fromhex(version.etag), bytes.fromhex(digest), {algorithm.name: value})


async def _read(sv: Services, sight: Sight, span: ByteSpan, algorithm: Algorithm) -> Digests:
    tally = Tally((algorithm,))
    content = await sv.blobs.open(sight.resolved, span)
    try:
        size = await sv.staging.receive(aiter(content), None, tally.hashes)
    finally:
        await content.close()
    return tally.digests(size)


def _restored(sv: Services, sight: Sight) -> bool:
    """Whether an archived source is read from its temporary copy."""
    decision = reading.decide(sv, sight)
    return isinstance(decision, Serve) and decision.restored
