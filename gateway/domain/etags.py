"""Entity tags: how S3 makes them, quotes them, and how clients list them (RFC 9110, 8.8.3)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import md5

ANY = "*"

# An element of a list: weak or strong, quoted; or bare, which S3 takes too (many clients strip the quotes).
_TAG = re.compile(r'\s*(W/)?(?:"([^"]*)"|([^",\s][^",]*))\s*(?:,|$)')


def quote(etag: str) -> str:
    """An etag as headers and documents show it."""
    return f'"{etag}"'


def unquote(text: str) -> str:
    """An etag as a client wrote it, without blanks and quotes (also when only one of them is there)."""
    return text.strip().strip('"')


def parse_list(value: str, *, weak: bool) -> tuple[str, ...]:
    """The etags of an If-Match or If-None-Match header, without quotes; ("*",) for any.

    weak: whether weak tags count. If-None-Match compares weakly; If-Match strongly, so that a weak tag can never
    match there and is left out. An empty tuple matches nothing.
    """
    if value.strip() == ANY:
        return (ANY,)
    tags: list[str] = []
    position = 0
    while position < len(value):
        found = _TAG.match(value, position)
        if found is None:  # an empty list element, or a stray quote: skip to the next comma
            comma = value.find(",", position)
            if comma < 0:
                break
            position = comma + 1
            continue
        position = found.end()
        if found[1] is None or weak:
            tags.append(found[2] if found[2] is not None else found[3].rstrip())
    return tuple(tags)


def matches(tags: tuple[str, ...], etag: str | None) -> bool:
    """Whether an existing object's etag (None: there is no object) is among tags."""
    return etag is not None and (ANY in tags or etag in tags)


def multipart(parts: Iterable[bytes]) -> str:
    """The etag of a multipart object: MD5 of its parts' MD5 digests (16 bytes each), a dash, their number."""
    digest = md5(usedforsecurity=False)
    count = 0
    for part in parts:
        digest.update(part)
        count += 1
    return f"{digest.hexdigest()}-{count}"
