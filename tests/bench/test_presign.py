"""The presigner against botocore's."""

from __future__ import annotations

from datetime import UTC, datetime
from unittest import mock

import pytest
from botocore.auth import S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from bench.presign import Presigner

NOW = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
HOST = "127.0.0.1:9000"


def botocores(method: str, path: str, query: str, headers: dict[str, str]) -> dict[str, str]:
    request = AWSRequest(method, f"http://{HOST}{path}" + (f"?{query}" if query else ""), headers=headers)
    with mock.patch("botocore.auth.get_current_datetime", lambda: NOW.replace(tzinfo=None)):
        S3SigV4QueryAuth(Credentials("access", "secret"), "s3", "us-east-1", expires=86400).add_auth(request)
    return pairs(request.url)


def pairs(url: str) -> dict[str, str]:
    return dict(pair.partition("=")[::2] for pair in url.partition("?")[2].split("&"))


@pytest.mark.parametrize(
    ("method", "path", "sent", "query", "headers"),
    [
        ("GET", "/bucket/key", "/bucket/key", [], {}),
        ("PUT", "/bucket/a b+ü", "/bucket/a%20b%2B%C3%BC", [], {}),
        ("GET", "/bucket", "/bucket", [("list-type", "2"), ("prefix", "a/b")], {}),
        ("PUT", "/bucket/key", "/bucket/key", [("partNumber", "1"), ("uploadId", "x=/y")], {}),
        ("PUT", "/bucket/key", "/bucket/key", [], {"x-amz-copy-source": "/bucket/other"}),
        ("POST", "/bucket/key", "/bucket/key", [("uploads", "")], {}),
    ],
)
def test_it_signs_as_botocore_does(
    method: str, path: str, sent: str, query: list[tuple[str, str]], headers: dict[str, str]
) -> None:
    signer = Presigner("access", "secret", HOST, now=NOW)
    ours = signer.path(method, path, query, headers)
    assert ours.partition("?")[0] == sent
    text = "&".join(f"{name}={value.replace('/', '%2F').replace('=', '%3D')}" for name, value in query)
    theirs = botocores(method, sent, text, headers)
    assert pairs(ours)["X-Amz-Signature"] == theirs["X-Amz-Signature"]
    assert pairs(ours)["X-Amz-SignedHeaders"] == theirs["X-Amz-SignedHeaders"].replace(";", "%3B")


def test_paths_of_equally_long_keys_are_equally_long() -> None:
    signer = Presigner("access", "secret", HOST, now=NOW)
    found = list(signer.paths("PUT", [f"/b/{number:06}" for number in range(50)]))
    assert len({len(path) for path in found}) == 1
    assert len(set(found)) == 50
    assert found[7] == signer.path("PUT", "/b/000007")
