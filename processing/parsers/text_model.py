"""Text of a document, by its kind. One Extractor a kind; more formats are more rows of EXTRACTORS.

An extractor gets bytes and hints and gives blocks; passages and pages are made in one place for all of them.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from processing.parsers import ParserError
from processing.parsers.encoding import decode
from processing.parsers.html_text import HtmlText
from processing.parsers.passages import MAX_CHARS, Block, model

Extractor = Callable[[bytes], tuple[Iterator[Block], str | None]]
"""bytes → blocks and title. Raises ParserError, or ValueError when the bytes are not of its kind."""


def plain(data: bytes) -> tuple[Iterator[Block], str | None]:
    pages = decode(data).split("\f")  # a form feed ends a page where there is one
    paged = len(pages) > 1
    return (
        Block(paragraph, number if paged else 0)
        for number, page in enumerate(pages, 1)
        for paragraph in page.replace("\r\n", "\n").split("\n\n")
    ), None


def json_text(data: bytes) -> tuple[Iterator[Block], str | None]:
    text = decode(data)
    try:
        document = json.loads(text, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return json_lines(text), None
    return (Block(line) for line in leaves(document)), None


def json_lines(text: str) -> Iterator[Block]:
    """One document a line, as in NDJSON; whatever is none stays as it is."""
    for line in text.splitlines():
        try:
            document = json.loads(line, parse_int=str, parse_float=str)
        except (ValueError, RecursionError):
            yield Block(line)
        else:
            yield Block("\n".join(leaves(document)))


def leaves(document: Any) -> Iterator[str]:
    """``path.to.value: text`` for each scalar, in the order of the document; no recursion, since depth is hostile."""
    stack: list[tuple[str, Any]] = [("", document)]
    while stack:
        path, value = stack.pop()
        if isinstance(value, dict):
            stack.extend((f"{path}.{key}" if path else str(key), item) for key, item in reversed(value.items()))
        elif isinstance(value, list):
            stack.extend((path, item) for item in reversed(value))
        elif value is not None and value != "":
            yield f"{path[-200:]}: {value}" if path else str(value)


def csv_text(data: bytes) -> tuple[Iterator[Block], str | None]:
    text = decode(data)
    csv.field_size_limit(1 << 20)
    delimiter = max(",;\t|", key=text[:8192].count)
    return csv_rows(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)), None


def csv_rows(rows: Iterator[list[str]]) -> Iterator[Block]:
    """``column: value`` lines, a block a row, with the first row's names when they look like names."""
    names: list[str] = []
    try:
        for number, row in enumerate(rows):
            if number == 0 and len(row) > 1 and all(cell and not cell[0].isdigit() for cell in row):
                names = row
                yield Block(" | ".join(row))
            elif names:
                named = zip(names + [""] * (len(row) - len(names)), row, strict=False)
                yield Block("\n".join(f"{name}: {cell}" if name else cell for name, cell in named if cell))
            else:
                yield Block(" | ".join(cell for cell in row if cell))
    except csv.Error:
        raise ParserError("extract-failed") from None


def html(data: bytes) -> tuple[Iterator[Block], str | None]:
    reader = HtmlText(MAX_CHARS)
    reader.feed(decode(data, markup=True))
    reader.close()
    return (Block(text) for text in reader.blocks()), reader.title


EXTRACTORS: dict[str, Extractor] = {"text": plain, "json": json_text, "csv": csv_text, "html": html}


def run(params: Mapping[str, Any], data: memoryview) -> tuple[Any, bytes]:
    """params: kind, sha256 (hex, or None to take the bytes as they are). value: counts. payload: the model as JSON.

    Raises ParserError: corrupt-source, unsupported-type, extract-failed.
    """
    if params.get("sha256") not in (None, hashlib.sha256(data).hexdigest()):
        raise ParserError("corrupt-source")
    extractor = EXTRACTORS.get(params["kind"])
    if extractor is None:
        raise ParserError("unsupported-type")
    blocks, title = extractor(bytes(data))
    document = model(params["kind"], blocks, title)
    counts = {"pages": len(document["pages"]), "passages": len(document["passages"]), "chars": document["chars"]}
    payload = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
    return {**counts, "truncated": document["truncated"]}, payload
