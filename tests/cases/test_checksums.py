"""Cases of aws-chunked bodies and of digests: no framing reaches an object, no wrong digest passes."""

from __future__ import annotations

import gzip
import hashlib
import os
import zlib
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import boto3
import pytest

from tests.cases.whole import StartWhole
from tests.operations.asking import headers, refusal, refused
from tests.operations.house import ROOT, House
from tests.signing import Signer
from tests.tiers.places import CREDENTIALS, moto_endpoint, new_bucket
from tests.wire.raw import Answer, Wire, signer

LEAST = 5 << 20
MODES = [(True, False), (True, True), (False, True), (False, False)]  # signed chunks, with a trailer
ECDSA = ["STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD", "STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD-TRAILER"]


def send(port: int, request: bytes) -> Answer:
    with Wire(port) as wire:
        wire.send(request)
        return wire.answer()


def crc32(data: bytes) -> str:
    return b64encode(zlib.crc32(data).to_bytes(4, "big")).decode()


def crc64nvme(data: bytes) -> str:
    from awscrt import checksums

    return b64encode(checksums.crc64nvme(data).to_bytes(8, "big")).decode()


def absent(s3: Any, bucket: str) -> bool:
    return "Contents" not in s3.list_objects_v2(Bucket=bucket)


# --- framing -----------------------------------------------------------------------------------------------------


def test_b023_a_decoded_length_on_a_plain_part_means_nothing(house: House, root: Signer, s3: Any, bucket: str) -> None:
    upload = s3.create_multipart_upload(Bucket=bucket, Key="k")["UploadId"]
    target = f"/{bucket}/k?partNumber=1&uploadId={upload}"
    answer = send(house.port, root.request("PUT", target, {"x-amz-decoded-content-length": "500"}, b"hello"))
    assert answer.status == 200
    parts = {"Parts": [{"PartNumber": 1, "ETag": answer.headers["etag"]}]}
    s3.complete_multipart_upload(Bucket=bucket, Key="k", UploadId=upload, MultipartUpload=parts)
    assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == b"hello"
    assert (
        send(house.port, root.request("PUT", f"/{bucket}/k", {"x-amz-decoded-content-length": "500"}, b"again")).status
        == 200
    )
    assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == b"again"


@pytest.mark.parametrize(
    ("sent", "kept"), [("aws-chunked", None), ("aws-chunked, gzip", "gzip"), ("gzip,aws-chunked", "gzip")]
)
def test_b025_the_word_of_the_transport_is_not_kept(
    house: House, root: Signer, bucket: str, sent: str, kept: str | None
) -> None:
    request = root.chunked("PUT", f"/{bucket}/k", [b"hello"], {"content-encoding": sent})
    assert send(house.port, request).status == 200
    for method in ("GET", "HEAD"):
        with Wire(house.port) as wire:
            wire.send(root.request(method, f"/{bucket}/k"))
            assert wire.answer(method).headers.get("content-encoding") == kept


@pytest.fixture(scope="module")
def moto() -> Iterator[str]:
    with moto_endpoint() as url:
        yield url


def test_b025_nothing_of_it_is_forwarded_to_an_s3_tier(start_whole: StartWhole, moto: str) -> None:
    upstream = new_bucket(moto)
    from storage_tiers.open import TierConfig

    tier = TierConfig("s3", endpoint=moto, bucket=upstream, region="us-east-1", access_key="test", secret_key="test")
    whole = start_whole(tiers={"standard": tier})
    client = whole.client()
    client.create_bucket(Bucket="frames")
    data = os.urandom(50_000)
    root = signer(whole.port, ROOT)
    request = root.chunked("PUT", "/frames/k", [data[:30_000], data[30_000:]], {"content-encoding": "aws-chunked,gzip"})
    assert send(whole.port, request).status == 200
    behind = boto3.client("s3", endpoint_url=moto, **CREDENTIALS)
    (stored,) = behind.list_objects_v2(Bucket=upstream)["Contents"]
    got = behind.get_object(Bucket=upstream, Key=stored["Key"])
    assert got["Body"].read() == data
    assert "aws-chunked" not in headers(got).get("content-encoding", "")


@pytest.mark.parametrize(("sign", "trailer"), MODES)
def test_b035_gzip_through_every_streaming_mode(
    house: House, root: Signer, s3: Any, bucket: str, sign: bool, trailer: bool
) -> None:
    data = gzip.compress(os.urandom(480), mtime=0)[:500]
    named = ("x-amz-checksum-crc32", crc32(data)) if trailer else None
    request = root.chunked("PUT", f"/{bucket}/k", [data[:100], data[100:]], sign=sign, trailer=named)
    assert send(house.port, request).status == 200
    got = s3.get_object(Bucket=bucket, Key="k")
    assert got["Body"].read() == data and got["ContentLength"] == len(data)


@pytest.mark.parametrize("mode", ECDSA)
def test_b035_a_streaming_mode_that_cannot_be_verified_stores_nothing(
    house: House, root: Signer, s3: Any, bucket: str, mode: str
) -> None:
    """Those of SigV4A: refused by name."""
    body = b"3;chunk-signature=00\r\nabc\r\n0;chunk-signature=00\r\n\r\n"
    answer = send(house.port, root.request("PUT", f"/{bucket}/k", {}, body, payload=mode))
    assert (answer.status, answer.code) == (501, "NotImplemented")
    assert absent(s3, bucket)


# --- trailers ----------------------------------------------------------------------------------------------------


def test_b027_a_wrong_trailer_leaves_the_version_before(house: House, root: Signer, s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="k", Body=b"before")
    for size in (5, 50_000):
        wrong = ("x-amz-checksum-crc64nvme", "AAAAAAAAAAA=")
        answer = send(house.port, root.chunked("PUT", f"/{bucket}/k", [b"x" * size], sign=False, trailer=wrong))
        assert (answer.status, answer.code) == (400, "BadDigest")
        assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == b"before"


def test_b029_without_a_trailer_the_checksum_is_ours(house: House, root: Signer, bucket: str) -> None:
    answer = send(house.port, root.chunked("PUT", f"/{bucket}/k", [b"hello"], sign=False))
    assert (answer.status, answer.headers["x-amz-checksum-crc64nvme"]) == (200, crc64nvme(b"hello"))


def test_b031_an_sdk_algorithm_that_the_trailer_contradicts(house: House, root: Signer, s3: Any, bucket: str) -> None:
    trailer = ("x-amz-checksum-crc64nvme", crc64nvme(b"hello"))
    request = root.chunked(
        "PUT", f"/{bucket}/k", [b"hello"], {"x-amz-sdk-checksum-algorithm": "SHA1"}, sign=False, trailer=trailer
    )
    answer = send(house.port, request)
    assert (answer.status, answer.code) == (400, "InvalidRequest")
    assert absent(s3, bucket)
    agreed = {"x-amz-sdk-checksum-algorithm": "CRC64NVME"}
    again = root.chunked("PUT", f"/{bucket}/k", [b"hello"], agreed, sign=False, trailer=trailer)
    assert send(house.port, again).status == 200


def test_b033_each_kind_of_trailer_has_its_own_rules(house: House, root: Signer, s3: Any, bucket: str) -> None:
    right, wrong = ("x-amz-checksum-crc32", crc32(b"hello")), ("x-amz-checksum-crc32", crc32(b"other"))

    def put(**how: Any) -> tuple[int, str]:
        answer = send(house.port, root.chunked("PUT", f"/{bucket}/k", [b"hello"], **how))
        return answer.status, answer.code

    assert put(sign=False, trailer=wrong) == (400, "BadDigest")
    assert put(trailer=right, sign_trailer=False)[0] in (400, 403)
    assert put(trailer=wrong) == (400, "BadDigest")
    assert absent(s3, bucket)
    assert put(sign=False, trailer=right) == put(trailer=right) == (200, "")


# --- digests -----------------------------------------------------------------------------------------------------


def test_b037_what_the_hash_header_may_say(house: House, root: Signer, s3: Any, bucket: str) -> None:
    unknown = send(house.port, root.request("PUT", f"/{bucket}/k", {}, b"x", payload="foo"))
    assert (unknown.status, unknown.code) == (400, "InvalidArgument")
    for body in (b"x", b"x" * 100_000):
        other = hashlib.sha256(b"y").hexdigest()
        wrong = send(house.port, root.request("PUT", f"/{bucket}/k", {}, body, payload=other))
        assert (wrong.status, wrong.code) == (400, "XAmzContentSHA256Mismatch")
    assert absent(s3, bucket)
    house.wait(lambda: not house.tiers["standard"].staging)


def test_b039_an_sdk_asks_once(house: House, s3: Any, bucket: str) -> None:
    """A client with its usual patience, and a digest that can never match."""
    patient = house.client(retries={"total_max_attempts": 5, "mode": "standard"})
    before = len(house.metrics.requests)
    md5 = b64encode(hashlib.md5(b"other").digest()).decode()
    assert refused(patient.put_object, Bucket=bucket, Key="k", Body=b"x", ContentMD5=md5) == (400, "BadDigest")
    house.wait(lambda: len(house.metrics.requests) > before)
    assert [each for each in house.metrics.requests[before:] if each[0] == "PutObject"] == [
        ("PutObject", 400, "BadDigest")
    ]
    assert absent(s3, bucket)


def test_b041_both_digests_are_told(s3: Any, bucket: str) -> None:
    wrong = b64encode(hashlib.md5(b"other").digest()).decode()
    error = refusal(s3.put_object, Bucket=bucket, Key="k", Body=b"x", ContentMD5=wrong)["Error"]
    told = {error["ExpectedDigest"], error["CalculatedDigest"]}
    right = hashlib.md5(b"x").digest()
    assert told & {b64encode(right).decode(), right.hex()}
    assert error["ExpectedDigest"] in (wrong, hashlib.md5(b"other").hexdigest())
