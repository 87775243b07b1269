"""A multipart object through the whole stack: what a move or a recall checks are its parts, not only its length."""

from __future__ import annotations

from typing import Any

from processing.digests import Verifier
from processing.ports import Content
from tests.operations.conftest import bucket, house, s3
from tests.operations.house import House
from tests.tiers.places import MIB

__all__ = ["bucket", "house", "s3"]


def upload(s3: Any, bucket: str, parts: list[bytes]) -> None:
    upload_id = s3.create_multipart_upload(Bucket=bucket, Key="k")["UploadId"]
    given = {"Bucket": bucket, "Key": "k", "UploadId": upload_id}
    numbers = range(3, 3 + 2 * len(parts), 2)  # with gaps, as S3 allows
    etags = [
        s3.upload_part(**given, PartNumber=number, Body=part)["ETag"]
        for number, part in zip(numbers, parts, strict=True)
    ]
    listed = [{"PartNumber": number, "ETag": etag} for number, etag in zip(numbers, etags, strict=True)]
    s3.complete_multipart_upload(**given, MultipartUpload={"Parts": listed})


async def loaded(house: House, changed: bool) -> tuple[Content, bool]:
    """The newest version of the engine's last run, and whether its bytes (or changed ones) match its digest."""
    subject = house.engine.runs[max(house.engine.runs)].subject
    assert subject is not None
    content = await house.subjects.load(subject)
    assert content is not None
    verifier = Verifier(content.digest, content.part_sizes)
    assert verifier.checks
    async for chunk in house.subjects.open(content):
        verifier.update(chunk[:-1] + bytes([chunk[-1] ^ 1]) if changed else chunk)
    return content, verifier.matches()


def test_the_parts_of_a_stored_version_are_verified(house: House, s3: Any, bucket: str) -> None:
    upload(s3, bucket, [b"a" * (5 * MIB), b"b" * (5 * MIB + 3), b"c"])
    content, fine = house.run(loaded(house, changed=False))
    assert content.part_sizes == [5 * MIB, 5 * MIB + 3, 1]
    assert content.digest.startswith("sha256-tree:")
    assert fine
    assert not house.run(loaded(house, changed=True))[1]
    s3.copy_object(Bucket=bucket, Key="copy", CopySource={"Bucket": bucket, "Key": "k"})
    assert house.run(loaded(house, changed=False))[1]


def test_one_part_has_the_digest_of_the_whole(house: House, s3: Any, bucket: str) -> None:
    upload(s3, bucket, [b"only"])
    content, fine = house.run(loaded(house, changed=False))
    assert content.digest.startswith("sha256:")
    assert fine
