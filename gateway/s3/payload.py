"""How a body is bound to its request: the forms of x-amz-content-sha256."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from gateway.s3.errors import S3Error, invalid_argument
from gateway.s3.headers import Headers

UNSIGNED_PAYLOAD = "UNSIGNED-PAYLOAD"
_CONTENT_SHA256 = (
    "x-amz-content-sha256 must be UNSIGNED-PAYLOAD, STREAMING-UNSIGNED-PAYLOAD-TRAILER, "
    "STREAMING-AWS4-HMAC-SHA256-PAYLOAD, STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER, "
    "STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD, STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD-TRAILER or a valid sha256 "
    "value."
)

_HEX64 = re.compile(r"[0-9A-Fa-f]{64}\Z")


class PayloadForm(Enum):
    """How a body is bound to its request: the values of x-amz-content-sha256 (HASH stands for any digest)."""

    HASH = "sha256"
    UNSIGNED = UNSIGNED_PAYLOAD
    STREAMING_SIGNED = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
    STREAMING_SIGNED_TRAILER = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"
    STREAMING_UNSIGNED_TRAILER = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"

    def __init__(self, text: str) -> None:
        self.chunked = text.startswith("STREAMING-")  # whether the body is aws-chunked
        self.signed_chunks = text.startswith("STREAMING-AWS4-HMAC-")
        self.trailer = text.endswith("-TRAILER")  # whether trailers may follow the last chunk


_ECDSA = frozenset({"STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD", "STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD-TRAILER"})


@dataclass(frozen=True, slots=True)
class Payload:
    """The body's form; sha256 (lower-case hex) is what a HASH body must have."""

    form: PayloadForm
    sha256: str | None = None


_PAYLOADS = {form.value: Payload(form) for form in PayloadForm if form is not PayloadForm.HASH}


def parse_payload(text: str) -> Payload:
    """The payload a value of x-amz-content-sha256 announces. Raises InvalidArgument, NotImplemented for ECDSA."""
    payload = _PAYLOADS.get(text)
    if payload is not None:
        return payload
    if _HEX64.match(text):
        return Payload(PayloadForm.HASH, text.lower())
    if text in _ECDSA:
        raise S3Error("NotImplemented", f"{text} is not implemented", Header="x-amz-content-sha256")
    raise invalid_argument("x-amz-content-sha256", text, _CONTENT_SHA256)


def payload_of(headers: Headers) -> Payload:
    """The payload form of an anonymous request. Raises InvalidArgument; chunk signatures need a signed request."""
    text = headers.get("x-amz-content-sha256")
    payload = Payload(PayloadForm.UNSIGNED) if not text else parse_payload(text)
    if payload.form.signed_chunks:
        raise S3Error("InvalidRequest", "Chunk signatures need a request signed with AWS4-HMAC-SHA256.")
    return payload
