"""The client against a clamd that does what it should not, and the reader of its answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from datetime import UTC, datetime
from typing import Any

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from processing.clamd import CHUNK, Clamd, ClamdAddress, ClamdTimeouts
from processing.scanner import (
    SCANNER_REASONS,
    ScanFailed,
    ScannerError,
    ScannerUnreachable,
    ScanOutcome,
    ScanReply,
    Unmetered,
    read_reply,
    read_version,
)
from tests.activities.fake_clamd import Behaviour, FakeClamd

QUICK = ClamdTimeouts(connect=2.0, control=0.3, scan=0.5, last_words=0.5)


class Meter(Unmetered):
    def __init__(self) -> None:
        self.errors: list[str] = []
        self.ups: list[bool] = []
        self.scans: list[tuple[str, int]] = []
        self.built: datetime | None = None

    def error(self, reason: str) -> None:
        self.errors.append(reason)

    def up(self, answers: bool) -> None:
        self.ups.append(answers)

    def scanned(self, outcome: str, seconds: float, size: int) -> None:
        self.scans.append((outcome, size))

    def signatures(self, built: datetime | None) -> None:
        self.built = built


async def pieces(data: bytes, size: int = CHUNK) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, None]], None]:
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop

    def runner(main: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=factory) as loop:
            loop.run(asyncio.wait_for(main, 30))

    return runner


Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 1 << 20])
@pytest.mark.parametrize("cut", [1000, CHUNK, 1 << 20])
def test_b165_framing(run: Run, size: int, cut: int) -> None:
    """zINSTREAM with its NUL, 4-byte big-endian lengths, a zero terminator; no chunk over ours, none empty."""

    async def main() -> None:
        data = bytes(i % 251 for i in range(size))
        async with FakeClamd() as fake:
            reply = await Clamd(ClamdAddress.parse(fake.address)).scan_stream(pieces(data, cut))
            assert reply == ScanReply(ScanOutcome.CLEAN)
            (stream,) = fake.streams
            assert stream.data == data
            assert stream.ended
            assert all(0 < chunk <= CHUNK for chunk in stream.chunks)

    run(main())


def test_empty_chunks_of_the_source_do_not_end_the_stream(run: Run) -> None:
    async def source() -> AsyncIterator[bytes]:
        for part in (b"one", b"", b"two"):
            yield part

    async def main() -> None:
        async with FakeClamd() as fake:
            await Clamd(ClamdAddress.parse(fake.address)).scan_stream(source())
            assert fake.streams[0].data == b"onetwo"

    run(main())


STREAM_FAILURES = {
    Behaviour.GARBAGE: "garbage",
    Behaviour.EMPTY: "empty_reply",
    Behaviour.CLOSE_EARLY: "closed_early",
    Behaviour.CUT_REPLY: "closed_early",
    Behaviour.HANG: "timeout",
    Behaviour.HANG_STREAM: "timeout",
}


@pytest.mark.parametrize("behaviour", STREAM_FAILURES)
def test_b177_each_failure_has_its_own_reason(run: Run, behaviour: Behaviour) -> None:
    async def main() -> None:
        meter = Meter()
        async with FakeClamd(behaviour) as fake:
            client = Clamd(ClamdAddress.parse(fake.address), timeouts=QUICK, meter=meter)
            with pytest.raises(ScanFailed) as failure:
                await client.scan_stream(pieces(bytes(4 << 20)))
        assert failure.value.reason == STREAM_FAILURES[behaviour]
        assert str(failure.value).strip()
        assert meter.errors == [STREAM_FAILURES[behaviour]]
        assert meter.scans == []

    run(main())


@pytest.mark.parametrize(
    "behaviour, reason",
    [
        (Behaviour.REFUSE, "connect_failed"),
        (Behaviour.HANG, "ping_timeout"),
        (Behaviour.GARBAGE_PING, "ping_garbage"),
    ],
)
def test_unreachable(run: Run, behaviour: Behaviour, reason: str) -> None:
    async def main() -> None:
        meter = Meter()
        async with FakeClamd(behaviour) as fake:
            client = Clamd(ClamdAddress.parse(fake.address), timeouts=QUICK, meter=meter)
            for command in (client.ping, client.version):
                with pytest.raises(ScannerUnreachable) as failure:
                    await command()
                assert failure.value.reason == reason
            assert await client.signature_version() is None
        assert set(meter.errors) == {reason}
        assert meter.ups[-1] is False

    run(main())


def test_refused_stream_is_unreachable(run: Run) -> None:
    async def main() -> None:
        async with FakeClamd(Behaviour.REFUSE) as fake:
            with pytest.raises(ScannerUnreachable):
                await Clamd(ClamdAddress.parse(fake.address)).scan_stream(pieces(b"x"))
        with pytest.raises(ScannerUnreachable):
            await Clamd(ClamdAddress.parse("unix:/nowhere/at/all")).ping()

    run(main())


def test_answer_in_the_middle_of_a_stream(run: Run) -> None:
    async def main() -> None:
        async with FakeClamd(Behaviour.OVER_LIMIT) as fake:
            reply = await Clamd(ClamdAddress.parse(fake.address)).scan_stream(pieces(bytes(32 << 20)))
        assert reply.outcome is ScanOutcome.UNSCANNABLE

    run(main())


def test_slow_source_does_not_spend_the_scan_timeout(run: Run) -> None:
    async def source() -> AsyncIterator[bytes]:
        for _ in range(3):
            await asyncio.sleep(0.3)
            yield b"x"

    async def main() -> None:
        async with FakeClamd() as fake:
            client = Clamd(ClamdAddress.parse(fake.address), timeouts=QUICK)
            assert (await client.scan_stream(source())).outcome is ScanOutcome.CLEAN

    run(main())


@pytest.mark.parametrize("error", [TimeoutError("mine"), ConnectionResetError("mine"), RuntimeError("mine")])
def test_errors_of_the_source_pass_unchanged(run: Run, error: Exception) -> None:
    async def source() -> AsyncIterator[bytes]:
        yield b"x"
        raise error

    async def main() -> None:
        async with FakeClamd() as fake:
            with pytest.raises(type(error), match="mine"):
                await Clamd(ClamdAddress.parse(fake.address)).scan_stream(source())

    run(main())


def test_streams_are_bounded(run: Run) -> None:
    async def main() -> None:
        async with FakeClamd(Behaviour.SLOW) as fake:
            client = Clamd(ClamdAddress.parse(fake.address), streams=2)
            scans = [asyncio.ensure_future(client.scan_stream(pieces(b"x"))) for _ in range(6)]
            await fake.got_stream.wait()
            fake.release.set()
            await asyncio.gather(*scans)
            assert fake.most_open <= 2
            assert len(fake.streams) == 6

    run(main())


def test_a_scan_given_up_closes_its_connection(run: Run) -> None:
    async def main() -> None:
        async with FakeClamd(Behaviour.HANG_STREAM) as fake:
            scan = asyncio.ensure_future(Clamd(ClamdAddress.parse(fake.address)).scan_stream(endless()))
            await fake.got_stream.wait()
            scan.cancel()
            with pytest.raises(asyncio.CancelledError):
                await scan
            async with asyncio.timeout(10):
                while fake.open:
                    await asyncio.sleep(0.01)

    async def endless() -> AsyncIterator[bytes]:
        while True:
            await asyncio.sleep(0)
            yield bytes(1000)

    run(main())


def test_signature_version_is_cached_and_survives_an_outage(run: Run) -> None:
    async def main() -> None:
        async with FakeClamd() as fake:
            client = Clamd(ClamdAddress.parse(fake.address), timeouts=QUICK, version_ttl=0.0)
            first = await client.signature_version()
            assert first == "ClamAV 1.4.6/27450/Mon Nov 24 09:26:52 2025"
            await fake.down()
            assert await client.signature_version() == first
            fake.version = b"ClamAV 1.4.6/27451/Tue Nov 25 09:26:52 2025"
            await fake.up()
            async with asyncio.timeout(10):
                while await client.signature_version() == first:
                    await asyncio.sleep(0.01)
            cached = Clamd(ClamdAddress.parse(fake.address))
            assert await cached.signature_version() == await cached.signature_version()
            before = len(fake.commands)
            await asyncio.gather(*(cached.signature_version() for _ in range(50)))
            assert len(fake.commands) == before

    run(main())


def test_unknown_version_makes_nobody_wait_twice(run: Run) -> None:
    async def main() -> None:
        async with FakeClamd(Behaviour.HANG) as fake:
            client = Clamd(ClamdAddress.parse(fake.address), timeouts=QUICK)
            assert await client.signature_version() is None
            begun = time.monotonic()
            for _ in range(20):
                assert await client.signature_version() is None
            assert time.monotonic() - begun < 0.2

    run(main())


def test_meter_sees_signatures_and_verdicts(run: Run) -> None:
    async def main() -> None:
        meter = Meter()
        async with FakeClamd() as fake:
            client = Clamd(ClamdAddress.parse(fake.address), meter=meter)
            await client.version()
            await client.scan_stream(pieces(b"12345"))
        assert meter.built == datetime(2025, 11, 24, 9, 26, 52, tzinfo=UTC)
        assert meter.scans == [("clean", 5)]
        assert meter.ups == [True, True]

    run(main())


@pytest.mark.parametrize(
    "raw, reply",
    [
        (b"stream: OK", ScanReply(ScanOutcome.CLEAN)),
        (b"stream: Win.Test.EICAR_HDB-1 FOUND", ScanReply(ScanOutcome.INFECTED, "Win.Test.EICAR_HDB-1")),
        (b"stream: Some name: with blanks FOUND", ScanReply(ScanOutcome.INFECTED, "Some name: with blanks")),
        (b"stream: X FOUND FOUND", ScanReply(ScanOutcome.INFECTED, "X FOUND")),
        (b"stream: OK FOUND", ScanReply(ScanOutcome.INFECTED, "OK")),
        (b"stream: a(0f343b0931126a20f133d67c2b018a3b:68) FOUND", None),
        (b"instream(local): Bad FOUND", ScanReply(ScanOutcome.INFECTED, "Bad")),
        (b"stream: (null) FOUND", ScanReply(ScanOutcome.UNSCANNABLE, "(null)")),
        (b"stream:  FOUND", ScanReply(ScanOutcome.UNSCANNABLE, "")),
        (b"stream: Heuristics.Limits.Exceeded.MaxFiles FOUND", None),
        (b"stream: Heuristics.Limits.Exceeded FOUND", None),
        (b"stream: Heuristics.Encrypted.Zip FOUND", None),
        (b"stream: Heuristics.Encrypted.PDF FOUND", None),
        (b"INSTREAM size limit exceeded. ERROR", ScanReply(ScanOutcome.UNSCANNABLE, "INSTREAM size limit exceeded")),
        (b"stream: INSTREAM size limit exceeded. ERROR", None),
    ],
)
def test_b167_answers(raw: bytes, reply: ScanReply | None) -> None:
    found = read_reply(raw)
    if reply is not None:
        assert found == reply
    elif b"Heuristics" in raw or b"INSTREAM" in raw:
        assert found.outcome is ScanOutcome.UNSCANNABLE
    else:
        assert found.outcome is ScanOutcome.INFECTED


@pytest.mark.parametrize(
    "raw, reason",
    [
        (b"", "empty_reply"),
        (b"\0", "empty_reply"),
        (b"PONG", "garbage"),
        (b"stream: nothing", "garbage"),
        (b"stream: surprise OK", "garbage"),
        (b"OK", "garbage"),
        (b"stream: Can't allocate memory ERROR", "scanner_error"),
        (b"Can't write to temp file. ERROR", "scanner_error"),
    ],
)
def test_answers_that_are_none(raw: bytes, reason: str) -> None:
    with pytest.raises(ScanFailed) as failure:
        read_reply(raw)
    assert failure.value.reason == reason
    assert reason in SCANNER_REASONS
    assert str(failure.value)


@given(st.binary(max_size=300))
def test_no_answer_but_ok_is_clean(raw: bytes) -> None:
    try:
        reply = read_reply(raw)
    except ScannerError as error:
        assert error.reason in SCANNER_REASONS
        return
    assert reply.outcome is not ScanOutcome.CLEAN or raw.strip(b"\0\r\n ") in (b"stream: OK", b"stream:OK")
    assert (reply.signature or "").isprintable()


@given(st.text(min_size=1, max_size=150))
def test_any_name_survives(name: str) -> None:
    reply = read_reply(b"stream: " + name.encode("utf-8", "surrogatepass") + b" FOUND")
    assert reply.outcome is not ScanOutcome.CLEAN


@pytest.mark.parametrize("raw", [b"", b"PONG", b"ClamAV", b"HTTP/1.1 400 Bad Request"])
def test_answers_to_version_that_are_none(raw: bytes) -> None:
    with pytest.raises(ScannerUnreachable):
        read_version(raw)


def test_version_without_a_daily_database() -> None:
    version = read_version(b"ClamAV 1.4.6")
    assert (version.signatures, version.built) == (None, None)


@pytest.mark.parametrize(
    "text, address",
    [
        ("tcp://clamd:3310", ClamdAddress("clamd", 3310)),
        ("tcp://[::1]:3310", ClamdAddress("::1", 3310)),
        ("unix:/run/clamav/clamd.ctl", ClamdAddress(path="/run/clamav/clamd.ctl")),
        ("unix:///run/clamd.ctl", ClamdAddress(path="/run/clamd.ctl")),
    ],
)
def test_addresses(text: str, address: ClamdAddress) -> None:
    assert ClamdAddress.parse(text) == address


@pytest.mark.parametrize(
    "text", ["", "clamd:3310", "tcp://clamd", "tcp://:1", "tcp://h:0", "tcp://h:x", "unix:rel", "http://h:1"]
)
def test_addresses_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="no address of clamd"):
        ClamdAddress.parse(text)
