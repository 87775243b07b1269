"""Signature Version 4 (Amazon S3 API reference, "Authenticating Requests"), without any I/O.

read() takes the authentication a request presents apart and refuses what is malformed, too old or not for this
endpoint; the caller then looks the access key up and hands its secret to verify(). Checks come in the order in which
S3 makes them, so that a request with several faults gets the answer S3 gives.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import lru_cache
from hashlib import sha256
from typing import Any

import msgspec

from gateway.s3.call import split_target
from gateway.s3.canonical import canonical_paths, canonical_query, canonical_requests
from gateway.s3.errors import S3Error, invalid_argument
from gateway.s3.headers import Headers, Query, remembered
from gateway.s3.payload import UNSIGNED_PAYLOAD, Payload, PayloadForm, parse_payload, payload_of

__all__ = [
    "Payload",
    "PayloadForm",
    "Presented",
    "Signed",
    "payload_of",
    "read",
    "signing_key",
    "unknown_key",
    "verify",
]

ALGORITHM = "AWS4-HMAC-SHA256"
_ECDSA = "AWS4-ECDSA-P256-SHA256"
SERVICE = "s3"
TERMINAL = "aws4_request"
MAX_SKEW = timedelta(minutes=15)
MAX_EXPIRES = 604_800  # seconds: a week
EMPTY_SHA256 = sha256(b"").hexdigest()

_ONE_MECHANISM = (
    "Only one auth mechanism allowed; only the X-Amz-Algorithm query parameter, Signature query string parameter or "
    "the Authorization header should be specified"
)
_USE_V4 = "The authorization mechanism you have provided is not supported. Please use AWS4-HMAC-SHA256."
_NO_DATE = "AWS authentication requires a valid Date or x-amz-date header"
_NOT_SIGNED = "There were headers present in the request which were not signed"
_SHAPE = 'the Credential is mal-formed; expecting "<YOUR-AKID>/YYYYMMDD/REGION/SERVICE/aws4_request".'
_PRESIGN = (
    "X-Amz-Algorithm",
    "X-Amz-Credential",
    "X-Amz-Signature",
    "X-Amz-Date",
    "X-Amz-SignedHeaders",
    "X-Amz-Expires",
)
_SIGNING = frozenset(_PRESIGN[:3])  # any of them says that the URL is meant to be presigned
# x-amz-content-sha256 stands in the canonical request whether or not it is among the signed headers; a content
# delivery network adds its request id behind the signer's back.
_MAY_BE_UNSIGNED = frozenset({"x-amz-content-sha256", "x-amz-cf-id"})

_ISO = re.compile(r"[0-9]{8}T[0-9]{6}Z\Z")
_ACCESS_KEY = re.compile(r"[\x21-\x7e]{1,128}\Z")
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}\Z")


Malformed = Callable[..., S3Error]


class Presented(msgspec.Struct, frozen=True):
    """A well-formed, timely authentication whose signature has yet to be compared."""

    access_key: str
    day: str
    region: str
    timestamp: str
    signed_headers: tuple[str, ...]
    signature: str
    payload: Payload
    content_sha256: str
    presigned: bool
    method: str
    paths: tuple[str, ...]
    query: str
    headers: Headers
    hosts: tuple[str, ...]

    @property
    def scope(self) -> str:
        return f"{self.day}/{self.region}/{SERVICE}/{TERMINAL}"


class Signed(msgspec.Struct, frozen=True):
    """A verified signature, and what the signatures of chunks chain on from."""

    access_key: str
    payload: Payload
    seed_signature: str
    signing_key: bytes
    timestamp: str
    scope: str
    presigned: bool


class WrongRegion(S3Error):
    """Signed for a region that is not answered for. scope: the one that the credential names."""

    def __init__(self, scope: str, told: S3Error) -> None:
        super().__init__(told.code, told.message, more=told.elements)
        self.scope = scope


def read(
    method: str,
    raw_target: str,
    headers: Headers,
    query: Query,
    *,
    now: datetime,
    region: str,
    regions: tuple[str, ...] = (),
    hosts: Sequence[str] = (),
) -> Presented | None:
    """What the request presents, None when it is anonymous.

    now is aware; region is this endpoint's, regions are further ones it answers for; hosts are the values the client
    may have signed as Host (default: the Host header, see headers.signed_hosts). Raises S3Error, WrongRegion.
    """
    lines = [line for line in headers.all("authorization") if line] if "authorization" in headers else []
    header_v4, query_v4 = bool(lines), not _SIGNING.isdisjoint(query)
    query_v2 = "Signature" in query and "AWSAccessKeyId" in query
    if len(lines) > 1 or header_v4 + query_v4 + query_v2 > 1:
        raise invalid_argument("Authorization", ", ".join(lines) or None, _ONE_MECHANISM)
    if query_v2:
        raise S3Error("InvalidRequest", _USE_V4)
    if not header_v4 and not query_v4:
        return None
    if header_v4:
        authorization, timestamp = _read_header(lines[0], headers, now)
        malformed = _malformed_header
    else:
        authorization, timestamp = _read_query(query, now)
        malformed = _malformed_query
    credential, names, signature = authorization
    access_key, day, scope_region = _read_credential(credential, region, regions, malformed)
    if day != timestamp[:8]:
        raise _wrong_day(day, timestamp, presigned=query_v4)
    if not _ACCESS_KEY.match(access_key):
        raise unknown_key(access_key)
    signed_headers = _signed_names(names)
    payload, content_sha256 = _read_payload(headers, query, signed_headers, presigned=query_v4)
    _check_signed(headers, signed_headers)
    token = headers.get("x-amz-security-token") or query.get("X-Amz-Security-Token")
    if token:
        raise S3Error("InvalidToken", more={"Token-0": token})
    raw_path, raw_query = split_target(raw_target)
    return Presented(
        access_key=access_key,
        day=day,
        region=scope_region,
        timestamp=timestamp,
        signed_headers=signed_headers,
        signature=signature,
        payload=payload,
        content_sha256=content_sha256,
        presigned=query_v4,
        method=method,
        paths=canonical_paths(raw_path),
        query=canonical_query(raw_query),
        headers=headers,
        hosts=tuple(hosts) or (headers.get("host", "") or "",),
    )


def verify(presented: Presented, secret: str) -> Signed:
    """Compare the signature, in constant time. Raises SignatureDoesNotMatch, which shows what was signed here.

    Every candidate names the same bucket and key (see canonical_paths), and the same request otherwise; the first
    one is the request as it was sent.
    """
    key = signing_key(secret, presented.day, presented.region)
    given = presented.signature.encode("utf-8", "surrogateescape")
    first: tuple[str, str] | None = None
    for canonical in _candidates(presented):
        digest = sha256(canonical.encode("utf-8", "surrogateescape")).hexdigest()
        to_sign = f"{ALGORITHM}\n{presented.timestamp}\n{presented.scope}\n{digest}"
        expected = hmac.digest(key, to_sign.encode(), "sha256").hex()
        if hmac.compare_digest(expected.encode(), given):
            return Signed(
                presented.access_key,
                presented.payload,
                expected,
                key,
                presented.timestamp,
                presented.scope,
                presented.presigned,
            )
        first = first or (canonical, to_sign)
    assert first is not None
    canonical, to_sign = first
    raise S3Error(
        "SignatureDoesNotMatch",
        AWSAccessKeyId=presented.access_key,
        StringToSign=to_sign,
        SignatureProvided=presented.signature,
        StringToSignBytes=_spaced(to_sign),
        CanonicalRequest=canonical.encode("utf-8", "surrogateescape").decode("utf-8", "replace"),
        CanonicalRequestBytes=_spaced(canonical),
    )


@lru_cache(maxsize=1024)
def signing_key(secret: str, day: str, region: str, service: str = SERVICE) -> bytes:
    """The key of one day, region and service. Four HMACs, remembered because clients repeat themselves."""
    key = ("AWS4" + secret).encode()
    for part in (day, region, service, TERMINAL):
        key = hmac.digest(key, part.encode(), "sha256")
    return key


# --- the two places a signature may stand in -------------------------------------------------------------------------


def _read_header(line: str, headers: Headers, now: datetime) -> tuple[tuple[str, str, str], str]:
    """((credential, signed headers, signature), timestamp) of an Authorization header."""
    scheme, space, rest = line.partition(" ")
    if not space:
        message = "Authorization header is invalid -- one and only one ' ' (space) required"
        raise invalid_argument("Authorization", line, message)
    if scheme.upper() == "AWS":
        if rest.count(":") != 1 or rest.endswith(":"):
            message = "AWS authorization header is invalid.  Expected AwsAccessKeyId:signature"
            raise invalid_argument("Authorization", line, message)
        raise S3Error("InvalidRequest", _USE_V4)
    if scheme.upper() == _ECDSA:
        raise S3Error("NotImplemented", f"{_ECDSA} is not implemented", Header="Authorization")
    if scheme.upper() != ALGORITHM:
        raise invalid_argument("Authorization", line, "Unsupported Authorization Type")
    sent, when = _read_date(headers)
    if abs(now - when) > MAX_SKEW:
        raise S3Error(
            "RequestTimeTooSkewed",
            RequestTime=sent,
            ServerTime=f"{now.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}",
            MaxAllowedSkewMilliseconds=int(MAX_SKEW.total_seconds() * 1000),
        )
    fields: dict[str, str] = {}
    components = [component.strip() for component in rest.split(",")]
    for component in components:
        name, equals, value = component.partition("=")
        if not equals:
            if len(components) >= 3:
                raise _malformed_header(f'the authorization component "{component}" is malformed.')
            continue
        fields.setdefault(name.strip(), value.strip())
    missing = [name for name in ("Credential", "SignedHeaders", "Signature") if not fields.get(name)]
    if missing and len(components) < 3:
        message = "the authorization header requires three components: Credential, SignedHeaders, and Signature."
        raise _malformed_header(message)
    if missing:
        raise _malformed_header(f"missing {missing[0]}.")
    return (fields["Credential"], fields["SignedHeaders"], fields["Signature"]), f"{when:%Y%m%dT%H%M%SZ}"


def _read_query(query: Query, now: datetime) -> tuple[tuple[str, str, str], str]:
    """((credential, signed headers, signature), timestamp) of a presigned URL, its lifetime checked."""
    algorithm = query.get("X-Amz-Algorithm")
    if algorithm == _ECDSA:
        raise S3Error("NotImplemented", f"{_ECDSA} is not implemented")
    if algorithm is not None and algorithm != ALGORITHM:
        raise _malformed_parameters('X-Amz-Algorithm only supports "AWS4-HMAC-SHA256"')
    _, credential, signature, timestamp, names, expires_text = values = [query.get(name) or "" for name in _PRESIGN]
    if not all(values):
        raise S3Error("AuthorizationQueryParametersError")
    when = _parse_iso(timestamp)
    if when is None:
        raise _malformed_parameters("X-Amz-Date must be in the ISO8601 Long Format \"yyyyMMdd'T'HHmmss'Z'\"")
    if not _INTEGER.match(expires_text):
        raise _malformed_parameters("X-Amz-Expires should be a number")
    expires = int(expires_text)
    if expires < 0:
        raise _malformed_parameters("X-Amz-Expires must be non-negative")
    if expires > MAX_EXPIRES:
        message = "X-Amz-Expires must be less than a week (in seconds); that is, the given X-Amz-Expires must be less"
        raise _malformed_parameters(f"{message} than {MAX_EXPIRES} seconds")
    end = when + timedelta(seconds=expires)
    if when - now > MAX_SKEW:
        milliseconds = str(int(when.timestamp() * 1000))
        raise S3Error("AccessDenied", "Request is not yet valid", more={"X-Amz-Date": milliseconds, **_times(end, now)})
    if now > end:
        raise S3Error("AccessDenied", "Request has expired", more={"X-Amz-Expires": expires_text, **_times(end, now)})
    return (credential, names, signature), timestamp


@remembered
def _read_credential(
    credential: str, region: str, regions: tuple[str, ...], malformed: Malformed
) -> tuple[str, str, str]:
    """(access key, day, region) of a credential scope; an access key may hold slashes."""
    parts = credential.rsplit("/", 4)
    if len(parts) != 5:
        raise malformed(_SHAPE)
    access_key, day, scope_region, service, terminal = parts
    if not access_key:
        raise malformed("a non-empty Access Key (AKID) must be provided in the credential.")
    if not scope_region:
        raise malformed("a non-empty region must be provided in the credential.")
    if scope_region != region and scope_region not in regions:
        told = malformed(f"the region '{scope_region}' is wrong; expecting '{region}'", Region=region)
        raise WrongRegion(scope_region, told)
    if service != SERVICE:
        raise malformed(f'incorrect service "{service}". This endpoint belongs to "{SERVICE}".')
    if terminal != TERMINAL:
        raise malformed(f'incorrect terminal "{terminal}". This endpoint uses "{TERMINAL}".')
    if _parse_iso(f"{day}T000000Z") is None:
        raise malformed(f'incorrect date format "{day}". This date in the credential must be in the format "yyyyMMdd".')
    return access_key, day, scope_region


def unknown_key(access_key: str) -> S3Error:
    """What the caller of read() answers when nobody has that access key."""
    return S3Error("InvalidAccessKeyId", AWSAccessKeyId=access_key)


@remembered
def _signed_names(text: str) -> tuple[str, ...]:
    return tuple(name.strip().lower() for name in text.split(";") if name.strip())


def _read_payload(
    headers: Headers, query: Query, signed_headers: tuple[str, ...], *, presigned: bool
) -> tuple[Payload, str]:
    """(what the body must be, the line that ends the canonical request).

    A presigned URL signs UNSIGNED-PAYLOAD unless it says otherwise, in the query or in a signed header; a header it
    does not cover still says how the body is to be checked, which can only refuse more.
    """
    text = headers.get("x-amz-content-sha256")
    if not presigned:
        if not text:
            raise S3Error("InvalidRequest", "Missing required header for this request: x-amz-content-sha256")
        return parse_payload(text), text
    line = query.get("X-Amz-Content-Sha256") or query.get("x-amz-content-sha256")
    if line is None and "x-amz-content-sha256" in signed_headers:
        line = text
    line = line or UNSIGNED_PAYLOAD
    return parse_payload(text or line), line


def _check_signed(headers: Headers, signed_headers: tuple[str, ...]) -> None:
    """Host and each x-amz-* header have to be signed: whoever changes one on the way would go unnoticed."""
    unsigned = [
        name
        for name in headers
        if (name == "host" or name.startswith("x-amz-"))
        and name not in signed_headers
        and name not in _MAY_BE_UNSIGNED
        and name not in headers.hoisted
    ]
    if "host" not in headers and "host" not in signed_headers:
        unsigned.insert(0, "host")
    if unsigned:
        raise S3Error("AccessDenied", _NOT_SIGNED, HeadersNotSigned=", ".join(unsigned))


def _candidates(presented: Presented) -> Iterator[str]:
    """Canonical requests, the likeliest first."""
    return canonical_requests(
        presented.method,
        presented.paths,
        presented.query,
        presented.headers,
        presented.signed_headers,
        presented.hosts,
        presented.content_sha256,
    )


def _spaced(text: str) -> str:
    """Bytes as S3 shows them: two hexadecimal digits each, with blanks between."""
    return text.encode("utf-8", "surrogateescape").hex(" ")


# --- dates and refusals ----------------------------------------------------------------------------------------------


def _read_date(headers: Headers) -> tuple[str, datetime]:
    """(as sent, parsed) of x-amz-date or else Date: ISO 8601 basic format, or an HTTP date (RFC 9110, 5.6.7)."""
    sent = headers.get("x-amz-date") if "x-amz-date" in headers else headers.get("date")
    when = None if not sent else _parse_iso(sent) or _parse_http(sent)
    if not sent or when is None:
        raise S3Error("AccessDenied", _NO_DATE)
    return sent, when


def _times(end: datetime, now: datetime) -> dict[str, str]:
    return {"Expires": f"{end:%Y-%m-%dT%H:%M:%SZ}", "ServerTime": f"{now.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"}


@remembered
def _parse_iso(text: str) -> datetime | None:
    if not _ISO.match(text):
        return None
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        return None
    return _since_epoch(when)


def _parse_http(text: str) -> datetime | None:
    try:
        when = parsedate_to_datetime(text)
        return _since_epoch((when if when.tzinfo else when.replace(tzinfo=UTC)).astimezone(UTC))
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def _since_epoch(when: datetime) -> datetime | None:
    """S3 reads no date before 1970 as a date. Year 9999 leaves no room for the lifetime that is added."""
    return when if 1970 <= when.year < 9999 else None


def _malformed_header(message: str, **elements: Any) -> S3Error:
    return S3Error("AuthorizationHeaderMalformed", f"The authorization header is malformed; {message}", **elements)


def _malformed_query(message: str, **elements: Any) -> S3Error:
    return _malformed_parameters(f"Error parsing the X-Amz-Credential parameter; {message}", **elements)


def _malformed_parameters(message: str, **elements: Any) -> S3Error:
    return S3Error("AuthorizationQueryParametersError", message, **elements)


def _wrong_day(day: str, timestamp: str, *, presigned: bool) -> S3Error:
    if presigned:
        return _malformed_parameters(
            f'Invalid credential date "{day}". This date is not the same as X-Amz-Date: "{timestamp[:8]}".'
        )
    return _malformed_header("Invalid credential date. Date is not the same as X-Amz-Date.")
