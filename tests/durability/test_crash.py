"""kill -9 in a loop: what was acknowledged is there, whole, and reaches a verdict; nothing else is visible.

The scanner takes its time, so that kills fall into uploads, completions, claims, and every step of many runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import random
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import asyncpg
import psutil
import pytest
from botocore.exceptions import BotoCoreError, ClientError

from tests.activities.clamd import eicar
from tests.durability.pair import ONCE
from tests.durability.scanner import running_scanner
from tests.server import Server, StartServer

SCAN = 0.2  # seconds a scan takes at most
FAST = {
    # A run whose worker died is executed in a process of its own: few at a time, so that recovery is quick.
    "SLUICE_ENGINE_SLOTS": "4",
    "SLUICE_ENGINE_TTL": "3",
    "SLUICE_ENGINE_HEARTBEAT": "0.3",
    "SLUICE_ENGINE_SWEEP": "0.5",
    "SLUICE_ENGINE_MAX_RECOVERIES": "100",
    "SLUICE_BLOB_GRACE": "2",
    "SLUICE_COLLECT_INTERVAL": "0.5",
    "SLUICE_VERDICT_TTL": "0",
}


@dataclass
class Load:
    """Clients that write, overwrite, delete and complete uploads, and remember what was acknowledged.

    acknowledged: key → digests that a reader may find: the last acknowledged one, and what was in doubt after it (no
    answer came). None stands for "not there".
    """

    server: Server
    bucket: str
    acknowledged: dict[str, set[str | None]] = field(default_factory=dict)
    evil: set[str] = field(default_factory=set)  # acknowledged keys of content that must never be seen
    count: int = 0
    over: threading.Event = field(default_factory=threading.Event)

    def run(self, number: int) -> None:
        rng = random.Random(number)
        while not self.over.is_set():
            client = self.server.client(connect_timeout=1, read_timeout=20, **ONCE)
            key = f"{number}-{self.count % 20}" if rng.random() < 0.5 else f"{number}-n{self.count}"
            self.count += 1
            data = os.urandom(rng.choice([10, 3000, 40_000, 300_000]))
            try:
                if rng.random() < 0.1:
                    name = f"evil-{number}-{self.count}"
                    client.put_object(Bucket=self.bucket, Key=name, Body=data + eicar())
                    self.evil.add(name)
                elif rng.random() < 0.15:
                    self._change(key, None, lambda c=client, k=key: c.delete_object(Bucket=self.bucket, Key=k))
                elif rng.random() < 0.25:
                    self._change(key, data, lambda c=client, k=key, d=data: self._multipart(c, k, d))
                else:
                    self._change(
                        key, data, lambda c=client, k=key, d=data: c.put_object(Bucket=self.bucket, Key=k, Body=d)
                    )
            except (BotoCoreError, ClientError, OSError):
                time.sleep(0.05)  # the server is down: the pace of a client that tries again

    def _change(self, key: str, data: bytes | None, call: Any) -> None:
        new = None if data is None else hashlib.sha256(data).hexdigest()
        before = self.acknowledged.get(key, {None})
        self.acknowledged[key] = before | {new}  # in doubt until it is answered
        call()
        self.acknowledged[key] = {new}

    def _multipart(self, client: Any, key: str, data: bytes) -> None:
        upload = client.create_multipart_upload(Bucket=self.bucket, Key=key)["UploadId"]
        etag = client.upload_part(Bucket=self.bucket, Key=key, UploadId=upload, PartNumber=1, Body=data)["ETag"]
        client.complete_multipart_upload(
            Bucket=self.bucket,
            Key=key,
            UploadId=upload,
            MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": etag}]},
        )


def verify(load: Load) -> None:
    client = load.server.client()
    listed: dict[str, int] = {}
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=load.bucket):
        listed |= {item["Key"]: item["Size"] for item in page.get("Contents", [])}
    for key in load.evil:
        with pytest.raises(ClientError, match="ObjectQuarantined"):
            client.get_object(Bucket=load.bucket, Key=key)
    for key, allowed in load.acknowledged.items():
        found: str | None = None
        if key in listed:
            body = client.get_object(Bucket=load.bucket, Key=key)["Body"].read()
            found = hashlib.sha256(body).hexdigest()
        assert found in allowed, f"{key}: {found} is none of {allowed}"
    assert set(listed) <= set(load.acknowledged)


async def inspect(server: Server) -> dict[str, Any]:
    assert server.database is not None
    conn = await asyncpg.connect(server.database)
    try:
        return {
            "staging": await conn.fetchval("SELECT count(*) FROM blob WHERE state <> 2"),
            "unsettled": await conn.fetchval("SELECT count(*) FROM version WHERE state = 1"),
            "live runs": await conn.fetchval("SELECT count(*) FROM workflow_run WHERE state IN (1, 2, 3)"),
            "failed runs": await conn.fetch("SELECT run_id, error_code FROM workflow_run WHERE state = 5"),
            "recovered": await conn.fetchval("SELECT count(*) FROM workflow_run WHERE epoch > 1"),
            "holes": await conn.fetchval(
                """SELECT count(*) FROM workflow_run r WHERE workflow = 'post_upload' AND state = 4
                      AND (SELECT count(*) FROM journal_step s WHERE s.run_id = r.run_id AND s.status = 1)
                          < CASE WHEN error_code IS NULL THEN 5 ELSE 2 END"""
            ),
            "scanned": await conn.fetchval(
                "SELECT count(*) FROM version WHERE processing -> 'scan' ->> 'scanned' = 'true'"
            ),
            "versions": await conn.fetchval("SELECT count(*) FROM version WHERE state IN (2, 3)"),
            "doubles": await conn.fetchval(
                """SELECT count(*) FROM (SELECT run_id, step_key FROM journal_step WHERE status = 1
                                          GROUP BY 1, 2 HAVING count(*) > 1) d"""
            ),
            "dangling": await conn.fetchval(
                """SELECT count(*) FROM version v LEFT JOIN blob b ON b.id = v.blob
                    WHERE v.blob IS NOT NULL AND (b.id IS NULL OR b.state <> 2)"""
            ),
            "heads": await conn.fetchval(
                """SELECT count(*) FROM head h LEFT JOIN version v
                       ON v.bucket_id = h.bucket_id AND v.key = h.key AND v.seq = h.current_seq
                    WHERE h.current_seq IS NOT NULL AND v.seq IS NULL"""
            ),
            "blobs": {str(row["id"]) for row in await conn.fetch("SELECT id FROM blob WHERE tier <> 'inline'")},
        }
    finally:
        await conn.close()


def files(server: Server) -> set[str]:
    """The ids of all files in the blob folder, staging ones too."""
    root = server.environment["SLUICE_BLOB_DIR"]
    found = set()
    for _, _, names in os.walk(root):
        for name in names:
            stem = name.replace("-", "").split(".")[0]
            if len(stem) >= 32:
                found.add(stem[:32])
    return found


def settle(server: Server, patience: float = 120.0) -> dict[str, Any]:
    """Until no version is scanning, no file is without a row, and nothing staged is left of whoever died."""
    deadline = time.monotonic() + patience
    while True:
        state = asyncio.run(inspect(server))
        orphans = files(server) - {blob.replace("-", "") for blob in state["blobs"]}
        state["orphans"] = orphans
        if not state["unsettled"] and not state["live runs"] and not state["staging"] and not orphans:
            return state
        assert time.monotonic() < deadline, f"{state}\n{server.tail()}"
        time.sleep(0.1)


def kill_family(server: Server) -> None:
    server.kill()
    server.start()


def kill_child(server: Server) -> None:
    """One serving process; the supervisor replaces it."""
    for child in server.children()[:1]:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()


@pytest.mark.parametrize(("kill", "rounds"), [(kill_family, 3), (kill_child, 4)], ids=["everything", "one-process"])
def test_killed_under_load(start_server: StartServer, kill: Any, rounds: int) -> None:
    with running_scanner(SCAN) as scanner:
        server = start_server({**FAST, "SLUICE_CLAMD": scanner.address}, workers=2)
        server.client().create_bucket(Bucket="crash")
        load = Load(server, "crash")
        threads = [threading.Thread(target=load.run, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        rng = random.Random(7)
        try:
            for _ in range(rounds):
                reached = load.count + rng.randrange(20, 60)
                deadline = time.monotonic() + 15
                while load.count < reached and time.monotonic() < deadline:
                    time.sleep(0.01)
                kill(server)
        finally:
            load.over.set()
            for thread in threads:
                thread.join()
        server.wait_ready()
        assert load.count > rounds * 10
        state = settle(server)
        assert state["doubles"] == state["holes"] == state["dangling"] == state["heads"] == 0, state
        assert not state["failed runs"], state
        assert state["scanned"] == state["versions"], state
        assert state["recovered"], "no kill fell into a run: the load was too light"
        assert load.evil
        verify(load)
