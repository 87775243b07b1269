"""A long, gentle, mixed load on a fresh server, and whether memory, descriptors, tables and latency stay flat.

python -m bench.soak --minutes 30
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg

from bench import ours
from bench.endpoint import Client, Endpoint, Refused
from bench.family import PROC, Family, parse_pss
from bench.flatness import Limit, Verdict, judge

MIB = 1 << 20
BUCKET = "soak"
PART = 5 * MIB
# What is kept, and collected, is what a test of minutes can see the end of; everything else is as users have it.
SETTINGS = {
    "SLUICE_BLOB_GRACE": "20",
    "SLUICE_COLLECT_INTERVAL": "5",
    "SLUICE_ENGINE_RETENTION": "60",
    "SLUICE_ENGINE_SWEEP": "15",
    "SLUICE_LOG_LEVEL": "warning",
}
# Tables whose rows stay for days and then go by their age: verdicts, answers of completed uploads, journals (dropped by
# the range, of 131,072 runs at least). No soak sees their end; the report shows them, and does not judge them.
AGED = "^(verdict|completed_upload|(workflow_step|run_event|run_journal)_.*)$"
# The set of keys is bounded and filled in the warm-up: from then on every table has as many rows as it will ever have.
KEYS = 400
LIMITS: Mapping[str, Limit] = {
    # column: (growth over the measured time that is still flat: a share of its mean, and an absolute value)
    "serve_mib": Limit(0.05, 12.0),
    "db_mib": Limit(0.10, 40.0),  # its caches fill until every connection has prepared every statement
    "fds": Limit(0.05, 10.0),
    "threads": Limit(0.05, 4.0),
    "tasks": Limit(0.05, 10.0),
    "rows_k": Limit(0.05, 1.0),
    "dead_k": Limit(0.50, 10.0),
    "tables_mib": Limit(0.10, 8.0),
    "indexes_mib": Limit(0.10, 8.0),
    "blobs_mib": Limit(0.10, 100.0),
    "p50_ms": Limit(0.20, 5.0),
    "p99_ms": Limit(0.50, 50.0),
}


@dataclass
class Worker:
    """One client in a thread: a deed, a pause, the next one. took: (deed, seconds) since they were last collected."""

    endpoint: Endpoint
    pause: float
    random: random.Random
    took: list[tuple[str, float]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    pool: bytes = field(default_factory=lambda: os.urandom(4 * MIB))

    def run(self, over: threading.Event) -> None:
        client = Client(self.endpoint)
        deeds: dict[Callable[[Client], None], int] = {
            self.put_inline: 30, self.put_staged: 12, self.put_multipart: 2, self.get: 35, self.head: 8,
            self.listing: 5, self.copy: 5, self.delete: 6, self.missing: 2,
        }  # fmt: skip
        while not over.is_set():
            deed = self.random.choices(list(deeds), list(deeds.values()))[0]
            began = time.monotonic()
            try:
                deed(client)
            except (OSError, Refused) as error:
                self.errors.append(f"{deed.__name__}: {error}"[:300])
                client.close()
                client = Client(self.endpoint)
            self.took.append((deed.__name__, time.monotonic() - began))
            over.wait(self.pause * self.random.uniform(0.5, 1.5))
        client.close()

    def key(self) -> str:
        return f"/{BUCKET}/k{self.random.randrange(KEYS)}"

    def body(self, size: int) -> bytes:
        start = self.random.randrange(len(self.pool) - size)
        return os.urandom(16) + self.pool[start : start + size]

    def put_inline(self, client: Client) -> None:
        client.good("PUT", self.key(), body=self.body(self.random.choice((100, 4000, 15_000))))

    def put_staged(self, client: Client) -> None:
        client.good("PUT", self.key(), body=self.body(self.random.choice((40_000, 300_000, 2 * MIB))))

    def put_multipart(self, client: Client) -> None:
        key = self.key()
        text = client.good("POST", key, [("uploads", "")]).body.decode()
        upload = text.partition("<UploadId>")[2].partition("<")[0]
        if self.random.random() < 0.2:
            client.good("PUT", key, [("partNumber", "1"), ("uploadId", upload)], body=self.body(100_000))
            client.good("DELETE", key, [("uploadId", upload)])
            return
        etags = []
        for number, size in ((1, PART), (2, 200_000)):
            body = self.body(MIB) * (size // MIB) if size > MIB else self.body(size)
            query = [("partNumber", str(number)), ("uploadId", upload)]
            etags.append(client.good("PUT", key, query, body=body).headers["etag"])
        parts = "".join(
            f"<Part><PartNumber>{n}</PartNumber><ETag>{etag}</ETag></Part>" for n, etag in enumerate(etags, 1)
        )
        document = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()
        client.good("POST", key, [("uploadId", upload)], body=document)

    def get(self, client: Client) -> None:
        self._known(client.call("GET", self.key()).status)

    def head(self, client: Client) -> None:
        self._known(client.call("HEAD", self.key()).status)

    def missing(self, client: Client) -> None:
        self._known(client.call("GET", f"/{BUCKET}/absent").status)

    def listing(self, client: Client) -> None:
        client.good("GET", f"/{BUCKET}", [("list-type", "2"), ("max-keys", "100")])

    def copy(self, client: Client) -> None:
        source, target = self.key(), self.key()
        if source == target:  # S3 refuses a copy that changes nothing
            return
        answer = client.call("PUT", target, headers={"x-amz-copy-source": source})
        self._known(answer.status)

    def delete(self, client: Client) -> None:
        client.good("DELETE", self.key())

    def _known(self, status: int) -> None:
        if status not in (200, 404):
            raise Refused(f"answered {status}")


# --- looking -----------------------------------------------------------------------------------------------------


def sample(endpoint: Endpoint, family: Family, blobs: Path, workers: Sequence[Worker]) -> dict[str, float]:
    """One line of the table; what the workers measured since the last one is taken from them."""
    took = []
    for worker in workers:
        count = len(worker.took)
        took += [seconds for _, seconds in worker.took[:count]]
        del worker.took[:count]
    took.sort()
    line = {
        "requests": float(len(took)),
        "errors": float(sum(len(worker.errors) for worker in workers)),
        "p50_ms": statistics.median(took) * 1000 if took else 0.0,
        "p99_ms": took[int(len(took) * 0.99)] * 1000 if took else 0.0,
        "blobs_mib": sum(_size(each) for each in blobs.rglob("*")) / MIB,
        "tasks": _tasks(endpoint),
        "load": os.getloadavg()[0],
    }
    return line | _processes(family) | asyncio.run(_tables(endpoint.dsn))


def _size(path: Path) -> int:
    with contextlib.suppress(OSError):
        if path.is_file():
            return path.stat().st_size
    return 0


def _tasks(endpoint: Endpoint) -> float:
    with urllib.request.urlopen(endpoint.admin + "/metrics", timeout=30) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith("sluice_tasks "):
                return float(line.split()[1])
    return 0.0


def _processes(family: Family) -> dict[str, float]:
    """Memory, the database's apart; descriptors and threads of all but the database, whose processes come and go with
    connections."""
    found = dict.fromkeys(("serve_mib", "db_mib", "fds", "threads"), 0.0)
    for pid in family.members():
        with contextlib.suppress(OSError):
            folder = PROC / str(pid)
            memory = parse_pss((folder / "smaps_rollup").read_text()) / MIB
            if "postgres" in (folder / "comm").read_text():
                found["db_mib"] += memory
                continue
            found["serve_mib"] += memory
            found["fds"] += len(list((folder / "fd").iterdir()))
            found["threads"] += len(list((folder / "task").iterdir()))
    return found


async def _tables(dsn: str) -> dict[str, float]:
    conn = await asyncpg.connect(dsn)
    try:
        row = await conn.fetchrow(
            """SELECT sum(n_live_tup) / 1000.0 AS rows_k, sum(n_dead_tup) / 1000.0 AS dead_k,
                      sum(pg_table_size(relid)) / 1048576.0 AS tables_mib,
                      sum(pg_indexes_size(relid)) / 1048576.0 AS indexes_mib
                 FROM pg_stat_user_tables WHERE relname !~ $1""",
            AGED,
        )
        assert row is not None
        return {name: float(value or 0) for name, value in row.items()}
    finally:
        await conn.close()


async def _largest(dsn: str) -> list[str]:
    """The tables that take most, for the end of the report."""
    conn = await asyncpg.connect(dsn)
    try:
        rows = await conn.fetch(
            """SELECT relname, n_live_tup, n_dead_tup, pg_total_relation_size(relid) / 1048576.0 AS mib
                 FROM pg_stat_user_tables ORDER BY pg_total_relation_size(relid) DESC LIMIT 8"""
        )
        return [f"{r['relname']}: {r['n_live_tup']} rows, {r['n_dead_tup']} dead, {r['mib']:.1f} MiB" for r in rows]
    finally:
        await conn.close()


# --- the command -------------------------------------------------------------------------------------------------

COLUMNS = (
    "minute", "requests", "errors", "p50_ms", "p99_ms", "serve_mib", "db_mib", "fds", "threads", "tasks", "rows_k",
    "dead_k", "tables_mib", "indexes_mib", "blobs_mib", "load",
)  # fmt: skip


def line(values: Mapping[str, float]) -> str:
    return " | ".join(f"{values[name]:>{max(8, len(name))}.1f}" for name in COLUMNS)


def verdicts(lines: Sequence[Mapping[str, float]], warm: float) -> dict[str, Verdict]:
    """Of every column that has a limit, over the time after the warm-up."""
    kept = [each for each in lines if each["minute"] > warm]
    minutes = [each["minute"] for each in kept]
    return {name: judge(minutes, [each[name] for each in kept], limit) for name, limit in LIMITS.items()}


def parser() -> argparse.ArgumentParser:
    it = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    it.add_argument("--minutes", type=float, default=30.0)
    it.add_argument("--warm-up", type=float, help="minutes that are not judged; default: a third, five at most")
    it.add_argument("--every", type=float, default=60.0, help="seconds between two lines")
    it.add_argument("--clients", type=int, default=4)
    it.add_argument("--pause", type=float, default=0.1, help="seconds a client waits between two requests")
    it.add_argument("--seed", type=int, default=1)
    it.add_argument("--dir", type=Path, help="folder for everything that is written; default: a new one in TMPDIR")
    return it


@contextlib.contextmanager
def load(endpoint: Endpoint, clients: int, pause: float, seed: int) -> Iterator[list[Worker]]:
    workers = [Worker(endpoint, pause, random.Random(seed * 1000 + number)) for number in range(clients)]
    over = threading.Event()
    threads = [threading.Thread(target=worker.run, args=(over,), daemon=True) for worker in workers]
    for thread in threads:
        thread.start()
    try:
        yield workers
    finally:
        over.set()
        for thread in threads:
            thread.join(60)


def main() -> int:
    args = parser().parse_args()
    warm = args.warm_up if args.warm_up is not None else min(5.0, args.minutes / 3)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    os.environ.update({name: os.environ.get(name, value) for name, value in SETTINGS.items()})
    folder = Path(tempfile.mkdtemp(prefix="soak-", dir=args.dir))
    folder.chmod(0o711)  # the database runs as another user
    lines: list[dict[str, float]] = []
    try:
        with ours.running(folder) as endpoint:
            assert endpoint.family is not None
            client = Client(endpoint)
            client.good("PUT", f"/{BUCKET}")
            client.close()
            print(" | ".join(f"{name:>{max(8, len(name))}}" for name in COLUMNS), flush=True)
            began = time.monotonic()
            with load(endpoint, args.clients, args.pause, args.seed) as workers:
                while time.monotonic() - began < args.minutes * 60:
                    time.sleep(min(args.every, max(0.1, began + args.minutes * 60 - time.monotonic())))
                    seen = sample(endpoint, endpoint.family, folder / "sluice" / "blobs", workers)
                    lines.append({"minute": (time.monotonic() - began) / 60, **seen})
                    print(line(lines[-1]), flush=True)
                errors = [error for worker in workers for error in worker.errors]
            print("\n".join(asyncio.run(_largest(endpoint.dsn))))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    found = verdicts(lines, warm)
    for name, verdict in found.items():
        print(f"{name:12} {verdict}")
    for error in errors[:10]:
        print(f"error: {error}")
    flat = all(verdict.flat for verdict in found.values()) and not errors
    print("flat" if flat else "NOT FLAT")
    return 0 if flat else 1


if __name__ == "__main__":
    sys.exit(main())
