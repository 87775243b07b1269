"""5,000 requests over the whole surface of a real server, from several clients at once: no failure of ours, no hang,
and nothing held afterwards that was not held before.

SLUICETEST_FUZZ_SEED and SLUICETEST_FUZZ_REQUESTS ask for others and more; a failure shows its seed and its request.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests import pg
from tests.hostile.census import Census, lowest, returns
from tests.hostile.surface import Counted, Surface
from tests.server import Server, make_server
from tests.signing import Signer

REQUESTS = int(os.environ.get("SLUICETEST_FUZZ_REQUESTS", "5000"))
SEED = int(os.environ.get("SLUICETEST_FUZZ_SEED", "20261130"))
CLIENTS = 4
WARM = 40  # requests of each client before anything is counted
SLACK = Census(0, 12, 16, 4)  # pools that may still have grown by a few


@pytest.fixture(scope="module")
def alone() -> Iterator[Server]:
    """A server that nobody else uses: it is counted."""
    folder = Path(tempfile.mkdtemp(prefix="s-", dir=pg.session_root()))
    folder.chmod(0o711)
    database = pg.create_database()
    server = make_server(folder, {"SLUICE_BODY_TIMEOUT": "5"}, database=database, workers=2)
    try:
        yield server.start()
    finally:
        server.kill()
        pg.drop_database(database)
        shutil.rmtree(folder, ignore_errors=True)


def client(server: Server, seed: int) -> Surface:
    port = int(server.endpoint.rpartition(":")[2])
    bucket = f"fuzz-{seed}-{secrets.token_hex(3)}"
    s3 = server.client()
    for name in (bucket, f"{bucket}-junk"):
        s3.create_bucket(Bucket=name)
    signer = Signer(server.access_key, server.secret_key, f"127.0.0.1:{port}")
    return Surface(Counted(port, signer), bucket, f"{bucket}-junk", seed)


def run(each: Surface, count: int) -> None:
    each.run_requests(count)


def test_five_thousand_requests_and_nothing_is_left(alone: Server) -> None:
    clients = [client(alone, SEED + number) for number in range(CLIENTS)]
    with ThreadPoolExecutor(CLIENTS) as pool:

        def all_of(count: int) -> None:
            work = [pool.submit(run, each, count) for each in clients]
            for number, each in enumerate(work):
                try:
                    each.result()
                except Exception as error:
                    error.add_note(f"seed {SEED + number}")
                    raise
            for each in clients:
                each.sender.close()

        all_of(WARM)
        before = lowest(alone)
        all_of(REQUESTS // CLIENTS)
    returns(alone, before, SLACK)
    logs = alone.logs()
    assert sum(row.get("event") == "request" for row in logs) > REQUESTS * 0.9
    assert not [row for row in logs if row.get("status") == 500 or row.get("event") == "request failed"]
    assert {row.get("level") for row in logs} <= {"info", "warning"}, [r for r in logs if r.get("level") == "error"][:3]
