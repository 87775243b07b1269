"""PutObject."""

from __future__ import annotations

import hashlib
import zlib
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.request import Request, urlopen

import pytest

from bench.presign import Presigner
from processing.model import Verdict
from tests.operations.asking import headers, refusal, refused, sent
from tests.operations.house import ROOT, House


def test_a_small_object_comes_back(s3: Any, bucket: str) -> None:
    answer = s3.put_object(Bucket=bucket, Key="a.txt", Body=b"hello", ContentType="text/plain", Metadata={"x": "1"})
    assert answer["ETag"] == f'"{hashlib.md5(b"hello").hexdigest()}"'
    got = s3.get_object(Bucket=bucket, Key="a.txt")
    assert got["Body"].read() == b"hello"
    assert got["ContentType"] == "text/plain" and got["Metadata"] == {"x": "1"}


@pytest.mark.parametrize("size", [0, 1, 16384, 16385, 65536, 65537, 3 << 20])
def test_sizes_around_every_border(house: House, s3: Any, bucket: str, size: int) -> None:
    data = bytes(i * 7 % 251 for i in range(size % 65536)) + b"z" * (size - size % 65536)
    s3.put_object(Bucket=bucket, Key="k", Body=data)
    assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == data
    in_tier = data in house.tiers["standard"].blobs.values()
    assert in_tier is (size > house.settings.inline_threshold)


@pytest.mark.parametrize(
    "algorithm", ["CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256", "SHA512", "MD5", "XXHASH64", "XXHASH3", "XXHASH128"]
)
@pytest.mark.parametrize("size", [5, 100_000])
def test_every_checksum_is_kept_and_shown_on_request(s3: Any, bucket: str, algorithm: str, size: int) -> None:
    from gateway.domain.checksums import BY_NAME

    hasher = BY_NAME[algorithm.lower()].start()
    hasher.update(b"x" * size)
    value = b64encode(hasher.digest()).decode()
    answer = s3.put_object(Bucket=bucket, Key="k", Body=b"x" * size, **{f"Checksum{algorithm}": value})
    name = f"x-amz-checksum-{algorithm.lower()}"
    assert headers(answer)[name] == value
    assert name not in headers(s3.head_object(Bucket=bucket, Key="k"))
    shown = headers(s3.head_object(Bucket=bucket, Key="k", ChecksumMode="ENABLED"))
    assert shown[name] == value and shown["x-amz-checksum-type"] == "FULL_OBJECT"


def test_crc64nvme_is_computed_when_the_client_names_none(house: House, bucket: str) -> None:
    quiet = house.client(request_checksum_calculation="when_required")
    answer = headers(quiet.put_object(Bucket=bucket, Key="k", Body=b"hello"))
    assert answer["x-amz-checksum-crc64nvme"] and answer["x-amz-checksum-type"] == "FULL_OBJECT"


@pytest.mark.parametrize("size", [5, 100_000])
def test_b039_a_wrong_content_md5_is_bad_digest(house: House, s3: Any, bucket: str, size: int) -> None:
    wrong = b64encode(hashlib.md5(b"other").digest()).decode()
    error = refusal(s3.put_object, Bucket=bucket, Key="k", Body=b"x" * size, ContentMD5=wrong)
    assert error["ResponseMetadata"]["HTTPStatusCode"] == 400 and error["Error"]["Code"] == "BadDigest"
    assert error["Error"]["ExpectedDigest"] and error["Error"]["CalculatedDigest"]  # B041
    assert error["ResponseMetadata"]["RetryAttempts"] == 0
    assert refused(s3.head_object, Bucket=bucket, Key="k")[0] == 404
    house.wait(lambda: not house.tiers["standard"].staging)


def test_a_malformed_content_md5_is_invalid_digest(s3: Any, bucket: str) -> None:
    assert refused(s3.put_object, Bucket=bucket, Key="k", Body=b"x", ContentMD5="YWJj") == (400, "InvalidDigest")


def test_b031_an_algorithm_that_disagrees_with_the_trailer(house: House, bucket: str) -> None:
    client = sent(house.client(), "PutObject", **{"x-amz-sdk-checksum-algorithm": "SHA1"})
    crc = b64encode(zlib.crc32(b"hello").to_bytes(4, "big")).decode()
    assert refused(client.put_object, Bucket=bucket, Key="k", Body=b"hello", ChecksumCRC32=crc) == (
        400,
        "InvalidRequest",
    )


def test_b105_conditions_guard_the_key(s3: Any, bucket: str) -> None:
    etag = s3.put_object(Bucket=bucket, Key="k", Body=b"1", IfNoneMatch="*")["ETag"]
    assert refused(s3.put_object, Bucket=bucket, Key="k", Body=b"2", IfNoneMatch="*") == (412, "PreconditionFailed")
    assert refused(s3.put_object, Bucket=bucket, Key="k", Body=b"2", IfMatch='"stale"') == (412, "PreconditionFailed")
    assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == b"1"
    s3.put_object(Bucket=bucket, Key="k", Body=b"3", IfMatch=etag)


def test_b105_a_lock_holds_while_its_content_is_processed(s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="scan/lock", Body=b"1", IfNoneMatch="*")
    assert refused(s3.put_object, Bucket=bucket, Key="scan/lock", Body=b"2", IfNoneMatch="*")[0] == 412


def test_b107_if_match_on_a_missing_key_and_if_none_match_with_an_etag(s3: Any, bucket: str) -> None:
    """Sources disagree about an etag in If-None-Match: it is compared."""
    assert refused(s3.put_object, Bucket=bucket, Key="k", Body=b"1", IfMatch='"x"') == (404, "NoSuchKey")
    etag = s3.put_object(Bucket=bucket, Key="k", Body=b"1")["ETag"]
    assert refused(s3.put_object, Bucket=bucket, Key="k", Body=b"2", IfNoneMatch=etag) == (412, "PreconditionFailed")
    s3.put_object(Bucket=bucket, Key="k", Body=b"2", IfNoneMatch='"other"')


def test_fifty_locks_and_one_winner(house: House, bucket: str) -> None:
    clients = [house.client() for _ in range(8)]

    def take(number: int) -> int:
        try:
            clients[number % 8].put_object(Bucket=bucket, Key="lock", Body=str(number).encode(), IfNoneMatch="*")
        except clients[0].exceptions.ClientError as error:
            return int(error.response["ResponseMetadata"]["HTTPStatusCode"])
        return 200

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(take, range(50)))
    assert results.count(200) == 1 and set(results) <= {200, 412, 409}


def test_b139_user_metadata_has_its_limit(s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="k", Body=b"", Metadata={"n": "v" * 2047})
    assert refused(s3.put_object, Bucket=bucket, Key="k", Body=b"", Metadata={"n": "v" * 2048}) == (
        400,
        "MetadataTooLarge",
    )


@pytest.mark.parametrize("tagging", ["=", "k=1&k=2"])
def test_b141_tag_header_syntax(s3: Any, bucket: str, tagging: str) -> None:
    assert refused(s3.put_object, Bucket=bucket, Key="k", Body=b"", Tagging=tagging) == (400, "InvalidArgument")


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("x-amz-write-offset-bytes", "0"),
        ("x-amz-server-side-encryption", "AES256"),
        ("x-amz-object-lock-mode", "GOVERNANCE"),
        ("x-amz-grant-read", "id=1"),
    ],
)
def test_what_is_not_there_is_refused_not_ignored(house: House, bucket: str, header: str, value: str) -> None:
    client = sent(house.client(), "PutObject", **{header: value})
    assert refused(client.put_object, Bucket=bucket, Key="k", Body=b"x") == (501, "NotImplemented")


def test_too_large_is_known_from_the_length(house: House, bucket: str) -> None:
    client = sent(house.client(request_checksum_calculation="when_required"), "PutObject")

    def grow(request: Any, **_: Any) -> None:
        request.headers["Content-Length"] = str((5 << 30) + 1)
        request.headers["Expect"] = "100-continue"

    client.meta.events.register("before-send.s3.PutObject", grow)
    assert refused(client.put_object, Bucket=bucket, Key="k", Body=b"x") == (400, "EntityTooLarge")


# --- processing ----------------------------------------------------------------------------------------------------


def test_sync_waits_for_the_verdict(house: House, bucket: str) -> None:
    client = sent(house.client(), "PutObject", **{"x-sluice-processing": "sync"})
    assert headers(client.put_object(Bucket=bucket, Key="k", Body=b"x"))["x-sluice-state"] == "ready"
    bad = refusal(client.put_object, Bucket=bucket, Key="bad/k", Body=b"x")
    assert bad["ResponseMetadata"]["HTTPStatusCode"] == 403 and bad["Error"]["Code"] == "ObjectQuarantined"
    assert bad["Error"]["Reason"] == "malware" and headers(bad)["x-sluice-code"] == "malware"
    assert refused(client.put_object, Bucket=bucket, Key="broken/k", Body=b"x") == (422, "ProcessingFailed")


def test_sync_that_takes_too_long_is_answered_as_scanning(worker_dsn: str, bucket: str) -> None:
    house = House(worker_dsn, processing="sync", sync_timeout=0.1).start()
    try:
        answer = house.client().put_object(Bucket=bucket, Key="scan/k", Body=b"x")
        assert headers(answer)["x-sluice-state"] == "scanning"
    finally:
        house.stop()


def test_async_is_answered_before_the_verdict(house: House, s3: Any, bucket: str) -> None:
    answer = headers(s3.put_object(Bucket=bucket, Key="scan/k", Body=b"x"))
    assert answer["x-sluice-state"] == "scanning" and answer["x-sluice-run"]
    house.decide("scan/k", Verdict.READY)
    assert s3.get_object(Bucket=bucket, Key="scan/k")["Body"].read() == b"x"


# --- keys ------------------------------------------------------------------------------------------------------------

KEYS = [
    "..", "../b2/k", "a/../../x", "%2e%2e%2f", "..%5c", ".", "a//b", "/lead", "trail/", "a+b", "a b", "a%2Fb",
    "pct%zz", "é", "日本語", "\U0001f600", "R&D <x> \"q\" 'a'", "]]>", " lead", "trail ", "a\tb", "~", "*'()!",
    "k?x=1#y", "x" * 1024, "é" * 512,
]  # fmt: skip


@pytest.mark.parametrize("key", KEYS, ids=range(len(KEYS)))
def test_b219_every_key_is_a_name_and_stays_itself(s3: Any, bucket: str, key: str) -> None:
    s3.put_object(Bucket=bucket, Key=key, Body=key.encode())
    assert s3.get_object(Bucket=bucket, Key=key)["Body"].read() == key.encode()
    assert [each["Key"] for each in s3.list_objects_v2(Bucket=bucket)["Contents"]] == [key]
    s3.delete_object(Bucket=bucket, Key=key)
    assert "Contents" not in s3.list_objects_v2(Bucket=bucket)


def test_a_key_of_1025_bytes_is_too_long(s3: Any, bucket: str) -> None:
    assert refused(s3.put_object, Bucket=bucket, Key="x" * 1025, Body=b"") == (400, "KeyTooLongError")


@pytest.mark.parametrize("order", [("k", "k/", "k/x"), ("k/x", "k/", "k"), ("k/", "k", "k/x")])
def test_b221_a_key_that_is_a_folder_of_others(s3: Any, bucket: str, order: tuple[str, ...]) -> None:
    for key in order:
        s3.put_object(Bucket=bucket, Key=key, Body=key.encode())
    s3.delete_object(Bucket=bucket, Key=order[0])
    for key in order[1:]:
        assert s3.get_object(Bucket=bucket, Key=key)["Body"].read() == key.encode()


@pytest.mark.parametrize("size", [0, 5, 100_000])
def test_a_presigned_put_with_the_checksum_of_nothing(house: House, s3: Any, bucket: str, size: int) -> None:
    """As the JavaScript SDK makes it: it signs before it knows the body."""
    signer = Presigner(*ROOT, f"127.0.0.1:{house.port}")
    query = [("x-amz-checksum-crc32", "AAAAAA=="), ("x-amz-sdk-checksum-algorithm", "CRC32"), ("x-id", "PutObject")]
    body = bytes(range(256)) * 400
    request = Request(house.endpoint + signer.path("PUT", f"/{bucket}/k", query), body[:size], method="PUT")
    with urlopen(request) as answer:
        assert answer.status == 200
    assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == body[:size]
