"""The whole life of one object, driven by the ``aws`` program and boto3 against a real server process."""

from __future__ import annotations

import filecmp
import hashlib
import os
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from boto3.s3.transfer import TransferConfig
from botocore.exceptions import ClientError

from tests.activities.clamd import ClamdServer, eicar, running_clamd
from tests.server import Server, StartServer

MIB = 1 << 20
# The first bytes of a Windows program, enough for libmagic to know one.
PROGRAM = (
    b"MZ"
    + b"\0" * 58
    + b"\x80\0\0\0"
    + b"\0" * 64
    + b"PE\0\0L\x01\x01\0"
    + b"\0" * 16
    + b"\xe0\0\x02\x01"
    + b"\0" * 400
)


@pytest.fixture(scope="module")
def clamd() -> Iterator[ClamdServer]:
    with running_clamd(StreamMaxLength="4000M", MaxScanSize="4000M", MaxFileSize="4000M") as one:
        yield one


def noise(path: Path, size: int) -> Path:
    """A file of random bytes: nothing about it can be compressed or guessed."""
    with path.open("wb") as file:
        for start in range(0, size, MIB):
            file.write(os.urandom(min(MIB, size - start)))
    return path


def make_bucket(server: Server, name: str) -> Any:
    client = server.client()
    client.create_bucket(Bucket=name)
    return client


def test_a_clean_file_with_the_aws_program(start_server: StartServer, clamd: ClamdServer, tmp_path: Path) -> None:
    server = start_server({"SLUICE_CLAMD": clamd.unix})
    source = noise(tmp_path / "clean.bin", 3 * MIB)
    server.aws("s3", "mb", "s3://story")
    server.aws("s3", "cp", str(source), "s3://story/clean.bin")
    assert "clean.bin" in server.aws("s3", "ls", "s3://story/").stdout
    server.aws("s3", "cp", "s3://story/clean.bin", str(tmp_path / "back.bin"))  # waits for the verdict
    assert filecmp.cmp(source, tmp_path / "back.bin", shallow=False)
    assert server.wait_state("story", "clean.bin")["x-sluice-state"] == "ready"
    # rm leaves an empty bucket that can be removed
    server.aws("s3", "rm", "s3://story/clean.bin")
    server.aws("s3", "rb", "s3://story")


def test_eicar_is_quarantined_and_released(start_server: StartServer, clamd: ClamdServer, tmp_path: Path) -> None:
    server = start_server({"SLUICE_CLAMD": clamd.tcp})
    client = make_bucket(server, "story")
    (tmp_path / "evil.txt").write_bytes(eicar())
    server.aws("s3", "cp", str(tmp_path / "evil.txt"), "s3://story/evil.txt")
    refused = server.aws("s3", "cp", "s3://story/evil.txt", str(tmp_path / "back.txt"), check=False)
    assert refused.returncode != 0 and not (tmp_path / "back.txt").exists()
    with pytest.raises(ClientError) as caught:
        client.get_object(Bucket="story", Key="evil.txt")
    answer = caught.value.response
    assert answer["Error"]["Code"] == "ObjectQuarantined"
    assert answer["ResponseMetadata"]["HTTPStatusCode"] == 403
    assert answer["ResponseMetadata"]["HTTPHeaders"]["x-sluice-code"] == "malware"
    assert "Eicar" in answer["ResponseMetadata"]["HTTPHeaders"]["x-sluice-reason"]
    for door in (
        lambda: client.get_object(Bucket="story", Key="evil.txt", Range="bytes=0-3"),
        lambda: client.copy_object(Bucket="story", Key="copy.txt", CopySource="story/evil.txt"),
        lambda: client.head_object(Bucket="story", Key="evil.txt"),
    ):
        with pytest.raises(ClientError) as caught:
            door()
        assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 403
    assert "Contents" not in client.list_objects_v2(Bucket="story")
    assert "evil.txt" in server.sluice("quarantine", "list", "--json").stdout
    server.sluice("quarantine", "release", "story", "evil.txt", "--why", "a test string")
    assert client.get_object(Bucket="story", Key="evil.txt")["Body"].read() == eicar()


def test_eicar_over_two_parts_is_caught(start_server: StartServer, clamd: ClamdServer) -> None:
    """B171: the whole content is scanned, not its parts."""
    server = start_server({"SLUICE_CLAMD": clamd.unix})
    client = make_bucket(server, "story")
    upload = client.create_multipart_upload(Bucket="story", Key="split")["UploadId"]
    whole = b"\0" * (5 * MIB - 30) + eicar()
    parts = []
    for number, data in enumerate((whole[: 5 * MIB], whole[5 * MIB :]), 1):
        etag = client.upload_part(Bucket="story", Key="split", UploadId=upload, PartNumber=number, Body=data)["ETag"]
        parts.append({"PartNumber": number, "ETag": etag})
    client.complete_multipart_upload(Bucket="story", Key="split", UploadId=upload, MultipartUpload={"Parts": parts})
    assert server.wait_state("story", "split", "quarantined")["x-sluice-code"] == "malware"


def test_a_program_named_pdf(start_server: StartServer) -> None:
    server = start_server()
    client = make_bucket(server, "story")
    client.put_object(Bucket="story", Key="paper.pdf", Body=PROGRAM, ContentType="application/pdf")
    server.wait_state("story", "paper.pdf", "ready")
    status, text = server.get("/api/v1/objects/story/paper.pdf/processing", token=True)
    assert (status == 200 and "x-dosexec" in text) or "portable-executable" in text
    strict = start_server({"SLUICE_ENFORCE_TYPE_MATCH": "true"})
    client = make_bucket(strict, "story")
    client.put_object(Bucket="story", Key="paper.pdf", Body=PROGRAM, ContentType="application/pdf")
    assert strict.wait_state("story", "paper.pdf", "quarantined")["x-sluice-code"] == "type-mismatch"


class Peak:
    """The most memory (PSS) that a server's processes held together while the block ran."""

    def __init__(self, server: Server) -> None:
        self.server, self.bytes, self._over = server, 0, threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        while not self._over.wait(0.2):
            self.bytes = max(self.bytes, self.server.memory())

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def test_a_gibibyte_in_bounded_memory(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server(workers=2)
    client = make_bucket(server, "story")
    source = noise(tmp_path / "big", 1024 * MIB)
    before = server.memory()
    with Peak(server) as peak:
        with source.open("rb") as body:
            client.put_object(Bucket="story", Key="big", Body=body)
        answer = client.get_object(Bucket="story", Key="big")
        digest = hashlib.sha256()
        for chunk in answer["Body"].iter_chunks(MIB):
            digest.update(chunk)
    with source.open("rb") as file:
        assert digest.hexdigest() == hashlib.file_digest(file, "sha256").hexdigest()
    assert peak.bytes - before < 150 * MIB, f"{(peak.bytes - before) / MIB:.0f} MiB more than at rest"


def test_multipart_of_200_mib(server: Server, bucket: str, tmp_path: Path) -> None:
    source = noise(tmp_path / "parts", 200 * MIB)
    client = server.client()
    config = TransferConfig(multipart_threshold=8 * MIB, multipart_chunksize=8 * MIB, max_concurrency=4)
    client.upload_file(str(source), bucket, "parts", Config=config)
    assert re.fullmatch(r'"[0-9a-f]{32}-25"', client.head_object(Bucket=bucket, Key="parts")["ETag"])
    client.download_file(bucket, "parts", str(tmp_path / "back"), Config=config)
    assert filecmp.cmp(source, tmp_path / "back", shallow=False)
    tail = client.get_object(Bucket=bucket, Key="parts", Range=f"bytes={100 * MIB - 5}-{100 * MIB + 4}")["Body"].read()
    with source.open("rb") as file:
        file.seek(100 * MIB - 5)
        assert tail == file.read(10)


# --- archive --------------------------------------------------------------------------------------------------------


def archive_story(server: Server, size: int = 300_000) -> None:
    """Put to GLACIER, refused read, restore, read, expiry."""
    client = make_bucket(server, "cold")
    data = os.urandom(size)
    client.put_object(Bucket="cold", Key="box", Body=data, StorageClass="GLACIER")
    server.wait_state("cold", "box", "ready")
    head = client.head_object(Bucket="cold", Key="box")
    assert head["StorageClass"] == "GLACIER" and "Restore" not in head
    with pytest.raises(ClientError) as caught:
        client.get_object(Bucket="cold", Key="box")
    assert caught.value.response["Error"]["Code"] == "InvalidObjectState"
    restored = client.restore_object(Bucket="cold", Key="box", RestoreRequest={"Days": 2})
    assert restored["ResponseMetadata"]["HTTPStatusCode"] == 202
    if 'ongoing-request="true"' in client.head_object(Bucket="cold", Key="box").get("Restore", ""):
        with pytest.raises(ClientError) as caught:
            client.restore_object(Bucket="cold", Key="box", RestoreRequest={"Days": 2})
        assert caught.value.response["Error"]["Code"] == "RestoreAlreadyInProgress"
    wait_restore(client, 'ongoing-request="false", expiry-date="')
    assert client.get_object(Bucket="cold", Key="box")["Body"].read() == data
    assert client.head_object(Bucket="cold", Key="box")["StorageClass"] == "GLACIER"
    again = client.restore_object(Bucket="cold", Key="box", RestoreRequest={"Days": 3})
    assert again["ResponseMetadata"]["HTTPStatusCode"] == 200
    wait_restore(client, "")
    with pytest.raises(ClientError) as caught:
        client.get_object(Bucket="cold", Key="box")
    assert caught.value.response["Error"]["Code"] == "InvalidObjectState"


def wait_restore(client: Any, wanted: str, patience: float = 60.0) -> None:
    """Until HEAD's Restore begins with what is wanted ("" means: it is gone)."""
    deadline = time.monotonic() + patience
    seen = None
    while time.monotonic() < deadline:
        seen = client.head_object(Bucket="cold", Key="box").get("Restore", "")
        if seen.startswith(wanted) and bool(seen) == bool(wanted):
            return
        time.sleep(0.05)
    raise AssertionError(f"Restore is {seen!r}, not {wanted!r}")


FAST = {
    "SLUICE_LIFECYCLE_DAY": "3",
    "SLUICE_ARCHIVE_DELAY": "1",
    "SLUICE_RECALL_POLL": "0.3",
    "SLUICE_BLOB_GRACE": "1",
    "SLUICE_COLLECT_INTERVAL": "0.5",
}


@pytest.mark.parametrize("size", [300_000, 500], ids=["file", "inline"])
def test_archive_in_a_folder(start_server: StartServer, size: int) -> None:
    archive_story(start_server(FAST), size)


@pytest.fixture(scope="module")
def moto() -> Iterator[str]:
    from moto.server import ThreadedMotoServer

    upstream = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    upstream.start()
    host, port = upstream.get_host_and_port()
    yield f"http://{host}:{port}"
    upstream.stop()


def test_archive_in_a_cloud(start_server: StartServer, moto: str, tmp_path: Path) -> None:
    boto3.client(
        "s3", endpoint_url=moto, aws_access_key_id="x", aws_secret_access_key="x", region_name="us-east-1"
    ).create_bucket(Bucket="vault")
    config = tmp_path / "sluice.toml"
    config.write_text(
        f"""
        [tiers.standard]
        kind = "file"
        path = "{tmp_path}/standard"
        [tiers.archive]
        kind = "s3"
        archive = true
        endpoint = "{moto}"
        bucket = "vault"
        region = "us-east-1"
        access_key = "x"
        secret_key = "x"
        storage_class = "GLACIER"
        """
    )
    archive_story(start_server({**FAST, "SLUICE_CONFIG": str(config)}))
