"""What the rules of this package need of a request's header fields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, overload


class Fields(Protocol):
    """Header fields by lower-case name; a name may have several values."""

    @overload
    def get(self, name: str, /) -> str | None: ...
    @overload
    def get(self, name: str, default: str, /) -> str:
        """The value, or default; those of several lines as one list, joined by commas."""

    def __contains__(self, name: object, /) -> bool: ...

    @property
    def lines(self) -> Sequence[tuple[str, str]]:
        """Every (lower-case name, value), in the order received."""
