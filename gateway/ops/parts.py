"""What the operations on parts have in common."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.db.uploads import Upload
from gateway.domain import checksums
from gateway.domain.part_checksums import UploadChecksum
from gateway.ops import access, views
from gateway.s3.call import Call
from gateway.s3.errors import S3Error


def part_number(call: Call) -> int:
    """Raises InvalidArgument."""
    return views.part_number(call.query.get("partNumber"))


def upload_id(call: Call) -> str:
    """Raises NoSuchUpload for what no upload can be called (Postgres keeps no U+0000 in text)."""
    given = call.query.get("uploadId") or ""
    if not given.isalnum() or not given.isascii():
        raise S3Error("NoSuchUpload", UploadId=given)
    return given


def initiator(call: Call) -> int:
    """Who opened an upload; the bucket's owner stands for the anonymous."""
    account = call.caller.account
    return account.id if account is not None else access.place(call).bucket.owner.id


def checksum_of(upload: Upload) -> UploadChecksum:
    """What the upload was created with."""
    if upload.checksum_algorithm is None or upload.checksum_type is None:
        return UploadChecksum()
    return UploadChecksum(checksums.BY_NAME[upload.checksum_algorithm], upload.checksum_type, True)


def shown_checksums(upload: Upload, values: Mapping[str, str]) -> dict[str, str]:
    """A part's checksums as listings and copies show them: only the one that was asked for at creation."""
    if upload.checksum_algorithm is None:
        return {}
    return {name: value for name, value in values.items() if name == upload.checksum_algorithm}
