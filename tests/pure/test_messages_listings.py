"""Listing documents, read back by botocore's own parser."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import pytest
from botocore.parsers import create_parser
from botocore.session import get_session
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.objects import Account
from gateway.s3 import messages
from gateway.s3.messages import Entry, Page, PartEntry, UploadEntry, VersionEntry
from gateway.s3.xml import key_text, key_url, timestamp

MODEL = get_session().get_service_model("s3")
WHEN = datetime(2024, 5, 6, 7, 8, 9, 123456, UTC)
SECONDS = int(WHEN.timestamp())
OWNER = Account(1, "abc123", "ann", "Ann & Co", "ann@example.com", False)


def parsed(operation: str, body: bytes) -> dict[str, Any]:
    shape = MODEL.operation_model(operation).output_shape
    answer = create_parser("rest-xml").parse({"status_code": 200, "headers": {}, "body": body}, shape)
    answer.pop("ResponseMetadata")
    return dict(answer)


def test_list_objects_v1() -> None:
    entries = [
        Entry(b' R&D <x> "q"\r', SECONDS, "e1", 5, owner=OWNER, checksum="crc64nvme", checksum_type="FULL_OBJECT"),
        Entry(b"z", SECONDS, "e2-3", 0, "GLACIER", OWNER, restoring=False, restored_until=WHEN),
    ]
    page = Page("bucket", b"", b"/", 2, truncated=True, prefixes=[b"p & q/"])
    got = parsed("ListObjects", messages.list_objects_v1(page, entries, marker=b"", next_marker=b"z"))
    when = WHEN.replace(microsecond=0)
    owner = {"ID": "abc123", "DisplayName": "Ann & Co"}
    assert got == {
        "Name": "bucket",
        "Prefix": "",
        "Marker": "",
        "NextMarker": "z",
        "MaxKeys": 2,
        "Delimiter": "/",
        "IsTruncated": True,
        "Contents": [
            {
                "Key": ' R&D <x> "q"\r',
                "LastModified": when,
                "ETag": '"e1"',
                "ChecksumAlgorithm": ["CRC64NVME"],
                "ChecksumType": "FULL_OBJECT",
                "Size": 5,
                "StorageClass": "STANDARD",
                "Owner": owner,
            },
            {
                "Key": "z",
                "LastModified": when,
                "ETag": '"e2-3"',
                "Size": 0,
                "StorageClass": "GLACIER",
                "Owner": owner,
                "RestoreStatus": {"IsRestoreInProgress": False, "RestoreExpiryDate": when},
            },
        ],
        "CommonPrefixes": [{"Prefix": "p & q/"}],
    }


def test_list_objects_v2_without_owner_and_delimiter() -> None:
    body = messages.list_objects_v2(Page("b", limit=1000), [Entry(b"k", SECONDS, "e", 1)], token="t", start_after=b"j")
    got = parsed("ListObjectsV2", body)
    assert got["KeyCount"] == 1
    assert got["ContinuationToken"] == "t"
    assert got["StartAfter"] == "j"
    assert "Delimiter" not in got
    assert "NextContinuationToken" not in got
    assert "Owner" not in got["Contents"][0]


def test_prefixes_count_as_keys() -> None:
    body = messages.list_objects_v2(Page("b", prefixes=[b"a/", b"b/"]), [], next_token="n")
    got = parsed("ListObjectsV2", body)
    assert (got["KeyCount"], got["NextContinuationToken"]) == (2, "n")


def test_encoding_type_covers_every_key_alike() -> None:
    """B061: versions, delete markers, prefixes and all echoed parameters."""
    page = Page("b", b"a ", "é".encode(), url=True, truncated=True, prefixes=["50%é".encode()])
    entries = [
        VersionEntry(Entry(b"a b", SECONDS, "e", 1), "v1", True),
        VersionEntry(Entry("é".encode(), SECONDS, "", 0), "v2", True, marker=True),
    ]
    body = messages.list_versions(
        page,
        entries,
        key_marker=b"50%",
        version_id_marker="v0",
        next_key_marker="é".encode(),
        next_version_id_marker="v2",
    )
    got = parsed("ListObjectVersions", body)
    assert got["EncodingType"] == "url"
    assert got["Versions"][0]["Key"] == "a%20b"
    assert got["DeleteMarkers"][0]["Key"] == "%C3%A9"
    assert got["CommonPrefixes"] == [{"Prefix": "50%25%C3%A9"}]
    assert got["KeyMarker"] == "50%25"
    assert got["NextKeyMarker"] == "%C3%A9"
    assert got["Prefix"] == "a%20"
    assert got["Delimiter"] == "%C3%A9"
    assert (got["VersionIdMarker"], got["NextVersionIdMarker"]) == ("v0", "v2")


def test_a_delete_marker_has_no_size_and_no_etag() -> None:
    marker = VersionEntry(Entry(b"k", SECONDS, "", 0, owner=OWNER), "null", False, marker=True)
    got = parsed("ListObjectVersions", messages.list_versions(Page("b"), [marker]))
    assert got["DeleteMarkers"] == [
        {
            "Key": "k",
            "VersionId": "null",
            "IsLatest": False,
            "LastModified": WHEN.replace(microsecond=0),
            "Owner": {"ID": "abc123", "DisplayName": "Ann & Co"},
        }
    ]
    assert "Versions" not in got


def upload(**more: Any) -> UploadEntry:
    return UploadEntry(b"k&", "id", WHEN, OWNER, OWNER, **more)


def test_list_uploads() -> None:
    page = Page("b", b"k", limit=2, truncated=True)
    body = messages.list_uploads(
        page,
        [upload(checksum="sha256", checksum_type="COMPOSITE")],
        key_marker=b"a",
        upload_id_marker="x",
        next_key_marker=b"k&",
        next_upload_id_marker="id",
    )
    got = parsed("ListMultipartUploads", body)
    assert (got["MaxUploads"], got["NextKeyMarker"], got["NextUploadIdMarker"]) == (2, "k&", "id")
    assert (got["KeyMarker"], got["UploadIdMarker"], got["Prefix"]) == ("a", "x", "k")
    assert got["Uploads"][0]["Key"] == "k&"
    assert got["Uploads"][0]["ChecksumAlgorithm"] == "SHA256"
    assert got["Uploads"][0]["Initiator"]["DisplayName"] == "Ann & Co"


def test_an_empty_listing_of_uploads() -> None:
    """B163."""
    got = parsed("ListMultipartUploads", messages.list_uploads(Page("b"), []))
    assert (got["Bucket"], got["IsTruncated"]) == ("b", False)
    assert "Uploads" not in got


def test_list_parts() -> None:
    parts = [PartEntry(3, WHEN, "e3", 7, {"crc32": "AAAAAA=="}), PartEntry(4, WHEN, "e4", 8)]
    body = messages.list_parts("b", upload(), parts, marker=2, next_marker=4, limit=2, truncated=True)
    got = parsed("ListParts", body)
    assert (got["PartNumberMarker"], got["NextPartNumberMarker"], got["MaxParts"]) == (2, 4, 2)
    assert [part["PartNumber"] for part in got["Parts"]] == [3, 4]
    assert got["Parts"][0]["ChecksumCRC32"] == "AAAAAA=="
    assert got["Parts"][1]["ETag"] == '"e4"'


@pytest.mark.parametrize("url", [False, True])
def test_a_page_of_1000_is_quick(url: bool) -> None:
    entries = [
        Entry(f"photos/2024/{i:05} & more.jpg".encode(), SECONDS, f"{i:032x}", i, owner=OWNER) for i in range(1000)
    ]
    best = 1.0
    for _ in range(5):
        start = time.perf_counter()
        body = messages.list_objects_v1(Page("b", url=url), entries)
        best = min(best, time.perf_counter() - start)
    assert len(parsed("ListObjects", body)["Contents"]) == 1000
    assert best < 0.2  # about 2 ms on an idle machine


def test_the_prefix_of_v1_is_never_encoded() -> None:
    """botocore decodes all keys of a ListObjects answer but the echoed prefix."""
    page = Page("b", b"a &\n", b" ", url=True, prefixes=[b"a &\n "])
    got = parsed("ListObjects", messages.list_objects_v1(page, [], marker=b" "))
    assert (got["Prefix"], got["Delimiter"], got["Marker"]) == ("a &\n", "%20", "%20")
    assert got["CommonPrefixes"] == [{"Prefix": "a%20%26%0A%20"}]
    assert parsed("ListObjectsV2", messages.list_objects_v2(page, []))["Prefix"] == "a%20%26%0A"


@given(
    st.lists(
        st.tuples(st.text(min_size=1, max_size=12).map(lambda t: t.encode("utf-8", "ignore")), st.integers(0, 2**33)),
        max_size=8,
    ),
    st.booleans(),
)
def test_a_page_writes_keys_and_times_as_each_alone(rows: list[tuple[bytes, int]], url: bool) -> None:
    """Shortcuts that a whole page takes do not show."""
    page = Page("b", url=url, prefixes=[key for key, _ in rows])
    body = messages.list_objects_v2(page, [Entry(key, moment, "e", 1) for key, moment in rows]).decode()
    write = key_url if url else key_text
    for key, moment in rows:
        when = timestamp(datetime.fromtimestamp(moment, UTC))
        assert f"<Contents><Key>{write(key)}</Key><LastModified>{when}</LastModified>" in body
        assert f"<CommonPrefixes><Prefix>{write(key)}</Prefix></CommonPrefixes>" in body
