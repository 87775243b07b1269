"""Cases of the Postgres queue that need processes to die, or their connections to."""

from __future__ import annotations

import asyncio
import hashlib
import time
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.activities.clamd import ClamdServer, clamd
from tests.cases.whole import StartWhole
from tests.operations.asking import refused
from tests.server import Server, StartServer

__all__ = ["clamd"]
FAST = {
    "SLUICE_ENGINE_TTL": "2",
    "SLUICE_ENGINE_HEARTBEAT": "0.3",
    "SLUICE_ENGINE_SWEEP": "0.5",
    "SLUICE_ENGINE_MAX_RECOVERIES": "20",
    "SLUICE_ARCHIVE_DELAY": "0",
    "SLUICE_RECALL_POLL": "0.2",
    "SLUICE_BLOB_GRACE": "1",
    "SLUICE_COLLECT_INTERVAL": "0.5",
    "SLUICE_VERDICT_TTL": "0",
    "SLUICE_ACTIVITIES": "tests.cases.lethal",
    "SLUICE_INLINE_THRESHOLD": "0",
}
STEPS = ("sniff_type", "scan_malware", "extract_text")


def rows(server: Server, statement: str, *arguments: Any) -> list[Any]:
    async def ask() -> list[Any]:
        conn = await asyncpg.connect(server.database)
        try:
            return list(await conn.fetch(statement, *arguments))
        finally:
            await conn.close()

    return asyncio.run(ask())


def wait(server: Server, condition: Any, what: str, patience: float = 60.0) -> None:
    end = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < end, f"{what}\n{server.tail()}"
        time.sleep(0.05)


def recoveries(server: Server) -> float:
    found = [value for name, value in server.metrics().items() if name.startswith("sluice_recoveries_total")]
    return sum(found)


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*") if path.is_file() and len(path.name.split(".")[0]) == 32}


@pytest.mark.clamd
@pytest.mark.slow
def test_b193_b211_killed_in_every_step(start_server: StartServer, clamd: ClamdServer, tmp_path: Path) -> None:
    """SIGKILL when a step has done its work and nobody wrote it down: each is recorded once, each effect is there once.

    B211: the same in the middle of a move to the archive, before and after the swap; it is picked up once the lease
    is over, and ends with one cold copy and no hot one.
    """
    server = start_server({**FAST, "SLUICE_CLAMD": clamd.unix, "SLUICETEST_MARKS": str(tmp_path)})
    client = server.client(retries={"max_attempts": 8}, connect_timeout=2)
    client.create_bucket(Bucket="deaths")
    blobs = Path(server.environment["SLUICE_BLOB_DIR"])
    marks = [f"after-{step}" for step in STEPS] + ["before-swap", "after-tier_move"]
    bodies = {mark: b"words of the text " * 500 + mark.encode() for mark in marks}
    for mark in marks:
        (tmp_path / mark).touch()
    for mark, body in bodies.items():
        storage = "GLACIER" if mark in marks[-2:] else "STANDARD"
        client.put_object(Bucket="deaths", Key=mark, Body=body, ContentType="text/plain", StorageClass=storage)
    for mark in marks:
        wait(server, (tmp_path / f"died-at-{mark}").exists, f"nobody died at {mark}")
    wait(server, lambda: not rows(server, "SELECT FROM workflow_run WHERE state IN (1, 2, 3)"), "runs do not end")
    server.wait_ready()
    for mark in marks[:3]:
        server.wait_state("deaths", mark, "ready")
        assert client.get_object(Bucket="deaths", Key=mark)["Body"].read() == bodies[mark]
    # One record a step, all of them completed; nothing failed, nothing is left over.
    statement = "SELECT run_id, step_key, count(*) AS n, min(status) AS status FROM journal_step GROUP BY 1, 2"
    journal = rows(server, statement)
    assert {row["n"] for row in journal} == {1} and {row["status"] for row in journal} == {1}
    assert rows(server, "SELECT FROM workflow_run WHERE state <> 4") == []
    versions = rows(server, "SELECT key, digest, state FROM version ORDER BY key")
    assert [bytes(row["key"]).decode() for row in versions] == sorted(bodies)
    assert {row["state"] for row in versions} == {2}
    for row in versions:
        body = bodies[bytes(row["key"]).decode()]
        digest = row["digest"]
        told = digest if isinstance(digest, str) else "sha256:" + bytes(digest).hex()
        assert told == "sha256:" + hashlib.sha256(body).hexdigest()
    sidecars = rows(server, "SELECT bucket_id, key, seq, count(*) AS n FROM sidecar GROUP BY 1, 2, 3")
    assert len(sidecars) == len(bodies) and {row["n"] for row in sidecars} == {1}
    assert recoveries(server) >= 1
    # The bytes: two cold copies, three hot ones and the sidecars; what the dead had begun goes.
    cold = {row["id"].hex for row in rows(server, "SELECT id FROM blob WHERE tier = 'archive' AND state = 2")}
    wait(server, lambda: files(blobs / "archive") == cold, "cold copies")
    assert len(cold) == 2
    hot = "SELECT id FROM blob WHERE tier = 'standard'"
    wait(server, lambda: len(files(blobs / "standard")) == 3 + len(bodies), f"{rows(server, hot)}")
    for mark in marks[-2:]:
        assert refused(client.get_object, Bucket="deaths", Key=mark) == (403, "InvalidObjectState")
        client.restore_object(Bucket="deaths", Key=mark, RestoreRequest={"Days": 1})
        wait(
            server, lambda k=mark: '"false"' in client.head_object(Bucket="deaths", Key=k).get("Restore", ""), "recall"
        )
        assert client.get_object(Bucket="deaths", Key=mark)["Body"].read() == bodies[mark]


def test_b195_a_listener_that_was_killed(start_whole: StartWhole) -> None:
    """Its loss shows in the gauge; what is uploaded meanwhile is processed; it listens again by itself."""
    whole = start_whole()
    client = whole.client()
    client.create_bucket(Bucket="hints")
    notifier = whole.core.notifier
    whole.core.metrics.listening(notifier.connected)
    assert whole.metric("sluice_listening") == 1
    for number in range(2):
        sessions = notifier.sessions
        killed = whole.value(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid()"
            " AND (query ILIKE 'LISTEN%' OR query LIKE '%pg_notify(%' OR query = 'SELECT 1')"
        )
        assert killed >= 1
        client.put_object(Bucket="hints", Key=f"k{number}", Body=b"x")
        whole.wait(lambda: not notifier.connected or notifier.sessions > sessions)  # noqa: B023 - is called here
        whole.core.metrics.listening(notifier.connected)
        assert whole.metric("sluice_listening") in (0, 1)
        whole.reaches(client, "hints", f"k{number}", "ready")
        whole.wait(lambda: notifier.connected and notifier.sessions > sessions)  # noqa: B023
        whole.core.metrics.listening(notifier.connected)
        assert whole.metric("sluice_listening") == 1
