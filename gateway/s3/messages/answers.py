"""Documents that answer one request (S3 reference; element names and order as there)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from gateway.domain import checksums
from gateway.domain.etags import quote
from gateway.domain.objects import Account, Versioning
from gateway.s3.messages.listings import PartEntry, owner
from gateway.s3.xml import PROLOG, Scalar, Tree, document, escape

# The characters that no XML 1.0 document can hold, not even as a reference.
_UNREADABLE = dict.fromkeys({*range(0x20), 0xFFFE, 0xFFFF} - {0x09, 0x0A, 0x0D}, "\ufffd")


def error(
    code: str,
    message: str,
    *,
    resource: str | None,
    request_id: str,
    host_id: str,
    elements: Mapping[str, str] | None = None,
) -> bytes:
    """The document of every refusal. It has no namespace.

    What XML cannot hold (a key may have it) is replaced: a client that cannot parse the document misses the code.
    """
    tree: Tree = (
        ("Code", code),
        ("Message", message),
        *(elements or {}).items(),
        ("Resource", resource),
        ("RequestId", request_id),
        ("HostId", host_id),
    )
    shown = [(name, value.translate(_UNREADABLE) if isinstance(value, str) else value) for name, value in tree]
    return document("Error", shown, namespace=None)


@dataclass(frozen=True, slots=True)
class BucketEntry:
    name: str
    created: datetime
    region: str


def list_buckets(
    account: Account, buckets: Iterable[BucketEntry], *, prefix: str | None = None, next_token: str | None = None
) -> bytes:
    """ListBuckets. prefix is echoed when it was given."""
    rows: list[tuple[str, Scalar | Tree | None]] = [
        ("Bucket", (("Name", b.name), ("CreationDate", b.created), ("BucketRegion", b.region))) for b in buckets
    ]
    return document(
        "ListAllMyBucketsResult",
        (("Owner", owner(account)), ("Buckets", rows), ("ContinuationToken", next_token), ("Prefix", prefix)),
    )


def location(constraint: str) -> bytes:
    """GetBucketLocation: empty for us-east-1."""
    return document("LocationConstraint", (), raw=escape(constraint))


def versioning_status(versioning: Versioning) -> bytes:
    """GetBucketVersioning: no Status for a bucket that never had versioning."""
    status = {Versioning.ENABLED: "Enabled", Versioning.SUSPENDED: "Suspended"}.get(versioning)
    return document("VersioningConfiguration", (("Status", status),))


def initiate_upload(bucket: str, key: bytes, upload_id: str) -> bytes:
    return document("InitiateMultipartUploadResult", (("Bucket", bucket), ("Key", key), ("UploadId", upload_id)))


def complete_result(
    location: str,
    bucket: str,
    key: bytes,
    etag: str,
    values: Mapping[str, str],
    kind: str | None,
    *,
    prolog: bool = True,
) -> bytes:
    """CompleteMultipartUpload. values: checksums by algorithm name, kind their type.

    prolog: False when the XML declaration has gone out already, ahead of a wait.
    """
    body = document(
        "CompleteMultipartUploadResult",
        (
            ("Location", location),
            ("Bucket", bucket),
            ("Key", key),
            ("ETag", quote(etag)),
            *checksums.elements(values),
            ("ChecksumType", kind if values else None),
        ),
    )
    return body if prolog else body[len(PROLOG) :]


def copy_result(etag: str, modified: datetime, values: Mapping[str, str], kind: str | None) -> bytes:
    """CopyObject."""
    return document(
        "CopyObjectResult",
        (
            ("LastModified", modified),
            ("ETag", quote(etag)),
            ("ChecksumType", kind if values else None),
            *checksums.elements(values),
        ),
    )


def copy_part_result(etag: str, modified: datetime, values: Mapping[str, str]) -> bytes:
    """UploadPartCopy."""
    return document("CopyPartResult", (("LastModified", modified), ("ETag", quote(etag)), *checksums.elements(values)))


@dataclass(frozen=True, slots=True)
class Deleted:
    """A key (or version) that is gone. marker_id: of the delete marker that was made or removed."""

    key: bytes
    version_id: str | None = None
    marker_id: str | None = None


@dataclass(frozen=True, slots=True)
class NotDeleted:
    key: bytes
    version_id: str | None
    code: str
    message: str


def delete_result(results: Iterable[Deleted | NotDeleted], *, quiet: bool) -> bytes:
    """DeleteObjects, in the request's order. quiet: failures only."""
    rows: list[tuple[str, Tree]] = []
    for result in results:
        if isinstance(result, NotDeleted):
            rows.append(
                (
                    "Error",
                    (
                        ("Key", result.key),
                        ("VersionId", result.version_id),
                        ("Code", result.code),
                        ("Message", result.message),
                    ),
                )
            )
        elif not quiet:
            rows.append(
                (
                    "Deleted",
                    (
                        ("Key", result.key),
                        ("VersionId", result.version_id),
                        ("DeleteMarker", True if result.marker_id is not None else None),
                        ("DeleteMarkerVersionId", result.marker_id),
                    ),
                )
            )
    return document("DeleteResult", rows)


@dataclass(frozen=True, slots=True)
class AttributeParts:
    """ObjectParts of GetObjectAttributes: a page of the parts of a multipart object."""

    total: int
    marker: int
    next_marker: int
    limit: int
    truncated: bool
    parts: Sequence[PartEntry]


def object_attributes(
    *,
    etag: str | None = None,
    values: Mapping[str, str] | None = None,
    kind: str | None = None,
    parts: AttributeParts | None = None,
    storage_class: str | None = None,
    size: int | None = None,
) -> bytes:
    """GetObjectAttributes: what was asked for and exists. The etag has no quotes here, nor a composite checksum its
    number of parts."""
    checksum: Tree | None = None
    if values:
        bare = {name: checksums.bare(value) for name, value in values.items()}
        checksum = (*checksums.elements(bare), ("ChecksumType", kind))
    return document(
        "GetObjectAttributesResponse",
        (
            ("ETag", etag),
            ("Checksum", checksum),
            ("ObjectParts", None if parts is None else _attribute_parts(parts)),
            ("StorageClass", storage_class),
            ("ObjectSize", size),
        ),
    )


def _attribute_parts(page: AttributeParts) -> Tree:
    rows: list[tuple[str, Scalar | Tree | None]] = [
        ("Part", (("PartNumber", part.number), ("Size", part.size), *checksums.elements(part.checksums)))
        for part in page.parts
    ]
    return [
        ("IsTruncated", page.truncated),
        ("MaxParts", page.limit),
        ("NextPartNumberMarker", page.next_marker),
        ("PartNumberMarker", page.marker),
        ("PartsCount", page.total),
        *rows,
    ]
