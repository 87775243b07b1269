"""What two processes on one database must never show: two winners, stale reads, halves, what was deleted."""

from __future__ import annotations

import asyncio
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import asyncpg
import pytest

from tests.activities.clamd import eicar
from tests.durability.pair import Pair, running_pair, status, together
from tests.durability.scanner import Scanner, running_scanner

pytestmark = pytest.mark.xdist_group("pair")  # one worker, one start of servers
MIB = 1 << 20
# No verdict is lent, and the collector takes what it may at once and all the time.
EAGER = {"SLUICE_VERDICT_TTL": "0", "SLUICE_BLOB_GRACE": "0", "SLUICE_COLLECT_INTERVAL": "0.05"}


@pytest.fixture(scope="module")
def scanner() -> Iterator[Scanner]:
    """Content that begins with HOLD stays scanning until it is released."""
    with running_scanner() as one:
        yield one


@pytest.fixture(scope="module")
def pair(scanner: Scanner) -> Iterator[Pair]:
    with running_pair({**EAGER, "SLUICE_CLAMD": scanner.address}) as servers:
        yield servers


@pytest.fixture
def bucket(pair: Pair) -> str:
    """A new bucket, made through the first server."""
    name = f"b-{secrets.token_hex(8)}"
    pair.first.client().create_bucket(Bucket=name)
    return name


def text(client: Any, bucket: str, key: str) -> str:
    return str(client.get_object(Bucket=bucket, Key=key)["Body"].read().decode())


def until(check: Callable[[], bool], patience: float = 30.0) -> None:
    deadline = time.monotonic() + patience
    while not check():
        assert time.monotonic() < deadline, "it never came to hold"
        time.sleep(0.01)


def rows(pair: Pair, bucket: str) -> int:
    """Versions of a bucket, those that no listing shows too."""

    async def count() -> int:
        conn = await asyncpg.connect(pair.first.database)
        try:
            statement = "SELECT count(*) FROM version v JOIN bucket b ON b.id = v.bucket_id WHERE b.name = $1"
            return int(await conn.fetchval(statement, bucket))
        finally:
            await conn.close()

    return asyncio.run(count())


def test_two_creators_held_in_the_middle(pair: Pair, bucket: str) -> None:
    """Both processes write at once to a key whose head is there; versions are locked until both have come that far."""
    a, b = pair.clients()
    a.put_object(Bucket=bucket, Key="lock", Body=eicar())
    pair.first.wait_state(bucket, "lock", "quarantined")

    async def both() -> list[tuple[int, str]]:
        conn = await asyncpg.connect(pair.first.database)
        look = await asyncpg.connect(pair.first.database)
        waiting = """SELECT count(*) FROM pg_stat_activity
                      WHERE datname = current_database() AND wait_event_type = 'Lock'
                        AND query ~ 'INSERT INTO version|FROM head'"""  # not what sweeps and collector ask
        try:
            async with conn.transaction():
                await conn.execute("LOCK TABLE version IN SHARE MODE")  # reads go on, inserts wait
                writes = [
                    asyncio.create_task(
                        asyncio.to_thread(
                            status, partial(client.put_object, Bucket=bucket, Key="lock", Body=b"x", IfNoneMatch="*")
                        )
                    )
                    for client in (a, b)
                ]
                while await look.fetchval(waiting) < 2 and not any(task.done() for task in writes):
                    await asyncio.sleep(0.01)
            return list(await asyncio.gather(*writes))
        finally:
            await conn.close()
            await look.close()

    assert sorted(asyncio.run(both())) == [(200, ""), (412, "PreconditionFailed")]


@pytest.mark.parametrize("hidden", [False, True], ids=["new-key", "key-of-a-quarantined-version"])
def test_fifty_creators_one_winner(pair: Pair, bucket: str, hidden: bool) -> None:
    a, b = pair.clients()
    for attempt in range(3):
        key = f"lock-{attempt}"
        if hidden:  # its head is there before the race, and only the lock on it decides
            a.put_object(Bucket=bucket, Key=key, Body=eicar())
            pair.first.wait_state(bucket, key, "quarantined")
        answers = together(
            [
                partial(client.put_object, Bucket=bucket, Key=key, Body=f"{i}".encode(), IfNoneMatch="*")
                for i in range(25)
                for client in (a, b)
            ],
            threads=50,
        )
        assert [code for code, _ in answers].count(200) == 1, answers
        assert {answer for answer in answers if answer[0] != 200} <= {
            (412, "PreconditionFailed"),
            (409, "ConditionalRequestConflict"),
        }


def test_every_get_returns_the_last_200(pair: Pair, bucket: str) -> None:
    """Two processes alternate on one key; each reads what the other just wrote."""
    clients = pair.clients()
    for i in range(60):
        clients[i % 2].put_object(Bucket=bucket, Key="k", Body=f"{i}".encode())
        assert text(clients[(i + 1) % 2], bucket, "k") == f"{i}"


def test_complete_racing_abort(pair: Pair, bucket: str) -> None:
    """B085: whole and aborted in vain, or gone and completed in vain; HEAD, GET and LIST agree."""
    a, b = pair.clients()
    outcomes = set()
    for i in range(12):
        key = f"m{i}"
        upload = a.create_multipart_upload(Bucket=bucket, Key=key)["UploadId"]
        data = os.urandom(100)
        etag = a.upload_part(Bucket=bucket, Key=key, UploadId=upload, PartNumber=1, Body=data)["ETag"]
        parts = {"Parts": [{"PartNumber": 1, "ETag": etag}]}
        done, gone = together(
            [
                partial(a.complete_multipart_upload, Bucket=bucket, Key=key, UploadId=upload, MultipartUpload=parts),
                partial(b.abort_multipart_upload, Bucket=bucket, Key=key, UploadId=upload),
            ]
        )
        outcomes.add((done[0], gone[0]))
        listed = [item["Key"] for item in b.list_objects_v2(Bucket=bucket).get("Contents", [])]
        if done[0] == 200:
            assert gone == (404, "NoSuchUpload")
            assert key in listed and b.get_object(Bucket=bucket, Key=key)["Body"].read() == data
        else:
            assert (done, gone[0]) == ((404, "NoSuchUpload"), 204)
            assert key not in listed and status(partial(b.head_object, Bucket=bucket, Key=key))[0] == 404
    assert outcomes <= {(200, 404), (404, 204)}


def test_abort_during_a_part(pair: Pair, bucket: str) -> None:
    """B085: a part that arrives for an aborted upload is refused and leaves no bytes."""
    a, b = pair.clients()
    for i in range(6):
        upload = a.create_multipart_upload(Bucket=bucket, Key="k")["UploadId"]
        part, abort = together(
            [
                partial(a.upload_part, Bucket=bucket, Key="k", UploadId=upload, PartNumber=1, Body=os.urandom(MIB)),
                partial(b.abort_multipart_upload, Bucket=bucket, Key="k", UploadId=upload),
            ]
        )
        assert abort[0] == 204 and part in {(200, ""), (404, "NoSuchUpload")}, i
        assert status(partial(a.list_parts, Bucket=bucket, Key="k", UploadId=upload))[0] == 404


def test_copy_racing_delete_and_collector(pair: Pair, bucket: str) -> None:
    """A copy that was acknowledged keeps its bytes, whenever its source goes."""
    a, b = pair.clients()
    for i in range(10):
        data = os.urandom(50_000)
        a.put_object(Bucket=bucket, Key="source", Body=data)
        text_ready = a.get_object(Bucket=bucket, Key="source")["Body"].read()
        assert text_ready == data
        copied, deleted = together(
            [
                partial(a.copy_object, Bucket=bucket, Key=f"copy{i}", CopySource=f"{bucket}/source"),
                partial(b.delete_object, Bucket=bucket, Key="source"),
            ]
        )
        assert deleted[0] == 204 and copied[0] in (200, 404), copied
        if copied[0] == 200:
            assert b.get_object(Bucket=bucket, Key=f"copy{i}")["Body"].read() == data


def test_delete_during_scanning(pair: Pair, scanner: Scanner, bucket: str) -> None:
    """Nothing comes back after a 204, whenever the verdict arrives."""
    a, b = pair.clients()
    scanner.hold()
    for i in range(4):
        for body in (b"HOLD one", b"HOLD two"):  # two rows a key, and a verdict to come for each
            a.put_object(Bucket=bucket, Key=f"k{i}", Body=body)
    until(lambda: scanner.held >= 8)
    for i in range(4):
        assert (
            a.head_object(Bucket=bucket, Key=f"k{i}")["ResponseMetadata"]["HTTPHeaders"]["x-sluice-state"] == "scanning"
        )
        b.delete_object(Bucket=bucket, Key=f"k{i}")
    scanner.release()
    until(lambda: scanner.held == 0)
    until(lambda: rows(pair, bucket) == 0)
    for client in (a, b):
        for i in range(4):
            assert status(partial(client.head_object, Bucket=bucket, Key=f"k{i}"))[0] == 404
        assert "Contents" not in client.list_objects_v2(Bucket=bucket)
        assert "Versions" not in client.list_object_versions(Bucket=bucket)
    a.delete_bucket(Bucket=bucket)


def test_verdicts_out_of_order_end_at_the_last(pair: Pair, scanner: Scanner, bucket: str) -> None:
    """The newest of several rows is ready first; the verdicts of the older ones come after it."""
    a, b = pair.clients()
    scanner.hold()
    for i in range(3):
        (a if i % 2 else b).put_object(Bucket=bucket, Key="k", Body=b"HOLD %d" % i)
    until(lambda: scanner.held >= 3)
    a.put_object(Bucket=bucket, Key="k", Body=b"last")
    assert text(b, bucket, "k") == "last"
    scanner.release()
    until(lambda: scanner.held == 0)
    pair.first.wait_state(bucket, "k")
    assert text(a, bucket, "k") == text(b, bucket, "k") == "last"
    until(lambda: rows(pair, bucket) == 1)  # one S3 id, one row


def test_overwrites_from_both_sides_end_at_the_last(pair: Pair, bucket: str) -> None:
    a, b = pair.clients()
    for i in range(30):
        (a if i % 2 else b).put_object(Bucket=bucket, Key="k", Body=f"{i}".encode())
    assert text(a, bucket, "k") == "29"
    pair.first.wait_state(bucket, "k")
    assert text(b, bucket, "k") == "29"
    assert [v["VersionId"] for v in a.list_object_versions(Bucket=bucket)["Versions"]] == ["null"]
    until(lambda: rows(pair, bucket) == 1)  # one S3 id, one row


def test_overwriting_switching_versioning_and_deleting_between_put_and_verdict(
    pair: Pair, scanner: Scanner, bucket: str
) -> None:
    a, b = pair.clients()
    scanner.hold()
    for i in range(2):
        key = f"k{i}"
        a.put_object(Bucket=bucket, Key=key, Body=b"HOLD null one")
        b.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
        kept = a.put_object(Bucket=bucket, Key=key, Body=b"kept")["VersionId"]
        assert kept != "null"
        b.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Suspended"})
        assert "VersionId" not in a.put_object(Bucket=bucket, Key=key, Body=b"HOLD null two")
        b.delete_object(Bucket=bucket, Key=key)
        assert status(partial(a.get_object, Bucket=bucket, Key=key))[0] == 404
    scanner.release()
    until(lambda: scanner.held == 0)
    for key in ("k0", "k1"):
        assert status(partial(a.get_object, Bucket=bucket, Key=key))[0] == 404
        rows = a.list_object_versions(Bucket=bucket, Prefix=key)
        (version,) = rows["Versions"]
        assert a.get_object(Bucket=bucket, Key=key, VersionId=version["VersionId"])["Body"].read() == b"kept"
        assert [m["VersionId"] for m in rows["DeleteMarkers"]] == ["null"]


def test_a_bucket_is_not_deleted_under_a_writer(pair: Pair) -> None:
    a, b = pair.clients()
    for _ in range(8):
        name = f"short-{secrets.token_hex(8)}"
        a.create_bucket(Bucket=name)
        put, gone = together(
            [partial(a.put_object, Bucket=name, Key="k", Body=b"x"), partial(b.delete_bucket, Bucket=name)]
        )
        if put[0] == 200:
            assert gone == (409, "BucketNotEmpty")
            assert text(b, name, "k") == "x"
        else:
            assert (put, gone[0]) == ((404, "NoSuchBucket"), 204)


def test_deletes_and_writes_of_many_keys_never_deadlock(pair: Pair, bucket: str) -> None:
    """Batches of both processes over the same keys in different orders: locks are taken in one order."""
    a, b = pair.clients()
    keys = [f"k{i}" for i in range(40)]
    over = threading.Event()
    wrong: list[Any] = []

    def write(client: Any) -> None:
        while not over.is_set():
            for answer in together([partial(client.put_object, Bucket=bucket, Key=k, Body=b"x") for k in keys], 8):
                if answer[0] != 200:
                    wrong.append(answer)

    threads = [threading.Thread(target=write, args=(client,)) for client in (a, b)]
    for thread in threads:
        thread.start()
    for client in (a, b) * 5:
        order = keys if client is a else keys[::-1]
        answer = client.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": k} for k in order]})
        wrong += answer.get("Errors", [])
    over.set()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[:5]
