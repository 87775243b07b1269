"""The readable text of HTML: blocks as a browser would break them, without scripts and styles. Nothing is fetched."""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser

SILENT = frozenset(("script", "style", "template", "noscript", "svg", "math", "object", "iframe"))
BLOCK = frozenset(
    (
        "address",
        "article",
        "aside",
        "blockquote",
        "body",
        "br",
        "caption",
        "dd",
        "details",
        "div",
        "dl",
        "dt",
        "fieldset",
        "figcaption",
        "figure",
        "footer",
        "form",
        "h1",
        "h2",
        "h3",
        "h4",
        "h5",
        "h6",
        "header",
        "hr",
        "li",
        "main",
        "nav",
        "ol",
        "option",
        "p",
        "pre",
        "section",
        "summary",
        "table",
        "tbody",
        "td",
        "tfoot",
        "th",
        "thead",
        "title",
        "tr",
        "ul",
    )
)


class HtmlText(HTMLParser):
    """Feed text, close, then read blocks() and title. Stops collecting after most characters."""

    def __init__(self, most: int) -> None:
        super().__init__(convert_charrefs=True)
        self.title: str | None = None
        self._blocks: list[str] = []
        self._open: list[str] = []  # text of the block in the making
        self._silent = 0
        self._silenced_by = ""
        self._in_title = False
        self._left = most

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._silent:
            self._silent += tag == self._silenced_by  # they nest; one that is never closed silences the rest
        elif tag in SILENT:
            self._silent, self._silenced_by = 1, tag
        elif tag in BLOCK:
            self._end_block()
            self._in_title = tag == "title" and self.title is None
        elif tag == "img":
            self._open.extend(f" {value} " for name, value in attrs if name == "alt" and value)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in SILENT:
            self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        if self._silent:
            self._silent -= tag == self._silenced_by
        elif tag in BLOCK:
            self._end_block()
            self._in_title = False

    def handle_data(self, data: str) -> None:
        if self._silent or self._left <= 0:
            return
        self._left -= len(data)
        if self._in_title:
            self.title = (self.title or "") + data
        else:
            self._open.append(data)

    def blocks(self) -> Iterator[str]:
        self._end_block()
        return iter(self._blocks)

    def _end_block(self) -> None:
        text = " ".join("".join(self._open).split())
        self._open.clear()
        if text:
            self._blocks.append(text)
