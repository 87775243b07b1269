"""The blob folder: bytes that are missing, short or turned; a file system that is full or read-only.

Reads are refused before the first byte or cut; never is a wrong body served as whole.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from botocore.exceptions import BotoCoreError, ClientError

from gateway.http.checks import checks
from gateway.http.health import Health
from storage_tiers.file import FileTier
from tests import pg
from tests.cases.conftest import start_whole
from tests.cases.whole import StartWhole, Whole
from tests.server import Server, StartServer

__all__ = ["start_whole"]
BUCKET = "folder"
SMALL, LARGE, SEVERAL = 100_000, 3 << 20, 5 << 20


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Whole]:
    """One for all tests that have no wishes; each has keys of its own, and leaves no damage behind."""
    dsn = pg.create_database()
    made = Whole(dsn, tmp_path_factory.mktemp("whole")).start()
    made.core.scrubber._rate = float(1 << 30)
    made.client().create_bucket(Bucket=BUCKET)
    yield made
    made.stop()
    pg.drop_database(dsn)


def damages(whole: Whole, kind: str) -> float:
    return whole.metric("sluice_blob_damage_total", tier="standard", kind=kind)


def store(whole: Whole, key: str, size: int) -> tuple[bytes, Path]:
    """An object, ready, and its file."""
    body = os.urandom(size)
    whole.client().put_object(Bucket=BUCKET, Key=key, Body=body)
    whole.reaches(whole.client(), BUCKET, key, "ready")
    return body, file_of(whole, key)


def file_of(whole: Whole, key: str) -> Path:
    blob = whole.value("SELECT blob FROM version WHERE key = $1 ORDER BY seq DESC LIMIT 1", key.encode())
    return next(path for path in whole.folder.rglob(blob.hex))


def flip(path: Path, at: int = -1) -> None:
    """Turn one bit; the length stays."""
    with path.open("r+b") as file:
        file.seek(at, os.SEEK_END if at < 0 else os.SEEK_SET)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))


def refusal(call: Any, **arguments: Any) -> tuple[int, str, str | None]:
    with pytest.raises(ClientError) as caught:
        call(**arguments)
    answer = caught.value.response
    return (
        answer["ResponseMetadata"]["HTTPStatusCode"],
        answer["Error"]["Code"],
        answer["ResponseMetadata"]["HTTPHeaders"].get("x-sluice-code"),
    )


DAMAGED = (500, "InternalError", "blob-damaged")


@pytest.mark.parametrize("size", [SMALL, LARGE])
@pytest.mark.parametrize("harm", ["missing", "short", "empty"])
def test_bytes_that_are_not_there(whole: Whole, size: int, harm: str) -> None:
    key = f"{harm}-{size}"
    body, path = store(whole, key, size)
    kept, kind = path.read_bytes(), "missing" if harm == "missing" else "differs"
    before = damages(whole, kind)
    if harm == "missing":
        path.unlink()
    else:
        os.truncate(path, 0 if harm == "empty" else size - 1)
    client = whole.client()
    for more in ({}, {"Range": f"bytes={size - 10}-"}):
        assert refusal(client.get_object, Bucket=BUCKET, Key=key, **more) == DAMAGED
    assert damages(whole, kind) == before + 1
    # It is served again once the file is back: looked at by itself now and then.
    path.write_bytes(kept)
    assert refusal(client.get_object, Bucket=BUCKET, Key=key) == DAMAGED
    assert whole.run(whole.core.scrubber.marked()) == 1
    assert client.get_object(Bucket=BUCKET, Key=key)["Body"].read() == body


def test_a_turned_bit_in_a_short_file_is_never_sent(whole: Whole) -> None:
    body, path = store(whole, "k", SMALL)
    flip(path)
    client = whole.client()
    assert refusal(client.get_object, Bucket=BUCKET, Key="k") == DAMAGED
    assert refusal(client.get_object, Bucket=BUCKET, Key="k", Range="bytes=0-9") == DAMAGED
    flip(path)
    whole.run(whole.core.scrubber.marked())
    assert client.get_object(Bucket=BUCKET, Key="k")["Body"].read() == body


def test_a_turned_bit_in_a_part(whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an object in several files each is compared: the body breaks off before the wrong one is whole."""
    client = whole.client()
    upload = client.create_multipart_upload(Bucket=BUCKET, Key="m")["UploadId"]
    parts = []
    for number in (1, 2):
        etag = client.upload_part(
            Bucket=BUCKET, Key="m", UploadId=upload, PartNumber=number, Body=os.urandom(SEVERAL // number)
        )["ETag"]
        parts.append({"PartNumber": number, "ETag": etag})
    client.complete_multipart_upload(Bucket=BUCKET, Key="m", UploadId=upload, MultipartUpload={"Parts": parts})
    whole.reaches(client, BUCKET, "m", "ready")
    monkeypatch.setattr(whole.core.services.blobs, "_verify", 1 << 30)
    assert len(client.get_object(Bucket=BUCKET, Key="m")["Body"].read()) == SEVERAL + SEVERAL // 2
    second = whole.value("SELECT blob FROM extent WHERE key = $1 ORDER BY idx DESC LIMIT 1", b"m")
    flip(next(whole.folder.rglob(second.hex)))
    with pytest.raises(BotoCoreError):
        client.get_object(Bucket=BUCKET, Key="m")["Body"].read()
    assert refusal(client.get_object, Bucket=BUCKET, Key="m") == DAMAGED
    flip(next(whole.folder.rglob(second.hex)))
    whole.run(whole.core.scrubber.marked())


@pytest.mark.parametrize("at", [0, -1])
def test_a_long_body_with_a_turned_bit_breaks_off_where_reads_are_verified(start_whole: StartWhole, at: int) -> None:
    whole = start_whole(verify_reads=1 << 30)
    client = whole.client()
    client.create_bucket(Bucket=BUCKET)
    body, path = store(whole, "k", LARGE)
    assert client.get_object(Bucket=BUCKET, Key="k")["Body"].read() == body
    flip(path, at)
    with pytest.raises(BotoCoreError):
        client.get_object(Bucket=BUCKET, Key="k")["Body"].read()
    assert refusal(client.get_object, Bucket=BUCKET, Key="k") == DAMAGED


def test_the_scrubber_finds_what_no_read_can(whole: Whole) -> None:
    """A long file leaves by sendfile, and a range has no digest: a round over all blobs finds it."""
    _, bad = store(whole, "bad", LARGE)
    body, gone = store(whole, "gone", SMALL)
    good, _ = store(whole, "good", LARGE)
    whole.client().copy_object(Bucket=BUCKET, Key="copy", CopySource=f"{BUCKET}/bad")
    before = {kind: damages(whole, kind) for kind in ("differs", "missing")}
    read = whole.metric("sluice_scrub_bytes_total")
    flip(bad, 1 << 20)
    gone.unlink()
    whole.run(a_round(whole))
    client = whole.client()
    for key in ("bad", "copy", "gone"):
        assert refusal(client.get_object, Bucket=BUCKET, Key=key) == DAMAGED
        assert refusal(client.get_object, Bucket=BUCKET, Key=key, Range="bytes=0-9") == DAMAGED
        assert client.head_object(Bucket=BUCKET, Key=key)["ResponseMetadata"]["HTTPStatusCode"] == 200
    assert client.get_object(Bucket=BUCKET, Key="good")["Body"].read() == good
    assert [damages(whole, kind) - number for kind, number in before.items()] == [1, 1]
    assert whole.metric("sluice_scrub_bytes_total") - read >= 2 * LARGE
    hits = whole.run(whole.core.damage.hits())
    assert [(hit.bucket, hit.key) for hit in hits] == [(BUCKET, b"bad"), (BUCKET, b"copy"), (BUCKET, b"gone")]
    # A new upload is unaffected, and a mended file is served.
    client.put_object(Bucket=BUCKET, Key="bad", Body=b"new" * SMALL)
    whole.reaches(client, BUCKET, "bad", "ready")
    assert client.get_object(Bucket=BUCKET, Key="bad")["Body"].read() == b"new" * SMALL
    gone.write_bytes(body)
    whole.run(a_round(whole))
    assert client.get_object(Bucket=BUCKET, Key="gone")["Body"].read() == body
    flip(bad, 1 << 20)
    whole.run(whole.core.scrubber.marked())
    assert whole.run(whole.core.damage.hits()) == []


async def a_round(whole: Whole) -> None:
    """A whole round, now."""
    statement = "UPDATE scrub SET ended = NULL, begun = NULL, position = NULL, lease_until = now() - interval '1 s'"
    await whole.core.services.pool.execute(statement)
    scrubber = whole.core.scrubber
    scrubber._looked = float("-inf")
    while await scrubber.turn():
        pass


def test_a_round_goes_on_elsewhere_and_waits_for_the_next(whole: Whole) -> None:
    for number in range(3):
        store(whole, f"k{number}", SMALL)
    pool = whole.core.services.pool
    whole.run(pool.execute("UPDATE scrub SET ended = NULL, begun = NULL, owner = NULL, lease_until = '-infinity'"))
    first, second = whole.core.scrubber, whole.core.scrubber.unbounded()
    second._rate, second._interval = 1 << 30, 3600.0
    assert whole.run(first.turn())
    assert not whole.run(second.turn()), "two at a time"
    whole.run(pool.execute("UPDATE scrub SET lease_until = now() - interval '1 second'"))  # the first one died
    assert not whole.run(second.turn())  # nothing is left of the round: it ends
    row = whole.rows("SELECT * FROM scrub")[0]
    assert row["ended"] is not None and row["verified"] == row["begun"]
    assert not whole.run(second.turn()), "the next round is not due"


def test_the_scrubber_keeps_to_its_rate(whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
    store(whole, "k", LARGE)
    monkeypatch.setattr(whole.core.scrubber, "_rate", LARGE * 2)
    begun = whole.loop.time()
    whole.run(a_round(whole))
    assert whole.loop.time() - begun > 0.4


def test_moved_or_deleted_meanwhile_is_no_damage(whole: Whole) -> None:
    _, path = store(whole, "moved", SMALL)
    blob = UUID(path.name)
    before = damages(whole, "missing")
    (row,) = whole.run(whole.core.scrubber._rows("id = $1", blob))
    whole.client().delete_object(Bucket=BUCKET, Key="moved")
    whole.run(whole.core.collector.collect())
    whole.run(whole.core.collector.unlink())
    assert not path.exists()
    whole.run(whole.core.scrubber.examine(row))
    assert damages(whole, "missing") == before


# --- a folder that cannot be written ---------------------------------------------------------------------------------


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MB."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small file system")
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)], capture_output=True)
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def remount(folder: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(folder)], check=True)


def report(whole: Whole) -> dict[str, Any]:
    core: Any = whole.core
    _, found = whole.run(Health({"tier": checks(core)["tier:standard"]}, started=True).ready())
    return dict(found["checks"]["tier"], overall=found["state"])


@pytest.mark.parametrize("why", ["full", "read-only"])
def test_reads_go_on_where_nothing_can_be_written(start_whole: StartWhole, disk: Path, why: str) -> None:
    whole = start_whole(blob_dir=disk / "blobs")
    client = whole.client()
    client.create_bucket(Bucket=BUCKET)
    body = os.urandom(SMALL)
    client.put_object(Bucket=BUCKET, Key="k", Body=body)
    whole.reaches(client, BUCKET, "k", "ready")
    filler = disk / "filler"
    if why == "full":
        with filler.open("wb") as file, pytest.raises(OSError):
            while True:
                os.write(file.fileno(), bytes(4096))
    else:
        remount(disk, "ro")
    whole.run(whole.core.writable.look())
    assert whole.core.writable.samples() == [(("standard",), 0.0), (("archive",), 0.0)]
    found = report(whole)
    assert (found["state"], found["overall"]) == ("degraded", "degraded")
    assert "reads go on" in found["reason"]
    for act in (
        lambda: client.put_object(Bucket=BUCKET, Key="new", Body=body),
        lambda: client.put_object(Bucket=BUCKET, Key="k", Body=body),
    ):
        with pytest.raises(ClientError) as caught:
            act()
        answer = caught.value.response
        assert answer["ResponseMetadata"]["HTTPStatusCode"] == 503
        assert answer["ResponseMetadata"]["HTTPHeaders"]["retry-after"]
        assert ("space" if why == "full" else "read-only") in answer["Error"]["Message"]
    assert client.get_object(Bucket=BUCKET, Key="k")["Body"].read() == body
    client.put_object(Bucket=BUCKET, Key="small", Body=b"lies in the database")
    client.copy_object(Bucket=BUCKET, Key="copy", CopySource=f"{BUCKET}/k")
    if why == "full":
        filler.unlink()
    else:
        remount(disk, "rw")
    whole.run(whole.core.writable.look())
    assert report(whole)["state"] == "ok"
    client.put_object(Bucket=BUCKET, Key="new", Body=body)
    assert client.get_object(Bucket=BUCKET, Key="new")["Body"].read() == body
    assert [path.name for path in disk.rglob(".probe*")] == []


def test_a_probe_that_cannot_write_everything_says_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> str:
        tier = FileTier("t", tmp_path / "t")
        await tier.start()
        await tier.try_write()
        monkeypatch.setattr(os, "write", lambda fd, data: 1)
        try:
            await tier.try_write()
        except Exception as error:
            return type(error).__name__
        finally:
            await tier.close()
        return ""

    assert asyncio.run(main()) == "TierFull"


def test_the_operator_is_told(start_server: StartServer) -> None:
    """A real server, whose scrubber runs by itself: metric, log, doctor, verify."""
    server = start_server(
        {"SLUICE_SCRUB_RATE": str(1 << 30), "SLUICE_SCRUB_INTERVAL": "0.1", "SLUICE_PROBE_INTERVAL": "0.1"}
    )
    client = server.client()
    client.create_bucket(Bucket="told")
    body = os.urandom(LARGE)
    client.put_object(Bucket="told", Key="k", Body=body)
    server.wait_state("told", "k")
    (path,) = blobs_of(server)
    flip(path)
    line = server.wait_log(lambda each: each.get("event") == "blob-damaged")
    assert (line["kind"], line["tier"]) == ("differs", "standard")
    assert refusal(client.get_object, Bucket="told", Key="k") == DAMAGED
    metrics = server.metrics()
    assert metrics["sluice_blobs_damaged"] == 1
    assert metrics['sluice_tier_writable{tier="standard"}'] == 1
    doctor = {row["check"]: row for row in json.loads(server.sluice("doctor", "--json", check=False).stdout)}
    assert doctor["lost:corrupt"]["state"] == "degraded" and "sluice verify" in doctor["lost:corrupt"]["reason"]
    found = server.sluice("verify", "--json", check=False)
    assert found.returncode == 1
    assert [(row["bucket"], row["key"]) for row in json.loads(found.stdout)] == [("told", "k")]
    flip(path)
    assert server.sluice("verify", "--all", "--json").stdout.strip() == "[]"
    assert client.get_object(Bucket="told", Key="k")["Body"].read() == body


def blobs_of(server: Server) -> list[Path]:
    root = Path(server.environment["SLUICE_BLOB_DIR"]) / "standard"
    return [path for path in root.rglob("*") if path.is_file() and len(path.name) == 32]
