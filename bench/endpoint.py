"""What is measured: an address, its keys, its processes; and a small client for what is not load."""

from __future__ import annotations

import http.client
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO
from urllib.parse import urlsplit

from bench.family import Family
from bench.presign import Presigner

OURS = "sluice"
PATIENCE = 900.0  # seconds for one request


class Refused(Exception):
    """An answer other than 2xx to a request that a measurement builds on."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """url is scheme and host only. Without access_key it is a plain web server: GET and PUT of unsigned paths.

    pids are the roots of its process family; () means that CPU and memory are not measured. admin and dsn are known of
    ours only: the admin port's address, and the database's.
    """

    name: str
    url: str
    access_key: str = ""
    secret_key: str = ""
    pids: tuple[int, ...] = ()
    note: str = ""  # what is said of its durability
    admin: str = ""
    dsn: str = ""

    @property
    def host(self) -> str:
        return urlsplit(self.url).netloc

    @property
    def signed(self) -> bool:
        return bool(self.access_key)

    @property
    def family(self) -> Family | None:
        return Family(self.pids) if self.pids else None

    def paths(self, method: str, paths: Sequence[str], query: Sequence[tuple[str, str]] = ()) -> list[str]:
        """Ready to be sent; plain ones when it is a plain server."""
        if not self.signed:
            return list(paths)
        return list(Presigner(self.access_key, self.secret_key, self.host).paths(method, paths, query))

    def path(
        self,
        method: str,
        path: str,
        query: Sequence[tuple[str, str]] = (),
        headers: Mapping[str, str] | None = None,
    ) -> str:
        if not self.signed:
            return path
        return Presigner(self.access_key, self.secret_key, self.host).path(method, path, query, headers)


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]  # lower-case names
    body: bytes


class Client:
    """One connection. Not for use by several threads."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        kind = http.client.HTTPSConnection if endpoint.url.startswith("https") else http.client.HTTPConnection
        self.connection = kind(endpoint.host, timeout=PATIENCE)

    def call(
        self,
        method: str,
        path: str,
        query: Sequence[tuple[str, str]] = (),
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | IO[bytes] | None = None,
        length: int | None = None,
    ) -> Answer:
        """headers are signed. Any status is returned."""
        target = self.endpoint.path(method, path, query, headers)
        extra = {} if length is None else {"Content-Length": str(length)}
        self.connection.request(method, target, body=body, headers={**(headers or {}), **extra})
        answer = self.connection.getresponse()
        content = answer.read()
        return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, content)

    def good(
        self,
        method: str,
        path: str,
        query: Sequence[tuple[str, str]] = (),
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | IO[bytes] | None = None,
        length: int | None = None,
    ) -> Answer:
        """As call(). Raises Refused, also for a 200 whose body is an error (copy, completion)."""
        answer = self.call(method, path, query, headers=headers, body=body, length=length)
        if answer.status // 100 != 2 or b"<Error>" in answer.body[:2000]:
            raise Refused(f"{self.endpoint.name}: {method} {path} -> {answer.status} {answer.body[:500]!r}")
        return answer

    def close(self) -> None:
        self.connection.close()
