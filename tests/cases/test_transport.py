"""Cases of HTTP transport that need a fault behind the server, or many clients at once."""

from __future__ import annotations

import time
from typing import Any

import pytest
import structlog.testing

from storage_tiers.tier import TierError, TierFull, TierUnavailable
from storage_tiers.wrappers.faulty import Fault, Faulty
from tests.operations.house import ROOT, House
from tests.signing import Signer
from tests.wire.raw import Wire, signer


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (TierFull("full"), 503, "ServiceUnavailable"),
        (TierUnavailable("away"), 503, "ServiceUnavailable"),
        (TierError("broken"), 503, "ServiceUnavailable"),
    ],
)
@pytest.mark.parametrize("operation", ["write", "commit"])
def test_b045_a_failure_after_continue_is_a_whole_answer(
    worker_dsn: str, bucket: str, error: TierError, status: int, code: str, operation: str
) -> None:
    """The handler fails in the middle of the body, or after it; the client reads the error, not a reset."""
    house = House(worker_dsn)
    house.tiers = {"standard": Faulty(house.tiers["standard"], Fault(operation, error))}  # type: ignore[dict-item]
    house.start()
    try:
        root, body = signer(house.port, ROOT), b"x" * (3 << 20)
        with Wire(house.port) as wire, structlog.testing.capture_logs():
            request = root.request("PUT", f"/{bucket}/k", {"Expect": "100-continue"}, body, payload="UNSIGNED-PAYLOAD")
            wire.send(request[: -len(body)])
            assert wire.line() == b"HTTP/1.1 100 Continue" and wire.line() == b""
            wire.send(body)
            answer = wire.answer()
            assert (answer.status, answer.code) == (status, code)
            assert answer.body.startswith(b"<?xml") and answer.body.rstrip().endswith(b"</Error>")
        assert "Contents" not in house.client().list_objects_v2(Bucket=bucket)
    finally:
        house.stop()


@pytest.mark.parametrize("how", ["half_close", "reset"])
def test_b049_what_broke_off_is_not_processed(house: House, root: Signer, s3: Any, bucket: str, how: str) -> None:
    """No version, no run: 10 of 100 bytes, and as many of a body that goes to a file."""
    runs = dict(house.engine.runs)
    for size in (100, 1 << 20):
        ended = len(house.metrics.requests)
        wire = Wire(house.port)
        wire.send(root.request("PUT", f"/{bucket}/k", body=b"x" * 10, payload="UNSIGNED-PAYLOAD", length=size))
        house.wait(lambda: house.pipeline.in_flight == 1)
        getattr(wire, how)()
        house.wait(lambda: len(house.metrics.requests) > ended)  # noqa: B023 - is called here
        if how == "half_close":
            wire.close()
    assert house.engine.runs == runs
    found = house.run(house.services.buckets.get(bucket))
    assert found is not None
    for table in ("version", "head"):
        count = house.run(house.pool.fetchval(f"SELECT count(*) FROM {table} WHERE bucket_id = $1", found.id))
        assert count == 0, table
    house.wait(lambda: not house.tiers["standard"].staging)


def test_b055_two_hundred_slow_senders_do_not_stop_a_fast_one(house: House, root: Signer, s3: Any, bucket: str) -> None:
    slow = [Wire(house.port) for _ in range(200)]
    try:
        for number, wire in enumerate(slow):
            target = f"/{bucket}/slow-{number}"
            wire.send(root.request("PUT", target, body=b"x", payload="UNSIGNED-PAYLOAD", length=1 << 20))
        house.wait(lambda: house.pipeline.in_flight == 200)
        begun = time.monotonic()
        for number in range(20):
            s3.put_object(Bucket=bucket, Key=f"fast-{number}", Body=b"y" * 100_000)
            assert s3.get_object(Bucket=bucket, Key=f"fast-{number}")["Body"].read() == b"y" * 100_000
        assert time.monotonic() - begun < 15
        assert house.pipeline.in_flight == 200  # they are all still at it
    finally:
        for wire in slow:
            wire.close()
    house.wait(lambda: house.pipeline.in_flight == 0)
    house.wait(lambda: not house.tiers["standard"].staging)
    assert s3.list_objects_v2(Bucket=bucket, Prefix="slow-")["KeyCount"] == 0
