"""Metadata: read from headers, limited, and said back."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from email.header import decode_header, make_header
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gateway.domain import metadata
from gateway.domain.metadata import copy_attributes, read_attributes
from gateway.domain.objects import Attributes, State, Version, VersionRef
from gateway.domain.words import MAX_WORD, encode_words
from gateway.s3.errors import S3Error
from gateway.s3.headers import Headers, Query

WHEN = datetime(2024, 5, 6, 7, 8, 9, 1, UTC)


def attributes(*pairs: tuple[str | bytes, str | bytes]) -> Attributes:
    return read_attributes(Headers(pairs))


def refusal(*pairs: tuple[str | bytes, str | bytes]) -> S3Error:
    with pytest.raises(S3Error) as caught:
        attributes(*pairs)
    return caught.value


def version(**changes: Any) -> Version:
    plain = Version(
        ref=VersionRef(1, b"k", 5, 6),
        is_null=False,
        state=State.READY,
        etag="e",
        size=3,
        modified=WHEN,
        storage_class="STANDARD",
        content_type="text/plain",
        headers={"cache-control": "no-cache", metadata.REDIRECT: "/old"},
        metadata={"x": "1"},
        tags={"t": "v"},
        checksums={},
        checksum_type=None,
        digest=None,
        acl="public-read",
        owner_id=1,
        parts=0,
        extents=1,
        code=None,
        detail=None,
        processing={},
        generation=1,
        run_id=None,
        restoring=False,
        restored_until=None,
        expires_at=None,
    )
    return replace(plain, **changes)


def test_nothing_said() -> None:
    assert attributes(("Host", "h"), ("Content-Length", "3")) == Attributes()


def test_everything_said() -> None:
    got = attributes(
        ("Content-Type", "text/plain; charset=utf-8"),
        ("Cache-Control", "max-age=1"),
        ("Content-Disposition", 'attachment; filename="a"'),
        ("Content-Encoding", "gzip"),
        ("Content-Language", "de"),
        ("Expires", "Mon, 06 May 2024 07:08:09 GMT"),
        ("x-amz-website-redirect-location", "https://example.com/"),
        ("X-Amz-Meta-Mtime", "17"),
        ("x-amz-meta-note", "a"),
        ("x-amz-meta-note", "b"),
        ("x-amz-tagging", "a=1&b=%C3%A9+x"),
        ("x-amz-storage-class", "GLACIER"),
        ("x-amz-acl", "public-read"),
    )
    assert got == Attributes(
        "text/plain; charset=utf-8",
        {
            "cache-control": "max-age=1",
            "content-disposition": 'attachment; filename="a"',
            "content-encoding": "gzip",
            "content-language": "de",
            "expires": "Mon, 06 May 2024 07:08:09 GMT",
            "x-amz-website-redirect-location": "https://example.com/",
        },
        {"mtime": "17", "note": "a,b"},
        {"a": "1", "b": "é x"},
        "GLACIER",
        "public-read",
    )


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ("aws-chunked", None),
        ("aws-chunked, aws-chunked", None),
        ("aws-chunked, gzip", "gzip"),
        ("gzip, AWS-Chunked", "gzip"),
        ("aws-chunked,", None),
        ("deflate, gzip", "deflate, gzip"),
        ("deflate,gzip", "deflate,gzip"),
        ("", None),
    ],
)
def test_aws_chunked_is_no_property_of_the_object(sent: str, kept: str | None) -> None:
    """B025."""
    assert attributes(("content-encoding", sent)).headers.get("content-encoding") == kept


def test_user_metadata_is_limited_without_the_prefix() -> None:
    """B139."""
    fits = (("x-amz-meta-a", "v" * 1000), ("x-amz-meta-bb", "é" * 522), ("x-amz-meta-c", ""))
    assert sum(len(v.encode()) for v in attributes(*fits).metadata.values()) + 4 == 2048
    error = refusal(*fits, ("x-amz-meta-d", ""))
    assert error.code == "MetadataTooLarge"
    assert error.elements == {"MaxSizeAllowed": "2048", "Size": "2049"}


@pytest.mark.parametrize(
    ("wire", "kept"),
    [(b"plain", "plain"), ("Grüße 😀".encode(), "Grüße 😀"), (b"Hello World\xe9", "Hello Worldé"), (b"", "")],
)
def test_bytes_that_are_not_ascii(wire: bytes, kept: str) -> None:
    got = attributes((b"x-amz-meta-m", wire), (b"content-disposition", wire))
    assert got.metadata == {"m": kept}
    assert got.headers.get("content-disposition", "") == kept


@pytest.mark.parametrize(
    ("header", "tags"),
    [
        ("", {}),
        ("a=1", {"a": "1"}),
        ("a", {"a": ""}),
        ("a=", {"a": ""}),
        ("a=1&b=2=3", {"a": "1", "b": "2=3"}),
        ("k%26=v%3D", {"k&": "v="}),
        ("&".join(f"k{i}=v" for i in range(10)), {f"k{i}": "v" for i in range(10)}),
        ("k" * 128 + "=" + "v" * 256, {"k" * 128: "v" * 256}),
    ],
)
def test_tagging(header: str, tags: Mapping[str, str]) -> None:
    assert attributes(("x-amz-tagging", header)).tags == tags


@pytest.mark.parametrize(
    ("header", "code"),
    [
        ("=", "InvalidArgument"),  # B141
        ("k=1&k=2", "InvalidArgument"),  # B141
        ("k=1&%6B=2", "InvalidArgument"),
        ("=v", "InvalidArgument"),
        ("a=1&&b=2", "InvalidArgument"),
        ("a=%FF", "InvalidArgument"),
        ("a=%00", "InvalidArgument"),
        ("&".join(f"k{i}=v" for i in range(11)), "BadRequest"),
        ("k" * 129 + "=v", "InvalidTag"),
        ("k=" + "v" * 257, "InvalidTag"),
        ("aws:x=v", "InvalidTag"),
    ],
)
def test_tagging_refuses(header: str, code: str) -> None:
    assert refusal(("x-amz-tagging", header)).code == code


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("x-amz-storage-class", "TEPID", "InvalidStorageClass"),
        ("x-amz-storage-class", "Glacier", "InvalidStorageClass"),
        ("x-amz-storage-class", "standard", "InvalidStorageClass"),
        ("x-amz-acl", "everyone", "InvalidArgument"),
        ("x-amz-website-redirect-location", "ftp://x", "InvalidRedirectLocation"),
        ("x-amz-server-side-encryption", "AES256", "NotImplemented"),
        ("x-amz-server-side-encryption-customer-key", "k", "NotImplemented"),
        ("x-amz-object-lock-mode", "GOVERNANCE", "NotImplemented"),
        ("x-amz-grant-read", 'id="x"', "NotImplemented"),
        ("x-amz-write-offset-bytes", "0", "NotImplemented"),
    ],
)
def test_refused_headers(name: str, value: str, code: str) -> None:
    error = refusal((name, value))
    assert error.code == code
    if code == "NotImplemented":
        assert error.elements == {"Header": name}


def test_bucket_headers() -> None:
    metadata.refuse_unsupported(Headers([("x-amz-bucket-object-lock-enabled", "false")]))
    with pytest.raises(S3Error):
        metadata.refuse_unsupported(Headers([("x-amz-bucket-object-lock-enabled", "true")]))
    assert metadata.canned_acl(Headers(), metadata.BUCKET_ACLS) == "private"
    with pytest.raises(S3Error):
        metadata.canned_acl(Headers([("x-amz-acl", "bucket-owner-read")]), metadata.BUCKET_ACLS)


# --- copies --------------------------------------------------------------------------------------------------


def test_a_copy_takes_metadata_and_tags_but_no_class_acl_or_redirect() -> None:
    """B115: the request's metadata is ignored."""
    fields = Headers([("x-amz-meta-y", "2"), ("Content-Type", "image/png"), ("x-amz-tagging", "ignored=1")])
    got = copy_attributes(fields, version(storage_class="GLACIER"))
    assert got == Attributes("text/plain", {"cache-control": "no-cache"}, {"x": "1"}, {"t": "v"})


def test_replace_takes_everything_from_the_request() -> None:
    """B115."""
    fields = Headers(
        [
            ("x-amz-metadata-directive", "REPLACE"),
            ("x-amz-tagging-directive", "REPLACE"),
            ("x-amz-meta-y", "2"),
            ("Content-Type", "image/png"),
            ("x-amz-tagging", "n=1"),
            ("x-amz-storage-class", "GLACIER"),
            ("x-amz-acl", "public-read"),
        ]
    )
    assert copy_attributes(fields, version(), onto_itself=True) == Attributes(
        "image/png", {}, {"y": "2"}, {"n": "1"}, "GLACIER", "public-read"
    )
    kept = copy_attributes(Headers([("x-amz-metadata-directive", "REPLACE")]), version())
    assert (kept.metadata, kept.tags, kept.content_type) == ({}, {"t": "v"}, None)


def test_a_copy_onto_itself_must_change_something() -> None:
    """B113."""
    with pytest.raises(S3Error) as caught:
        copy_attributes(Headers(), version(), onto_itself=True)
    assert caught.value.code == "InvalidRequest"
    same = Headers([("x-amz-storage-class", "STANDARD")])
    with pytest.raises(S3Error):
        copy_attributes(same, version(), onto_itself=True)
    colder = Headers([("x-amz-storage-class", "STANDARD_IA")])
    assert copy_attributes(colder, version(), onto_itself=True).storage_class == "STANDARD_IA"
    moved = Headers([(metadata.REDIRECT, "/new")])
    assert copy_attributes(moved, version(), onto_itself=True).headers[metadata.REDIRECT] == "/new"


@pytest.mark.parametrize("name", ["x-amz-metadata-directive", "x-amz-tagging-directive"])
def test_unknown_directives(name: str) -> None:
    with pytest.raises(S3Error) as caught:
        copy_attributes(Headers([(name, "MERGE")]), version())
    assert caught.value.code == "InvalidArgument"


# --- answers -------------------------------------------------------------------------------------------------


def test_object_headers() -> None:
    got = metadata.object_headers(version(storage_class="GLACIER", metadata={"m": "é"}), versioned=True)
    assert got == {
        "Last-Modified": "Mon, 06 May 2024 07:08:09 GMT",
        "ETag": '"e"',
        "Accept-Ranges": "bytes",
        "Content-Type": "text/plain",
        "Cache-Control": "no-cache",
        "x-amz-website-redirect-location": "/old",
        "x-amz-meta-m": "=?UTF-8?B?w6k=?=",
        "x-amz-storage-class": "GLACIER",
        "x-amz-tagging-count": "1",
        "x-amz-version-id": version().version_id,
    }
    bare = metadata.object_headers(version(content_type=None, headers={}, metadata={}, tags={}), versioned=False)
    assert list(bare) == ["Last-Modified", "ETag", "Accept-Ranges", "Content-Type"]
    assert bare["Content-Type"] == "binary/octet-stream"


def test_a_304_keeps_what_caches_need() -> None:
    """B111."""
    got = metadata.not_modified_headers(version(), versioned=True)
    assert set(got) == {"Last-Modified", "ETag", "Cache-Control", "x-amz-version-id"}


def test_overrides() -> None:
    query = Query("response-content-type=a/b&response-expires=never&response-cache-control=&other=x")
    assert metadata.overrides(query, signed=True) == {"Content-Type": "a/b", "Expires": "never"}
    assert metadata.overrides(Query(""), signed=False) == {}
    with pytest.raises(S3Error) as caught:
        metadata.overrides(query, signed=False)
    assert caught.value.code == "InvalidRequest"
    for value in ("a%0D%0ASet-Cookie:b", "%E6%97%A5", "%00"):
        with pytest.raises(S3Error) as caught:
            metadata.overrides(Query(f"response-content-disposition={value}"), signed=True)
        assert caught.value.code == "InvalidArgument"


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"])))
def test_encoded_words_decode(value: str) -> None:
    encoded = encode_words(value)
    assert encoded.isascii()
    if value.isascii():
        assert encoded == value
        return
    assert all(len(word) <= MAX_WORD for word in encoded.split(" "))
    assert str(make_header(decode_header(encoded))) == value


def test_mostly_ascii_stays_readable() -> None:
    assert encode_words("Hello World é") == "=?UTF-8?Q?Hello_World_=C3=A9?="
    assert encode_words("日本") == "=?UTF-8?B?5pel5pys?="
