"""Two instances, one cut off from the database for longer than its lease: it says so, the other does its work, and
nothing is done twice when it is back."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests import pg
from tests.activities.clamd import eicar
from tests.durability.pair import ONCE, status
from tests.durability.proxy import Proxy, proxied
from tests.durability.scanner import Scanner, running_scanner
from tests.server import Server, make_server

pytestmark = pytest.mark.xdist_group("partition")
SETTINGS = {
    "SLUICE_ENGINE_TTL": "3",
    "SLUICE_ENGINE_HEARTBEAT": "0.3",
    "SLUICE_ENGINE_SWEEP": "0.5",
    "SLUICE_VERDICT_TTL": "0",
    "SLUICE_READ_WAIT": "2",
}
HELD = 3  # runs that the one which is cut off has in progress


@dataclass
class Split:
    """near has the database; far has it through the proxy."""

    near: Server
    far: Server
    proxy: Proxy
    scanner: Scanner


@pytest.fixture
def split() -> Iterator[Split]:
    folder = Path(tempfile.mkdtemp(prefix="p-", dir=pg.session_root()))
    folder.chmod(0o711)
    database = pg.create_database()
    with running_scanner() as scanner, proxied(database) as proxy:
        environment = {**SETTINGS, "SLUICE_CLAMD": scanner.address}
        near = make_server(folder, environment, database=database)
        far = make_server(folder, {**environment, "DATABASE_URL": proxy.dsn}, database=database, beside=near)
        try:
            for server in (near, far):
                server.start(wait=False)
            for server in (near, far):
                server.wait_ready()
            yield Split(near, far, proxy, scanner)
        finally:
            for server in (near, far):
                server.kill()
    pg.drop_database(database)
    shutil.rmtree(folder, ignore_errors=True)


def until(check: Callable[[], Any], what: str, patience: float = 60.0) -> None:
    deadline = time.monotonic() + patience
    while not check():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def rows(server: Server, statement: str) -> list[asyncpg.Record]:
    async def ask() -> list[asyncpg.Record]:
        conn = await asyncpg.connect(server.database)
        try:
            return list(await conn.fetch(statement))
        finally:
            await conn.close()

    return asyncio.run(ask())


def test_cut_off_for_longer_than_the_lease(split: Split) -> None:
    near, far = split.near, split.far
    here = near.client(**ONCE)
    there = far.client(**{**ONCE, "read_timeout": 30})
    here.create_bucket(Bucket="split")
    here.put_object(Bucket="split", Key="before", Body=b"x" * 50_000)
    near.wait_state("split", "before")
    assert there.get_object(Bucket="split", Key="before")["Body"].read() == b"x" * 50_000
    for number in range(HELD):
        body = b"HOLD" + str(number).encode() + (eicar() if number == 0 else b"") + b"y" * 30_000
        there.put_object(Bucket="split", Key=f"held{number}", Body=body)
    until(lambda: split.scanner.held == HELD, "the scanner does not have them all")
    owners = {row["worker_id"] for row in rows(near, "SELECT worker_id FROM workflow_run WHERE state = 2")}
    assert len(owners) == 1
    pids = [each.pid for each in far.children()]

    split.proxy.cut()
    began = time.monotonic()
    until(lambda: status(lambda: there.get_object(Bucket="split", Key="before"))[0] == 503, "it does not say so")
    print(f"503 after {time.monotonic() - began:.1f} s")
    assert status(lambda: there.put_object(Bucket="split", Key="during", Body=b"z" * 50_000))[0] == 503
    until(lambda: far.get("/-/ready")[0] == 503, "it calls itself ready")
    assert far.get("/-/live")[0] == 200
    assert status(lambda: here.put_object(Bucket="split", Key="near", Body=b"x")) == (200, "")

    def taken_over() -> bool:
        found = rows(near, "SELECT worker_id, epoch FROM workflow_run WHERE run_id IN (SELECT run_id FROM workflow_run"
                           " WHERE key LIKE 'held%' OR epoch > 1) AND epoch > 1")  # fmt: skip
        return len(found) == HELD and owners.isdisjoint(row["worker_id"] for row in found)

    until(taken_over, "nobody took its runs")
    until(lambda: split.scanner.held > HELD, "nobody scans them again")
    split.scanner.release()  # both have a verdict now; only one may say it
    for number in range(1, HELD):
        near.wait_state("split", f"held{number}", patience=120)
    near.wait_state("split", "held0", "quarantined", patience=120)

    split.proxy.mend()
    until(lambda: status(lambda: there.get_object(Bucket="split", Key="held1")) == (200, ""), "it does not come back")
    until(lambda: far.get("/-/ready")[0] == 200, "it is not ready again")
    assert status(lambda: there.put_object(Bucket="split", Key="after", Body=b"z" * 50_000)) == (200, "")
    far.wait_state("split", "after")
    assert status(lambda: there.get_object(Bucket="split", Key="held0"))[1] == "ObjectQuarantined"
    assert [each.pid for each in far.children()] == pids, "by itself"

    until(lambda: not rows(near, "SELECT FROM workflow_run WHERE state IN (1, 2, 3)"), "runs do not end")
    doubles = "SELECT run_id, step_key FROM journal_step WHERE status = 1 GROUP BY 1, 2 HAVING count(*) > 1"
    assert not rows(near, doubles)
    assert not rows(near, "SELECT FROM workflow_run WHERE state <> 4")
    for server in (near, far):
        assert not [row for row in server.logs() if row.get("status") == 500]
    decided = [row for server in (near, far) for row in verdicts(server)]
    assert sum(decided) == HELD + len(("before", "near", "after"))


def verdicts(server: Server) -> list[float]:
    """How many it has said, of each kind."""
    return [value for name, value in server.metrics().items() if name.startswith("sluice_verdicts_total{")]
