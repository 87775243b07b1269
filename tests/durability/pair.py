"""Two independent servers on one database and one blob folder, and clients that do not repeat requests."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import ClientError

from tests.server import Server, StartServer


@dataclass
class Pair:
    first: Server
    second: Server

    def clients(self) -> tuple[Any, Any]:
        return self.first.client(), self.second.client()


def start_pair(start_server: StartServer, environment: dict[str, str] | None = None) -> Pair:
    first = start_server(environment)
    return Pair(first, start_server(environment, beside=first))


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
