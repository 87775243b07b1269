"""Kill a server's processes at every named border, under load, and look at what became of the data.

    python -m tests.durability.killing --rounds 100      every border, a hundred times over (hours)
    python -m tests.durability.killing --stop            stopped past the lease and let go, instead of killed
    python -m tests.durability.killing --raise           an unexpected error, instead of a kill
    python -m tests.durability.killing --forked          processes that start cheaply: a round a minute

One round: clients write, borders are armed one after the other in random order, each ends one process. Then everything
has to settle, and be as the clients were told.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from storage_tiers import failpoints
from tests import pg
from tests.durability import examine, marks, unguarded
from tests.durability.examine import Findings
from tests.durability.ledger import Client, Ledger
from tests.durability.scanner import running_scanner
from tests.server import Server, make_server

SITE = Path(__file__).parent / "site"
AT_ONCE = 3  # borders that are armed and young
YOUNG = 3.0  # seconds after which a border that nobody passes holds up no other
TTL = 2.0
SCAN = 0.05  # seconds a scan takes at most
PIPELINE = ["sniff_type", "extension_policy", "scan_malware", *marks.STEPS, "extract_text"]
ENVIRONMENT = {
    # Runs whose worker died are executed each in a process of its own: few in hand, so that recovery is quick.
    "SLUICE_ENGINE_SLOTS": "2",
    "SLUICE_ENGINE_TTL": str(TTL),
    "SLUICE_ENGINE_HEARTBEAT": "0.2",
    "SLUICE_ENGINE_SWEEP": "1",
    "SLUICE_ENGINE_MAX_RECOVERIES": "1000",
    "SLUICE_ENGINE_BACKOFF_BASE": "0.1",
    "SLUICE_BLOB_GRACE": "1",
    "SLUICE_COLLECT_INTERVAL": "0.3",
    "SLUICE_VERDICT_TTL": "0",
    "SLUICE_READ_WAIT": "3",
    "SLUICE_ARCHIVE_DELAY": "0.1",
    "SLUICE_RECALL_POLL": "1",
    "SLUICE_LIFECYCLE_DAY": "6",
    "SLUICE_INLINE_THRESHOLD": "4096",
    "SLUICE_ACTIVITIES": marks.__name__,
    "SLUICE_PIPELINES": json.dumps({"marked": {"steps": PIPELINE}}),
}
# What is staged is abandoned by the dead alone; an engine's hooks never raise, by their contract.
UNFIT = {"kill": (), "stop": ("collect.abandoned",), "raise": ("collect.abandoned", "run.")}


@dataclass
class Site:
    """A server whose borders can be armed. kills: how often each border ended a process."""

    server: Server
    points: Path
    marks: Path
    kills: dict[str, int] = field(default_factory=lambda: dict.fromkeys(failpoints.NAMES, 0))
    stopped: set[int] = field(default_factory=set)

    def open_round(self, name: str, clients: int) -> tuple[Ledger, list[Client]]:
        ledger = Ledger(self.server, name)
        ledger.open()
        return ledger, [Client(ledger, number) for number in range(clients)]


@contextmanager
def running_site(folder: Path, database: str, *changes: str, workers: int = 4) -> Iterator[Site]:
    """changes: of tests/durability/unguarded.py, in the server's processes."""
    points = folder / "points"
    points.mkdir()
    with running_scanner(SCAN) as scanner:
        environment = {
            **ENVIRONMENT,
            "SLUICE_CLAMD": scanner.address,
            failpoints.VARIABLE: str(points),
            marks.VARIABLE: str(folder / "marks"),
            unguarded.VARIABLE: ",".join(("soon", *changes)),
            "PYTHONPATH": os.pathsep.join([str(SITE), str(Path(__file__).parents[2])]),
        }
        server = make_server(folder, environment, database=database, workers=workers)
        try:
            yield Site(server.start(), points, folder / "marks")
        finally:
            for left in points.iterdir():
                left.unlink()
            server.kill()


def strike(site: Site, names: Sequence[str], action: str, patience: float, hold: float) -> list[str]:
    """Arm these borders, a few at a time, until each was reached; those that nobody passed in so many seconds.

    hold: how long a stopped process is stopped.
    """
    waiting = list(names)
    armed: dict[str, float] = {}
    stopped: dict[int, float] = {}
    deadline = time.monotonic() + patience
    while (waiting or armed or stopped) and time.monotonic() < deadline:
        now = time.monotonic()
        while sum(now - since < YOUNG for since in armed.values()) + len(stopped) < AT_ONCE:
            name = next((each for each in waiting if each not in armed), None)
            if name is None:
                break
            waiting.remove(name)
            armed[name] = now
            failpoints.arm(site.points, name, action)
        for name in list(armed):
            pid = failpoints.reached(site.points, name)
            if pid is None:
                continue
            (site.points / f"{name}@{pid}").unlink()
            del armed[name]
            site.kills[name] += 1
            if action == "stop":
                site.stopped.add(pid)
                stopped[pid] = now
        for pid, since in list(stopped.items()):
            if now - since > hold:
                os.kill(pid, signal.SIGCONT)
                del stopped[pid]
        time.sleep(0.02)
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)
    for name in armed:
        with contextlib.suppress(FileNotFoundError):
            (site.points / name).unlink()
    return [*armed, *waiting]


def run_round(
    site: Site,
    name: str,
    names: Sequence[str],
    action: str = "kill",
    *,
    patience: float = 90.0,
    settle: float = 90.0,
    clients: int = 4,
    deeds: int = 0,  # how many the load has to do at least
    hold: float = TTL + 1.0,  # others have a stopped worker's runs by then
) -> Findings:
    """Strike at each of these borders once; what is wrong afterwards, by the names of examine.py's checks."""
    ledger, load = site.open_round(name, clients)
    for client in load:
        client.thread.start()
    try:
        missed = strike(site, names, action, patience, hold)
        ledger.wait(deeds, patience)
    finally:
        ledger.over.set()
        for client in load:
            client.thread.join()
    site.server.wait_ready()
    examine.abort_uploads(ledger)
    found = examine.settled(site.server, settle)
    if not found:
        examine.bring_back(ledger)
        found = examine.settled(site.server, settle) | examine.compare(ledger)
    if missed:
        found["not reached"] = missed
    if repeated := marks.repeated(site.marks, frozenset(site.stopped)):
        found["steps again"] = repeated
    return found


def shuffled(action: str, seed: int) -> list[str]:
    """The borders where this action says something, in some order."""
    names = [name for name in failpoints.NAMES if not name.startswith(UNFIT[action])]
    random.Random(seed).shuffle(names)
    return names


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.durability.killing",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    actions = parser.add_mutually_exclusive_group()
    actions.add_argument("--stop", dest="action", action="store_const", const="stop", default="kill")
    actions.add_argument("--raise", dest="action", action="store_const", const="raise")
    parser.add_argument("--forked", action="store_true")
    args = parser.parse_args(words)
    changes = ("forked", "together") if args.forked else ()
    folder = Path(tempfile.mkdtemp(prefix="k-", dir=pg.session_root()))
    folder.chmod(0o711)
    wrong = 0
    try:
        with running_site(folder, pg.create_database(), *changes) as site:
            for number in range(args.rounds):
                started = time.monotonic()
                names = shuffled(args.action, args.seed + number)
                found = run_round(site, f"round{number}", names, args.action, patience=300.0)
                wrong += bool(found)
                print(
                    f"round {number + 1}: {len(names)} borders, {time.monotonic() - started:.0f} s",
                    found or "good",
                    flush=True,
                )
                if found:
                    shutil.copy(site.server.log_path, f"killing-{os.getpid()}-{number + 1}.log")
            print(*(f"{count:6} × {name}" for name, count in site.kills.items()), sep="\n")
            print(f"{sum(site.kills.values())} times {args.action}, {wrong} of {args.rounds} rounds with findings")
    finally:
        pg.end_session()
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
