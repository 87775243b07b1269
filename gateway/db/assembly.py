"""CompleteMultipartUpload: the upload's parts become a version, in one transaction, moving no byte."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from gateway.db.completion import Completions, Written, bucket_facts
from gateway.db.errors import BucketGone, NoSuchUpload
from gateway.db.insertion import Completed, Completion, Parts
from gateway.db.uploads import PartRow, StoredPart, Upload, remove_upload, stored_parts, upload_of
from gateway.domain.objects import Bucket, WriteCondition
from processing.ports import Conn
from storage_tiers import failpoints


@dataclass(frozen=True, slots=True)
class Combined:
    """What a list of parts makes: numbers in order, ETag with its suffix, typed digest, checksums of the whole.

    document gets the S3 version id (None: no versioning) and gives the answer's XML and headers, which are stored for
    repeats of the request. request is the SHA-256 of the list that the client sent.
    """

    numbers: Sequence[int]
    etag: str
    size: int
    digest: str
    checksums: Mapping[str, str]
    checksum_type: str | None
    request: bytes
    document: Callable[[str | None], str]
    headers: Mapping[str, str] = field(default_factory=dict)


Check = Callable[[Upload, Mapping[int, PartRow]], Combined]


async def complete_upload(
    completions: Completions,
    bucket: Bucket,
    key: bytes,
    upload_id: str,
    check: Check,
    *,
    condition: WriteCondition | None,
    mode: Literal["sync", "async"],
) -> Completed:
    """Complete an upload. check decides about the parts that are stored; what it raises leaves the upload as it was.

    Raises NoSuchUpload and what Completions.complete raises.
    """

    async def write(conn: Conn) -> Written:
        if not await bucket_facts(conn, {bucket.id}):
            raise BucketGone(bucket.name)
        row = await conn.fetchrow(
            "SELECT * FROM upload WHERE bucket_id = $1 AND key = $2 AND upload_id = $3 FOR UPDATE",
            bucket.id,
            key,
            upload_id,
        )
        if row is None:
            raise NoSuchUpload(upload_id)
        upload = upload_of(row)
        parts = await stored_parts(conn, bucket.id, key, upload_id)
        combined = check(upload, {number: part.row for number, part in parts.items()})
        chosen = [parts[number] for number in combined.numbers]
        completion = Completion(
            bucket=bucket,
            key=key,
            owner_id=upload.owner_id,
            attributes=upload.attributes,
            etag=combined.etag,
            size=combined.size,
            digest=combined.digest,
            checksums=combined.checksums,
            checksum_type=combined.checksum_type,
            source=_parts(upload_id, combined.numbers, chosen),
            condition=condition,
            mode=mode,
        )
        written = await completions.write(conn, [completion], alone=True)
        result = written.results[0]
        if isinstance(result, Exception):
            completions.abandon(written)
            raise result
        try:
            document = combined.document(result.version_id)
            await remove_upload(conn, bucket.id, key, upload_id, combined.numbers, completions.grace)
            await conn.execute(
                """INSERT INTO completed_upload (bucket_id, key, upload_id, seq, rnd, request, document, headers)
                   VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT DO NOTHING""",
                bucket.id,
                key,
                upload_id,
                result.ref.seq,
                result.ref.rnd,
                combined.request,
                document,
                dict(combined.headers),
            )
            failpoints.point("assemble.written")
        except BaseException:
            completions.abandon(written)
            raise
        return Written([replace(result, document=document, headers=combined.headers)], written.enqueued)

    return await completions.alone(condition is not None, write)


def _parts(upload_id: str, numbers: Sequence[int], chosen: Sequence[StoredPart]) -> Parts:
    extents = sum(part.extents for part in chosen)
    only = None
    if extents == 1:
        part = next(part for part in chosen if part.extents)
        only = (part.blob, part.offset) if part.blob is not None else None
    return Parts(upload_id, numbers, extents, only)
