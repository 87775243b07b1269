"""One supervisor, N serving processes that share the listening sockets.

The sockets are bound once, here, and inherited: with SO_REUSEPORT the kernel would reset connections queued for a
process that ends. A process that dies is started again. When the supervisor is killed its processes are too
(PR_SET_PDEATHSIG). Signals: TERM and INT drain and end everything, HUP is handed on, the embedded database stops last.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import structlog

from gateway.cli.embedded import EmbeddedError

PR_SET_PDEATHSIG = 1
READY = b"ready\n"
STEADY = 5.0  # seconds after which a process counts as having started well
LONGEST_PAUSE = 10.0  # seconds between two starts of a database that ends at once
GIVE_UP = 3  # starts in a row that may fail before any process was ever ready
FORWARD_PATIENCE = 10.0  # seconds beyond drain_timeout until a process that does not end is killed

log = structlog.get_logger("supervisor")


class Database(Protocol):
    """The embedded database, as far as its watcher cares."""

    def alive(self) -> bool: ...
    def revive(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Orders:
    """What a serving process is told at birth, over a pipe: secrets do not belong on a command line."""

    index: int
    s3_fds: tuple[int, ...]
    admin_fds: tuple[int, ...]
    ready_fd: int
    flags: Mapping[str, Any]
    config: str | None
    overlay: Mapping[str, Any]  # settings the supervisor has found out: the database's address, credentials

    def dump(self) -> bytes:
        return json.dumps({name: getattr(self, name) for name in self.__slots__}).encode()

    @classmethod
    def read(cls, raw: bytes) -> Orders:
        table = json.loads(raw)
        return cls(**{**table, "s3_fds": tuple(table["s3_fds"]), "admin_fds": tuple(table["admin_fds"])})


@dataclass(slots=True)
class Child:
    index: int
    process: subprocess.Popen[bytes]
    status: int  # our end of the pipe on which it says that it is ready
    born: float
    ready: bool = False


@dataclass(slots=True)
class Place:
    """One of the N places for a process: who is in it, or when somebody is to be put there again."""

    child: Child | None = None
    due: float = 0.0
    failures: int = 0


@dataclass(slots=True)
class Supervisor:
    """run() returns the exit code. on_ready is called once, when the first process serves."""

    count: int
    s3: Sequence[socket.socket]
    admin: Sequence[socket.socket]
    flags: Mapping[str, Any]
    config: str | None
    overlay: Mapping[str, Any]
    drain: float
    on_ready: Callable[[], None]
    on_death: Callable[[int], None]
    environment: Mapping[str, str] = field(default_factory=dict)
    database: Database | None = None
    _places: list[Place] = field(default_factory=list)
    _selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    _wanted: list[int] = field(default_factory=list)  # signals that came in
    _announced: bool = False
    _revived: float = float("-inf")  # when the database was last started again, and
    _revival_pause: float = 0.0  # how long after that it may be once more

    def run(self) -> int:
        self._places = [Place() for _ in range(self.count)]
        wake_read, wake_write = os.pipe()
        for fd in (wake_read, wake_write):
            os.set_blocking(fd, False)
        self._selector.register(wake_read, selectors.EVENT_READ)
        previous_fd = signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        names = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
        previous = {name: signal.signal(name, self._note) for name in names}
        try:
            return self._loop(wake_read)
        finally:
            self._end_all()
            signal.set_wakeup_fd(previous_fd)
            for name, handler in previous.items():
                signal.signal(name, handler)
            os.close(wake_read)
            os.close(wake_write)

    def _note(self, number: int, _frame: object) -> None:
        self._wanted.append(number)

    def _loop(self, wake: int) -> int:
        while True:
            while self._wanted:
                number = self._wanted.pop(0)
                if number in (signal.SIGTERM, signal.SIGINT):
                    log.info("stopping", signal=signal.Signals(number).name)
                    return 0
                if number == signal.SIGHUP:
                    self._send(signal.SIGHUP)
            self._bury()
            self._watch_database()
            if not self._announced and any(place.failures >= GIVE_UP for place in self._places):
                log.error("the serving processes do not start; see the lines above")
                return 1
            self._fill()
            for key, _ in self._selector.select(self._patience()):
                if key.fd == wake:
                    os.read(wake, 4096)
                else:
                    self._listen(key.fd)

    def _patience(self) -> float:
        """Seconds until the next thing that is not an event: a place to be filled again."""
        due = [place.due - time.monotonic() for place in self._places if place.child is None]
        return max(0.0, min([*due, 2.0]))

    def _fill(self) -> None:
        for index, place in enumerate(self._places):
            if place.child is None and place.due <= time.monotonic():
                place.child = self._start(index)

    def _start(self, index: int) -> Child:
        ready_read, ready_write = os.pipe()
        orders_read, orders_write = os.pipe()
        s3, admin = (tuple(sock.fileno() for sock in each) for each in (self.s3, self.admin))
        orders = Orders(index, s3, admin, ready_write, self.flags, self.config, self.overlay)
        process = subprocess.Popen(
            [sys.executable, "-m", "gateway.cli.child", str(orders_read)],
            stdin=subprocess.DEVNULL,
            pass_fds=(*s3, *admin, ready_write, orders_read),
            env={**os.environ, **self.environment},
            start_new_session=True,  # Ctrl-C reaches us alone; we tell the children
            preexec_fn=_die_with_parent,
        )
        os.close(ready_write)
        os.close(orders_read)
        # A broken pipe: it died at once, and _bury sees to it.
        with contextlib.suppress(BrokenPipeError), os.fdopen(orders_write, "wb") as pipe:
            pipe.write(orders.dump())
        os.set_blocking(ready_read, False)
        self._selector.register(ready_read, selectors.EVENT_READ)
        return Child(index, process, ready_read, time.monotonic())

    def _listen(self, fd: int) -> None:
        child = next(place.child for place in self._places if place.child and place.child.status == fd)
        said = os.read(fd, 64)
        if said == READY:
            child.ready = True
            if not self._announced:
                self._announced = True
                self.on_ready()
        elif not said:
            self._selector.unregister(fd)
            os.close(fd)
            child.status = -1

    def _bury(self) -> None:
        for place in self._places:
            child = place.child
            if child is None or child.process.poll() is None:
                continue
            if child.status >= 0:
                self._selector.unregister(child.status)
                os.close(child.status)
            self.on_death(child.process.pid)
            steady = child.ready and time.monotonic() - child.born > STEADY
            place.failures = 0 if steady else place.failures + 1
            pause = 0.0 if steady or not place.failures else min(0.25 * 2**place.failures, 10.0)
            place.child, place.due = None, time.monotonic() + pause
            log.error("a serving process ended", child=child.index, status=child.process.returncode, again_in=pause)

    def _watch_database(self) -> None:
        """Start the embedded database again when it ended. What keeps it down (a full disk) may pass, and meanwhile
        the processes answer 503: so this never gives up, and never waits until it is ready."""
        if self.database is None:
            return
        now = time.monotonic()
        since = now - self._revived
        if self.database.alive():
            if since > 2 * LONGEST_PAUSE:
                self._revival_pause = 0.0
        elif since > self._revival_pause:
            self._revived, self._revival_pause = now, min(max(1.0, self._revival_pause * 2), LONGEST_PAUSE)
            log.error("the embedded database ended; starting it again")
            try:
                self.database.revive()
            except (OSError, EmbeddedError) as error:
                log.error("the embedded database does not start", error=str(error))

    def _send(self, number: int) -> None:
        for place in self._places:
            if place.child is not None and place.child.process.poll() is None:
                place.child.process.send_signal(number)

    def _end_all(self) -> None:
        """Drain: requests end, leases go back. A second TERM or INT, or too long a wait, kills."""
        self._wanted.clear()
        self._send(signal.SIGTERM)
        deadline = time.monotonic() + self.drain + FORWARD_PATIENCE
        left = [place.child.process for place in self._places if place.child is not None]
        while left and time.monotonic() < deadline:
            if any(number in (signal.SIGTERM, signal.SIGINT) for number in self._wanted):
                log.warning("asked again: ending at once")
                break
            left = [process for process in left if process.poll() is None]
            if left:
                try:
                    left[0].wait(0.1)
                except subprocess.TimeoutExpired:
                    continue
        for process in left:
            process.kill()
        for process in left:
            process.wait()


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
