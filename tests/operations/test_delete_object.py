"""DeleteObject and DeleteObjects."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from typing import Any

import pytest

from tests.operations.asking import headers, refusal, refused, sent
from tests.operations.house import OTHER, ROOT, House
from tests.signing import Signer
from tests.wire.raw import Wire


def versioned(s3: Any, bucket: str, status: str = "Enabled") -> None:
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": status})


def test_deleting_is_204_whatever_was_there(s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="k", Body=b"x")
    for _ in range(2):
        answer = s3.delete_object(Bucket=bucket, Key="k")
        assert answer["ResponseMetadata"]["HTTPStatusCode"] == 204 and "VersionId" not in answer
    assert refused(s3.head_object, Bucket=bucket, Key="k")[0] == 404


def test_b129_a_suspended_bucket_keeps_one_marker(s3: Any, bucket: str) -> None:
    versioned(s3, bucket)
    versioned(s3, bucket, "Suspended")
    for _ in range(3):
        assert s3.delete_object(Bucket=bucket, Key="k")["VersionId"] == "null"
    (marker,) = s3.list_object_versions(Bucket=bucket)["DeleteMarkers"]
    assert marker["VersionId"] == "null"
    s3.put_object(Bucket=bucket, Key="k", Body=b"x")
    page = s3.list_object_versions(Bucket=bucket)
    assert "DeleteMarkers" not in page and len(page["Versions"]) == 1


def test_b133_a_version_that_is_not_there(s3: Any, bucket: str) -> None:
    versioned(s3, bucket)
    unknown = "0" * 16 + "1" * 16
    answer = s3.delete_object(Bucket=bucket, Key="k", VersionId=unknown)
    assert answer["VersionId"] == unknown and "DeleteMarker" not in answer
    assert "DeleteMarkers" not in s3.list_object_versions(Bucket=bucket)


def test_removing_a_marker_brings_the_object_back(s3: Any, bucket: str) -> None:
    versioned(s3, bucket)
    s3.put_object(Bucket=bucket, Key="k", Body=b"x")
    made = s3.delete_object(Bucket=bucket, Key="k")
    assert made["DeleteMarker"] is True
    gone = s3.delete_object(Bucket=bucket, Key="k", VersionId=made["VersionId"])
    assert gone["DeleteMarker"] is True and gone["VersionId"] == made["VersionId"]
    assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == b"x"


def test_b057_a_subresource_never_deletes_the_object(house: House, s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="k", Body=b"x")
    root = Signer(*ROOT, host=f"127.0.0.1:{house.port}")
    for query in ("acl", "torrent", "legal-hold", "retention", "tagging", "frobnicate&acl"):
        with Wire(house.port) as wire:
            wire.send(root.request("DELETE", f"/{bucket}/k?{query}"))
            assert wire.answer().status in (405, 501), query
    for query in ("torrent", "legal-hold", "acl", "retention"):
        with Wire(house.port) as wire:
            wire.send(root.request("PUT", f"/{bucket}/k?{query}", body=b"overwritten"))
            answer = wire.answer()
            assert (answer.status, answer.code) in ((501, "NotImplemented"), (405, "MethodNotAllowed")), query
    assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == b"x"


def test_hidden_rows_go_with_the_key(house: House, s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="bad/k", Body=b"x")
    assert refused(s3.get_object, Bucket=bucket, Key="bad/k") == (403, "ObjectQuarantined")
    s3.delete_object(Bucket=bucket, Key="bad/k")
    assert refused(s3.get_object, Bucket=bucket, Key="bad/k") == (404, "NoSuchKey")


# --- DeleteObjects ---------------------------------------------------------------------------------------------------


def post(house: House, bucket: str, body: bytes, **extra: str) -> Any:
    root = Signer(*ROOT, host=f"127.0.0.1:{house.port}")
    with Wire(house.port) as wire:
        wire.send(root.request("POST", f"/{bucket}?delete", extra, body))
        return wire.answer("POST")


BODY = b"<Delete><Object><Key>k</Key></Object></Delete>"


def test_b121_md5_or_a_checksum_will_do(house: House, bucket: str) -> None:
    import zlib

    md5 = {"Content-MD5": b64encode(hashlib.md5(BODY).digest()).decode()}
    crc = {"x-amz-checksum-crc32": b64encode(zlib.crc32(BODY).to_bytes(4, "big")).decode()}
    assert post(house, bucket, BODY, **md5).status == 200
    assert post(house, bucket, BODY, **crc).status == 200
    neither = post(house, bucket, BODY)
    assert (neither.status, neither.code) == (400, "InvalidRequest")
    wrong = post(house, bucket, BODY, **{"x-amz-checksum-crc32": "AAAAAA=="})
    assert (wrong.status, wrong.code) == (400, "BadDigest")


KEYS = ["a<a", "a&b", "]]>", " lead", "trail ", "cr\rkey", "q\"'", "é"]


def test_b123_keys_with_markup(s3: Any, bucket: str) -> None:
    for key in KEYS:
        s3.put_object(Bucket=bucket, Key=key, Body=b"x")
    answer = s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": key} for key in KEYS]})
    assert [each["Key"] for each in answer["Deleted"]] == KEYS
    assert "Contents" not in s3.list_objects_v2(Bucket=bucket)


def test_b125_quiet_tells_failures_only(house: House, s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="k", Body=b"x")
    objects = [{"Key": "k"}, {"Key": "no", "VersionId": "nonsense"}]
    answer = s3.delete_objects(Bucket=bucket, Delete={"Objects": objects, "Quiet": True})
    assert "Deleted" not in answer
    (error,) = answer["Errors"]
    assert (error["Key"], error["Code"]) == ("no", "InvalidArgument")


def test_each_key_is_decided_on_its_own(house: House, s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="k", Body=b"x")
    answer = house.client(OTHER).delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": "k"}]})
    assert answer["Errors"][0]["Code"] == "AccessDenied"
    assert s3.head_object(Bucket=bucket, Key="k")


def test_versions_and_markers_are_reported(s3: Any, bucket: str) -> None:
    versioned(s3, bucket)
    version = s3.put_object(Bucket=bucket, Key="k", Body=b"x")["VersionId"]
    made = s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": "k"}]})["Deleted"][0]
    assert made["DeleteMarker"] is True and made["DeleteMarkerVersionId"] and "VersionId" not in made
    objects = [{"Key": "k", "VersionId": version}, {"Key": "k", "VersionId": made["DeleteMarkerVersionId"]}]
    first, second = s3.delete_objects(Bucket=bucket, Delete={"Objects": objects})["Deleted"]
    assert first["VersionId"] == version and "DeleteMarker" not in first
    assert second["DeleteMarker"] is True and second["DeleteMarkerVersionId"] == second["VersionId"]
    assert "Versions" not in s3.list_object_versions(Bucket=bucket)


def test_a_thousand_and_no_more(s3: Any, bucket: str) -> None:
    objects = [{"Key": f"k{number}"} for number in range(1001)]
    assert len(s3.delete_objects(Bucket=bucket, Delete={"Objects": objects[:1000]})["Deleted"]) == 1000
    assert refused(s3.delete_objects, Bucket=bucket, Delete={"Objects": objects}) == (400, "MalformedXML")


def test_conditions_per_key(s3: Any, bucket: str) -> None:
    etag = s3.put_object(Bucket=bucket, Key="k", Body=b"x")["ETag"]
    objects = [{"Key": "k", "ETag": '"bad"'}, {"Key": "none", "ETag": '"bad"'}]
    answer = s3.delete_objects(Bucket=bucket, Delete={"Objects": objects})
    assert answer["Errors"][0]["Code"] == "PreconditionFailed" and answer["Deleted"][0]["Key"] == "none"
    s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": "k", "ETag": etag, "Size": 1}]})
    assert refused(s3.head_object, Bucket=bucket, Key="k")[0] == 404


@pytest.mark.parametrize("body", [b"", b"<Delete/>", b"<nope", b"<!DOCTYPE x [<!ENTITY a 'b'>]><Delete>&a;</Delete>"])
def test_bodies_that_are_no_delete(house: House, bucket: str, body: bytes) -> None:
    answer = post(house, bucket, body, **{"Content-MD5": b64encode(hashlib.md5(body).digest()).decode()})
    assert answer.status == 400 and answer.code in ("MalformedXML", "MissingRequestBodyError")


def test_conditions_on_delete(house: House, s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="k", Body=b"x")
    client = sent(house.client(), "DeleteObject", **{"If-Match": '"bad"'})
    error = refusal(client.delete_object, Bucket=bucket, Key="k")
    assert error["Error"]["Code"] == "PreconditionFailed"
    assert headers(client.delete_object(Bucket=bucket, Key="none"))
