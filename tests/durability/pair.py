"""Two independent servers on one database and one blob folder, and clients that do not repeat requests."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from botocore.exceptions import ClientError

from tests import pg
from tests.server import Server, make_server

ONCE: dict[str, Any] = {
    "retries": {"total_max_attempts": 1}
}  # botocore's max_attempts counts repeats: an error would hide behind one


@dataclass
class Pair:
    first: Server
    second: Server

    def clients(self) -> tuple[Any, Any]:
        return self.first.client(**ONCE), self.second.client(**ONCE)


@contextmanager
def running_pair(environment: Mapping[str, str] | None = None) -> Iterator[Pair]:
    """Two servers for as long as a module wants them: starting is what costs, so both start at once."""
    folder = Path(tempfile.mkdtemp(prefix="p-", dir=pg.session_root()))
    folder.chmod(0o711)
    database = pg.create_database()
    first = make_server(folder, environment, database=database)
    second = make_server(folder, environment, database=database, beside=first)
    try:
        for server in (first, second):
            server.start(wait=False)
        for server in (first, second):
            server.wait_ready()
        yield Pair(first, second)
    finally:
        for server in (first, second):
            server.kill()
        pg.drop_database(database)
        shutil.rmtree(folder, ignore_errors=True)


def status(call: Callable[[], Any]) -> tuple[int, str]:
    """(HTTP status, error code or "") of a request."""
    try:
        answer: dict[str, Any] = call()
    except ClientError as error:
        code: int = error.response["ResponseMetadata"]["HTTPStatusCode"]
        return code, error.response["Error"]["Code"]
    return answer["ResponseMetadata"]["HTTPStatusCode"], ""


def together(calls: list[Callable[[], Any]], threads: int = 16) -> list[tuple[int, str]]:
    """All calls at once, their answers in order."""
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(status, calls))
