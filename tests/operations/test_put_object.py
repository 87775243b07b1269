"""PutObject."""

from __future__ import annotations

import hashlib
from typing import Any

from tests.operations.house import House


def test_a_small_object_comes_back(s3: Any, bucket: str) -> None:
    answer = s3.put_object(Bucket=bucket, Key="a.txt", Body=b"hello", ContentType="text/plain", Metadata={"x": "1"})
    assert answer["ETag"] == f'"{hashlib.md5(b"hello").hexdigest()}"'
    got = s3.get_object(Bucket=bucket, Key="a.txt")
    assert got["Body"].read() == b"hello"
    assert got["ContentType"] == "text/plain" and got["Metadata"] == {"x": "1"}


def test_a_large_object_goes_through_a_tier(house: House, s3: Any, bucket: str) -> None:
    data = bytes(range(256)) * 4096 * 3
    s3.put_object(Bucket=bucket, Key="big", Body=data)
    assert s3.get_object(Bucket=bucket, Key="big")["Body"].read() == data
    assert data in house.tiers["standard"].blobs.values()
