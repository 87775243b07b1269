"""Sends requests over one connection and holds every answer to what an S3 answer has to be, whatever was asked."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote
from xml.etree import ElementTree

from tests.signing import Signer
from tests.wire.raw import Answer, Wire


def path(bucket: str, key: bytes | None = None, query: str = "") -> str:
    """A request target; the key is escaped byte for byte."""
    target = f"/{bucket}" if key is None else f"/{bucket}/{quote(key, safe='')}"
    return f"{target}?{query}" if query else target


def check(answer: Answer, method: str, asked: object) -> Answer:
    """Raises AssertionError for a failure of ours, and for an error that a client could not read."""
    assert answer.status < 500 or answer.status in (501, 503), (asked, answer)
    assert b"Traceback" not in answer.body, (asked, answer)
    if answer.status == 503:
        assert "retry-after" in answer.headers, (asked, answer)
    assert "x-amz-request-id" in answer.headers, (asked, answer)
    if answer.status >= 400 and method != "HEAD":
        error = ElementTree.fromstring(answer.body)
        assert error.tag == "Error" and error.findtext("Code") and error.findtext("RequestId"), (asked, answer)
    return answer


class Sender:
    """One client. A connection that the server announced to close is opened anew, no other end is accepted."""

    def __init__(self, port: int, signer: Signer) -> None:
        self._port, self._signer = port, signer
        self._wire: Wire | None = None

    def ask(self, method: str, target: str, headers: Mapping[str, str] | None = None, body: bytes = b"") -> Answer:
        """A well-signed request."""
        return self.raw(method, self.signed(method, target, headers, body))

    def signed(self, method: str, target: str, headers: Mapping[str, str] | None = None, body: bytes = b"") -> bytes:
        return self._signer.request(method, target, headers, body)

    def raw(self, method: str, data: bytes) -> Answer:
        """Any bytes that are one request to an HTTP parser."""
        wire = self._wire = self._wire or Wire(self._port)
        wire.send(data)
        answer = wire.answer(method)
        if answer.headers.get("connection") == "close":
            self.close()
        return check(answer, method, data[:2000])

    def close(self) -> None:
        if self._wire is not None:
            self._wire.close()
            self._wire = None
