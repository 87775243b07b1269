"""The aws-chunked framing of a body, decoded and verified without any I/O.

Amazon S3 API reference, "Transferring Payload in Multiple Chunks (Chunked Upload)" and "… including trailing headers":

    hex-size[;chunk-signature=…] CRLF  bytes CRLF  …  0[;chunk-signature=…] CRLF  (name:value CRLF)*  CRLF

Payload is handed on as it arrives, as views of what was fed, before the signature of its chunk is known: nobody may
act on a body until finish() has returned.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Sequence
from enum import Enum
from hashlib import sha256
from typing import Protocol

from gateway.s3.errors import S3Error, invalid_argument
from gateway.s3.headers import Headers
from gateway.s3.payload import Payload, PayloadForm
from gateway.s3.sigv4 import EMPTY_SHA256, Signed

# What one header line of a chunk, and all trailers together, may take. A line is a number of at most 16 digits and a
# signature; trailers are one or two checksums.
MAX_LINE = 1024
MAX_TRAILERS = 8192

_SIZE = re.compile(rb"[0-9A-Fa-f]{1,16}\Z")
_SIGNATURE = re.compile(r"[0-9A-Fa-f]{64}\Z")
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+\Z")
_TRAILER_SIGNATURE = "x-amz-trailer-signature"


class _State(Enum):
    SIZE = 1  # in the line that begins a chunk
    DATA = 2  # in its bytes
    DATA_END = 3  # in the line end after them
    TRAILER = 4  # behind the last chunk
    DONE = 5


class Signing(Protocol):
    """What the signatures of chunks are computed with; sigv4.Signed is one."""

    @property
    def seed_signature(self) -> str: ...
    @property
    def signing_key(self) -> bytes: ...
    @property
    def timestamp(self) -> str: ...
    @property
    def scope(self) -> str: ...


class ChunkedDecoder:
    """Decodes one body. feed() each piece as it comes, then finish() once.

    form is a streaming form; signing is needed when it has signed chunks; trailers are the lower-case names that
    x-amz-trailer announced; decoded_length is x-amz-decoded-content-length in bytes, None raising
    MissingContentLength. Both methods raise S3Error: IncompleteBody for broken framing or a wrong length,
    SignatureDoesNotMatch, MalformedTrailerError.
    """

    def __init__(
        self,
        form: PayloadForm,
        signing: Signing | None,
        trailers: Sequence[str] = (),
        decoded_length: int | None = None,
    ) -> None:
        if decoded_length is None:
            raise S3Error("MissingContentLength")
        if form.signed_chunks and signing is None:
            raise S3Error("InvalidRequest", "Chunk signatures need a signed request.")
        self._form = form
        self._signing = signing if form.signed_chunks else None
        self._announced = frozenset(trailers) - {_TRAILER_SIGNATURE}
        self._expected = decoded_length
        self._received = 0
        self._state = _State.SIZE
        self._pending = b""  # the beginning of a line whose end has not come yet
        self._left = 0  # bytes of the chunk that have not come yet
        self._last = False
        self._chunks = 0
        self._claimed = ""
        self._hash = sha256()
        self._previous = signing.seed_signature if signing is not None else ""
        self._trailers: list[tuple[str, str]] = []
        self._trailer_bytes = 0

    @property
    def done(self) -> bool:
        """Whether the last byte of the framing has come."""
        return self._state is _State.DONE

    @property
    def received(self) -> int:
        """Payload bytes of the chunks that have begun."""
        return self._received

    def feed(self, data: bytes | bytearray | memoryview) -> list[memoryview]:
        """The payload in data, as views of it (of a copy, when data is not bytes)."""
        if not isinstance(data, bytes):
            data = bytes(data)
        pieces: list[memoryview] = []
        view = memoryview(data)
        at, end = 0, len(data)
        while at < end:
            if self._state is _State.DATA:
                piece = view[at : at + self._left]
                at += len(piece)
                self._left -= len(piece)
                if self._signing is not None:
                    self._hash.update(piece)
                pieces.append(piece)
                if not self._left:
                    self._state = _State.DATA_END
                continue
            if self._state is _State.DONE:
                if data[at:].strip(b"\r\n"):
                    raise _broken("bytes follow the end of the body")
                break
            line, at = self._take_line(data, at)
            if line is None:
                break
            if self._state is _State.SIZE:
                self._begin_chunk(line)
            elif self._state is _State.DATA_END:
                if line:
                    raise _broken("a chunk is longer than it says")
                self._end_chunk()
                self._state = _State.SIZE
            else:
                self._read_trailer(line)
        return pieces

    def finish(self) -> dict[str, str]:
        """The announced trailers by lower-case name, once everything has been verified.

        An end right behind the last chunk's header is an end: some clients leave out the final blank line.
        """
        if self._state is _State.TRAILER and not self._pending:
            self._end_trailers()
        if self._state is not _State.DONE:
            raise _broken("the body ends inside its framing")
        if self._received != self._expected:
            raise S3Error(
                "IncompleteBody",
                "You did not provide the number of bytes specified by the x-amz-decoded-content-length header",
            )
        return {name: value for name, value in self._trailers if name != _TRAILER_SIGNATURE}

    # --- lines -------------------------------------------------------------------------------------------------------

    def _take_line(self, data: bytes, at: int) -> tuple[bytes | None, int]:
        """(a line without its end, where the next begins); None while its end has not come."""
        limit = MAX_TRAILERS if self._state is _State.TRAILER else MAX_LINE
        if self._pending.endswith(b"\r") and data[at : at + 1] == b"\n":
            line, self._pending = self._pending[:-1], b""
            return line, at + 1
        found = data.find(b"\r\n", at, at + limit + 2)
        if found < 0:
            # The whole rest is a line's beginning, or there is more than any line may have.
            if len(self._pending) + len(data) - at > limit:
                raise _broken("a line of the framing is too long")
            self._pending += data[at:]
            return None, len(data)
        line = self._pending + data[at:found]
        self._pending = b""
        if len(line) > limit:
            raise _broken("a line of the framing is too long")
        return line, found + 2

    def _begin_chunk(self, line: bytes) -> None:
        size, *extensions = line.split(b";")
        if not _SIZE.match(size.strip()):
            raise _broken("a chunk has no size")
        self._left = int(size, 16)
        self._last = self._left == 0
        self._chunks += 1
        if self._signing is not None:
            self._claimed = _chunk_signature(extensions)
            self._hash = sha256()
        self._received += self._left
        if self._received > self._expected:
            raise S3Error("IncompleteBody", "The request body is longer than x-amz-decoded-content-length says it is")
        if self._last:
            self._end_chunk()
            self._state = _State.TRAILER
        else:
            self._state = _State.DATA

    def _end_chunk(self) -> None:
        if self._signing is None:
            return
        to_sign = (
            f"AWS4-HMAC-SHA256-PAYLOAD\n{self._signing.timestamp}\n{self._signing.scope}\n{self._previous}\n"
            f"{EMPTY_SHA256}\n{self._hash.hexdigest()}"
        )
        self._compare(to_sign, self._claimed)

    # --- trailers ----------------------------------------------------------------------------------------------------

    def _read_trailer(self, line: bytes) -> None:
        # A client known to send "name:value LF CR LF" (minio-go) means the line without its LF.
        text = line.strip(b" \t\n")
        if not text:
            self._end_trailers()
            return
        self._trailer_bytes += len(line)
        if not self._form.trailer or self._trailer_bytes > MAX_TRAILERS:
            raise S3Error("MalformedTrailerError")
        raw_name, colon, raw_value = text.partition(b":")
        try:
            name, value = raw_name.decode("ascii").strip().lower(), raw_value.decode("utf-8").strip()
        except UnicodeDecodeError:
            raise S3Error("MalformedTrailerError") from None
        if not colon or not _NAME.match(name) or name in (seen for seen, _ in self._trailers):
            raise S3Error("MalformedTrailerError")
        if name != _TRAILER_SIGNATURE and name not in self._announced:
            raise S3Error("MalformedTrailerError")
        self._trailers.append((name, value))

    def _end_trailers(self) -> None:
        names = {name for name, _ in self._trailers}
        if not self._announced <= names:
            raise S3Error("MalformedTrailerError")
        if self._signing is not None and self._form.trailer:
            claimed = dict(self._trailers).get(_TRAILER_SIGNATURE)
            if claimed is None or self._trailers[-1][0] != _TRAILER_SIGNATURE:
                raise S3Error("MalformedTrailerError")
            lines = "".join(f"{name}:{value}\n" for name, value in self._trailers[:-1])
            to_sign = (
                f"AWS4-HMAC-SHA256-TRAILER\n{self._signing.timestamp}\n{self._signing.scope}\n{self._previous}\n"
                f"{sha256(lines.encode()).hexdigest()}"
            )
            self._compare(to_sign, claimed)
        self._state = _State.DONE

    def _compare(self, to_sign: str, claimed: str) -> None:
        assert self._signing is not None
        expected = hmac.digest(self._signing.signing_key, to_sign.encode(), "sha256").hex()
        if not hmac.compare_digest(expected.encode(), claimed.lower().encode("utf-8", "replace")):
            raise S3Error(
                "SignatureDoesNotMatch",
                StringToSign=to_sign,
                SignatureProvided=claimed,
                StringToSignBytes=to_sign.encode().hex(" "),
            )
        self._previous = expected


def decoder(payload: Payload, headers: Headers, signed: Signed | None) -> ChunkedDecoder | None:
    """The decoder a request's body needs, None for a plain body (whose x-amz-decoded-content-length is ignored).

    Raises MissingContentLength, InvalidArgument for a length that is no number, and MalformedTrailerError for
    trailers announced where none can come.
    """
    announced = [name.strip().lower() for name in (headers.get("x-amz-trailer") or "").split(",") if name.strip()]
    if announced and not payload.form.trailer:
        raise S3Error("MalformedTrailerError")
    if not payload.form.chunked:
        return None
    text = headers.get("x-amz-decoded-content-length")
    if text is not None and not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise invalid_argument("x-amz-decoded-content-length", text)
    return ChunkedDecoder(payload.form, signed, announced, None if text is None else int(text))


def _chunk_signature(extensions: Sequence[bytes]) -> str:
    for extension in extensions:
        name, _, value = extension.strip().partition(b"=")
        text = value.strip().decode("ascii", "replace")
        if name.strip() == b"chunk-signature" and _SIGNATURE.match(text):
            return text
    raise _broken("a chunk has no signature")


def _broken(why: str) -> S3Error:
    return S3Error("IncompleteBody", f"The request body terminated unexpectedly: {why}")
