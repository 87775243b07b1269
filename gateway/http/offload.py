"""Large bodies over plain HTTP, off the event loop: from a file into the socket, from the socket into a buffer.

A thread works on a duplicate of the connection's socket while the transport leaves it alone: it has nothing to write,
or does not read. Threads never wait for a peer. They go on for one TURN, poll the socket for a few milliseconds when it
would block, and then the event loop waits in their place; so a slow peer costs a descriptor, never a thread, and
``Pace`` cuts it as it does any other.

Measured (bench/bodies.py; loopback, two busy cores, CPU of the serving process for 1 GiB): GET 1.0 s through the loop,
0.3 s by sendfile; PUT in bodies of 16 MiB 7.6 s and 5.6 s, of which MD5 and SHA-256 are most.
"""

from __future__ import annotations

import asyncio
import errno
import os
import select
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar, cast

from gateway.http.pace import Pace, PaceLimits
from gateway.http.request import Request

T = TypeVar("T")

SEND_LEAST = 1 << 20  # bytes from which a body leaves by sendfile: below, the copy is one piece, and costs as little
SEND_FIRST = 16 << 10  # bytes that are read before the head leaves, so that a file that cannot be read can be told
RECEIVE_LEAST = 1 << 20  # bytes of a body that come before its rest may be received by threads, and
RECEIVE_REST = 4 << 20  # how much that rest must be at least (measured: a body of 4 MiB gains 4 %, of 8 MiB 13 %)
PIECE = 1 << 20  # bytes per system call, and of a receiver's buffer
TURN = 0.05  # seconds after which a thread takes its next job, whoever it served
POLL = 5  # milliseconds a thread waits for a socket
FAST = 32 << 20  # bytes a second below which threads receive in pieces too small to pay
SLACK = 0.5  # seconds that a sender may fall behind FAST before the ordinary path has it back
THREADS = 16  # per direction: a cold disk blocks a sender, so more than there are cores
QUEUE = 32  # jobs, running or waiting, beyond which new bodies take the ordinary path
INTAKES = 64  # bodies received by threads at a time; each holds a buffer
ZEROS = bytes(256 << 10)
UNSUPPORTED = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})


class SendFailed(Exception):
    """The body cannot become whole, and its head has left: the file ended or failed, or the reader is too slow."""


class OutOfStep(AssertionError):
    """aiohttp counted other bytes than were received: not the version that this module was written for."""


class Crew:
    """The threads of one direction. Their jobs end by themselves and wait for no other job."""

    def __init__(self, name: str, threads: int, queue: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._queue = queue
        self._busy = 0
        self._lock = threading.Lock()

    @property
    def full(self) -> bool:
        return self._busy >= self._queue

    def submit(self, job: Callable[[], T]) -> Future[T]:
        with self._lock:
            self._busy += 1
        try:
            future = self._pool.submit(job)
        except BaseException:
            self._ended(None)
            raise
        future.add_done_callback(self._ended)
        return future

    def close(self) -> None:
        self._pool.shutdown(wait=False)

    def _ended(self, _: object) -> None:
        with self._lock:
            self._busy -= 1


class Offload:
    """One per process: the crews of both directions."""

    def __init__(self, threads: int = THREADS, queue: int = QUEUE, intakes: int = INTAKES) -> None:
        self.senders = Crew("send", threads, queue)
        self.receivers = Crew("receive", threads, queue)
        self.intakes = intakes  # that may still be opened

    def close(self) -> None:
        """Give the threads back; bodies on their way end within a turn."""
        self.senders.close()
        self.receivers.close()

    def outlet(self, request: Request, head: bytes, content: object, length: int) -> Outlet | None:
        """A way for content to leave by sendfile; None when it has to take the ordinary path."""
        fd = getattr(content, "fd", None)
        if fd is None or length < SEND_LEAST or self.senders.full:
            return None
        transport = _plain(request)
        # What is still in the write buffer would come after what a thread sends.
        if transport is None or transport.get_write_buffer_size():
            return None
        return Outlet(self.senders, transport, fd, cast(Any, content).position, length, head)

    def intake(self, request: Request, pace: Pace, limit: int) -> tuple[bytes, Intake | None]:
        """What has arrived of a body of limit bytes, and a way for the rest of it; None: it takes the ordinary path.

        Raises what the stream raises.
        """
        payload = request.content
        held = []
        # Draining makes aiohttp parse the tail it keeps, and read on: until both are empty, without an await.
        while data := payload.read_nowait():
            held.append(data)
        rest = limit - payload.total_bytes
        transport = _plain(request)
        intake = None
        if transport is not None and rest >= RECEIVE_REST and self.intakes > 0 and not self.receivers.full:
            intake = Intake(self, request, transport, rest, pace)
        return b"".join(held), intake


def _plain(request: Request) -> asyncio.Transport | None:
    """The request's transport when it is an open connection without TLS."""
    transport = request.transport
    if transport is None or transport.is_closing() or transport.get_extra_info("sslcontext") is not None:
        return None
    return transport


class Outlet:
    """A span of a file on its way into a socket. started: when the head left; 0.0 while it has not."""

    def __init__(
        self, crew: Crew, transport: asyncio.Transport, file: int, position: int, length: int, head: bytes
    ) -> None:
        self.started = 0.0
        self._crew = crew
        self._position, self._end = position, position + length
        self._begin = position
        self._head, self._ahead = memoryview(head), 0  # _ahead: bytes of the body that leave with the head
        self._copying = False
        self._stopped = False
        self._job: Future[tuple[bool, float]] | None = None
        self._socket = _duplicate(transport)
        try:
            self._file = os.dup(file)
        except BaseException:
            os.close(self._socket)
            raise

    @property
    def sent(self) -> int:
        """Bytes of the body that the kernel took."""
        return self._position - self._begin

    async def send(self, limits: PaceLimits) -> bool:
        """Send head and body; False when the file cannot be read and nothing has been sent.

        Raises SendFailed, TooSlow, ConnectionError. Whatever happens, the duplicates are closed soon afterwards.
        """
        loop = asyncio.get_running_loop()
        pace = Pace(limits)
        try:
            while self._position < self._end:
                before = self.sent
                self._job = self._crew.submit(self._push)
                full, waited = await asyncio.wrap_future(self._job)
                if not self.started:
                    return False
                pace.account(waited, self.sent - before)
                if full:
                    since = loop.time()
                    try:
                        async with asyncio.timeout(max(pace.patience(), 0)):
                            await _writable(loop, self._socket)
                    except TimeoutError:
                        raise SendFailed("the reader is below the minimum rate") from None
                    pace.account(loop.time() - since, 0)
            return True
        finally:
            self._release()

    def _push(self) -> tuple[bool, float]:
        """In a thread: send for one turn. Returns (whether the socket is full, seconds waited for it)."""
        if not self.started and not self._read_first():
            return False, 0.0
        now = time.monotonic()
        end, waited = now + TURN, 0.0
        poller: select.poll | None = None
        while self._position < self._end and now < end and not self._stopped:
            try:
                self._step()
            except BlockingIOError:
                if poller is None:
                    poller = select.poll()
                    poller.register(self._socket, select.POLLOUT)
                since = time.monotonic()
                ready = poller.poll(POLL)
                waited += time.monotonic() - since
                if not ready:
                    return True, waited
            now = time.monotonic()
        return False, waited

    def _read_first(self) -> bool:
        """Whether the file has something to give. The ordinary path meets the same error, and can tell it."""
        try:
            first = os.pread(self._file, min(SEND_FIRST, self._end - self._position), self._position)
        except OSError:
            return False
        if not first:
            return False
        self._head = memoryview(bytes(self._head) + first)
        self._ahead = len(first)
        self.started = time.monotonic()  # the event loops' clock, too
        return True

    def _step(self) -> None:
        """One system call's worth. Raises BlockingIOError, ConnectionError, SendFailed."""
        if self._head:
            try:
                count = os.write(self._socket, self._head)
            except (BlockingIOError, ConnectionError):
                raise
            except OSError as error:  # ETIMEDOUT and its like
                raise ConnectionResetError(*error.args) from error
            self._head = self._head[count:]
            self._position = max(self._position, self._begin + self._ahead - len(self._head))
            return
        want = min(PIECE, self._end - self._position)
        try:
            count = self._copy(want) if self._copying else os.sendfile(self._socket, self._file, self._position, want)
        except (BlockingIOError, ConnectionError):
            raise
        except OSError as error:
            if self._copying or error.errno not in UNSUPPORTED:
                raise SendFailed(error.strerror) from error
            self._copying = True  # a file system without splice
            return
        if not count:
            raise SendFailed(f"the file ended after {self.sent} of {self._end - self._begin} bytes")
        self._position += count

    def _copy(self, want: int) -> int:
        data = os.pread(self._file, min(want, len(ZEROS)), self._position)
        return os.write(self._socket, data) if data else 0

    def _release(self) -> None:
        self._stopped = True
        if self._job is None:
            self._close(None)
        else:
            self._job.add_done_callback(self._close)  # at once, unless the caller was cancelled

    def _close(self, _: object) -> None:
        os.close(self._socket)
        os.close(self._file)


class Intake:
    """The rest of a request's body, received by threads while the transport does not read.

    aiohttp's parser is told of every piece by as many zeros: it stays in step, so that the connection is kept, the
    ordinary path can have the body back after any piece, and an early refusal drains as it always does. That costs one
    copy of memory that lies in the cache.
    """

    def __init__(self, offload: Offload, request: Request, transport: asyncio.Transport, rest: int, pace: Pace) -> None:
        self._offload = offload
        self._protocol, self._payload = request.protocol, request.content
        self._transport = transport
        self._rest = rest
        self._pace = pace
        self._buffer = memoryview(bytearray(PIECE))
        self._waited, self._moved = 0.0, 0
        self._error: OSError | None = None
        self._ended = self._stopped = self._closed = False
        self._job: Future[tuple[int, float]] | None = None
        self._socket = _duplicate(transport)
        offload.intakes -= 1
        transport.pause_reading()

    async def next(self) -> memoryview | None:
        """The next piece, which is valid until the next call; None: the ordinary path has the rest.

        Raises ConnectionError.
        """
        if self._closed:
            return None
        loop = asyncio.get_running_loop()
        while True:
            self._job = self._offload.receivers.submit(self._fill)
            try:
                count, waited = await asyncio.wrap_future(self._job)
            except BaseException:
                # Bytes may be taken that the parser does not know of: this connection serves no other request.
                self._transport.abort()
                self.close()
                raise
            self._account(waited, count)
            if count:
                self._tell(count)
                if not self._rest:
                    self.close()
                return self._buffer[:count]
            if self._error is not None:
                self._transport.abort()
                self.close()
                raise ConnectionResetError(*self._error.args)
            left = SLACK + self._moved / FAST - self._waited
            if not self._ended and left > 0:
                since = loop.time()
                with suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await _readable(loop, self._socket)
                self._account(loop.time() - since, 0)
                continue
            self.close()  # the end, or a sender that is too slow: both are the ordinary path's
            return None

    def close(self) -> None:
        """The transport reads again, and the duplicate goes, at once or when its thread is done: while it lives the
        peer sees no end of the connection. Any number of times."""
        if self._closed:
            return
        self._closed = self._stopped = True
        self._offload.intakes += 1
        if self._job is None:
            self._drop(None)
        else:
            self._job.add_done_callback(self._drop)
        self._transport.resume_reading()

    def _drop(self, _: object) -> None:
        os.close(self._socket)

    def _account(self, waited: float, moved: int) -> None:
        self._waited += waited
        self._moved += moved
        self._pace.account(waited, moved)

    def _fill(self) -> tuple[int, float]:
        """In a thread: receive for one turn. Returns (bytes, seconds waited)."""
        want = min(self._rest, PIECE)  # never more: what follows is the next request
        now = time.monotonic()
        end, waited, count = now + TURN, 0.0, 0
        poller: select.poll | None = None
        while count < want and now < end and not self._stopped:
            try:
                size = os.readv(self._socket, [self._buffer[count:want]])
                if not size:
                    self._ended = True
                    break
                count += size
            except BlockingIOError:
                if poller is None:
                    poller = select.poll()
                    poller.register(self._socket, select.POLLIN)
                since = time.monotonic()
                ready = poller.poll(POLL)
                waited += time.monotonic() - since
                if not ready:
                    break
            except OSError as error:
                self._error = error  # told after the bytes that came before it
                break
            now = time.monotonic()
        return count, waited

    def _tell(self, count: int) -> None:
        """Let the parser count bytes that it did not see. Raises OutOfStep, ConnectionError."""
        payload = self._payload
        self._rest -= count
        expected = payload.total_bytes + count
        while count > 0:
            size = min(count, len(ZEROS))
            self._protocol.data_received(ZEROS if size == len(ZEROS) else ZEROS[:size])
            payload.read_nowait()
            count -= size
        if payload.total_bytes != expected or payload.is_eof() != (self._rest == 0):
            lost = self._protocol.transport is None
            self._transport.abort()
            self.close()
            if lost:
                raise ConnectionResetError("the connection is lost")
            raise OutOfStep(f"{payload.total_bytes} bytes instead of {expected}, {self._rest} to come")
        if self._rest:
            self._transport.pause_reading()  # reading from the stream has resumed it


def _duplicate(transport: asyncio.Transport) -> int:
    """Another descriptor of the transport's socket. O_NONBLOCK is shared with it, and stays as it is."""
    return os.dup(transport.get_extra_info("socket").fileno())


async def _writable(loop: asyncio.AbstractEventLoop, fd: int) -> None:
    ready = loop.create_future()
    loop.add_writer(fd, _wake, ready)
    try:
        await ready
    finally:
        loop.remove_writer(fd)


async def _readable(loop: asyncio.AbstractEventLoop, fd: int) -> None:
    ready = loop.create_future()
    loop.add_reader(fd, _wake, ready)
    try:
        await ready
    finally:
        loop.remove_reader(fd)


def _wake(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
