"""A pool of sandboxed children for parsers of hostile bytes: persistent, so that a call costs a round trip on a socket,
and killed and replaced when one dies or takes too long.

Small jobs share frames: those asked for in one turn of the loop, and those that arrive while a frame is under way make
up the next one, unless it takes long. A batch whose child dies is taken apart and each job tried once
more alone, so that one bad content does not fail its neighbours. Heavy jobs leave one child free for small ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from processing.frames import PREFIX, frame, header, header_length

GATHER = 0.005  # seconds that small jobs wait for a frame under way before another child gets them
SHARED = 5.0  # seconds for a frame of several jobs; then each has its own time alone
CHUNK = 64 << 10

_ROOT = Path(__file__).resolve().parent.parent


class SandboxError(Exception):
    """A job gave no result. code: ``timeout``, ``killed``, ``memory``, ``start``, or a parser's own word."""

    def __init__(self, code: str, text: str = "") -> None:
        super().__init__(text or code)
        self.code = code


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """memory in bytes of address space, cpu and wall in seconds per job, payload and reply in bytes."""

    children: int = 2
    memory: int = 512 << 20
    cpu: int = 30
    wall: float = 60.0
    files: int = 32
    start: float = 30.0
    batch: int = 64
    small: int = 64 << 10  # a job up to this many bytes may share a frame
    reply: int = 64 << 20
    jobs: int = 10_000  # after these a child is replaced: what leaks, leaks in bounds
    table: str = "processing.parsers.table"  # the module whose load() gives a child its operations


@dataclass(frozen=True, slots=True)
class Result:
    """value: small JSON. payload: raw bytes."""

    value: Any
    payload: bytes = b""


@dataclass(slots=True)
class _Job:
    op: str
    params: Mapping[str, Any]
    length: int
    data: bytes | None  # or
    source: AsyncIterator[bytes] | None
    wall: float
    future: asyncio.Future[Result]
    alone: bool
    task: asyncio.Task[None] | None = None


class _ChildDied(Exception):
    pass


class _SourceFailed(Exception):
    def __init__(self, cause: Exception) -> None:
        super().__init__()
        self.cause = cause


@dataclass(slots=True)
class SandboxCounts:
    """What metrics may read."""

    started: int = 0
    killed: dict[str, int] = field(default_factory=dict)  # by code
    network: str = ""  # what the newest child sees: none or host


class Sandbox:
    """Starts no process before the first call. One event loop per instance."""

    def __init__(self, limits: SandboxLimits | None = None) -> None:
        self.limits = limits or SandboxLimits()
        self.counts = SandboxCounts()
        self._small: deque[_Job] = deque()
        self._heavy: deque[_Job] = deque()
        self._idle: list[_Child] = []
        self._busy: dict[asyncio.Task[None], list[_Job]] = {}
        self._frame: asyncio.Task[None] | None = None  # the last one of small jobs, while it is under way
        self._sent = 0.0
        self._called = False
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    async def call(
        self,
        op: str,
        params: Mapping[str, Any] | None = None,
        data: bytes | AsyncIterator[bytes] = b"",
        *,
        length: int | None = None,
        wall: float | None = None,
    ) -> Result:
        """Run one operation of processing.parsers in a child.

        data: the bytes, or a source of exactly length bytes, which is passed on without being collected here. wall:
        seconds from the first byte sent to the answer. Raises SandboxError, and whatever the source raises.
        """
        if self._closed:
            raise SandboxError("start", "the sandbox is closed")
        whole = data if isinstance(data, bytes) else None
        size = len(whole) if whole is not None else length
        if size is None:
            raise ValueError("a source needs its length")
        small = whole is not None and size <= self.limits.small
        source = None if isinstance(data, bytes) else data
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        job = _Job(op, params or {}, size, whole, source, wall or self.limits.wall, future, alone=not small)
        (self._small if small else self._heavy).append(job)
        if not self._called:
            self._called = True
            asyncio.get_running_loop().call_soon(self._dispatch)
        try:
            return await future
        except asyncio.CancelledError:
            if job.task is not None and job.alone:
                job.task.cancel()
            raise

    async def close(self) -> None:
        """Kill every child; calls under way fail."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for task in list(self._busy):
            task.cancel()
        if self._busy:
            await asyncio.wait(set(self._busy))
        for job in (*self._small, *self._heavy):
            _fail(job, SandboxError("start", "the sandbox is closed"))
        self._small.clear()
        self._heavy.clear()
        while self._idle:
            await self._idle.pop().kill()

    def _dispatch(self) -> None:
        self._called = False
        loop = asyncio.get_running_loop()
        while not self._closed and len(self._busy) < self.limits.children:
            batch = self._next_batch(self._frame is not None and loop.time() - self._sent < GATHER)
            if not batch:
                break
            task = loop.create_task(self._serve(batch), name="sandbox")
            self._busy[task] = batch
            if not batch[0].alone:
                self._frame, self._sent = task, loop.time()
            for job in batch:
                job.task = task
            task.add_done_callback(self._served)
        if self._small and self._timer is None and not self._closed and len(self._busy) < self.limits.children:
            self._timer = loop.call_later(GATHER, self._overdue)

    def _overdue(self) -> None:
        self._timer = None
        self._dispatch()

    def _served(self, task: asyncio.Task[None]) -> None:
        if task is self._frame:
            self._frame = None
        if not task.cancelled():
            task.exception()  # the jobs' futures carry what there is to say
        for job in self._busy.pop(task):
            if task.cancelled():
                _fail(job, SandboxError("killed", "the call was given up"))
        self._dispatch()

    def _next_batch(self, gathering: bool) -> list[_Job]:
        """gathering: small jobs that may share a frame wait for the one under way."""
        batch: list[_Job] = []
        while self._small and len(batch) < self.limits.batch and (self._small[0].alone or not gathering):
            if self._small[0].future.done():
                self._small.popleft()
                continue
            if batch and (self._small[0].alone or batch[0].alone):
                break
            batch.append(self._small.popleft())
        while not batch and self._heavy and self._heavies() < max(1, self.limits.children - 1):
            job = self._heavy.popleft()
            if not job.future.done():
                batch.append(job)
        return batch

    def _heavies(self) -> int:
        return sum(batch[0].data is None or batch[0].length > self.limits.small for batch in self._busy.values())

    async def _serve(self, batch: list[_Job]) -> None:
        child = self._idle.pop() if self._idle else None
        try:
            if child is None:
                child = await _Child.start(self.limits)
                self.counts.started += 1
                self.counts.network = child.network
            wall = max(job.wall for job in batch)
            async with asyncio.timeout(wall if len(batch) == 1 else min(wall, SHARED)):
                results = await child.exchange(batch, self.limits.reply)
        except TimeoutError:
            self._lost("timeout", batch)
        except _ChildDied:
            self._lost("killed", batch)
        except _SourceFailed as error:
            _fail(batch[0], error.cause)
        except SandboxError as error:
            for job in batch:
                _fail(job, error)
        else:
            for job, result in zip(batch, results, strict=True):
                _settle(job, result)
            if child.served < self.limits.jobs and not any(_is_memory(result) for result in results):
                self._idle.append(child)
                child = None
        finally:
            if child is not None:
                await child.kill()

    def _lost(self, code: str, batch: list[_Job]) -> None:
        self.counts.killed[code] = self.counts.killed.get(code, 0) + 1
        for job in reversed(batch):
            # The child may have been dead before, or a neighbour have killed it; who ran alone did it itself.
            if not job.alone and (code == "killed" or len(batch) > 1):
                job.alone = True
                self._small.appendleft(job)
            else:
                _fail(job, SandboxError(code))


def _fail(job: _Job, error: Exception) -> None:
    if not job.future.done():
        job.future.set_exception(error)


def _settle(job: _Job, result: Result | SandboxError) -> None:
    if job.future.done():
        return
    if isinstance(result, SandboxError):
        job.future.set_exception(result)
    else:
        job.future.set_result(result)


def _is_memory(result: Result | SandboxError) -> bool:
    return isinstance(result, SandboxError) and result.code == "memory"


class _Child:
    """One process and the socket to it."""

    def __init__(self, process: subprocess.Popen[bytes], sock: socket.socket) -> None:
        self._process = process
        self._sock = sock
        self._rest = bytearray()  # received, not taken yet
        self._loop = asyncio.get_running_loop()
        self.network = ""
        self.served = 0

    @classmethod
    async def start(cls, limits: SandboxLimits) -> _Child:
        """Raises SandboxError("start")."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            told = ("memory", "cpu", "files", "table")
            argument = json.dumps({name: getattr(limits, name) for name in told})
            child = cls(_spawn(argument, theirs), ours)
        try:
            async with asyncio.timeout(limits.start):
                hello = (await child._header())["hello"]
                if "error" in hello:
                    raise SandboxError("start", f"a sandboxed child does not start: {hello['error']}")
                child.network = str(hello["network"])
        except (TimeoutError, _ChildDied, KeyError, TypeError):
            await child.kill()
            raise SandboxError("start", "a sandboxed child does not start") from None
        except BaseException:
            await child.kill()
            raise
        return child

    async def exchange(self, batch: list[_Job], most: int) -> list[Result | SandboxError]:
        """Send jobs, return their results in order. Raises _ChildDied, and whatever a source raises."""
        self.served += len(batch)
        jobs = [{"op": job.op, "params": job.params, "length": job.length} for job in batch]
        await self._send(b"".join([frame({"jobs": jobs}), *(job.data for job in batch if job.data is not None)]))
        for job in batch:
            if job.source is not None:
                await self._pour(job.source, job.length)
        results: list[Result | SandboxError] = []
        try:
            entries = (await self._header())["results"]
            for entry, _ in zip(entries, batch, strict=True):
                if "error" in entry:
                    results.append(SandboxError(str(entry["error"]), str(entry.get("kind", ""))))
                    continue
                length = int(entry["length"])
                if not 0 <= length <= most:
                    raise _ChildDied
                results.append(Result(entry["value"], await self._receive(length)))
        except (KeyError, TypeError, ValueError):
            raise _ChildDied from None  # it speaks in tongues: treat it as taken over
        return results

    async def _pour(self, source: AsyncIterator[bytes], length: int) -> None:
        left = length
        while True:
            try:
                data = await anext(source, None)
            except Exception as error:  # its consumer's to judge
                raise _SourceFailed(error) from error
            if data is None:
                break
            left -= len(data)
            if left < 0:
                break
            await self._send(data)
        if left:
            raise SandboxError("corrupt-source", "the source does not have the length it should have")

    async def _send(self, data: bytes) -> None:
        try:
            await self._loop.sock_sendall(self._sock, data)
        except OSError:
            raise _ChildDied from None

    async def _header(self) -> Any:
        try:
            length = header_length(await self._receive(PREFIX.size))
            return header(await self._receive(length))
        except (ValueError, RecursionError):
            raise _ChildDied from None

    async def _receive(self, length: int) -> bytes:
        rest = self._rest
        while len(rest) < length <= CHUNK:
            try:
                data = await self._loop.sock_recv(self._sock, CHUNK)
            except OSError:
                raise _ChildDied from None
            if not data:
                raise _ChildDied
            rest += data
        taken = bytes(rest[:length])
        del rest[:length]
        return taken if len(taken) == length else await self._receive_long(taken, length)

    async def _receive_long(self, start: bytes, length: int) -> bytes:
        buffer = bytearray(length)
        buffer[: len(start)] = start
        view = memoryview(buffer)[len(start) :]
        while view:
            try:
                count = await self._loop.sock_recv_into(self._sock, view)
            except OSError:
                raise _ChildDied from None
            if not count:
                raise _ChildDied
            view = view[count:]
        return bytes(buffer)

    async def kill(self) -> None:
        self._sock.close()
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        try:
            await asyncio.to_thread(self._process.wait)
        except asyncio.CancelledError:
            self._process.wait()  # it was killed: a matter of milliseconds, and no zombie stays behind
            raise


def _spawn(argument: str, sock: socket.socket) -> subprocess.Popen[bytes]:
    # Nothing of our environment: it holds secrets. Own session: Ctrl-C on the terminal is the owner's to handle.
    # -P: never import from the working folder.
    paths = [str(_ROOT), *(path for path in sys.path if path.startswith("/"))]  # it finds what we find
    environment = {
        "PYTHONPATH": os.pathsep.join(paths),
        "PATH": os.defpath,
        "LC_ALL": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return subprocess.Popen(
        [sys.executable, "-P", "-s", "-m", "processing.sandbox_child", argument],
        stdin=sock.fileno(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        env=environment,
        start_new_session=True,
    )
