"""Request headers and query parameters as they came over the wire: multi-maps that lose nothing.

Header bytes become ``str`` as UTF-8 with surrogateescape, so that encoding them the same way gives the bytes back:
signatures are computed over bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Concatenate, ParamSpec, TypeVar, cast
from urllib.parse import unquote_to_bytes

from gateway.domain.checksums import BY_HEADER, encode
from gateway.s3.errors import S3Error

_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_BLANKS = " \t"
SHORT = 256  # characters
P = ParamSpec("P")
T = TypeVar("T")

# The parameters that make a presigned URL; none of them stands for a header.
PRESIGNED = frozenset(
    {
        "X-Amz-Algorithm",
        "X-Amz-Credential",
        "X-Amz-Date",
        "X-Amz-Expires",
        "X-Amz-SignedHeaders",
        "X-Amz-Signature",
        "X-Amz-Security-Token",
    }
)
PRESIGN = frozenset(name.lower() for name in PRESIGNED)
NO_BODY = frozenset((name, encode(algorithm.start().digest())) for name, algorithm in BY_HEADER.items())


class Headers(dict[str, str]):
    """Values by lower-case name, over raw header pairs in the order they came; without surrounding blanks.

    Repeated lines are one list joined by commas (RFC 9110, 5.3); lines has each (lower-case name, value) by itself.
    """

    __slots__ = ("hoisted", "lines")

    def __init__(self, pairs: Iterable[tuple[bytes | str, bytes | str]] = ()) -> None:
        self.hoisted: frozenset[str] = frozenset()
        self.lines: list[tuple[str, str]] = [
            (
                _name(name),
                (value if isinstance(value, str) else value.decode("utf-8", "surrogateescape")).strip(_BLANKS),
            )
            for name, value in pairs
        ]
        self.update(self.lines)
        if len(self) < len(self.lines):
            self.update({name: ",".join(self.all(name)) for name in self})

    def all(self, name: str) -> Sequence[str]:
        """Each line's value, in order."""
        return [value for other, value in self.lines if other == name]

    def hoist(self, query: Query) -> None:
        """Take over what a presigned URL carries in its query instead of in headers.

        Signers move x-amz-* headers there (JavaScript's, for one, moves all), and S3 reads them as the headers they
        stand for. They are signed with the query; a header of the same name wins. The checksum of nothing, though, is
        that of a signer who had no body yet (JavaScript's, unless told otherwise): it says nothing about the one sent.
        """
        if "X-Amz-Signature" not in query or query.keys() <= PRESIGNED:
            return
        moved = []
        for name, value in query.pairs:
            lower = name.lower()
            if lower.startswith("x-amz-") and lower not in PRESIGN and lower not in self:
                moved.append((lower, value))
        if any(pair in NO_BODY for pair in moved):
            moved = [pair for pair in moved if pair not in NO_BODY and pair[0] != "x-amz-sdk-checksum-algorithm"]
        self.lines += moved
        self.hoisted = frozenset(lower for lower, _ in moved)
        self.update({name: ",".join(self.all(name)) for name in self.hoisted})


@lru_cache(maxsize=1024)  # there are not many names
def _name(raw: bytes | str) -> str:
    return (raw if isinstance(raw, str) else raw.decode("utf-8", "surrogateescape")).lower()


class Query(dict[str, str]):
    """First values by name, decoded, over a raw query string; a parameter without "=" has the value "".

    pairs has every (name, value) in order. Raises InvalidURI for a broken escape or UTF-8.
    """

    __slots__ = ("pairs",)

    def __init__(self, raw: str = "") -> None:
        self.pairs: list[tuple[str, str]] = [_parameter(piece) for piece in raw.split("&") if piece] if raw else []
        self.update(self.pairs)
        if len(self) < len(self.pairs):
            self.update(reversed(self.pairs))

    def all(self, name: str) -> Sequence[str]:
        """Each value of a name, in order."""
        return [value for other, value in self.pairs if other == name]


def remembered(make: Callable[Concatenate[str, P], T]) -> Callable[Concatenate[str, P], T]:
    """make, whose results for short texts are kept: clients repeat themselves, and long texts would fill the memory."""
    known = cast(Callable[Concatenate[str, P], T], lru_cache(maxsize=1024)(make))

    def recall(text: str, /, *more: P.args, **named: P.kwargs) -> T:
        return known(text, *more, **named) if len(text) <= SHORT else make(text, *more, **named)

    return recall


@remembered
def _parameter(piece: str) -> tuple[str, str]:
    """One name and value of a query, decoded. Its "+" is a blank (HTML forms, and S3), a path's is a plus sign."""
    name, _, value = piece.partition("=")
    if "%" not in piece and "+" not in piece and piece.isascii():
        return name, value
    if _BAD_ESCAPE.search(piece):
        raise S3Error("InvalidURI")
    return _decoded(name), _decoded(value)


def _decoded(text: str) -> str:
    try:
        return unquote_to_bytes(text.replace("+", " ").encode("utf-8", "surrogateescape")).decode("utf-8")
    except UnicodeDecodeError:
        raise S3Error("InvalidURI") from None


def decode_path(raw: str) -> bytes:
    """A raw path (or a part of one) decoded once. Raises InvalidURI for a broken escape or bytes that are no UTF-8."""
    if "%" not in raw and raw.isascii():
        return raw.encode()
    if _BAD_ESCAPE.search(raw):
        raise S3Error("InvalidURI")
    decoded = unquote_to_bytes(raw.encode("utf-8", "surrogateescape"))
    try:
        decoded.decode("utf-8")
    except UnicodeDecodeError:
        raise S3Error("InvalidURI") from None
    return decoded


def split_host(host: str) -> tuple[str, str]:
    """(name, port) of a Host value; port is "" when there is none. ``[::1]:9000`` keeps its brackets."""
    name, colon, port = host.rpartition(":")
    if colon and port.isdigit() and (not name.count(":") or name.endswith("]")):
        return name, port
    return host, ""


def trusted_peer(peer: str | None, networks: Sequence[str]) -> bool:
    """Whether a peer's address lies in one of the networks (CIDR or single addresses) of trusted proxies."""
    if not peer or not networks:
        return False
    try:
        address = ip_address(peer.partition("%")[0])
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return any(address in ip_network(network, strict=False) for network in networks)


def signed_hosts(headers: Headers, *, trusted: bool, secure: bool) -> tuple[str, ...]:
    """The host values a client may have signed, the likeliest first.

    Only Host for an untrusted peer. A trusted proxy may have rewritten Host: then what it says of the original
    counts too, with and without the port, since proxies disagree on where the port belongs and clients leave the
    scheme's default port out.
    """
    own = headers.get("host", "") or ""
    if not trusted:
        return (own,)
    proto = (headers.get("x-forwarded-proto") or ("https" if secure else "http")).partition(",")[0].strip().lower()
    default = "443" if proto == "https" else "80"
    ports = [port.strip() for port in (headers.get("x-forwarded-port") or "").split(",") if port.strip().isdigit()]
    seen = [own]
    forwarded = (headers.get("x-forwarded-host") or "").partition(",")[0].strip()
    for host in (forwarded, own):
        if not host:
            continue
        name, port = split_host(host)
        seen += [host, name, f"{name}:{port or default}", f"{name}:{default}"]
        seen += [f"{name}:{other}" for other in ports[:2]]
    return tuple(dict.fromkeys(seen))
