"""Whatever comes over the wire, the protocol answers with an S3Error or understands it: never another exception."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime

from hypothesis import example, given
from hypothesis import strategies as st

from gateway.s3.call import parse
from gateway.s3.chunked import ChunkedDecoder
from gateway.s3.errors import S3Error
from gateway.s3.headers import Headers
from gateway.s3.operations import identify
from gateway.s3.sigv4 import PayloadForm, read, verify

NOW = datetime(2026, 5, 4, 12, 30, 15, tzinfo=UTC)
GOOD = "AWS4-HMAC-SHA256 Credential=AK/20260504/us-east-1/s3/aws4_request, SignedHeaders=host;x-amz-date, Signature=00"
WIRE = st.binary(max_size=60).map(lambda raw: raw.decode("utf-8", "surrogateescape"))
WORDS = st.sampled_from(
    [
        *(
            "AWS4-HMAC-SHA256",
            "Credential=",
            "AK",
            "/",
            "20260504",
            "us-east-1",
            "s3",
            "aws4_request",
            ",",
            ";",
            "host",
        ),
        *(
            "SignedHeaders=",
            "Signature=",
            "x-amz-date",
            "=",
            "%",
            "+",
            "X-Amz-Expires",
            "&",
            "X-Amz-Algorithm",
            "0",
            " ",
        ),
        "\udcff",
    ]
)
LINES = st.one_of(WIRE, st.lists(WORDS, max_size=20).map("".join), st.just(GOOD))


@given(
    st.sampled_from(["GET", "PUT", "POST", "HEAD", "DELETE", "OPTIONS", "X"]),
    st.one_of(WIRE, st.lists(WORDS, max_size=12).map("".join)),
    LINES,
    WIRE,
    LINES,
)
@example("GET", "bkt/k?X-Amz-Algorithm=AWS4-HMAC-SHA256", "", "", "")
def test_requests(method: str, target: str, authorization: str, host: str, date: str) -> None:
    headers = Headers(
        [
            ("Host", host),
            ("Authorization", authorization),
            ("x-amz-date", date if len(date) > 20 else "20260504T123015Z"),
            ("x-amz-content-sha256", "UNSIGNED-PAYLOAD"),
        ]
    )
    with contextlib.suppress(S3Error):
        parsed = parse(method, "/" + target, headers, "s3.example.com")
        with contextlib.suppress(S3Error):
            identify(method, parsed.target, parsed.query, headers)
        presented = read(method, "/" + target, headers, parsed.query, now=NOW, region="us-east-1")
        if presented is not None:
            verify(presented, "secret")


@given(st.lists(st.binary(max_size=40), max_size=6))
def test_chunked_bodies(pieces: list[bytes]) -> None:
    with contextlib.suppress(S3Error):
        decoding = ChunkedDecoder(PayloadForm.STREAMING_UNSIGNED_TRAILER, None, (), 10)
        for piece in pieces:
            decoding.feed(piece)
        decoding.finish()


@given(st.lists(st.sampled_from([b"3", b";", b"\r\n", b"abc", b"0", b"\n", b"x:y", b"\r", b" "]), max_size=20))
def test_nearly_chunked_bodies(pieces: list[bytes]) -> None:
    with contextlib.suppress(S3Error):
        decoding = ChunkedDecoder(PayloadForm.STREAMING_UNSIGNED_TRAILER, None, ("x",), 3)
        for piece in pieces:
            decoding.feed(piece)
        decoding.finish()
        assert decoding.received == 3
