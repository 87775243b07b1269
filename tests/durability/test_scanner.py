"""A scanner that is away, hangs or talks nonsense, before a real server: nothing leaves without its verdict."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests import pg
from tests.activities.clamd import eicar
from tests.durability.pair import status
from tests.durability.scanner import Mode, Scanner, running_scanner
from tests.server import Server, make_server

pytestmark = pytest.mark.xdist_group("guarded")  # one worker, one start of servers
AWAY = [Mode.REFUSE, Mode.HANG]
NO_VERDICT = [Mode.GARBAGE, Mode.CLOSE, Mode.LIMIT]
QUICK = {
    "SLUICE_READ_WAIT": "0.3",
    "SLUICE_SCAN_TIMEOUT": "1",
    "SLUICE_VERDICT_TTL": "0",
    "SLUICE_ENGINE_BACKOFF_BASE": "0.05",
    "SLUICE_ENGINE_BACKOFF_CAP": "0.2",
    "SLUICE_ENGINE_WAKE_SPREAD": "0.1",
    "SLUICE_ENGINE_SWEEP": "0.5",
}


@pytest.fixture(scope="module")
def scanner() -> Iterator[Scanner]:
    with running_scanner() as one:
        yield one


@pytest.fixture(scope="module")
def guarded(scanner: Scanner) -> Iterator[Server]:
    """A server with that scanner, for all tests here."""
    folder = Path(tempfile.mkdtemp(prefix="g-", dir=pg.session_root()))
    folder.chmod(0o711)
    database = pg.create_database()
    server = make_server(folder, {**QUICK, "SLUICE_CLAMD": scanner.address}, database=database)
    try:
        yield server.start()
    finally:
        server.kill()
        pg.drop_database(database)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def bucket(guarded: Server, scanner: Scanner) -> Iterator[str]:
    name = f"b-{secrets.token_hex(8)}"
    guarded.client().create_bucket(Bucket=name)
    yield name
    scanner.become(Mode.ANSWER)


def doors(client: Any, bucket: str, key: str) -> set[tuple[int, str]]:
    """What every way to the bytes answers."""
    return {
        status(partial(client.get_object, Bucket=bucket, Key=key)),
        status(partial(client.get_object, Bucket=bucket, Key=key, Range="bytes=0-3")),
        status(partial(client.copy_object, Bucket=bucket, Key=f"{key}-copy", CopySource=f"{bucket}/{key}")),
    }


@pytest.mark.parametrize("mode", AWAY)
def test_while_the_scanner_is_away_everything_waits_and_then_goes_on_by_itself(
    guarded: Server, scanner: Scanner, bucket: str, mode: Mode
) -> None:
    client = guarded.client()
    scanner.become(mode)
    client.put_object(Bucket=bucket, Key="evil", Body=eicar())
    client.put_object(Bucket=bucket, Key="good", Body=b"good")
    assert doors(client, bucket, "evil") == {(503, "SlowDown")}
    guarded.wait_log(lambda line: line.get("event") == "breaker-open" or "scanner" in str(line.get("dependency")))
    assert doors(client, bucket, "evil") == doors(client, bucket, "good") == {(503, "SlowDown")}
    scanner.become(Mode.ANSWER)
    guarded.wait_state(bucket, "good", "ready", 60)
    guarded.wait_state(bucket, "evil", "quarantined", 60)
    assert client.get_object(Bucket=bucket, Key="good")["Body"].read() == b"good"
    assert doors(client, bucket, "evil") == {(403, "ObjectQuarantined")}


@pytest.mark.parametrize("mode", NO_VERDICT)
def test_without_a_verdict_content_is_unscannable_until_it_is_reprocessed(
    guarded: Server, scanner: Scanner, bucket: str, mode: Mode
) -> None:
    client = guarded.client()
    scanner.become(mode)
    bodies = {"evil": os.urandom(200_000) + eicar(), "good": os.urandom(200_000)}
    for key, body in bodies.items():
        client.put_object(Bucket=bucket, Key=key, Body=body)
    seen: set[tuple[int, str]] = set()
    while (403, "ObjectQuarantined") not in seen:
        seen = doors(client, bucket, "evil")
        assert seen <= {(503, "SlowDown"), (403, "ObjectQuarantined")}
    for key in bodies:
        assert guarded.wait_state(bucket, key, "quarantined")["x-sluice-code"] == "unscannable"
    scanner.become(Mode.ANSWER)
    for key in bodies:
        guarded.sluice("reprocess", bucket, key)
    guarded.wait_state(bucket, "good", "ready")
    assert client.get_object(Bucket=bucket, Key="good")["Body"].read() == bodies["good"]
    assert doors(client, bucket, "evil") == {(403, "ObjectQuarantined")}
