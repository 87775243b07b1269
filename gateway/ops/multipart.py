"""Multipart uploads: create, put parts, look, complete, abort."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from urllib.parse import quote

from gateway.db.assembly import Combined, complete_upload
from gateway.db.errors import NoSuchUpload
from gateway.db.insertion import Completed
from gateway.db.uploads import PartRow, Upload
from gateway.domain import checksums, conditions, etags, part_checksums
from gateway.domain.metadata import read_attributes
from gateway.domain.objects import State, Versioning, VersionRef
from gateway.domain.part_checksums import PartChecksum, UploadChecksum
from gateway.http.reply import Reply, document
from gateway.ops import access, outcome, upload_listing, writing
from gateway.ops.parts import checksum_of, initiator, part_number, upload_id
from gateway.ops.writing import unhurried
from gateway.s3 import messages
from gateway.s3.call import Call
from gateway.s3.errors import S3Error, invalid_argument
from gateway.services import Services
from processing.digests import tree, whole

MIN_PART = 5 << 20  # bytes, of every part but the last (S3 user guide, "Amazon S3 multipart upload limits")
MAX_OBJECT = 5 << 40

list_parts = upload_listing.list_parts
list_multipart_uploads = upload_listing.list_multipart_uploads


async def create_multipart_upload(call: Call, sv: Services) -> Reply:
    """Open an upload; everything that describes the object is said here."""
    bucket, key = access.place(call).bucket, access.key(call)
    mode = call.headers.get(outcome.HEADER) and outcome.mode(call, sv, bucket)
    attributes, owner_id = access.owned(call, bucket, read_attributes(call.headers))
    checksum = part_checksums.for_upload(call.headers)
    upload = await sv.uploads.create(
        bucket,
        key,
        owner_id,
        initiator(call),
        attributes,
        checksum.algorithm.name if checksum.declared else None,
        checksum.type if checksum.declared else None,
        mode,
    )
    reply = document(messages.initiate_upload(bucket.name, key, upload.upload_id))
    if checksum.declared:
        reply.add({"x-amz-checksum-algorithm": checksum.algorithm.code, "x-amz-checksum-type": checksum.type})
    return reply


async def upload_part(call: Call, sv: Services) -> Reply:
    """Store the body as one part, in place of an earlier one of that number."""
    bucket, key = access.place(call).bucket, access.key(call)
    number = part_number(call)
    upload = await sv.uploads.get(bucket, key, upload_id(call))
    checksum = checksum_of(upload)
    wanted = part_checksums.for_part(call.headers, checksum)
    tier = sv.placement.landing(upload.attributes.storage_class)
    received = await writing.receive(sv, call.body, tier, wanted, part_checksums.algorithms(wanted, checksum))
    digests = received.digests
    part = PartRow(number, digests.size, received.etag, digests.sha256, digests.checksums)
    await writing.conclude(sv, received, sv.uploads.put_part(upload, part, received.source))
    value = digests.checksums[wanted.algorithm.name]
    return Reply(200, [("ETag", etags.quote(received.etag)), (wanted.algorithm.header, value)])


async def complete_multipart_upload(call: Call, sv: Services) -> Reply:
    """Make the object out of its parts. A repeat of a request that succeeded is answered as it was then."""
    bucket, key = access.place(call).bucket, access.key(call)
    name = upload_id(call)
    condition = conditions.write_condition(call.headers)
    expected_size = _expected_size(call)
    body = await writing.read_document(call, sv)
    parts = messages.parse_complete(body)
    request = hashlib.sha256(repr([(part.number, part.etag) for part in parts]).encode()).digest()
    location = _location(call)

    def check(upload: Upload, stored: Mapping[int, PartRow]) -> Combined:
        chosen = _chosen(parts, stored, checksum_of(upload))
        checksum = checksum_of(upload)
        expected = part_checksums.for_complete(call.headers, checksum)
        size = sum(part.size for part in chosen)
        if expected_size is not None and expected_size != size:
            raise S3Error(
                "InvalidRequest",
                f"The provided 'x-amz-mp-object-size' header value {expected_size} does not match what was computed: "
                f"{size}",
            )
        if size > MAX_OBJECT:
            raise S3Error("EntityTooLarge", ProposedSize=size, MaxSizeAllowed=MAX_OBJECT)
        algorithm = checksum.algorithm.name
        value = part_checksums.whole(checksum, [PartChecksum(part.checksums[algorithm], part.size) for part in chosen])
        part_checksums.check_whole(expected, value, checksum)
        etag = etags.multipart(bytes.fromhex(part.etag) for part in chosen)
        values = {algorithm: value}
        return Combined(
            numbers=[part.number for part in chosen],
            etag=etag,
            size=size,
            digest=_digest(chosen),
            checksums=values,
            checksum_type=checksum.type,
            request=request,
            document=lambda _: messages.complete_result(
                location, bucket.name, key, etag, values, checksum.type
            ).decode(),
        )

    try:
        upload = await sv.uploads.get(bucket, key, name)
    except NoSuchUpload:
        return await _repeated(call, sv, name, request)
    mode = outcome.mode(call, sv, bucket)
    if outcome.HEADER not in call.headers and upload.mode is not None:
        mode = "sync" if upload.mode == "sync" else "async"
    part_checksums.for_complete(call.headers, checksum_of(upload))
    try:
        done = await unhurried(
            complete_upload(sv.completions, bucket, key, name, check, condition=condition, mode=mode)
        )
    except NoSuchUpload:  # another Complete, or an Abort, came first
        return await _repeated(call, sv, name, request)
    headers = await outcome.settle(sv, bucket, done, mode)
    reply = document((done.document or "").encode())
    reply.note = outcome.written(done)
    return reply.add(headers)


async def abort_multipart_upload(call: Call, sv: Services) -> Reply:
    """Forget an upload and its parts."""
    await sv.uploads.abort(access.place(call).bucket, access.key(call), upload_id(call))
    return Reply(204)


def _chosen(
    wanted: Sequence[messages.CompletePart], stored: Mapping[int, PartRow], checksum: UploadChecksum
) -> list[PartRow]:
    """The stored parts that the request lists. Raises InvalidPartOrder, InvalidPart, EntityTooSmall, InvalidRequest."""
    chosen: list[PartRow] = []
    last = 0
    for index, each in enumerate(wanted):
        if each.number < last:
            raise S3Error("InvalidPartOrder")
        last = each.number
        if index + 1 < len(wanted) and wanted[index + 1].number == last:
            continue  # a part that was sent twice and is listed twice: the later one counts (as s3-tests has it)
        part = stored.get(each.number)
        if part is None or part.etag != each.etag:
            raise S3Error("InvalidPart", PartNumber=each.number, ETag=each.etag)
        for name, value in each.checksums.items():
            if part.checksums.get(name) != value:
                raise S3Error("InvalidPart", PartNumber=each.number, ETag=each.etag)
        if checksum.declared and checksum.type == checksums.COMPOSITE and checksum.algorithm.name not in each.checksums:
            raise S3Error(
                "InvalidRequest",
                f"The upload was created using a {checksum.algorithm.name} checksum. The complete request must include "
                f"the checksum for each part. It was missing for part {each.number} in the request.",
            )
        chosen.append(part)
    for part in chosen[:-1]:
        if part.size < MIN_PART:
            raise S3Error(
                "EntityTooSmall",
                ProposedSize=part.size,
                MinSizeAllowed=MIN_PART,
                PartNumber=part.number,
                ETag=part.etag,
            )
    return chosen


def _digest(parts: Sequence[PartRow]) -> str:
    """The typed content digest: of one part its own; of several, SHA-256 over their digests.

    The types differ, so that a plain file made of the digests cannot borrow the object's verdict.
    """
    if len(parts) == 1:
        return whole(parts[0].sha256)
    return tree(part.sha256 for part in parts)


async def _repeated(call: Call, sv: Services, name: str, request: bytes) -> Reply:
    """A Complete whose upload is gone: the same list of parts gets the answer it got, from the version's state.

    botocore repeats a 200 whose body holds an error, and clients repeat when an answer got lost.
    """
    bucket, key = access.place(call).bucket, access.key(call)
    stored = await sv.uploads.completed(bucket, key, name)
    if stored is None or stored.request != request:
        raise S3Error("NoSuchUpload", UploadId=name)
    version = (await sv.versions.again(stored.ref, content=False)).version
    done = Completed(
        ref=stored.ref,
        version_id=_version_id(bucket.versioning, stored.ref, version is not None and version.is_null),
        state=State.READY if version is None else version.state,
        code=None if version is None else version.code,
        detail=None if version is None else version.detail,
        run_id=None if version is None else version.run_id,
        modified=sv.clock() if version is None else version.modified,
        repeated=True,
    )
    headers = await outcome.settle(sv, bucket, done, outcome.mode(call, sv, bucket))
    return document(stored.document.encode()).add(headers)


def _version_id(versioning: Versioning, ref: VersionRef, is_null: bool) -> str | None:
    if versioning is Versioning.OFF:
        return None
    return "null" if is_null else ref.version_id


def _expected_size(call: Call) -> int | None:
    text = call.headers.get("x-amz-mp-object-size")
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise invalid_argument("x-amz-mp-object-size", text, "Value for x-amz-mp-object-size header is invalid.")
    return int(text)


def _location(call: Call) -> str:
    """The object's URL, as the client addressed it."""
    scheme = "https" if call.secure else "http"
    host = call.headers.get("host") or ""
    bucket, key = access.place(call).bucket.name, access.key(call)
    name = quote(key, safe="/")
    if host.startswith(f"{bucket}."):
        return f"{scheme}://{host}/{name}"
    return f"{scheme}://{host}/{bucket}/{name}"
