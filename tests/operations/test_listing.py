"""ListObjects, ListObjectsV2, ListObjectVersions over the wire; the walks themselves are tested in tests/db."""

from __future__ import annotations

from typing import Any

import pytest

from tests.operations.asking import refused
from tests.operations.house import House


def fill(s3: Any, bucket: str, *keys: str) -> None:
    for key in keys:
        s3.put_object(Bucket=bucket, Key=key, Body=b"x")


def v2_pages(s3: Any, bucket: str, **more: Any) -> list[dict[str, Any]]:
    pages: list[dict[str, Any]] = []
    token: dict[str, str] = {}
    while True:
        page = s3.list_objects_v2(Bucket=bucket, **more, **token)
        pages.append(page)
        if not page["IsTruncated"]:
            return pages
        token = {"ContinuationToken": page["NextContinuationToken"]}


def test_b059_a_page_border_on_the_last_key(s3: Any, bucket: str) -> None:
    fill(s3, bucket, "a", "b", "c")
    pages = v2_pages(s3, bucket, MaxKeys=1)
    assert [[each["Key"] for each in page["Contents"]] for page in pages] == [["a"], ["b"], ["c"]]
    assert pages[0]["KeyCount"] == 1 and "ContinuationToken" not in pages[0]


def test_b061_everything_is_encoded_alike(s3: Any, bucket: str) -> None:
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    fill(s3, bucket, "a b", "é", "50%")
    s3.delete_object(Bucket=bucket, Key="a b")
    page = s3.list_object_versions(Bucket=bucket, EncodingType="url", Prefix="a ", Delimiter=" ")
    assert page["Prefix"] == "a%20" or page["Prefix"] == "a+"
    page = s3.list_object_versions(Bucket=bucket, EncodingType="url")
    assert {each["Key"] for each in page["Versions"]} == {"a+b", "%C3%A9", "50%25"} or {
        each["Key"] for each in page["Versions"]
    } == {"a%20b", "%C3%A9", "50%25"}
    assert page["DeleteMarkers"][0]["Key"] in ("a%20b", "a+b")


def test_b063_markup_in_keys(s3: Any, bucket: str) -> None:
    key = "R&D <x> \"q\" 'a'"
    fill(s3, bucket, key, "z")
    assert [each["Key"] for page in v2_pages(s3, bucket, MaxKeys=1) for each in page["Contents"]] == [key, "z"]


def test_b065_no_prefix_is_repeated(s3: Any, bucket: str) -> None:
    fill(s3, bucket, *(f"p/1/{n}" for n in range(20)), *(f"p/2/{n}" for n in range(3)), "p/3")
    seen: list[str] = []
    for page in v2_pages(s3, bucket, Prefix="p/", Delimiter="/", MaxKeys=1):
        seen += [each["Prefix"] for each in page.get("CommonPrefixes", [])]
        seen += [each["Key"] for each in page.get("Contents", [])]
    assert seen == ["p/1/", "p/2/", "p/3"]
    older: list[str] = []
    marker = ""
    while True:
        page = s3.list_objects(Bucket=bucket, Prefix="p/", Delimiter="/", MaxKeys=1, Marker=marker)
        older += [each["Prefix"] for each in page.get("CommonPrefixes", [])]
        older += [each["Key"] for each in page.get("Contents", [])]
        if not page["IsTruncated"]:
            break
        marker = page["NextMarker"]
    assert older == seen


def test_b067_byte_order(s3: Any, bucket: str) -> None:
    keys = ["B", "a", "_", "a-b", "a/b", "aB", "é", "z", "\uffee", "\U0001f600"]
    fill(s3, bucket, *keys)
    listed = [each["Key"] for each in s3.list_objects_v2(Bucket=bucket)["Contents"]]
    assert listed == sorted(keys, key=str.encode)


def test_b157_keys_with_a_leading_slash(s3: Any, bucket: str) -> None:
    fill(s3, bucket, "/dev/x")
    assert s3.list_objects_v2(Bucket=bucket, Delimiter="/")["CommonPrefixes"] == [{"Prefix": "/"}]
    assert s3.list_objects_v2(Bucket=bucket, Delimiter="/", Prefix="/")["CommonPrefixes"] == [{"Prefix": "/dev/"}]


def test_start_after_and_owner(s3: Any, bucket: str) -> None:
    fill(s3, bucket, "a", "b", "c")
    page = s3.list_objects_v2(Bucket=bucket, StartAfter="a", FetchOwner=True)
    assert [each["Key"] for each in page["Contents"]] == ["b", "c"] and page["StartAfter"] == "a"
    assert page["Contents"][0]["Owner"]["ID"] == s3.list_buckets()["Owner"]["ID"]
    assert "Owner" not in s3.list_objects_v2(Bucket=bucket)["Contents"][0]
    assert "Owner" in s3.list_objects(Bucket=bucket)["Contents"][0]


@pytest.mark.parametrize("limit", [-1, 2**40])
def test_limits_that_are_none(s3: Any, bucket: str, limit: int) -> None:
    assert refused(s3.list_objects_v2, Bucket=bucket, MaxKeys=limit) == (400, "InvalidArgument")


def test_no_keys_asked_for_is_an_empty_page(s3: Any, bucket: str) -> None:
    fill(s3, bucket, "a")
    page = s3.list_objects_v2(Bucket=bucket, MaxKeys=0)
    assert page["KeyCount"] == 0 and page["IsTruncated"] is False


def test_a_token_of_somewhere_else(s3: Any, bucket: str) -> None:
    assert refused(s3.list_objects_v2, Bucket=bucket, ContinuationToken="nonsense") == (400, "InvalidArgument")


def test_versions_are_paged_inside_a_key(s3: Any, bucket: str) -> None:
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    made = [s3.put_object(Bucket=bucket, Key=key, Body=b"x")["VersionId"] for key in ("k", "k", "k", "l")]
    made.append(s3.delete_object(Bucket=bucket, Key="k")["VersionId"])
    seen: list[str] = []
    markers: dict[str, str] = {}
    while True:
        page = s3.list_object_versions(Bucket=bucket, MaxKeys=2, **markers)
        for kind in ("DeleteMarkers", "Versions"):
            seen += [each["VersionId"] for each in page.get(kind, [])]
        if not page["IsTruncated"]:
            break
        markers = {"KeyMarker": page["NextKeyMarker"], "VersionIdMarker": page["NextVersionIdMarker"]}
    assert sorted(seen) == sorted(made)


def test_what_is_held_back_is_listed_as_a_version_only(house: House, s3: Any, bucket: str) -> None:
    fill(s3, bucket, "bad/k", "scan/k", "ok")
    assert refused(s3.get_object, Bucket=bucket, Key="bad/k")[0] == 403
    assert [each["Key"] for each in s3.list_objects_v2(Bucket=bucket)["Contents"]] == ["ok", "scan/k"]
    assert [each["Key"] for each in s3.list_object_versions(Bucket=bucket)["Versions"]] == ["bad/k", "ok", "scan/k"]
