"""Metrics that do not grow with traffic, and logs that keep secrets."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import structlog

from gateway.policy import policy_of
from gateway.settings import Settings
from gateway.telemetry import logs
from gateway.telemetry.metrics import TABLE, Metrics, exposition


def series(page: bytes) -> set[str]:
    return {line.rpartition(" ")[0] for line in page.decode().splitlines() if line and not line.startswith("#")}


def test_b225_series_do_not_grow_with_what_clients_make_up() -> None:
    metrics = Metrics(policy_of(Settings()).vocabulary)

    def traffic(i: int) -> None:
        metrics.request_started()
        metrics.request_ended(f"FOO{i}", 404, f"Code{i}", 0.1, 0.05, 10, 10)
        metrics.request_started()
        metrics.request_ended("GetObject", 404, "NoSuchKey", 0.1, 0.05, 10, 10)
        metrics.auth_failed(f"reason {i}")
        metrics.run(f"workflow {i}", "failed", 1.0)
        metrics.step(f"step {i}", "ok", 1.0)
        metrics.retry(f"step {i}")
        metrics.verdict("quarantined", f"own reason {i}")
        metrics.error(f"scanner {i}")

    traffic(0)
    before = series(exposition(metrics, {}))
    for i in range(1, 10_000):
        traffic(i)
    assert series(exposition(metrics, {})) == before


def test_every_metric_of_the_table_can_be_reported() -> None:
    metrics = Metrics(policy_of(Settings()).vocabulary)
    metrics.request_started()
    metrics.request_ended("PutObject", 200, None, 0.1, 0.05, 10, 10)
    metrics.request_ended("PutObject", 403, "AccessDenied", 0.1, 0.05, 10, 10)
    metrics.auth_failed("SignatureDoesNotMatch")
    metrics.run("post_upload", "completed", 1.0)
    metrics.step("scan_malware", "completed", 1.0)
    metrics.retry("scan_malware")
    metrics.verdict("quarantined", "malware")
    metrics.recovery("reaped", 2)
    metrics.tier_operation("standard", "open", "ok", 0.1)
    metrics.blob_damaged("standard", "missing")
    metrics.scrubbed(10)
    metrics.pool(1, 2)
    metrics.held(1, 2)
    metrics.scanned("clean", 0.1, 10)
    metrics.error("timeout")
    asked = {row.name: [(("x",) * len(row.labels), 1.0)] for row in TABLE if row.kind == "scraped"}
    names = {each.partition("{")[0].partition(" ")[0] for each in series(exposition(metrics, asked))}
    for row in TABLE:
        assert row.name in names or f"{row.name}_count" in names, row.name
    assert 'reason="malware"' in exposition(metrics, {}).decode()


CHILD = """
import sys
from gateway.policy import policy_of
from gateway.settings import Settings
from gateway.telemetry.metrics import Metrics, exposition
metrics = Metrics(policy_of(Settings()).vocabulary)
metrics.request_started()
metrics.request_ended("PutObject", 200, None, 0.1, 0.05, 10, 10)
metrics.request_started()
if len(sys.argv) > 1:
    sys.stdout.buffer.write(exposition(metrics, {}))
"""


def test_processes_are_added_up_and_the_dead_ones_are_in_flight_no_more(tmp_path: Path) -> None:
    from gateway.cli.serve import _forget

    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    child = subprocess.Popen([sys.executable, "-c", CHILD], env=environment)
    assert child.wait(60) == 0
    page = subprocess.check_output([sys.executable, "-c", CHILD, "show"], env=environment, text=True, timeout=60)
    assert 'sluice_s3_requests_total{code="200",operation="PutObject"} 2.0' in page
    assert "sluice_s3_in_flight 2.0" in page
    _forget(tmp_path)(child.pid)
    page = subprocess.check_output([sys.executable, "-c", CHILD, "show"], env=environment, text=True, timeout=60)
    assert 'sluice_s3_requests_total{code="200",operation="PutObject"} 3.0' in page
    assert "sluice_s3_in_flight 2.0" in page, "the second's and the third's"


def test_log_lines_are_json_and_hide_secrets(capfd: pytest.CaptureFixture[str]) -> None:
    import logging

    logs.configure("info", "json", "3")
    structlog.get_logger().info("request", key=b"a\xff", secret_key="hunter2", Authorization="AWS4 hunter2", bucket="b")
    structlog.get_logger().debug("not shown")
    logging.getLogger("aiohttp").warning("from the library")
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert lines[0]["key"] == "a\\xff"
    assert lines[0]["process"] == "3"
    assert "hunter2" not in json.dumps(lines)
    assert [line["event"] for line in lines] == ["request", "from the library"]


def test_a_log_that_cannot_be_written_fails_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    full = Path("/dev/full").open("w")  # noqa: SIM115 - closing it fails too
    monkeypatch.setattr("sys.stderr", full)
    logs.configure("info", "json")
    structlog.get_logger().info("request", status=200)
    with contextlib.suppress(OSError):
        full.close()
    structlog.get_logger().info("request", status=200)


class Told(io.TextIOWrapper):
    """A stream that remembers what each write brought."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.wrote = asyncio.Event()
        outer = self

        class Buffer(io.BytesIO):
            def write(self, data: object) -> int:
                outer.writes.append(bytes(data))  # type: ignore[call-overload]
                outer.wrote.set()
                return len(outer.writes[-1])

        super().__init__(Buffer())


def test_lines_of_one_moment_leave_in_one_write() -> None:
    async def main() -> None:
        stream = Told()
        lines = logs.Lines(stream)
        lines.info(b"one")
        lines.info("two")
        assert stream.writes == []
        await asyncio.wait_for(stream.wrote.wait(), 10)
        assert stream.writes == [b"one\ntwo\n"]
        stream.wrote.clear()
        lines.info(b"three")
        await asyncio.wait_for(stream.wrote.wait(), 10)
        assert stream.writes[1:] == [b"three\n"]

    asyncio.run(main())


def test_a_warning_leaves_at_once_and_what_was_held_before_it() -> None:
    async def main() -> None:
        stream = Told()
        lines = logs.Lines(stream)
        lines.info(b"request")
        lines.warning(b"damaged")
        assert stream.writes == [b"request\ndamaged\n"]
        lines.info(b"request")
        lines.error(b"broken")
        assert stream.writes[1:] == [b"request\nbroken\n"]

    asyncio.run(main())


def test_without_a_loop_every_line_leaves_at_once() -> None:
    stream = Told()
    lines = logs.Lines(stream)
    lines.info(b"one")
    lines.info(b"two")
    assert stream.writes == [b"one\n", b"two\n"]


def test_a_line_held_by_a_loop_that_ended_leaves_with_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Told()
    lines = logs.Lines(stream)

    async def request() -> None:
        lines.info(b"request")

    asyncio.run(request())
    assert stream.writes == []
    late = time.monotonic() + 2 * logs.HOLD
    monkeypatch.setattr("time.monotonic", lambda: late)
    lines.info(b"stopped")
    assert stream.writes == [b"request\nstopped\n"]


def test_threads_lose_no_line() -> None:
    async def main() -> None:
        stream = Told()
        lines = logs.Lines(stream)

        def write(name: int) -> None:
            for i in range(1000):
                lines.info(f"{name} {i}")

        threads = [threading.Thread(target=write, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        write(4)
        for thread in threads:
            thread.join()
        lines.flush()
        written = b"".join(stream.writes).decode().splitlines()
        assert sorted(written) == sorted(f"{name} {i}" for name in range(5) for i in range(1000))

    asyncio.run(main())


def test_what_is_held_is_written_when_the_process_ends() -> None:
    code = (
        "import asyncio, structlog; from gateway.telemetry import logs; logs.configure('info', 'json')\n"
        "async def request(): structlog.get_logger().info('last')\n"
        "asyncio.run(request())"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=60)
    assert [json.loads(line)["event"] for line in ended.stderr.splitlines()] == ["last"]
