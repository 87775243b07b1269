"""Run wrk with load.lua, and read what it prints."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SCRIPT = Path(__file__).with_name("load.lua")
GRACE = 60.0  # seconds beyond its duration after which wrk is given up
TIMEOUT = 20  # seconds for one request


class WrkFailed(Exception):
    """wrk ended without a result; the text holds its last words."""


@dataclass(frozen=True, slots=True)
class WrkResult:
    """Of one run. Latencies are in milliseconds; answers are all, refused those with a status above 399."""

    seconds: float
    answers: int
    refused: int
    broken: int  # connections that failed, and requests without an answer in time
    received: int  # bytes, with headers
    p50: float
    p99: float
    wrapped: int  # how often a list of paths was started over

    @property
    def rate(self) -> float:
        """Good answers a second."""
        return (self.answers - self.refused) / self.seconds if self.seconds else 0.0

    @property
    def errors(self) -> int:
        return self.refused + self.broken


def parse(text: str) -> WrkResult:
    """What done() of load.lua wrote. Raises WrkFailed."""
    line = re.search(r"^BENCH (.*)$", text, re.M)
    if line is None:
        raise WrkFailed(text[-2000:])
    found: Mapping[str, str] = dict(word.split("=", 1) for word in line[1].split())
    value = {name: int(number) for name, number in found.items()}
    return WrkResult(
        seconds=value["microseconds"] / 1e6,
        answers=value["requests"],
        refused=value["status"],
        broken=value["connect"] + value["read"] + value["write"] + value["timeout"],
        received=value["bytes"],
        p50=value["p50"] / 1000,
        p99=value["p99"] / 1000,
        wrapped=value["wrapped"],
    )


def command(url: str, clients: int, seconds: float, options: Mapping[str, object], threads: int = 1) -> list[str]:
    words = [f"{name}={value}" for name, value in {**options, "threads": threads}.items() if value is not None]
    flags = [f"-t{threads}", f"-c{clients}", f"-d{max(1, round(seconds))}s", "--timeout", f"{TIMEOUT}s"]
    return ["wrk", *flags, "-s", str(SCRIPT), url, "--", *words]


def run(url: str, clients: int, seconds: float, options: Mapping[str, object]) -> WrkResult:
    """One thread suffices: it makes several times the requests that any endpoint answers. Raises WrkFailed."""
    done = subprocess.run(
        command(url, clients, seconds, options), capture_output=True, text=True, timeout=seconds + GRACE, check=False
    )
    return parse(done.stdout + done.stderr)


def fill(url: str, clients: int, options: Mapping[str, object], patience: float) -> WrkResult:
    """Until so many answers as the option stop says; for at most patience seconds. Raises WrkFailed."""
    process = subprocess.Popen(
        command(url, clients, patience, options), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    said = []
    for line in process.stderr:  # ends when wrk does
        if line == "FULL\n":
            process.send_signal(signal.SIGINT)
            break
        said.append(line)
    out, err = process.communicate()
    return parse(out + "".join(said) + err)
