"""HeadObject, GetObjectAttributes and RestoreObject: what is told without any bytes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.operations.asking import headers, refusal, refused, sent
from tests.operations.house import House


def test_head_says_what_get_would(s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="k", Body=b"x" * 1000, ContentType="x/y", Metadata={"m": "1"})
    got = s3.get_object(Bucket=bucket, Key="k", ChecksumMode="ENABLED")
    head = s3.head_object(Bucket=bucket, Key="k", ChecksumMode="ENABLED")
    volatile = {"date", "x-amz-request-id", "x-amz-id-2"}
    told = {name: value for name, value in headers(head).items() if name not in volatile}
    assert told == {name: value for name, value in headers(got).items() if name not in volatile}
    assert head["ContentLength"] == 1000


def test_head_does_not_wait(s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="scan/k", Body=b"x")
    shown = headers(s3.head_object(Bucket=bucket, Key="scan/k"))
    assert shown["x-sluice-state"] == "scanning" and shown["x-sluice-run"]


def test_head_of_a_range(s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="k", Body=b"0123456789")
    answer = s3.head_object(Bucket=bucket, Key="k", Range="bytes=2-4")
    assert answer["ResponseMetadata"]["HTTPStatusCode"] == 206 and answer["ContentLength"] == 3


def test_standard_is_not_named(s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="k", Body=b"x", StorageClass="STANDARD")
    assert "StorageClass" not in s3.head_object(Bucket=bucket, Key="k")


# --- archived ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["k", "scan/k"])
def test_b201_an_archived_object_is_refused_at_once(s3: Any, bucket: str, key: str) -> None:
    s3.put_object(Bucket=bucket, Key=key, Body=b"x", StorageClass="GLACIER")
    error = refusal(s3.get_object, Bucket=bucket, Key=key)
    assert error["Error"]["Code"] == "InvalidObjectState" and error["ResponseMetadata"]["HTTPStatusCode"] == 403
    assert s3.head_object(Bucket=bucket, Key=key)["StorageClass"] == "GLACIER"
    copy = {"Bucket": bucket, "Key": "copy", "CopySource": f"{bucket}/{key}"}
    assert refused(s3.copy_object, **copy) == (403, "InvalidObjectState")


def test_restore_is_accepted_once(house: House, s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="k", Body=b"x", StorageClass="GLACIER")
    ask = {"Bucket": bucket, "Key": "k", "RestoreRequest": {"Days": 1}}
    answer = s3.restore_object(**ask)
    assert answer["ResponseMetadata"]["HTTPStatusCode"] == 202
    assert s3.head_object(Bucket=bucket, Key="k")["Restore"] == 'ongoing-request="true"'  # B205: no date yet
    assert refused(s3.restore_object, **ask) == (409, "RestoreAlreadyInProgress")
    assert refused(s3.get_object, Bucket=bucket, Key="k") == (403, "InvalidObjectState")


def test_b205_a_restored_object_is_served_until_its_time(house: House, s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="k", Body=b"cold" * 10_000, StorageClass="GLACIER")
    house.wait(lambda: headers(s3.head_object(Bucket=bucket, Key="k"))["x-sluice-state"] == "ready")
    until = datetime.now(UTC) + timedelta(days=1)
    house.run(house.pool.execute(
        "UPDATE version SET restored_blob = blob, restored_until = $2 WHERE key = 'k' AND bucket_id ="
        " (SELECT id FROM bucket WHERE name = $1)", bucket, until))  # fmt: skip
    got = s3.get_object(Bucket=bucket, Key="k")
    assert got["Body"].read() == b"cold" * 10_000
    assert got["Restore"].startswith('ongoing-request="false", expiry-date="') and got["StorageClass"] == "GLACIER"
    answer = s3.restore_object(Bucket=bucket, Key="k", RestoreRequest={"Days": 5})
    assert answer["ResponseMetadata"]["HTTPStatusCode"] == 200


def test_b203_what_is_not_archived_cannot_be_restored(s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="k", Body=b"x")
    ask = {"Bucket": bucket, "Key": "k", "RestoreRequest": {"Days": 1}}
    assert refused(s3.restore_object, **ask) == (403, "InvalidObjectState")


# --- attributes --------------------------------------------------------------------------------------------------


def test_attributes_of_a_plain_object(s3: Any, bucket: str) -> None:
    etag = s3.put_object(Bucket=bucket, Key="k", Body=b"hello")["ETag"].strip('"')
    names = ["ETag", "Checksum", "ObjectParts", "StorageClass", "ObjectSize"]
    told = s3.get_object_attributes(Bucket=bucket, Key="k", ObjectAttributes=names)
    assert told["ETag"] == etag and told["ObjectSize"] == 5 and told["StorageClass"] == "STANDARD"
    assert told["Checksum"]["ChecksumType"] == "FULL_OBJECT" and "ObjectParts" not in told
    assert told["LastModified"]


def test_attributes_need_a_name_that_exists(house: House, s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="k", Body=b"hello")
    client = sent(house.client(), "GetObjectAttributes", **{"x-amz-object-attributes": "Nonsense"})
    ask = {"Bucket": bucket, "Key": "k", "ObjectAttributes": ["ETag"]}
    assert refused(client.get_object_attributes, **ask) == (400, "InvalidArgument")


def test_attributes_follow_head(s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="scan/k", Body=b"x")
    ask = {"Bucket": bucket, "ObjectAttributes": ["ObjectSize"]}
    assert s3.get_object_attributes(Key="scan/k", **ask)["ObjectSize"] == 1
    s3.put_object(Bucket=bucket, Key="bad/k", Body=b"x")
    assert refused(s3.get_object, Bucket=bucket, Key="bad/k")[0] == 403
    assert refused(s3.get_object_attributes, Key="bad/k", **ask) == (403, "ObjectQuarantined")
