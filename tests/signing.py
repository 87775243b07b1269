"""Signature Version 4 for tests that speak raw HTTP: written from the S3 reference, apart from the product's code."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

EMPTY = hashlib.sha256(b"").hexdigest()


@dataclass(frozen=True)
class Signer:
    """Signs as one access key. host is what the Host header says."""

    access_key: str
    secret: str
    host: str
    region: str = "us-east-1"

    def key(self, day: str) -> bytes:
        key = ("AWS4" + self.secret).encode()
        for part in (day, self.region, "s3", "aws4_request"):
            key = hmac.digest(key, part.encode(), "sha256")
        return key

    def headers(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str] | None = None,
        *,
        payload: str = "UNSIGNED-PAYLOAD",
        now: datetime | None = None,
        canonical_query: str | None = None,
    ) -> dict[str, str]:
        """All headers of a signed request. target is raw, payload the value of x-amz-content-sha256.

        canonical_query: signed instead of the target's own query, in order.
        """
        stamp = f"{(now or datetime.now(UTC)):%Y%m%dT%H%M%SZ}"
        full = {"host": self.host, "x-amz-date": stamp, "x-amz-content-sha256": payload}
        full |= {name.lower(): value for name, value in (headers or {}).items()}
        unsigned = {"content-length", "transfer-encoding", "expect", "connection"}
        names = sorted(name for name in full if name not in unsigned)
        path, _, query = target.partition("?")
        pairs = sorted(pair if "=" in pair else pair + "=" for pair in query.split("&") if pair)
        lines = "".join(f"{name}:{' '.join(full[name].split())}\n" for name in names)
        query = "&".join(pairs) if canonical_query is None else canonical_query
        canonical = "\n".join([method, path, query, lines, ";".join(names), payload])
        scope = f"{stamp[:8]}/{self.region}/s3/aws4_request"
        to_sign = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
        signature = hmac.digest(self.key(stamp[:8]), to_sign.encode(), "sha256").hex()
        full["authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={self.access_key}/{scope}, SignedHeaders={';'.join(names)}, "
            f"Signature={signature}"
        )
        return full

    def request(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        payload: str | None = None,
        length: int | None = None,
    ) -> bytes:
        """A whole signed request. length: a Content-Length that differs from the body's."""
        given = dict(headers or {})
        if not any(name.lower() in ("content-length", "transfer-encoding") for name in given):
            given["Content-Length"] = str(len(body) if length is None else length)
        signed = self.headers(method, target, given, payload=payload or hashlib.sha256(body).hexdigest())
        return head(method, target, signed) + body

    def chunked(
        self,
        method: str,
        target: str,
        pieces: Iterable[bytes],
        headers: Mapping[str, str] | None = None,
        *,
        trailer: tuple[str, str] | None = None,
        sign: bool = True,
        sign_trailer: bool = True,
    ) -> bytes:
        """A whole aws-chunked request: signed or unsigned chunks, with or without a trailer."""
        chunks = [*pieces, b""]
        kind = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD" if sign else "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
        if sign and trailer is not None:
            kind += "-TRAILER"
        given = {"x-amz-decoded-content-length": str(sum(map(len, chunks))), **(headers or {})}
        given.setdefault("content-encoding", "aws-chunked")
        if trailer is not None:
            given["x-amz-trailer"] = trailer[0]
        signed = self.headers(method, target, given, payload=kind)
        stamp, signature = signed["x-amz-date"], signed["authorization"].rpartition("=")[2]
        scope, key = f"{stamp[:8]}/{self.region}/s3/aws4_request", self.key(stamp[:8])
        body = b""
        for chunk in chunks:
            extension = ""
            if sign:
                text = "\n".join(
                    ["AWS4-HMAC-SHA256-PAYLOAD", stamp, scope, signature, EMPTY, hashlib.sha256(chunk).hexdigest()]
                )
                signature = hmac.digest(key, text.encode(), "sha256").hex()
                extension = f";chunk-signature={signature}"
            body += f"{len(chunk):x}{extension}\r\n".encode() + chunk + (b"\r\n" if chunk else b"")
        if trailer is not None:
            line = f"{trailer[0]}:{trailer[1]}"
            body += line.encode() + b"\r\n"
            if sign and sign_trailer:
                digest = hashlib.sha256(line.encode() + b"\n").hexdigest()
                text = "\n".join(["AWS4-HMAC-SHA256-TRAILER", stamp, scope, signature, digest])
                body += f"x-amz-trailer-signature:{hmac.digest(key, text.encode(), 'sha256').hex()}\r\n".encode()
        body += b"\r\n"
        return head(method, target, {**signed, "content-length": str(len(body))}) + body


def head(method: str, target: str, headers: Mapping[str, str]) -> bytes:
    """A request's head."""
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("utf-8", "surrogateescape")
