"""This gateway as users run it: ``sluice serve``, default settings, its own database, an empty data directory."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from bench.endpoint import OURS, Endpoint
from gateway.cli.embedded import running_dsn

ROOT = Path(__file__).resolve().parent.parent
PATIENCE = 120.0
KEYS = ("SLUICEBENCHROOT", "bench-secret-0123456789")


class NotStarted(Exception):
    """A server did not come up; the text holds its last words."""


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Endpoint]:
    """Settings are the defaults but for places, ports and keys, and what SLUICE_* variables say. Raises NotStarted."""
    data = folder / "sluice"
    data.mkdir()
    data.chmod(0o711)
    environment = {
        **os.environ,
        "SLUICE_DATA_DIR": str(data),
        "SLUICE_HOST": "127.0.0.1",
        "SLUICE_S3_PORT": "0",
        "SLUICE_ADMIN_PORT": "0",
        "SLUICE_ROOT_ACCESS_KEY": KEYS[0],
        "SLUICE_ROOT_SECRET_KEY": KEYS[1],
        "PYTHONPATH": str(ROOT),
    }
    log = folder / "sluice.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "gateway.cli.main", "serve"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        s3, admin = _wait(process, data, log)
        note = f"durability={os.environ.get('SLUICE_DURABILITY', 'full')}"
        dsn = running_dsn(data) or os.environ.get("DATABASE_URL", "")
        yield Endpoint(OURS, s3, *KEYS, pids=(process.pid,), note=note, admin=admin, dsn=dsn)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(90)


def _wait(process: subprocess.Popen[bytes], data: Path, log: Path) -> tuple[str, str]:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError, ValueError, urllib.error.URLError):
            note = json.loads((data / "run" / "serve.json").read_text())
            with urllib.request.urlopen(note["admin"] + "/-/ready", timeout=5) as answer:
                if answer.status == 200:
                    return str(note["s3"]), str(note["admin"])
        time.sleep(0.1)
    raise NotStarted(f"sluice serve: {log.read_text(errors='replace')[-2000:]}")
