"""What a zip holds, by the names in its central directory: office documents, packages, or just a zip.

libmagic looks at the first members only; an office document whose telling member comes last looks like a plain zip to
it (APPNOTE.TXT 4.3: the directory at the end is what counts, members may come in any order). Nothing is unpacked but
one member of bounded size, and no XML is parsed: its text is searched for the few content types that matter.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

TAIL = 65_557  # an end record and the longest comment it may have (APPNOTE 4.3.16)
MAX_DIRECTORY = 1 << 20  # bytes of the directory looked at, from its beginning
MAX_MEMBERS = 20_000
MAX_MEMBER = 256 << 10  # bytes of the one member that is read, packed or unpacked

_END = struct.Struct("<4s4H2IH")
_LOCATOR = struct.Struct("<4sIQI")
_END64 = struct.Struct("<4sQ2H2I4Q")
_ENTRY = struct.Struct("<4s6H3I5H2I")
_LOCAL = struct.Struct("<4s5H3I2H")
_NOWHERE = 0xFFFFFFFF

OOXML = "application/vnd.openxmlformats-officedocument."
POWERPOINT = "application/vnd.ms-powerpoint."
# The content type of the main part → the document's type, and whether it may carry macros (ECMA-376 part 1,
# [MS-OFFMACRO2]).
MAIN_PARTS: tuple[tuple[bytes, str, bool], ...] = (
    (b"ms-word.document.macroEnabled.main+xml", "application/vnd.ms-word.document.macroEnabled.12", True),
    (b"ms-word.template.macroEnabledTemplate.main+xml", "application/vnd.ms-word.template.macroEnabled.12", True),
    (b"ms-excel.sheet.macroEnabled.main+xml", "application/vnd.ms-excel.sheet.macroEnabled.12", True),
    (b"ms-excel.template.macroEnabled.main+xml", "application/vnd.ms-excel.template.macroEnabled.12", True),
    (b"ms-excel.addin.macroEnabled.main+xml", "application/vnd.ms-excel.addin.macroEnabled.12", True),
    (b"ms-excel.sheet.binary.macroEnabled.main", "application/vnd.ms-excel.sheet.binary.macroEnabled.12", True),
    (b"ms-powerpoint.presentation.macroEnabled.main+xml", POWERPOINT + "presentation.macroEnabled.12", True),
    (b"ms-powerpoint.slideshow.macroEnabled.main+xml", POWERPOINT + "slideshow.macroEnabled.12", True),
    (b"ms-powerpoint.template.macroEnabled.main+xml", POWERPOINT + "template.macroEnabled.12", True),
    (b"wordprocessingml.document.main+xml", OOXML + "wordprocessingml.document", False),
    (b"wordprocessingml.template.main+xml", OOXML + "wordprocessingml.template", False),
    (b"spreadsheetml.sheet.main+xml", OOXML + "spreadsheetml.sheet", False),
    (b"spreadsheetml.template.main+xml", OOXML + "spreadsheetml.template", False),
    (b"presentationml.presentation.main+xml", OOXML + "presentationml.presentation", False),
    (b"presentationml.slideshow.main+xml", OOXML + "presentationml.slideshow", False),
    (b"presentationml.template.main+xml", OOXML + "presentationml.template", False),
    (b"ms-visio.drawing.macroEnabled.main+xml", "application/vnd.ms-visio.drawing.macroEnabled.12", True),
    (b"ms-visio.drawing.main+xml", "application/vnd.ms-visio.drawing", False),
)
# Where the main part lies by habit → the type, when the content types cannot be read. With macros, and without.
MAIN_NAMES: dict[str, tuple[str, str]] = {
    "word/document.xml": (MAIN_PARTS[0][1], MAIN_PARTS[9][1]),
    "xl/workbook.xml": (MAIN_PARTS[2][1], MAIN_PARTS[11][1]),
    "xl/workbook.bin": (MAIN_PARTS[5][1], MAIN_PARTS[5][1]),
    "ppt/presentation.xml": (MAIN_PARTS[6][1], MAIN_PARTS[13][1]),
}
# A member that tells → the type of the package.
PACKAGES: tuple[tuple[str, str], ...] = (
    ("AndroidManifest.xml", "application/vnd.android.package-archive"),
    ("META-INF/MANIFEST.MF", "application/java-archive"),
)
CONTENT_TYPES, MIMETYPE = "[Content_Types].xml", "mimetype"


class _Need(Exception):
    def __init__(self, offset: int, length: int) -> None:
        super().__init__()
        self.span = [offset, length]


@dataclass(frozen=True, slots=True)
class Member:
    name: str
    method: int
    packed: int
    local: int  # offset of its local header


class Pieces:
    """The parts of a content that are at hand. bytes_at asks for what is not."""

    def __init__(self, size: int, spans: list[list[int]], data: memoryview) -> None:
        self.size = size
        self._pieces: list[tuple[int, memoryview]] = []
        at = 0
        for offset, length in spans:
            self._pieces.append((offset, data[at : at + length]))
            at += length

    def bytes_at(self, offset: int, length: int) -> bytes:
        if offset < 0 or length < 0 or offset + length > self.size:
            raise ValueError("outside of the content")
        for start, piece in self._pieces:
            if start <= offset and offset + length <= start + len(piece):
                return bytes(piece[offset - start : offset - start + length])
        raise _Need(offset, length)


def run(params: Mapping[str, Any], data: memoryview) -> tuple[Any, bytes]:
    """params: size of the content, spans [offset, length] of it that data holds back to back.

    value: {"need": [offset, length]} for one more span, or {"type", "macros", "members", "suspicious"}; type is None
    when there is no readable directory.
    """
    try:
        return look(Pieces(int(params["size"]), params["spans"], data)), b""
    except _Need as need:
        return {"need": need.span}, b""


def look(pieces: Pieces) -> dict[str, Any]:
    try:
        members = {member.name: member for member in directory(pieces)}
    except (ValueError, struct.error):
        return {"type": None, "macros": False, "members": 0, "suspicious": None}
    macros = any(name.lower().endswith("vbaproject.bin") for name in members)
    text, suspicious = None, None
    if CONTENT_TYPES in members:
        text = read(pieces, members[CONTENT_TYPES])
        if text is not None and text[:2] in (b"\xff\xfe", b"\xfe\xff"):
            text = text.decode("utf-16", "replace").encode()
        # A package's own parts have no use for a document type (ECMA-376 part 2, 7.2.3.2 forbids them).
        suspicious = "doctype" if text is not None and (b"<!DOCTYPE" in text or b"<!ENTITY" in text) else None
    kind, by_type = main_part(text or b"", members, macros)
    if kind is None and MIMETYPE in members:
        kind = declared(read(pieces, members[MIMETYPE]))
    if kind is None:
        kind = next((mime for name, mime in PACKAGES if name in members), "application/zip")
    return {"type": kind, "macros": macros or by_type, "members": len(members), "suspicious": suspicious}


def main_part(text: bytes, members: Mapping[str, Member], macros: bool) -> tuple[str | None, bool]:
    for part, mime, may in MAIN_PARTS:
        if part in text:
            return mime, may
    for name, (enabled, plain) in MAIN_NAMES.items():
        if name in members:
            return (enabled if macros else plain), False
    return None, False


def declared(text: bytes | None) -> str | None:
    """The package's own word (OpenDocument 1.3 part 2, 3.3; EPUB OCF 4.3), when it has the form of a type."""
    word = (text or b"").strip()
    plausible = len(word) < 100 and word.startswith(b"application/") and word.isascii() and word.decode().isprintable()
    return word.decode() if plausible else None


def directory(pieces: Pieces) -> Iterator[Member]:
    """The members in the order of the directory, at most MAX_MEMBERS. Raises ValueError when there is none."""
    tail_at = max(0, pieces.size - TAIL)
    tail = pieces.bytes_at(tail_at, pieces.size - tail_at)
    at = tail.rfind(b"PK\5\6", 0, len(tail) - _END.size + 4)
    if at < 0:
        raise ValueError("no end record")
    _, _, _, _, _, length, offset, _ = _END.unpack_from(tail, at)
    shift = 0
    if offset == _NOWHERE or length == _NOWHERE:
        length, offset = _zip64(pieces, tail, at)
    else:
        shift = tail_at + at - length - offset  # bytes before the zip, as in a self-extracting one
        offset += shift if shift > 0 else 0
    held = min(length, MAX_DIRECTORY)
    entries = pieces.bytes_at(offset, held)
    at = 0
    for _ in range(MAX_MEMBERS):
        if at + _ENTRY.size > len(entries) or entries[at : at + 4] != b"PK\1\2":
            return
        entry = _ENTRY.unpack_from(entries, at)
        method, packed, local = entry[4], entry[8], entry[16]
        name_length, extra, comment = entry[10], entry[11], entry[12]
        at += _ENTRY.size
        name = entries[at : at + name_length].decode("utf-8", "replace").replace("\\", "/")
        at += name_length + extra + comment
        yield Member(name, method, packed, local + max(0, shift))


def _zip64(pieces: Pieces, tail: bytes, end: int) -> tuple[int, int]:
    signature, _, at, _ = _LOCATOR.unpack_from(tail, end - _LOCATOR.size) if end >= _LOCATOR.size else (b"", 0, 0, 0)
    if signature != b"PK\6\7":
        raise ValueError("no zip64 locator")
    record = _END64.unpack(pieces.bytes_at(at, _END64.size))
    if record[0] != b"PK\6\6":
        raise ValueError("no zip64 end record")
    return record[8], record[9]


def read(pieces: Pieces, member: Member) -> bytes | None:
    """A member's bytes, at most MAX_MEMBER of them; None when it is packed too large, or broken."""
    if member.packed > MAX_MEMBER or member.method not in (0, 8):
        return None
    try:
        # The local header's own lengths may differ from the directory's; 64 KiB is the most an extra field has.
        most = _LOCAL.size + len(member.name.encode()) + 1024 + member.packed
        head = pieces.bytes_at(member.local, min(most, pieces.size - member.local))
        local = _LOCAL.unpack_from(head, 0)
        if local[0] != b"PK\3\4":
            return None
        start = _LOCAL.size + local[9] + local[10]
        packed = head[start : start + member.packed]
        return packed if member.method == 0 else zlib.decompressobj(-15).decompress(packed, MAX_MEMBER)
    except (ValueError, struct.error, zlib.error):
        return None
