"""Requests taken apart: buckets, keys, queries, headers, hosts, tokens."""

from __future__ import annotations

from operator import attrgetter
from urllib.parse import quote, quote_from_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.checksums import ALGORITHMS, BY_NAME, Algorithm, Wanted, encode, requested
from gateway.s3 import tokens
from gateway.s3.call import Parsed, parse, split_target
from gateway.s3.errors import S3Error
from gateway.s3.headers import Headers, Query, signed_hosts, split_host, trusted_peer
from gateway.s3.operations import Target


def taken(target: str, host: str = "localhost:9000", domain: str | None = None, method: str = "GET") -> Parsed:
    return parse(method, target, [(b"Host", host.encode())], domain)


def refusal(target: str, host: str = "localhost:9000", domain: str | None = None) -> str:
    with pytest.raises(S3Error) as caught:
        taken(target, host, domain)
    return caught.value.code


@pytest.mark.parametrize(
    ("target", "bucket", "key"),
    [
        ("/", None, None),
        ("/?x=1", None, None),
        ("/bkt", "bkt", None),
        ("/bkt/", "bkt", None),
        ("/bkt?list-type=2", "bkt", None),
        ("/bkt/k", "bkt", b"k"),
        ("/bkt//foo", "bkt", b"/foo"),  # B001
        ("/bkt///", "bkt", b"//"),
        ("/bkt/a//b/", "bkt", b"a//b/"),
        ("/bkt/./..//.", "bkt", b"./..//."),
        ("/bkt/../b2/k", "bkt", b"../b2/k"),  # B219
        ("/bkt/%2e%2e%2f", "bkt", b"../"),
        ("/bkt/..%5c", "bkt", b"..\\"),
        ("/bkt/pct%25zz", "bkt", b"pct%zz"),  # B003
        ("/bkt/a%252Fb", "bkt", b"a%2Fb"),
        ("/bkt/a%2Fb", "bkt", b"a/b"),  # B007
        ("/bkt/a+b", "bkt", b"a+b"),
        ("/bkt/a%2Bb%20c", "bkt", b"a+b c"),
        ("/bkt/%00", "bkt", b"\x00"),
        ("/bkt/%27%28%29%2A%21", "bkt", b"'()*!"),
        ("/bkt/%C3%A4", "bkt", "ä".encode()),
        ("/bkt/k?a=b?c", "bkt", b"k"),
        ("http://localhost:9000/bkt/k?acl", "bkt", b"k"),
        ("HTTPS://localhost", None, None),
    ],
)
def test_path_style(target: str, bucket: str | None, key: bytes | None) -> None:
    parsed = taken(target)
    assert (parsed.bucket, parsed.key, parsed.virtual) == (bucket, key, False)
    expected = Target.SERVICE if bucket is None else Target.BUCKET if key is None else Target.OBJECT
    assert parsed.target is expected
    assert parsed.raw_target == target


@pytest.mark.parametrize(
    ("target", "code"),
    [
        ("/bkt/pct%zz", "InvalidURI"),  # B003
        ("/bkt/%", "InvalidURI"),
        ("/bkt/%4", "InvalidURI"),
        ("/bkt/%FF", "InvalidURI"),
        ("/bkt/\udcff", "InvalidURI"),
        ("/bkt?prefix=%zz", "InvalidURI"),
        ("/bkt?prefix=%FF", "InvalidURI"),
        ("/bkt/" + "a" * 1025, "KeyTooLongError"),
        ("/_bkt/k", "InvalidBucketName"),
        ("/ab", "InvalidBucketName"),
        ("//bkt/k", "InvalidBucketName"),
        ("/..", "InvalidBucketName"),
        ("/b%2Fkt/k", "InvalidBucketName"),
    ],
)
def test_refusals(target: str, code: str) -> None:
    assert refusal(target) == code


@pytest.mark.parametrize(
    ("host", "target", "bucket", "key"),
    [
        ("bkt.s3.example.com", "/", "bkt", None),
        ("bkt.s3.example.com:9000", "/k", "bkt", b"k"),
        ("BKT.S3.Example.Com", "/a/b", "bkt", b"a/b"),
        ("a.b.s3.example.com", "//x", "a.b", b"/x"),
        ("s3.example.com", "/bkt/k", "bkt", b"k"),
        ("s3.example.com:443", "/", None, None),
        ("other.example.com", "/bkt/k", "bkt", b"k"),
        ("[::1]:9000", "/bkt/k", "bkt", b"k"),
    ],
)
def test_virtual_host_style(host: str, target: str, bucket: str | None, key: bytes | None) -> None:
    parsed = taken(target, host, "s3.example.com:9000")
    assert (parsed.bucket, parsed.key) == (bucket, key)


def test_virtual_host_style_through_a_proxy() -> None:
    headers = Headers([("host", "10.0.0.7:9000"), ("x-forwarded-host", "bkt.s3.example.com")])
    hosts = signed_hosts(headers, trusted=True, secure=False)
    assert parse("GET", "/k", headers, "s3.example.com", hosts).bucket == "bkt"


@given(st.text(min_size=1, max_size=40).filter(lambda text: text.isprintable() or "\x00" in text))
def test_any_key_survives_one_encoding(text: str) -> None:
    try:
        key = text.encode()
    except UnicodeEncodeError:
        return
    parsed = taken("/bkt/" + quote_from_bytes(key, safe="/"))
    assert parsed.key == key


def test_split_target_keeps_the_raw_path() -> None:
    assert split_target("/b//./k%2f?x=%2f") == ("/b//./k%2f", "x=%2f")
    assert split_target("http://h?acl") == ("/", "acl")
    assert split_target("") == ("/", "")


def test_query() -> None:
    query = Query("acl&prefix=a%20b+c%2B&prefix=2&&max-keys=&%C3%A4=1")
    assert query.keys() == {"acl", "prefix", "max-keys", "ä"}
    assert query.get("prefix") == "a b c+"
    assert list(query.all("prefix")) == ["a b c+", "2"]
    assert (query.get("acl"), query.get("none"), query.get("none", "d")) == ("", None, "d")
    assert "acl" in query and "x" not in query


@pytest.mark.parametrize("size", [1, 300, 20_000])
def test_parameters_are_read_alike_whether_short_enough_to_be_remembered_or_not(size: int) -> None:
    for text in ("a" * size, "b" * size, "a" * size):
        query = Query(f"prefix={text}%2B&x={text}")
        assert (query["prefix"], query["x"]) == (f"{text}+", text)
        for _ in range(2):
            with pytest.raises(S3Error, match="InvalidURI"):
                Query(f"prefix={text}%2")


def test_headers() -> None:
    headers = Headers([(b"X-Amz-Meta-A", b"  v \t"), ("b", "1"), ("B", "2"), (b"c", b"\xff\xc3\xa4")])
    assert headers.get("x-amz-meta-a") == "v"
    assert headers.get("b") == "1,2"
    assert list(headers.all("b")) == ["1", "2"]
    assert headers.get("c", "").encode("utf-8", "surrogateescape") == b"\xff\xc3\xa4"
    assert headers.get("d", "e") == "e"
    assert list(headers) == ["x-amz-meta-a", "b", "c"]
    assert headers.lines[1:3] == [("b", "1"), ("b", "2")]


def test_a_presigned_query_stands_for_headers() -> None:
    target = "/bkt/k?X-Amz-Signature=s&X-Amz-Date=d&x-amz-acl=public-read&X-Amz-Storage-Class=GLACIER&x-id=P"
    parsed = parse("PUT", target, [("host", "h"), ("x-amz-storage-class", "STANDARD")])
    assert parsed.headers.get("x-amz-acl") == "public-read"
    assert parsed.headers.get("x-amz-storage-class") == "STANDARD"
    assert parsed.headers.hoisted == {"x-amz-acl"}
    assert "x-amz-date" not in parsed.headers
    assert "x-amz-acl" not in parse("PUT", "/bkt/k?x-amz-acl=private", []).headers


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=attrgetter("name"))
def test_the_checksum_of_nothing_in_a_presigned_query_says_nothing(algorithm: Algorithm) -> None:
    """JavaScript's signer has no body yet, and signs what it computes all the same."""
    value = quote(encode(algorithm.start().digest()), safe="")
    target = f"/bkt/k?X-Amz-Signature=s&{algorithm.header}={value}&x-amz-sdk-checksum-algorithm={algorithm.code}"
    headers = parse("PUT", f"{target}&x-amz-acl=private", []).headers
    assert headers.hoisted == {"x-amz-acl"}
    assert requested(headers).declared is False
    sent = parse("PUT", target, [(algorithm.header, encode(algorithm.start().digest()))]).headers
    assert requested(sent).value is not None  # a header is meant


def test_another_checksum_in_a_presigned_query_counts() -> None:
    target = "/bkt/k?X-Amz-Signature=s&x-amz-checksum-crc32=DUoRhQ%3D%3D&x-amz-sdk-checksum-algorithm=CRC32"
    assert requested(parse("PUT", target, []).headers) == Wanted(BY_NAME["crc32"], "DUoRhQ==", declared=True)


@pytest.mark.parametrize(
    ("host", "parts"),
    [
        ("h", ("h", "")),
        ("h:443", ("h", "443")),
        ("[::1]:9000", ("[::1]", "9000")),
        ("[::1]", ("[::1]", "")),
        ("::1", ("::1", "")),
        ("h:", ("h:", "")),
    ],
)
def test_split_host(host: str, parts: tuple[str, str]) -> None:
    assert split_host(host) == parts


def test_b013_hosts_of_a_trusted_proxy() -> None:
    def hosts(trusted: bool, **lines: str) -> tuple[str, ...]:
        pairs = [(name.replace("_", "-"), value) for name, value in lines.items()]
        return signed_hosts(Headers(pairs), trusted=trusted, secure=False)

    told = {"host": "inner:9000", "x_forwarded_host": "s3.example.com", "x_forwarded_port": "8443"}
    assert hosts(False, **told) == ("inner:9000",)
    seen = hosts(True, **told)
    assert seen[0] == "inner:9000"
    assert {"s3.example.com", "s3.example.com:8443", "s3.example.com:80", "inner:9000"} <= set(seen)
    assert "h" in hosts(True, host="x", x_forwarded_host="h:443", x_forwarded_proto="https")
    assert "h:443" in hosts(True, host="x", x_forwarded_host="h", x_forwarded_proto="https")
    assert "[::1]:9000" in hosts(True, host="x", x_forwarded_host="[::1]", x_forwarded_port="9000")


@pytest.mark.parametrize(
    ("peer", "trusted"),
    [
        ("10.1.2.3", True),
        ("::ffff:10.1.2.3", True),
        ("192.0.2.7", True),
        ("fd00::1%eth0", True),
        ("11.1.2.3", False),
        ("unix", False),
        ("", False),
        (None, False),
    ],
)
def test_b013_trusted_peers(peer: str | None, trusted: bool) -> None:
    assert trusted_peer(peer, ["10.0.0.0/8", "192.0.2.7", "fd00::/8"]) is trusted
    assert not trusted_peer(peer, [])


@given(st.binary(max_size=1024))
def test_tokens_carry_any_bytes(last: bytes) -> None:
    token = tokens.encode(last)
    assert token.isascii() and not set(token) & set("+/=&?% ")
    assert tokens.decode(token) == last


@pytest.mark.parametrize(
    "token", ["", "a", "key", "ä", "AAAA", "!!!!", tokens.encode(b"k") + "=", tokens.encode(b"k")[1:]]
)
def test_what_is_no_token(token: str) -> None:
    with pytest.raises(S3Error) as caught:
        tokens.decode(token)
    assert caught.value.code == "InvalidArgument"
    assert caught.value.elements == {"ArgumentName": "continuation-token", "ArgumentValue": token}
