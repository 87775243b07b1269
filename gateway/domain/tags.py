"""Object tags as the x-amz-tagging header gives them (S3 reference, "Object tagging")."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import unquote_to_bytes

from gateway.s3.errors import S3Error

MAX_TAGS = 10
MAX_KEY = 128  # characters
MAX_VALUE = 256

_SYNTAX = (
    "The header 'x-amz-tagging' shall be encoded as UTF-8 then URLEncoded URL query parameters without tag name "
    "duplicates."
)


def parse_header(header: str | None) -> dict[str, str]:
    """The tags of an x-amz-tagging header (URL query form); none without one, or when it is empty.

    Raises InvalidArgument for its syntax (an empty or repeated key too), and as check() does.
    """
    if not header:
        return {}
    tags: dict[str, str] = {}
    for pair in header.split("&"):
        name, _, value = pair.partition("=")
        key, text = _decoded(name, header), _decoded(value, header)
        if not key or key in tags:
            raise _syntax(header)
        tags[key] = text
    check(tags.items())
    return tags


def check(tags: Iterable[tuple[str, str]]) -> None:
    """S3's limits. Raises BadRequest for more than ten, InvalidTag for a key or value that is too long."""
    count = 0
    for key, value in tags:
        count += 1
        if not 0 < _length(key) <= MAX_KEY or key.lower().startswith("aws:"):
            raise S3Error("InvalidTag", "The TagKey you have provided is invalid", TagKey=key)
        if _length(value) > MAX_VALUE:
            raise S3Error("InvalidTag", "The TagValue you have provided is invalid", TagKey=key, TagValue=value)
    if count > MAX_TAGS:
        raise S3Error("BadRequest", f"Object tags cannot be greater than {MAX_TAGS}")


def _decoded(text: str, header: str) -> str:
    try:
        decoded = unquote_to_bytes(text.replace("+", " ")).decode()
    except UnicodeError:
        raise _syntax(header) from None
    if "\0" in decoded:  # Postgres keeps no U+0000 in text
        raise _syntax(header)
    return decoded


def _syntax(header: str) -> S3Error:
    return S3Error("InvalidArgument", _SYNTAX, ArgumentName="x-amz-tagging", ArgumentValue=header)


def _length(text: str) -> int:
    """In UTF-16 units, as S3 counts."""
    return len(text.encode("utf-16-le")) // 2
