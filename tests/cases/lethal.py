"""Loaded into a server's processes as a module of activities: whoever passes a marked place dies there, once.

A file ``after-sniff_type`` in the folder SLUICETEST_MARKS says: die with SIGKILL when the step has done its work and
before anybody could record it. ``before-swap``: die when a move has copied its bytes and not yet put them in place.
The file is gone before the process is, so that the next one lives.
"""

from __future__ import annotations

import functools
import os
import signal
from pathlib import Path
from typing import Any

from gateway.db.subjects import VersionSubjects
from processing.activities import extract_text, scan_malware, sniff_type, tier_move
from processing.registry import activity_of

MARKS = Path(os.environ["SLUICETEST_MARKS"])


def pass_by(mark: str) -> None:
    try:
        (MARKS / mark).rename(MARKS / f"died-at-{mark}")
    except FileNotFoundError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


def deadly(function: Any) -> None:
    """Puts a mark behind an activity."""
    found = activity_of(function)
    inner: Any = found.function

    @functools.wraps(inner)
    async def wrapped(item: Any, ctx: Any) -> Any:
        result = await inner(item, ctx)
        pass_by(f"after-{found.name}")
        return result

    object.__setattr__(found, "function", wrapped)


for each in (sniff_type.sniff_type, scan_malware.scan_malware, extract_text.extract_text, tier_move.tier_move):
    deadly(each)

swap_pieces: Any = VersionSubjects.swap_pieces


async def swapping(*arguments: Any) -> Any:
    pass_by("before-swap")
    return await swap_pieces(*arguments)


setattr(VersionSubjects, "swap_pieces", swapping)  # noqa: B010 - a method of somebody else's
