"""Documents that list: objects, versions, uploads, parts (S3 reference, ListObjects and its kin).

Keys come as bytes and leave exactly, or percent-encoded when the request asked for encoding-type=url. Entries are
written with one format string each: 1,000 of them in less than a millisecond.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from gateway.domain.checksums import BY_NAME
from gateway.domain.listed import Entry
from gateway.domain.objects import Account
from gateway.s3.xml import (
    Tree,
    document,
    elements,
    escape,
    key_text,
    key_url,
    plain_text,
    plain_url,
    timestamp,
)


@dataclass(frozen=True, slots=True)
class VersionEntry:
    """A version, or (marker) a delete marker."""

    entry: Entry
    version_id: str
    is_latest: bool
    marker: bool = False


@dataclass(frozen=True, slots=True)
class Page:
    """What listings have in common: the request's parameters, echoed, and how the page ended."""

    bucket: str
    prefix: bytes = b""
    delimiter: bytes = b""
    limit: int = 1000  # max-keys or max-uploads, as it took effect
    url: bool = False  # encoding-type=url
    truncated: bool = False
    prefixes: Sequence[bytes] = ()

    @property
    def key(self) -> Callable[[bytes], str]:
        """How keys are written."""
        return key_url if self.url else key_text

    def written(self, keys: Sequence[bytes]) -> Sequence[str]:
        """Many keys, as key writes each: one look at all of them tells whether they can stay as they are."""
        plain = plain_url if self.url else plain_text
        return plain(keys) or [self.key(key) for key in keys]

    def head(self) -> str:
        """Elements after the markers: the delimiter and encoding only when they were asked for."""
        delimiter = f"<Delimiter>{self.key(self.delimiter)}</Delimiter>" if self.delimiter else ""
        encoding = "<EncodingType>url</EncodingType>" if self.url else ""
        return f"{delimiter}{encoding}<IsTruncated>{'true' if self.truncated else 'false'}</IsTruncated>"

    def tail(self) -> str:
        shown = self.written(self.prefixes)
        return "".join([f"<CommonPrefixes><Prefix>{prefix}</Prefix></CommonPrefixes>" for prefix in shown])

    def text(self, name: str, key: bytes | None) -> str:
        """An element that holds a key; none for None."""
        return "" if key is None else f"<{name}>{self.key(key)}</{name}>"


def list_objects_v1(
    page: Page, entries: Sequence[Entry], *, marker: bytes = b"", next_marker: bytes | None = None
) -> bytes:
    """ListObjects. next_marker: given only for a truncated page with a delimiter, as S3 does.

    The echoed prefix alone is never percent-encoded here: botocore decodes every key of this document but that one.
    """
    raw = "".join(
        [
            f"<Name>{escape(page.bucket)}</Name><Prefix>{key_text(page.prefix)}</Prefix>",
            page.text("Marker", marker),
            page.text("NextMarker", next_marker),
            f"<MaxKeys>{page.limit}</MaxKeys>",
            page.head(),
            _contents(page, entries),
            page.tail(),
        ]
    )
    return document("ListBucketResult", (), raw=raw)


def list_objects_v2(
    page: Page,
    entries: Sequence[Entry],
    *,
    token: str | None = None,
    next_token: str | None = None,
    start_after: bytes | None = None,
) -> bytes:
    """ListObjectsV2. An entry's owner is written when it is given (fetch-owner)."""
    raw = "".join(
        [
            f"<Name>{escape(page.bucket)}</Name>",
            page.text("Prefix", page.prefix),
            elements((("ContinuationToken", token), ("NextContinuationToken", next_token))),
            page.text("StartAfter", start_after),
            f"<KeyCount>{len(entries) + len(page.prefixes)}</KeyCount><MaxKeys>{page.limit}</MaxKeys>",
            page.head(),
            _contents(page, entries),
            page.tail(),
        ]
    )
    return document("ListBucketResult", (), raw=raw)


def list_versions(
    page: Page,
    versions: Iterable[VersionEntry],
    *,
    key_marker: bytes = b"",
    version_id_marker: str = "",
    next_key_marker: bytes | None = None,
    next_version_id_marker: str | None = None,
) -> bytes:
    """ListObjectVersions: versions and delete markers in one sequence, by key and then newest first."""
    raw = "".join(
        [
            f"<Name>{escape(page.bucket)}</Name>",
            page.text("Prefix", page.prefix),
            page.text("KeyMarker", key_marker),
            elements((("VersionIdMarker", version_id_marker),)),
            page.text("NextKeyMarker", next_key_marker),
            elements((("NextVersionIdMarker", next_version_id_marker),)),
            f"<MaxKeys>{page.limit}</MaxKeys>",
            page.head(),
            _versions(page, versions),
            page.tail(),
        ]
    )
    return document("ListVersionsResult", (), raw=raw)


def _contents(page: Page, entries: Sequence[Entry]) -> str:
    owners, times, checksums = _Owners(), _Times(), _Checksums()
    return "".join(
        [
            f"<Contents><Key>{key}</Key><LastModified>{times[e.modified]}</LastModified>"
            f"<ETag>&quot;{e.etag}&quot;</ETag>{checksums[e.checksum, e.checksum_type]}<Size>{e.size}</Size>"
            f"{owners[e.owner]}<StorageClass>{e.storage_class}</StorageClass>"
            f"{'' if e.restoring is None else _restore(e)}</Contents>"
            for key, e in zip(page.written([e.key for e in entries]), entries, strict=True)
        ]
    )


def _versions(page: Page, versions: Iterable[VersionEntry]) -> str:
    write, owners, times, checksums = page.key, _Owners(), _Times(), _Checksums()
    out: list[str] = []
    for version in versions:
        e = version.entry
        common = (
            f"<Key>{write(e.key)}</Key><VersionId>{version.version_id}</VersionId>"
            f"<IsLatest>{'true' if version.is_latest else 'false'}</IsLatest>"
            f"<LastModified>{times[e.modified]}</LastModified>"
        )
        if version.marker:
            out.append(f"<DeleteMarker>{common}{owners[e.owner]}</DeleteMarker>")
        else:
            out.append(
                f"<Version>{common}<ETag>&quot;{e.etag}&quot;</ETag>{checksums[e.checksum, e.checksum_type]}"
                f"<Size>{e.size}</Size>{owners[e.owner]}<StorageClass>{e.storage_class}</StorageClass>{_restore(e)}</Version>"
            )
    return "".join(out)


class _Owners(dict[Account | None, str]):
    """<Owner> by account: a page has few of them."""

    def __missing__(self, account: Account | None) -> str:
        self[account] = text = "" if account is None else elements((("Owner", owner(account)),))
        return text


class _Times(dict[int, str]):
    """Timestamps by second: objects written together share theirs, or at least the minute."""

    def __init__(self) -> None:
        self._minutes: dict[int, str] = {}

    def __missing__(self, moment: int) -> str:
        minute, second = divmod(moment, 60)
        start = self._minutes.get(minute)
        if start is None:
            start = self._minutes[minute] = timestamp(datetime.fromtimestamp(minute * 60, UTC))[:17]
        self[moment] = text = f"{start}{second:02}.000Z"
        return text


def owner(account: Account) -> Tree:
    """What stands in <Owner> or <Initiator>."""
    return (("ID", account.canonical_id), ("DisplayName", account.display_name))


class _Checksums(dict[tuple[str | None, str | None], str]):
    """<ChecksumAlgorithm> and <ChecksumType>: a page has few of them."""

    def __missing__(self, kind: tuple[str | None, str | None]) -> str:
        self[kind] = text = elements(checksum_kind(kind[0], kind[1] or None))
        return text


def _restore(entry: Entry) -> str:
    if entry.restoring is None:
        return ""
    status = (("IsRestoreInProgress", entry.restoring), ("RestoreExpiryDate", entry.restored_until))
    return elements((("RestoreStatus", status),))


# --- uploads and parts ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class UploadEntry:
    """A multipart upload under way. checksum as in Entry; None when the client chose none."""

    key: bytes
    upload_id: str
    initiated: datetime
    owner: Account
    initiator: Account
    storage_class: str = "STANDARD"
    checksum: str | None = None
    checksum_type: str | None = None


@dataclass(frozen=True, slots=True)
class PartEntry:
    """A part of an upload. checksums: base64 by algorithm name."""

    number: int
    modified: datetime
    etag: str
    size: int
    checksums: Mapping[str, str] = field(default_factory=dict)


def list_uploads(
    page: Page,
    uploads: Iterable[UploadEntry],
    *,
    key_marker: bytes = b"",
    upload_id_marker: str = "",
    next_key_marker: bytes | None = None,
    next_upload_id_marker: str | None = None,
) -> bytes:
    """ListMultipartUploads."""
    raw = "".join(
        [
            f"<Bucket>{escape(page.bucket)}</Bucket>",
            page.text("KeyMarker", key_marker),
            elements((("UploadIdMarker", upload_id_marker),)),
            page.text("NextKeyMarker", next_key_marker),
            elements((("NextUploadIdMarker", next_upload_id_marker),)),
            page.text("Prefix", page.prefix),
            f"<MaxUploads>{page.limit}</MaxUploads>",
            page.head(),
            *[_upload(page, upload) for upload in uploads],
            page.tail(),
        ]
    )
    return document("ListMultipartUploadsResult", (), raw=raw)


def _upload(page: Page, upload: UploadEntry) -> str:
    rest = elements(
        (
            ("UploadId", upload.upload_id),
            ("Initiator", owner(upload.initiator)),
            ("Owner", owner(upload.owner)),
            ("StorageClass", upload.storage_class),
            ("Initiated", upload.initiated),
            *checksum_kind(upload.checksum, upload.checksum_type),
        )
    )
    return f"<Upload>{page.text('Key', upload.key)}{rest}</Upload>"


def checksum_kind(algorithm: str | None, kind: str | None) -> list[tuple[str, str | None]]:
    """<ChecksumAlgorithm> and <ChecksumType>; none when no algorithm was chosen."""
    if algorithm is None:
        return []
    return [("ChecksumAlgorithm", BY_NAME[algorithm].code), ("ChecksumType", kind)]


def list_parts(
    bucket: str,
    upload: UploadEntry,
    parts: Iterable[PartEntry],
    *,
    marker: int = 0,
    next_marker: int = 0,
    limit: int = 1000,
    truncated: bool = False,
) -> bytes:
    """ListParts. next_marker: the number of the last part on the page, 0 for an empty one."""
    tree: Tree = (
        ("Bucket", bucket),
        ("Key", upload.key),
        ("UploadId", upload.upload_id),
        ("Initiator", owner(upload.initiator)),
        ("Owner", owner(upload.owner)),
        ("StorageClass", upload.storage_class),
        ("PartNumberMarker", marker),
        ("NextPartNumberMarker", next_marker),
        ("MaxParts", limit),
        ("IsTruncated", truncated),
        *checksum_kind(upload.checksum, upload.checksum_type),
    )
    raw = "".join(
        [
            f"<Part><PartNumber>{part.number}</PartNumber><LastModified>{timestamp(part.modified)}</LastModified>"
            f"<ETag>&quot;{part.etag}&quot;</ETag><Size>{part.size}</Size>{checksum_values(part.checksums)}</Part>"
            for part in parts
        ]
    )
    return document("ListPartsResult", tree, raw=raw)


def checksum_values(checksums: Mapping[str, str]) -> str:
    """<ChecksumCRC32> and its kin."""
    return "".join([f"<{BY_NAME[name].element}>{value}</{BY_NAME[name].element}>" for name, value in checksums.items()])
