"""Checksums of multipart uploads: legal pairs, what a part must carry, combined and composite values."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.checksums import ALGORITHMS, BY_NAME, COMPOSITE, FULL_OBJECT
from gateway.domain.part_checksums import (
    PartChecksum,
    UploadChecksum,
    algorithms,
    check_whole,
    combined,
    composite,
    for_complete,
    for_part,
    for_upload,
    whole,
)
from gateway.s3.errors import S3Error
from tests.pure.test_checksums import headers, value_of

SHA256 = UploadChecksum(BY_NAME["sha256"], COMPOSITE, True)
CRC32 = UploadChecksum(BY_NAME["crc32"], FULL_OBJECT, True)


@pytest.mark.parametrize(
    ("algorithm", "kind", "expected"),
    [
        (None, None, ("crc64nvme", FULL_OBJECT, False)),
        ("CRC64NVME", None, ("crc64nvme", FULL_OBJECT, True)),
        ("crc64nvme", "FULL_OBJECT", ("crc64nvme", FULL_OBJECT, True)),
        ("CRC32", None, ("crc32", COMPOSITE, True)),
        ("CRC32C", "full_object", ("crc32c", FULL_OBJECT, True)),
        ("SHA256", None, ("sha256", COMPOSITE, True)),
        ("XXHASH3", "COMPOSITE", ("xxhash3", COMPOSITE, True)),
    ],
)
def test_create(algorithm: str | None, kind: str | None, expected: tuple[str, str, bool]) -> None:
    fields = {"x-amz-checksum-algorithm": algorithm, "x-amz-checksum-type": kind}
    got = for_upload(headers(**{name: value for name, value in fields.items() if value is not None}))
    assert (got.algorithm.name, got.type, got.declared) == expected


@pytest.mark.parametrize(
    ("algorithm", "kind", "message"),
    [
        ("SHA256", "FULL_OBJECT", "The FULL_OBJECT checksum type cannot be used with the sha256 checksum algorithm."),
        ("SHA1", "FULL_OBJECT", "The FULL_OBJECT checksum type cannot be used with the sha1 checksum algorithm."),
        (
            "CRC64NVME",
            "COMPOSITE",
            "The COMPOSITE checksum type cannot be used with the crc64nvme checksum algorithm.",
        ),
        (
            None,
            "COMPOSITE",
            "The x-amz-checksum-type header can only be used with the x-amz-checksum-algorithm header.",
        ),
        ("SHA256", "PARTIAL", "Value for x-amz-checksum-type header is invalid."),
        (None, "PARTIAL", "Value for x-amz-checksum-type header is invalid."),
    ],
)
def test_illegal_pairs(algorithm: str | None, kind: str, message: str) -> None:
    """B091."""
    fields = {"x-amz-checksum-type": kind} | ({"x-amz-checksum-algorithm": algorithm} if algorithm else {})
    with pytest.raises(S3Error) as caught:
        for_upload(headers(**fields))
    assert (caught.value.code, caught.value.message) == ("InvalidRequest", message)


def test_parts_use_the_uploads_algorithm() -> None:
    value = value_of(BY_NAME["sha256"])
    assert for_part(headers(x_amz_checksum_sha256=value), SHA256).value == value
    for fields, actual in (({"x_amz_checksum_crc32": "AAAAAA=="}, "crc32"), ({}, "null")):
        with pytest.raises(S3Error) as caught:
            for_part(headers(**fields), SHA256)
        assert caught.value.code == "InvalidRequest"
        assert caught.value.message == (
            f"Checksum Type mismatch occurred, expected checksum Type: sha256, actual checksum Type: {actual}"
        )
    # A full-object upload computes what a part does not say.
    silent = for_part(headers(), CRC32)
    assert (silent.algorithm.name, silent.declared) == ("crc32", False)


def test_an_upload_without_algorithm_takes_any_part_and_becomes_crc64nvme() -> None:
    upload = for_upload(headers())
    wanted = for_part(headers(x_amz_checksum_sha1=value_of(BY_NAME["sha1"])), upload)
    assert [algorithm.name for algorithm in algorithms(wanted, upload)] == ["sha1", "crc64nvme"]
    assert [algorithm.name for algorithm in algorithms(for_part(headers(), upload), upload)] == ["crc64nvme"]


@pytest.mark.parametrize("name", [row.name for row in ALGORITHMS if row.combine])
@given(sizes=st.lists(st.integers(0, 5000), min_size=1, max_size=6))
def test_crcs_of_parts_combine(name: str, sizes: list[int]) -> None:
    algorithm = BY_NAME[name]
    pieces = [os.urandom(size) for size in sizes]
    parts = [PartChecksum(value_of(algorithm, piece), len(piece)) for piece in pieces]
    assert combined(algorithm, parts) == value_of(algorithm, b"".join(pieces))
    assert whole(UploadChecksum(algorithm, FULL_OBJECT, True), parts) == combined(algorithm, parts)


def test_hashes_do_not_combine() -> None:
    with pytest.raises(ValueError, match="sha256"):
        combined(BY_NAME["sha256"], [PartChecksum(value_of(BY_NAME["sha256"]), 1)])


def test_composite_values_are_s3s() -> None:
    """B089; the values are those of s3-tests."""
    size = 5 * 1024 * 1024
    parts = [PartChecksum(value_of(BY_NAME["sha256"], letter * size), size) for letter in (b"A", b"B", b"C")]
    assert whole(SHA256, parts) == "uWBwpe1dxI4Vw8Gf0X9ynOdw/SS6VBzfWm9giiv1sf4=-3"
    one = composite(BY_NAME["sha256"], [value_of(BY_NAME["sha256"], b"A" * 1024)])
    assert one == "Ok6Cs5b96ux6+MWQkJO7UBT5sKPBeXBLwvj/hK89smg=-1"


def test_complete() -> None:
    value = composite(BY_NAME["sha256"], [value_of(BY_NAME["sha256"])])
    assert for_complete(headers(), SHA256) is None
    assert for_complete(headers(x_amz_checksum_sha256=value, x_amz_checksum_type="COMPOSITE"), SHA256) == value
    for fields, code in (
        ({"x_amz_checksum_type": "FULL_OBJECT"}, "InvalidRequest"),
        ({"x_amz_checksum_crc32": "AAAAAA=="}, "InvalidRequest"),
        ({"x_amz_checksum_sha256": "AAAA"}, "InvalidRequest"),
        ({"x_amz_checksum_sha256": "bad"}, "BadDigest"),
    ):
        with pytest.raises(S3Error) as caught:
            for_complete(headers(**fields), SHA256)
        assert caught.value.code == code


def test_the_whole_is_checked() -> None:
    check_whole(None, "abc=-3", SHA256)
    check_whole("abc=-3", "abc=-3", SHA256)
    check_whole("abc=", "abc=-3", SHA256)
    check_whole("abc=", "abc=", CRC32)
    for expected, upload in (("abc=-2", SHA256), ("xyz=", SHA256), ("xyz=", CRC32)):
        with pytest.raises(S3Error) as caught:
            check_whole(expected, "abc=-3", upload)
        assert caught.value.code == "BadDigest"
        assert caught.value.elements == {"ExpectedDigest": expected, "CalculatedDigest": "abc=-3"}
