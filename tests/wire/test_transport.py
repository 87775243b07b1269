"""HTTP at its edges: what is sent early, late, twice, too slowly or not at all."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import socket
import threading
import time
from typing import Any

import pytest

from tests.operations.house import ROOT, House
from tests.signing import Signer, head
from tests.wire.raw import Wire, signer


def exists(s3: Any, bucket: str, key: str) -> bool:
    return key in [each["Key"] for each in s3.list_objects_v2(Bucket=bucket).get("Contents", [])]


# --- Expect ------------------------------------------------------------------------------------------------------


def test_b043_an_empty_put_with_expect_is_answered_straight(house: House, root: Signer, bucket: str) -> None:
    with Wire(house.port) as wire:
        wire.send(root.request("PUT", f"/{bucket}/empty", {"Expect": "100-continue"}))
        answer = wire.answer()
    assert answer.status == 200
    assert answer.headers["etag"] == f'"{hashlib.md5(b"").hexdigest()}"'


def test_continue_comes_before_the_body(house: House, root: Signer, s3: Any, bucket: str) -> None:
    with Wire(house.port) as wire:
        request = root.request("PUT", f"/{bucket}/k", {"Expect": "100-continue"}, b"hello")
        wire.send(request[:-5])
        assert wire.line() == b"HTTP/1.1 100 Continue" and wire.line() == b""
        wire.send(request[-5:])
        assert wire.answer().status == 200
    assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == b"hello"


@pytest.mark.parametrize(
    ("target", "headers", "status", "code"),
    [
        ("/no-such-bucket-here/k", {}, 404, "NoSuchBucket"),
        ("/{bucket}/taken", {"If-None-Match": "*"}, 412, "PreconditionFailed"),
        ("/{bucket}/absent", {"If-Match": '"x"'}, 404, "NoSuchKey"),
        ("/{bucket}/k", {"x-amz-storage-class": "NONE"}, 400, "InvalidStorageClass"),
    ],
)
def test_b045_a_refusal_comes_whole_and_instead_of_continue(
    house: House, root: Signer, s3: Any, bucket: str, target: str, headers: dict[str, str], status: int, code: str
) -> None:
    s3.put_object(Bucket=bucket, Key="taken", Body=b"x")
    with Wire(house.port) as wire:
        whole = root.request("PUT", target.format(bucket=bucket), {"Expect": "100-continue", **headers}, b"x" * 1000)
        wire.send(whole[:-1000])
        answer = wire.answer()
        assert (answer.status, answer.code) == (status, code)
        assert answer.headers["connection"] == "close"
        wire.half_close()
        assert wire.ended()


def test_b045_a_wrong_signature_is_refused_before_the_body(house: House, bucket: str) -> None:
    wrong = Signer(ROOT[0], "not the secret", f"127.0.0.1:{house.port}")
    with Wire(house.port) as wire:
        wire.send(wrong.request("PUT", f"/{bucket}/k", {"Expect": "100-continue"}, b"x" * 1000)[:-1000])
        answer = wire.answer()
    assert (answer.status, answer.code) == (403, "SignatureDoesNotMatch")


# --- bodies that break off, or are not wanted ------------------------------------------------------------------------


def test_b047_an_early_refusal_reaches_a_client_that_is_still_sending(house: House, root: Signer, bucket: str) -> None:
    with Wire(house.port) as wire:
        request = root.headers("PUT", f"/{bucket}/k?partNumber=1&uploadId=nope", {"Content-Length": str(50 << 20)})
        wire.send(head("PUT", f"/{bucket}/k?partNumber=1&uploadId=nope", request))
        for _ in range(50):
            wire.send(b"\0" * (1 << 20))
        answer = wire.answer()
        assert (answer.status, answer.code) == (404, "NoSuchUpload")
        wire.send(root.request("GET", f"/{bucket}"))  # and the connection is still good
        assert wire.answer().status == 200


def test_what_is_drained_is_bounded(house: House, root: Signer, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.http.pipeline.DRAIN", 1 << 20)
    target = f"/{bucket}/k?partNumber=1&uploadId=nope"
    with Wire(house.port) as wire:
        wire.send(head("PUT", target, root.headers("PUT", target, {"Content-Length": str(5 << 30)})))
        answer = wire.answer()
        assert answer.status == 404 and answer.headers["connection"] == "close"
        with pytest.raises(OSError):
            for _ in range(1000):
                wire.send(b"x" * (1 << 20))


@pytest.mark.parametrize("size", [100, 1 << 20])
@pytest.mark.parametrize("how", ["half_close", "reset"])
def test_b049_a_body_that_ends_early_stores_nothing(
    house: House, root: Signer, s3: Any, bucket: str, size: int, how: str
) -> None:
    s3.put_object(Bucket=bucket, Key="k", Body=b"before")
    house.wait(lambda: house.pipeline.in_flight == 0)
    ended = len(house.metrics.requests)
    wire = Wire(house.port)
    body = b"x" * (size // 10)
    wire.send(root.request("PUT", f"/{bucket}/k", body=body, payload="UNSIGNED-PAYLOAD", length=size))
    if how == "half_close":
        wire.half_close()
        answer = wire.answer()
        assert (answer.status, answer.code) == (400, "IncompleteBody")
        wire.close()
    else:
        house.wait(lambda: house.pipeline.in_flight == 1)
        wire.reset()
    house.wait(lambda: len(house.metrics.requests) > ended)
    assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == b"before"
    house.wait(lambda: not house.tiers["standard"].staging)
    house.wait(lambda: not house.run(house.pool.fetchval("SELECT count(*) FROM blob WHERE state = 1")))


def test_a_body_that_stalls_is_refused(worker_dsn: str, bucket: str) -> None:
    house = House(worker_dsn, body_timeout=0.3).start()
    try:
        root = signer(house.port, ROOT)
        with Wire(house.port) as wire:
            wire.send(root.request("PUT", f"/{bucket}/k", body=b"xx", payload="UNSIGNED-PAYLOAD", length=100))
            answer = wire.answer()
        assert (answer.status, answer.code) == (400, "RequestTimeout")
    finally:
        house.stop()


def test_b055_a_trickle_is_cut_and_an_honest_slow_link_is_not(worker_dsn: str, bucket: str) -> None:
    house = House(worker_dsn, body_timeout=5.0, min_rate=2000, min_rate_grace=0.5).start()
    try:
        root = signer(house.port, ROOT)

        def upload(key: str, piece: int, pause: float, pieces: int) -> tuple[int, str]:
            with Wire(house.port) as wire:
                size = piece * pieces
                wire.send(root.request("PUT", f"/{bucket}/{key}", payload="UNSIGNED-PAYLOAD", length=size))
                for _ in range(pieces):
                    wire.socket.settimeout(pause)
                    try:
                        wire.socket.recv(1, socket.MSG_PEEK)  # an answer came early: stop sending
                        break
                    except TimeoutError:
                        wire.socket.settimeout(20)
                        wire.send(b"x" * piece)
                wire.socket.settimeout(20)
                answer = wire.answer()
                return answer.status, answer.code

        results: dict[str, tuple[int, str]] = {}
        slow = threading.Thread(target=lambda: results.update(slow=upload("slow", 1, 0.05, 400)))
        steady = threading.Thread(target=lambda: results.update(steady=upload("steady", 1000, 0.02, 100)))
        slow.start(), steady.start()
        slow.join(30), steady.join(30)
        assert results == {"slow": (400, "RequestTimeout"), "steady": (200, "")}
    finally:
        house.stop()


def test_b053_two_lengths_are_refused_and_nothing_after_them_is_parsed(house: House, root: Signer, bucket: str) -> None:
    smuggled = root.request("PUT", f"/{bucket}/smuggled", body=b"x")
    headers = root.headers("PUT", f"/{bucket}/k", {"Content-Length": "5", "Transfer-Encoding": "chunked"})
    with Wire(house.port) as wire:
        wire.send(head("PUT", f"/{bucket}/k", headers) + b"0\r\n\r\n" + smuggled)
        answer = wire.answer()
        assert answer.status == 400 and answer.headers["connection"] == "close"
        assert b"<Error>" in answer.body
        assert wire.ended()


def test_broken_chunks_end_the_upload(house: House, root: Signer, s3: Any, bucket: str) -> None:
    headers = root.headers("PUT", f"/{bucket}/k", {"Transfer-Encoding": "chunked"})
    with Wire(house.port) as wire:
        house.wait(lambda: house.pipeline.in_flight == 0)
        wire.send(head("PUT", f"/{bucket}/k", headers) + b"5\r\nhello\r\n")
        house.wait(lambda: house.pipeline.in_flight == 1)
        wire.send(b"zz\r\n")
        answer = wire.answer()
        assert (answer.status, answer.code) == (400, "IncompleteBody")
    assert not exists(s3, bucket, "k")


def test_a_chunked_upload_needs_no_length(house: House, root: Signer, s3: Any, bucket: str) -> None:
    data = bytes(range(256)) * 400
    headers = root.headers("PUT", f"/{bucket}/k", {"Transfer-Encoding": "chunked"})
    body = b"".join(
        f"{len(data[i : i + 5000]):x}\r\n".encode() + data[i : i + 5000] + b"\r\n" for i in range(0, len(data), 5000)
    )
    with Wire(house.port) as wire:
        wire.send(head("PUT", f"/{bucket}/k", headers) + body + b"0\r\n\r\n")
        assert wire.answer().status == 200
    assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == data


def test_an_upload_without_any_length_is_411(house: House, root: Signer, bucket: str) -> None:
    with Wire(house.port) as wire:
        wire.send(head("PUT", f"/{bucket}/k", root.headers("PUT", f"/{bucket}/k")))
        answer = wire.answer()
    assert (answer.status, answer.code) == (411, "MissingContentLength")


def test_b055_two_hundred_slow_senders_do_not_hold_up_another(house: House, root: Signer, s3: Any, bucket: str) -> None:
    slow = [Wire(house.port) for _ in range(200)]
    try:
        for number, wire in enumerate(slow):
            wire.send(root.request("PUT", f"/{bucket}/slow{number}", payload="UNSIGNED-PAYLOAD", length=100_000))
            wire.send(b"x")
        house.wait(lambda: house.pipeline.in_flight >= 200)
        before = time.monotonic()
        s3.put_object(Bucket=bucket, Key="fast", Body=b"x" * 100_000)
        assert s3.get_object(Bucket=bucket, Key="fast")["Body"].read() == b"x" * 100_000
        assert time.monotonic() - before < 10
    finally:
        for wire in slow:
            wire.reset()
    house.wait(lambda: house.pipeline.in_flight == 0)
    house.wait(lambda: not house.tiers["standard"].staging)


# --- answers -----------------------------------------------------------------------------------------------------


def test_b051_head_errors_carry_no_body(house: House, root: Signer, s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="k", Body=b"there")
    with Wire(house.port) as wire:
        wire.send(root.request("HEAD", f"/{bucket}/missing"))
        assert wire.answer("HEAD").status == 404
        wire.send(root.request("GET", f"/{bucket}/k"))
        answer = wire.answer()
        assert (answer.status, answer.body) == (200, b"there")


def test_every_answer_has_its_ids(house: House, root: Signer, bucket: str) -> None:
    for target in (f"/{bucket}", f"/{bucket}/missing", "/?frob", "/-/x"):
        with Wire(house.port) as wire:
            wire.send(root.request("GET", target))
            answer = wire.answer()
            assert {"x-amz-request-id", "x-amz-id-2", "date", "server"} <= answer.headers.keys(), target
            if answer.status >= 400:
                assert f"<RequestId>{answer.headers['x-amz-request-id']}</RequestId>".encode() in answer.body


def test_requests_in_a_row_are_answered_in_order(house: House, root: Signer, s3: Any, bucket: str) -> None:
    requests = [root.request("PUT", f"/{bucket}/k{i}", body=str(i).encode()) for i in range(5)]
    requests += [root.request("GET", f"/{bucket}/k{i}") for i in range(5)]
    with Wire(house.port) as wire:
        wire.send(b"".join(requests))
        answers = [wire.answer() for _ in requests]
    assert [answer.status for answer in answers] == [200] * 10
    assert [answer.body for answer in answers[5:]] == [b"0", b"1", b"2", b"3", b"4"]


def test_a_request_that_is_half_closed_behind_is_still_answered(
    house: House, root: Signer, s3: Any, bucket: str
) -> None:
    s3.put_object(Bucket=bucket, Key="k", Body=b"x" * 300_000)
    with Wire(house.port) as wire:
        wire.send(root.request("GET", f"/{bucket}/k"))
        wire.half_close()
        assert len(wire.answer().body) == 300_000
        assert wire.ended()


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 40 + b"\r\n\r\n",
        b"GET /b/k\r\n\r\n",
        b"GET /b/\x01 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /b HTTP/1.1\r\n\r\n",
        b"FROB /b HTTP/1.1\r\nHost: x\r\n\r\n",
        b"PUT /b/k HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
    ],
)
def test_what_is_no_http_is_a_400_in_xml(house: House, garbage: bytes) -> None:
    with Wire(house.port) as wire:
        wire.send(garbage)
        answer = wire.answer()
        assert answer.status == 400 and b"<Error>" in answer.body and answer.headers["connection"] == "close"
        assert wire.ended()


def test_a_head_that_trickles_in_is_cut(worker_dsn: str) -> None:
    house = House(worker_dsn, header_timeout=0.3).start()
    try:
        with Wire(house.port) as wire:
            wire.send(b"GET /b HTTP/1.1\r\nHost: x\r\n")
            before = time.monotonic()
            assert wire.ended()
            assert time.monotonic() - before < 10
    finally:
        house.stop()


def test_http_1_0_closes_unless_asked(house: House, root: Signer, bucket: str) -> None:
    request = root.request("GET", f"/{bucket}").replace(b"HTTP/1.1", b"HTTP/1.0")
    with Wire(house.port) as wire:
        wire.send(request)
        assert wire.answer().status == 200
        assert wire.ended()


def test_over_the_limit_of_requests_is_slow_down(worker_dsn: str, s3: Any, bucket: str) -> None:
    house = House(worker_dsn, max_in_flight=2).start()
    try:
        s3.put_object(Bucket=bucket, Key="scan/wait", Body=b"x")
        waiting = [Wire(house.port) for _ in range(2)]
        root, other = signer(house.port, ROOT), signer(house.port, ROOT)
        with Wire(house.port) as wire:  # from now on the account is known: who is in flight has taken its place
            wire.send(root.request("GET", f"/{bucket}"))
            assert wire.answer().status == 200
        house.wait(lambda: house.pipeline.in_flight == 0)
        waiting[0].send(root.request("GET", f"/{bucket}/scan/wait"))
        house.wait(lambda: house.pipeline.in_flight == 1)
        with Wire(house.port) as wire:
            wire.send(other.request("GET", f"/{bucket}"))
            answer = wire.answer()
            assert (answer.status, answer.code) == (503, "SlowDown") and answer.headers["retry-after"]
        for each in waiting:
            each.close()
        house.wait(lambda: house.pipeline.in_flight == 0)  # a client that leaves frees its place
    finally:
        house.stop()


def test_a_reader_that_does_not_read_is_cut(worker_dsn: str, bucket: str) -> None:
    house = House(worker_dsn, body_timeout=0.3).start()
    try:
        root = signer(house.port, ROOT)
        house.client().put_object(Bucket=bucket, Key="k", Body=b"x" * (32 << 20))
        house.client().get_object(Bucket=bucket, Key="k", Range="bytes=0-0")["Body"].read()
        house.wait(lambda: house.pipeline.in_flight == 0)
        with Wire(house.port) as wire:
            wire.send(root.request("GET", f"/{bucket}/k"))
            house.wait(lambda: house.pipeline.in_flight == 1)
            house.wait(lambda: house.pipeline.in_flight == 0)
            with pytest.raises((ConnectionResetError, http.client.IncompleteRead)):
                wire.answer()
    finally:
        house.stop()


def test_going_down_lets_an_upload_end(worker_dsn: str, s3: Any, bucket: str) -> None:
    house = House(worker_dsn).start()
    root = signer(house.port, ROOT)
    idle, busy = Wire(house.port), Wire(house.port)
    idle.send(root.request("GET", f"/{bucket}"))
    assert idle.answer().status == 200
    request = root.request("PUT", f"/{bucket}/k", body=b"x" * 2_000_000)
    busy.send(request[:1_000_000])
    house.wait(lambda: house.pipeline.in_flight == 1)
    stopping = house.submit(house.listener.stop(10))
    assert idle.ended()
    busy.send(request[1_000_000:])
    answer = busy.answer()
    assert answer.status == 200 and answer.headers["connection"] == "close"
    assert busy.ended()
    stopping.result(10)
    house.stop()
    assert s3.head_object(Bucket=bucket, Key="k")["ContentLength"] == 2_000_000


# --- bodies as they are sent -------------------------------------------------------------------------------------


def test_a_gzip_body_is_stored_as_it_was_sent(house: House, root: Signer, s3: Any, bucket: str) -> None:
    packed = gzip.compress(b"hello" * 100)
    with Wire(house.port) as wire:
        wire.send(root.request("PUT", f"/{bucket}/k", {"Content-Encoding": "gzip"}, packed))
        assert wire.answer().status == 200
        wire.send(root.request("GET", f"/{bucket}/k"))
        answer = wire.answer()
    assert answer.body == packed and answer.headers["content-encoding"] == "gzip"


@pytest.mark.parametrize("sign", [True, False])
@pytest.mark.parametrize("trailer", [True, False])
@pytest.mark.parametrize("size", [500, 200_000])
def test_b035_no_framing_reaches_the_object(
    house: House, root: Signer, s3: Any, bucket: str, sign: bool, trailer: bool, size: int
) -> None:
    import zlib
    from base64 import b64encode

    data = b"\x1f\x8b" + bytes(i % 251 for i in range(size - 2))
    crc = b64encode(zlib.crc32(data).to_bytes(4, "big")).decode()
    pieces = [data[i : i + 65536] for i in range(0, size, 65536)]
    request = root.chunked(
        "PUT", f"/{bucket}/k", pieces, sign=sign, trailer=("x-amz-checksum-crc32", crc) if trailer else None
    )
    with Wire(house.port) as wire:
        for start in range(0, len(request), 30_011):  # cut where it suits nobody
            wire.send(request[start : start + 30_011])
        answer = wire.answer()
        assert answer.status == 200, answer.body
    got = s3.get_object(Bucket=bucket, Key="k")
    assert got["Body"].read() == data and got["ContentLength"] == size
    assert "ContentEncoding" not in got  # B025


def test_b027_a_wrong_trailing_checksum_is_bad_digest(house: House, root: Signer, s3: Any, bucket: str) -> None:
    request = root.chunked(
        "PUT", f"/{bucket}/k", [b"x" * 50_000], sign=False, trailer=("x-amz-checksum-crc64nvme", "AAAAAAAAAAA=")
    )
    with Wire(house.port) as wire:
        wire.send(request)
        answer = wire.answer()
    assert (answer.status, answer.code) == (400, "BadDigest")
    assert not exists(s3, bucket, "k")
    house.wait(lambda: not house.tiers["standard"].staging)


def test_b029_an_unsigned_trailer_body_without_any_trailer_is_taken(house: House, root: Signer, bucket: str) -> None:
    with Wire(house.port) as wire:
        wire.send(root.chunked("PUT", f"/{bucket}/k", [b"hello"], sign=False))
        answer = wire.answer()
    assert answer.status == 200 and answer.headers["x-amz-checksum-crc64nvme"]


def test_b033_a_signed_trailer_needs_its_signature(house: House, root: Signer, bucket: str) -> None:
    trailer = ("x-amz-checksum-crc32", "NhCmhg==")  # of "hello"
    with Wire(house.port) as wire:
        wire.send(root.chunked("PUT", f"/{bucket}/k", [b"hello"], trailer=trailer, sign_trailer=False))
        assert 400 <= wire.answer().status < 500


def test_b023_a_decoded_length_on_a_plain_body_means_nothing(house: House, root: Signer, s3: Any, bucket: str) -> None:
    with Wire(house.port) as wire:
        wire.send(root.request("PUT", f"/{bucket}/k", {"x-amz-decoded-content-length": "500"}, b"hello"))
        assert wire.answer().status == 200
    assert s3.head_object(Bucket=bucket, Key="k")["ContentLength"] == 5
