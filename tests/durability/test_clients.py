"""What users of real SDKs see of killed processes and of a shutdown: nothing, and an end in good order."""

from __future__ import annotations

import asyncio
import contextlib
import filecmp
import hashlib
import io
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
import boto3
import psutil
import pytest
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import ClientError, ConnectionClosedError, EndpointConnectionError, ReadTimeoutError

from tests.durability.pair import ONCE
from tests.server import Server, StartServer
from tests.signing import Signer
from tests.wire.raw import Wire

MIB = 1 << 20
SETTINGS = {
    "SLUICE_ENGINE_TTL": "3",
    "SLUICE_ENGINE_HEARTBEAT": "0.3",
    "SLUICE_ENGINE_MAX_RECOVERIES": "100",
}
LARGE = 24 * MIB
KILLS = 5
DRAIN = 10.0  # as make_server has it


def defaults(server: Server) -> Any:
    """boto3 as users have it: its own retries."""
    return boto3.client(
        "s3",
        endpoint_url=server.endpoint,
        aws_access_key_id=server.access_key,
        aws_secret_access_key=server.secret_key,
        region_name="us-east-1",
        config=Config(s3={"addressing_style": "path"}),
    )


def aws(server: Server, *words: str) -> None:
    """The aws program as users have it. Raises when it fails."""
    environment = {name: value for name, value in server.aws_environment().items() if name != "AWS_MAX_ATTEMPTS"}
    done = subprocess.run(
        [str(Path(sys.executable).parent / "aws"), *words],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr


@dataclass
class Killer:
    """Kills a serving process whenever the users have got so much further."""

    server: Server
    done: int = 0  # steps of the users
    kills: int = 0
    over: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def step(self) -> None:
        with self.lock:
            self.done += 1

    def run(self) -> None:
        while self.kills < KILLS and not self.over.is_set():
            reached, began = self.done + 3, time.monotonic()
            while self.done < reached and time.monotonic() - began < 2 and not self.over.is_set():
                time.sleep(0.01)
            for child in self.server.children()[self.kills % 2 :][:1]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
                    self.kills += 1


def small(server: Server, killer: Killer, number: int, enough: Callable[[], bool]) -> None:
    """Writes, overwrites, reads and deletes, each read compared."""
    s3 = defaults(server)
    turn = 0
    while not enough():
        key = f"small-{number}-{turn % 4}"
        body = os.urandom(5000 + 40_000 * (turn % 2))
        s3.put_object(Bucket="sdk", Key=key, Body=body)
        sink = io.BytesIO()
        s3.download_fileobj("sdk", key, sink)
        assert sink.getvalue() == body, key
        if turn % 4 == 3:
            s3.delete_object(Bucket="sdk", Key=key)
        turn += 1
        killer.step()


def large(server: Server, killer: Killer, source: Path, folder: Path, enough: Callable[[], bool]) -> None:
    """Multipart up, ranges down, by boto3's transfer manager."""
    s3 = defaults(server)
    config = TransferConfig(multipart_threshold=5 * MIB, multipart_chunksize=5 * MIB, max_concurrency=4)
    turn = 0
    while not enough():
        s3.upload_file(str(source), "sdk", "large", Config=config)
        killer.step()
        s3.download_file("sdk", "large", str(folder / "large"), Config=config)
        assert filecmp.cmp(source, folder / "large", shallow=False)
        killer.step()
        turn += 1


def program(server: Server, killer: Killer, source: Path, folder: Path, enough: Callable[[], bool]) -> None:
    """The same by the aws program."""
    while not enough():
        aws(server, "s3", "cp", str(source), "s3://sdk/program")
        killer.step()
        aws(server, "s3", "cp", "s3://sdk/program", str(folder / "program"))
        assert filecmp.cmp(source, folder / "program", shallow=False)
        killer.step()


def test_users_of_sdks_see_nothing_of_killed_processes(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server(SETTINGS, workers=2)
    defaults(server).create_bucket(Bucket="sdk")
    source = tmp_path / "source"
    source.write_bytes(os.urandom(LARGE))
    killer = Killer(server)

    def enough() -> bool:
        return killer.kills >= KILLS or killer.over.is_set()

    with ThreadPoolExecutor(5) as pool:
        users = [pool.submit(small, server, killer, number, enough) for number in range(2)]
        users.append(pool.submit(large, server, killer, source, tmp_path, enough))
        users.append(pool.submit(program, server, killer, source, tmp_path, enough))
        killing = pool.submit(killer.run)
        try:
            for user in users:
                user.result()
        finally:
            killer.over.set()
        killing.result()
    assert killer.kills == KILLS
    deaths = [row for row in server.logs() if row.get("event") == "a serving process ended"]
    assert len(deaths) >= KILLS - 1
    assert not [row for row in server.logs() if row.get("status") == 500]


# --- going down ---------------------------------------------------------------------------------------------------


@dataclass
class Writer:
    """Uploads one key after the other until the server is gone, and remembers what was acknowledged."""

    server: Server
    number: int
    acknowledged: dict[str, str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def run(self) -> None:
        s3 = self.server.client(**ONCE, connect_timeout=2)
        turn = 0
        while True:
            key, body = f"w{self.number}-{turn}", os.urandom(3000 if turn % 3 else 400_000)
            try:
                s3.put_object(Bucket="down", Key=key, Body=body)
            except (EndpointConnectionError, ConnectionClosedError):
                return  # refused, or its idle connection was closed: nobody was told that it is stored
            except (ClientError, ReadTimeoutError, OSError) as error:
                self.wrong.append(repr(error))
                return
            self.acknowledged[key] = hashlib.sha256(body).hexdigest()
            turn += 1


def test_term_under_load_ends_in_good_order(start_server: StartServer) -> None:
    server = start_server(SETTINGS, workers=2)
    s3 = server.client()
    s3.create_bucket(Bucket="down")
    port = int(server.endpoint.rpartition(":")[2])
    signer = Signer(server.access_key, server.secret_key, f"127.0.0.1:{port}")
    bodies = [os.urandom(200_000) for _ in range(8)]
    wires, idle = [Wire(port, timeout=30) for _ in bodies], Wire(port)
    idle.send(signer.request("GET", "/down"))
    assert idle.answer().status == 200
    whole = [signer.request("PUT", f"/down/flying{n}", body=body) for n, body in enumerate(bodies)]
    for wire, request in zip(wires, whole, strict=True):
        wire.send(request[:-100_000])
    writers = [Writer(server, number) for number in range(4)]
    threads = [threading.Thread(target=writer.run) for writer in writers]
    for thread in threads:
        thread.start()
    wait(lambda: sum(len(writer.acknowledged) for writer in writers) > 30, "the writers do not get on")
    wait(lambda: server.metrics().get("sluice_s3_in_flight", 0) >= len(wires), "the uploads are not under way")
    assert server.process is not None
    server.process.terminate()
    began = time.monotonic()
    server.wait_log(lambda row: row.get("event") == "stopping")
    assert idle.ended(), "an idle connection is closed"
    for wire, request in zip(wires, whole, strict=True):
        wire.send(request[-100_000:])
    for wire in wires:
        answer = wire.answer()
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert wire.ended()
    assert server.process.wait(60) == 0  # stop() would ask a second time, which means at once
    server.process = None
    took = time.monotonic() - began
    for thread in threads:
        thread.join(30)
    with pytest.raises(ConnectionRefusedError):
        Wire(port)
    assert not [error for writer in writers for error in writer.wrong]
    assert took < DRAIN + 10, "it waited for nothing"

    handed = asyncio.run(runs(server))
    kept = [row for row in handed if row["state"] == 2 or row["recoveries"]]
    said = [row for row in server.logs() if row.get("event") not in ("request", "step", "run")]
    assert not kept, f"{len(kept)} of {len(handed)} runs were not handed back: {said[-20:]}"

    server.start()
    s3 = defaults(server)  # what was handed back is processed now: reads may have to wait for it
    for writer in writers:
        for key, digest in writer.acknowledged.items():
            assert hashlib.sha256(s3.get_object(Bucket="down", Key=key)["Body"].read()).hexdigest() == digest, key
    for number, body in enumerate(bodies):
        assert s3.get_object(Bucket="down", Key=f"flying{number}")["Body"].read() == body


def test_term_is_quick_after_a_killed_process(start_server: StartServer) -> None:
    """Its runs wait for children of their own, one interpreter each: going down does not wait for all of them."""
    server = start_server(SETTINGS, workers=2)
    s3 = server.client(**ONCE)
    s3.create_bucket(Bucket="down")

    def write(number: int) -> None:
        with contextlib.suppress(EndpointConnectionError, ConnectionClosedError):
            s3.put_object(Bucket="down", Key=f"k{number}", Body=os.urandom(50_000))

    with ThreadPoolExecutor(16) as pool:
        work = [pool.submit(write, number) for number in range(200)]
        wait(lambda: sum(each.done() for each in work) > 60, "the writers do not get on")
        for child in server.children():
            child.kill()
        for each in work:
            each.result()
    with contextlib.suppress(AssertionError):
        server.wait_log(lambda row: row.get("event") == "run-isolated", 20)
    began = time.monotonic()
    assert server.stop() == 0
    assert time.monotonic() - began < DRAIN
    server.start()


async def runs(server: Server) -> list[asyncpg.Record]:
    conn = await asyncpg.connect(server.database)
    try:
        return list(await conn.fetch("SELECT state, recoveries, epoch FROM workflow_run"))
    finally:
        await conn.close()


def wait(check: Callable[[], Any], what: str, patience: float = 60.0) -> None:
    deadline = time.monotonic() + patience
    while not check():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)
