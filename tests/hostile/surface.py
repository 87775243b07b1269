"""Requests for every row of the operations table, with values that are right, nearly right or hostile, beside the
stateful ones of test_fuzz: one generator, whose seed tells all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from urllib.parse import quote

from gateway.s3.operations import OPERATIONS, BodyKind, Operation, Target
from tests.hostile.sender import Sender, check, path
from tests.hostile.test_fuzz import DOCUMENTS, HEADERS, NASTY, PARAMETERS, Fuzz, _md5
from tests.signing import Signer
from tests.wire.raw import Wire

# What a client that means well would send; the rest of the values come from NASTY.
GOOD: Mapping[str, tuple[str, ...]] = {
    "range": ("bytes=0-9", "bytes=-5", "bytes=5-", "bytes=0-0,5-6", "bytes=9-1", "lines=1-2", "bytes=0-9999999999999"),
    "if-match": ("*", '"d41d8cd98f00b204e9800998ecf8427e"', "x, y"),
    "if-none-match": ("*", '"d41d8cd98f00b204e9800998ecf8427e"'),
    "if-modified-since": ("Tue, 01 Jan 2030 00:00:00 GMT", "Tuesday"),
    "x-amz-copy-source-range": ("bytes=0-9", "bytes=9-0", "bytes=0-"),
    "x-amz-metadata-directive": ("COPY", "REPLACE", "copy"),
    "x-amz-tagging": ("a=b&c=d", "a", "a=b&a=c", "=", "%zz=1"),
    "x-amz-acl": ("private", "public-read", "aws-exec-read"),
    "x-amz-storage-class": ("STANDARD", "STANDARD_IA", "GLACIER"),
    "x-amz-object-attributes": ("ETag,ObjectSize", "ObjectParts", "Nothing"),
    "x-amz-checksum-algorithm": ("CRC32", "SHA256", "CRC64NVME"),
    "x-amz-checksum-crc32": ("AAAAAA==", "AAAA", "!"),
    "content-md5": ("1B2M2Y8AsgTpgAmY7PhCfg==", "AAAA"),
    "partNumber": ("1", "2", "10000", "10001", "0"),
    "max-keys": ("0", "1", "1000", "1001"),
    "list-type": ("1", "2", "3"),
    "encoding-type": ("url", "xml"),
    "delimiter": ("/", "//", "a", "%"),
    "prefix": ("a", "a/", "é"),
    "versionId": ("null", "", "3sL4kqtJlcpXroDTDmJ+rmSpXd3dIbrHY+MTRCxf3vjVBH40Nr8X8gdRQBpUMLUo"),
}  # fmt: skip
GRAMMAR = (
    b"<CompleteMultipartUpload><Part><PartNumber>%d</PartNumber><ETag>%s</ETag></Part></CompleteMultipartUpload>",
    b"<Delete><Quiet>%d</Quiet><Object><Key>%s</Key></Object></Delete>",
    b"<VersioningConfiguration><MfaDelete>%d</MfaDelete><Status>%s</Status></VersioningConfiguration>",
    b"<RestoreRequest><Days>%d</Days><GlacierJobParameters><Tier>%s</Tier></GlacierJobParameters></RestoreRequest>",
    b"<CreateBucketConfiguration><A>%d</A><LocationConstraint>%s</LocationConstraint></CreateBucketConfiguration>",
)
TEXTS = (b"", b"a", b"Enabled", b"Suspended", b"Bulk", b"&amp;", b"&#0;", b"]]>", b"\xff", b"<b/>", "\u202e".encode())


class Counted(Sender):
    """Counts requests, and keeps the last one for the report of a failure."""

    def __init__(self, port: int, signer: Signer) -> None:
        super().__init__(port, signer)
        self.port, self.signer = port, signer
        self.count, self.last = 0, b""

    def raw(self, method: str, data: bytes):  # type: ignore[no-untyped-def]
        self.count, self.last = self.count + 1, data
        return super().raw(method, data)

    def alone(self, method: str, data: bytes) -> int:
        """Bytes that may be no request, over a connection of their own that ends behind them. Any answer must be one;
        0 stands for none."""
        self.count, self.last = self.count + 1, data
        with Wire(self.port) as wire:
            try:
                wire.send(data)
                wire.half_close()
            except OSError:  # it was refused before it was whole
                pass
            if not wire.file.peek(1):  # type: ignore[attr-defined]
                return 0
            return check(wire.answer(method), method, data[:2000]).status

    def leave(self, data: bytes, read: int) -> None:
        """Send, read some of the answer, and go without a word."""
        self.count, self.last = self.count + 1, data
        with Wire(self.port) as wire:
            wire.send(data)
            if read:
                wire.socket.recv(read)
            if read % 2:
                wire.reset()


class Surface(Fuzz):
    """The stateful deeds, and those below; the model looks at its own bucket, hostile writes go to the junk."""

    sender: Counted

    def value(self, name: str) -> str:
        chance = self.random
        known = GOOD.get(name)
        if name == "uploadId" and self.uploads and chance.random() < 0.5:
            return chance.choice(self.uploads).id
        if name == "x-amz-copy-source" and chance.random() < 0.7:
            source = quote(chance.choice((self.bucket, self.junk)).encode() + b"/" + self.key(), safe="/")
            return source + chance.choice(("", "?versionId=null", "?versionId=x", "?", "?a=b"))
        return chance.choice(known) if known and chance.random() < 0.7 else chance.choice(NASTY).strip()

    def document(self) -> bytes:
        chance = self.random
        if chance.random() < 0.4:
            return chance.choice(DOCUMENTS)
        text = chance.choice(GRAMMAR) % (chance.choice((0, 1, -1, 10**20)), chance.choice(TEXTS))
        return text[: chance.randrange(len(text))] if chance.random() < 0.2 else text

    def target(self, row: Operation) -> tuple[str, bytes | None]:
        """Bucket and key. Buckets that come and go are others than those that the rest works with."""
        chance = self.random
        if row.name in ("CreateBucket", "DeleteBucket"):
            return chance.choice((f"{self.junk}-now", "absent-bucket", "UPPER", "a..b", "x" * 64, "192.168.0.1")), None
        bucket = self.junk if row.method not in ("GET", "HEAD") else chance.choice((self.bucket, self.junk, "absent"))
        return bucket, self.key() if row.target is Target.OBJECT else None

    def operation(self) -> None:
        chance = self.random
        row = chance.choice(OPERATIONS)
        bucket, key = self.target(row)
        pairs = [(name, self.value(name)) for name in row.query] + list(row.fixed)
        pairs += [(name, self.value(name)) for name in chance.sample(PARAMETERS, chance.choice((0, 0, 1, 2)))]
        query = "&".join(quote(name) + ("" if not value and chance.random() < 0.5 else f"={quote(value, safe='')}")
                         for name, value in pairs)  # fmt: skip
        headers = {name: self.value(name) for name in chance.sample(HEADERS, chance.choice((0, 1, 1, 2, 3)))}
        if row.header is not None:
            headers[row.header] = self.value(row.header)
        body = b""
        if row.body is BodyKind.XML:
            body = self.document()
        elif row.body is BodyKind.STREAM or chance.random() < 0.05:
            body = self.body()
        if body and chance.random() < 0.5:
            headers |= _md5(body)
        whole = path(bucket, key, query) if row.target is not Target.SERVICE else f"/?{query}" if query else "/"
        self.sender.ask(row.method, whole, headers, body)

    def presigned(self) -> None:
        """By query, with one parameter that is not as it was signed."""
        chance = self.random
        names = ["X-Amz-Algorithm=AWS4-HMAC-SHA256", "X-Amz-Credential=a%2F20260101%2Fus-east-1%2Fs3%2Faws4_request",
                 "X-Amz-Date=20260101T000000Z", "X-Amz-Expires=60", "X-Amz-SignedHeaders=host",
                 f"X-Amz-Signature={'0' * 64}"]  # fmt: skip
        at = chance.randrange(len(names))
        changed = [
            names[at].partition("=")[0] + "=" + quote(chance.choice(NASTY), safe=""),
            names[at] + "&" + names[at],
            "",
        ]
        names[at] = chance.choice(changed)
        target = path(self.junk, self.key(), "&".join(name for name in names if name))
        head = f"GET {target} HTTP/1.1\r\nHost: a\r\n\r\n".encode()
        assert self.sender.raw("GET", head).status in (400, 403)

    def chunked(self) -> None:
        """aws-chunked as it should be, or with something changed in its framing."""
        chance = self.random
        pieces = [chance.randbytes(chance.choice((1, 100, 8192, 70_000))) for _ in range(chance.randrange(4))]
        trailer = ("x-amz-checksum-crc32", chance.choice(("AAAAAA==", "bad", ""))) if chance.random() < 0.5 else None
        whole = self.sender.signer.chunked(
            "PUT", path(self.junk, self.key()), pieces, sign=chance.random() < 0.5, trailer=trailer
        )
        if chance.random() < 0.3:
            assert self.sender.raw("PUT", whole).status in (200, 400)
            return
        at = whole.index(b"\r\n\r\n") + 4
        changed = bytearray(whole)
        for _ in range(chance.randrange(1, 4)):
            where = at + min(chance.randrange(len(whole) - at), chance.choice((2, 90, 10**9)))
            changed[where] = chance.choice(b"0123456789abcdef;=\r\n\0\xff")
        assert self.sender.alone("PUT", bytes(changed)) in (200, 400, 403)

    def mutated(self) -> None:
        """A good request with bytes changed, left out or put in anywhere in its head or chunks."""
        chance = self.random
        headers = {"Transfer-Encoding": "chunked"} if chance.random() < 0.5 else {}
        body = b"5\r\nhello\r\n0\r\n\r\n" if headers else b"hello"
        data = bytearray(self.sender.signed("PUT", path(self.junk, self.key()), headers, b"" if headers else body))
        if headers:
            data += body
        for _ in range(chance.randrange(1, 5)):
            at = chance.randrange(len(data))
            how = chance.randrange(3)
            if how == 0:
                data[at] = chance.randrange(256)
            elif how == 1:
                del data[at : at + chance.choice((1, 2, 50))]
            else:
                data[at:at] = chance.choice(
                    (b"\r\n", b"\n", b"\0", b" ", b"\t", b":", b"\r\n ", b"\xff" * 3, b"0" * 300)
                )
        self.sender.alone("PUT", bytes(data))

    def left(self) -> None:
        """A client that goes in the middle: of its head, of its body, of the answer."""
        chance = self.random
        data = chance.choice((
            self.sender.signed("GET", path(self.bucket, self.key())),
            self.sender.signed("PUT", path(self.junk, self.key()), body=chance.randbytes(100_000)),
            self.sender.signed("GET", path(self.bucket, None, "versions")),
        ))  # fmt: skip
        if chance.random() < 0.5:
            self.sender.leave(data, chance.choice((1, 20)))
        else:
            self.sender.leave(data[: chance.randrange(1, len(data))], 0)

    def deeds(self) -> dict[Callable[[], None], int]:
        return {
            self.put: 12, self.get: 10, self.get_range: 4, self.get_version: 4, self.delete: 6, self.delete_version: 6,
            self.delete_many: 2, self.copy: 6, self.versioning: 1, self.open_upload: 3, self.put_part: 6,
            self.end_upload: 3, self.listing: 1, self.version_listing: 1, self.nonsense: 10, self.tampered: 3,
            self.operation: 60, self.presigned: 5, self.chunked: 8, self.mutated: 8, self.left: 6,
        }  # fmt: skip

    def run_requests(self, count: int) -> None:
        """Until so many requests have been answered. What fails is noted with its deed and its request."""
        deeds = self.deeds()
        end = self.sender.count + count
        while self.sender.count < end:
            deed = self.random.choices(list(deeds), list(deeds.values()))[0]
            try:
                deed()
            except Exception as error:
                error.add_note(f"request {self.sender.count}, {deed.__name__}: {self.sender.last[:3000]!r}")
                raise
        self.listing()
        self.version_listing()
