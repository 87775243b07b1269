"""Checksums of S3 objects: the algorithms, what a request asks for, and what parts add up to.

S3 reference, "Checking object integrity". Values are base64 of the big-endian digest. An object has one checksum:
the one the client chose, or CRC64NVME when it chose none. A multipart object's is either FULL_OBJECT (that of all
its bytes; CRCs of parts are combined, nothing is read again) or COMPOSITE (that of the parts' digests, a dash and
the number of parts); part_checksums.py has the rules for that.
"""

from __future__ import annotations

import binascii
import hashlib
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, cast

import xxhash
from awscrt import checksums as crt

from gateway.domain.fields import Fields
from gateway.s3.errors import S3Error

FULL_OBJECT = "FULL_OBJECT"
COMPOSITE = "COMPOSITE"


class Hasher(Protocol):
    """A digest under way."""

    def update(self, data: bytes | memoryview, /) -> None: ...

    def digest(self) -> bytes: ...


class Crc:
    """A running CRC. step takes data and the CRC so far; size is the digest's, in bytes."""

    __slots__ = ("_size", "_step", "_value")

    def __init__(self, step: Callable[[bytes | memoryview, int], int], size: int) -> None:
        self._step, self._size, self._value = step, size, 0

    def update(self, data: bytes | memoryview, /) -> None:
        self._value = self._step(data, self._value)

    def digest(self) -> bytes:
        return self._value.to_bytes(self._size, "big")


@dataclass(frozen=True, slots=True)
class Algorithm:
    """A row of the table. types: those a multipart upload may ask for, its default first."""

    name: str  # lower case: the end of header names and the key of stored checksums
    size: int  # of a digest, in bytes
    start: Callable[[], Hasher]
    types: tuple[str, ...]
    combine: Callable[[int, int, int], int] | None = None  # (CRC of A, CRC of B, length of B) -> CRC of A + B

    @property
    def code(self) -> str:
        """As x-amz-checksum-algorithm and listings name it."""
        return self.name.upper()

    @property
    def header(self) -> str:
        return f"x-amz-checksum-{self.name}"

    @property
    def element(self) -> str:
        return f"Checksum{self.code}"


def _crc(name: str, size: int, types: tuple[str, ...]) -> Algorithm:
    step, combine = getattr(crt, name), getattr(crt, f"combine_{name}")
    return Algorithm(name, size, lambda: Crc(step, size), types, combine)


def _hash(name: str, size: int, start: Callable[..., object], **options: bool) -> Algorithm:
    # A digest of the whole cannot be had from digests of parts, so multipart knows only the composite.
    return Algorithm(name, size, lambda: cast(Hasher, start(**options)), (COMPOSITE,))


ALGORITHMS: tuple[Algorithm, ...] = (
    _crc("crc32", 4, (COMPOSITE, FULL_OBJECT)),
    _crc("crc32c", 4, (COMPOSITE, FULL_OBJECT)),
    _crc("crc64nvme", 8, (FULL_OBJECT,)),
    _hash("sha1", 20, hashlib.sha1, usedforsecurity=False),
    _hash("sha256", 32, hashlib.sha256),
    _hash("sha512", 64, hashlib.sha512),
    _hash("md5", 16, hashlib.md5, usedforsecurity=False),
    _hash("xxhash64", 8, xxhash.xxh64),
    _hash("xxhash3", 8, xxhash.xxh3_64),
    _hash("xxhash128", 16, xxhash.xxh3_128),
)
BY_NAME: Mapping[str, Algorithm] = {algorithm.name: algorithm for algorithm in ALGORITHMS}
BY_HEADER: Mapping[str, Algorithm] = {algorithm.header: algorithm for algorithm in ALGORITHMS}
DEFAULT = BY_NAME["crc64nvme"]

_PREFIX = "x-amz-checksum-"
_NO_VALUE = frozenset({"x-amz-checksum-algorithm", "x-amz-checksum-type", "x-amz-checksum-mode"})


def encode(digest: bytes) -> str:
    """A digest as headers and documents show it."""
    return b64encode(digest).decode()


def decode(algorithm: Algorithm, value: str) -> bytes:
    """The digest in a value. Raises ValueError when it is not base64 or not of the algorithm's size."""
    try:
        digest = binascii.a2b_base64(value, strict_mode=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise ValueError(str(error)) from None
    if len(digest) != algorithm.size:
        raise ValueError(f"{len(digest)} bytes where {algorithm.name} has {algorithm.size}")
    return digest


# --- what a request asks for -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to compute over a body, and what the client says it must be.

    value: the expected checksum when it came in a header. trailer: it comes after the body. declared: the client
    chose the algorithm (False: the default). md5: Content-MD5's digest.
    """

    algorithm: Algorithm = DEFAULT
    value: str | None = None
    trailer: bool = False
    declared: bool = False
    md5: bytes | None = None

    def check(self, digest: bytes, md5: bytes | None = None, trailers: Mapping[str, str] | None = None) -> str:
        """The checksum (base64) of a body whose digests are given, once it agrees with all that was expected.

        trailers: by lower-case name. Raises BadDigest, InvalidRequest (a malformed trailer value),
        MalformedTrailerError (an announced trailer did not come).
        """
        if self.md5 is not None and self.md5 != md5:
            raise S3Error(
                "BadDigest",
                "The Content-MD5 you specified did not match what we received.",
                ExpectedDigest=self.md5.hex(),  # S3 shows the one in hexadecimal, the other in base64
                CalculatedDigest=encode(md5 or b""),
            )
        expected = self.value
        if self.trailer:
            expected = (trailers or {}).get(self.algorithm.header)
            if expected is None:
                raise S3Error("MalformedTrailerError")
            try:
                decode(self.algorithm, expected)
            except ValueError:  # in a trailer S3 makes no difference between what is no base64 and what is too short
                raise S3Error("InvalidRequest", invalid_value(f"{self.algorithm.header} trailing")) from None
        actual = encode(digest)
        if expected is not None and expected != actual:
            raise mismatch(self.algorithm, expected, actual)
        return actual


def requested(headers: Fields, *, sdk_algorithm: bool = True) -> Wanted:
    """What PutObject, UploadPart or an XML body asks for. sdk_algorithm: whether that header counts (it does not
    for CompleteMultipartUpload).

    Raises InvalidDigest (Content-MD5), BadDigest and InvalidRequest (see the messages).
    """
    md5 = content_md5(headers)
    algorithm, value = value_header(headers)
    trailer = _trailer(headers)
    if algorithm is not None and trailer is not None:
        raise S3Error("InvalidRequest", _SEVERAL)
    chosen = algorithm or trailer
    if sdk_algorithm and (sdk := headers.get("x-amz-sdk-checksum-algorithm")) is not None:
        if chosen is None:
            if sdk.lower() in BY_NAME:
                raise S3Error("InvalidRequest", _SDK_ALONE)
            raise S3Error("InvalidRequest", invalid_value("x-amz-sdk-checksum-algorithm"))
        if sdk.lower() != chosen.name:
            raise S3Error("InvalidRequest", invalid_value("x-amz-sdk-checksum-algorithm"))
    if chosen is None:
        return Wanted(md5=md5)
    if value is not None:
        validate(chosen, value, chosen.header)
    return Wanted(chosen, value, trailer is not None, True, md5)


def content_md5(headers: Fields) -> bytes | None:
    """The digest in Content-MD5, or None without one. Raises InvalidDigest for anything but base64 of 16 bytes."""
    value = headers.get("content-md5")
    if value is None:
        return None
    try:
        return decode(BY_NAME["md5"], value)
    except ValueError:
        error = S3Error("InvalidDigest")
        error.elements["Content-MD5"] = value  # no keyword can be written so
        raise error from None


def validate(algorithm: Algorithm, value: str, header: str) -> None:
    """Raises InvalidRequest for a value of the wrong length, BadDigest for one that is not base64 at all.

    The second follows s3-tests: no content can have such a checksum, so it is told as a mismatch.
    """
    try:
        binascii.a2b_base64(value, strict_mode=True)
    except (binascii.Error, ValueError):
        raise mismatch(algorithm, value, None) from None
    try:
        decode(algorithm, value)
    except ValueError:
        raise S3Error("InvalidRequest", invalid_value(header)) from None


def mismatch(algorithm: Algorithm, expected: str, actual: str | None) -> S3Error:
    """BadDigest with both digests; actual is None when the value could not be any digest."""
    return S3Error(
        "BadDigest",
        f"The {algorithm.code} you specified did not match the calculated checksum.",
        ExpectedDigest=expected,
        CalculatedDigest=actual or "",
    )


def value_header(headers: Fields) -> tuple[Algorithm | None, str | None]:
    """The algorithm and value of the one x-amz-checksum-… header there may be. Raises InvalidRequest."""
    found: tuple[Algorithm, str] | None = None
    unknown = False
    for name, value in headers.lines:
        if not name.startswith(_PREFIX) or name in _NO_VALUE:
            continue
        algorithm = BY_HEADER.get(name)
        if algorithm is None:
            unknown = True
        elif found is not None:
            raise S3Error("InvalidRequest", _SEVERAL)
        else:
            found = (algorithm, value.strip())
    if found is not None:
        return found
    if unknown:
        raise S3Error("InvalidRequest", "The algorithm type you specified in x-amz-checksum- header is invalid.")
    return None, None


def _trailer(headers: Fields) -> Algorithm | None:
    named = headers.get("x-amz-trailer")
    if named is None:
        return None
    names = [name for part in named.split(",") if (name := part.strip().lower())]
    if not names:
        return None
    if len(names) > 1:
        raise S3Error("InvalidRequest", _SEVERAL)
    algorithm = BY_HEADER.get(names[0])
    if algorithm is None:
        raise S3Error("InvalidRequest", "The value specified in the x-amz-trailer header is not supported")
    return algorithm


def invalid_value(header: str) -> str:
    """S3's sentence for a value that cannot be."""
    return f"Value for {header} header is invalid."


_SEVERAL = "Expecting a single x-amz-checksum- header. Multiple checksum Types are not allowed."
_SDK_ALONE = (
    "x-amz-sdk-checksum-algorithm specified, but no corresponding x-amz-checksum-* or x-amz-trailer headers were found."
)


def chosen_algorithm(headers: Fields) -> Algorithm | None:
    """x-amz-checksum-algorithm of CreateMultipartUpload or CopyObject. Raises InvalidRequest when it is unknown."""
    name = headers.get("x-amz-checksum-algorithm")
    if name is None:
        return None
    algorithm = BY_NAME.get(name.strip().lower())
    if algorithm is None:
        valid = ", ".join(algorithm.code for algorithm in ALGORITHMS)
        raise S3Error(
            "InvalidRequest",
            f"Checksum algorithm provided is unsupported. Please try again with any of the valid types: [{valid}]",
        )
    return algorithm


# --- answers -------------------------------------------------------------------------------------------------


def shown(headers: Fields) -> bool:
    """Whether a read asks for checksums. Raises InvalidArgument for a mode other than ENABLED."""
    mode = headers.get("x-amz-checksum-mode")
    if mode is None:
        return False
    if mode.upper() == "ENABLED":
        return True
    raise S3Error("InvalidArgument", ArgumentName="x-amz-checksum-mode", ArgumentValue=mode)


def response_headers(checksums: Mapping[str, str], kind: str | None) -> dict[str, str]:
    """Headers for stored checksums (by algorithm name) and their type."""
    headers = {f"{_PREFIX}{name}": value for name, value in checksums.items()}
    if headers and kind is not None:
        headers["x-amz-checksum-type"] = kind
    return headers


def elements(checksums: Mapping[str, str]) -> list[tuple[str, str]]:
    """(element name, value) of stored checksums, for documents."""
    return [(BY_NAME[name].element, value) for name, value in checksums.items()]


def bare(value: str) -> str:
    """A checksum without the number of parts, as GetObjectAttributes shows a composite."""
    return value.partition("-")[0]
