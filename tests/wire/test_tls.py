"""The same over TLS: bodies, early refusals, and ends."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.operations.house import ROOT, House
from tests.wire.raw import Wire, signer


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server's and a client's side."""
    folder: Path = tmp_path_factory.mktemp("tls")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    pem = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "key.pem").write_bytes(key.private_bytes(*pem))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    return server, client


@pytest.fixture(scope="module")
def secure(worker_dsn: str, contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> Iterator[House]:
    made = House(worker_dsn, contexts[0]).start()
    yield made
    made.stop()


def test_bodies_of_every_size_come_back(secure: House, bucket: str, contexts: Any) -> None:
    root = signer(secure.port, ROOT)
    for size in (0, 5, 20_000, 3 << 20):
        data = bytes(i % 251 for i in range(size))
        with Wire(secure.port, tls=contexts[1]) as wire:
            wire.send(root.request("PUT", f"/{bucket}/k", body=data))
            assert wire.answer().status == 200
            wire.send(root.request("GET", f"/{bucket}/k"))
            assert wire.answer().body == data


def test_expect_and_an_early_refusal(secure: House, bucket: str, contexts: Any) -> None:
    root = signer(secure.port, ROOT)
    with Wire(secure.port, tls=contexts[1]) as wire:
        request = root.request("PUT", f"/{bucket}/k", {"Expect": "100-continue"}, b"hello")
        wire.send(request[:-5])
        assert wire.line() == b"HTTP/1.1 100 Continue" and wire.line() == b""
        wire.send(request[-5:])
        assert wire.answer().status == 200
    with Wire(secure.port, tls=contexts[1]) as wire:
        wire.send(root.request("PUT", "/no-such-bucket-here/k", {"Expect": "100-continue"}, b"x" * 1000)[:-1000])
        answer = wire.answer()
        assert (answer.status, answer.code) == (404, "NoSuchBucket")


def test_the_location_of_a_completed_upload_is_https(secure: House, bucket: str, contexts: Any) -> None:
    root = signer(secure.port, ROOT)
    with Wire(secure.port, tls=contexts[1]) as wire:
        wire.send(root.request("POST", f"/{bucket}/k?uploads"))
        upload = wire.answer("POST").body.split(b"<UploadId>")[1].split(b"<")[0].decode()
        wire.send(root.request("PUT", f"/{bucket}/k?partNumber=1&uploadId={upload}", body=b"x"))
        etag = wire.answer().headers["etag"]
        part = f"<Part><PartNumber>1</PartNumber><ETag>{etag}</ETag></Part>"
        body = f"<CompleteMultipartUpload>{part}</CompleteMultipartUpload>".encode()
        wire.send(root.request("POST", f"/{bucket}/k?uploadId={upload}", body=body))
        answer = wire.answer("POST")
    assert f"<Location>https://127.0.0.1:{secure.port}/{bucket}/k</Location>".encode() in answer.body
