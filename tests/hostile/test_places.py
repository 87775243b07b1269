"""Who takes the places of a process: nobody all of them, and who was refused none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.operations.house import ROOT, House
from tests.signing import Signer, head
from tests.wire.raw import Wire, signer

PLACES = 6


@pytest.fixture
def small(worker_dsn: str) -> Iterator[House]:
    house = House(worker_dsn, max_in_flight=PLACES).start()
    yield house
    house.stop()


def served(house: House, bucket: str) -> int:
    with Wire(house.port) as wire:
        wire.send(signer(house.port, ROOT).request("GET", f"/{bucket}"))
        return wire.answer().status


def test_bodies_of_the_refused_take_no_place(small: House, bucket: str) -> None:
    wrong = Signer("NOSUCHKEY", "secret", f"127.0.0.1:{small.port}")
    with ExitStack() as stack:
        for number in range(3 * PLACES):
            wire = stack.enter_context(Wire(small.port))
            wire.send(wrong.request("PUT", f"/{bucket}/k{number}", payload="UNSIGNED-PAYLOAD", length=1000))
            assert wire.answer().code == "InvalidAccessKeyId"
        assert small.pipeline.in_flight == 3 * PLACES, "they are being drained"
        assert served(small, bucket) == 200
    small.wait(lambda: small.pipeline.in_flight == 0)


def test_nobody_in_particular_gets_half_of_the_places(small: House) -> None:
    bucket = f"open-{small.port}"
    small.client().create_bucket(Bucket=bucket, ACL="public-read-write")
    with ExitStack() as stack:
        wires = []
        for number in range(PLACES // 2):
            wire = stack.enter_context(Wire(small.port))
            wire.send(head("PUT", f"/{bucket}/k{number}", {"Host": "a", "Content-Length": "1000"}))
            small.wait(lambda count=number + 1: small.pipeline.in_flight == count)  # type: ignore[misc]
            wires.append(wire)
        late = stack.enter_context(Wire(small.port))
        late.send(head("PUT", f"/{bucket}/late", {"Host": "a", "Content-Length": "1000"}))
        answer = late.answer()
        assert (answer.status, answer.code) == (503, "SlowDown") and answer.headers["retry-after"]
        assert served(small, bucket) == 200
        wires[0].send(b"x" * 1000)
        assert wires[0].answer().status == 200
