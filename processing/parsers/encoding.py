"""Bytes to text when nobody says how they are encoded."""

from __future__ import annotations

import codecs
import re

# Loaded while the child still sees a file system; what a document may name is one of these.
ENCODINGS = ("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "cp1252", "latin-1", "iso8859-15",
             "iso8859-2", "cp1250", "cp1251", "koi8-r", "shift_jis", "euc_jp", "gb18030", "big5", "euc_kr")  # fmt: skip
_KNOWN = {codecs.lookup(name).name for name in ENCODINGS}

_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, whose mark it begins with
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_META = re.compile(rb"""<meta[^>]{0,200}charset\s*=\s*["']?\s*([A-Za-z0-9_.:-]{1,40})""", re.IGNORECASE)


def decode(data: bytes, markup: bool = False) -> str:
    """By byte order mark, by the pattern of UTF-16, by UTF-8's own form, by HTML's meta element, else as cp1252.

    Never fails: what fits nowhere becomes replacement characters.
    """
    for mark, name in _MARKS:
        if data.startswith(mark):
            return data.decode(name, "replace")
    sample = data[:1024]
    for name, zeros in (("utf-16-le", sample[1::2]), ("utf-16-be", sample[::2])):
        if len(sample) > 8 and zeros.count(0) > len(zeros) * 0.7:
            return data.decode(name, "replace")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        pass
    named = _META.search(data[:1024]) if markup else None
    return data.decode(_known(named.group(1).decode()) if named else "cp1252", "replace")


def _known(name: str) -> str:
    try:
        found = codecs.lookup(name).name
    except LookupError:
        return "cp1252"
    return found if found in _KNOWN else "cp1252"
