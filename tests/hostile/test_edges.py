"""What was once answered wrongly, or not at all."""

from __future__ import annotations

import asyncio
import time
from typing import Any
from xml.etree import ElementTree

import pytest
from structlog.testing import capture_logs

from tests.hostile.sender import Sender, path
from tests.operations.asking import refused
from tests.operations.house import OTHER, House
from tests.signing import Signer
from tests.wire.raw import Wire


def test_an_unknown_minor_version_is_answered_in_one_we_speak(house: House) -> None:
    with Wire(house.port) as wire:
        wire.send(b"GET /no-such-bucket HTTP/0.9\r\nHost: a\r\n\r\n")
        assert wire.line().startswith(b"HTTP/1.1 404")


def test_a_connection_that_says_nothing_ends(worker_dsn: str) -> None:
    house = House(worker_dsn, header_timeout=0.3).start()
    try:
        with Wire(house.port) as wire:
            assert wire.ended()
    finally:
        house.stop()


@pytest.mark.parametrize("coding", ["gzip, chunked", "identity, chunked"])
def test_a_transfer_coding_that_is_not_taken_off_is_refused(
    house: House, root: Signer, s3: Any, bucket: str, coding: str
) -> None:
    with Wire(house.port) as wire:
        head = root.request("PUT", path(bucket, b"k"), {"Transfer-Encoding": coding}, payload="UNSIGNED-PAYLOAD")
        wire.send(head + b"5\r\nhello\r\n0\r\n\r\n")
        answer = wire.answer()
    assert (answer.status, answer.code) == (501, "NotImplemented")
    assert refused(s3.head_object, Bucket=bucket, Key="k")[0] == 404


@pytest.mark.parametrize("key", [b"\0", b"a\x01b", "\ufffe".encode()])
def test_errors_can_be_read_whatever_the_key(house: House, root: Signer, bucket: str, key: bytes) -> None:
    answer = Sender(house.port, root).ask("GET", path(bucket, key))
    assert ElementTree.fromstring(answer.body).findtext("Code") == "NoSuchKey"


@pytest.mark.parametrize("location", ["x" * 100, "&#9;x", "a b", "-"])
def test_a_location_is_a_name(house: House, root: Signer, bucket: str, location: str) -> None:
    inner = f"<LocationConstraint>{location}</LocationConstraint>"
    body = f"<CreateBucketConfiguration>{inner}</CreateBucketConfiguration>".encode()
    answer = Sender(house.port, root).ask("PUT", f"/{bucket}-there", body=body)
    assert (answer.status, answer.code) == (400, "InvalidLocationConstraint")


def test_a_thousand_repeats_of_one_key_are_one_delete(s3: Any, bucket: str) -> None:
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    started = time.monotonic()
    answer = s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": "k"}] * 1000})
    assert time.monotonic() - started < 5
    assert len(answer["Deleted"]) == 1000
    assert len(s3.list_object_versions(Bucket=bucket)["DeleteMarkers"]) == 1


def test_write_permission_deletes_no_version_for_good(house: House, s3: Any, bucket: str) -> None:
    name = f"{bucket}-open"
    s3.create_bucket(Bucket=name, ACL="public-read-write")
    s3.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
    version = s3.put_object(Bucket=name, Key="k", Body=b"x")["VersionId"]
    other = house.client(OTHER)
    assert refused(other.delete_object, Bucket=name, Key="k", VersionId=version) == (403, "AccessDenied")
    many = other.delete_objects(Bucket=name, Delete={"Objects": [{"Key": "k", "VersionId": version}, {"Key": "z"}]})
    assert [each["Code"] for each in many["Errors"]] == ["AccessDenied"]
    assert [each["Key"] for each in many["Deleted"]] == ["z"]
    assert s3.get_object(Bucket=name, Key="k", VersionId=version)["Body"].read() == b"x"


def test_killed_database_connections_are_503_or_answered(house: House, root: Signer, bucket: str) -> None:
    """An administrator ends all sessions again and again, in the middle of statements and between them."""
    sender = Sender(house.port, root)
    assert sender.ask("PUT", path(bucket, b"k"), body=b"x").status == 200
    assert sender.ask("GET", path(bucket, b"k")).status == 200  # decided, before nobody can decide
    others = "pid <> pg_backend_pid() AND datname = current_database()"
    kill = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}"

    async def killer() -> None:
        import asyncpg

        conn = await asyncpg.connect(house.dsn)
        try:
            for _ in range(30):
                await conn.execute(kill)
                await asyncio.sleep(0.02)
        finally:
            await conn.close()

    killing = house.submit(killer())
    asked = 0
    while not killing.done():
        for method, key in (("GET", b"k"), ("PUT", f"n{asked}".encode()), ("HEAD", b"k"), ("DELETE", b"z")):
            sender.ask(method, path(bucket, key))  # holds that it is no 500
            asked += 1
    killing.result()
    sender.close()
    end = time.monotonic() + 10
    while Sender(house.port, root).ask("GET", path(bucket, b"k")).status != 200:
        assert time.monotonic() < end


def test_what_could_not_be_discarded_is_discarded_later(house: House, bucket: str) -> None:
    async def staged() -> int:
        return int(await house.pool.fetchval("SELECT count(*) FROM blob WHERE state = 1"))

    blobs = house.services.blobs
    blob = house.run(blobs.stage("standard"))
    real, failed = blobs._pool, []

    class Gone:
        async def fetchrow(self, *_: object) -> None:
            failed.append(True)
            raise ConnectionError("the database is away")

    blobs._pool = Gone()  # type: ignore[assignment]
    try:
        house.run(blobs.discard(blob))
    finally:
        blobs._pool = real
    assert failed and house.run(staged()) == 1
    house.wait(lambda: house.run(staged()) == 0)


def test_missing_bytes_are_reported_and_never_served(house: House, root: Signer, s3: Any, bucket: str) -> None:
    body = b"x" * 100_000
    s3.put_object(Bucket=bucket, Key="k", Body=body)
    s3.get_object(Bucket=bucket, Key="k")["Body"].read()
    blob = house.run(_blob_of(house, b"k", bucket))
    house.run(house.tiers["standard"].delete(blob))
    with capture_logs() as lines:
        assert refused(s3.get_object, Bucket=bucket, Key="k")[0] == 500
    assert [each["blob"] for each in lines if each["event"] == "blob-damaged"] == [str(blob)]
    assert house.run(house.pool.fetchval("SELECT corrupt FROM blob WHERE id = $1", blob))


def test_a_new_checksum_does_not_vouch_for_damaged_bytes(house: House, s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="k", Body=b"x" * 100)
    s3.get_object(Bucket=bucket, Key="k")["Body"].read()
    blob = house.run(_blob_of(house, b"k", bucket))
    house.run(house.pool.execute("UPDATE blob SET bytes = overlay(bytes PLACING 'y' FROM 1) WHERE id = $1", blob))
    arguments = {"Bucket": bucket, "Key": "c", "CopySource": f"{bucket}/k", "ChecksumAlgorithm": "SHA512"}
    with capture_logs():
        assert refused(s3.copy_object, **arguments)[0] == 500
    assert refused(s3.head_object, Bucket=bucket, Key="c")[0] == 404


async def _blob_of(house: House, key: bytes, bucket: str) -> Any:
    return await house.pool.fetchval(
        "SELECT v.blob FROM version v JOIN bucket b ON b.id = v.bucket_id WHERE b.name = $1 AND v.key = $2", bucket, key
    )
