"""Named borders at which crash tests kill, stop or fail a process. For tests alone: nothing is armed in a service.

``point(name)`` stands where something has just become true, or is about to. It does nothing unless the process was
started with the variable SLUICETEST_FAILPOINTS, the path of a folder. There a test arms a border by a file of its
name, with what is to happen and, if not always, how likely: ``kill``, ``stop 0.5``. Whichever process passes first
takes the file away (so it happens once, however many processes there are) and leaves ``name@pid`` in its place.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

VARIABLE = "SLUICETEST_FAILPOINTS"


class FailPoint(Exception):
    """What ``raise`` raises: an error that nobody expects."""


NAMES: Mapping[str, str] = MappingProxyType(
    {
        "upload.staged": "the staging row is there, the tier knows nothing",
        "upload.begun": "the staging file is there, empty",
        "upload.midway": "bytes are on their way into the staging file",
        "upload.synced": "the bytes are on the disk under their staging name",
        "upload.renamed": "they have their name, the folder is not synced",
        "upload.durable": "the bytes are durable, no version refers to them",
        "store.sending": "plain objects are about to be stored, by one statement",
        "store.stored": "they are; neither the clients nor the engine were told",
        "complete.begun": "a transaction is open, nothing is written",
        "complete.enqueued": "blobs are live and runs enqueued, no version is written; not committed",
        "complete.written": "everything is written, not committed",
        "complete.committed": "committed; neither the client nor the engine was told",
        "part.written": "parts are written, not committed",
        "part.committed": "parts are committed, their clients not told",
        "assemble.written": "a version is made of parts, the upload is gone; not committed",
        "delete.written": "versions and heads are gone, not committed",
        "delete.committed": "they are gone, the client was not told",
        "run.claiming": "before a claim",
        "run.claimed": "runs are claimed, nothing of them is known here",
        "run.started": "a run is in hand",
        "run.stepping": "before a step",
        "run.stepped": "a step is done, nothing says so",
        "run.flushing": "before the journal is written",
        "run.flushed": "the journal is written",
        "run.parking": "before a run is parked",
        "run.parked": "it is parked",
        "run.finishing": "before runs are ended, those of uploads by one statement",
        "run.settled": "their versions are decided, the runs not ended; not committed",
        "run.ending": "both are written, not committed",
        "run.finished": "committed; waiters and followers were not told",
        "sidecar.durable": "the extracted text is durable, nothing refers to it",
        "sidecar.attached": "its version refers to it, the step is not recorded",
        "collect.marking": "a blob is found unreferenced and marked, not committed",
        "collect.marked": "it is marked, its bytes are there",
        "collect.unlinked": "its bytes are gone, its row is there",
        "collect.dropped": "bytes and row are gone",
        "collect.abandoned": "the staging rows of the dead are marked",
        "copy.staged": "a copy to another tier has its staging row, no file",
        "copy.received": "its bytes are in the staging file",
        "move.copied": "the copy is durable, the version refers to the old bytes",
        "move.swapping": "the version refers to the new bytes, not committed",
        "move.swapped": "committed, the step is not recorded",
        "recall.requesting": "a restore is written and its run enqueued, not committed",
        "recall.requested": "committed; neither the client nor the engine was told",
        "recall.asked": "the archive was asked, the step is not recorded",
        "recall.copied": "the restored bytes are durable, the version does not know of them",
        "recall.promoting": "the version refers to them, not committed",
        "recall.promoted": "committed, the step is not recorded",
        "recall.expiring": "copies whose time is over are let go, not committed",
    }
)


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _raise() -> None:
    raise FailPoint


ACTIONS: Mapping[str, Callable[[], None]] = MappingProxyType({"kill": _kill, "stop": _stop, "raise": _raise})

_folder: Path | None = Path(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else None


def point(name: str) -> None:
    """A border. Raises FailPoint where a test wants it."""
    if _folder is not None:
        _reach(_folder, name)


def armed() -> str | None:
    """The folder that borders are armed from; None in every service. For the warning at the start."""
    return None if _folder is None else str(_folder)


def arm(folder: Path, name: str, action: str, chance: float = 1.0) -> None:
    """Let it happen at the next passage. Raises KeyError for a border or an action that there is not."""
    if name not in NAMES or action not in ACTIONS:
        raise KeyError(f"{name} {action}")
    draft = folder / f".{name}"
    draft.write_text(f"{action} {chance}")
    draft.rename(folder / name)


def reached(folder: Path, name: str) -> int | None:
    """The process that has passed an armed border; None: nobody yet."""
    found = next(folder.glob(f"{name}@*"), None)
    return None if found is None else int(found.name.rpartition("@")[2])


def _reach(folder: Path, name: str) -> None:
    if name not in NAMES:
        raise KeyError(name)
    try:
        action, _, chance = (folder / name).read_text().partition(" ")
    except FileNotFoundError:
        return
    act = ACTIONS[action]
    if random.random() >= float(chance or 1):  # noqa: S311
        return
    try:
        (folder / name).rename(folder / f"{name}@{os.getpid()}")
    except FileNotFoundError:  # another process was first
        return
    act()
