"""A real clamd with a signature of its own, for any test that wants one: import the fixture ``clamd``.

Nothing is downloaded: the database is one line made at run time. No file of this repository holds the test string that
scanners look for, so none of them is ever quarantined.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

SIGNATURE = "Eicar-Test-Signature.UNOFFICIAL"  # clamd adds the ending to names of databases it did not sign


def eicar() -> bytes:
    """The 68 bytes of the EICAR test file, put together here."""
    return b"".join([b"X5O!P%@AP[4", b"\\PZX54(P^)7CC)7}$", b"EICAR-STANDARD-", b"ANTIVIRUS-TEST-FILE!$H", b"+H*"])


def clamd_program() -> str | None:
    return shutil.which("clamd", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")


@dataclass
class ClamdServer:
    """A clamd of its own folder. start and stop as often as wished; the addresses stay."""

    folder: Path
    port: int
    options: Mapping[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    @property
    def unix(self) -> str:
        """The address for SLUICE_CLAMD, over the Unix socket."""
        return f"unix:{self.folder}/clamd.sock"

    @property
    def tcp(self) -> str:
        """The address for SLUICE_CLAMD, over TCP."""
        return f"tcp://127.0.0.1:{self.port}"

    def start(self, deadline: float = 60.0) -> None:
        """Returns when it answers PING."""
        (self.folder / "db").mkdir(exist_ok=True)
        line = f"Eicar-Test-Signature:0:*:{eicar().hex()}\n"
        (self.folder / "db" / "test.ndb").write_text(line)
        settings = {
            "DatabaseDirectory": f"{self.folder}/db",
            "LocalSocket": f"{self.folder}/clamd.sock",
            "TCPSocket": str(self.port),
            "TCPAddr": "127.0.0.1",
            "LogFile": f"{self.folder}/clamd.log",
            "TemporaryDirectory": str(self.folder),
            "Foreground": "yes",
            "MaxThreads": "4",
            "AlertExceedsMax": "yes",
            "AlertEncrypted": "yes",
            "StreamMaxLength": "4M",
            **self.options,
        }
        config = self.folder / "clamd.conf"
        config.write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
        program = clamd_program()
        assert program is not None
        with suppress(FileNotFoundError):
            (self.folder / "clamd.sock").unlink()
        self.process = subprocess.Popen(
            [program, "-c", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        until = time.monotonic() + deadline
        while not self.answers():
            log = self.folder / "clamd.log"
            said = log.read_text()[-2000:] if log.exists() else ""
            assert self.process.poll() is None, f"clamd ended with {self.process.returncode}: {said}"
            assert time.monotonic() < until, f"clamd does not answer: {said}"
            time.sleep(0.05)  # it has no signal for "ready"

    def answers(self) -> bool:
        """Whether both sockets answer PING."""
        addresses: list[tuple[int, Any]] = [
            (socket.AF_UNIX, str(self.folder / "clamd.sock")),
            (socket.AF_INET, ("127.0.0.1", self.port)),
        ]
        for family, address in addresses:
            with socket.socket(family, socket.SOCK_STREAM) as sock:
                sock.settimeout(2.0)
                try:
                    sock.connect(address)
                    sock.sendall(b"zPING\0")
                    if sock.recv(16) != b"PONG\0":
                        return False
                except OSError:
                    return False
        return True

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@contextmanager
def running_clamd(**options: str) -> Iterator[ClamdServer]:
    """A clamd with options of clamd.conf(5), or a skip where the program is not installed."""
    if clamd_program() is None:
        pytest.skip("clamd is not installed (Debian package clamav-daemon)")
    with TemporaryDirectory(prefix="clamd-", dir="/tmp") as folder:  # short: a socket's path has 107 bytes
        server = ClamdServer(Path(folder), free_port(), options)
        try:
            server.start()
            yield server
        finally:
            server.stop()


@pytest.fixture(scope="session")
def clamd() -> Iterator[ClamdServer]:
    with running_clamd() as server:
        yield server


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
