"""SigV4 cases over raw sockets: what is signed is the target as it was sent, and every refusal says which."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import pytest

from tests.operations.house import ROOT, House
from tests.signing import Signer, head
from tests.wire.raw import Answer, Wire, signer


def ask(
    house: House, method: str, target: str, body: bytes = b"", headers: Mapping[str, str] | None = None,
    signed_as: str | None = None,
) -> Answer:  # fmt: skip
    """One request. signed_as: the target that is signed, where it is not the one that is sent."""
    root = signer(house.port, ROOT)
    length = {"Content-Length": str(len(body))} if body or method == "PUT" else {}
    signed = root.headers(
        method, signed_as or target, {**(headers or {}), **length}, payload=hashlib.sha256(body).hexdigest()
    )
    return send(house, method, target, signed, body)


def send(house: House, method: str, target: str, headers: Mapping[str, str], body: bytes = b"") -> Answer:
    with Wire(house.port) as wire:
        wire.send(head(method, target, headers) + body)
        return wire.answer(method)


def keys(s3: Any, bucket: str) -> list[str]:
    return [each["Key"] for each in s3.list_objects_v2(Bucket=bucket).get("Contents", [])]


# --- the target --------------------------------------------------------------------------------------------------


def test_b001_a_key_that_begins_with_a_slash(house: House, s3: Any, bucket: str) -> None:
    assert ask(house, "PUT", f"/{bucket}//foo", b"x").status == 200
    assert ask(house, "GET", f"/{bucket}//foo").body == b"x"
    missing = ask(house, "GET", f"/{bucket}/foo")
    assert (missing.status, missing.code) == (404, "NoSuchKey")
    assert keys(s3, bucket) == ["/foo"]


def test_b003_a_literal_percent_sign(house: House, s3: Any, bucket: str) -> None:
    target = f"/{bucket}/pct%25zz"
    assert ask(house, "PUT", target, b"x").status == 200
    assert ask(house, "GET", target).body == b"x"
    assert ask(house, "HEAD", target).status == 200
    assert keys(s3, bucket) == ["pct%zz"]
    assert ask(house, "GET", f"/{bucket}/pct%zz").status == 400
    assert ask(house, "DELETE", target).status == 204
    assert ask(house, "PUT", f"/{bucket}/a%252Fb", b"escaped").status == 200
    assert ask(house, "PUT", f"/{bucket}/a/b", b"plain").status == 200
    assert keys(s3, bucket) == ["a%2Fb", "a/b"]
    assert ask(house, "GET", f"/{bucket}/a%252Fb").body == b"escaped"


def test_b005_escapes_that_libraries_undo(house: House, s3: Any, bucket: str) -> None:
    assert ask(house, "PUT", f"/{bucket}/%27%28%29%2A%21", b"x").status == 200
    assert keys(s3, bucket) == ["'()*!"]
    assert ask(house, "GET", f"/{bucket}/'()*!").body == b"x"


def test_b007_an_escaped_slash_is_decoded_once_and_signed_either_way(house: House, s3: Any, bucket: str) -> None:
    """Sources disagree: both canonical forms are taken, as sent and as S3 encodes the key."""
    assert ask(house, "PUT", f"/{bucket}/a%2Fb", b"as sent").status == 200
    assert ask(house, "GET", f"/{bucket}/a/b").body == b"as sent"
    assert ask(house, "PUT", f"/{bucket}/a%2Fb", b"as encoded", signed_as=f"/{bucket}/a/b").status == 200
    assert ask(house, "GET", f"/{bucket}/a/b").body == b"as encoded"
    assert keys(s3, bucket) == ["a/b"]


def test_b009_query_names_are_ordered_as_escaped(house: House, bucket: str) -> None:
    right, raw = "p%5Ba%5D=1&p%5BaB%5D=2", "p%5BaB%5D=2&p%5Ba%5D=1"
    sent = f"/{bucket}?p[aB]=2&p[a]=1"
    assert ask(house, "GET", sent, signed_as=f"/{bucket}?{right}").status == 200
    signed = signer(house.port, ROOT).headers("GET", f"/{bucket}", canonical_query=raw)
    refused = send(house, "GET", sent, signed)
    assert (refused.status, refused.code) == (403, "SignatureDoesNotMatch")


def test_b011_blanks_in_signed_headers_are_folded(house: House, s3: Any, bucket: str) -> None:
    headers = {"x-amz-meta-note": "a  b   c ", "accept-encoding": "  gzip,  br "}
    assert ask(house, "PUT", f"/{bucket}/k", b"x", headers).status == 200
    assert " ".join(s3.head_object(Bucket=bucket, Key="k")["Metadata"]["note"].split()) == "a b c"


# --- behind a proxy ----------------------------------------------------------------------------------------------

SIGNED_HOSTS = ["h", "h:443", "h:8443", "[::1]:9000"]


def forwarded(house: House, bucket: str, host: str, port: str | None) -> Answer:
    """A request signed for host that a proxy passes on with a Host of its own."""
    signed = Signer(*ROOT, host=host).headers("GET", f"/{bucket}", payload=hashlib.sha256(b"").hexdigest())
    signed |= {"host": f"127.0.0.1:{house.port}", "x-forwarded-host": host, "x-forwarded-proto": "https"}
    return send(house, "GET", f"/{bucket}", signed | ({"x-forwarded-port": port} if port else {}))


@pytest.mark.parametrize("host", SIGNED_HOSTS)
@pytest.mark.parametrize("port", [None, "443", "9000"])
def test_b013_an_untrusted_peer_is_judged_on_host_alone(house: House, bucket: str, host: str, port: str | None) -> None:
    answer = forwarded(house, bucket, host, port)
    assert (answer.status, answer.code) == (403, "SignatureDoesNotMatch")


def test_b013_what_a_trusted_proxy_says_of_the_host_counts(worker_dsn: str, bucket: str) -> None:
    house = House(worker_dsn, trusted_proxies=("127.0.0.0/8",)).start()
    try:
        answers = {(h, p): forwarded(house, bucket, h, p).status for h in SIGNED_HOSTS for p in (None, "443", "9000")}
        assert set(answers.values()) == {200}, answers
        # The proxy lost the port: the host without it, and the port apart.
        signed = Signer(*ROOT, host="h:8443").headers("GET", f"/{bucket}", payload=hashlib.sha256(b"").hexdigest())
        signed |= {"host": "inner", "x-forwarded-host": "h", "x-forwarded-port": "8443"}
        assert send(house, "GET", f"/{bucket}", signed).status == 200
        wrong = Signer(*ROOT, host="elsewhere").headers("GET", f"/{bucket}", payload="UNSIGNED-PAYLOAD")
        assert send(house, "GET", f"/{bucket}", wrong | {"host": "inner", "x-forwarded-host": "h"}).status == 403
    finally:
        house.stop()


# --- presigned ---------------------------------------------------------------------------------------------------


def presigned(
    house: House, method: str, path: str, *, expires: str = "60", now: datetime | None = None,
    headers: Mapping[str, str] | None = None,
) -> str:  # fmt: skip
    """A presigned target, made from the S3 reference ("Authenticating Requests: Using Query Parameters")."""
    root = signer(house.port, ROOT)
    stamp = f"{(now or datetime.now(UTC)):%Y%m%dT%H%M%SZ}"
    scope = f"{stamp[:8]}/us-east-1/s3/aws4_request"
    signed = {"host": root.host} | {name.lower(): value for name, value in (headers or {}).items()}
    names = ";".join(sorted(signed))
    fields = {
        "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
        "X-Amz-Credential": f"{root.access_key}/{scope}",
        "X-Amz-Date": stamp,
        "X-Amz-Expires": expires,
        "X-Amz-SignedHeaders": names,
    }
    query = "&".join(f"{name}={quote(value, safe='-_.~')}" for name, value in sorted(fields.items()))
    lines = "".join(f"{name}:{signed[name]}\n" for name in sorted(signed))
    canonical = f"{method}\n{path}\n{query}\n{lines}\n{names}\nUNSIGNED-PAYLOAD"
    to_sign = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    signature = hmac.digest(root.key(stamp[:8]), to_sign.encode(), "sha256").hex()
    return f"{path}?{query}&X-Amz-Signature={signature}"


def use(house: House, target: str, method: str = "GET", body: bytes = b"", **headers: str) -> Answer:
    length = {"Content-Length": str(len(body))} if method == "PUT" else {}
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    return send(house, method, target, {"Host": f"127.0.0.1:{house.port}", **given, **length}, body)


@pytest.mark.parametrize("expires", ["604801", "-1", "abc"])
def test_b015_a_lifetime_that_is_none(house: House, bucket: str, expires: str) -> None:
    answer = use(house, presigned(house, "GET", f"/{bucket}/k", expires=expires))
    assert (answer.status, answer.code) == (400, "AuthorizationQueryParametersError")


def test_b015_too_late_and_too_early(house: House, s3: Any, bucket: str) -> None:
    """s3-tests' test_object_raw_get_x_amz_expires_* want 403 for lifetimes out of range; S3 answers 400."""
    s3.put_object(Bucket=bucket, Key="k", Body=b"x")
    path, now = f"/{bucket}/k", datetime.now(UTC)
    assert use(house, presigned(house, "GET", path, expires="604800")).body == b"x"
    late = use(house, presigned(house, "GET", path, expires="10", now=now - timedelta(seconds=11)))
    assert (late.status, late.code) == (403, "AccessDenied") and b"<Message>Request has expired</Message>" in late.body
    early = use(house, presigned(house, "GET", path, now=now + timedelta(hours=2)))
    assert (early.status, early.code) == (403, "AccessDenied")
    assert b"<Message>Request is not yet valid</Message>" in early.body


def test_b017_a_clock_an_hour_behind(house: House, bucket: str) -> None:
    root = signer(house.port, ROOT)
    signed = root.headers("GET", f"/{bucket}", payload="UNSIGNED-PAYLOAD", now=datetime.now(UTC) - timedelta(hours=1))
    answer = send(house, "GET", f"/{bucket}", signed)
    assert (answer.status, answer.code) == (403, "RequestTimeTooSkewed")
    assert b"<MaxAllowedSkewMilliseconds>900000</MaxAllowedSkewMilliseconds>" in answer.body
    assert f"<RequestTime>{signed['x-amz-date']}</RequestTime>".encode() in answer.body
    assert b"<ServerTime>20" in answer.body


def test_b019_a_signed_content_disposition_has_to_be_sent(house: House, s3: Any, bucket: str) -> None:
    shown = {"content-disposition": "attachment; filename=a.txt"}
    target = presigned(house, "PUT", f"/{bucket}/k", headers=shown)
    assert "X-Amz-SignedHeaders=content-disposition%3Bhost" in target
    assert use(house, target, "PUT", b"x").status == 403
    assert use(house, target, "PUT", b"x", **shown).status == 200
    assert s3.head_object(Bucket=bucket, Key="k")["ContentDisposition"] == shown["content-disposition"]


@pytest.mark.parametrize("mechanism", ["AWS4-HMAC-SHA256 Credential=x", "Token x", "Bearer x"])
def test_b021_one_mechanism_only_even_where_anybody_may_read(
    house: House, s3: Any, bucket: str, mechanism: str
) -> None:
    """Sources disagree about a foreign header: refused like any second mechanism."""
    s3.put_object(Bucket=bucket, Key="k", Body=b"x", ACL="public-read")
    answer = use(house, presigned(house, "GET", f"/{bucket}/k"), Authorization=mechanism)
    assert (answer.status, answer.code) == (400, "InvalidArgument")
    spoilt = presigned(house, "GET", f"/{bucket}/k")[:-1] + "x"
    assert use(house, spoilt, Authorization=mechanism).status == 400
    assert use(house, spoilt).status == 403  # a bad signature is never an anonymous request
