"""Exit codes, one table: the documentation's too."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    CONFLICT = 4
    UNAVAILABLE = 5
    BUSY = 6
    CONFIG = 78


MEANING: dict[Exit, str] = {
    Exit.OK: "done",
    Exit.FAILED: "something else went wrong; standard error says what",
    Exit.USAGE: "the command line is not understood",
    Exit.NOT_FOUND: "what was named does not exist",
    Exit.CONFLICT: "its state does not allow that",
    Exit.UNAVAILABLE: "the database, or the service, cannot be reached",
    Exit.BUSY: "another process owns the data directory",
    Exit.CONFIG: "the configuration cannot be used",
}


class CommandError(Exception):
    """Ends a command with a code and a sentence on standard error."""

    def __init__(self, code: Exit, text: str) -> None:
        super().__init__(text)
        self.code = code
