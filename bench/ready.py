"""From upload to readable: PUT on one connection, GET at once on one to another process."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from bench import wrk
from bench.endpoint import Client
from bench.outcome import Outcome, of_times
from bench.site import SMALL, Site

TRIES = 32
BEHIND = 64  # clients that make the load at half the maximum
PATIENCE = 30.0  # seconds for one object to become readable


def idle(site: Site) -> Outcome:
    """Milliseconds, on an endpoint that has nothing else to do."""
    return _probe(site, site.knobs.probes)


def busy(site: Site) -> Outcome:
    """Milliseconds, beside PUTs of new keys at about half the rate of the load put-new-32."""
    most = site.rates.get("put-new-32", 0.0) or 1000.0
    # A connection makes a request each pause + latency; the latter is less than at the maximum with half as many.
    pause = max(1, round(1.5 * BEHIND / most * 1000))
    seconds = max(2.0, site.knobs.seconds)
    paths = site.fresh(round(site.knobs.rate * seconds), "behind")
    options = site.options(puts=paths, share=10, size=SMALL, pause=pause)
    found: list[wrk.WrkResult] = []
    thread = threading.Thread(target=lambda: found.append(wrk.run(site.endpoint.url, BEHIND, seconds, options)))
    thread.start()
    outcome = _probe(site, 1 << 30, seconds)
    thread.join()
    if not found:
        return Outcome(outcome.value, outcome.done, outcome.p50, outcome.p99, outcome.seconds, 1, "no load behind it")
    note = f"beside {found[0].rate:.0f} PUT/s ({found[0].rate / most:.0%} of the maximum)"
    # CPU is that of the PUTs behind, too.
    done = outcome.done + found[0].answers
    errors = outcome.errors + found[0].errors
    return Outcome(outcome.value, done, outcome.p50, outcome.p99, outcome.seconds, errors, note)


def _probe(site: Site, most: int, seconds: float = 60.0) -> Outcome:
    """The time counts from the PUT's first byte to the GET's last."""
    writer, reader, other = connections(site)
    first = time.monotonic()
    times: list[float] = []
    errors = 0
    end = first + seconds
    while len(times) + errors < most and time.monotonic() < end:
        key = f"/bench-small/ready/{site.run}/{site.serial():09}"
        start = time.monotonic()
        writer.good("PUT", key, body=os.urandom(SMALL))
        answer = reader.call("GET", key)
        while answer.status != 200 and time.monotonic() - start < PATIENCE:
            answer = reader.call("GET", key)
        times.append(time.monotonic() - start)
        errors += len(answer.body) != SMALL
    taken = time.monotonic() - first
    writer.close()
    reader.close()
    outcome = of_times(0.0, times, taken, errors, "" if other else "one process answered both")
    return Outcome(outcome.p50, outcome.done, outcome.p50, outcome.p99, taken, errors, outcome.note)


def connections(site: Site) -> tuple[Client, Client, bool]:
    """Two clients, if possible connected to different processes, and whether they are."""
    writer = Client(site.endpoint)
    writer.call("HEAD", "/bench-small")
    home = owner(site, writer)
    reader = Client(site.endpoint)
    for _ in range(TRIES):
        reader.call("HEAD", "/bench-small")
        if home is None or owner(site, reader) not in (home, None):
            break
        reader.close()
        reader = Client(site.endpoint)
    return writer, reader, owner(site, reader) not in (home, None)


def owner(site: Site, client: Client) -> int | None:
    """The process of the endpoint's family that holds the other end of a connection; None: not to be found."""
    if client.connection.sock is None or site.endpoint.family is None:
        return None
    here, there = client.connection.sock.getsockname()[1], client.connection.sock.getpeername()[1]
    inode = inode_of(Path("/proc/net/tcp").read_text(), local=there, remote=here)
    for pid in site.endpoint.family.members():
        try:
            links = list(Path(f"/proc/{pid}/fd").iterdir())
        except OSError:
            continue
        for link in links:
            try:
                if str(link.readlink()) == f"socket:[{inode}]":
                    return pid
            except OSError:
                continue
    return None


def inode_of(table: str, *, local: int, remote: int) -> str | None:
    """The inode of a connection in /proc/net/tcp, by its ports."""
    for line in table.splitlines()[1:]:
        words = line.split()
        if int(words[1].rpartition(":")[2], 16) == local and int(words[2].rpartition(":")[2], 16) == remote:
            return words[9]
    return None
