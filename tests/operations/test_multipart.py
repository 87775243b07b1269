"""CreateMultipartUpload, UploadPart, UploadPartCopy, CompleteMultipartUpload, AbortMultipartUpload, listings."""

from __future__ import annotations

import hashlib
import zlib
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.operations.asking import headers, refusal, refused, sent
from tests.operations.house import House

MIB = 1 << 20
LEAST = 5 * MIB


def begin(s3: Any, bucket: str, key: str = "k", **more: Any) -> str:
    return str(s3.create_multipart_upload(Bucket=bucket, Key=key, **more)["UploadId"])


def put(s3: Any, bucket: str, upload: str, number: int, data: bytes, key: str = "k", **more: Any) -> dict[str, Any]:
    answer = s3.upload_part(Bucket=bucket, Key=key, UploadId=upload, PartNumber=number, Body=data, **more)
    sums = {name: value for name, value in answer.items() if name.startswith("Checksum")}
    return {"PartNumber": number, "ETag": answer["ETag"], **sums}


def finish(s3: Any, bucket: str, upload: str, parts: list[dict[str, Any]], key: str = "k", **more: Any) -> Any:
    return s3.complete_multipart_upload(
        Bucket=bucket, Key=key, UploadId=upload, MultipartUpload={"Parts": parts}, **more
    )


def ask(bucket: str, upload: str, parts: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {"Bucket": bucket, "Key": "k", "UploadId": upload, "MultipartUpload": {"Parts": parts}, **more}


def test_three_parts_become_an_object_without_moving_a_byte(house: House, s3: Any, bucket: str) -> None:
    data = [b"1" * LEAST, b"2" * LEAST, b"3" * 1000]
    upload = begin(s3, bucket)
    parts = [put(s3, bucket, upload, number, piece) for number, piece in enumerate(data, 1)]
    before = len(house.tiers["standard"].blobs)
    answer = finish(s3, bucket, upload, parts)
    assert len(house.tiers["standard"].blobs) == before
    md5 = hashlib.md5(b"".join(hashlib.md5(piece).digest() for piece in data)).hexdigest()
    assert answer["ETag"] == f'"{md5}-3"'
    assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == b"".join(data)
    part = s3.get_object(Bucket=bucket, Key="k", Range=f"bytes={LEAST - 1}-{LEAST}")["Body"].read()
    assert part == b"12"


def test_b097_reading_by_part_number(s3: Any, bucket: str) -> None:
    """Sources disagree: parts keep the numbers they were uploaded as; one that is not there is InvalidPart."""
    upload = begin(s3, bucket)
    parts = [put(s3, bucket, upload, 1, b"1" * LEAST), put(s3, bucket, upload, 3, b"33")]
    etag = finish(s3, bucket, upload, parts)["ETag"]
    for call in (s3.get_object, s3.head_object):
        answer = call(Bucket=bucket, Key="k", PartNumber=3)
        assert answer["ResponseMetadata"]["HTTPStatusCode"] == 206
        assert answer["ContentLength"] == 2 and answer["PartsCount"] == 2 and answer["ETag"] == etag
    assert s3.get_object(Bucket=bucket, Key="k", PartNumber=3)["Body"].read() == b"33"
    assert refused(s3.get_object, Bucket=bucket, Key="k", PartNumber=2) == (400, "InvalidPart")
    s3.put_object(Bucket=bucket, Key="plain", Body=b"body")
    assert s3.get_object(Bucket=bucket, Key="plain", PartNumber=1)["Body"].read() == b"body"
    assert refused(s3.get_object, Bucket=bucket, Key="plain", PartNumber=2) == (400, "InvalidPart")
    assert refused(s3.get_object, Bucket=bucket, Key="plain", PartNumber=1, Range="bytes=0-1")[0] == 400


def test_b073_a_repeated_complete_is_answered_again(s3: Any, bucket: str) -> None:
    upload = begin(s3, bucket)
    parts = [put(s3, bucket, upload, 1, b"old")]
    first = finish(s3, bucket, upload, parts)
    again = finish(s3, bucket, upload, parts)
    assert again["ETag"] == first["ETag"] and again["Location"] == first["Location"]
    s3.put_object(Bucket=bucket, Key="k", Body=b"new")
    assert finish(s3, bucket, upload, parts)["ETag"] == first["ETag"]
    assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == b"new"
    assert refused(s3.abort_multipart_upload, Bucket=bucket, Key="k", UploadId=upload) == (404, "NoSuchUpload")


def test_b073_a_repeat_tells_the_verdict_since(house: House, s3: Any, bucket: str) -> None:
    upload = begin(s3, bucket, "bad/k")
    parts = [put(s3, bucket, upload, 1, b"evil", "bad/k")]
    finish(s3, bucket, upload, parts, "bad/k")
    repeat = {**ask(bucket, upload, parts), "Key": "bad/k"}
    assert refused(s3.get_object, Bucket=bucket, Key="bad/k")[0] == 403  # waits for the verdict
    assert refused(s3.complete_multipart_upload, **repeat) == (403, "ObjectQuarantined")


def test_b075_no_parts_and_one_empty_part(s3: Any, bucket: str) -> None:
    upload = begin(s3, bucket)
    assert refused(s3.complete_multipart_upload, Bucket=bucket, Key="k", UploadId=upload)[0] == 400
    assert refused(s3.complete_multipart_upload, **ask(bucket, upload, [])) == (400, "MalformedXML")
    finish(s3, bucket, upload, [put(s3, bucket, upload, 1, b"")])
    assert s3.head_object(Bucket=bucket, Key="k")["ContentLength"] == 0
    assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == b""


def test_b077_b079_a_wrong_list_leaves_the_upload_usable(s3: Any, bucket: str) -> None:
    upload = begin(s3, bucket)
    parts = [put(s3, bucket, upload, 1, b"1" * LEAST), put(s3, bucket, upload, 2, b"2")]
    missing = [*parts, {"PartNumber": 3, "ETag": parts[0]["ETag"]}]
    assert refused(s3.complete_multipart_upload, **ask(bucket, upload, missing)) == (400, "InvalidPart")
    wrong = [parts[0], {**parts[1], "ETag": '"00000000000000000000000000000000"'}]
    assert refused(s3.complete_multipart_upload, **ask(bucket, upload, wrong)) == (400, "InvalidPart")
    assert refused(s3.complete_multipart_upload, **ask(bucket, upload, parts[::-1])) == (400, "InvalidPartOrder")
    finish(s3, bucket, upload, parts)


def test_b081_parts_that_are_too_small(s3: Any, bucket: str) -> None:
    upload = begin(s3, bucket)
    parts = [put(s3, bucket, upload, 1, b"1" * MIB), put(s3, bucket, upload, 2, b"2" * MIB)]
    error = refusal(s3.complete_multipart_upload, **ask(bucket, upload, parts))["Error"]
    assert error["Code"] == "EntityTooSmall" and error["ProposedSize"] == str(MIB) and error["PartNumber"] == "1"
    parts[0] = put(s3, bucket, upload, 1, b"1" * LEAST)
    finish(s3, bucket, upload, parts)


def test_b083_the_last_upload_of_a_part_counts(s3: Any, bucket: str) -> None:
    upload = begin(s3, bucket)
    first, second = put(s3, bucket, upload, 1, b"first"), put(s3, bucket, upload, 1, b"second")
    (listed,) = s3.list_parts(Bucket=bucket, Key="k", UploadId=upload)["Parts"]
    assert listed["ETag"] == second["ETag"]
    assert refused(s3.complete_multipart_upload, **ask(bucket, upload, [first])) == (400, "InvalidPart")
    finish(s3, bucket, upload, [second])
    assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == b"second"


@pytest.mark.parametrize("turn", range(5))
def test_b085_abort_races_complete(house: House, s3: Any, bucket: str, turn: int) -> None:
    upload = begin(s3, bucket)
    parts = [put(s3, bucket, upload, 1, b"f" * 50_000)]
    with ThreadPoolExecutor(2) as pool:
        completing = pool.submit(finish, house.client(), bucket, upload, parts)
        aborting = pool.submit(house.client().abort_multipart_upload, Bucket=bucket, Key="k", UploadId=upload)
        completed, aborted = completing.exception(20), aborting.exception(20)
    assert (completed is None) != (aborted is None)
    there = "Contents" in s3.list_objects_v2(Bucket=bucket)
    assert there is (completed is None)
    if there:
        assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == b"f" * 50_000
    else:
        assert refused(s3.head_object, Bucket=bucket, Key="k")[0] == 404


def test_b085_a_part_that_ends_after_the_abort_is_nowhere(house: House, s3: Any, bucket: str) -> None:
    upload = begin(s3, bucket)
    s3.abort_multipart_upload(Bucket=bucket, Key="k", UploadId=upload)
    assert refused(s3.upload_part, Bucket=bucket, Key="k", UploadId=upload, PartNumber=1, Body=b"x" * 100_000) == (
        404,
        "NoSuchUpload",
    )
    house.wait(lambda: not house.tiers["standard"].staging)
    assert refused(s3.list_parts, Bucket=bucket, Key="k", UploadId=upload) == (404, "NoSuchUpload")


def test_b087_the_declared_size(s3: Any, bucket: str) -> None:
    upload = begin(s3, bucket)
    parts = [put(s3, bucket, upload, 1, b"12345")]
    wrong = ask(bucket, upload, parts, MpuObjectSize=6)
    assert refused(s3.complete_multipart_upload, **wrong) == (400, "InvalidRequest")
    finish(s3, bucket, upload, parts, MpuObjectSize=5)


def test_b089_composite_checksums(s3: Any, bucket: str) -> None:
    data = [b"1" * LEAST, b"2" * LEAST, b"3"]
    upload = begin(s3, bucket, ChecksumAlgorithm="SHA256")
    parts = [put(s3, bucket, upload, number, piece, ChecksumAlgorithm="SHA256") for number, piece in enumerate(data, 1)]
    answer = finish(s3, bucket, upload, parts)
    digest = hashlib.sha256(b"".join(hashlib.sha256(piece).digest() for piece in data)).digest()
    bare = b64encode(digest).decode()
    assert answer["ChecksumSHA256"] == f"{bare}-3" and answer["ChecksumType"] == "COMPOSITE"
    shown = s3.get_object_attributes(Bucket=bucket, Key="k", ObjectAttributes=["Checksum", "ObjectParts"])
    assert shown["Checksum"] == {"ChecksumSHA256": bare, "ChecksumType": "COMPOSITE"}
    assert [part["Size"] for part in shown["ObjectParts"]["Parts"]] == [LEAST, LEAST, 1]


def test_crcs_of_parts_are_combined_not_read(s3: Any, bucket: str) -> None:
    data = [b"1" * LEAST, b"2" * 77]
    upload = begin(s3, bucket, ChecksumAlgorithm="CRC32", ChecksumType="FULL_OBJECT")
    parts = [put(s3, bucket, upload, number, piece, ChecksumAlgorithm="CRC32") for number, piece in enumerate(data, 1)]
    expected = b64encode(zlib.crc32(b"".join(data)).to_bytes(4, "big")).decode()
    assert finish(s3, bucket, upload, parts, ChecksumCRC32=expected)["ChecksumCRC32"] == expected
    shown = s3.head_object(Bucket=bucket, Key="k", ChecksumMode="ENABLED")
    assert shown["ChecksumCRC32"] == expected and shown["ChecksumType"] == "FULL_OBJECT"


@pytest.mark.parametrize(("algorithm", "kind"), [("SHA256", "FULL_OBJECT"), (None, "COMPOSITE"), ("CRC32", "NONSENSE")])
def test_b091_illegal_pairs_at_create(house: House, bucket: str, algorithm: str | None, kind: str) -> None:
    extra = {"x-amz-checksum-type": kind} | ({"x-amz-checksum-algorithm": algorithm} if algorithm else {})
    client = sent(house.client(), "CreateMultipartUpload", **extra)
    assert refused(client.create_multipart_upload, Bucket=bucket, Key="k") == (400, "InvalidRequest")


def test_b093_what_is_said_at_create_is_kept(s3: Any, bucket: str) -> None:
    upload = begin(
        s3, bucket, Metadata={"md5chksum": "abc"}, ContentType="x/y", Tagging="a=1&b=2", StorageClass="STANDARD_IA"
    )
    finish(s3, bucket, upload, [put(s3, bucket, upload, 1, b"x")])
    head = s3.head_object(Bucket=bucket, Key="k")
    assert head["Metadata"] == {"md5chksum": "abc"} and head["ContentType"] == "x/y"
    assert head["StorageClass"] == "STANDARD_IA" and headers(head)["x-amz-tagging-count"] == "2"


def test_b139_metadata_at_create_has_the_limit_too(s3: Any, bucket: str) -> None:
    ask_for = {"Bucket": bucket, "Key": "k", "Metadata": {"n": "v" * 2048}}
    assert refused(s3.create_multipart_upload, **ask_for) == (400, "MetadataTooLarge")


def test_b105_conditions_on_complete(s3: Any, bucket: str) -> None:
    etag = s3.put_object(Bucket=bucket, Key="k", Body=b"there")["ETag"]
    upload = begin(s3, bucket)
    parts = [put(s3, bucket, upload, 1, b"x")]
    taken = ask(bucket, upload, parts, IfNoneMatch="*")
    assert refused(s3.complete_multipart_upload, **taken) == (412, "PreconditionFailed")
    assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == b"there"
    finish(s3, bucket, upload, parts, IfMatch=etag)


def test_b161_one_small_part_is_processed_once(house: House, s3: Any, bucket: str) -> None:
    upload = begin(s3, bucket)
    answer = finish(s3, bucket, upload, [put(s3, bucket, upload, 1, b"abc")])
    found = house.run(house.services.buckets.get(bucket))
    runs = [run for run in house.engine.runs.values() if run.subject and found and run.subject.bucket_id == found.id]
    assert answer["ETag"].endswith('-1"') and len(runs) == 1


def test_sync_mode_of_complete(house: House, s3: Any, bucket: str) -> None:
    create = sent(house.client(), "CreateMultipartUpload", **{"x-sluice-processing": "sync"})
    upload = begin(create, bucket, "bad/k")
    parts = [put(s3, bucket, upload, 1, b"evil", "bad/k")]
    request = {**ask(bucket, upload, parts), "Key": "bad/k"}
    assert refused(s3.complete_multipart_upload, **request) == (403, "ObjectQuarantined")
    assert refused(s3.complete_multipart_upload, **request) == (403, "ObjectQuarantined")  # a repeat says the same


@pytest.mark.parametrize("number", ["0", "10001", "abc", "-1"])
def test_part_numbers(house: House, s3: Any, bucket: str, number: str) -> None:
    upload = begin(s3, bucket)
    client = house.client()

    def change(request: Any, **_: Any) -> None:
        request.url = request.url.replace("partNumber=1", f"partNumber={number}")

    client.meta.events.register("before-sign.s3.UploadPart", change)
    error = refused(client.upload_part, Bucket=bucket, Key="k", UploadId=upload, PartNumber=1, Body=b"x")
    assert error == (400, "InvalidArgument")


# --- UploadPartCopy ------------------------------------------------------------------------------------------------


def copy_part(s3: Any, bucket: str, upload: str, number: int, **more: Any) -> dict[str, Any]:
    request = {"CopySource": f"{bucket}/source", "PartNumber": number, "UploadId": upload, "Key": "k", **more}
    answer = s3.upload_part_copy(Bucket=bucket, **request)["CopyPartResult"]
    return {"PartNumber": number, "ETag": answer["ETag"]}


def test_copied_parts_share_bytes_and_have_their_own_digest(house: House, s3: Any, bucket: str) -> None:
    data = bytes(i * 31 % 256 for i in range(256)) * 4 * 6144
    s3.put_object(Bucket=bucket, Key="source", Body=data)
    before = len(house.tiers["standard"].blobs)
    upload = begin(s3, bucket)
    parts = [
        copy_part(s3, bucket, upload, 1, CopySourceRange=f"bytes=0-{LEAST - 1}"),
        copy_part(s3, bucket, upload, 2),
        put(s3, bucket, upload, 3, b"tail"),
    ]
    assert parts[0]["ETag"] == f'"{hashlib.md5(data[:LEAST]).hexdigest()}"'
    assert parts[1]["ETag"] == f'"{hashlib.md5(data).hexdigest()}"'
    finish(s3, bucket, upload, parts)
    assert len(house.tiers["standard"].blobs) == before
    assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == data[:LEAST] + data + b"tail"


def test_b095_copy_range_past_the_end(s3: Any, bucket: str) -> None:
    """InvalidArgument, as both quotes of S3 have it; s3-tests' test_multipart_copy_invalid_range wants InvalidRange."""
    s3.put_object(Bucket=bucket, Key="source", Body=b"0123456789")
    upload = begin(s3, bucket)
    request = {"Bucket": bucket, "Key": "k", "UploadId": upload, "PartNumber": 1, "CopySource": f"{bucket}/source"}
    error = refusal(s3.upload_part_copy, **request, CopySourceRange="bytes=0-99")
    assert error["Error"]["Code"] == "InvalidArgument" and "10" in error["Error"]["Message"]
    assert "Parts" not in s3.list_parts(Bucket=bucket, Key="k", UploadId=upload)


def test_b119_a_version_as_the_source_of_a_part(s3: Any, bucket: str) -> None:
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    first = s3.put_object(Bucket=bucket, Key="source", Body=b"one")["VersionId"]
    s3.put_object(Bucket=bucket, Key="source", Body=b"two")
    upload = begin(s3, bucket)
    answer = s3.upload_part_copy(
        Bucket=bucket, Key="k", UploadId=upload, PartNumber=1,
        CopySource={"Bucket": bucket, "Key": "source", "VersionId": first},
    )  # fmt: skip
    assert answer["CopySourceVersionId"] == first
    finish(s3, bucket, upload, [{"PartNumber": 1, "ETag": answer["CopyPartResult"]["ETag"]}])
    assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == b"one"


# --- listings ----------------------------------------------------------------------------------------------------


def test_b069_parts_are_paged(s3: Any, bucket: str) -> None:
    upload = begin(s3, bucket)
    for number in range(1, 8):
        put(s3, bucket, upload, number, b"x")
    page = s3.list_parts(Bucket=bucket, Key="k", UploadId=upload, PartNumberMarker=2, MaxParts=2)
    assert [part["PartNumber"] for part in page["Parts"]] == [3, 4]
    assert page["IsTruncated"] is True and page["NextPartNumberMarker"] == 4
    assert s3.list_parts(Bucket=bucket, Key="k", UploadId=upload, MaxParts=5000)["MaxParts"] == 1000


def test_b071_uploads_are_paged_by_key_and_id(s3: Any, bucket: str) -> None:
    made = {("same", begin(s3, bucket, "same")) for _ in range(5)}
    made |= {(key, begin(s3, bucket, key)) for key in ("a", "t", "z")}
    seen: list[tuple[str, str]] = []
    markers: dict[str, str] = {}
    while True:
        page = s3.list_multipart_uploads(Bucket=bucket, MaxUploads=2, **markers)
        seen += [(each["Key"], each["UploadId"]) for each in page.get("Uploads", [])]
        if not page["IsTruncated"]:
            break
        markers = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}
    assert len(seen) == 8 and set(seen) == made


def test_b163_no_uploads_at_all(s3: Any, bucket: str) -> None:
    assert "Uploads" not in s3.list_multipart_uploads(Bucket=bucket)
