"""ListBuckets, CreateBucket, HeadBucket, DeleteBucket, GetBucketLocation, versioning."""

from __future__ import annotations

from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from botocore.handlers import validate_bucket_name

from bench.presign import Presigner
from tests.operations.asking import headers, refusal, refused, sent
from tests.operations.house import OTHER, ROOT, House


@pytest.mark.parametrize("name", ["ab", "x" * 64, "Abc", "a_b", "-abc", "a..b", "192.168.5.4"])
def test_b145_names_that_are_none(house: House, name: str) -> None:
    client = house.client()
    client.meta.events.unregister("before-parameter-build.s3", validate_bucket_name)
    assert refused(client.create_bucket, Bucket=name) == (400, "InvalidBucketName")


def test_b145_names_that_are_fine(s3: Any, bucket: str) -> None:
    for name in (f"{bucket}--b", f"{bucket}.b"):
        s3.create_bucket(Bucket=name)
        s3.delete_bucket(Bucket=name)


def test_ones_own_bucket_again_and_anothers(house: House, s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="k", Body=b"x")
    assert s3.create_bucket(Bucket=bucket, ACL="public-read")["ResponseMetadata"]["HTTPStatusCode"] == 200
    assert refused(house.client(None).list_objects_v2, Bucket=bucket) == (403, "AccessDenied")  # nothing changed
    assert s3.head_object(Bucket=bucket, Key="k")
    assert refused(house.client(OTHER).create_bucket, Bucket=bucket) == (409, "BucketAlreadyExists")


def test_b143_us_east_1_is_the_empty_constraint(s3: Any, bucket: str) -> None:
    assert s3.get_bucket_location(Bucket=bucket)["LocationConstraint"] is None
    request = {"Bucket": f"{bucket}-loc", "CreateBucketConfiguration": {"LocationConstraint": "us-east-1"}}
    assert refused(s3.create_bucket, **request) == (400, "InvalidLocationConstraint")
    request["CreateBucketConfiguration"] = {"LocationConstraint": "eu-west-1"}
    s3.create_bucket(**request)
    assert s3.get_bucket_location(Bucket=f"{bucket}-loc")["LocationConstraint"] == "eu-west-1"


def test_head_bucket_tells_the_region(house: House, s3: Any, bucket: str) -> None:
    assert headers(s3.head_bucket(Bucket=bucket))["x-amz-bucket-region"] == "us-east-1"
    error = refusal(house.client(OTHER).head_bucket, Bucket=bucket)
    assert error["ResponseMetadata"]["HTTPStatusCode"] == 403
    assert headers(error)["x-amz-bucket-region"] == "us-east-1"
    assert refused(s3.head_bucket, Bucket=f"{bucket}-none")[0] == 404


def test_a_bucket_is_reached_from_its_location(house: House, s3: Any, bucket: str) -> None:
    """Clients ask for the location and sign with it (minio-go); HEAD, presigned URLs and a new bucket included."""
    away, name = house.client(region="eu-west-1"), f"{bucket}-away"
    away.create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
    away.put_object(Bucket=name, Key="k", Body=b"x")
    for client in (away, s3):
        assert client.get_object(Bucket=name, Key="k")["Body"].read() == b"x"
        assert headers(client.head_bucket(Bucket=name))["x-amz-bucket-region"] == "eu-west-1"
    for region in ("us-east-1", "eu-west-1"):
        path = Presigner(*ROOT, f"127.0.0.1:{house.port}", region).path("GET", f"/{name}/k")
        with urlopen(house.endpoint + path) as answer:
            assert answer.read() == b"x"


def test_any_other_region_is_told_the_buckets(house: House, s3: Any, bucket: str) -> None:
    """In a header, since HEAD has no document."""
    name = f"{bucket}-away"
    s3.create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
    signer = Presigner(*ROOT, f"127.0.0.1:{house.port}", "ap-south-1")
    for where, region in ((bucket, "us-east-1"), (name, "eu-west-1"), (f"{bucket}-none", "us-east-1")):
        for path in (f"/{where}", f"/{where}/k"):
            with pytest.raises(HTTPError) as caught:
                urlopen(Request(house.endpoint + signer.path("HEAD", path), method="HEAD"))
            assert (caught.value.code, caught.value.headers["x-amz-bucket-region"]) == (400, region)
    with pytest.raises(HTTPError) as caught:
        urlopen(house.endpoint + signer.path("GET", "/"))
    assert (caught.value.code, caught.value.headers["x-amz-bucket-region"]) == (400, None)
    assert b"<Region>us-east-1</Region>" in caught.value.read()


def test_an_sdk_follows_a_bucket_to_its_region(house: House, s3: Any, bucket: str) -> None:
    name = f"{bucket}-away"
    s3.create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
    lost = house.client(region="ap-south-1")
    for where in (bucket, name):
        lost.put_object(Bucket=where, Key="k", Body=b"x")
        assert lost.get_object(Bucket=where, Key="k")["Body"].read() == b"x"
        assert lost.list_objects_v2(Bucket=where)["KeyCount"] == 1
    assert refusal(lost.list_buckets)["Error"]["Code"] == "AuthorizationHeaderMalformed"


def test_b127_a_bucket_with_versions_stays(s3: Any, bucket: str) -> None:
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    version = s3.put_object(Bucket=bucket, Key="k", Body=b"x")["VersionId"]
    marker = s3.delete_object(Bucket=bucket, Key="k")["VersionId"]
    assert refused(s3.delete_bucket, Bucket=bucket) == (409, "BucketNotEmpty")
    for each in (version, marker):
        s3.delete_object(Bucket=bucket, Key="k", VersionId=each)
    s3.delete_bucket(Bucket=bucket)
    assert refused(s3.list_objects_v2, Bucket=bucket) == (404, "NoSuchBucket")


def test_hidden_versions_hold_a_bucket_and_say_so(s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="bad/k", Body=b"x")
    assert refused(s3.get_object, Bucket=bucket, Key="bad/k")[0] == 403
    error = refusal(s3.delete_bucket, Bucket=bucket)["Error"]
    assert error["Code"] == "BucketNotEmpty" and "sluice quarantine list" in error["Message"]
    assert error["HiddenVersions"] == "1"


def test_open_uploads_do_not_hold_a_bucket(s3: Any, bucket: str) -> None:
    s3.create_multipart_upload(Bucket=bucket, Key="k")
    s3.delete_bucket(Bucket=bucket)


def test_buckets_are_listed_in_pages(house: House, bucket: str) -> None:
    client = house.client(OTHER)
    for letter in "abc":
        client.create_bucket(Bucket=f"{bucket}-page-{letter}")
    names: list[str] = []
    token: dict[str, str] = {}
    while True:
        page = client.list_buckets(Prefix=f"{bucket}-page", MaxBuckets=2, **token)
        assert page["Prefix"] == f"{bucket}-page" and len(page["Buckets"]) <= 2
        names += [each["Name"] for each in page["Buckets"]]
        if "ContinuationToken" not in page:
            break
        token = {"ContinuationToken": page["ContinuationToken"]}
    assert names == [f"{bucket}-page-{letter}" for letter in "abc"]
    assert page["Owner"]["DisplayName"] == "Other"


def test_versioning_is_told_and_set(s3: Any, bucket: str) -> None:
    assert "Status" not in s3.get_bucket_versioning(Bucket=bucket)
    for status in ("Enabled", "Suspended"):
        s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": status})
        assert s3.get_bucket_versioning(Bucket=bucket)["Status"] == status
    request = {"Bucket": bucket, "VersioningConfiguration": {"Status": "Enabled", "MFADelete": "Enabled"}}
    assert refused(s3.put_bucket_versioning, **request) == (501, "NotImplemented")


def test_version_ids_follow_the_setting(s3: Any, bucket: str) -> None:
    assert "VersionId" not in s3.put_object(Bucket=bucket, Key="k", Body=b"0")
    assert "VersionId" not in s3.get_object(Bucket=bucket, Key="k")
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    version = s3.put_object(Bucket=bucket, Key="k", Body=b"1")["VersionId"]
    assert s3.get_object(Bucket=bucket, Key="k", VersionId="null")["Body"].read() == b"0"
    assert s3.get_object(Bucket=bucket, Key="k", VersionId=version)["Body"].read() == b"1"


@pytest.mark.parametrize("operation", ["list_objects_v2", "get_bucket_location", "head_bucket", "delete_bucket"])
def test_the_expected_owner_is_checked(s3: Any, bucket: str, operation: str) -> None:
    call = getattr(s3, operation)
    assert refused(call, Bucket=bucket, ExpectedBucketOwner="123456789012")[0] == 403
    if operation != "delete_bucket":
        owner = s3.list_buckets()["Owner"]["ID"]
        s3.list_objects_v2(Bucket=bucket, ExpectedBucketOwner=owner)


def test_operations_that_are_not_there_say_so_by_name(s3: Any, bucket: str) -> None:
    error = refusal(s3.get_bucket_lifecycle_configuration, Bucket=bucket)
    assert error["ResponseMetadata"]["HTTPStatusCode"] == 501
    assert "GetBucketLifecycleConfiguration" in error["Error"]["Message"]


def test_virtual_host_style(house: House, bucket: str) -> None:
    client = house.client(s3={"addressing_style": "path"})
    client.put_object(Bucket=bucket, Key="k", Body=b"x")
    from tests.operations.house import ROOT
    from tests.signing import Signer
    from tests.wire.raw import Wire

    signer = Signer(*ROOT, host=f"{bucket}.s3.test")
    with Wire(house.port) as wire:
        wire.send(signer.request("GET", "/k"))
        assert wire.answer().body == b"x"
        wire.send(signer.request("GET", "/"))
        assert b"<Key>k</Key>" in wire.answer().body


def test_a_bucket_changed_elsewhere_is_decided_about_anew(house: House, s3: Any, bucket: str) -> None:
    """The cache says versioning is off; the row's generation says otherwise."""
    s3.put_object(Bucket=bucket, Key="k", Body=b"x")
    s3.get_object(Bucket=bucket, Key="k")
    statement = "UPDATE bucket SET versioning = 1, generation = generation + 1 WHERE name = $1"
    house.run(house.pool.execute(statement, bucket))
    assert s3.get_object(Bucket=bucket, Key="k")["VersionId"] == "null"


def test_canned_acls_act(house: House, s3: Any, bucket: str) -> None:
    name = f"{bucket}-public"
    s3.create_bucket(Bucket=name, ACL="public-read-write")
    anonymous = house.client(None)
    anonymous.put_object(Bucket=name, Key="k", Body=b"x")
    assert [each["Key"] for each in anonymous.list_objects_v2(Bucket=name)["Contents"]] == ["k"]
    assert refused(anonymous.put_object, Bucket=bucket, Key="k", Body=b"x") == (403, "AccessDenied")
    client = sent(house.client(), "CreateBucket", **{"x-amz-acl": "nonsense"})
    assert refused(client.create_bucket, Bucket=f"{bucket}-x") == (400, "InvalidArgument")
