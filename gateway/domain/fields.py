"""What the rules of this package need of a request's header fields."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class Fields(Protocol):
    """Header fields by lower-case name; a name may have several values."""

    def get(self, name: str, default: str | None = None) -> str | None:
        """The first value, or default."""

    def __contains__(self, name: object) -> bool: ...

    def items(self) -> Iterable[tuple[str, str]]:
        """Every (lower-case name, value), in the order received."""
