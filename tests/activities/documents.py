"""Documents made at run time: zips of office formats in unusual orders, an executable, and the like."""

from __future__ import annotations

import io
import zipfile

OOXML = "application/vnd.openxmlformats-officedocument."
DOCX = OOXML + "wordprocessingml.document"
XLSX = OOXML + "spreadsheetml.sheet"
PPTX = OOXML + "presentationml.presentation"
DOCM = "application/vnd.ms-word.document.macroEnabled.12"
XLSM = "application/vnd.ms-excel.sheet.macroEnabled.12"

MAIN = {
    DOCX: ("word/document.xml", DOCX + ".main+xml"),
    XLSX: ("xl/workbook.xml", XLSX + ".main+xml"),
    PPTX: ("ppt/presentation.xml", PPTX + ".main+xml"),
    DOCM: ("word/document.xml", "application/vnd.ms-word.document.macroEnabled.main+xml"),
    XLSM: ("xl/workbook.xml", "application/vnd.ms-excel.sheet.macroEnabled.main+xml"),
}


def content_types(main: str, mime: str, doctype: str = "") -> str:
    return (
        f'<?xml version="1.0" encoding="UTF-8" standalone="yes"?>{doctype}'
        '<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">'
        '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
        f'<Override PartName="/{main}" ContentType="{mime}"/></Types>'
    )


def office(mime: str, order: str = "first", junk: int = 0, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """order: where [Content_Types].xml lies: first, last, or none."""
    main, part = MAIN[mime]
    types = ("[Content_Types].xml", content_types(main, part))
    members = [("_rels/.rels", "<Relationships/>"), (main, "<document>hello</document>")]
    if "macro" in mime.lower():
        members.append((main.partition("/")[0] + "/vbaProject.bin", "\0" * 50))
    members = [(f"junk/{n}.bin", "junk" * 500) for n in range(junk)] + members
    if order != "none":
        members.insert(0 if order == "first" else len(members), types)
    return zipped(members, method)


def zipped(members: list[tuple[str, str | bytes]] | list[tuple[str, str]], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, text in members:
            archive.writestr(name, text)
    return out.getvalue()


def opendocument(mimetype_first: bool = True) -> bytes:
    members: list[tuple[str, str]] = [("content.xml", "<office/>" * 2000), ("META-INF/manifest.xml", "<m/>")]
    members.insert(0 if mimetype_first else 2, ("mimetype", "application/vnd.oasis.opendocument.text"))
    return zipped(members, zipfile.ZIP_STORED)


def executable() -> bytes:
    """The headers of a PE file: enough for libmagic, nothing that runs."""
    stub = b"MZ" + bytes(58) + (0x80).to_bytes(4, "little") + bytes(64)
    return stub + b"PE\0\0" + (0x14C).to_bytes(2, "little") + bytes(18) + b"\x0b\x01" + bytes(2000)


def pdf() -> bytes:
    return b"%PDF-1.4\n1 0 obj<</Type/Catalog>>endobj\ntrailer<</Root 1 0 R>>\n%%EOF\n"


def entity_tower() -> bytes:
    """A zip whose parts hold nested entities that would unfold to gigabytes."""
    tower = "<!DOCTYPE x [" + "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10 if n else "lol"}">' for n in range(12))
    return zipped(
        [
            (
                "[Content_Types].xml",
                content_types("x.xml", "text/xml", tower + "]>").replace("</Types>", "&e11;</Types>"),
            ),
            ("_rels/.rels", tower + "]><Relationships>&e11;</Relationships>"),
        ]
    )


def zip_bomb_part() -> bytes:
    """A zip whose [Content_Types].xml unpacks to 100 MB of blanks."""
    return zipped([("[Content_Types].xml", " " * 100_000_000), ("word/document.xml", "<x/>")])
