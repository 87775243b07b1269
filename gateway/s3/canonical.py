"""Canonical requests of Signature Version 4, from the raw request (S3 API reference, "Create a canonical request")."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import product
from urllib.parse import quote_from_bytes, unquote_to_bytes

from gateway.s3.headers import Headers, remembered

_UNRESERVED = re.compile(r"[A-Za-z0-9._~-]*")
_PLAIN_PATH = re.compile(r"[A-Za-z0-9._~/-]*")
_BLANKS = re.compile(r"[ \t]+")


def canonical_paths(raw: str) -> tuple[str, ...]:
    """The canonical URIs that are accepted for a raw path, the path as sent first.

    S3 neither normalizes a path nor encodes it twice, so a client that sends what it signed signs the raw path. S3
    itself (and most servers) decodes once and encodes anew: upper-case escapes, none for unreserved characters, a
    plain "/" for %2F. Clients that send one spelling and sign the other are right by that rule. Both decode to the
    same key, so that accepting either binds the signature to the same object.
    """
    if _PLAIN_PATH.fullmatch(raw):
        return (raw,)
    decoded = unquote_to_bytes(raw.encode("utf-8", "surrogateescape"))
    encoded = quote_from_bytes(decoded, safe="/")
    return (raw,) if encoded == raw else (raw, encoded)


def canonical_query(raw: str) -> str:
    """Each name and value decoded once and encoded by S3's rules, then sorted by the encoded bytes.

    X-Amz-Signature is left out. Sorting has to come after the encoding: "[" is after "B", "%5B" before it.
    """
    if not raw:
        return ""
    pairs = [_pair(piece) for piece in raw.split("&") if piece and not piece.startswith("X-Amz-Signature=")]
    return "&".join([f"{name}={value}" for name, value in sorted(pairs) if name != "X-Amz-Signature"])


def canonical_requests(
    method: str,
    paths: Sequence[str],
    query: str,
    headers: Headers,
    signed_headers: Sequence[str],
    hosts: Sequence[str],
    content_sha256: str,
) -> Iterator[str]:
    """Canonical requests a client may have signed, the likeliest first; nearly always there is one.

    To be encoded as UTF-8 with surrogateescape, like the headers themselves.
    """
    names = ";".join(signed_headers)
    for latin in (False, True):
        lines = _header_lines(headers, signed_headers, latin)
        if lines is None:
            return
        for path, host in product(paths, hosts):
            block = "".join([f"{name}:{host if name == 'host' else value}\n" for name, value in lines])
            yield f"{method}\n{path}\n{query}\n{block}\n{names}\n{content_sha256}"


def _header_lines(headers: Headers, signed_headers: Sequence[str], latin: bool) -> list[tuple[str, str]] | None:
    """Signed headers with their folded values: several lines joined, runs of blanks made one.

    latin: for clients that send a non-ASCII value as ISO 8859-1 (RFC 9112's past) but sign its UTF-8 form; None when
    there is no such value.
    """
    lines, found = [], False
    for name in signed_headers:
        value = headers.get(name, "") if name not in headers.hoisted else ""
        if "  " in value or "\t" in value:
            value = _BLANKS.sub(" ", value)
        if latin and not value.isascii():
            recoded = value.encode("utf-8", "surrogateescape").decode("latin-1")
            found = found or any("\udc80" <= character <= "\udcff" for character in value)
            value = recoded
        lines.append((name, value))
    return lines if found or not latin else None


@remembered
def _pair(piece: str) -> tuple[str, str]:
    """One name and value of a query in S3's encoding."""
    name, _, value = piece.partition("=")
    return _recoded(name), _recoded(value)


def _recoded(text: str) -> str:
    """A query name or value in S3's encoding; "+" stands for a blank."""
    if _UNRESERVED.fullmatch(text):
        return text
    raw = text.replace("+", " ").encode("utf-8", "surrogateescape")
    return quote_from_bytes(unquote_to_bytes(raw), safe="")
