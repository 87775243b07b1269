"""A ``sluice serve`` of its own for a conformance run: fresh data directory, free ports, three accounts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import boto3
import urllib3
from botocore.config import Config

ROOT = Path(__file__).resolve().parent.parent
PATIENCE = 90.0  # seconds until it must be ready: it makes a database first
MAIN = ("conformancemain", "main-secret-0123456789")
OTHERS = (("alt", "conformancealt", "alt-secret-0123456789"), ("tenant", "conformancetenant", "tenant-secret-012345"))


class NotReady(Exception):
    """The server ended or did not come up; the text holds its last words."""


@dataclass(frozen=True, slots=True)
class User:
    """An account as s3-tests is told of it: key, secret, canonical id, display name and e-mail."""

    access_key: str
    secret_key: str
    canonical_id: str
    display_name: str

    def argument(self) -> str:
        email = f"{self.access_key}@example.com"
        return "|".join((self.access_key, self.secret_key, self.canonical_id, self.display_name, email))


@dataclass(frozen=True, slots=True)
class Running:
    port: int
    main: User
    alt: User
    tenant: User


@contextmanager
def running(data: Path, *, tls: bool) -> Iterator[Running]:
    """A server on data, stopped at the end. Raises NotReady."""
    data.mkdir(parents=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SLUICE_", "AWS_"))}
    environment |= {
        "SLUICE_DATA_DIR": str(data),
        "SLUICE_S3_PORT": "0",
        "SLUICE_ADMIN_PORT": "0",
        "SLUICE_ROOT_ACCESS_KEY": MAIN[0],
        "SLUICE_ROOT_SECRET_KEY": MAIN[1],
        "SLUICE_DURABILITY": "os",  # what survives a power cut is not what is tested here
        "PYTHONPATH": str(ROOT),
    }
    if tls:
        certificate, key = _self_signed(data)
        environment |= {"SLUICE_TLS_CERT": str(certificate), "SLUICE_TLS_KEY": str(key)}
    log = data / "serve.log"
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
        port = _ready(process, data, log)
        for name, access_key, secret_key in OTHERS:
            _create_key(environment, name, access_key, secret_key)
        endpoint = f"{'https' if tls else 'http'}://localhost:{port}"
        yield Running(
            port, *[_user(endpoint, *pair) for pair in (MAIN, *((access, secret) for _, access, secret in OTHERS))]
        )
    finally:
        _stop(process)


def _self_signed(folder: Path) -> tuple[Path, Path]:
    certificate, key = folder / "cert.pem", folder / "key.pem"
    subject = ("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1")
    command = ("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject)
    subprocess.run([*command, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    return certificate, key


def _ready(process: subprocess.Popen[bytes], data: Path, log: Path) -> int:
    """The S3 port, once the admin port says that it is served."""
    note = data / "run" / "serve.json"
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        try:
            found = json.loads(note.read_text())
            with urllib.request.urlopen(f"{found['admin']}/-/ready", timeout=5) as answer:  # noqa: S310 - our own
                if answer.status == 200:
                    return int(found["s3"].rstrip("/").rpartition(":")[2])
        except (OSError, ValueError, urllib.error.URLError, KeyError):
            time.sleep(0.1)
    raise NotReady(log.read_text(errors="replace")[-4000:])


def _create_key(environment: dict[str, str], account: str, access_key: str, secret_key: str) -> None:
    email = f"{access_key}@example.com"
    named = ("--account", account, "--display-name", account.title(), "--email", email)
    command = [sys.executable, "-m", "gateway.cli.main", "key", "create", *named]
    subprocess.run(
        [*command, "--access-key", access_key, "--secret-key", secret_key],
        env=environment,
        check=True,
        capture_output=True,
    )


def _user(endpoint: str, access_key: str, secret_key: str) -> User:
    """Who a key belongs to, as ListBuckets tells it."""
    urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
    client = boto3.client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id=access_key,
        aws_secret_access_key=secret_key,
        region_name="us-east-1",
        verify=False,
        config=Config(retries={"max_attempts": 3}),
    )
    owner = client.list_buckets()["Owner"]
    return User(access_key, secret_key, owner["ID"], owner["DisplayName"])


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
