"""Single answers, read back by botocore's own parser."""

from __future__ import annotations

from datetime import UTC, datetime
from xml.etree import ElementTree as ET

from gateway.domain.objects import Account, Versioning
from gateway.s3 import messages
from gateway.s3.messages import AttributeParts, BucketEntry, Deleted, NotDeleted, PartEntry
from tests.pure.test_messages_listings import parsed

WHEN = datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)


def test_error() -> None:
    body = messages.error(
        "NoSuchKey", "Gone & away", resource="/b/k", request_id="r", host_id="h", elements={"Key": "<k>"}
    )
    root = ET.fromstring(body)
    assert [(child.tag, child.text) for child in root] == [
        ("Code", "NoSuchKey"),
        ("Message", "Gone & away"),
        ("Key", "<k>"),
        ("Resource", "/b/k"),
        ("RequestId", "r"),
        ("HostId", "h"),
    ]


def test_list_buckets() -> None:
    account = Account(1, "id", "n", "N", "", False)
    body = messages.list_buckets(account, [BucketEntry("one", WHEN, "us-east-1")], prefix="o", next_token="t")
    assert parsed("ListBuckets", body) == {
        "Owner": {"ID": "id", "DisplayName": "N"},
        "Buckets": [{"Name": "one", "CreationDate": WHEN, "BucketRegion": "us-east-1"}],
        "ContinuationToken": "t",
        "Prefix": "o",
    }


def test_location() -> None:
    """B143: us-east-1 is an empty element."""
    assert ET.fromstring(messages.location("")).text is None
    assert ET.fromstring(messages.location("eu-west-1")).text == "eu-west-1"


def test_versioning_status() -> None:
    assert parsed("GetBucketVersioning", messages.versioning_status(Versioning.OFF)) == {}
    assert parsed("GetBucketVersioning", messages.versioning_status(Versioning.ENABLED)) == {"Status": "Enabled"}
    assert parsed("GetBucketVersioning", messages.versioning_status(Versioning.SUSPENDED)) == {"Status": "Suspended"}


def test_multipart_answers() -> None:
    assert parsed("CreateMultipartUpload", messages.initiate_upload("b", b"k&", "id")) == {
        "Bucket": "b",
        "Key": "k&",
        "UploadId": "id",
    }
    body = messages.complete_result("http://h/b/k", "b", b"k", "e-2", {"crc32": "AAAAAA==-2"}, "COMPOSITE")
    assert parsed("CompleteMultipartUpload", body) == {
        "Location": "http://h/b/k",
        "Bucket": "b",
        "Key": "k",
        "ETag": '"e-2"',
        "ChecksumCRC32": "AAAAAA==-2",
        "ChecksumType": "COMPOSITE",
    }
    late = messages.complete_result("l", "b", b"k", "e", {}, None, prolog=False)
    assert late.startswith(b"<CompleteMultipartUploadResult ")


def test_copy_answers() -> None:
    got = parsed("CopyObject", messages.copy_result("e", WHEN, {"sha1": "x"}, "FULL_OBJECT"))
    assert got["CopyObjectResult"] == {
        "LastModified": WHEN,
        "ETag": '"e"',
        "ChecksumType": "FULL_OBJECT",
        "ChecksumSHA1": "x",
    }
    part = parsed("UploadPartCopy", messages.copy_part_result("e", WHEN, {"crc32c": "y"}))
    assert part["CopyPartResult"] == {"LastModified": WHEN, "ETag": '"e"', "ChecksumCRC32C": "y"}


def test_delete_result() -> None:
    """B123: keys with markup come back exactly; B125: quiet lists failures only."""
    results: list[Deleted | NotDeleted] = [
        Deleted(b"a<a"),
        Deleted(b" ]]> \r", "v1", None),
        Deleted(b"m", None, "v9"),
        NotDeleted(b"a&b", None, "AccessDenied", "Access Denied"),
    ]
    got = parsed("DeleteObjects", messages.delete_result(results, quiet=False))
    assert got["Deleted"] == [
        {"Key": "a<a"},
        {"Key": " ]]> \r", "VersionId": "v1"},
        {"Key": "m", "DeleteMarker": True, "DeleteMarkerVersionId": "v9"},
    ]
    assert got["Errors"] == [{"Key": "a&b", "Code": "AccessDenied", "Message": "Access Denied"}]
    quiet = parsed("DeleteObjects", messages.delete_result(results, quiet=True))
    assert list(quiet) == ["Errors"]


def test_object_attributes() -> None:
    """B089: a composite checksum is shown without the number of parts, and with its type."""
    parts = AttributeParts(3, 1, 2, 1, True, [PartEntry(2, WHEN, "e", 5, {"sha256": "p2"})])
    body = messages.object_attributes(
        etag="e-3", values={"sha256": "abc=-3"}, kind="COMPOSITE", parts=parts, storage_class="STANDARD", size=9
    )
    assert parsed("GetObjectAttributes", body) == {
        "ETag": "e-3",
        "Checksum": {"ChecksumSHA256": "abc=", "ChecksumType": "COMPOSITE"},
        "ObjectParts": {
            "IsTruncated": True,
            "MaxParts": 1,
            "NextPartNumberMarker": 2,
            "PartNumberMarker": 1,
            "TotalPartsCount": 3,
            "Parts": [{"PartNumber": 2, "Size": 5, "ChecksumSHA256": "p2"}],
        },
        "StorageClass": "STANDARD",
        "ObjectSize": 9,
    }
    assert parsed("GetObjectAttributes", messages.object_attributes(size=0)) == {"ObjectSize": 0}
