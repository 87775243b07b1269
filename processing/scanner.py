"""What a malware scanner is to the pipeline: its interface, its answers, and how a reply of clamd is read. Pure.

The client that speaks to clamd over a socket is in clamd.py.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Protocol


class ScannerError(Exception):
    """The scanner gave no verdict. reason is a word of SCANNER_REASONS, fit for a metric label."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class ScannerUnreachable(ScannerError):
    """It cannot be connected to, or does not answer PING: the dependency is down, whatever the content."""


class ScanFailed(ScannerError):
    """One stream ended without a verdict; whether the scanner is down as well, PING tells."""


SCANNER_REASONS = {
    "connect_failed": "the connection was refused or could not be made",
    "connect_timeout": "no connection within the connect timeout",
    "ping_timeout": "connected, but no answer to a control command in time",
    "ping_garbage": "connected, but the answer to a control command is not clamd's",
    "empty_reply": "the connection was closed without a byte of answer",
    "closed_early": "the connection was closed in the middle of the stream or of the answer",
    "garbage": "the answer to the stream is nothing clamd says",
    "timeout": "no verdict within the scan timeout",
    "scanner_error": "clamd answered with an error of its own",
}


class ScanOutcome(StrEnum):
    CLEAN = "clean"
    INFECTED = "infected"
    UNSCANNABLE = "unscannable"  # over a limit, or encrypted: looked at in part or not at all


@dataclass(frozen=True, slots=True)
class ScanReply:
    """signature: the name clamd gave (infected, unscannable); None when clean. Printable, at most 200 characters."""

    outcome: ScanOutcome
    signature: str | None = None


@dataclass(frozen=True, slots=True)
class ScannerVersion:
    """engine: "ClamAV 1.4.6". signatures: number of the daily database, or None without one. built: its UTC time."""

    engine: str
    signatures: int | None
    built: datetime | None
    text: str


class Scanner(Protocol):
    """A scanner of whole contents. Every method is safe to call concurrently."""

    async def ping(self) -> None:
        """Return when the scanner answers. Raises ScannerUnreachable."""

    async def version(self) -> ScannerVersion:
        """Engine and signatures as of now. Raises ScannerUnreachable."""

    async def signature_version(self) -> str | None:
        """What a verdict depends on, as one short text; cached. None: not known at the moment, so lend no verdict."""

    async def scan_stream(self, chunks: AsyncIterator[bytes]) -> ScanReply:
        """Scan one whole content; may stop reading chunks early, when the scanner has already answered.

        Raises ScannerUnreachable when there is no connection, ScanFailed when the stream ends without a verdict, and
        passes on unchanged whatever chunks raises.
        """


class ScannerMeter(Protocol):
    """Where the scanner's counts go; the gateway's metrics implement it."""

    def error(self, reason: str) -> None:
        """One more failure of this reason (a key of SCANNER_REASONS)."""

    def up(self, answers: bool) -> None:
        """Whether the scanner answered the last time it was spoken to."""

    def scanned(self, outcome: str, seconds: float, size: int) -> None:
        """One more verdict. seconds: from connect to verdict; size: bytes sent."""

    def signatures(self, built: datetime | None) -> None:
        """When the signatures in use were built, UTC."""


class Unmetered:
    """Counts nothing."""

    def error(self, reason: str) -> None: ...

    def up(self, answers: bool) -> None: ...

    def scanned(self, outcome: str, seconds: float, size: int) -> None: ...

    def signatures(self, built: datetime | None) -> None: ...


# Detections that say "could not look inside", not "is bad" (clamd.conf(5): AlertExceedsMax, AlertEncrypted*).
# A name of "(null)" is what clamd prints when a limit was hit before a name was set.
UNSCANNABLE_NAMES = re.compile(r"(Heuristics\.Limits\.Exceeded|Heuristics\.Encrypted|\(null\)$|$)")
SIZE_LIMIT = "INSTREAM size limit exceeded"

# "stream: NAME FOUND": NAME may hold blanks and ": ", so it is whatever lies between the first label and the last word.
_REPLY = re.compile(r"(?:stream|instream\([^)]*\)): ?(.*?) ?(OK|FOUND|ERROR)", re.DOTALL)
_VERSION = re.compile(r"ClamAV [^/\s]+")
_BUILT = "%a %b %d %H:%M:%S %Y"


def read_reply(raw: bytes) -> ScanReply:
    """The verdict in clamd's answer to INSTREAM, without its terminator. Raises ScanFailed."""
    text = printable(raw)
    if not text:
        raise ScanFailed("empty_reply", "the scanner closed the connection without a byte of answer")
    if text.startswith(SIZE_LIMIT):
        return ScanReply(ScanOutcome.UNSCANNABLE, SIZE_LIMIT)
    match = _REPLY.fullmatch(text)
    if match is None:
        if text.endswith("ERROR"):
            raise ScanFailed("scanner_error", f"the scanner answered {text!r}")
        raise ScanFailed("garbage", f"the scanner's answer is not understood: {text[:80]!r}")
    name, word = match.group(1).strip(), match.group(2)
    if word == "OK" and not name:
        return ScanReply(ScanOutcome.CLEAN)
    if word == "FOUND":
        unscannable = UNSCANNABLE_NAMES.match(name) is not None
        return ScanReply(ScanOutcome.UNSCANNABLE if unscannable else ScanOutcome.INFECTED, name)
    if SIZE_LIMIT in name:
        return ScanReply(ScanOutcome.UNSCANNABLE, SIZE_LIMIT)
    reason = "scanner_error" if word == "ERROR" else "garbage"
    raise ScanFailed(reason, f"the scanner answered {text!r}")


def read_version(raw: bytes) -> ScannerVersion:
    """clamd's answer to VERSION: ``ClamAV 1.4.6/27450/Mon Nov 24 09:26:52 2026``. Raises ScannerUnreachable."""
    text = printable(raw)
    engine, _, rest = text.partition("/")
    if _VERSION.fullmatch(engine) is None:
        raise ScannerUnreachable("ping_garbage", f"not an answer to VERSION: {text[:80]!r}")
    number, _, date = rest.partition("/")
    return ScannerVersion(engine, int(number) if number.isascii() and number.isdigit() else None, _built(date), text)


def _built(date: str) -> datetime | None:
    # clamd prints it by ctime in its own zone and names none; UTC is what its packages run in.
    try:
        return datetime.strptime(" ".join(date.split()), _BUILT).replace(tzinfo=UTC)
    except ValueError:
        return None


def printable(raw: bytes) -> str:
    """Text fit for a log line and a database column, whatever the bytes were; at most 200 characters."""
    text = raw.decode("utf-8", "backslashreplace").strip("\0\r\n ")
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)[:200]
