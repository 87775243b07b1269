"""CopyObject."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from processing.model import Verdict
from tests.operations.asking import headers, refused, sent
from tests.operations.house import OTHER, House


@pytest.mark.parametrize("size", [0, 5, 100_000])
def test_a_copy_shares_its_bytes(house: House, s3: Any, bucket: str, size: int) -> None:
    s3.put_object(Bucket=bucket, Key="a", Body=b"c" * size, ContentType="x/y", Metadata={"m": "1"})
    before = len(house.tiers["standard"].blobs)
    answer = s3.copy_object(Bucket=bucket, Key="b", CopySource=f"{bucket}/a")
    assert len(house.tiers["standard"].blobs) == before
    got = s3.get_object(Bucket=bucket, Key="b")
    assert got["Body"].read() == b"c" * size
    assert got["ContentType"] == "x/y" and got["Metadata"] == {"m": "1"}
    assert answer["CopyObjectResult"]["ETag"] == got["ETag"] and answer["CopyObjectResult"]["LastModified"]


def test_the_copy_outlives_its_source(house: House, s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="a", Body=b"d" * 100_000)
    s3.copy_object(Bucket=bucket, Key="b", CopySource=f"{bucket}/a")
    s3.delete_object(Bucket=bucket, Key="a")
    assert s3.get_object(Bucket=bucket, Key="b")["Body"].read() == b"d" * 100_000


def test_b113_copies_onto_itself(s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="k", Body=b"x", Metadata={"x": "1"})
    source = f"{bucket}/k"
    assert refused(s3.copy_object, Bucket=bucket, Key="k", CopySource=source) == (400, "InvalidRequest")
    s3.copy_object(Bucket=bucket, Key="k", CopySource=source, MetadataDirective="REPLACE", Metadata={"y": "2"})
    assert s3.head_object(Bucket=bucket, Key="k")["Metadata"] == {"y": "2"}
    s3.copy_object(Bucket=bucket, Key="k", CopySource=source, StorageClass="STANDARD_IA")
    assert s3.head_object(Bucket=bucket, Key="k")["StorageClass"] == "STANDARD_IA"


def test_b115_replace_takes_everything_from_the_request(s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="a", Body=b"x", Metadata={"x": "1"}, ContentType="a/a", CacheControl="no-cache")
    s3.copy_object(
        Bucket=bucket, Key="b", CopySource=f"{bucket}/a", MetadataDirective="REPLACE", Metadata={"y": "2"},
        ContentType="b/b",
    )  # fmt: skip
    replaced = s3.head_object(Bucket=bucket, Key="b")
    assert replaced["Metadata"] == {"y": "2"} and replaced["ContentType"] == "b/b" and "CacheControl" not in replaced
    s3.copy_object(Bucket=bucket, Key="c", CopySource=f"{bucket}/a", Metadata={"y": "2"}, ContentType="b/b")
    kept = s3.head_object(Bucket=bucket, Key="c")
    assert kept["Metadata"] == {"x": "1"} and kept["ContentType"] == "a/a"


def test_b117_an_unescaped_plus_is_a_blank(house: House, s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="a b", Body=b"blank")
    s3.put_object(Bucket=bucket, Key="a+b", Body=b"plus")
    for source, body in ((f"/{bucket}/a+b", b"blank"), (f"/{bucket}/a%2Bb", b"plus"), (f"{bucket}/a%20b", b"blank")):
        client = sent(house.client(), "CopyObject", **{"x-amz-copy-source": source})
        client.copy_object(Bucket=bucket, Key="to", CopySource="x/y")
        assert s3.get_object(Bucket=bucket, Key="to")["Body"].read() == body


def test_b119_a_version_of_the_source(s3: Any, bucket: str) -> None:
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    for key in ("k", "k?x=1"):
        first = s3.put_object(Bucket=bucket, Key=key, Body=b"one", Metadata={"v": "1"})["VersionId"]
        s3.put_object(Bucket=bucket, Key=key, Body=b"two", Metadata={"v": "2"})
        source = {"Bucket": bucket, "Key": key, "VersionId": first}
        answer = s3.copy_object(Bucket=bucket, Key="to", CopySource=source)
        assert answer["CopySourceVersionId"] == first and answer["VersionId"] not in (None, first)
        got = s3.get_object(Bucket=bucket, Key="to")
        assert got["Body"].read() == b"one" and got["Metadata"] == {"v": "1"}


@pytest.mark.parametrize("source", ["", "nokey", "/", "/b", "b/%zz"])
def test_a_source_that_names_no_object(house: House, bucket: str, source: str) -> None:
    client = sent(house.client(), "CopyObject", **{"x-amz-copy-source": source})
    status, _ = refused(client.copy_object, Bucket=bucket, Key="k", CopySource="x/y")
    assert status == 400


def test_sources_one_may_not_read(house: House, s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="k", Body=b"x")
    other = house.client(OTHER)
    mine = f"{bucket}-other"
    other.create_bucket(Bucket=mine)
    assert refused(other.copy_object, Bucket=mine, Key="k", CopySource=f"{bucket}/k") == (403, "AccessDenied")
    assert refused(s3.copy_object, Bucket=bucket, Key="k", CopySource=f"{bucket}-none/k") == (404, "NoSuchBucket")
    assert refused(s3.copy_object, Bucket=bucket, Key="k", CopySource=f"{bucket}/none") == (404, "NoSuchKey")
    wrong = {"ExpectedSourceBucketOwner": "123456789012"}
    assert refused(s3.copy_object, Bucket=bucket, Key="b", CopySource=f"{bucket}/k", **wrong) == (403, "AccessDenied")


def test_conditions_on_the_source(s3: Any, bucket: str) -> None:
    etag = s3.put_object(Bucket=bucket, Key="a", Body=b"x")["ETag"]
    ask = {"Bucket": bucket, "Key": "b", "CopySource": f"{bucket}/a"}
    assert refused(s3.copy_object, **ask, CopySourceIfMatch='"x"') == (412, "PreconditionFailed")
    assert refused(s3.copy_object, **ask, CopySourceIfNoneMatch=etag) == (412, "PreconditionFailed")
    s3.copy_object(**ask, CopySourceIfMatch=etag)


def test_a_new_checksum_is_computed_and_nothing_written(house: House, s3: Any, bucket: str) -> None:
    import hashlib
    from base64 import b64encode

    s3.put_object(Bucket=bucket, Key="a", Body=b"e" * 100_000)
    before = len(house.tiers["standard"].blobs)
    answer = s3.copy_object(Bucket=bucket, Key="b", CopySource=f"{bucket}/a", ChecksumAlgorithm="SHA256")
    expected = b64encode(hashlib.sha256(b"e" * 100_000).digest()).decode()
    assert answer["CopyObjectResult"]["ChecksumSHA256"] == expected
    assert s3.head_object(Bucket=bucket, Key="b", ChecksumMode="ENABLED")["ChecksumSHA256"] == expected
    assert len(house.tiers["standard"].blobs) == before


def test_b173_a_source_is_waited_for_and_refused_like_a_read(house: House, s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="scan/a", Body=b"x" * 20_000)
    with ThreadPoolExecutor(1) as pool:
        copying = pool.submit(house.client().copy_object, Bucket=bucket, Key="b", CopySource=f"{bucket}/scan/a")
        house.wait(lambda: len(house.services.waiting) == 1)
        house.decide("scan/a", Verdict.QUARANTINED)
        with pytest.raises(Exception, match="ObjectQuarantined"):
            copying.result(10)
    assert refused(s3.head_object, Bucket=bucket, Key="b")[0] == 404


def test_a_copy_is_processed_under_its_own_name(house: House, s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="a.txt", Body=b"x")
    answer = headers(s3.copy_object(Bucket=bucket, Key="bad/a.exe", CopySource=f"{bucket}/a.txt"))
    assert answer["x-sluice-state"] == "scanning"
    house.wait(lambda: refused(s3.get_object, Bucket=bucket, Key="bad/a.exe") == (403, "ObjectQuarantined"))


def test_b139_replaced_metadata_has_the_same_limit(s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="a", Body=b"")
    ask = {"Bucket": bucket, "Key": "b", "CopySource": f"{bucket}/a", "MetadataDirective": "REPLACE"}
    assert refused(s3.copy_object, **ask, Metadata={"n": "v" * 2048}) == (400, "MetadataTooLarge")
