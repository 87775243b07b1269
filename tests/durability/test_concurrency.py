"""What two processes on one database must never show: two winners, stale reads, halves, what was deleted."""

from __future__ import annotations

import os
import threading
from functools import partial
from typing import Any

import pytest

from tests.durability.pair import Pair, start_pair, status, together
from tests.server import StartServer

MIB = 1 << 20


@pytest.fixture
def pair(start_server: StartServer) -> Pair:
    return start_pair(start_server, {"SLUICE_VERDICT_TTL": "0"})


def text(client: Any, bucket: str, key: str) -> str:
    return str(client.get_object(Bucket=bucket, Key=key)["Body"].read().decode())


def test_fifty_creators_one_winner(pair: Pair) -> None:
    a, b = pair.clients()
    a.create_bucket(Bucket="locks")
    for attempt in range(3):
        key = f"lock-{attempt}"
        answers = together(
            [
                partial(client.put_object, Bucket="locks", Key=key, Body=f"{i}".encode(), IfNoneMatch="*")
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


def test_every_get_returns_the_last_200(pair: Pair) -> None:
    """Two processes alternate on one key; each reads what the other just wrote."""
    clients = pair.clients()
    clients[0].create_bucket(Bucket="alternate")
    for i in range(60):
        clients[i % 2].put_object(Bucket="alternate", Key="k", Body=f"{i}".encode())
        assert text(clients[(i + 1) % 2], "alternate", "k") == f"{i}"


def test_complete_racing_abort(pair: Pair) -> None:
    """B085: whole and aborted in vain, or gone and completed in vain; HEAD, GET and LIST agree."""
    a, b = pair.clients()
    a.create_bucket(Bucket="races")
    outcomes = set()
    for i in range(12):
        key = f"m{i}"
        upload = a.create_multipart_upload(Bucket="races", Key=key)["UploadId"]
        data = os.urandom(100)
        etag = a.upload_part(Bucket="races", Key=key, UploadId=upload, PartNumber=1, Body=data)["ETag"]
        parts = {"Parts": [{"PartNumber": 1, "ETag": etag}]}
        done, gone = together(
            [
                partial(a.complete_multipart_upload, Bucket="races", Key=key, UploadId=upload, MultipartUpload=parts),
                partial(b.abort_multipart_upload, Bucket="races", Key=key, UploadId=upload),
            ]
        )
        outcomes.add((done[0], gone[0]))
        listed = [item["Key"] for item in b.list_objects_v2(Bucket="races").get("Contents", [])]
        if done[0] == 200:
            assert gone == (404, "NoSuchUpload")
            assert key in listed and b.get_object(Bucket="races", Key=key)["Body"].read() == data
        else:
            assert (done, gone[0]) == ((404, "NoSuchUpload"), 204)
            assert key not in listed and status(partial(b.head_object, Bucket="races", Key=key))[0] == 404
    assert outcomes <= {(200, 404), (404, 204)}


def test_abort_during_a_part(pair: Pair) -> None:
    """B085: a part that arrives for an aborted upload is refused and leaves no bytes."""
    a, b = pair.clients()
    a.create_bucket(Bucket="races")
    for i in range(6):
        upload = a.create_multipart_upload(Bucket="races", Key="k")["UploadId"]
        part, abort = together(
            [
                partial(a.upload_part, Bucket="races", Key="k", UploadId=upload, PartNumber=1, Body=os.urandom(MIB)),
                partial(b.abort_multipart_upload, Bucket="races", Key="k", UploadId=upload),
            ]
        )
        assert abort[0] == 204 and part in {(200, ""), (404, "NoSuchUpload")}, i
        assert status(partial(a.list_parts, Bucket="races", Key="k", UploadId=upload))[0] == 404


def test_copy_racing_delete_and_collector(start_server: StartServer) -> None:
    """A copy that was acknowledged keeps its bytes, whenever its source goes."""
    pair = start_pair(
        start_server, {"SLUICE_BLOB_GRACE": "0", "SLUICE_COLLECT_INTERVAL": "0.05", "SLUICE_VERDICT_TTL": "0"}
    )
    a, b = pair.clients()
    a.create_bucket(Bucket="copies")
    for i in range(10):
        data = os.urandom(50_000)
        a.put_object(Bucket="copies", Key="source", Body=data)
        text_ready = a.get_object(Bucket="copies", Key="source")["Body"].read()
        assert text_ready == data
        copied, deleted = together(
            [
                partial(a.copy_object, Bucket="copies", Key=f"copy{i}", CopySource="copies/source"),
                partial(b.delete_object, Bucket="copies", Key="source"),
            ]
        )
        assert deleted[0] == 204 and copied[0] in (200, 404), copied
        if copied[0] == 200:
            assert b.get_object(Bucket="copies", Key=f"copy{i}")["Body"].read() == data


def test_delete_during_scanning(pair: Pair) -> None:
    """Nothing comes back after a 204, whenever the verdict arrives."""
    a, b = pair.clients()
    a.create_bucket(Bucket="deletes")
    for i in range(20):
        a.put_object(Bucket="deletes", Key=f"k{i}", Body=b"x%d" % i)
        b.delete_object(Bucket="deletes", Key=f"k{i}")
    for i in range(20):
        for client in (a, b):
            assert status(partial(client.head_object, Bucket="deletes", Key=f"k{i}"))[0] == 404
    assert "Contents" not in a.list_objects_v2(Bucket="deletes")
    assert "Versions" not in a.list_object_versions(Bucket="deletes")
    a.delete_bucket(Bucket="deletes")


def test_overwrites_from_both_sides_end_at_the_last(pair: Pair) -> None:
    """Verdicts come in any order; the newest acknowledged content is what remains."""
    a, b = pair.clients()
    a.create_bucket(Bucket="order")
    for i in range(30):
        (a if i % 2 else b).put_object(Bucket="order", Key="k", Body=f"{i}".encode())
    assert text(a, "order", "k") == "29"
    pair.first.wait_state("order", "k")
    assert text(b, "order", "k") == "29"
    versions = a.list_object_versions(Bucket="order")["Versions"]
    assert [v["VersionId"] for v in versions] == ["null"]


def test_switching_versioning_and_deleting_between_put_and_verdict(pair: Pair) -> None:
    a, b = pair.clients()
    a.create_bucket(Bucket="switch")
    for i in range(5):
        key = f"k{i}"
        a.put_object(Bucket="switch", Key=key, Body=b"null one")
        b.put_bucket_versioning(Bucket="switch", VersioningConfiguration={"Status": "Enabled"})
        kept = a.put_object(Bucket="switch", Key=key, Body=b"kept")["VersionId"]
        assert kept != "null"
        b.put_bucket_versioning(Bucket="switch", VersioningConfiguration={"Status": "Suspended"})
        assert "VersionId" not in a.put_object(Bucket="switch", Key=key, Body=b"null two")
        assert text(b, "switch", key) == "null two"
        b.delete_object(Bucket="switch", Key=key)
        assert status(partial(a.get_object, Bucket="switch", Key=key))[0] == 404
        assert a.get_object(Bucket="switch", Key=key, VersionId=kept)["Body"].read() == b"kept"
        rows = a.list_object_versions(Bucket="switch", Prefix=key)
        assert [v["VersionId"] for v in rows["Versions"]] == [kept]
        assert [m["VersionId"] for m in rows["DeleteMarkers"]] == ["null"]


def test_a_bucket_is_not_deleted_under_a_writer(pair: Pair) -> None:
    a, b = pair.clients()
    for i in range(8):
        name = f"short-{i}"
        a.create_bucket(Bucket=name)
        put, gone = together(
            [partial(a.put_object, Bucket=name, Key="k", Body=b"x"), partial(b.delete_bucket, Bucket=name)]
        )
        if put[0] == 200:
            assert gone == (409, "BucketNotEmpty")
            assert text(b, name, "k") == "x"
        else:
            assert (put, gone[0]) == ((404, "NoSuchBucket"), 204)


def test_deletes_and_writes_of_many_keys_never_deadlock(pair: Pair) -> None:
    """Batches of both processes over the same keys in different orders: locks are taken in one order."""
    a, b = pair.clients()
    a.create_bucket(Bucket="storm")
    keys = [f"k{i}" for i in range(40)]
    over = threading.Event()
    wrong: list[Any] = []

    def write(client: Any) -> None:
        while not over.is_set():
            for answer in together([partial(client.put_object, Bucket="storm", Key=k, Body=b"x") for k in keys], 8):
                if answer[0] != 200:
                    wrong.append(answer)

    threads = [threading.Thread(target=write, args=(client,)) for client in (a, b)]
    for thread in threads:
        thread.start()
    for client in (a, b) * 5:
        order = keys if client is a else keys[::-1]
        answer = client.delete_objects(Bucket="storm", Delete={"Objects": [{"Key": k} for k in order]})
        wrong += answer.get("Errors", [])
    over.set()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[:5]
