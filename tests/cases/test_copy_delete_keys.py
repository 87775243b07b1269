"""Cases of Delete and of keys on disk that are about what is sent and what lies on the disk."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from tests.cases.whole import StartWhole
from tests.operations.asking import refused
from tests.operations.house import OTHER, ROOT, House
from tests.signing import Signer
from tests.wire.raw import Wire, signer

# --- Delete ------------------------------------------------------------------------------------------------------


def test_b121_what_current_boto3_sends_is_taken(house: House, s3: Any, bucket: str) -> None:
    client = house.client()
    sent: list[dict[str, str]] = []
    client.meta.events.register("before-send.s3.DeleteObjects", lambda request, **_: sent.append(request.headers))
    s3.put_object(Bucket=bucket, Key="k", Body=b"x")
    client.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": "k"}]})
    assert "x-amz-checksum-crc32" in sent[0] and "Content-MD5" not in sent[0]
    assert s3.list_objects_v2(Bucket=bucket)["KeyCount"] == 0


def test_b121_what_the_aws_program_sends_is_taken(house: House, s3: Any, bucket: str) -> None:
    for number in range(3):
        s3.put_object(Bucket=bucket, Key=f"k{number}", Body=b"x")
    environment = {
        "AWS_ACCESS_KEY_ID": ROOT[0], "AWS_SECRET_ACCESS_KEY": ROOT[1], "AWS_ENDPOINT_URL": house.endpoint,
        "AWS_REGION": "us-east-1", "AWS_CONFIG_FILE": "/dev/null", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
        "AWS_MAX_ATTEMPTS": "1", "AWS_EC2_METADATA_DISABLED": "true", "PATH": "/usr/bin:/bin",
    }  # fmt: skip
    objects = "Objects=[{Key=k0},{Key=k1},{Key=k2}]"
    done = subprocess.run(
        [Path(sys.executable).parent / "aws", "s3api", "delete-objects", "--bucket", bucket, "--delete", objects],
        env=environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert s3.list_objects_v2(Bucket=bucket)["KeyCount"] == 0


def test_b123_a_key_is_echoed_as_it_was_meant(house: House, root: Signer, s3: Any, bucket: str) -> None:
    import zlib
    from base64 import b64encode

    keys = ["a<a", "a&b", "]]>", " lead", "trail ", "cr\rkey"]
    for key in keys:
        s3.put_object(Bucket=bucket, Key=key, Body=b"x")
    wire_names = ["a&lt;a", "a&amp;b", "]]&gt;", " lead", "trail ", "cr&#13;key"]
    body = b"<Delete>%s</Delete>" % b"".join(b"<Object><Key>%s</Key></Object>" % name.encode() for name in wire_names)
    crc = {"x-amz-checksum-crc32": b64encode(zlib.crc32(body).to_bytes(4, "big")).decode()}
    with Wire(house.port) as wire:
        wire.send(root.request("POST", f"/{bucket}?delete", crc, body))
        answer = wire.answer()
    assert answer.status == 200
    for name in ("a&lt;a", "a&amp;b", " lead", "trail "):
        assert f"<Key>{name}</Key>".encode() in answer.body
    assert b"<Key>cr&#13;key</Key>" in answer.body or b"<Key>cr&#xD;key</Key>" in answer.body
    assert s3.list_objects_v2(Bucket=bucket)["KeyCount"] == 0


def test_b125_quiet_names_only_the_key_that_is_denied(house: House, s3: Any, bucket: str) -> None:
    """A caller who may do nothing here is told so for every key; one bad key among good ones alone."""
    etag = s3.put_object(Bucket=bucket, Key="held", Body=b"x")["ETag"]
    s3.put_object(Bucket=bucket, Key="gone", Body=b"x")
    objects = [{"Key": "gone"}, {"Key": "held", "ETag": '"another"'}]
    answer = s3.delete_objects(Bucket=bucket, Delete={"Objects": objects, "Quiet": True})
    assert "Deleted" not in answer
    assert [(each["Key"], each["Code"]) for each in answer["Errors"]] == [("held", "PreconditionFailed")]
    assert s3.head_object(Bucket=bucket, Key="held")["ETag"] == etag
    denied = house.client(OTHER).delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": "held"}], "Quiet": True})
    assert denied["ResponseMetadata"]["HTTPStatusCode"] == 200 and "Deleted" not in denied
    assert [(each["Key"], each["Code"]) for each in denied["Errors"]] == [("held", "AccessDenied")]
    assert s3.head_object(Bucket=bucket, Key="held")["ETag"] == etag


# --- keys on disk ------------------------------------------------------------------------------------------------

HOSTILE = ["..", "../b2/k", "a/../../x", "%2e%2e%2f", "%2e%2e%2fb3%2fk", "..%5c", ".", "%2fetc%2fpasswd", "..%00"]


def test_b219_no_key_is_a_path(start_whole: StartWhole) -> None:
    """Through raw sockets, into files: every key is itself, in its bucket, and nothing lies where it names."""
    whole = start_whole(inline_threshold=0)
    client = whole.client()
    for bucket in ("first", "b2-other"):
        client.create_bucket(Bucket=bucket)
    client.put_object(Bucket="b2-other", Key="k", Body=b"of the other bucket")
    root = signer(whole.port, ROOT)
    stored = {}
    for number, key in enumerate([*HOSTILE, "../b2-other/k"]):
        body = b"content %d" % number
        with Wire(whole.port) as wire:
            wire.send(root.request("PUT", f"/first/{key}", {}, body))
            status = wire.answer().status
            assert status in (200, 400), key
            if status == 200:
                wire.send(root.request("GET", f"/first/{key}"))
                assert wire.answer().body == body
                stored[unquote(key)] = body
    assert stored.keys() == {unquote(key) for key in [*HOSTILE, "../b2-other/k"]}
    assert client.list_objects_v2(Bucket="first")["KeyCount"] == len(stored)
    assert client.list_objects_v2(Bucket="b2-other")["KeyCount"] == 1
    assert client.get_object(Bucket="b2-other", Key="k")["Body"].read() == b"of the other bucket"
    blobs = whole.folder / "blobs" / "standard"
    names = {path.name for path in whole.files() if path.is_relative_to(blobs)} - {"sluice-tier"}
    assert len(names) >= len(stored) + 1 and all(len(name) == 32 and int(name, 16) for name in names)
    # Nothing lies outside the data folder, and nothing of a key's name anywhere in it.
    beside = {path for path in whole.folder.parent.rglob("*") if path.is_file()} - whole.files()
    assert not beside
    assert not [path for path in whole.files() if path.name in ("k", "x", "passwd", ".", "..")]


@pytest.mark.parametrize("order", list(itertools.permutations(["k", "k/", "k/x"])))
def test_b221_a_key_that_is_a_folder_too_in_every_order(house: House, s3: Any, bucket: str, order: list[str]) -> None:
    for key in order:
        s3.put_object(Bucket=bucket, Key=key, Body=key.encode() * 10_000)
    for gone in order:
        assert s3.get_object(Bucket=bucket, Key=gone)["Body"].read() == gone.encode() * 10_000
        s3.delete_object(Bucket=bucket, Key=gone)
        left = [key for key in sorted(order) if order.index(key) > order.index(gone)]
        assert [each["Key"] for each in s3.list_objects_v2(Bucket=bucket).get("Contents", [])] == left
        for key in left:
            assert s3.get_object(Bucket=bucket, Key=key)["Body"].read() == key.encode() * 10_000


def test_b223_a_permanent_refusal_is_asked_for_once(house: House, s3: Any, bucket: str) -> None:
    """Whatever will never succeed is a 4xx, and botocore with its usual patience does not repeat it."""
    patient = house.client(retries={"total_max_attempts": 5, "mode": "standard"})
    s3.put_object(Bucket=bucket, Key="bad/k", Body=b"x")
    s3.put_object(Bucket=bucket, Key="broken/k", Body=b"x")
    s3.put_object(Bucket=bucket, Key="cold", Body=b"x", StorageClass="GLACIER")
    house.wait(lambda: refused(s3.head_object, Bucket=bucket, Key="broken/k")[0] == 422)
    house.wait(lambda: refused(s3.head_object, Bucket=bucket, Key="bad/k")[0] == 403)
    wrong: dict[str, Any] = {"Bucket": bucket, "Key": "k", "Body": b"x"}
    calls: list[tuple[str, dict[str, Any], int]] = [
        ("get_object", {"Bucket": bucket, "Key": "none"}, 404),
        ("get_object", {"Bucket": bucket, "Key": "bad/k"}, 403),
        ("get_object", {"Bucket": bucket, "Key": "broken/k"}, 422),
        ("get_object", {"Bucket": bucket, "Key": "cold"}, 403),
        ("put_object", {**wrong, "Key": "x" * 1025}, 400),
        ("put_object", {**wrong, "StorageClass": "NONE"}, 400),
        ("put_object", {**wrong, "Metadata": {"n": "v" * 3000}}, 400),
        ("put_object", {**wrong, "ContentMD5": "YWJj"}, 400),
        ("put_object", {**wrong, "Bucket": f"{bucket}-none"}, 404),
        ("put_object", {**wrong, "IfMatch": '"x"'}, 404),
        ("upload_part", {**wrong, "UploadId": "none", "PartNumber": 1}, 404),
        ("restore_object", {"Bucket": bucket, "Key": "none", "RestoreRequest": {"Days": 1}}, 404),
        ("delete_bucket", {"Bucket": bucket}, 409),
    ]
    for name, arguments, status in calls:
        house.wait(lambda: house.pipeline.in_flight == 0)
        before = len(house.metrics.requests)
        assert refused(getattr(patient, name), **arguments)[0] == status, name
        house.wait(lambda: house.pipeline.in_flight == 0)
        assert [each[1] for each in house.metrics.requests[before:]] == [status], (name, arguments)
