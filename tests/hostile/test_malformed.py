"""Heads and framings that are wrong, doubtful or too long: each its answer, and what becomes of the connection.

Behind each comes a good request. KEPT means that it is answered as well; ENDED that it is not, and that nothing of it
was taken for anything else.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import Any

import pytest

from tests.hostile.sender import check
from tests.operations.house import ROOT, House
from tests.signing import Signer, head
from tests.wire.raw import Answer, Wire, signer

KEPT, ENDED = "kept", "ended"
TE = {"Transfer-Encoding": "chunked"}
FIVE = {"Content-Length": "5"}
CHUNKS = b"5\r\nhello\r\n0\r\n\r\n"
NO_HTTP = (400, "BadRequest", ENDED)
TOO_LONG = (400, "RequestHeaderSectionTooLarge", ENDED)
BROKEN = (400, "IncompleteBody", ENDED)
STORED = (200, "", KEPT)


@dataclass(frozen=True)
class Put:
    """A signed upload of hello, but for its framing. lines go into the head as they are."""

    headers: dict[str, str]
    body: bytes = b"hello"
    lines: bytes = b""
    version: bytes = b"HTTP/1.1"

    def whole(self, root: Signer, bucket: str) -> bytes:
        target = f"/{bucket}/k"
        made = head("PUT", target, root.headers("PUT", target, self.headers))
        return made[:-2].replace(b"HTTP/1.1", self.version, 1) + self.lines + b"\r\n" + self.body


def line(value: bytes) -> Put:
    return Put(FIVE, lines=value)


def chunks(body: bytes) -> Put:
    return Put(TE, body)


# name: (what is sent, status, code, connection)
CASES: dict[str, tuple[Put | bytes, int, str, str]] = {
    # Two framings of one message: the classic ways to smuggle.
    "length and chunks": (Put({**FIVE, **TE}, b"0\r\n\r\n"), *NO_HTTP),
    "chunks and a length behind": (Put(TE, CHUNKS, b"Content-Length: 5\r\n"), *NO_HTTP),
    "one length twice": (line(b"Content-Length: 5\r\n"), *NO_HTTP),
    "two lengths": (line(b"Content-Length: 6\r\n"), *NO_HTTP),
    "a list of lengths": (Put({"Content-Length": "5, 5"}), *NO_HTTP),
    "a signed length": (Put({"Content-Length": "+5"}), *NO_HTTP),
    "a negative length": (Put({"Content-Length": "-5"}), *NO_HTTP),
    "a hexadecimal length": (Put({"Content-Length": "0x5"}), *NO_HTTP),
    "a grouped length": (Put({"Content-Length": "1_0"}), *NO_HTTP),
    "no length": (Put({"Content-Length": ""}), *NO_HTTP),
    "a length beyond 64 bits": (Put({"Content-Length": str(2**64 + 5)}), *NO_HTTP),
    "an endless length": (Put({"Content-Length": "9" * 4000}), *NO_HTTP),
    "spaces around a length": (Put({"Content-Length": "  5  "}), *STORED),
    "not quite chunked": (Put({"Transfer-Encoding": "xchunked"}, CHUNKS), *NO_HTTP),
    "chunked with a parameter": (Put({"Transfer-Encoding": "chunked;x=1"}, CHUNKS), *NO_HTTP),
    "chunked twice": (Put({"Transfer-Encoding": "chunked, chunked"}, CHUNKS), *NO_HTTP),
    "chunked, then identity": (Put({"Transfer-Encoding": "chunked, identity"}, CHUNKS), *NO_HTTP),
    "codings on two lines": (Put(TE, CHUNKS, b"Transfer-Encoding: identity\r\n"), *NO_HTTP),
    "identity and a length": (Put({"Transfer-Encoding": "identity", **FIVE}), *NO_HTTP),
    "a vertical tab before chunked": (Put({"Transfer-Encoding": "\x0bchunked"}, CHUNKS), *NO_HTTP),
    "a tab before chunked": (Put({"Transfer-Encoding": "\tchunked"}, CHUNKS), *STORED),
    "chunked in mixed case": (Put({"Transfer-Encoding": "ChUnKeD"}, CHUNKS), *STORED),
    "a space before the colon": (line(b"Transfer-Encoding : chunked\r\n"), *NO_HTTP),
    "a folded coding": (line(b"Transfer-Encoding:\r\n chunked\r\n"), *NO_HTTP),
    "an underscore in the name": (line(b"Transfer_Encoding: chunked\r\n"), *STORED),
    "chunks in HTTP/1.0": (Put(TE, CHUNKS, version=b"HTTP/1.0"), 200, "", ENDED),
    # Lines.
    "a folded line": (line(b"X-A: b\r\n c\r\n"), *NO_HTTP),
    "a fold before any header": (b"GET / HTTP/1.1\r\n Host: x\r\nHost: y\r\n\r\n", *NO_HTTP),
    "line feeds alone": (b"GET / HTTP/1.1\nHost: x\n\n", *NO_HTTP),
    "one line feed alone": (line(b"X-A: b\n"), *NO_HTTP),
    "a carriage return alone": (line(b"X-A: b\rX-B: c\r\n"), *NO_HTTP),
    "NUL in a value": (line(b"X-A: b\0c\r\n"), *NO_HTTP),
    "NUL in a name": (line(b"X\0A: b\r\n"), *NO_HTTP),
    "NUL in the target": (b"GET /\0 HTTP/1.1\r\nHost: x\r\n\r\n", *NO_HTTP),
    "no name": (line(b": b\r\n"), *NO_HTTP),
    "no colon": (line(b"nocolon\r\n"), *NO_HTTP),
    "no ASCII in a name": (line(b"\xff\xfe: b\r\n"), *NO_HTTP),
    "no UTF-8 in a value": (line(b"X-A: \xff\xfe\r\n"), *STORED),
    "two hosts": (line(b"Host: other\r\n"), *NO_HTTP),
    "no host": (b"GET / HTTP/1.1\r\n\r\n", *NO_HTTP),
    "empty lines before it": (b"\r\n" * 1000, 0, "", KEPT),
    # Request lines.
    "an absolute target": (b"GET http://other/b/k HTTP/1.1\r\nHost: a\r\n\r\n", 400, "InvalidBucketName", KEPT),
    "an authority": (b"GET other:80 HTTP/1.1\r\nHost: a\r\n\r\n", *NO_HTTP),
    "a star": (b"GET * HTTP/1.1\r\nHost: a\r\n\r\n", *NO_HTTP),
    "CONNECT": (b"CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n", 400, "InvalidBucketName", ENDED),
    "TRACE": (b"TRACE / HTTP/1.1\r\nHost: a\r\n\r\n", 405, "MethodNotAllowed", KEPT),
    "a small method": (b"get / HTTP/1.1\r\nHost: a\r\n\r\n", *NO_HTTP),
    "HTTP/2 by prior knowledge": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", *NO_HTTP),
    "a version of two digits": (b"GET / HTTP/1.10\r\nHost: a\r\n\r\n", *NO_HTTP),
    "tabs instead of spaces": (b"GET\t/\tHTTP/1.1\r\nHost: a\r\n\r\n", *NO_HTTP),
    "escaped line ends": (b"GET /%0d%0aX:y HTTP/1.1\r\nHost: a\r\n\r\n", 400, "InvalidBucketName", KEPT),
    # Chunks.
    "a size beyond 64 bits": (chunks(b"fffffffffffffffff\r\n"), *BROKEN),
    "a negative size": (chunks(b"-1\r\nhello\r\n0\r\n\r\n"), *BROKEN),
    "a size with a prefix": (chunks(b"0x5\r\nhello\r\n0\r\n\r\n"), *BROKEN),
    "a space before the size": (chunks(b" 5\r\nhello\r\n0\r\n\r\n"), *BROKEN),
    "a space behind the size": (chunks(b"5 \r\nhello\r\n0\r\n\r\n"), *BROKEN),
    "zeros before the size": (chunks(b"000000000000000000005\r\nhello\r\n0\r\n\r\n"), *STORED),
    "an extension": (chunks(b"5;a=b\r\nhello\r\n0\r\n\r\n"), *STORED),
    "a line end in a quoted extension": (chunks(b'5;a="\r\nb"\r\nhello\r\n0\r\n\r\n'), *BROKEN),
    "a line feed in an extension": (chunks(b"5;a\nhello\r\n0\r\n\r\n"), *BROKEN),
    "line feeds between chunks": (chunks(b"5\nhello\n0\n\n"), *BROKEN),
    "a chunk longer than it says": (chunks(b"5\r\nhelloXX0\r\n\r\n"), *BROKEN),
    "an endless extension": (chunks(b"5;a=" + b"x" * (2 << 20) + b"\r\nhello\r\n0\r\n\r\n"), *BROKEN),
    "a trailer": (chunks(b"5\r\nhello\r\n0\r\nX-A: b\r\n\r\n"), *STORED),
    "framing in trailers": (chunks(b"5\r\nhello\r\n0\r\nContent-Length: 9\r\n\r\n"), *BROKEN),
    "too many trailers": (chunks(b"5\r\nhello\r\n0\r\n" + b"X-A: b\r\n" * 20_000 + b"\r\n"), *BROKEN),
    "a long trailer": (chunks(b"5\r\nhello\r\n0\r\nX-A: " + b"b" * 200_000 + b"\r\n\r\n"), *BROKEN),
    # Over-long everything.
    "a long line": (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", *TOO_LONG),
    "a line without end": (b"GET /" + b"a" * 400_000, *TOO_LONG),
    "a long method": (b"G" * 100_000, *NO_HTTP),
    "a long value": (line(b"X-A: " + b"x" * 70_000 + b"\r\n"), *TOO_LONG),
    "a long name": (line(b"x" * 70_000 + b": b\r\n"), *TOO_LONG),
    "300 headers": (line(b"".join(b"X-%d: b\r\n" % i for i in range(300))), *NO_HTTP),
    "a long head of short lines": (line((b"X-A: " + b"x" * 60_000 + b"\r\n") * 200), *TOO_LONG),
    "a head that never ends": (b"GET / HTTP/1.1\r\n" + (b"X-A: " + b"x" * 60_000 + b"\r\n") * 4, *TOO_LONG),
    "empty lines without end": (b"\r\n" * 200_000, *TOO_LONG),
    # Other protocols, and other wishes.
    "an upgrade to WebSocket": (line(b"Connection: upgrade\r\nUpgrade: websocket\r\n"), 200, "", ENDED),
    "an upgrade to HTTP/2": (line(b"Connection: upgrade\r\nUpgrade: h2c\r\n"), 200, "", ENDED),
    "an upgrade with chunks": (Put(TE, CHUNKS, b"Connection: upgrade\r\nUpgrade: h2c\r\n"), 200, "", ENDED),
    "a close": (line(b"Connection: close\r\n"), 200, "", ENDED),
    "a close and a wish to stay": (line(b"Connection: close, keep-alive\r\n"), 200, "", ENDED),
    "an unknown expectation": (line(b"Expect: 200-ok\r\n"), *STORED),
}  # fmt: skip


def send(wire: Wire, data: bytes) -> None:
    """As much of it as the server takes."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        wire.send(data)


def seen(answer: Answer) -> tuple[int, str]:
    return answer.status, answer.code


@pytest.mark.parametrize("name", CASES)
def test_each_has_its_answer_and_the_next_request_its_own(
    house: House, root: Signer, bucket: str, s3: Any, name: str
) -> None:
    sent, status, code, then = CASES[name]
    data = sent.whole(root, bucket) if isinstance(sent, Put) else sent
    with Wire(house.port) as wire:
        send(wire, data + root.request("GET", f"/{bucket}/behind"))
        if status:
            answer = check(wire.answer(), "PUT", name)
            assert seen(answer) == (status, code)
        if then == KEPT:
            assert seen(wire.answer()) == (404, "NoSuchKey")
        else:
            assert answer.headers["connection"] == "close"
            assert wire.ended()
    kept = [each["Key"] for each in s3.list_objects_v2(Bucket=bucket).get("Contents", [])]
    assert kept == (["k"] if status == 200 else [])
    if kept:
        assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == b"hello"


GARBAGE = [b"\x16\x03\x01 garbage\r\n\r\n", b"GET /" + b"a" * 70_000, b"X", b"GET / HTTP/1.1\r\nA b\r\n\r\n"]


@pytest.mark.parametrize("bad", GARBAGE, ids=["garbage", "too long", "one byte", "a bad line"])
@pytest.mark.parametrize("cut", [0, 1, 20])
def test_what_was_good_before_is_answered(house: House, root: Signer, bucket: str, bad: bytes, cut: int) -> None:
    """One write holds uploads and reads, then what is no HTTP; cut: how long before its begin a second write does."""
    good = root.request("PUT", f"/{bucket}/a", body=b"x" * 10_000) + root.request("GET", f"/{bucket}/a")
    good += Put(TE, CHUNKS).whole(root, bucket)
    with Wire(house.port) as wire:
        wire.send(good[: len(good) - cut] if cut else good + bad)
        send(wire, good[len(good) - cut :] + bad + b"\r\n\r\n" if cut else b"\r\n\r\n")
        assert [seen(wire.answer()) for _ in range(3)] == [(200, "")] * 3
        last = wire.answer()
        assert last.status == 400 and last.headers["connection"] == "close"
        assert wire.ended()


def test_a_smuggled_request_is_only_a_body(house: House, root: Signer, bucket: str, s3: Any) -> None:
    """Whatever a body holds is stored, not served."""
    inner = root.request("PUT", f"/{bucket}/smuggled", body=b"x")
    for headers in ({}, {"Connection": "upgrade", "Upgrade": "websocket"}, {"Connection": "upgrade", "Upgrade": "h2c"}):
        with Wire(house.port) as wire:
            wire.send(root.request("PUT", f"/{bucket}/k", headers, inner))
            assert wire.answer().status == 200
        assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == inner
    assert [each["Key"] for each in s3.list_objects_v2(Bucket=bucket)["Contents"]] == ["k"]


@pytest.mark.parametrize("count", [31, 32, 33, 200])
def test_any_number_of_requests_behind_each_other(house: House, root: Signer, bucket: str, count: int) -> None:
    requests = [root.request("PUT", f"/{bucket}/k{i}", body=b"x" * (i * 37 % 5000)) for i in range(count)]
    with Wire(house.port) as wire:
        wire.send(b"".join(requests) + root.request("GET", f"/{bucket}/k7"))
        assert [wire.answer().status for _ in requests] == [200] * count
        assert len(wire.answer().body) == 7 * 37
        wire.send(root.request("GET", f"/{bucket}/k8")[:-1])
        wire.send(b"\n")
        assert len(wire.answer().body) == 8 * 37


@pytest.mark.parametrize("before", ["a read", "an upload", "chunks"])
def test_part_of_a_head_behind_a_request_is_cut_in_time(worker_dsn: str, before: str) -> None:
    house = House(worker_dsn, header_timeout=0.5).start()
    try:
        root = signer(house.port, ROOT)
        first = {
            "a read": root.request("GET", "/absent-bucket"),
            "an upload": root.request("PUT", "/absent-bucket/k", body=b"hello"),
            "chunks": Put(TE, CHUNKS).whole(root, "absent-bucket"),
        }[before]
        with Wire(house.port) as wire:
            began = time.monotonic()
            wire.send(first + b"GET / HTTP/1.1\r\nHost:")
            assert wire.answer().status == 404
            assert wire.ended()
            assert time.monotonic() - began < 10
    finally:
        house.stop()


def test_a_whole_head_in_time_is_not_cut_while_it_is_served(worker_dsn: str, bucket: str) -> None:
    house = House(worker_dsn, header_timeout=0.3).start()
    try:
        root = signer(house.port, ROOT)
        house.client().put_object(Bucket=bucket, Key="scan/slow", Body=b"x")
        with Wire(house.port) as wire:
            second = root.request("GET", f"/{bucket}/absent")
            wire.send(root.request("GET", f"/{bucket}/scan/slow") + second[:30])
            house.wait(lambda: house.pipeline.in_flight == 1)
            with pytest.raises(TimeoutError):
                wire.socket.settimeout(0.8)  # longer than a head may take
                wire.socket.recv(1)
            wire.socket.settimeout(20)
            house.decide("scan/slow")
            assert wire.answer().status == 200
            wire.send(second[30:])
            assert wire.answer().status == 404
    finally:
        house.stop()
