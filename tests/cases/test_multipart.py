"""Multipart cases in which requests overlap: raw sockets hold one back while another overtakes it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.operations.asking import refused, sent
from tests.operations.house import House
from tests.signing import Signer
from tests.wire.raw import Wire

SIZE = 300_000


def half_sent(house: House, root: Signer, bucket: str, upload: str, letter: bytes) -> tuple[Wire, bytes]:
    """An UploadPart 1 under way; and what is left of it."""
    request = root.request("PUT", f"/{bucket}/k?partNumber=1&uploadId={upload}", body=letter * SIZE)
    wire = Wire(house.port)
    wire.send(request[: -SIZE // 2])
    house.wait(lambda: house.pipeline.in_flight == 1)
    return wire, request[-SIZE // 2 :]


def complete(s3: Any, bucket: str, upload: str, etag: str) -> dict[str, Any]:
    parts = {"Parts": [{"PartNumber": 1, "ETag": etag}]}
    return {"Bucket": bucket, "Key": "k", "UploadId": upload, "MultipartUpload": parts}


def test_b083_an_attempt_that_ends_after_its_retry(house: House, root: Signer, s3: Any, bucket: str) -> None:
    """A begins, B begins and ends, A ends: one of them is the part, whole, and ListParts says which."""
    upload = s3.create_multipart_upload(Bucket=bucket, Key="k")["UploadId"]
    slow, rest = half_sent(house, root, bucket, upload, b"a")
    with slow:
        fast = s3.upload_part(Bucket=bucket, Key="k", UploadId=upload, PartNumber=1, Body=b"b" * SIZE)["ETag"]
        slow.send(rest)
        answer = slow.answer()
    (listed,) = s3.list_parts(Bucket=bucket, Key="k", UploadId=upload)["Parts"]
    etags = {fast: b"b", answer.headers.get("etag", ""): b"a"}
    assert answer.status == 200 and listed["ETag"] in etags and listed["Size"] == SIZE
    (other,) = set(etags) - {listed["ETag"]}
    assert refused(s3.complete_multipart_upload, **complete(s3, bucket, upload, other)) == (400, "InvalidPart")
    s3.complete_multipart_upload(**complete(s3, bucket, upload, listed["ETag"]))
    assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == etags[listed["ETag"]] * SIZE


@pytest.mark.parametrize("end", ["abort", "complete"])
def test_b085_a_part_under_way_when_its_upload_ends(house: House, root: Signer, s3: Any, bucket: str, end: str) -> None:
    upload = s3.create_multipart_upload(Bucket=bucket, Key="k")["UploadId"]
    etag = s3.upload_part(Bucket=bucket, Key="k", UploadId=upload, PartNumber=1, Body=b"first" * 20_000)["ETag"]
    slow, rest = half_sent(house, root, bucket, upload, b"a")
    with slow:
        if end == "abort":
            s3.abort_multipart_upload(Bucket=bucket, Key="k", UploadId=upload)
        else:
            s3.complete_multipart_upload(**complete(s3, bucket, upload, etag))
        slow.send(rest)
        answer = slow.answer()
    assert (answer.status, answer.code) == (404, "NoSuchUpload")
    assert refused(s3.abort_multipart_upload, Bucket=bucket, Key="k", UploadId=upload) == (404, "NoSuchUpload")
    listed = "Contents" in s3.list_objects_v2(Bucket=bucket)
    if end == "abort":
        assert not listed and refused(s3.head_object, Bucket=bucket, Key="k")[0] == 404
        again = complete(s3, bucket, upload, etag)
        assert refused(s3.complete_multipart_upload, **again) == (404, "NoSuchUpload")
    else:
        assert listed and s3.get_object(Bucket=bucket, Key="k")["Body"].read() == b"first" * 20_000
    # No bytes stay that no row will ever lead to.
    house.wait(lambda: not house.tiers["standard"].staging)
    rows = {row["id"] for row in house.run(house.pool.fetch("SELECT id FROM blob"))}
    assert set(house.tiers["standard"].blobs) <= rows


def test_b091_crc64nvme_is_always_of_the_whole_object(house: House, s3: Any, bucket: str) -> None:
    pair = {"x-amz-checksum-algorithm": "CRC64NVME", "x-amz-checksum-type": "COMPOSITE"}
    client = sent(house.client(), "CreateMultipartUpload", **pair)
    assert refused(client.create_multipart_upload, Bucket=bucket, Key="k") == (400, "InvalidRequest")
    made = s3.create_multipart_upload(Bucket=bucket, Key="k", ChecksumAlgorithm="CRC64NVME")
    assert made["ChecksumType"] == "FULL_OBJECT"


def test_b081_five_mib_and_a_byte(s3: Any, bucket: str) -> None:
    upload = s3.create_multipart_upload(Bucket=bucket, Key="k")["UploadId"]
    parts = []
    for number, data in enumerate((b"x" * (5 << 20), b"y"), 1):
        etag = s3.upload_part(Bucket=bucket, Key="k", UploadId=upload, PartNumber=number, Body=data)["ETag"]
        parts.append({"PartNumber": number, "ETag": etag})
    s3.complete_multipart_upload(Bucket=bucket, Key="k", UploadId=upload, MultipartUpload={"Parts": parts})
    assert s3.head_object(Bucket=bucket, Key="k")["ContentLength"] == (5 << 20) + 1
