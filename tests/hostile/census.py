"""What a server's processes hold: connections, descriptors, threads, tasks. Counted from outside, in /proc, but for the
tasks, which the server counts itself."""

from __future__ import annotations

import contextlib
import time
from dataclasses import astuple, dataclass

import psutil

from tests.server import Server

PATIENCE = 40.0  # the server counts its tasks every few seconds


@dataclass(frozen=True)
class Census:
    """connections: of clients, with the S3 port. descriptors: all others of the serving processes."""

    connections: int
    descriptors: int
    threads: int
    tasks: int

    def __le__(self, other: Census) -> bool:
        return all(mine <= theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True))


def census(server: Server) -> Census:
    port = int(server.endpoint.rpartition(":")[2])
    connections = descriptors = threads = 0
    for process in server.children():
        with contextlib.suppress(psutil.NoSuchProcess):
            clients = [
                each
                for each in process.net_connections("tcp")
                if each.laddr and each.laddr.port == port and each.status != psutil.CONN_LISTEN
            ]
            connections += len(clients)
            descriptors += process.num_fds() - len(clients)
            threads += process.num_threads()
    return Census(connections, descriptors, threads, int(server.metrics().get("sluice_tasks", 0)))


def lowest(server: Server, looks: int = 8) -> Census:
    """What it holds at rest: the least of each in some looks."""
    seen = []
    for _ in range(looks):
        seen.append(astuple(census(server)))
        time.sleep(0.25)
    return Census(*(min(column) for column in zip(*seen, strict=True)))


def returns(server: Server, before: Census, slack: Census) -> Census:
    """Waits until it holds no more than before, but for some slack: pools grow with use and stay. Raises
    AssertionError."""
    limit = Census(*(a + b for a, b in zip(astuple(before), astuple(slack), strict=True)))
    end = time.monotonic() + PATIENCE
    while not (now := census(server)) <= limit:
        assert time.monotonic() < end, f"{now} is left, {before} was there before"
        time.sleep(0.1)
    return now
