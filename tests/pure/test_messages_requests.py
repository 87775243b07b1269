"""Request documents: what is taken, exactly, and what is MalformedXML."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest

from gateway.domain.conditions import DeleteCondition
from gateway.domain.objects import Versioning
from gateway.s3 import messages
from gateway.s3.errors import S3Error
from gateway.s3.messages import CompletePart, DeleteItem, Restore

XMLNS = ' xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'


def code_of(call: object, body: str | bytes) -> str:
    with pytest.raises(S3Error) as caught:
        call(body.encode() if isinstance(body, str) else body)  # type: ignore[operator]
    return caught.value.code


def test_delete_keeps_keys_exactly() -> None:
    """B123."""
    body = (
        f"<Delete{XMLNS}>\n<Quiet>true</Quiet>"
        "<Object><Key>a&lt;a</Key></Object><Object><Key>a&amp;b</Key></Object><Object><Key>]]&gt;</Key></Object>"
        "<Object><Key> lead and trail </Key></Object><Object><Key>cr&#13;&#10;</Key></Object>"
        "<Object><Key>é😀</Key><VersionId>v</VersionId></Object><Object><Key><![CDATA[<c>]]></Key></Object>\n</Delete>"
    )
    got = messages.parse_delete(body.encode())
    assert got.quiet
    assert [item.key for item in got.items] == [
        b"a<a",
        b"a&b",
        b"]]>",
        b" lead and trail ",
        b"cr\r\n",
        "é😀".encode(),
        b"<c>",
    ]
    assert got.items[5].version_id == "v"


def test_delete_conditions() -> None:
    body = (
        "<Delete><Object><Key>k</Key><ETag>&quot;e&quot;</ETag>"
        "<LastModifiedTime>Wed, 28 Oct 2009 22:32:00 GMT</LastModifiedTime><Size>7</Size></Object>"
        "<Object><Size>0</Size><Key>l</Key></Object></Delete>"
    )
    got = messages.parse_delete(body.encode())
    when = datetime(2009, 10, 28, 22, 32, tzinfo=UTC)
    assert got.items == (
        DeleteItem(b"k", None, DeleteCondition(("e",), when, 7)),
        DeleteItem(b"l", None, DeleteCondition(None, None, 0)),
    )
    assert not got.quiet


@pytest.mark.parametrize(
    "body",
    [
        "<Delete/>",
        "<Delete><Object/></Delete>",
        "<Delete><Object><Key></Key></Object></Delete>",
        "<Delete><Object><Key>a</Key><Key>b</Key></Object></Delete>",
        "<Delete><Object><Key>a</Key><Nope/></Object></Delete>",
        "<Delete><Object><Key>a<b/></Key></Object></Delete>",
        "<Delete><Object><Key>a</Key></Object>text</Delete>",
        "<Delete><Object><Key>a</Key></Object><Quiet>maybe</Quiet></Delete>",
        "<Delete><Object><Key>a</Key></Object><Quiet>true</Quiet><Quiet>true</Quiet></Delete>",
        "<Delete><Object><Key>a</Key><Size>x</Size></Object></Delete>",
        "<Delete><Object><Key>a</Key><LastModifiedTime>x</LastModifiedTime></Object></Delete>",
        "<Remove><Object><Key>a</Key></Object></Remove>",
        "<Delete>" + "<Object><Key>k</Key></Object>" * 1001 + "</Delete>",
        "garbage",
        "",
    ],
)
def test_delete_refuses(body: str) -> None:
    assert code_of(messages.parse_delete, body) == "MalformedXML"


def test_delete_takes_1000_keys() -> None:
    body = "<Delete>" + "<Object><Key>k</Key></Object>" * 1000 + "</Delete>"
    assert len(messages.parse_delete(body.encode()).items) == 1000


def test_complete() -> None:
    body = (
        f"<CompleteMultipartUpload{XMLNS}>\n <Part>\n <ETag>&quot;e1&quot;</ETag><PartNumber> 1 </PartNumber></Part>"
        "<Part><PartNumber>3</PartNumber><ETag>e3</ETag><ChecksumCRC32>AAAAAA==</ChecksumCRC32></Part>"
        "</CompleteMultipartUpload>"
    )
    assert messages.parse_complete(body.encode()) == (
        CompletePart(1, "e1"),
        CompletePart(3, "e3", {"crc32": "AAAAAA=="}),
    )


@pytest.mark.parametrize(
    "inner",
    [
        "",  # B075: no parts at all
        "<Part/>",
        "<Part><ETag>e</ETag></Part>",
        "<Part><PartNumber>1</PartNumber></Part>",
        "<Part><PartNumber>one</PartNumber><ETag>e</ETag></Part>",
        "<Part><PartNumber>1</PartNumber><PartNumber>1</PartNumber><ETag>e</ETag></Part>",
        "<Part><PartNumber>1</PartNumber><ETag>e</ETag><ETag>f</ETag></Part>",
        "<Part><PartNumber>1</PartNumber><ETag>e</ETag><Size>1</Size></Part>",
        "<Part><PartNumber>1</PartNumber><ETag><b>e</b></ETag></Part>",
        "<Part><PartNumber>1</PartNumber><ETag>e</ETag></Part>text",
        "<Piece><PartNumber>1</PartNumber><ETag>e</ETag></Piece>",
        "<Part><PartNumber>1</PartNumber><ETag>e</ETag></Part>" * 10_001,
    ],
)
def test_complete_refuses(inner: str) -> None:
    body = f"<CompleteMultipartUpload>{inner}</CompleteMultipartUpload>"
    assert code_of(messages.parse_complete, body) == "MalformedXML"


def test_complete_of_10000_parts_is_quick() -> None:
    checksum = "<ChecksumCRC32>AAAAAA==</ChecksumCRC32>"
    part = "<Part><ETag>&quot;{0:032x}&quot;</ETag>" + checksum + "<PartNumber>{0}</PartNumber></Part>"
    inner = "".join(part.format(number) for number in range(1, 10_001))
    body = f"<CompleteMultipartUpload{XMLNS}>{inner}</CompleteMultipartUpload>".encode()
    best = 1.0
    for _ in range(5):
        start = time.perf_counter()
        parts = messages.parse_complete(body)
        best = min(best, time.perf_counter() - start)
    assert parts[9_999] == CompletePart(10_000, f"{10_000:032x}", {"crc32": "AAAAAA=="})
    assert best < 0.6  # about 55 ms on an idle machine


def test_create_bucket() -> None:
    assert messages.parse_create_bucket(b"") is None
    assert messages.parse_create_bucket(f"<CreateBucketConfiguration{XMLNS}/>".encode()) is None
    body = b"<CreateBucketConfiguration><LocationConstraint>eu-west-1</LocationConstraint></CreateBucketConfiguration>"
    assert messages.parse_create_bucket(body) == "eu-west-1"
    assert code_of(messages.parse_create_bucket, "<Other/>") == "MalformedXML"
    zone = "<CreateBucketConfiguration><Bucket><Type>Directory</Type></Bucket></CreateBucketConfiguration>"
    assert code_of(messages.parse_create_bucket, zone) == "NotImplemented"


def test_versioning() -> None:
    def parse(inner: str) -> Versioning | None:
        return messages.parse_versioning(f"<VersioningConfiguration>{inner}</VersioningConfiguration>".encode())

    assert parse("<Status>Enabled</Status>") is Versioning.ENABLED
    assert parse("<Status>Suspended</Status><MfaDelete>Disabled</MfaDelete>") is Versioning.SUSPENDED
    assert parse("") is None
    for inner, code in (
        ("<Status>enabled</Status>", "MalformedXML"),
        ("<Status/>", "MalformedXML"),
        ("<MfaDelete>Enabled</MfaDelete>", "NotImplemented"),
    ):
        with pytest.raises(S3Error) as caught:
            parse(inner)
        assert caught.value.code == code


def test_restore() -> None:
    def parse(inner: str) -> Restore:
        return messages.parse_restore(f"<RestoreRequest{XMLNS}>{inner}</RestoreRequest>".encode())

    assert parse("<Days>2</Days>") == Restore(2, "Standard")
    job = "<GlacierJobParameters><Tier>Bulk</Tier></GlacierJobParameters>"
    assert parse(f"<Days>1</Days>{job}") == Restore(1, "Bulk")
    for inner, code in (
        ("", "MalformedXML"),
        ("<Days>x</Days>", "MalformedXML"),
        ("<Days>0</Days>", "InvalidArgument"),
        ("<Days>1</Days><GlacierJobParameters><Tier>Fast</Tier></GlacierJobParameters>", "MalformedXML"),
        ("<Days>1</Days><Type>SELECT</Type>", "NotImplemented"),
    ):
        with pytest.raises(S3Error) as caught:
            parse(inner)
        assert caught.value.code == code
