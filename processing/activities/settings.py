"""What the steps of post_upload are told: policy and limits. The owner of the engine puts it among the services."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from processing.content_types import EXECUTABLE_EXTENSIONS
from processing.context import Context

SERVICE = "activity_settings"
BUILTIN = "builtin"

# What of these decides a verdict, and so belongs into a pipeline's fingerprint.
_DECIDES = ("enforce_type_match", "unscannable", "unreachable", "extract_bytes")


@dataclass(frozen=True, slots=True)
class ActivitySettings:
    """blocked_extensions: without dots; the word "builtin" among them stands for the built-in list; empty: none.

    unscannable ("quarantine" or "allow") and unreachable ("wait" or "allow") are two switches: what becomes of content
    the scanner refused to judge, and of content that comes while the scanner is away. extract_bytes: larger content is
    not opened for its text. extract_seconds: for one document, from its first byte to its text.
    """

    enforce_type_match: bool = False
    blocked_extensions: tuple[str, ...] = ()
    unscannable: str = "quarantine"
    unreachable: str = "wait"
    extract_bytes: int = 32 << 20
    extract_seconds: float = 60.0

    def __post_init__(self) -> None:
        for name, choices in (("unscannable", ("quarantine", "allow")), ("unreachable", ("wait", "allow"))):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} is {' or '.join(choices)}, not {getattr(self, name)!r}")

    @property
    def blocked(self) -> frozenset[str]:
        return _blocked(self.blocked_extensions)

    def policy(self, scanner: bool) -> str:
        """The part of a pipeline's fingerprint that these settings and the presence of a scanner make up.

        The scanner's signature version changes by itself and is asked for apart (Scanner.signature_version).
        """
        parts = [f"{name}={getattr(self, name)!r}" for name in _DECIDES]
        return ";".join([*parts, f"blocked={sorted(self.blocked)}", f"scanner={scanner}"])


@functools.lru_cache(16)
def _blocked(extensions: tuple[str, ...]) -> frozenset[str]:
    named = frozenset(word.lstrip(".").casefold() for word in extensions)
    return named - {BUILTIN} | EXECUTABLE_EXTENSIONS if BUILTIN in named else named


def settings_of(ctx: Context) -> ActivitySettings:
    """The settings among the services; the defaults where there are none, as in a test."""
    found: Any = ctx.services.get(SERVICE)
    return found if isinstance(found, ActivitySettings) else ActivitySettings()
