"""CPU time and memory of a process and everything below it, from /proc."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TICK = os.sysconf("SC_CLK_TCK")
PROC = Path("/proc")
SAMPLE = 0.5  # seconds between two looks at memory: a look walks page tables
QUIET = 0.15  # cores; below it a family is taken to be done with what it had left
QUIET_LOOK = 0.3  # seconds


@dataclass(frozen=True, slots=True)
class Stat:
    """What /proc/PID/stat says: parent, and seconds of CPU of the process and of its children that have ended."""

    parent: int
    seconds: float


def parse_stat(text: str) -> Stat:
    """proc(5): the name may hold spaces and brackets, so count from the last bracket."""
    words = text[text.rindex(")") + 2 :].split()
    return Stat(int(words[1]), sum(int(word) for word in words[11:15]) / TICK)


def parse_pss(text: str) -> int:
    """Bytes of proportional set size in /proc/PID/smaps_rollup."""
    for line in text.splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


@dataclass(frozen=True, slots=True)
class Family:
    """The processes below roots, looked up anew each time."""

    roots: tuple[int, ...]

    def members(self) -> dict[int, Stat]:
        stats: dict[int, Stat] = {}
        for folder in PROC.iterdir():
            if folder.name.isdigit():
                with contextlib.suppress(OSError, ValueError):
                    stats[int(folder.name)] = parse_stat((folder / "stat").read_text())
        inside = {pid for pid in self.roots if pid in stats}
        more = True
        while more:
            new = {pid for pid, stat in stats.items() if stat.parent in inside} - inside
            inside |= new
            more = bool(new)
        return {pid: stats[pid] for pid in inside}

    def cpu(self) -> float:
        """Seconds of user and system time so far, with that of members that have ended."""
        return sum(stat.seconds for stat in self.members().values())

    def pss(self) -> int:
        """Bytes of memory now, shared pages counted once."""
        total = 0
        for pid in self.members():
            with contextlib.suppress(OSError):
                total += parse_pss((PROC / str(pid) / "smaps_rollup").read_text())
        return total

    @contextlib.contextmanager
    def peak(self) -> Iterator[list[int]]:
        """Watch memory; the list's one value is the highest seen, in bytes."""
        highest = [0]
        end = threading.Event()

        def watch() -> None:
            while True:
                highest[0] = max(highest[0], self.pss())
                if end.wait(SAMPLE):
                    return

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield highest
        finally:
            end.set()
            thread.join()

    def settle(self, patience: float) -> float:
        """Wait until it uses next to no CPU; seconds until it began to be quiet."""
        start = time.monotonic()
        while True:
            since, before = time.monotonic(), self.cpu()
            time.sleep(QUIET_LOOK)
            if (self.cpu() - before) / (time.monotonic() - since) < QUIET or since - start > patience:
                return since - start
