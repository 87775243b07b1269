"""Restore requests of an archive folder: a small record beside each blob that was asked for.

All functions block and work across processes: a record is replaced by rename, under a lock of its folder. Times are
seconds of the wall clock, since a record outlives the process that wrote it.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from storage_tiers.tier import Readable, RestoreState


@dataclass(frozen=True, slots=True)
class Restore:
    """ready: when the blob becomes readable; until: when it stops being so."""

    ready: float
    until: float

    def at(self, now: float) -> RestoreState:
        """What this record says at a time."""
        if now >= self.until:
            return RestoreState(Readable.ARCHIVED)
        if now < self.ready:
            return RestoreState(Readable.PENDING)
        return RestoreState(Readable.READABLE, datetime.fromtimestamp(self.until, UTC))


def read(record: Path) -> Restore | None:
    """The record of a blob; None when there is none, or when it is unreadable: then it may be asked for again.

    Raises OSError.
    """
    try:
        fields = json.loads(record.read_bytes())
        return Restore(float(fields["ready"]), float(fields["until"]))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        return None


def request(
    record: Path, now: float, delay: float, period: float, durable: bool, fsync: Callable[[int], None] = os.fsync
) -> Restore:
    """Ask for a blob: readable after delay seconds, for period seconds from then on. Raises OSError.

    While a request is pending nothing changes. A readable blob stays so for period seconds from now, never shorter
    than before.
    """
    folder = os.open(record.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        known = read(record)
        state = known.at(now).state if known is not None else Readable.ARCHIVED
        if known is not None and state is Readable.PENDING:
            return known
        if known is not None and state is Readable.READABLE:
            wanted = Restore(known.ready, max(known.until, now + period))
        else:
            wanted = Restore(now + delay, now + delay + period)
        _replace(record, wanted, folder, durable, fsync)
        return wanted
    finally:
        os.close(folder)  # gives the lock back too


def _replace(record: Path, wanted: Restore, folder: int, durable: bool, fsync: Callable[[int], None]) -> None:
    # one writer at a time, by the lock: the temporary name needs no random part, and a crashed one is overwritten
    draft = record.with_name(record.name + "-new")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o640)
    try:
        os.write(fd, json.dumps(asdict(wanted)).encode())
        if durable:
            fsync(fd)
    finally:
        os.close(fd)
    draft.rename(record)
    if durable:
        fsync(folder)
