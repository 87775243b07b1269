"""Listing cases over the wire that need all their names in one answer, or a whole default page."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from typing import Any

import pytest

from tests.db.rows import put_heads
from tests.operations.house import House
from tests.signing import Signer
from tests.wire.raw import Wire

SPACE = "{http://s3.amazonaws.com/doc/2006-03-01/}"


def texts(house: House, root: Signer, target: str) -> dict[str, list[str]]:
    """Every text of a listing by its element's name, as it stands in the document."""
    with Wire(house.port) as wire:
        wire.send(root.request("GET", target))
        answer = wire.answer()
    assert answer.status == 200, answer.body
    found: dict[str, list[str]] = {}
    for element in ElementTree.fromstring(answer.body).iter():
        found.setdefault(element.tag.removeprefix(SPACE), []).append(element.text or "")
    return found


def test_b059_a_thousand_keys_are_one_page_and_one_more_two(house: House, s3: Any, bucket: str) -> None:
    found = house.run(house.services.buckets.get(bucket))
    assert found is not None
    house.run(put_heads(house.pool, found, [b"k%04d" % number for number in range(1000)]))
    page = s3.list_objects_v2(Bucket=bucket)
    assert (page["KeyCount"], page["IsTruncated"]) == (1000, False)
    house.run(put_heads(house.pool, found, [b"k1000"]))
    pages = list(s3.get_paginator("list_objects_v2").paginate(Bucket=bucket))
    assert [each["KeyCount"] for each in pages] == [1000, 1]
    assert [each["IsTruncated"] for each in pages] == [True, False]


def test_b061_every_name_is_encoded_alike(house: House, root: Signer, s3: Any, bucket: str) -> None:
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    for key in ("a b", "é", "50%", "p q/é 1", "p q/r"):
        s3.put_object(Bucket=bucket, Key=key, Body=b"x")
    s3.delete_object(Bucket=bucket, Key="a b")
    s3.delete_object(Bucket=bucket, Key="é")
    path = f"/{bucket}?encoding-type=url&versions="
    whole = texts(house, root, path + "&delimiter=%2F")
    assert sorted(set(whole["Key"])) == ["%C3%A9", "50%25", "a%20b"]
    assert whole["Delimiter"] == ["/"] and "p%20q/" in whole["Prefix"]
    one = texts(house, root, path + "&delimiter=q%2F&prefix=p%20&max-keys=1")
    assert one["Prefix"][0] == "p%20" and one["Delimiter"] == ["q/"] and "p%20q/" in one["Prefix"]
    first = texts(house, root, path + "&max-keys=3")
    assert first["IsTruncated"] == ["true"]
    assert first["NextKeyMarker"] == [first["Key"][-1]] and first["NextKeyMarker"][0] == "a%20b"
    behind = texts(house, root, path + "&key-marker=p%20q%2Fr")
    assert behind["KeyMarker"] == ["p%20q/r"] and set(behind["Key"]) == {"%C3%A9", "p%20q/%C3%A9%201"}


def test_b063_markup_in_a_key_lists_pages_and_deletes(house: House, root: Signer, s3: Any, bucket: str) -> None:
    keys = ["R&D <x> \"q\" 'a'", "z"]
    for key in keys:
        s3.put_object(Bucket=bucket, Key=key, Body=b"x")
    assert texts(house, root, f"/{bucket}?list-type=2")["Key"] == keys
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, PaginationConfig={"PageSize": 1})
    assert [each["Key"] for page in pages for each in page["Contents"]] == keys
    done = s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": key} for key in keys]})
    assert [each["Key"] for each in done["Deleted"]] == keys
    assert s3.list_objects_v2(Bucket=bucket)["KeyCount"] == 0


@pytest.mark.parametrize(
    ("prefix", "delimiter", "expected"),
    [
        ("p/", "/", ["p/1/", "p/2/", "p/3"]),
        ("p", "/", ["p/"]),  # the delimiter follows the prefix at once
        ("p/", "p/", None),  # the delimiter is in the prefix: only what lies behind it counts
        ("", "/2/", ["p/2/"]),
    ],
)
def test_b065_each_prefix_comes_once(
    house: House, s3: Any, bucket: str, prefix: str, delimiter: str, expected: list[str] | None
) -> None:
    keys = [*(f"p/1/{n:04}" for n in range(2500)), *(f"p/2/{n}" for n in range(10)), "p/3"]
    found = house.run(house.services.buckets.get(bucket))
    assert found is not None
    house.run(put_heads(house.pool, found, [key.encode() for key in keys]))
    size = 1 if expected is not None and delimiter != "/2/" else 1000
    seen: list[str] = []
    paging = {"PageSize": size}
    for page in s3.get_paginator("list_objects_v2").paginate(
        Bucket=bucket, Prefix=prefix, Delimiter=delimiter, PaginationConfig=paging
    ):
        seen += [each["Prefix"] for each in page.get("CommonPrefixes", [])]
        seen += [each["Key"] for each in page.get("Contents", [])]
    assert len(seen) == len(set(seen))
    if delimiter == "/2/":
        assert [name for name in seen if name.endswith("/2/")] == ["p/2/"] and len(seen) == 2502
    else:
        assert seen == (expected if expected is not None else keys)


def test_b067_names_are_in_the_order_of_their_bytes(house: House, s3: Any, bucket: str) -> None:
    keys = ["B", "a", "_", "a-b", "a/b", "aB", "é", "z", "\uffee", "\uffff", "\U00010000", "\U0001f600"]
    for key in keys:
        s3.put_object(Bucket=bucket, Key=key, Body=b"x")
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, PaginationConfig={"PageSize": 2})
    assert [each["Key"] for page in pages for each in page["Contents"]] == sorted(keys, key=str.encode)
    kinds = house.run(
        house.pool.fetch(
            "SELECT table_name, data_type FROM information_schema.columns WHERE column_name = 'key'"
            " AND table_name IN ('head', 'version', 'upload')"
        )
    )
    assert {row["data_type"] for row in kinds} == {"bytea"} and len(kinds) == 3  # bytes know no collation


def test_b069_a_limit_over_the_most_is_the_most(house: House, root: Signer, s3: Any, bucket: str) -> None:
    upload = s3.create_multipart_upload(Bucket=bucket, Key="k")["UploadId"]
    for number in range(1, 8):
        s3.upload_part(Bucket=bucket, Key="k", UploadId=upload, PartNumber=number, Body=b"x")
    path = f"/{bucket}/k?uploadId={upload}"
    some = texts(house, root, path + "&part-number-marker=2&max-parts=2")
    assert some["PartNumber"] == ["3", "4"] and some["IsTruncated"] == ["true"]
    assert some["NextPartNumberMarker"] == ["4"] and some["PartNumberMarker"] == ["2"]
    most = texts(house, root, path + "&max-parts=5000")
    assert most["MaxParts"] == ["1000"] and most["IsTruncated"] == ["false"] and len(most["PartNumber"]) == 7


def test_names_of_the_document_are_s3s(house: House, root: Signer, bucket: str) -> None:
    with Wire(house.port) as wire:
        wire.send(root.request("GET", f"/{bucket}?list-type=2"))
        assert re.search(rb'<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">', wire.answer().body)
