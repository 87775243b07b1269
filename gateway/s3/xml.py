"""XML as S3 writes and reads it: a small writer, and a reader that refuses what no request ever needs.

Pure: bytes in, values out. The writer builds strings, since a listing of 1,000 keys is one of the hottest
documents. The reader is expat behind ElementTree's C builder (three times as fast as Python handlers for
10,000 parts); it is given text known to be UTF-8 and free of a document type declaration, so that no entity can
be declared, expanded or fetched.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TypeAlias
from urllib.parse import quote_from_bytes
from xml.etree.ElementTree import Element, ParseError, XMLParser

from gateway.s3.errors import S3Error

PROLOG = '<?xml version="1.0" encoding="UTF-8"?>\n'
NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
MAX_BODY = 1 << 20
MAX_DEPTH = 16

# What stands in an element: text, a number, a time, children in order, or nothing (None: no element at all).
Scalar: TypeAlias = str | bytes | bool | int | datetime
Tree: TypeAlias = "Iterable[tuple[str, Scalar | Tree | None]]"


# --- writing -------------------------------------------------------------------------------------------------

# XML 1.0 can hold no control character but TAB, LF and CR, and a parser turns a literal CR into LF. S3 writes a
# reference for each of them: strict parsers refuse all but &#13;, which is why clients ask for encoding-type=url.
_ESCAPES = {code: f"&#x{code:x};" for code in (*range(0x20), 0xFFFE, 0xFFFF) if code not in (0x09, 0x0A)}
_ESCAPES |= {ord("\r"): "&#13;", ord("&"): "&amp;", ord("<"): "&lt;", ord(">"): "&gt;", ord('"'): "&quot;"}
_SPECIAL = re.compile("[" + re.escape("".join(map(chr, _ESCAPES))) + "]")
_UNSAFE = re.compile(rb"[^A-Za-z0-9_.~/-]")  # what key_url has to encode


def escape(text: str) -> str:
    """text as character data: markup, quotes and control characters become references."""
    return text.translate(_ESCAPES) if _SPECIAL.search(text) else text


def key_text(key: bytes) -> str:
    """A key (UTF-8 bytes) as character data, byte for byte what the client stored."""
    return escape(key.decode("utf-8", "replace"))


def key_url(key: bytes) -> str:
    """A key as ``encoding-type=url`` shows it: percent-encoded UTF-8, slashes kept.

    A blank becomes %20: decoders of forms and of plain URLs agree on it, as they do not on "+".
    """
    return quote_from_bytes(key, safe="/")


def plain_text(keys: Sequence[bytes]) -> list[str] | None:
    """Keys as key_text writes them when none needs an escape, else None."""
    texts = [key.decode("utf-8", "replace") for key in keys]
    return None if _SPECIAL.search("".join(texts)) else texts


def plain_url(keys: Sequence[bytes]) -> list[str] | None:
    """Keys as key_url writes them when none needs an escape, else None."""
    return None if _UNSAFE.search(b"".join(keys)) else [key.decode("ascii") for key in keys]


def timestamp(moment: datetime) -> str:
    """An aware time as S3's XML shows it: UTC, whole seconds (as in Last-Modified), zero milliseconds."""
    utc = moment if moment.tzinfo is UTC else moment.astimezone(UTC)
    return f"{utc.isoformat()[:19]}.000Z"  # strftime takes several times as long


def content(value: Scalar | Tree) -> str:
    """What stands between an element's tags. bytes are a key."""
    if isinstance(value, str):
        return escape(value)
    if isinstance(value, bytes):
        return key_text(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, datetime):
        return timestamp(value)
    return elements(value)


def elements(tree: Tree) -> str:
    """Elements in order; those whose value is None are left out."""
    return "".join([f"<{name}>{content(value)}</{name}>" for name, value in tree if value is not None])


def document(root: str, tree: Tree, *, namespace: str | None = NAMESPACE, raw: str = "") -> bytes:
    """A whole document: prolog, root, the tree's elements, then raw (already escaped) ones.

    Errors have no namespace; everything else has S3's.
    """
    xmlns = f' xmlns="{namespace}"' if namespace else ""
    return f"{PROLOG}<{root}{xmlns}>{elements(tree)}{raw}</{root}>".encode()


# --- reading -------------------------------------------------------------------------------------------------


def malformed() -> S3Error:
    """The one answer to a body that is not the XML an operation takes."""
    return S3Error("MalformedXML")


def read(body: bytes, root: str, limit: int = MAX_BODY, *, depth: int | None = MAX_DEPTH) -> Element:
    """The root element of a request body (any namespace); names of all elements still carry theirs.

    body: the whole body, UTF-8 with or without a byte order mark. limit in bytes; depth in levels below the root,
    None where the caller looks at every element anyway. Raises MalformedXML when it is too long, not well-formed,
    has a document type declaration, is nested deeper, or has another root.
    """
    if len(body) > limit:
        raise malformed()
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise malformed() from None
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise malformed()
    parser = XMLParser()  # noqa: S314 - nothing can be declared: see above
    try:
        parser.feed(text)
        element: Element = parser.close()
    except (ParseError, ValueError):
        raise malformed() from None
    if local(element) != root:
        raise malformed()
    if depth is not None and _deeper_than(element, depth):
        raise malformed()
    return element


def _deeper_than(element: Element, depth: int) -> bool:
    level: list[Element] = [element]
    for _ in range(depth + 1):
        level = [child for parent in level for child in parent]
        if not level:
            return False
    return True


def local(element: Element) -> str:
    """An element's name without its namespace."""
    tag: str = element.tag
    return tag.rpartition("}")[2]


def children(
    parent: Element, once: frozenset[str], many: frozenset[str] = frozenset()
) -> Iterator[tuple[str, Element]]:
    """(name, child) of each child element. Raises MalformedXML for a name in neither set, a second one of a name
    in once, and for text between the elements."""
    if not _blank(parent.text):
        raise malformed()
    seen: set[str] = set()
    for child in parent:
        name = local(child)
        if name in seen or (name not in once and name not in many) or not _blank(child.tail):
            raise malformed()
        if name in once:
            seen.add(name)
        yield name, child


def leaf(element: Element) -> str:
    """The text of an element without children, exactly as written: blanks and CR (from &#13;) included.

    Raises MalformedXML when it has children.
    """
    if len(element):
        raise malformed()
    return element.text or ""


def whole_number(element: Element) -> int:
    """The text of an element as an integer. Raises MalformedXML."""
    return to_int(leaf(element))


def to_int(text: str) -> int:
    """xs:int, which allows a sign and blanks around. Raises MalformedXML."""
    if not (text.isdecimal() and text.isascii() and len(text) < 20) and not _INTEGER.fullmatch(text):
        raise malformed()
    return int(text)


def truth(element: Element) -> bool:
    """The text of an element as xs:boolean. Raises MalformedXML."""
    try:
        return _TRUTH[leaf(element).strip()]
    except KeyError:
        raise malformed() from None


_INTEGER = re.compile(r"\s*[+-]?[0-9]{1,19}\s*")
_TRUTH = {"true": True, "1": True, "false": False, "0": False, "True": True, "False": False}


def _blank(text: str | None) -> bool:
    return not text or text.isspace()
