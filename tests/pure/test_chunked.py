"""aws-chunked bodies: every form, cut everywhere, broken in every way."""

from __future__ import annotations

import hashlib
import hmac
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pytest
from botocore.httpchecksum import AwsChunkedWrapper
from hypothesis import given
from hypothesis import strategies as st

from gateway.s3.chunked import MAX_LINE, MAX_TRAILERS, ChunkedDecoder, decoder
from gateway.s3.errors import S3Error
from gateway.s3.headers import Headers
from gateway.s3.sigv4 import Payload, PayloadForm, signing_key

SIGNED = PayloadForm.STREAMING_SIGNED
SIGNED_TRAILER = PayloadForm.STREAMING_SIGNED_TRAILER
UNSIGNED_TRAILER = PayloadForm.STREAMING_UNSIGNED_TRAILER
EMPTY = hashlib.sha256(b"").hexdigest()
CRC = "x-amz-checksum-crc32c"


@dataclass(frozen=True)
class Seed:
    seed_signature: str = "a" * 64
    signing_key: bytes = signing_key("secret", "20260504", "us-east-1")
    timestamp: str = "20260504T123015Z"
    scope: str = "20260504/us-east-1/s3/aws4_request"

    def sign(self, kind: str, *rest: str) -> str:
        text = "\n".join((f"AWS4-HMAC-SHA256-{kind}", self.timestamp, self.scope, *rest))
        return hmac.new(self.signing_key, text.encode(), "sha256").hexdigest()


SEED = Seed()


def encode(
    form: PayloadForm,
    chunks: Sequence[bytes],
    trailers: Sequence[tuple[str, str]] = (),
    *,
    seed: Seed = SEED,
    line_end: bytes = b"\r\n",
    sign_trailer: bool = True,
) -> bytes:
    """A body as an honest client frames it; line_end ends trailer lines (minio-go: LF CR LF)."""
    out, previous = [], seed.seed_signature
    for chunk in (*chunks, b""):
        head = f"{len(chunk):x}"
        if form.signed_chunks:
            previous = seed.sign("PAYLOAD", previous, EMPTY, hashlib.sha256(chunk).hexdigest())
            head += f";chunk-signature={previous}"
        out += [head.encode(), b"\r\n", chunk, b"\r\n" if chunk else b""]
    for name, value in trailers:
        out += [f"{name}:{value}".encode(), line_end]
    if form is SIGNED_TRAILER and sign_trailer:
        lines = "".join(f"{name}:{value}\n" for name, value in trailers)
        signature = seed.sign("TRAILER", previous, hashlib.sha256(lines.encode()).hexdigest())
        out.append(f"x-amz-trailer-signature:{signature}\r\n".encode())
    return b"".join((*out, b"\r\n"))


def fresh(form: PayloadForm, length: int, trailers: Sequence[str] = ()) -> ChunkedDecoder:
    return ChunkedDecoder(form, SEED if form.signed_chunks else None, trailers, length)


def decode(
    form: PayloadForm, pieces: Sequence[bytes], length: int, trailers: Sequence[str] = ()
) -> tuple[bytes, dict[str, str]]:
    decoding = fresh(form, length, trailers)
    payload = b"".join(bytes(view) for piece in pieces for view in decoding.feed(piece))
    return payload, decoding.finish()


def refused(form: PayloadForm, body: bytes, length: int, trailers: Sequence[str] = ()) -> str:
    """The one code a body is refused with, whole and byte by byte."""
    codes = set()
    for pieces in ([body], [body[at : at + 1] for at in range(len(body))]):
        with pytest.raises(S3Error) as caught:
            decode(form, pieces, length, trailers)
        codes.add(caught.value.code)
    (code,) = codes
    return code


CASES: list[tuple[str, PayloadForm, list[bytes], list[tuple[str, str]], bytes]] = [
    ("signed", SIGNED, [b"hello ", b"wor\r\nld"], [], b"\r\n"),
    ("signed-empty", SIGNED, [], [], b"\r\n"),
    ("signed-trailer", SIGNED_TRAILER, [b"x" * 70, b"\r\n\r\n"], [(CRC, "AAAAAA==")], b"\r\n"),
    ("signed-trailer-minio", SIGNED_TRAILER, [b"abc"], [(CRC, "AAAAAA==")], b"\n\r\n"),
    ("signed-no-trailer", SIGNED_TRAILER, [b"abc"], [], b"\r\n"),
    ("unsigned-trailer", UNSIGNED_TRAILER, [b"0\r\n\r\n", b"b" * 33], [(CRC, "AAAAAA==")], b"\r\n"),
    ("unsigned-minio", UNSIGNED_TRAILER, [b"abc"], [(CRC, "AAAAAA==")], b"\n\r\n"),
    ("unsigned-two", UNSIGNED_TRAILER, [b"abc"], [(CRC, "AAAAAA=="), ("x-amz-checksum-sha1", "b=")], b"\r\n"),
    ("unsigned-none", UNSIGNED_TRAILER, [b"abc"], [], b"\r\n"),  # B029
]


@pytest.mark.parametrize(
    ("form", "chunks", "trailers", "line_end"), [case[1:] for case in CASES], ids=[c[0] for c in CASES]
)
def test_every_cut(form: PayloadForm, chunks: list[bytes], trailers: list[tuple[str, str]], line_end: bytes) -> None:
    body, plain, names = encode(form, chunks, trailers, line_end=line_end), b"".join(chunks), [n for n, _ in trailers]
    expected = (plain, dict(trailers))
    assert decode(form, [body], len(plain), names) == expected
    assert decode(form, [body[at : at + 1] for at in range(len(body))], len(plain), names) == expected
    for cut in range(len(body) + 1):
        assert decode(form, [body[:cut], body[cut:]], len(plain), names) == expected


@given(
    st.sampled_from([SIGNED, SIGNED_TRAILER, UNSIGNED_TRAILER]),
    st.lists(st.binary(min_size=1, max_size=300), max_size=5),
    st.lists(st.integers(1, 200), min_size=1, max_size=40),
)
def test_any_chunks_and_cuts(form: PayloadForm, chunks: list[bytes], sizes: list[int]) -> None:
    body, pieces, at = encode(form, chunks), [], 0
    for size in sizes:
        pieces.append(body[at : at + size])
        at += size
    pieces.append(body[at:])
    assert decode(form, pieces, sum(map(len, chunks)))[0] == b"".join(chunks)


@pytest.mark.parametrize("name", [case[0] for case in CASES])
def test_a_body_that_ends_early_is_incomplete(name: str) -> None:
    form, chunks, trailers, line_end = next(case[1:] for case in CASES if case[0] == name)
    body, plain = encode(form, chunks, trailers, line_end=line_end), b"".join(chunks)
    # Behind the whole header of the last chunk nothing is missing but what was announced.
    first_end = len(body) - 2 if form is SIGNED_TRAILER or trailers else body.rindex(b"\r\n\r\n") + 2
    for cut in range(len(body) - 2):
        if cut >= first_end or (form is not SIGNED_TRAILER and trailers and body[:cut].endswith(b"AAAAAA==\r\n")):
            continue
        with pytest.raises(S3Error) as caught:
            decode(form, [body[:cut]], len(plain), [n for n, _ in trailers])
        assert caught.value.code in ("IncompleteBody", "MalformedTrailerError"), cut


def test_b029_the_end_may_come_right_behind_the_last_chunk() -> None:
    assert decode(UNSIGNED_TRAILER, [b"3\r\nabc\r\n0\r\n"], 3) == (b"abc", {})
    assert decode(UNSIGNED_TRAILER, [b"3\r\nabc\r\n0\r\n\r\n"], 3) == (b"abc", {})
    assert decode(SIGNED, [encode(SIGNED, [b"abc"])[:-2]], 3) == (b"abc", {})


def test_b033_signed_and_unsigned_trailers_have_their_own_rules() -> None:
    trailers = [(CRC, "AAAAAA==")]
    assert decode(UNSIGNED_TRAILER, [encode(UNSIGNED_TRAILER, [b"a"], trailers)], 1, [CRC])[1] == dict(trailers)
    body = encode(SIGNED_TRAILER, [b"a"], trailers, sign_trailer=False)
    assert refused(SIGNED_TRAILER, body, 1, [CRC]) == "MalformedTrailerError"
    body = encode(SIGNED_TRAILER, [b"a"], trailers).replace(b"AAAAAA==", b"AAAAAB==")
    assert refused(SIGNED_TRAILER, body, 1, [CRC]) == "SignatureDoesNotMatch"


def test_b035_framing_never_reaches_the_payload() -> None:
    data = b"\x1f\x8b" + bytes(range(249)) * 2
    for form in (SIGNED, SIGNED_TRAILER, UNSIGNED_TRAILER):
        chunks = [data[at : at + 64] for at in range(0, len(data), 64)]
        payload, _ = decode(form, [encode(form, chunks)], len(data))
        assert payload == data


def test_botocores_own_framing() -> None:
    class Checksum:
        def update(self, data: bytes) -> None: ...
        def b64digest(self) -> str:
            return "AAAAAA=="

    wrapper = AwsChunkedWrapper(io.BytesIO(b"x" * 5000), checksum_cls=Checksum, checksum_name=CRC, chunk_size=1024)
    body = wrapper.read()
    assert decode(UNSIGNED_TRAILER, [body], 5000, [CRC]) == (b"x" * 5000, {CRC: "AAAAAA=="})


def test_the_example_of_the_reference() -> None:
    """S3 API reference, "Transferring Payload in Multiple Chunks": 66,560 bytes of "a" in chunks of 64 KiB."""
    seed = Seed(
        "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9",
        signing_key("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "20130524", "us-east-1"),
        "20130524T000000Z",
        "20130524/us-east-1/s3/aws4_request",
    )
    body = b"".join(
        (
            b"10000;chunk-signature=ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648\r\n",
            b"a" * 65536,
            b"\r\n400;chunk-signature=0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497\r\n",
            b"a" * 1024,
            b"\r\n0;chunk-signature=b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9\r\n\r\n",
        )
    )
    decoding = ChunkedDecoder(SIGNED, seed, (), 66560)
    assert b"".join(decoding.feed(body)) == b"a" * 66560
    assert decoding.finish() == {} and decoding.done


@pytest.mark.parametrize("index", [0, 1, 2])
def test_each_chunk_signature_counts(index: int) -> None:
    body = encode(SIGNED, [b"one", b"two"])
    at = [i for i in range(len(body)) if body.startswith(b"signature=", i)][index] + 10
    flipped = body[:at] + (b"0" if body[at : at + 1] != b"0" else b"1") + body[at + 1 :]
    assert refused(SIGNED, flipped, 6) == "SignatureDoesNotMatch"


@pytest.mark.parametrize(
    "change",
    [
        lambda body: body.replace(b"one", b"onE"),
        lambda body: body.replace(b"two", b"twO"),
        lambda body: encode(SIGNED, [b"two", b"one"]).replace(b"two", b"one", 1),
        lambda body: encode(SIGNED, [b"one", b"two"], seed=Seed("b" * 64)),
    ],
)
def test_changed_chunks_are_refused(change: Callable[[bytes], bytes]) -> None:
    assert refused(SIGNED, change(encode(SIGNED, [b"one", b"two"])), 6) == "SignatureDoesNotMatch"


def test_upper_case_signatures_and_extensions() -> None:
    body = encode(SIGNED, [b"abc"])
    head, rest = body.split(b"\r\n", 1)
    name, signature = head.split(b"=")
    assert decode(SIGNED, [name + b"=" + signature.upper() + b" ; x=y\r\n" + rest], 3)[0] == b"abc"
    assert decode(UNSIGNED_TRAILER, [b"3;a=b\r\nabc\r\n0;c\r\n\r\n"], 3)[0] == b"abc"
    assert decode(UNSIGNED_TRAILER, [b"00003\r\nabc\r\n000\r\n\r\n"], 3)[0] == b"abc"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"3",
        b"xyz\r\nabc\r\n0\r\n\r\n",
        b"-3\r\nabc\r\n0\r\n\r\n",
        b"0x3\r\nabc\r\n0\r\n\r\n",
        b"+3\r\nabc\r\n0\r\n\r\n",
        b"\r\nabc\r\n0\r\n\r\n",
        b"3_0\r\nabc\r\n0\r\n\r\n",
        b"3\nabc\n0\n\n",
        b"3\r\nabcd\r\n0\r\n\r\n",
        b"3\r\nab\r\n0\r\n\r\n",
        b"3\r\nabc0\r\n\r\n",
        b"3\r\nabc",
        b"3\r\nabc\r",
        b"3\r\nabc\r\n",
        b"3\r\nabc\r\n0",
        b"2\r\nab\r\n0\r\n\r\n",  # shorter than announced
        b"4\r\nabcd\r\n0\r\n\r\n",  # longer than announced
        b"ffffffffffffffff\r\nabc",
        b"11111111111111111\r\nabc",
        b"3\r\nabc\r\n0\r\n\r\nmore",
        b"3\r\nabc\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n",
        b"a" * (MAX_LINE + 1),
        b"3;" + b"x" * MAX_LINE + b"\r\nabc\r\n0\r\n\r\n",
    ],
)
def test_broken_framing(body: bytes) -> None:
    assert refused(UNSIGNED_TRAILER, body, 3) == "IncompleteBody"


@pytest.mark.parametrize("head", [b"3", b"3;chunk-signature=", b"3;chunk-signature=zz", b"3;signature=" + b"a" * 64])
def test_a_signed_chunk_without_a_signature(head: bytes) -> None:
    assert refused(SIGNED, head + b"\r\nabc\r\n0\r\n\r\n", 3) == "IncompleteBody"


@pytest.mark.parametrize(
    "lines",
    [
        b"",  # announced, not sent
        b"x-amz-checksum-sha1:x\r\n",  # another one
        CRC.encode() + b":a\r\nx-amz-checksum-sha1:x\r\n",  # one too many
        CRC.encode() + b":a\r\n" + CRC.encode() + b":a\r\n",  # twice
        CRC.encode() + b"\r\n",  # no colon
        b":a\r\n",
        CRC.encode() + b":\xff\r\n",
        b"\xff:a\r\n",
        CRC.encode() + b":" + b"a" * (MAX_TRAILERS - 24) + b"\r\n" + b"y:" + b"b" * 100 + b"\r\n",
    ],
)
def test_malformed_trailers(lines: bytes) -> None:
    assert refused(UNSIGNED_TRAILER, b"0\r\n" + lines + b"\r\n", 0, [CRC]) == "MalformedTrailerError"


def test_a_trailer_without_end_is_cut() -> None:
    decoding = fresh(UNSIGNED_TRAILER, 0, [CRC])
    with pytest.raises(S3Error):
        decoding.feed(b"0\r\n" + b"a" * (MAX_TRAILERS + 1))


def test_trailers_where_none_belong() -> None:
    body = encode(SIGNED, [b"abc"])[:-2] + b"x-amz-checksum-crc32:a\r\n\r\n"
    assert refused(SIGNED, body, 3) == "MalformedTrailerError"


def test_names_of_trailers_are_read_without_case_and_blanks() -> None:
    body = b"0\r\nX-Amz-Checksum-CRC32C: AAAAAA== \r\n\r\n"
    assert decode(UNSIGNED_TRAILER, [body], 0, [CRC])[1] == {CRC: "AAAAAA=="}


def test_payload_is_not_copied() -> None:
    data = b"8000\r\n" + b"a" * 0x8000
    (view,) = fresh(UNSIGNED_TRAILER, 0x8000).feed(data)
    assert view.obj is data


def test_other_buffers_are_taken() -> None:
    for data in (bytearray(b"3\r\nabc\r\n0\r\n\r\n"), memoryview(b"3\r\nabc\r\n0\r\n\r\n")):
        decoding = fresh(UNSIGNED_TRAILER, 3)
        assert b"".join(decoding.feed(data)) == b"abc"
        assert decoding.finish() == {}


# --- the decoder a request needs ---------------------------------------------------------------------------------


def headers(**lines: str) -> Headers:
    return Headers([(name.replace("_", "-"), value) for name, value in lines.items()])


def chosen(form: PayloadForm, lines: Headers) -> ChunkedDecoder | None:
    return decoder(Payload(form), lines, SEED)  # type: ignore[arg-type]


def codes(form: PayloadForm, lines: Headers) -> Iterator[str]:
    with pytest.raises(S3Error) as caught:
        chosen(form, lines)
    yield caught.value.code
    yield str(caught.value.status)


def test_b023_a_plain_body_has_no_decoder() -> None:
    assert chosen(PayloadForm.UNSIGNED, headers(x_amz_decoded_content_length="500")) is None
    assert chosen(PayloadForm.HASH, headers()) is None


def test_a_chunked_body_needs_its_length() -> None:
    assert list(codes(SIGNED, headers())) == ["MissingContentLength", "411"]
    for text in ("", "-1", "x", "1.0", "²", "9" * 19):
        assert list(codes(SIGNED, headers(x_amz_decoded_content_length=text))) == ["InvalidArgument", "400"]


def test_trailers_need_a_form_that_has_them() -> None:
    lines = headers(x_amz_decoded_content_length="3", x_amz_trailer=CRC)
    for form in (SIGNED, PayloadForm.UNSIGNED, PayloadForm.HASH):
        assert list(codes(form, lines)) == ["MalformedTrailerError", "400"]
    decoding = chosen(UNSIGNED_TRAILER, headers(x_amz_decoded_content_length="3", x_amz_trailer=f" {CRC.upper()} , "))
    assert decoding is not None
    decoding.feed(b"3\r\nabc\r\n0\r\n" + CRC.encode() + b":a\r\n\r\n")
    assert decoding.finish() == {CRC: "a"}


def test_signed_chunks_need_a_signature() -> None:
    with pytest.raises(S3Error):
        ChunkedDecoder(SIGNED, None, (), 3)
