from __future__ import annotations

import pytest

from gateway.domain.names import check_bucket, check_key, valid_bucket
from gateway.s3.errors import S3Error


@pytest.mark.parametrize("name", ["abc", "a--b", "a.b", "0ab", "a" * 63, "foo.bar-baz.9", "1.2.3", "192.168.5.4.5"])
def test_b145_good_names(name: str) -> None:
    assert check_bucket(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "ab",
        "a",
        "",
        "a" * 64,
        "Abc",
        "a_b",
        "_abc",
        "-abc",
        "abc-",
        ".abc",
        "abc.",
        "a..b",
        "a.-b",
        "a-.b",
        "192.168.5.4",
        "192.168.5.123",
        "ab\n",
        "abc\n",
        "äbc",
        "a b",
        "..",
        "xn--abc",
        "sthree-abc",
        "abc-s3alias",
        "abc--ol-s3",
    ],
)
def test_b145_bad_names(name: str) -> None:
    assert not valid_bucket(name)
    with pytest.raises(S3Error) as caught:
        check_bucket(name)
    assert (caught.value.code, caught.value.status) == ("InvalidBucketName", 400)


@pytest.mark.parametrize(
    "key", [b"a", b"..", b"../b2/k", b"/", b"k/", b"a//b", b"\x00", b"a" * 1024, "ä".encode() * 512, b".", b"a\\b"]
)
def test_b219_any_utf8_is_a_key(key: bytes) -> None:
    assert check_key(key) == key


def test_bad_keys() -> None:
    with pytest.raises(S3Error) as caught:
        check_key(b"a" * 1025)
    assert caught.value.code == "KeyTooLongError"
    assert caught.value.elements == {"Size": "1025", "MaxSizeAllowed": "1024"}
    with pytest.raises(S3Error) as caught:
        check_key(b"\xff")
    assert caught.value.code == "InvalidURI"
