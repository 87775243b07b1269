"""Which contents have text to extract, and by which extractor. Pure; a format more is a row more.

The sniffed type decides. Within plain text, where libmagic sees only characters (it recognizes JSON and CSV only when
it sees all of it), the extension and then the declared type say what the characters are.
"""

from __future__ import annotations

from processing.content_types import agree, bare, expected, extension, families

# sniffed type → kind (a key of processing.parsers.text_model.EXTRACTORS)
SNIFFED: dict[str, str] = {
    "text/html": "html",
    "application/xhtml+xml": "html",
    "application/json": "json",
    "application/x-ndjson": "json",
    "application/geo+json": "json",
    "text/csv": "csv",
}
# extension, or declared type → kind, where the sniffed type is of the family of text
EXTENSIONS: dict[str, str] = {
    "html": "html",
    "htm": "html",
    "xhtml": "html",
    "json": "json",
    "ndjson": "json",
    "jsonl": "json",
    "geojson": "json",
    "ipynb": "json",
    "csv": "csv",
    "tsv": "csv",
}
DECLARED: dict[str, str] = {
    **SNIFFED,
    "application/jsonlines": "json",
    "application/csv": "csv",
    "text/tab-separated-values": "csv",
}
# Of the family of text, but made for programs to read: what they say in words is not in their characters.
OPAQUE = frozenset(("application/postscript", "application/pgp-signature", "application/pgp-keys", "text/rtf"))


def kind_of(sniffed: str | None, declared: str | None, key: bytes) -> str | None:
    """The extractor for a content, or None when it has no text that we know to read."""
    found = bare(sniffed)
    if "text" not in families(found) or found in OPAQUE:
        return None
    if found in ("text/html", "application/xhtml+xml"):
        return "html"
    name = extension(key)
    # A sentence with commas in each line is "CSV" to libmagic: believe it only where nothing else is said.
    if found in ("text/plain", "text/csv") and expected(name) is not None and agree("text/csv", expected(name)):
        return EXTENSIONS.get(name, "text")
    return SNIFFED.get(found) or EXTENSIONS.get(name) or DECLARED.get(bare(declared)) or "text"
