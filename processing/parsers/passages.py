"""From text blocks to the normalized model: passages of a bounded length, on numbered pages, with a page index.

    {"schema": 1, "kind": "html", "title": …, "truncated": false, "chars": 1234,
     "pages": [{"page": 1, "first": 0, "count": 12, "chars": 1234}, …],
     "passages": [{"page": 1, "text": "…"}, …]}

Passages are numbered by their place in the list; "first" and "count" of a page point into it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

TARGET, MOST = 1000, 1500  # characters of a passage: what it aims at, and what it never passes
PAGE = 40  # passages on a page, for formats that have no pages of their own
MAX_CHARS = 16 << 20  # characters of one model; the rest is left out and said so

_BREAKS = (re.compile(r"\n\s*\n"), re.compile(r"[.!?…。！？]\s+"), re.compile(r"\n"), re.compile(r"\s+"))
_BLANKS = re.compile(r"[^\S\n]+")
_MANY_LINES = re.compile(r"\n[^\S\n]*(?:\n[^\S\n]*)+")
_UNWANTED = re.compile("[\0-\x08\x0e-\x1f\x7f\ufeff\ufffe\uffff]|[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Block:
    """A run of text that belongs together. page: its number from 1 where the format has pages, else 0."""

    text: str
    page: int = 0


def model(kind: str, blocks: Iterable[Block], title: str | None = None) -> dict[str, Any]:
    """The normalized model of a document's blocks, in their order."""
    passages: list[dict[str, Any]] = []
    chars, truncated, on_page = 0, False, 0
    for text, page in _joined(blocks):
        if chars + len(text) > MAX_CHARS:
            truncated = True
            break
        if page == 0:
            page, on_page = 1 + on_page // PAGE, on_page + 1
        chars += len(text)
        passages.append({"page": page, "text": text})
    return {
        "schema": 1,
        "kind": kind,
        "title": clean(title)[:300] or None if title else None,
        "truncated": truncated,
        "chars": chars,
        "pages": _index(passages),
        "passages": passages,
    }


def _index(passages: list[dict[str, Any]]) -> list[dict[str, int]]:
    pages: list[dict[str, int]] = []
    for number, passage in enumerate(passages):
        if not pages or pages[-1]["page"] != passage["page"]:
            pages.append({"page": passage["page"], "first": number, "count": 0, "chars": 0})
        pages[-1]["count"] += 1
        pages[-1]["chars"] += len(passage["text"])
    return pages


def _joined(blocks: Iterable[Block]) -> Iterator[tuple[str, int]]:
    """Short neighbours on a page grow together up to TARGET; long blocks are cut."""
    held, held_page = "", 0
    for block in blocks:
        text = clean(block.text)
        if not text:
            continue
        if held and (block.page != held_page or len(held) + len(text) + 1 > TARGET):
            yield held, held_page
            held = ""
        if len(text) > TARGET:
            *whole, text = cut(text)
            for piece in whole:
                yield piece, block.page
        held, held_page = f"{held}\n{text}" if held else text, block.page
    if held:
        yield held, held_page


def cut(text: str) -> list[str]:
    """Pieces of at most MOST characters, cut after a paragraph, a sentence, a line or a word, whichever is found."""
    pieces = []
    start = 0
    while len(text) - start > MOST:
        end = _break(text, start)
        pieces.append(text[start:end].strip())
        start = end
    pieces.append(text[start:].strip())
    return [piece for piece in pieces if piece] or [""]


def _break(text: str, start: int) -> int:
    for pattern in _BREAKS:
        last = None
        for match in pattern.finditer(text, start + TARGET // 2, start + MOST):
            last = match
        if last is not None:
            return last.end()
    return start + MOST


def clean(text: str) -> str:
    """Without control characters and lone surrogates, blanks folded, line ends unified."""
    text = _UNWANTED.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))
    return _MANY_LINES.sub("\n\n", _BLANKS.sub(" ", text)).strip()
