"""Signature Version 4 against botocore's signer, against raw requests signed by hand, and malformed in every way."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

import botocore.auth
import pytest
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from gateway.s3.call import parse
from gateway.s3.errors import S3Error
from gateway.s3.headers import Headers, signed_hosts
from gateway.s3.sigv4 import Payload, PayloadForm, Presented, Signed, payload_of, read, signing_key, verify

AK, SK = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
NOW = datetime(2026, 5, 4, 12, 30, 15, tzinfo=UTC)
STAMP = "20260504T123015Z"
REGION = "us-east-1"
EMPTY = hashlib.sha256(b"").hexdigest()

Pairs = list[tuple[str, str]]


def present(
    method: str,
    target: str,
    pairs: Sequence[tuple[str, str]],
    *,
    now: datetime = NOW,
    trusted: bool = False,
    **more: Any,
) -> Presented | None:
    headers = Headers([(name.encode(), value.encode("utf-8", "surrogateescape")) for name, value in pairs])
    parsed = parse(method, target, headers)
    hosts = signed_hosts(headers, trusted=trusted, secure=False)
    return read(method, target, parsed.headers, parsed.query, now=now, region=REGION, hosts=hosts, **more)


def judge(method: str, target: str, pairs: Sequence[tuple[str, str]], secret: str = SK, **more: Any) -> Signed:
    presented = present(method, target, pairs, **more)
    assert presented is not None
    return verify(presented, secret)


def refused(method: str, target: str, pairs: Sequence[tuple[str, str]], **more: Any) -> S3Error:
    with pytest.raises(S3Error) as caught:
        judge(method, target, pairs, **more)
    return caught.value


def signed(
    method: str,
    path: str,
    query: str = "",
    extra: Sequence[tuple[str, str]] = (),
    *,
    canonical_path: str | None = None,
    host: str = "localhost:9000",
    content: str = "UNSIGNED-PAYLOAD",
    stamp: str = STAMP,
    scope: str = f"20260504/{REGION}/s3/aws4_request",
    names: str | None = None,
    lines: dict[str, str] | None = None,
    date: tuple[str, str] | None = None,
) -> Pairs:
    """Headers of a request signed by hand: what is signed may differ from what is sent."""
    date = date or ("x-amz-date", stamp)
    pairs = [("host", host), ("x-amz-content-sha256", content), date, *extra]
    values = {name: " ".join(value.split()) for name, value in pairs} | (lines or {})
    names = ";".join(sorted(values)) if names is None else names
    block = "".join(f"{name}:{values.get(name, '')}\n" for name in names.split(";"))
    canonical = f"{method}\n{path if canonical_path is None else canonical_path}\n{query}\n{block}\n{names}\n{content}"
    to_sign = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    day, region, *_ = scope.split("/")
    signature = hmac.new(signing_key(SK, day, region), to_sign.encode(), "sha256").hexdigest()
    line = f"AWS4-HMAC-SHA256 Credential={AK}/{scope}, SignedHeaders={names}, Signature={signature}"
    return [*pairs, ("Authorization", line)]


def presigned(target: str, method: str = "GET", expires: int = 3600, **headers: str) -> str:
    """A target presigned by botocore at NOW."""
    request = AWSRequest(method=method, url=f"http://localhost:9000{target}", headers=headers)
    with frozen():
        botocore.auth.S3SigV4QueryAuth(Credentials(AK, SK), "s3", REGION, expires=expires).add_auth(request)
    split = urlsplit(request.url)
    return f"{split.path}?{split.query}"


class frozen:
    """Holds botocore's clock at NOW."""

    def __enter__(self) -> None:
        self.saved = botocore.auth.get_current_datetime
        botocore.auth.get_current_datetime = lambda *_, **__: NOW.replace(tzinfo=None)

    def __exit__(self, *_: object) -> None:
        botocore.auth.get_current_datetime = self.saved


HOST: Pairs = [("Host", "localhost:9000")]

# --- signers -----------------------------------------------------------------------------------------------------

KEYS = [
    "k",
    "/k",
    "a//b",
    "a+b",
    "a b",
    "ä/ö",
    "pct%zz",
    "a%2Fb",
    "'()*!",
    "~-._",
    "..",
    "a/../x",
    "&=?#",
    "\x00",
    "💡",
]


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("query", ["", "acl", "uploads=&prefix=a%20b%2B", "p%5Ba%5D=1&p%5BaB%5D=2"])
def test_botocore_header(key: str, query: str) -> None:
    target = "/bkt/" + quote(key, safe="/~") + (f"?{query}" if query else "")
    request = AWSRequest(
        method="PUT", url=f"http://localhost:9000{target}", data=b"x", headers={"x-amz-meta-a": " b  c "}
    )
    with frozen():
        botocore.auth.S3SigV4Auth(Credentials(AK, SK), "s3", REGION).add_auth(request)
    pairs = [*HOST, *((name, str(value)) for name, value in request.headers.items())]
    result = judge("PUT", target, pairs)
    assert result.access_key == AK
    assert result.payload == Payload(PayloadForm.HASH, hashlib.sha256(b"x").hexdigest())
    assert result.seed_signature in dict(pairs)["Authorization"]
    assert not result.presigned
    assert refused("PUT", target, pairs, secret=SK + "x").code == "SignatureDoesNotMatch"
    assert refused("GET", target, pairs).code == "SignatureDoesNotMatch"


@pytest.mark.parametrize("key", KEYS)
def test_botocore_presigned(key: str) -> None:
    target = presigned("/bkt/" + quote(key, safe="/~"))
    result = judge("GET", target, HOST)
    assert result.presigned
    assert result.payload == Payload(PayloadForm.UNSIGNED)
    assert refused("PUT", target, HOST).code == "SignatureDoesNotMatch"
    assert refused("GET", target.replace("/bkt/", "/bkt/x"), HOST).code == "SignatureDoesNotMatch"


def test_anonymous() -> None:
    assert present("GET", "/bkt/k", HOST) is None
    assert present("GET", "/bkt/k", [*HOST, ("Authorization", "")]) is None


def test_the_date_header_alone_will_do() -> None:
    sent = "Mon, 04 May 2026 12:30:15 GMT"
    assert judge("GET", "/bkt/k", signed("GET", "/bkt/k", date=("date", sent)))
    assert judge("GET", "/bkt/k", signed("GET", "/bkt/k", date=("x-amz-date", sent)))
    assert judge("GET", "/bkt/k", signed("GET", "/bkt/k", date=("date", STAMP)))


# --- the raw request target --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wire", "canonical"),
    [
        ("/b-1//foo", "/b-1//foo"),  # B001
        ("/b-1/%27%28%29%2A%21", "/b-1/%27%28%29%2A%21"),  # B005
        ("/b-1/'()*!", "/b-1/'()*!"),
        ("/b-1/'()*!", "/b-1/%27%28%29%2A%21"),
        ("/b-1/pct%25zz", "/b-1/pct%25zz"),  # B003
        ("/b-1/a%2Fb", "/b-1/a%2Fb"),  # B007: as sent …
        ("/b-1/a%2Fb", "/b-1/a/b"),  # … and as S3 encodes it
        ("/b-1/a%2fb", "/b-1/a%2fb"),
        ("/b-1/%c3%a4", "/b-1/%C3%A4"),
        ("/b-1/a+b", "/b-1/a%2Bb"),
        ("/b-1/%7Ea", "/b-1/~a"),
        ("/b-1/./../x", "/b-1/./../x"),
        ("/", "/"),
    ],
)
def test_canonical_uri(wire: str, canonical: str) -> None:
    assert judge("GET", wire, signed("GET", wire, canonical_path=canonical))


@pytest.mark.parametrize(
    ("wire", "canonical"),
    [("/b-1//foo", "/b-1/foo"), ("/b-1/a%252Fb", "/b-1/a%2Fb"), ("/b-1/a+b", "/b-1/a%20b"), ("/b-1/a/../x", "/b-1/x")],
)
def test_another_key_is_not_a_spelling(wire: str, canonical: str) -> None:
    assert refused("GET", wire, signed("GET", wire, canonical_path=canonical)).code == "SignatureDoesNotMatch"


def test_b009_query_names_are_sorted_as_encoded() -> None:
    wire = "/bkt?p[aB]=2&p[a]=1"
    assert judge("GET", wire, signed("GET", "/bkt", "p%5Ba%5D=1&p%5BaB%5D=2"))
    error = refused("GET", wire, signed("GET", "/bkt", "p%5BaB%5D=2&p%5Ba%5D=1"))
    assert (error.code, error.status) == ("SignatureDoesNotMatch", 403)


@pytest.mark.parametrize(
    ("wire", "canonical"),
    [
        ("acl", "acl="),
        ("b=2&a=1&a=0", "a=0&a=1&b=2"),
        ("prefix=a+b", "prefix=a%20b"),
        ("prefix=a/b", "prefix=a%2Fb"),
        ("prefix=%c3%a4", "prefix=%C3%A4"),
        ("a=b=c", "a=b%3Dc"),
        ("a-b=1&a=2", "a=2&a-b=1"),
        ("&&a=1&", "a=1"),
    ],
)
def test_canonical_query(wire: str, canonical: str) -> None:
    assert judge("GET", f"/bkt?{wire}", signed("GET", "/bkt", canonical))


# --- headers -----------------------------------------------------------------------------------------------------


def test_b011_blanks_are_folded() -> None:
    extra = [("x-amz-meta-note", "a  b   c "), ("accept-encoding", "  gzip,  br ")]
    assert judge("PUT", "/bkt/k", signed("PUT", "/bkt/k", extra=extra))


def test_lines_of_one_name_are_joined() -> None:
    pairs = signed("PUT", "/bkt/k", extra=[("x-amz-meta-a", "1")], lines={"x-amz-meta-a": "1,2"})
    assert judge("PUT", "/bkt/k", [*pairs, ("X-Amz-Meta-A", "2")])


def test_headers_of_other_alphabets() -> None:
    assert judge("PUT", "/bkt/k", signed("PUT", "/bkt/k", extra=[("x-amz-meta-a", "ä")]))
    # Sent as ISO 8859-1, signed as UTF-8.
    pairs = signed("PUT", "/bkt/k", extra=[("x-amz-meta-a", "\udce4")], lines={"x-amz-meta-a": "ä"})
    assert judge("PUT", "/bkt/k", pairs)


def test_b019_a_signed_header_has_to_be_sent() -> None:
    target = presigned("/bkt/k", "PUT", **{"Content-Disposition": "attachment"})
    assert "content-disposition%3Bhost" in target
    assert refused("PUT", target, HOST).status == 403
    assert judge("PUT", target, [*HOST, ("Content-Disposition", "attachment")])


def test_unsigned_headers_are_named() -> None:
    pairs = signed("PUT", "/bkt/k")
    error = refused("PUT", "/bkt/k", [*pairs, ("x-amz-acl", "public-read"), ("x-amz-meta-b", "1")])
    assert (error.code, error.status) == ("AccessDenied", 403)
    assert error.elements == {"HeadersNotSigned": "x-amz-acl, x-amz-meta-b"}
    error = refused("GET", "/bkt/k", signed("GET", "/bkt/k", names="x-amz-content-sha256;x-amz-date"))
    assert error.elements == {"HeadersNotSigned": "host"}
    assert judge("PUT", "/bkt/k", [*pairs, ("user-agent", "u"), ("x-forwarded-for", "1"), ("content-type", "a/b")])


def test_a_presigned_url_carries_headers_in_its_query() -> None:
    target = presigned("/bkt/k?x-amz-acl=public-read", "PUT")
    assert judge("PUT", target, HOST)
    assert refused("PUT", presigned("/bkt/k", "PUT"), [*HOST, ("x-amz-acl", "public-read")]).code == "AccessDenied"


@pytest.mark.parametrize("signed_host", ["h", "h:443", "h:8443", "[::1]:9000"])
@pytest.mark.parametrize("port", [None, "443", "9000"])
def test_b013_behind_a_proxy(signed_host: str, port: str | None) -> None:
    pairs = signed("GET", "/bkt/k", host=signed_host)
    pairs[0] = ("host", "inner:9000")
    pairs += [("x-forwarded-host", signed_host), ("x-forwarded-proto", "https")]
    pairs += [("x-forwarded-port", port)] if port else []
    assert judge("GET", "/bkt/k", pairs, trusted=True)
    assert refused("GET", "/bkt/k", pairs).code == "SignatureDoesNotMatch"


# --- refusals ----------------------------------------------------------------------------------------------------


def test_a_wrong_signature_shows_what_was_signed() -> None:
    pairs = signed("GET", "/bkt/k")
    error = refused("GET", "/bkt/k", pairs, secret="wrong")
    assert (error.code, error.status) == ("SignatureDoesNotMatch", 403)
    assert list(error.elements) == [
        "AWSAccessKeyId",
        "StringToSign",
        "SignatureProvided",
        "StringToSignBytes",
        "CanonicalRequest",
        "CanonicalRequestBytes",
    ]
    canonical = error.elements["CanonicalRequest"]
    assert canonical.startswith("GET\n/bkt/k\n\nhost:localhost:9000\n")
    assert bytes.fromhex(error.elements["CanonicalRequestBytes"]) == canonical.encode()
    assert bytes.fromhex(error.elements["StringToSignBytes"]).decode() == error.elements["StringToSign"]
    assert error.elements["StringToSign"].startswith(f"AWS4-HMAC-SHA256\n{STAMP}\n20260504/us-east-1/s3/aws4_request\n")


def with_line(line: str) -> Pairs:
    return [*HOST, ("x-amz-date", STAMP), ("x-amz-content-sha256", EMPTY), ("Authorization", line)]


V4 = "AWS4-HMAC-SHA256 "
GOOD = f"Credential={AK}/20260504/us-east-1/s3/aws4_request, SignedHeaders=host;x-amz-date, Signature={'0' * 64}"
SHAPE = 'the Credential is mal-formed; expecting "<YOUR-AKID>/YYYYMMDD/REGION/SERVICE/aws4_request".'


SPACE = "Authorization header is invalid -- one and only one ' ' (space) required"
V2 = "AWS authorization header is invalid.  Expected AwsAccessKeyId:signature"
USE_V4 = "The authorization mechanism you have provided is not supported. Please use AWS4-HMAC-SHA256."


@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        ("AWS4-HMAC-SHA256", "InvalidArgument", SPACE),
        ("Bearer token", "InvalidArgument", "Unsupported Authorization Type"),
        ("AWS4-HMAC-SHA512 " + GOOD, "InvalidArgument", "Unsupported Authorization Type"),
        ("AWS HAHAHA", "InvalidArgument", V2),
        ("AWS ak:c2ln", "InvalidRequest", USE_V4),
        ("AWS4-ECDSA-P256-SHA256 " + GOOD, "NotImplemented", None),
        (V4 + GOOD.replace(AK, "a\udcff"), "InvalidAccessKeyId", None),
        (V4 + GOOD, "SignatureDoesNotMatch", None),
        ("aws4-hmac-sha256 " + GOOD, "SignatureDoesNotMatch", None),
    ],
)
def test_other_authorizations(line: str, code: str, message: str | None) -> None:
    error = refused("GET", "/bkt/k", with_line(line))
    assert error.code == code
    assert message is None or error.message == message
    if code == "InvalidArgument":
        assert error.elements == {"ArgumentName": "Authorization", "ArgumentValue": line}


DATE_SHAPE = 'This date in the credential must be in the format "yyyyMMdd".'


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        (GOOD, "x", "the authorization header requires three components: Credential, SignedHeaders, and Signature."),
        ("Credential=", "X=", "missing Credential."),
        ("SignedHeaders=", "X=", "missing SignedHeaders."),
        ("Signature=", "X=", "missing Signature."),
        ("SignedHeaders=host;x-amz-date", "what", 'the authorization component "what" is malformed.'),
        ("/aws4_request", "", SHAPE),
        (AK, "", "a non-empty Access Key (AKID) must be provided in the credential."),
        ("us-east-1", "", "a non-empty region must be provided in the credential."),
        ("us-east-1", "eu-west-1", "the region 'eu-west-1' is wrong; expecting 'us-east-1'"),
        ("/s3/", "/ec2/", 'incorrect service "ec2". This endpoint belongs to "s3".'),
        ("aws4_request", "aws5", 'incorrect terminal "aws5". This endpoint uses "aws4_request".'),
        ("20260504", "2026-05-04", f'incorrect date format "2026-05-04". {DATE_SHAPE}'),
        ("20260504", "20261399", f'incorrect date format "20261399". {DATE_SHAPE}'),
        ("20260504", "20260503", "Invalid credential date. Date is not the same as X-Amz-Date."),
    ],
)
def test_malformed_headers(right: str, wrong: str, message: str) -> None:
    error = refused("GET", "/bkt/k", with_line(V4 + GOOD.replace(right, wrong, 1)))
    assert (error.code, error.status) == ("AuthorizationHeaderMalformed", 400)
    assert error.message == f"The authorization header is malformed; {message}"


def test_a_wrong_region_is_told_the_right_one() -> None:
    line = V4 + GOOD.replace("us-east-1", "eu-west-1")
    assert refused("GET", "/bkt/k", with_line(line)).elements == {"Region": "us-east-1"}
    assert refused("GET", "/bkt/k", with_line(line), regions=("eu-west-1",)).code == "SignatureDoesNotMatch"
    target = presigned("/bkt/k").replace("us-east-1", "eu-west-1")
    error = refused("GET", target, HOST)
    assert (error.code, error.elements) == ("AuthorizationQueryParametersError", {"Region": "us-east-1"})


@pytest.mark.parametrize("date", ["", "yesterday", "20260504", "20261399T000000Z", "Tue, 07 Jul 1950 21:53:04 GMT"])
def test_dates_that_are_none(date: str) -> None:
    pairs = [(name, date if name == "x-amz-date" else value) for name, value in signed("GET", "/bkt/k")]
    error = refused("GET", "/bkt/k", [*pairs, ("date", "Mon, 04 May 2026 12:30:15 GMT")])
    assert (error.code, error.status) == ("AccessDenied", 403)
    assert error.message == "AWS authentication requires a valid Date or x-amz-date header"
    assert refused("GET", "/bkt/k", [pair for pair in pairs if pair[0] != "x-amz-date"]).code == "AccessDenied"


@pytest.mark.parametrize("offset", [timedelta(hours=-1), timedelta(hours=1), timedelta(minutes=15, seconds=1)])
def test_b017_skew(offset: timedelta) -> None:
    error = refused("GET", "/bkt/k", signed("GET", "/bkt/k"), now=NOW - offset)
    assert (error.code, error.status) == ("RequestTimeTooSkewed", 403)
    assert error.elements == {
        "RequestTime": STAMP,
        "ServerTime": f"{NOW - offset:%Y-%m-%dT%H:%M:%SZ}",
        "MaxAllowedSkewMilliseconds": "900000",
    }
    assert judge("GET", "/bkt/k", signed("GET", "/bkt/k"), now=NOW + timedelta(minutes=15))


def test_b017_a_local_clock_makes_no_difference() -> None:
    from datetime import timezone

    assert judge("GET", "/bkt/k", signed("GET", "/bkt/k"), now=NOW.astimezone(timezone(timedelta(hours=5))))


def edited(target: str, **changes: str | None) -> str:
    """A presigned target with parameters replaced or (None) left out; X-Amz- is added to the names."""
    path, _, query = target.partition("?")
    pairs = dict(parse_qsl(query)) | {f"X-Amz-{name}": value for name, value in changes.items()}
    return (
        path + "?" + "&".join(f"{name}={quote(value, safe='')}" for name, value in pairs.items() if value is not None)
    )


QUERY = "Error parsing the X-Amz-Credential parameter; "
SCOPE = f"{AK}/20260504/us-east-1/s3/aws4_request"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"Algorithm": "AWS4-HMAC-SHA1"}, 'X-Amz-Algorithm only supports "AWS4-HMAC-SHA256"'),
        *(
            ({name: None}, "Query-string authentication version 4 requires the X-Amz-Algorithm, X-Amz-Credential, "
             "X-Amz-Signature, X-Amz-Date, X-Amz-SignedHeaders, and X-Amz-Expires parameters.")
            for name in ("Algorithm", "Credential", "Signature", "Date", "SignedHeaders", "Expires")
        ),
        ({"Date": "20260504"}, "X-Amz-Date must be in the ISO8601 Long Format \"yyyyMMdd'T'HHmmss'Z'\""),
        ({"Expires": "abc"}, "X-Amz-Expires should be a number"),  # B015
        ({"Expires": "1.5"}, "X-Amz-Expires should be a number"),
        ({"Expires": "-1"}, "X-Amz-Expires must be non-negative"),
        ({"Expires": "604801"}, "X-Amz-Expires must be less than a week (in seconds); that is, the given "
         "X-Amz-Expires must be less than 604800 seconds"),
        ({"Credential": "ak/x"}, QUERY + SHAPE),
        ({"Credential": SCOPE.replace("/s3/", "/sts/")},
         QUERY + 'incorrect service "sts". This endpoint belongs to "s3".'),
        ({"Credential": SCOPE.replace("aws4_", "")},
         QUERY + 'incorrect terminal "request". This endpoint uses "aws4_request".'),
        ({"Credential": SCOPE.replace("20260504", "20260505")},
         'Invalid credential date "20260505". This date is not the same as X-Amz-Date: "20260504".'),
    ],
)  # fmt: skip
def test_malformed_presigned_urls(changes: dict[str, str | None], message: str) -> None:
    error = refused("GET", edited(presigned("/bkt/k"), **changes), HOST)
    assert (error.code, error.status, error.message) == ("AuthorizationQueryParametersError", 400, message)


def test_b015_lifetime() -> None:
    target = presigned("/bkt/k", expires=60)
    assert judge("GET", target, HOST, now=NOW + timedelta(seconds=60))
    error = refused("GET", target, HOST, now=NOW + timedelta(seconds=61))
    assert (error.code, error.status, error.message) == ("AccessDenied", 403, "Request has expired")
    assert error.elements == {
        "X-Amz-Expires": "60",
        "Expires": "2026-05-04T12:31:15Z",
        "ServerTime": "2026-05-04T12:31:16Z",
    }
    error = refused("GET", target, HOST, now=NOW - timedelta(hours=2))
    assert (error.code, error.status, error.message) == ("AccessDenied", 403, "Request is not yet valid")
    week = presigned("/bkt/k", expires=604800)
    assert judge("GET", week, HOST, now=NOW + timedelta(days=7))
    assert judge("GET", week, HOST, now=NOW - timedelta(minutes=15))
    assert refused("GET", edited(target, Expires="0"), HOST, now=NOW + timedelta(milliseconds=1)).status == 403


@pytest.mark.parametrize("line", [V4 + GOOD, "Token x", "Bearer x", "Basic eDp5"])
def test_b021_one_mechanism_only(line: str) -> None:
    error = refused("GET", presigned("/bkt/k"), [*HOST, ("Authorization", line)])
    assert (error.code, error.status) == ("InvalidArgument", 400)
    assert error.message.startswith("Only one auth mechanism allowed; only the X-Amz-Algorithm query parameter")
    assert error.elements == {"ArgumentName": "Authorization", "ArgumentValue": line}


def test_other_ways_of_signing_twice() -> None:
    pairs = with_line(V4 + GOOD)
    assert refused("GET", "/bkt/k", [*pairs, pairs[-1]]).code == "InvalidArgument"
    assert refused("GET", presigned("/bkt/k") + "&Signature=a&AWSAccessKeyId=b", HOST).code == "InvalidArgument"


def test_signature_version_2_is_refused_clearly() -> None:
    error = refused("GET", "/bkt/k?AWSAccessKeyId=a&Expires=1&Signature=s", HOST)
    assert (error.code, error.status) == ("InvalidRequest", 400)
    assert "Please use AWS4-HMAC-SHA256" in error.message


def test_half_a_presigned_url_is_not_anonymous() -> None:
    for query in ("X-Amz-Signature=s", "X-Amz-Credential=c", "X-Amz-Algorithm=AWS4-HMAC-SHA256"):
        assert refused("GET", f"/bkt/k?{query}", HOST).code == "AuthorizationQueryParametersError"


def test_session_tokens_are_unknown() -> None:
    error = refused("GET", "/bkt/k", signed("GET", "/bkt/k", extra=[("x-amz-security-token", "tok")]))
    assert (error.code, error.status, error.elements) == ("InvalidToken", 400, {"Token-0": "tok"})


# --- payloads ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [form for form in PayloadForm if form is not PayloadForm.HASH])
def test_payload_forms(form: PayloadForm) -> None:
    assert judge("PUT", "/bkt/k", signed("PUT", "/bkt/k", content=form.value)).payload == Payload(form)
    assert form.chunked == ("STREAMING" in form.value)
    assert form.trailer == form.value.endswith("-TRAILER")
    assert form.signed_chunks == ("HMAC" in form.value)


def test_b037_other_payloads() -> None:
    error = refused("PUT", "/bkt/k", signed("PUT", "/bkt/k", content="foo"))
    assert (error.code, error.status) == ("InvalidArgument", 400)
    assert error.elements == {"ArgumentName": "x-amz-content-sha256", "ArgumentValue": "foo"}
    upper = EMPTY.upper()
    assert judge("PUT", "/bkt/k", signed("PUT", "/bkt/k", content=upper)).payload.sha256 == EMPTY
    ecdsa = "STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD"
    assert refused("PUT", "/bkt/k", signed("PUT", "/bkt/k", content=ecdsa)).status == 501
    missing = [pair for pair in signed("PUT", "/bkt/k") if pair[0] != "x-amz-content-sha256"]
    error = refused("PUT", "/bkt/k", missing)
    assert error.message == "Missing required header for this request: x-amz-content-sha256"


def test_payload_of_a_presigned_url() -> None:
    target = presigned("/bkt/k", "PUT")
    digest = hashlib.sha256(b"x").hexdigest()
    assert judge("PUT", target, [*HOST, ("x-amz-content-sha256", digest)]).payload.sha256 == digest
    assert refused("PUT", target, [*HOST, ("x-amz-content-sha256", "foo")]).code == "InvalidArgument"
    unsigned = presigned("/bkt/k?X-Amz-Content-Sha256=UNSIGNED-PAYLOAD", "PUT")
    assert judge("PUT", unsigned, HOST).payload.form is PayloadForm.UNSIGNED


def test_payload_of_an_anonymous_request() -> None:
    def form(value: str | None) -> PayloadForm:
        return payload_of(Headers([] if value is None else [("x-amz-content-sha256", value)])).form

    assert form(None) is PayloadForm.UNSIGNED
    assert form(EMPTY) is PayloadForm.HASH
    assert form("STREAMING-UNSIGNED-PAYLOAD-TRAILER") is PayloadForm.STREAMING_UNSIGNED_TRAILER
    for value in ("foo", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"):
        with pytest.raises(S3Error):
            form(value)


def test_the_example_of_the_reference() -> None:
    """S3 API reference, "Examples: Signature calculations": GET Object with a range."""
    secret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
    line = (
        "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,"
        "SignedHeaders=host;range;x-amz-content-sha256;x-amz-date,"
        "Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
    )
    pairs = [
        ("Host", "examplebucket.s3.amazonaws.com"),
        ("Authorization", line),
        ("Range", "bytes=0-9"),
        ("x-amz-content-sha256", EMPTY),
        ("x-amz-date", "20130524T000000Z"),
    ]
    headers = Headers(pairs)
    parsed = parse("GET", "/test.txt", headers, "s3.amazonaws.com")
    assert (parsed.bucket, parsed.key) == ("examplebucket", b"test.txt")
    now = datetime(2013, 5, 24, tzinfo=UTC)
    presented = read("GET", "/test.txt", headers, parsed.query, now=now, region=REGION)
    assert presented is not None and verify(presented, secret).access_key == "AKIAIOSFODNN7EXAMPLE"
