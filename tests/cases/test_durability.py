"""Cases of durability and of disks that are full: what happens in which order, and what is left where."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from gateway.telemetry.tiers import space
from storage_tiers.open import TierConfig
from storage_tiers.tier import TierFull
from storage_tiers.wrappers.faulty import Fault
from tests.activities.fake_clamd import Behaviour, FakeClamd
from tests.cases.strace import Call, Strace
from tests.cases.whole import StartWhole, Whole
from tests.operations.asking import refusal, refused
from tests.server import Server, StartServer

LARGE = 300_000
ANSWER = "HTTP/1.1 200"
STORES = "store_objects"


def file_syncs(calls: list[Call], tier: str) -> list[tuple[Call, Call, Call]]:
    """fsync of a file, its rename, fsync of its folder: of every blob that was put in place in a tier."""
    found = []
    for rename in (each for each in calls if each.name.startswith("rename") and f"/{tier}/" in each.text):
        source = rename.text.split('"')[1]
        folder = os.path.dirname(source)
        before = [c for c in calls if c.name in ("fsync", "fdatasync") and source in c.text and c.ended < rename.begun]
        after = [c for c in calls if c.name == "fsync" and f"<{folder}>" in c.text and c.begun > rename.ended]
        assert before, f"{source} was renamed before it was synced"
        assert after, f"{folder} was not synced after the rename"
        found.append((before[-1], rename, after[0]))
    return found


def commits(calls: list[Call], after: int) -> list[Call]:
    """Statements that are durable when they are answered: COMMIT, and the one that stores plain objects."""
    return [each for each in calls if ("COMMIT" in each.text or STORES in each.text) and each.begun > after]


def answers(calls: list[Call], after: int) -> list[Call]:
    return [each for each in calls if ANSWER in each.text and each.begun > after]


def traced(server: Server, folder: Path, act: Any) -> list[Call]:
    (child,) = server.children()
    with Strace(child.pid, folder) as trace:
        act()
    calls = trace.calls()
    assert calls
    return calls


def check_acknowledged(calls: list[Call]) -> None:
    """One blob: fsync → rename → fsync of the folder → COMMIT → 200, each over before the next begins."""
    (placed,) = file_syncs(calls, "standard")
    done = commits(calls, placed[2].ended)
    assert done, "nothing was committed after the folder was synced"
    assert answers(calls, done[0].ended), "the answer did not come after the commit"
    early = [each for each in calls if ANSWER in each.text and each.begun < done[0].begun]
    assert not early, early


@pytest.mark.slow
def test_b213_bytes_name_row_answer_in_this_order(start_server: StartServer, tmp_path: Path) -> None:
    """A large PUT and a part; then Complete and Copy, which move no bytes; then the copy that a recall brings home."""
    server = start_server({"SLUICE_ARCHIVE_DELAY": "0", "SLUICE_RECALL_POLL": "0.1", "SLUICE_LIFECYCLE_DAY": "1000"})
    client = server.client()
    client.create_bucket(Bucket="power")
    check_acknowledged(
        traced(server, tmp_path, lambda: client.put_object(Bucket="power", Key="k", Body=os.urandom(LARGE)))
    )
    server.wait_state("power", "k", "ready")

    upload = client.create_multipart_upload(Bucket="power", Key="parts")["UploadId"]
    part = {"Bucket": "power", "Key": "parts", "UploadId": upload, "PartNumber": 1, "Body": os.urandom(LARGE)}
    etags: list[str] = []
    check_acknowledged(traced(server, tmp_path, lambda: etags.append(client.upload_part(**part)["ETag"])))
    parts = {"Parts": [{"PartNumber": 1, "ETag": etags[0]}]}
    whole = {"Bucket": "power", "Key": "parts", "UploadId": upload, "MultipartUpload": parts}
    for act in (
        lambda: client.complete_multipart_upload(**whole),
        lambda: client.copy_object(Bucket="power", Key="copy", CopySource="power/k"),
    ):
        calls = traced(server, tmp_path, act)
        assert file_syncs(calls, "standard") == []  # the bytes lie there already
        (answer,) = answers(calls, -1)
        assert [each for each in calls if "COMMIT" in each.text and each.ended < answer.begun]

    client.put_object(Bucket="power", Key="cold", Body=os.urandom(LARGE), StorageClass="GLACIER")
    server.wait_state("power", "cold", "ready")
    wait_moved(server)
    ask = {"Bucket": "power", "Key": "cold", "RestoreRequest": {"Days": 1}}

    def recall() -> None:
        client.restore_object(**ask)
        while '"false"' not in client.head_object(Bucket="power", Key="cold").get("Restore", ""):
            pass

    calls = traced(server, tmp_path, recall)
    (placed,) = file_syncs(calls, "standard")
    assert commits(calls, placed[2].ended)


def wait_moved(server: Server) -> None:
    async def moved() -> bool:
        conn = await asyncpg.connect(server.database)
        try:
            return bool(await conn.fetchval("SELECT count(*) FROM blob WHERE tier = 'archive' AND state = 2"))
        finally:
            await conn.close()

    end = time.monotonic() + 30
    while not asyncio.run(moved()):
        assert time.monotonic() < end, server.tail()
        time.sleep(0.05)


def test_b215_quarantine_moves_no_file(start_whole: StartWhole) -> None:
    """The verdict is a row: the file stays where it is, under its name, and a crash can leave nothing in between."""
    whole = start_whole(scanner=FakeClamd(Behaviour.REPLY, b"stream: Bad FOUND"), read_wait=0.1)
    client = whole.client()
    client.create_bucket(Bucket="held")
    blobs = whole.folder / "blobs"
    fake = whole.scanner
    assert fake is not None
    fake.behaviour = Behaviour.SLOW
    data = os.urandom(LARGE)
    client.put_object(Bucket="held", Key="k", Body=data)
    whole.wait(fake.got_stream.is_set)
    before = {path: path.stat().st_ino for path in blobs.rglob("*") if path.is_file()}
    fake.behaviour = Behaviour.REPLY
    fake.reply = b"stream: Bad FOUND"
    whole.loop.call_soon_threadsafe(fake.release.set)
    whole.reaches(client, "held", "k", "quarantined")
    assert {path: path.stat().st_ino for path in blobs.rglob("*") if path.is_file()} == before
    (row,) = whole.rows(
        "SELECT v.state, b.id, b.tier, b.state AS blob_state FROM version v JOIN blob b ON b.id = v.blob"
    )
    assert (row["state"], row["tier"], row["blob_state"]) == (3, "standard", 2)
    (file,) = [path for path in before if path.name == row["id"].hex]
    assert file.read_bytes() == data


# --- a full disk -------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder for a file system of few inodes or bytes, mounted by ``mount``."""
    folder = tmp_path / "disk"
    folder.mkdir()
    yield folder
    subprocess.run(["umount", "-l", str(folder)], capture_output=True)


def mount(folder: Path, options: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small file system")
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")


def free(whole: Whole, resource: str) -> float:
    return dict(whole.run(space(whole.core.services.tiers)))[("standard", resource)]


@pytest.mark.parametrize(
    ("options", "resource", "size"), [("nr_inodes=275", "inodes", 20_000), ("size=2m", "bytes", 300_000)]
)
def test_b217_a_disk_without_inodes_or_bytes(
    start_whole: StartWhole, small_disk: Path, options: str, resource: str, size: int
) -> None:
    """The same clean error for both, nothing half stored, everything before it readable, the metric says which."""
    folder = small_disk
    mount(folder, options)
    whole = start_whole(tiers={"standard": TierConfig("file", folder / "tier")}, activities=())
    client = whole.client()
    client.create_bucket(Bucket="full")
    start = free(whole, resource)
    bodies: dict[str, bytes] = {}
    error: Any = None
    for number in range(60):
        body = os.urandom(size)
        try:
            client.put_object(Bucket="full", Key=f"k{number}", Body=body)
        except client.exceptions.ClientError as failure:
            error = failure.response
            break
        bodies[f"k{number}"] = body
        whole.reaches(client, "full", f"k{number}", "ready")
    assert error is not None and bodies
    assert (error["ResponseMetadata"]["HTTPStatusCode"], error["Error"]["Code"]) == (503, "ServiceUnavailable")
    assert "space" in error["Error"]["Message"]
    assert free(whole, resource) < min(start, 0.2)
    listed = [each["Key"] for each in client.list_objects_v2(Bucket="full")["Contents"]]
    assert listed == sorted(bodies)
    for key, body in bodies.items():
        assert client.get_object(Bucket="full", Key=key)["Body"].read() == body
    assert list(folder.rglob("*.part")) == []
    # What is deleted makes room, and writing goes on.
    for key in bodies:
        client.delete_object(Bucket="full", Key=key)
    whole.wait(lambda: whole.run(whole.core.collector.collect()) or not whole.value("SELECT count(*) FROM blob_queue"))
    whole.run(whole.core.collector.unlink())
    client.put_object(Bucket="full", Key="again", Body=os.urandom(size))


@pytest.mark.parametrize("operation", ["begin", "write", "commit"])
def test_b217_a_tier_that_says_it_is_full(start_whole: StartWhole, operation: str) -> None:
    """The same without a mount, at each place where a disk says so."""
    whole = start_whole()
    client = whole.client()
    client.create_bucket(Bucket="full")
    client.put_object(Bucket="full", Key="k", Body=b"before" * 10_000)
    whole.faulty("standard").faults.append(Fault(operation, TierFull("full")))
    error = refusal(client.put_object, Bucket="full", Key="k", Body=b"x" * LARGE)
    assert (error["ResponseMetadata"]["HTTPStatusCode"], error["Error"]["Code"]) == (503, "ServiceUnavailable")
    assert client.get_object(Bucket="full", Key="k")["Body"].read() == b"before" * 10_000
    assert refused(client.head_object, Bucket="full", Key="l")[0] == 404
    client.put_object(Bucket="full", Key="k", Body=b"after" * 10_000)
