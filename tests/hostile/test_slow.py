"""A thousand clients that take their time, of each kind, against a real server: others hardly notice, memory stays
bounded, and when they are cut nothing of them is left."""

from __future__ import annotations

import json
import os
import secrets
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import pg
from tests.hostile.census import Census, lowest, returns
from tests.hostile.crowd import Crowd, Slow, until
from tests.server import Server, make_server
from tests.signing import Signer, head
from tests.wire.raw import Wire

pytestmark = pytest.mark.xdist_group("slow")  # latencies are measured: one at a time
CROWD = 1000
ACCOUNTS = 4  # one account gets half of a process's places; a crowd of one would be answered SlowDown
LARGE = 10 << 20
PROBES = 15
WORST = 10.0  # times as long as alone, and
FLOOR = 0.25  # seconds on top, as other things run on this machine, may a request take at the median
MEMORY = 600 << 20  # bytes that the whole family may grow by
SLACK = Census(0, 60, 120, 6)  # pools of threads, of connections to the database and of the crew of large bodies

# On a busy machine a case takes longer than slow clients are suffered by default: these are to stay.
PATIENT = {"SLUICE_BODY_TIMEOUT": "200", "SLUICE_MIN_RATE_GRACE": "200"}


@dataclass
class Place:
    server: Server
    accounts: list[Signer]
    port: int
    spans: str  # a target: its bytes lie in one file
    parts: str  # and in several

    def signer(self, number: int) -> Signer:
        return self.accounts[number % ACCOUNTS]


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    folder = Path(tempfile.mkdtemp(prefix="s-", dir=pg.session_root()))
    folder.chmod(0o711)
    database = pg.create_database()
    server = make_server(folder, PATIENT, database=database, workers=2)
    try:
        server.start()
        yield _furnish(server)
    finally:
        server.kill()
        pg.drop_database(database)


def _furnish(server: Server) -> Place:
    port = int(server.endpoint.rpartition(":")[2])
    s3 = server.client()
    s3.create_bucket(Bucket="crowd", ACL="public-read-write")
    body = os.urandom(LARGE)
    s3.put_object(Bucket="crowd", Key="one", Body=body, ACL="public-read")
    upload = s3.create_multipart_upload(Bucket="crowd", Key="many", ACL="public-read")["UploadId"]
    parts = []
    for number in (1, 2):
        half = body[: LARGE // 2] if number == 1 else body[LARGE // 2 :]
        etag = s3.upload_part(Bucket="crowd", Key="many", UploadId=upload, PartNumber=number, Body=half)["ETag"]
        parts.append({"PartNumber": number, "ETag": etag})
    s3.complete_multipart_upload(Bucket="crowd", Key="many", UploadId=upload, MultipartUpload={"Parts": parts})
    for key in ("one", "many"):
        server.wait_state("crowd", key)
    accounts = []
    for number in range(ACCOUNTS):
        made = json.loads(server.sluice("key", "create", "--account", f"crowd{number}", "--json").stdout)
        accounts.append(Signer(made["access_key"], made["secret_key"], f"127.0.0.1:{port}"))
    return Place(server, accounts, port, "/crowd/one", "/crowd/many")


# --- the kinds ---------------------------------------------------------------------------------------------------


def heads(place: Place, number: int) -> Slow:
    """Begins a head, and goes on with it a byte at a time."""
    return Slow(b"GET /crowd/one HTTP/1.1\r\nHost: a\r\nX-Slow: ", b"x" * 7)


def large_bodies(place: Place, number: int) -> Slow:
    """Uploads quickly at first, so that a file and buffers are there, then a byte at a time."""
    target = f"/crowd/large{number}"
    opening = head("PUT", target, place.signer(number).headers("PUT", target, {"Content-Length": str(LARGE)}))
    return Slow(opening + bytes(100_000), b"z")


def readers(place: Place, number: int) -> Slow:
    """Asks for a large object that leaves by sendfile, and does not read it."""
    target = place.spans
    return Slow(head("GET", target, place.signer(number).headers("GET", target)), reads=False)


def part_readers(place: Place, number: int) -> Slow:
    """The same with one that is copied through the event loop."""
    target = place.parts
    return Slow(head("GET", target, place.signer(number).headers("GET", target)), reads=False)


def refused(place: Place, number: int) -> Slow:
    """Announces a body to who refused it long ago."""
    wrong = Signer("NOSUCHKEY", "secret", f"127.0.0.1:{place.port}")
    target = f"/crowd/refused{number}"
    return Slow(head("PUT", target, wrong.headers("PUT", target, {"Content-Length": "9000"})), b"x")


def strangers(place: Place, number: int) -> Slow:
    """Uploads as nobody into a public bucket."""
    return Slow(head("PUT", f"/crowd/open{number}", {"Host": "a", "Content-Length": "9000"}), b"x")


# --- what others see -----------------------------------------------------------------------------------------------


def latency(place: Place, bucket: str) -> tuple[float, float]:
    """(median, longest) of an honest client's upload and read of 40 kB, each time over a new connection."""
    server = place.server
    signer = Signer(server.access_key, server.secret_key, f"127.0.0.1:{place.port}")
    body = os.urandom(40_000)
    took = []
    for number in range(PROBES):
        target = f"/{bucket}/{number}"
        began = time.monotonic()
        with Wire(place.port) as wire:
            for method, payload in (("PUT", body), ("GET", b"")):
                wire.send(signer.request(method, target, body=payload))
                answer = wire.answer()
                assert answer.status == 200, answer
            assert answer.body == body
        took.append(time.monotonic() - began)
    return statistics.median(took), max(took)


def served(place: Place) -> float:
    return place.server.metrics()["sluice_s3_in_flight"]


KINDS: dict[Callable[[Place, int], Slow], int] = {
    # kind: how many of them are being served, at least
    heads: 0,
    large_bodies: CROWD,
    readers: CROWD,
    part_readers: CROWD,
    refused: 0,
    strangers: CROWD // 2,
}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_thousand_slow_ones_starve_nobody_and_leave_nothing(place: Place, kind: Callable[[Place, int], Slow]) -> None:
    server = place.server
    bucket = f"honest-{secrets.token_hex(4)}"
    server.client().create_bucket(Bucket=bucket)
    latency(place, bucket)  # whatever is done once is done
    alone, _ = latency(place, bucket)
    before, memory = lowest(server, 4), server.memory()
    with Crowd(place.port, [kind(place, number) for number in range(CROWD)]) as crowd:
        until(lambda: served(place) >= KINDS[kind])
        crowded, longest = latency(place, bucket)
        grown = server.memory() - memory
        there, answered = crowd.there, crowd.refused
    print(
        f"{kind.__name__}: {alone * 1000:.1f} ms alone, {crowded * 1000:.1f} ms beside {there}, "
        f"at most {longest * 1000:.0f} ms, {grown / 2**20:.0f} MiB more"
    )
    assert there >= (CROWD if KINDS[kind] in (0, CROWD) else KINDS[kind])
    if KINDS[kind] == CROWD:
        assert not answered, answered[:3]
    assert crowded < WORST * alone + FLOOR
    assert grown < MEMORY
    print(returns(server, before, SLACK))
    wrong = [row for row in server.logs() if row.get("status") == 500 or row.get("event") == "a serving process ended"]
    assert not wrong, wrong[:3]
    staging = Path(server.environment["SLUICE_BLOB_DIR"])
    until(lambda: not [each for each in staging.rglob("*") if each.is_file() and "staging" in str(each)])
