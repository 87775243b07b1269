"""From a request line and headers to what is meant: bucket, key, parameters, and the Call a handler gets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from gateway.domain.names import check_bucket, check_key
from gateway.s3.errors import S3Error
from gateway.s3.headers import Headers, Query, decode_path, split_host
from gateway.s3.operations import Operation, Target

if TYPE_CHECKING:
    from gateway.domain.policy import Caller
    from gateway.s3.payload import Payload

__all__ = ["Call", "Headers", "Parsed", "Query", "Target", "parse", "split_target"]

# Paths of the service model that name no bucket.
_NOT_BUCKETS = frozenset({"WriteGetObjectResponse"})


class Parsed(msgspec.Struct, frozen=True):
    """A request taken apart. path is raw, as it was sent and as it is signed; key is decoded, once."""

    method: str
    raw_target: str
    path: str
    query: Query
    headers: Headers
    target: Target
    bucket: str | None
    key: bytes | None
    virtual: bool


class Call(msgspec.Struct):
    """One request on its way through the gateway. place is where it was let in (ops/access.py)."""

    request_id: str
    method: str
    raw_target: str
    path: str
    query: Query
    headers: Headers
    operation: Operation
    bucket: str | None
    key: bytes | None
    caller: Caller
    now: datetime
    secure: bool
    body: Any = None
    payload: Payload | None = None
    place: Any = None  # the bucket it was let into (gateway/ops/access.py)

    @property
    def resource(self) -> str:
        """What an error document shows as Resource: the path, decoded."""
        return decode_path(self.path).decode("utf-8")


def parse(
    method: str,
    raw_target: str,
    headers: Headers | Iterable[tuple[bytes | str, bytes | str]],
    domain: str | None = None,
    hosts: Sequence[str] = (),
) -> Parsed:
    """Take a request apart: path style, or virtual-host style under domain.

    hosts are the host values to look for a bucket in (default: the Host header). The bucket ends at the first slash
    of the raw path, so that an escaped slash never moves the border. Raises InvalidURI, InvalidBucketName,
    KeyTooLongError.
    """
    if not isinstance(headers, Headers):
        headers = Headers(headers)
    path, query_text = split_target(raw_target)
    query = Query(query_text)
    headers.hoist(query)
    bucket = _bucket_of_host(hosts or (headers.get("host", "") or "",), domain)
    virtual = bucket is not None
    rest = path.removeprefix("/")
    if bucket is None:
        raw_bucket, _, rest = rest.partition("/")
        bucket = decode_path(raw_bucket).decode("utf-8")
    if not bucket:
        if rest or path not in ("", "/", "*"):
            raise S3Error("InvalidBucketName", BucketName="")
        return Parsed(method, raw_target, path, query, headers, Target.SERVICE, None, None, virtual)
    if bucket == "*" and path == "*":
        return Parsed(method, raw_target, path, query, headers, Target.SERVICE, None, None, virtual)
    if bucket not in _NOT_BUCKETS:
        check_bucket(bucket)
    if not rest:
        return Parsed(method, raw_target, path, query, headers, Target.BUCKET, bucket, None, virtual)
    key = check_key(decode_path(rest))
    return Parsed(method, raw_target, path, query, headers, Target.OBJECT, bucket, key, virtual)


def split_target(raw_target: str) -> tuple[str, str]:
    """(raw path, raw query) of a request target in origin form or, as proxies send it, absolute form (RFC 9112, 3.2).

    The path is never normalized: ``//``, ``.`` and ``..`` are parts of keys.
    """
    target = raw_target
    if not target.startswith("/"):
        scheme, separator, rest = target.partition("://")
        if separator and scheme.lower() in ("http", "https"):
            end = min((at for at in (rest.find("/"), rest.find("?")) if at >= 0), default=len(rest))
            target = rest[end:]
    path, _, query = target.partition("?")
    return path or "/", query


def _bucket_of_host(hosts: Sequence[str], domain: str | None) -> str | None:
    if not domain:
        return None
    suffix = "." + split_host(domain)[0].lower()
    for host in hosts:
        name = split_host(host)[0].lower().rstrip(".")
        if name.endswith(suffix) and len(name) > len(suffix):
            return name[: -len(suffix)]
    return None
