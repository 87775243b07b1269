"""A raw connection: bytes out, answers in, taken apart by http.client."""

from __future__ import annotations

import http.client
import re
import socket
import ssl
import struct
from dataclasses import dataclass
from types import TracebackType

from tests.signing import Signer


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def code(self) -> str:
        """The S3 error code of the document."""
        found = re.search(rb"<Code>([^<]*)</Code>", self.body)
        return found[1].decode() if found else ""


class Wire:
    """One TCP connection to the S3 port."""

    def __init__(self, port: int, timeout: float = 20.0, tls: ssl.SSLContext | None = None) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=timeout)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket)
        self.file = self.socket.makefile("rb")

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def answer(self, method: str = "GET") -> Answer:
        """Read one answer, however its end is marked."""
        response = http.client.HTTPResponse(_Held(self.file), method=method)  # type: ignore[arg-type]
        response.begin()
        body = response.read()
        return Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, body)

    def line(self) -> bytes:
        """Read one line: the "100 Continue" that http.client would swallow."""
        return self.file.readline().strip()

    def ended(self) -> bool:
        """Whether the server has closed, by an end or by a reset."""
        try:
            return self.file.read(1) == b""
        except (ConnectionResetError, BrokenPipeError):
            return True

    def half_close(self) -> None:
        self.socket.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """Close with a reset instead of an end."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def close(self) -> None:
        self.file.close()
        self.socket.close()

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class _Held:
    """Lets http.client read from a file that stays open for the next answer."""

    def __init__(self, file: object) -> None:
        self._file = file

    def makefile(self, _mode: str) -> object:
        held = self._file

        class Kept:
            def __getattr__(self, name: str) -> object:
                return (lambda: None) if name == "close" else getattr(held, name)

        return Kept()


def signer(port: int, keys: tuple[str, str]) -> Signer:
    return Signer(*keys, host=f"127.0.0.1:{port}")
