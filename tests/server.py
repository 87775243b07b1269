"""The real thing: ``sluice serve`` as a process of its own, with its own data directory and free ports.

``server`` is one for all tests of a worker (they use their own buckets); ``start_server`` starts one to a test's
wishes: ``start_server(embedded=True)``, ``start_server({"SLUICE_CLAMD": …})``, two on one database and one blob folder
by ``second = start_server(beside=first)``. Each can be killed with ``kill()`` and started again with ``start()``.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
import psutil
import pytest
from botocore.config import Config

from tests import pg

PATIENCE = 60.0  # seconds until a server must be ready
POLL = 0.02
ROOT = Path(__file__).parent.parent


class ServerFailed(AssertionError):
    """It ended instead of serving; the text holds its last words."""


@dataclass
class Server:
    """environment is what it is started with, beside a clean one of ours."""

    data_dir: Path
    environment: dict[str, str]
    access_key: str
    secret_key: str
    database: str | None  # None: embedded
    process: subprocess.Popen[bytes] | None = None
    endpoint: str = ""
    admin: str = ""
    starts: int = 0
    exits: list[int] = field(default_factory=list)

    # --- life --------------------------------------------------------------------------------------------------

    def start(self, wait: bool = True) -> Server:
        """Start (again), on the ports of the first time."""
        clean = {
            name: value for name, value in os.environ.items() if not name.startswith(("SLUICE_", "AWS_", "DATABASE_"))
        }
        self.starts += 1
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "gateway.cli.main", "serve"],
                env={**clean, "PYTHONPATH": str(ROOT), **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.data_dir,
                start_new_session=True,
                preexec_fn=_die_with_parent,  # a test run that is killed leaves no server behind
            )
        return self.wait_ready() if wait else self

    def wait_ready(self, patience: float = PATIENCE) -> Server:
        """Until /-/ready says yes. Raises ServerFailed."""
        assert self.process is not None
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise ServerFailed(f"the server ended with {self.process.returncode}:\n{self.tail()}")
            note = self._note()
            if note is not None:
                self.endpoint, self.admin = note["s3"], note["admin"]
                self.environment["SLUICE_S3_PORT"] = self.endpoint.rpartition(":")[2]
                self.environment["SLUICE_ADMIN_PORT"] = self.admin.rpartition(":")[2]
                with contextlib.suppress(OSError):
                    if self.get("/-/ready")[0] == 200:
                        return self
            time.sleep(POLL)
        raise ServerFailed(f"the server was not ready in {patience:.0f} s:\n{self.tail()}")

    def _note(self) -> dict[str, Any] | None:
        try:
            note: dict[str, Any] = json.loads((self.data_dir / "run" / "serve.json").read_text())
        except (OSError, ValueError):
            return None
        return note if self.process is not None and note["pid"] == self.process.pid else None

    def stop(self, patience: float = PATIENCE) -> int:
        """SIGTERM, and wait for the end; returns the exit code."""
        if self.process is None:
            return 0
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ServerFailed(f"the server did not stop in {patience:.0f} s:\n{self.tail()}") from None
        self.process = None
        self.exits.append(code)
        return code

    def kill(self) -> None:
        """SIGKILL to the supervisor and every process below it; the embedded database is left to its fate."""
        if self.process is None:
            return
        family = [each for each in self.family() if "postgres" not in _name(each)]
        for each in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        self.process.wait()
        psutil.wait_procs(family, timeout=10)
        self.process = None

    def restart(self) -> Server:
        self.stop()
        return self.start()

    # --- looking inside ----------------------------------------------------------------------------------------

    def family(self) -> list[psutil.Process]:
        """The supervisor and everything below it."""
        assert self.process is not None
        try:
            supervisor = psutil.Process(self.process.pid)
            return [supervisor, *supervisor.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def children(self) -> list[psutil.Process]:
        """The serving processes."""
        assert self.process is not None
        return [
            each
            for each in psutil.Process(self.process.pid).children()
            if any("gateway.cli.child" in word for word in _command(each))
        ]

    def memory(self) -> int:
        """Resident bytes of the whole family, shared pages counted once."""
        total = 0
        for each in self.family():
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                total += each.memory_full_info().pss
        return total

    @property
    def log_path(self) -> Path:
        return self.data_dir / "server.log"

    def logs(self) -> list[dict[str, Any]]:
        """Its log lines so far, those that are JSON."""
        lines = []
        for line in self.log_path.read_text(errors="replace").splitlines():
            if line.startswith("{"):
                with contextlib.suppress(ValueError):
                    lines.append(json.loads(line))
        return lines

    def wait_log(self, wanted: Callable[[dict[str, Any]], bool], patience: float = 15.0) -> dict[str, Any]:
        """The first line that is wanted, as soon as it is there."""
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            for line in self.logs():
                if wanted(line):
                    return line
            time.sleep(POLL)
        raise AssertionError(f"no such line in the log:\n{self.tail()}")

    def tail(self, lines: int = 40) -> str:
        try:
            return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])
        except OSError:
            return "(no log)"

    # --- talking to it -----------------------------------------------------------------------------------------

    def client(self, access_key: str | None = None, secret_key: str | None = None, **options: Any) -> Any:
        """A boto3 S3 client that does not repeat requests. options go to botocore's Config; verify to the client."""
        extra = {name: options.pop(name) for name in ("verify",) if name in options}
        config = Config(
            **{"retries": {"total_max_attempts": 1}, "s3": {"addressing_style": "path"}, "read_timeout": 60, **options}
        )
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=access_key or self.access_key,
            aws_secret_access_key=secret_key or self.secret_key,
            region_name="us-east-1",
            config=config,
            **extra,
        )

    def aws(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """The ``aws`` program, as a user would call it."""
        return subprocess.run(
            [str(Path(sys.executable).parent / "aws"), *words],
            env={**os.environ, **self.aws_environment()},
            capture_output=True,
            text=True,
            check=check,
            timeout=300,
        )

    def aws_environment(self) -> dict[str, str]:
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": "us-east-1",
            "AWS_CONFIG_FILE": "/dev/null",
            "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
            "AWS_MAX_ATTEMPTS": "1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def sluice(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """One of our own commands, on this server's data."""
        keep = {"SLUICE_DATA_DIR", "SLUICE_BLOB_DIR", "DATABASE_URL", "SLUICE_LISTEN_URL", "SLUICE_CLAMD"}
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("SLUICE_", "DATABASE_"))}
        ours = {name: value for name, value in self.environment.items() if name in keep}
        return subprocess.run(
            [sys.executable, "-m", "gateway.cli.main", *words],
            env={**clean, **ours, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=check,
            timeout=120,
        )

    def get(self, path: str, method: str = "GET", body: Any = None, token: bool = False) -> tuple[int, str]:
        """A request to the admin port, with the root key's credentials when token is set: status and text."""
        request = urllib.request.Request(self.admin + path, method=method)
        if token:
            import base64

            pair = base64.b64encode(f"{self.access_key}:{self.secret_key}".encode()).decode()
            request.add_header("Authorization", f"Basic {pair}")
        if body is not None:
            request.data = json.dumps(body).encode()
            request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metrics(self) -> dict[str, float]:
        """The Prometheus page as {series: value}."""
        _, text = self.get("/metrics")
        pairs = (line.rpartition(" ") for line in text.splitlines() if line and not line.startswith("#"))
        return {name: float(value) for name, _, value in pairs}

    def wait_state(self, bucket: str, key: str, state: str = "ready", patience: float = 30.0) -> dict[str, Any]:
        """Until HEAD says that the object is in a state; returns the last answer's headers."""
        client = self.client()
        deadline = time.monotonic() + patience
        headers: dict[str, Any] = {}
        while time.monotonic() < deadline:
            try:
                headers = client.head_object(Bucket=bucket, Key=key)["ResponseMetadata"]["HTTPHeaders"]
            except client.exceptions.ClientError as error:
                headers = error.response["ResponseMetadata"]["HTTPHeaders"]
            if headers.get("x-sluice-state") == state:
                return headers
            time.sleep(POLL)
        raise AssertionError(f"{bucket}/{key} is {headers.get('x-sluice-state')}, not {state}:\n{self.tail(15)}")


def _die_with_parent() -> None:
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.Error:
        return ""


StartServer = Callable[..., Server]


def make_server(
    folder: Path,
    environment: Mapping[str, str] | None = None,
    *,
    database: str | None = None,
    beside: Server | None = None,
    workers: int = 1,
) -> Server:
    """A server that is not started yet. database None: its own embedded one."""
    data_dir = folder / f"data-{secrets.token_hex(4)}"
    data_dir.mkdir()
    access_key, secret_key = (
        (beside.access_key, beside.secret_key) if beside else ("SLUICETESTROOT", secrets.token_urlsafe(24))
    )
    base = {
        "SLUICE_DATA_DIR": str(data_dir),
        "SLUICE_HOST": "127.0.0.1",
        "SLUICE_S3_PORT": "0",
        "SLUICE_ADMIN_PORT": "0",
        "SLUICE_ROOT_ACCESS_KEY": access_key,
        "SLUICE_ROOT_SECRET_KEY": secret_key,
        "SLUICE_WORKERS": str(workers),
        "SLUICE_LOG_FORMAT": "json",
        "SLUICE_BLOB_DIR": beside.environment["SLUICE_BLOB_DIR"] if beside else str(data_dir / "blobs"),
        "SLUICE_DRAIN_TIMEOUT": "10",
    }
    if database is not None:
        base["DATABASE_URL"] = database
        base["SLUICE_POOL_SIZE"] = "8"  # many servers share the test cluster
    return Server(data_dir, {**base, **(environment or {})}, access_key, secret_key, database)


@pytest.fixture
def start_server(new_database: Callable[[], str]) -> Iterator[StartServer]:
    """A factory: start_server(environment=None, *, embedded=False, beside=None, workers=1, wait=True)."""
    folder = Path(tempfile.mkdtemp(prefix="s-", dir=pg.session_root()))
    folder.chmod(0o711)
    made: list[Server] = []

    def start(
        environment: Mapping[str, str] | None = None,
        *,
        embedded: bool = False,
        beside: Server | None = None,
        workers: int = 1,
        wait: bool = True,
    ) -> Server:
        database = beside.database if beside else None if embedded else new_database()
        one = make_server(folder, environment, database=database, beside=beside, workers=workers)
        made.append(one)
        return one.start(wait)

    yield start
    for each in made:
        _end(each)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """One server with default settings for all tests of this worker that have no wishes of their own."""
    folder = Path(tempfile.mkdtemp(prefix="s-", dir=pg.session_root()))
    folder.chmod(0o711)
    database = pg.create_database()
    one = make_server(folder, database=database)
    try:
        yield one.start()
    finally:
        _end(one)
        pg.drop_database(database)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def bucket(server: Server) -> str:
    """A new bucket on the shared server."""
    name = f"b-{secrets.token_hex(8)}"
    server.client().create_bucket(Bucket=name)
    return name


def _end(server: Server) -> None:
    """Leave nothing running, whatever the test did to it."""
    if server.process is not None and server.process.poll() is None:
        server.process.send_signal(signal.SIGTERM)
        try:
            server.process.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()
    if server.database is None and (server.data_dir / "postgres").exists():
        from gateway.cli.embedded import layout, stop_cluster

        stop_cluster(layout(server.data_dir))
