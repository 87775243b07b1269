"""Checksums: every algorithm against botocore's own, what headers may ask for, and how mismatches are told."""

from __future__ import annotations

import base64
import os

import pytest
from botocore.httpchecksum import _CHECKSUM_CLS
from botocore.session import get_session

from gateway.domain import checksums
from gateway.domain.checksums import ALGORITHMS, BY_NAME, DEFAULT, Algorithm, Wanted, requested
from gateway.s3.errors import S3Error
from gateway.s3.headers import Headers

DATA = os.urandom(100_003)
NAMES = [algorithm.name for algorithm in ALGORITHMS]


def headers(**fields: str) -> Headers:
    return Headers((name.replace("_", "-"), value) for name, value in fields.items())


def value_of(algorithm: Algorithm, data: bytes = DATA) -> str:
    hasher = algorithm.start()
    hasher.update(data)
    return checksums.encode(hasher.digest())


def refusal(**fields: str) -> S3Error:
    with pytest.raises(S3Error) as caught:
        requested(headers(**fields))
    return caught.value


def test_the_table_is_s3s() -> None:
    model = get_session().get_service_model("s3")
    assert {algorithm.code for algorithm in ALGORITHMS} == set(model.shape_for("ChecksumAlgorithm").enum)
    members = model.shape_for("Checksum").members
    assert {algorithm.element for algorithm in ALGORITHMS} == set(members) - {"ChecksumType"}
    put = model.shape_for("PutObjectRequest").members
    for algorithm in ALGORITHMS:
        assert put[algorithm.element].serialization["name"] == algorithm.header


@pytest.mark.parametrize("name", NAMES)
def test_values_are_those_of_botocore(name: str) -> None:
    reference = _CHECKSUM_CLS.get(name)
    expected = reference().handle(DATA) if reference else None
    if name == "md5":
        import hashlib

        expected = base64.b64encode(hashlib.md5(DATA, usedforsecurity=False).digest()).decode()
    assert value_of(BY_NAME[name]) == expected


@pytest.mark.parametrize("name", NAMES)
def test_hashers_take_views_in_pieces(name: str) -> None:
    algorithm = BY_NAME[name]
    hasher = algorithm.start()
    view = memoryview(DATA)
    for start in range(0, len(DATA), 30_011):
        hasher.update(view[start : start + 30_011])
    assert checksums.encode(hasher.digest()) == value_of(algorithm)
    assert len(hasher.digest()) == algorithm.size


def test_known_values() -> None:
    assert value_of(BY_NAME["crc64nvme"], b"A" * 1024) == "Qeh8oXvGiSo="
    assert value_of(BY_NAME["sha256"], b"A" * 1024) == "arcu6553sHVAiX4MjW0j7I7vD4w6R+Gz9Ok0Q9lTa+0="
    assert value_of(BY_NAME["crc32"], b"123456789") == "y/Q5Jg=="
    assert value_of(BY_NAME["crc32c"], b"123456789") == "4waSgw=="


# --- what is asked for ---------------------------------------------------------------------------------------


def test_nothing_asked_is_crc64nvme() -> None:
    """B029."""
    assert requested(headers()) == Wanted(DEFAULT)
    assert DEFAULT.name == "crc64nvme"


@pytest.mark.parametrize("name", NAMES)
def test_a_value_in_a_header(name: str) -> None:
    algorithm = BY_NAME[name]
    value = value_of(algorithm)
    wanted = requested(headers(**{algorithm.header: value, "x-amz-sdk-checksum-algorithm": algorithm.code}))
    assert wanted == Wanted(algorithm, value, False, True)
    digest = checksums.decode(algorithm, value)
    assert wanted.check(digest) == value
    with pytest.raises(S3Error) as caught:
        wanted.check(bytes(algorithm.size))
    error = caught.value
    assert error.code == "BadDigest"
    assert error.message == f"The {algorithm.code} you specified did not match the calculated checksum."
    assert error.elements["ExpectedDigest"] == value
    assert error.elements["CalculatedDigest"] == checksums.encode(bytes(algorithm.size))


@pytest.mark.parametrize("name", NAMES)
def test_a_trailer(name: str) -> None:
    """B027: a well-formed but wrong one is BadDigest; one of the wrong length, or that is no base64, InvalidRequest."""
    algorithm = BY_NAME[name]
    wanted = requested(headers(x_amz_trailer=algorithm.header, x_amz_sdk_checksum_algorithm=algorithm.code))
    assert wanted.trailer
    assert wanted.declared
    value = value_of(algorithm)
    digest = checksums.decode(algorithm, value)
    assert wanted.check(digest, None, {algorithm.header: value}) == value
    for trailers, code in (
        ({algorithm.header: checksums.encode(bytes(algorithm.size))}, "BadDigest"),
        ({algorithm.header: checksums.encode(bytes(algorithm.size + 1))}, "InvalidRequest"),
        ({algorithm.header: "bad"}, "InvalidRequest"),
        ({}, "MalformedTrailerError"),
    ):
        with pytest.raises(S3Error) as caught:
            wanted.check(digest, None, trailers)
        assert caught.value.code == code


def test_the_sdk_algorithm_must_agree() -> None:
    """B031."""
    invalid = "Value for x-amz-sdk-checksum-algorithm header is invalid."
    for fields in (
        {"x_amz_trailer": "x-amz-checksum-crc64nvme"},
        {"x_amz_checksum_crc32": "AAAAAA=="},
    ):
        error = refusal(x_amz_sdk_checksum_algorithm="SHA1", **fields)
        assert (error.code, error.message) == ("InvalidRequest", invalid)
    assert refusal(x_amz_sdk_checksum_algorithm="ROT13").message == invalid
    alone = refusal(x_amz_sdk_checksum_algorithm="CRC32")
    assert alone.code == "InvalidRequest"
    assert "no corresponding x-amz-checksum-* or x-amz-trailer headers were found" in alone.message
    assert not requested(headers(x_amz_sdk_checksum_algorithm="CRC32"), sdk_algorithm=False).declared


@pytest.mark.parametrize(
    "fields",
    [
        {"x_amz_checksum_crc32": "AAAAAA==", "x_amz_checksum_crc32c": "AAAAAA=="},
        {"x_amz_checksum_crc32": "", "x_amz_checksum_sha1": ""},
        {"x_amz_checksum_crc32": "AAAAAA==", "x_amz_trailer": "x-amz-checksum-crc32"},
        {"x_amz_trailer": "x-amz-checksum-crc32, x-amz-checksum-sha1"},
    ],
)
def test_one_checksum_only(fields: dict[str, str]) -> None:
    error = refusal(**fields)
    assert error.code == "InvalidRequest"
    assert error.message.startswith("Expecting a single x-amz-checksum- header.")


@pytest.mark.parametrize("value", ["", "AAAA", "AAAAAAAA"])
def test_a_value_of_the_wrong_length(value: str) -> None:
    error = refusal(x_amz_checksum_crc32=value)
    assert (error.code, error.message) == ("InvalidRequest", "Value for x-amz-checksum-crc32 header is invalid.")


@pytest.mark.parametrize("value", ["bad", "not base64!", "AAAAAA=", "=AAA", "é"])
def test_a_value_that_is_no_base64_is_a_mismatch(value: str) -> None:
    """As s3-tests has it."""
    assert refusal(x_amz_checksum_sha256=value).code == "BadDigest"


def test_unknown_algorithms() -> None:
    assert refusal(x_amz_checksum_crc16="AAA=").code == "InvalidRequest"
    assert refusal(x_amz_trailer="x-amz-meta-foo").code == "InvalidRequest"
    both = headers(x_amz_checksum_crc16="AAA=", x_amz_checksum_crc32="AAAAAA==", x_amz_checksum_algorithm="CRC32")
    assert requested(both).algorithm.name == "crc32"
    assert checksums.chosen_algorithm(headers(x_amz_checksum_algorithm="sha256")) is BY_NAME["sha256"]
    assert checksums.chosen_algorithm(headers()) is None
    with pytest.raises(S3Error):
        checksums.chosen_algorithm(headers(x_amz_checksum_algorithm="CRC16"))


def test_content_md5() -> None:
    """B039, B041: well-formed but wrong is BadDigest, with the digests as S3 shows them; malformed InvalidDigest."""
    wanted = requested(headers(content_md5="1B2M2Y8AsgTpgAmY7PhCfg=="))
    assert not wanted.declared
    empty = base64.b64decode("1B2M2Y8AsgTpgAmY7PhCfg==")
    assert wanted.check(bytes(8), empty) == checksums.encode(bytes(8))
    with pytest.raises(S3Error) as caught:
        wanted.check(bytes(8), bytes(16))
    assert caught.value.code == "BadDigest"
    assert caught.value.elements == {
        "ExpectedDigest": "d41d8cd98f00b204e9800998ecf8427e",
        "CalculatedDigest": "AAAAAAAAAAAAAAAAAAAAAA==",
    }
    for value in ("", "bad", "AAAA", "1B2M2Y8AsgTpgAmY7PhCfg==x"):
        error = refusal(content_md5=value)
        assert error.code == "InvalidDigest"
        assert error.elements == {"Content-MD5": value}


# --- answers -------------------------------------------------------------------------------------------------


def test_answers() -> None:
    assert checksums.response_headers({"crc32": "v"}, "COMPOSITE") == {
        "x-amz-checksum-crc32": "v",
        "x-amz-checksum-type": "COMPOSITE",
    }
    assert checksums.response_headers({}, "COMPOSITE") == {}
    assert checksums.elements({"xxhash128": "v"}) == [("ChecksumXXHASH128", "v")]
    assert checksums.bare("abc=-12") == "abc="
    assert checksums.shown(headers(x_amz_checksum_mode="ENABLED"))
    assert not checksums.shown(headers())
    with pytest.raises(S3Error):
        checksums.shown(headers(x_amz_checksum_mode="off"))
