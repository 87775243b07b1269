"""Parsers of hostile bytes. They run in sandboxed children only (processing.sandbox), never in a serving process.

Each operation is a function (params, data) -> (value, payload): value is small JSON, payload raw bytes. What it raises
decides the answer: ParserError its own code, MemoryError ``memory``, RecursionError ``too-complex``, the rest
``failed``. No message of an exception leaves the child, since it may hold content.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Operation = Callable[[Mapping[str, Any], memoryview], tuple[Any, bytes]]


class ParserError(Exception):
    """The content cannot be parsed; code says why, in a word."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code
