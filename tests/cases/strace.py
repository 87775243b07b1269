"""What a process asks of the kernel, in order: strace attached to a running server."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

CALLS = "fsync,fdatasync,rename,renameat,renameat2,sendto,sendmsg,write,writev"
PATIENCE = 20.0
LINE = re.compile(r"(\d+) +(.*)")
CALL = re.compile(r"(\w+)\((.*)")
RESUMED = re.compile(r"<\.\.\. (\w+) resumed>(.*)")


@dataclass(frozen=True)
class Call:
    """One system call. begun and ended are places in the order of all that happened."""

    name: str
    text: str
    begun: int
    ended: int


class Strace:
    """``with Strace(pid, folder) as trace: …`` then ``trace.calls()``; skips where tracing is not permitted."""

    def __init__(self, pid: int, folder: Path) -> None:
        self.pid, self.out, self.err = pid, folder / "strace.out", folder / "strace.err"
        program = shutil.which("strace")
        if program is None:
            pytest.skip("strace is not installed (Debian package strace)")
        self.program = program

    def __enter__(self) -> Strace:
        with self.err.open("wb") as err:
            self.process = subprocess.Popen(
                [self.program, "-f", "-y", "-s", "120", "-e", f"trace={CALLS}", "-p", str(self.pid), "-o", self.out],
                stdout=subprocess.DEVNULL,
                stderr=err,
            )
        end = time.monotonic() + PATIENCE
        while "attached" not in (said := self.err.read_text()):
            if self.process.poll() is not None or "not permitted" in said:
                self.process.kill()
                pytest.skip(f"strace may not attach here: {said.strip()[:200]}")
            assert time.monotonic() < end, said
            time.sleep(0.02)
        return self

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGINT)  # it lets the process go on
        self.process.wait(PATIENCE)

    def calls(self) -> list[Call]:
        """Every call so far, by the order in which they ended."""
        open_calls: dict[str, tuple[str, str, int]] = {}
        found: list[Call] = []
        for number, line in enumerate(self.out.read_text(errors="replace").splitlines()):
            match = LINE.match(line)
            if match is None:
                continue
            thread, rest = match[1], match[2]
            if resumed := RESUMED.match(rest):
                name, text, begun = open_calls.pop(thread, (resumed[1], "", number))
                found.append(Call(name, text + resumed[2], begun, number))
            elif call := CALL.match(rest):
                if call[2].endswith("<unfinished ...>"):
                    open_calls[thread] = (call[1], call[2].removesuffix("<unfinished ...>"), number)
                else:
                    found.append(Call(call[1], call[2], number, number))
        return sorted(found, key=lambda each: each.ended)
