"""Bodies off the event loop: sendfile on the way out, threads on the way in, and whatever goes wrong meanwhile."""

from __future__ import annotations

import hashlib
import os
import random
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from gateway.http import body as body_module
from gateway.http import offload
from storage_tiers.file import FileTier
from storage_tiers.file_ends import FileSink
from storage_tiers.tier import TierFull
from tests.operations.house import ROOT, House
from tests.signing import Signer
from tests.wire.raw import Wire, signer

MIB = 1 << 20
SIZE = 12 * MIB
DATA = random.Random(7).randbytes(SIZE)
CROWD = 200


class Files(House):
    """A house whose standard tier is a folder."""

    def __init__(self, dsn: str, folder: Path, **settings: Any) -> None:
        super().__init__(dsn, **settings)
        self.folder = folder
        self.tiers = {"standard": FileTier("standard", folder)}  # type: ignore[dict-item]

    async def _start(self) -> None:
        await self.tiers["standard"].start()  # type: ignore[attr-defined]
        await super()._start()

    def held(self) -> int:
        """Descriptors of its connections and of its tier's files."""
        process = psutil.Process()
        sockets = [each for each in process.net_connections("tcp") if each.laddr.port == self.port]
        files = [each for each in process.open_files() if each.path.startswith(str(self.folder))]
        return len([each for each in sockets if each.status != psutil.CONN_LISTEN]) + len(files)

    def settled(self) -> None:
        """Nothing is served, and nothing of it is left open."""
        self.wait(lambda: self.pipeline.in_flight == 0)
        self.wait(lambda: self.held() == 0)

    def blobs(self) -> list[Path]:
        return sorted(self.folder.glob("??/*"))


class Seen:
    """What left and came by threads: bodies, pieces."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.outlets, self.pieces = 0, 0
        send, take = offload.Outlet.send, offload.Intake.next

        async def counted_send(outlet: offload.Outlet, limits: Any) -> bool:
            self.outlets += 1
            return await send(outlet, limits)

        async def counted_next(intake: offload.Intake) -> memoryview | None:
            piece = await take(intake)
            self.pieces += piece is not None
            return piece

        monkeypatch.setattr(offload.Outlet, "send", counted_send)
        monkeypatch.setattr(offload.Intake, "next", counted_next)


@pytest.fixture(scope="module")
def files(worker_dsn: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Files]:
    made = Files(worker_dsn, tmp_path_factory.mktemp("tier"), body_timeout=2.0)
    made.start()
    yield made
    made.stop()


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    return Seen(monkeypatch)


@pytest.fixture
def any_sender(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every sender counts as fast enough, whatever else this machine does."""
    monkeypatch.setattr(offload, "FAST", 1)
    monkeypatch.setattr(body_module, "FAST", 1)


@pytest.fixture
def root(files: Files) -> Signer:
    return signer(files.port, ROOT)


@pytest.fixture(autouse=True)
def _nothing_left(files: Files) -> Iterator[None]:
    yield
    files.settled()
    crews = files.pipeline._offload
    for crew in (crews.senders, crews.receivers):
        assert crew._busy == 0 and len(crew._pool._threads) <= offload.THREADS


@pytest.fixture
def place(files: Files, root: Signer) -> str:
    """A bucket, in which ``big`` is DATA."""
    name = f"off-{os.getpid()}-{time.monotonic_ns()}"
    with Wire(files.port) as wire:
        wire.send(root.request("PUT", f"/{name}"))
        assert wire.answer().status == 200
        wire.send(put(root, f"/{name}/big"))
        assert wire.answer().status == 200
    return name


def put(root: Signer, target: str, data: bytes = DATA, length: int | None = None) -> bytes:
    return root.request("PUT", target, body=data, payload="UNSIGNED-PAYLOAD", length=length)


# --- out -------------------------------------------------------------------------------------------------------------


def test_get_by_sendfile_is_whole_and_keeps_the_connection(files: Files, root: Signer, place: str, seen: Seen) -> None:
    with Wire(files.port) as wire:
        for _ in range(3):
            wire.send(root.request("GET", f"/{place}/big"))
            answer = wire.answer()
            assert answer.status == 200 and answer.body == DATA
            assert "connection" not in answer.headers
        wire.send(root.request("HEAD", f"/{place}/big"))
        assert wire.answer("HEAD").headers["content-length"] == str(SIZE)
    assert seen.outlets == 3


@pytest.mark.parametrize(
    ("first", "last"), [(0, MIB - 1), (1, MIB), (4095, 3 * MIB + 1), (SIZE - offload.SEND_LEAST, SIZE - 1)]
)
def test_ranges_by_sendfile(files: Files, root: Signer, place: str, seen: Seen, first: int, last: int) -> None:
    with Wire(files.port) as wire:
        wire.send(root.request("GET", f"/{place}/big", {"Range": f"bytes={first}-{last}"}))
        answer = wire.answer()
    assert answer.status == 206 and answer.body == DATA[first : last + 1]
    assert seen.outlets == 1


def test_small_ranges_take_the_ordinary_path(files: Files, root: Signer, place: str, seen: Seen) -> None:
    with Wire(files.port) as wire:
        wire.send(root.request("GET", f"/{place}/big", {"Range": f"bytes=5-{offload.SEND_LEAST}"}))
        assert wire.answer().body == DATA[5 : offload.SEND_LEAST + 1]
    assert seen.outlets == 0


def test_pipelined_gets(files: Files, root: Signer, place: str) -> None:
    with Wire(files.port) as wire:
        wire.send(root.request("GET", f"/{place}/big") * 3)
        assert all(wire.answer().body == DATA for _ in range(3))


def test_a_file_system_without_splice(
    files: Files, root: Signer, place: str, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: int) -> int:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(offload.os, "sendfile", refuse)
    with Wire(files.port) as wire:
        wire.send(root.request("GET", f"/{place}/big"))
        assert wire.answer().body == DATA
    assert seen.outlets == 1


def test_when_the_threads_are_taken_the_ordinary_path_serves(
    files: Files, root: Signer, place: str, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files.pipeline._offload.senders, "_queue", 0)
    monkeypatch.setattr(files.pipeline._offload.receivers, "_queue", 0)
    with Wire(files.port) as wire:
        wire.send(put(root, f"/{place}/other"))
        assert wire.answer().status == 200
        wire.send(root.request("GET", f"/{place}/other"))
        assert wire.answer().body == DATA
    assert (seen.outlets, seen.pieces) == (0, 0)


def started(files: Files, root: Signer, target: str) -> Wire:
    """A GET whose reader has stopped after the first bytes."""
    wire = Wire(files.port)
    wire.send(root.request("GET", target))
    assert wire.line().endswith(b"200 OK")
    return wire


def test_a_file_that_ends_early_never_looks_whole(files: Files, root: Signer, place: str) -> None:
    blob = max(files.blobs(), key=lambda path: path.stat().st_mtime)
    wire = started(files, root, f"/{place}/big")
    time.sleep(0.2)  # the socket's buffers fill up
    os.truncate(blob, 11 * MIB)
    rest = rest_of(wire)
    assert len(rest) <= 11 * MIB + 2000
    files.wait(lambda: files.metrics.requests[-1][0] == "GetObject")
    wire.close()


def rest_of(wire: Wire) -> bytes:
    pieces = []
    try:
        while data := wire.file.read1(MIB):
            pieces.append(data)
    except ConnectionResetError:
        pass
    return b"".join(pieces)


def test_a_read_error_after_the_head_cuts_the_connection(
    files: Files, root: Signer, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.sendfile

    def fail(out: int, file: int, offset: int, count: int) -> int:
        if offset >= 2 * MIB:
            raise OSError(5, "Input/output error")
        return real(out, file, offset, count)

    monkeypatch.setattr(offload.os, "sendfile", fail)
    with started(files, root, f"/{place}/big") as wire:
        assert len(rest_of(wire)) < 4 * MIB


def test_a_thread_that_learns_first_of_a_reset(
    files: Files, root: Signer, place: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: int) -> int:
        raise ConnectionResetError(104, "Connection reset by peer")

    monkeypatch.setattr(offload.os, "sendfile", fail)
    with started(files, root, f"/{place}/big") as wire:
        assert b"HTTP/1.1 500" not in rest_of(wire)
        files.settled()
    assert files.metrics.requests[-1][:2] == ("GetObject", 499)
    assert "outside the pipeline" not in capfd.readouterr().err


def test_a_file_that_cannot_be_read_is_told(
    files: Files, root: Signer, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pread

    def fail(fd: int, count: int, offset: int) -> bytes:
        if offset == 0:
            raise OSError(5, "Input/output error")
        return real(fd, count, offset)

    monkeypatch.setattr(offload.os, "pread", fail)
    with Wire(files.port) as wire:
        wire.send(root.request("GET", f"/{place}/big"))
        assert wire.answer().status in (500, 503)
        wire.send(root.request("GET", f"/{place}"))
        assert wire.answer().status == 200


def test_a_reader_that_stands_still_is_cut(files: Files, root: Signer, place: str, seen: Seen) -> None:
    with started(files, root, f"/{place}/big") as wire:
        files.wait(lambda: files.pipeline.in_flight == 0)
        assert len(rest_of(wire)) < SIZE
    assert seen.outlets == 1


@pytest.mark.parametrize("how", ["close", "reset"])
def test_a_reader_that_leaves(files: Files, root: Signer, place: str, how: str) -> None:
    wire = started(files, root, f"/{place}/big")
    seen_before = len(files.metrics.requests)
    getattr(wire, how)()
    files.settled()
    assert [status for _, status, _ in files.metrics.requests[seen_before:]] == [499]


def test_a_reader_that_half_closes_gets_all(files: Files, root: Signer, place: str) -> None:
    with Wire(files.port) as wire:
        wire.send(root.request("GET", f"/{place}/big"))
        wire.half_close()
        assert wire.answer().body == DATA
        assert wire.ended()


def test_a_crowd_of_slow_readers_starves_nobody(files: Files, root: Signer, place: str, seen: Seen) -> None:
    crowd = [Wire(files.port) for _ in range(CROWD)]
    try:
        for each in crowd:
            each.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            each.send(root.request("GET", f"/{place}/big"))
        files.wait(lambda: files.pipeline.in_flight >= CROWD // 2)
        before = files.pipeline.in_flight
        began = time.monotonic()
        with Wire(files.port) as wire:
            wire.send(root.request("GET", f"/{place}/big"))
            assert wire.answer().body == DATA
        assert time.monotonic() - began < 15
        assert before >= CROWD // 2
    finally:
        for each in crowd:
            each.close()


# --- in --------------------------------------------------------------------------------------------------------------


def test_put_by_threads_is_whole_and_keeps_the_connection(
    files: Files, root: Signer, place: str, seen: Seen, any_sender: None
) -> None:
    with Wire(files.port) as wire:
        for number in range(2):
            wire.send(put(root, f"/{place}/k{number}"))
            answer = wire.answer()
            assert answer.status == 200 and "connection" not in answer.headers
            assert answer.headers["etag"] == f'"{hashlib.md5(DATA).hexdigest()}"'
            wire.send(root.request("GET", f"/{place}/k{number}"))
            assert wire.answer().body == DATA
    assert seen.pieces >= 10


def test_the_next_request_may_follow_at_once(
    files: Files, root: Signer, place: str, seen: Seen, any_sender: None
) -> None:
    other = DATA[MIB:]
    with Wire(files.port) as wire:
        asked = put(root, f"/{place}/a") + put(root, f"/{place}/b", other) + root.request("GET", f"/{place}/missing")
        sender = threading.Thread(target=wire.send, args=(asked,))
        sender.start()
        assert [wire.answer().status for _ in range(3)] == [200, 200, 404]
        sender.join()
        for key, data in (("a", DATA), ("b", other)):
            wire.send(root.request("GET", f"/{place}/{key}"))
            assert wire.answer().body == data
    assert seen.pieces >= 10


def test_expect(files: Files, root: Signer, place: str, seen: Seen, any_sender: None) -> None:
    with Wire(files.port) as wire:
        target = f"/{place}/k"
        wire.send(root.request("PUT", target, {"Expect": "100-continue"}, payload="UNSIGNED-PAYLOAD", length=SIZE))
        assert wire.line() == b"HTTP/1.1 100 Continue" and wire.line() == b""
        wire.send(DATA)
        assert wire.answer().status == 200
        wire.send(root.request("GET", target))
        assert wire.answer().body == DATA
    assert seen.pieces


@pytest.mark.parametrize("cut", [0, 100_000, SIZE // 2, SIZE - 1])
@pytest.mark.parametrize("how", ["half_close", "reset"])
def test_a_body_that_breaks_off_stores_nothing(
    files: Files, root: Signer, place: str, seen: Seen, any_sender: None, cut: int, how: str
) -> None:
    before = files.blobs()
    wire = Wire(files.port)
    wire.send(put(root, f"/{place}/k", DATA[:cut], SIZE))
    if how == "half_close":
        wire.half_close()
        answer = wire.answer()
        assert (answer.status, answer.code) == (400, "IncompleteBody")
        assert wire.ended()
        wire.close()
    else:
        if cut > MIB:
            files.wait(lambda: seen.pieces > 0)
        wire.reset()
    files.settled()
    assert files.blobs() == before
    assert (seen.pieces > 0) == (cut > MIB)
    with Wire(files.port) as wire:
        wire.send(root.request("HEAD", f"/{place}/k"))
        assert wire.answer("HEAD").status == 404


def test_a_sender_that_stands_still_is_cut(files: Files, root: Signer, place: str, seen: Seen) -> None:
    before = files.blobs()
    with Wire(files.port) as wire:
        wire.send(put(root, f"/{place}/k", DATA[: SIZE // 2], SIZE))
        answer = wire.answer()
        assert (answer.status, answer.code) == (400, "RequestTimeout")
    files.settled()
    assert files.blobs() == before


def test_a_sender_that_slows_down_is_handed_back(
    files: Files, root: Signer, place: str, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body_module, "FAST", 1)
    with Wire(files.port) as wire:
        sent = put(root, f"/{place}/k")
        middle = len(sent) - SIZE // 2
        wire.send(sent[:middle])
        for offset in range(middle, middle + 10):
            time.sleep(0.12)
            wire.send(sent[offset : offset + 1])
        assert seen.pieces and files.pipeline._offload.intakes == offload.INTAKES
        wire.send(sent[middle + 10 :])
        assert wire.answer().status == 200
        wire.send(root.request("GET", f"/{place}/k"))
        assert wire.answer().body == DATA


def test_a_full_disk_is_told_and_the_connection_goes_on(
    files: Files, root: Signer, place: str, seen: Seen, any_sender: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, before = FileSink.write, files.blobs()

    def write(sink: FileSink, data: bytes) -> None:
        if sink._written > 4 * MIB:
            raise TierFull("no space left")
        real(sink, data)

    monkeypatch.setattr(FileSink, "write", write)
    with Wire(files.port) as wire:
        wire.send(put(root, f"/{place}/k"))
        assert wire.answer().status >= 500
        wire.send(root.request("GET", f"/{place}/big"))
        assert wire.answer().body == DATA
    assert seen.pieces
    files.settled()
    assert files.blobs() == before


def test_a_crowd_of_slow_senders_starves_nobody(
    files: Files, root: Signer, place: str, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body_module, "RECEIVE_LEAST", 64 << 10)
    monkeypatch.setattr(body_module, "FAST", 1)
    crowd = [Wire(files.port) for _ in range(CROWD)]
    ended = threading.Event()

    def trickle() -> None:
        while not ended.wait(1.0):
            for each in crowd:
                each.send(b"x")

    slow = threading.Thread(target=trickle)
    try:
        for number, each in enumerate(crowd):
            each.send(put(root, f"/{place}/slow{number}", DATA[: 128 << 10], SIZE))
        slow.start()
        files.wait(lambda: files.pipeline.in_flight == CROWD)
        with Wire(files.port) as wire:
            began = time.monotonic()
            wire.send(put(root, f"/{place}/k"))
            assert wire.answer().status == 200
            wire.send(root.request("GET", f"/{place}/k"))
            assert wire.answer().body == DATA
            assert time.monotonic() - began < 15
        files.wait(lambda: files.pipeline._offload.intakes == offload.INTAKES)
        assert files.pipeline.in_flight == CROWD
    finally:
        ended.set()
        slow.join()
        for each in crowd:
            each.close()


# --- the server goes down --------------------------------------------------------------------------------------------


def test_bodies_on_their_way_are_waited_for_and_cut_in_the_end(
    worker_dsn: str, tmp_path: Path, seen: Seen, any_sender: None
) -> None:
    house = Files(worker_dsn, tmp_path)
    house.start()
    root = signer(house.port, ROOT)
    place = f"down-{os.getpid()}"
    with Wire(house.port) as wire:
        wire.send(root.request("PUT", f"/{place}"))
        assert wire.answer().status == 200
        wire.send(put(root, f"/{place}/big"))
        assert wire.answer().status == 200
    reading, stuck = (started(house, root, f"/{place}/big") for _ in range(2))
    sent = put(root, f"/{place}/k")
    sending, standing = Wire(house.port), Wire(house.port)
    pieces = seen.pieces
    for each in (sending, standing):
        each.send(sent[: SIZE // 2])
    house.wait(lambda: seen.pieces >= pieces + 4)
    stopping = house.submit(house.listener.stop(4.0))
    house.wait(lambda: house.listener._server is not None and house.listener._server.ending)
    assert rest_of(reading).endswith(DATA[-1000:])
    sending.send(sent[SIZE // 2 :])
    answer = sending.answer()
    assert answer.status == 200 and answer.headers["connection"] == "close"
    stopping.result(15)
    assert len(rest_of(stuck)) < SIZE
    assert standing.ended()
    house.settled()
    for each in (reading, stuck, sending, standing):
        each.close()
    assert len([path for path in house.blobs() if path.suffix == ".part"]) == 0
    house.stop()
