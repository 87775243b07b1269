"""Random requests over the whole surface, each compared with a model of keys and versions.

The seed is fixed. SLUICETEST_FUZZ_STEPS asks for more requests, SLUICETEST_FUZZ_SEED for others; a failure names the
step, and the same seed comes there again.
"""

from __future__ import annotations

import hashlib
import os
import random
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote_to_bytes
from xml.etree import ElementTree
from xml.sax.saxutils import escape

import pytest

from tests.hostile.sender import Sender, path
from tests.operations.house import House
from tests.signing import Signer
from tests.wire.raw import Answer

STEPS = int(os.environ.get("SLUICETEST_FUZZ_STEPS", "250"))
SEED = int(os.environ.get("SLUICETEST_FUZZ_SEED", "20261130"))
NS = "{http://s3.amazonaws.com/doc/2006-03-01/}"
NULL = "null"

KEYS = [
    b"a", b"a/", b"a/b", b"/", b"//", b"..", b"a/../b", b"%2F", b"+ +", b"\0", b"x" * 1024, "é".encode(),
    "e\u0301".encode(), "\U0001f600".encode(), b"\r\n", b"?versionId=a", b"&<>\"'", "\ufffe".encode(), b"a.exe.txt",
]  # fmt: skip
NASTY = [
    "", " ", "0", "-1", "1", "null", "*", "%", "%00", "\t", "a" * 3000, "99999999999999999999", "1.5", "'", '"', "é",
    "bytes=0-0", "bytes=-1", "bytes=9-", "a=b&a=b", "true", "=?UTF-8?B?AA==?=", "Fri, 31 Dec 9999 23:59:59 GMT",
    "STANDARD", "GLACIER", "sync", "aws-chunked", "/a/b", "sha256", "CRC32", "W/\"x\"",
    "Mon, 01 Jan 0001 00:00:00 +2359",
]  # fmt: skip
HEADERS = [
    "range", "if-match", "if-none-match", "if-modified-since", "if-unmodified-since", "if-range", "content-md5",
    "content-type", "content-encoding", "expires", "cache-control", "x-amz-acl", "x-amz-storage-class",
    "x-amz-tagging", "x-amz-meta-a", "x-amz-meta-", "x-amz-copy-source", "x-amz-copy-source-range",
    "x-amz-copy-source-if-match", "x-amz-metadata-directive", "x-amz-tagging-directive", "x-amz-checksum-crc32",
    "x-amz-checksum-sha256", "x-amz-checksum-type", "x-amz-checksum-algorithm", "x-amz-sdk-checksum-algorithm",
    "x-amz-checksum-mode", "x-amz-object-attributes", "x-amz-max-parts", "x-amz-part-number-marker",
    "x-amz-mp-object-size", "x-amz-decoded-content-length", "x-amz-trailer", "x-amz-expected-bucket-owner",
    "x-amz-mfa", "x-amz-object-ownership", "x-amz-website-redirect-location", "x-amz-write-offset-bytes",
    "x-amz-server-side-encryption", "x-amz-if-match-size", "x-amz-if-match-last-modified-time",
    "x-sluice-processing", "origin", "transfer-encoding-x", "x-amz-security-token", "x-amz-request-payer",
]  # fmt: skip
PARAMETERS = [
    "acl", "versions", "versionId", "uploads", "uploadId", "partNumber", "delete", "restore", "attributes", "location",
    "versioning", "tagging", "policy", "list-type", "prefix", "delimiter", "marker", "max-keys", "max-uploads",
    "max-parts", "part-number-marker", "start-after", "continuation-token", "encoding-type", "fetch-owner",
    "key-marker", "version-id-marker", "upload-id-marker", "response-expires", "response-content-type", "x-id", "foo",
    "select", "select-type", "torrent", "legal-hold", "X-Amz-Signature", "X-Amz-Algorithm", "Signature",
]  # fmt: skip
DOCUMENTS = [
    b"", b"<", b"<a/>", b"<Delete><Object><Key>a</Key><VersionId>x</VersionId></Object></Delete>",
    b"<Delete><Object><Key>a</Key><Size>-1</Size><ETag>x</ETag></Object></Delete>",
    b"<VersioningConfiguration><Status>x</Status></VersioningConfiguration>",
    b"<CreateBucketConfiguration><LocationConstraint>&#9;</LocationConstraint></CreateBucketConfiguration>",
    b"<RestoreRequest><Days>1</Days></RestoreRequest>", b"<RestoreRequest><Days>99999999999</Days></RestoreRequest>",
    b"<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>a</ETag></Part></CompleteMultipartUpload>",
    b'<!DOCTYPE a [<!ENTITY b "c">]><Delete><Object><Key>&b;</Key></Object></Delete>', b"<a>" * 5000,
]  # fmt: skip


@dataclass
class Upload:
    key: bytes
    id: str
    parts: dict[int, tuple[str, bytes]] = field(default_factory=dict)


class Fuzz:
    """The model: versions of each key, newest first, as (version id, content; None for a delete marker)."""

    def __init__(self, sender: Sender, bucket: str, junk: str, seed: int) -> None:
        self.sender, self.bucket, self.junk = sender, bucket, junk
        self.random = random.Random(seed)
        self.status = ""
        self.keys: dict[bytes, list[tuple[str, bytes | None]]] = {}
        self.uploads: list[Upload] = []

    # --- the model ---------------------------------------------------------------------------------------------------

    def current(self, key: bytes) -> bytes | None:
        versions = self.keys.get(key)
        return versions[0][1] if versions else None

    def wrote(self, key: bytes, content: bytes | None, answer: Answer) -> None:
        """A new version, or (None) a delete marker."""
        versions = self.keys.setdefault(key, [])
        if self.status == "Enabled":
            versions.insert(0, (answer.headers["x-amz-version-id"], content))
        else:
            versions[:] = [each for each in versions if each[0] != NULL]
            if content is not None or self.status:
                versions.insert(0, (NULL, content))
        if not versions:
            del self.keys[key]

    # --- what is asked -----------------------------------------------------------------------------------------------

    def ask(self, method: str, key: bytes | None = None, query: str = "", **more: Any) -> Answer:
        return self.sender.ask(method, path(self.bucket, key, query), **more)

    def key(self) -> bytes:
        return self.random.choice(KEYS)

    def body(self) -> bytes:
        size = self.random.choice((0, 1, 7, 300, 16384, 16385, 70000))
        return self.random.randbytes(size)

    def put(self) -> None:
        key, body = self.key(), self.body()
        if self.random.random() < 0.3:
            condition = {"if-none-match": "*"}
            there = self.current(key) is not None
            answer = self.ask("PUT", key, headers=condition, body=body)
            assert answer.status == (412 if there else 200), answer
        else:
            answer = self.ask("PUT", key, body=body)
            assert answer.status == 200, answer
        if answer.status == 200:
            assert answer.headers["etag"] == f'"{hashlib.md5(body).hexdigest()}"'
            self.wrote(key, body, answer)

    def get(self) -> None:
        key = self.key()
        content = self.current(key)
        method = self.random.choice(("GET", "HEAD"))
        answer = self.ask(method, key)
        if content is None:
            assert answer.status == 404, answer
            return
        assert answer.status == 200 and int(answer.headers["content-length"]) == len(content), answer
        assert method == "HEAD" or answer.body == content

    def get_range(self) -> None:
        key = self.key()
        content = self.current(key)
        first = self.random.choice((0, 1, 299, 16384, 69999, 10**15))
        answer = self.ask("GET", key, headers={"range": f"bytes={first}-{first + 9}"})
        if content is None:
            assert answer.status == 404, answer
        elif first < len(content):
            assert answer.status == 206 and answer.body == content[first : first + 10], answer
        else:
            assert answer.status == 416 and answer.headers["content-range"] == f"bytes */{len(content)}", answer

    def get_version(self) -> None:
        if not self.keys:
            return
        key = self.random.choice(list(self.keys))
        version, content = self.random.choice(self.keys[key])
        answer = self.ask("GET", key, f"versionId={version}")
        assert answer.status == (405 if content is None else 200), answer
        assert content is None or answer.body == content

    def delete(self) -> None:
        key = self.key()
        answer = self.ask("DELETE", key)
        assert answer.status == 204, answer
        assert ("x-amz-delete-marker" in answer.headers) == bool(self.status)
        self.wrote(key, None, answer)

    def delete_version(self) -> None:
        if not self.keys:
            return
        key = self.random.choice(list(self.keys))
        chosen = self.random.choice(self.keys[key])
        assert self.ask("DELETE", key, f"versionId={chosen[0]}").status == 204
        self.keys[key].remove(chosen)
        if not self.keys[key]:
            del self.keys[key]

    def delete_many(self) -> None:
        if self.status == "Enabled":
            return  # the markers' ids come in the body: covered by delete
        chosen = [
            key for key in self.random.sample(KEYS, 5) if not set(key) & {0, 10, 13} and b"\xef\xbf\xbe" not in key
        ]
        rows = "".join(f"<Object><Key>{escape(key.decode())}</Key></Object>" for key in chosen + chosen[:1])
        body = f"<Delete>{rows}</Delete>".encode()
        answer = self.ask("POST", None, "delete", headers=_md5(body), body=body)
        assert answer.status == 200 and answer.body.count(b"<Deleted>") == len(chosen) + min(1, len(chosen)), answer
        for key in chosen:
            self.wrote(key, None, answer)

    def copy(self) -> None:
        source, key = self.key(), self.key()
        content = self.current(source)
        headers = {
            "x-amz-copy-source": quote(f"{self.bucket}/".encode() + source, safe=""),
            "x-amz-metadata-directive": "REPLACE",
        }
        answer = self.ask("PUT", key, headers=headers)
        assert answer.status == (404 if content is None else 200), answer
        if content is not None:
            self.wrote(key, content, answer)

    def versioning(self) -> None:
        self.status = self.random.choice(("Enabled", "Suspended"))
        body = f"<VersioningConfiguration><Status>{self.status}</Status></VersioningConfiguration>".encode()
        assert self.ask("PUT", None, "versioning", headers=_md5(body), body=body).status == 200

    def open_upload(self) -> None:
        key = self.key()
        answer = self.ask("POST", key, "uploads")
        assert answer.status == 200, answer
        self.uploads.append(Upload(key, answer.body.partition(b"<UploadId>")[2].partition(b"<")[0].decode()))

    def put_part(self) -> None:
        if not self.uploads:
            return
        upload, number = self.random.choice(self.uploads), self.random.choice((1, 2, 10000))
        query, source = f"partNumber={number}&uploadId={upload.id}", self.key()
        content = self.current(source)
        if content and self.random.random() < 0.5:
            end = len(content) // 2
            headers = {
                "x-amz-copy-source": quote(f"{self.bucket}/".encode() + source, safe=""),
                "x-amz-copy-source-range": f"bytes=0-{end}",
            }
            answer, content = self.ask("PUT", upload.key, query, headers=headers), content[: end + 1]
        else:
            content = self.body()
            answer = self.ask("PUT", upload.key, query, body=content)
        assert answer.status == 200, answer
        upload.parts[number] = (hashlib.md5(content).hexdigest(), content)

    def end_upload(self) -> None:
        if not self.uploads:
            return
        upload = self.uploads.pop(self.random.randrange(len(self.uploads)))
        query = f"uploadId={upload.id}"
        if not upload.parts or self.random.random() < 0.3:
            assert self.ask("DELETE", upload.key, query).status == 204
            assert self.ask("GET", upload.key, query).status == 404
            return
        number, (etag, content) = self.random.choice(list(upload.parts.items()))
        part = f"<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>"
        body = f"<CompleteMultipartUpload>{part}</CompleteMultipartUpload>".encode()
        answer = self.ask("POST", upload.key, query, body=body)
        assert answer.status == 200, answer
        self.wrote(upload.key, content, answer)
        assert self.ask("POST", upload.key, query, body=body).status == 200  # a repeat is answered alike

    def listing(self) -> None:
        found: list[bytes] = []
        token = ""
        while True:
            size = self.random.choice((1, 3, 1000))
            answer = self.ask("GET", None, f"list-type=2&encoding-type=url&max-keys={size}{token}")
            root = ElementTree.fromstring(answer.body)
            found += [unquote_to_bytes(each.text or "") for each in root.iter(f"{NS}Key")]
            if root.findtext(f"{NS}IsTruncated") != "true":
                break
            token = f"&continuation-token={quote(root.findtext(f'{NS}NextContinuationToken') or '', safe='')}"
        assert found == sorted(key for key in self.keys if self.current(key) is not None)

    def version_listing(self) -> None:
        found: list[tuple[bytes, str]] = []
        markers = ""
        while True:
            size = self.random.choice((1, 3, 1000))
            answer = self.ask("GET", None, f"versions&encoding-type=url&max-keys={size}{markers}")
            root = ElementTree.fromstring(answer.body)
            for each in root:
                if each.tag in (f"{NS}Version", f"{NS}DeleteMarker"):
                    found.append(
                        (unquote_to_bytes(each.findtext(f"{NS}Key") or ""), each.findtext(f"{NS}VersionId") or "")
                    )
            if root.findtext(f"{NS}IsTruncated") != "true":
                break
            key = quote(unquote_to_bytes(root.findtext(f"{NS}NextKeyMarker") or ""), safe="")
            markers = f"&key-marker={key}&version-id-marker={root.findtext(f'{NS}NextVersionIdMarker')}"
        assert found == [(key, version) for key in sorted(self.keys) for version, _ in self.keys[key]]

    def nonsense(self) -> None:
        """Well signed, with anything in headers and parameters, to a bucket that the model does not look at."""
        chance = self.random
        names = chance.sample(PARAMETERS, chance.randrange(3))
        query = "&".join(f"{name}={quote(chance.choice(NASTY), safe='')}" for name in names)
        headers = {name: chance.choice(NASTY).strip() for name in chance.sample(HEADERS, chance.randrange(4))}
        key = chance.choice((None, self.key()))
        method = chance.choice(("GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS", "PATCH"))
        if method == "DELETE" and key is None:
            return
        body = chance.choice(DOCUMENTS) if method in ("PUT", "POST") else b""
        if chance.random() < 0.5:
            headers |= _md5(body)
        self.sender.ask(method, path(self.junk, key, query), headers, body)

    def tampered(self) -> None:
        """Signed, then changed at one place of its head: never let in, never a failure of ours."""
        whole = bytearray(self.sender.signed("GET", path(self.junk, self.key())))
        at = self.random.randrange(whole.index(b"\r\n"))
        if not 0x21 <= whole[at] <= 0x7E or at < 5:
            return
        whole[at] = self.random.choice(b"abcXYZ019-._~/%")
        answer = self.sender.raw("GET", bytes(whole))
        assert answer.status in (200, 400, 403, 404), answer

    # --- running it ------------------------------------------------------------------------------------------------

    def run(self, steps: int) -> None:
        deeds: list[tuple[Callable[[], None], int]] = [
            (self.put, 20), (self.get, 15), (self.get_range, 6), (self.get_version, 6), (self.delete, 8),
            (self.delete_version, 8), (self.delete_many, 2), (self.copy, 10), (self.versioning, 2),
            (self.open_upload, 4), (self.put_part, 8), (self.end_upload, 4), (self.listing, 4),
            (self.version_listing, 4), (self.nonsense, 40), (self.tampered, 6),
        ]  # fmt: skip
        for step in range(steps):
            deed = self.random.choices([each for each, _ in deeds], [weight for _, weight in deeds])[0]
            try:
                deed()
            except Exception as error:
                error.add_note(f"step {step}, {deed.__name__}")
                raise
        self.listing()
        self.version_listing()


def _md5(body: bytes) -> dict[str, str]:
    return {"content-md5": b64encode(hashlib.md5(body).digest()).decode()}


@pytest.mark.parametrize("number", range(2))
def test_random_requests_agree_with_the_model(house: House, root: Signer, s3: Any, bucket: str, number: int) -> None:
    junk = f"{bucket}-junk"
    s3.create_bucket(Bucket=junk)
    sender = Sender(house.port, root)
    try:
        Fuzz(sender, bucket, junk, SEED + number).run(STEPS)
    finally:
        sender.close()
