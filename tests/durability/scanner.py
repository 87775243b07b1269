"""A scanner for real servers, in a thread of the test: it finds EICAR, and holds, fails or goes away on demand."""

from __future__ import annotations

import contextlib
import random
import socket
import socketserver
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum

from tests.activities.clamd import SIGNATURE, eicar

VERSION = b"ClamAV 1.4.6/27450/Mon Nov 24 09:26:52 2025\0"


class Mode(StrEnum):
    ANSWER = "answer"
    REFUSE = "refuse"  # nothing listens
    HANG = "hang"  # takes everything, answers nothing
    GARBAGE = "garbage"
    CLOSE = "close"  # closes after the first chunk
    LIMIT = "limit"  # the stream is over its size limit


class Scanner:
    """pace: seconds a scan takes at most. Content that begins with HOLD is not answered until ``release``."""

    def __init__(self, pace: float = 0.0) -> None:
        self.pace = pace
        self.mode = Mode.ANSWER
        self.held = 0  # streams that wait for release
        self._count = threading.Lock()
        self._released = threading.Event()
        self._server: socketserver.ThreadingTCPServer | None = None
        self._port = 0

    @property
    def address(self) -> str:
        return f"tcp://127.0.0.1:{self._port}"

    def become(self, mode: Mode) -> None:
        """Behave so from now on."""
        self.mode = mode
        if mode is Mode.REFUSE:
            self.stop()
        elif self._server is None:
            self.start()

    def hold(self) -> None:
        self._released.clear()

    def release(self) -> None:
        self._released.set()

    def start(self) -> None:
        scanner = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                with contextlib.suppress(OSError, EOFError):
                    scanner.serve(self.request)

        class Listener(socketserver.ThreadingTCPServer):
            allow_reuse_address = True
            daemon_threads = True
            block_on_close = False
            request_queue_size = 128

        self._server = Listener(("127.0.0.1", self._port), Handler)
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def serve(self, sock: socket.socket) -> None:
        """One connection, one command."""
        command = b""
        while not command.endswith(b"\0"):
            command += exactly(sock, 1)
        if self.mode is Mode.HANG:
            sock.recv(1)
            while sock.recv(1 << 16):
                pass
        elif command == b"zPING\0":
            sock.sendall(b"PONG\0")
        elif command == b"zVERSION\0":
            sock.sendall(VERSION)
        elif command == b"zINSTREAM\0":
            self._scan(sock)

    def _scan(self, sock: socket.socket) -> None:
        data = bytearray()
        while length := struct.unpack("!I", exactly(sock, 4))[0]:
            data += exactly(sock, length)
            if self.mode is Mode.CLOSE:
                return
        if data.startswith(b"HOLD"):
            with self._count:
                self.held += 1
            self._released.wait(60)
            with self._count:
                self.held -= 1
        elif self.pace:
            time.sleep(random.uniform(0, self.pace))  # the work of a scanner
        if self.mode is Mode.GARBAGE:
            sock.sendall(b"\xff\xfewhat?\0")
        elif self.mode is Mode.LIMIT:
            sock.sendall(b"INSTREAM size limit exceeded. ERROR\0")
        elif eicar() in data:
            sock.sendall(f"stream: {SIGNATURE} FOUND\0".encode())
        else:
            sock.sendall(b"stream: OK\0")


def exactly(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = sock.recv(count - len(data))
        if not more:
            raise EOFError
        data += more
    return data


@contextmanager
def running_scanner(pace: float = 0.0) -> Iterator[Scanner]:
    scanner = Scanner(pace)
    scanner.start()
    try:
        yield scanner
    finally:
        scanner.release()
        scanner.stop()
