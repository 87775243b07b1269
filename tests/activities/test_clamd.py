"""The client against a real clamd, over both kinds of socket."""

from __future__ import annotations

import asyncio
import io
import zipfile
from collections.abc import AsyncIterator

import pytest

from processing.clamd import CHUNK, Clamd, ClamdAddress
from processing.scanner import ScanOutcome, ScanReply
from tests.activities.clamd import SIGNATURE, ClamdServer, clamd, eicar

__all__ = ["clamd"]
pytestmark = pytest.mark.clamd


async def pieces(data: bytes, size: int = CHUNK) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


def scan(address: str, data: bytes, size: int = CHUNK) -> ScanReply:
    return asyncio.run(Clamd(ClamdAddress.parse(address)).scan_stream(pieces(data, size)))


@pytest.mark.parametrize("kind", ["unix", "tcp"])
@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 1 << 20])
def test_clean_content_of_any_size(clamd: ClamdServer, kind: str, size: int) -> None:
    assert scan(getattr(clamd, kind), bytes(size)) == ScanReply(ScanOutcome.CLEAN)


@pytest.mark.parametrize("kind", ["unix", "tcp"])
@pytest.mark.parametrize("size", [1, 7, 67, 68, 1000])
def test_test_virus_in_any_cut(clamd: ClamdServer, kind: str, size: int) -> None:
    assert scan(getattr(clamd, kind), eicar(), size) == ScanReply(ScanOutcome.INFECTED, SIGNATURE)


@pytest.mark.parametrize("before", [CHUNK - 34, CHUNK, 3 * CHUNK - 1])
def test_b171_signature_over_a_read_boundary(clamd: ClamdServer, before: int) -> None:
    reply = scan(clamd.unix, bytes(before) + eicar() + bytes(100))
    assert reply.outcome is ScanOutcome.INFECTED


def test_control_commands_and_version(clamd: ClamdServer) -> None:
    async def main() -> None:
        client = Clamd(ClamdAddress.parse(clamd.tcp))
        await client.ping()
        version = await client.version()
        assert version.engine.startswith("ClamAV ")
        assert await client.signature_version() == version.text

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["unix", "tcp"])
@pytest.mark.parametrize("over", [1, 3 << 20, 32 << 20])
def test_over_the_stream_limit_is_unscannable(clamd: ClamdServer, kind: str, over: int) -> None:
    """clamd answers in the middle of the stream and closes: the answer must not be lost to the reset."""
    reply = scan(getattr(clamd, kind), bytes((4 << 20) + over))
    assert reply == ScanReply(ScanOutcome.UNSCANNABLE, "INSTREAM size limit exceeded")


def test_chunk_at_the_stream_limit_is_scanned(clamd: ClamdServer) -> None:
    assert scan(clamd.unix, bytes(4 << 20)) == ScanReply(ScanOutcome.CLEAN)


def test_nested_too_deep_is_unscannable(clamd: ClamdServer) -> None:
    data = b"x" * 100
    for _ in range(25):  # clamd's MaxRecursion is 17
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as archive:
            archive.writestr("inner.zip", data)
        data = packed.getvalue()
    reply = scan(clamd.unix, data)
    assert reply.outcome is ScanOutcome.UNSCANNABLE
    assert "Limits.Exceeded" in str(reply.signature)


def test_many_streams_at_once(clamd: ClamdServer) -> None:
    async def main() -> None:
        client = Clamd(ClamdAddress.parse(clamd.unix), streams=3)
        bad, good = eicar(), b"nothing here"
        replies = await asyncio.gather(*(client.scan_stream(pieces(bad if n % 3 == 0 else good)) for n in range(40)))
        assert [r.outcome is ScanOutcome.INFECTED for r in replies] == [n % 3 == 0 for n in range(40)]

    asyncio.run(main())
