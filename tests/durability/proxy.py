"""Stands between a server and its database, and can lose everything that passes: a network that is cut."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from tests import pg

NAME = ".s.PGSQL.5432"
PATIENCE = 10.0


class Proxy:
    """A socket of PostgreSQL's in a folder of its own. While it is cut nothing is forwarded and nothing refused: both
    ends hear silence, as they do when packets get lost. What was on its way arrives when it is mended."""

    def __init__(self, dsn: str, folder: Path) -> None:
        parts = urlsplit(dsn)
        self.dsn = parts._replace(query=f"host={folder}").geturl()
        self._real = str(Path(parse_qs(parts.query)["host"][0]) / NAME)
        self._path = str(folder / NAME)
        self._loop = asyncio.new_event_loop()
        self._through = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def start(self) -> None:
        self._thread.start()
        self.mend()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(PATIENCE)

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(PATIENCE)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)

    def cut(self) -> None:
        self._loop.call_soon_threadsafe(self._through.clear)

    def mend(self) -> None:
        self._loop.call_soon_threadsafe(self._through.set)

    async def _listen(self) -> None:
        self._server = await asyncio.start_unix_server(self._serve, self._path, backlog=200)
        Path(self._path).chmod(0o777)

    async def _close(self) -> None:
        self._server.close()
        for task in set(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await self._through.wait()
            back, forth = await asyncio.open_unix_connection(self._real)
            pumps = [
                asyncio.ensure_future(self._pump(reader, forth)),
                asyncio.ensure_future(self._pump(back, writer)),
            ]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for each in (*pumps, forth, writer):
                    each.cancel() if isinstance(each, asyncio.Future) else each.close()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(1 << 16):
                await self._through.wait()
                sink.write(data)
                await sink.drain()


@contextmanager
def proxied(dsn: str) -> Iterator[Proxy]:
    folder = Path(tempfile.mkdtemp(prefix="x-", dir=pg.session_root()))
    folder.chmod(0o711)
    proxy = Proxy(dsn, folder)
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.stop()
