"""An endpoint with what the loads need in place: buckets, objects to read, lists of paths, bodies."""

from __future__ import annotations

import os
import random
import secrets
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench import wrk
from bench.endpoint import Client, Endpoint, Refused

SMALL = 4096  # bytes
MIB = 1 << 20
POOL = 16 * MIB  # random bytes that small bodies are cut from, at any byte
LISTED = 1000  # keys below one prefix
PREFIXES = 10
LOAD_CLIENTS = 32
FILL_MARGIN = 20
FILL_PATIENCE = 1800.0  # seconds to put all objects of one kind
BUCKETS = ("bench-small", "bench-empty", "bench-list", "bench-large")


@dataclass(frozen=True, slots=True)
class Knobs:
    """How much of everything. Times are in seconds, sizes in bytes; rate is a second's most PUTs paths are made for."""

    seconds: float = 10.0
    keys: int = 50_000
    large: int = 1 << 30
    parts: int = 10_000
    probes: int = 200
    rate: int = 14_000
    settle: float = 120.0
    everywhere: bool = False  # the loads that are for ours alone, too


class Bodies:
    """Files of random bytes, made once; each use of a large one gets bytes of its own at the start."""

    def __init__(self, folder: Path, size: int) -> None:
        self.folder = folder
        self.size = size
        self.pool = folder / "pool"
        self.pool.write_bytes(os.urandom(POOL))

    def large(self, number: int) -> Path:
        """The body of stream number, not equal to any that was handed out before."""
        path = self.folder / f"large-{number}"
        if not path.exists():
            with path.open("wb") as file:
                for at in range(0, self.size, MIB):
                    file.write(os.urandom(min(MIB, self.size - at)))
        with path.open("r+b") as file:
            file.write(secrets.token_hex(16).encode()[: self.size])
        return path


@dataclass(slots=True)
class Site:
    """One endpoint in one run of the bench. run is in the keys, so that a second run finds no keys of the first."""

    endpoint: Endpoint
    folder: Path
    bodies: Bodies
    knobs: Knobs
    run: str = field(default_factory=lambda: secrets.token_hex(3))
    rates: dict[str, float] = field(default_factory=dict)  # best rate per load so far
    _serial: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def name(self) -> str:
        return self.endpoint.name

    # --- lists of paths ----------------------------------------------------------------------------------------------

    def serial(self, count: int = 1) -> int:
        with self._lock:
            self._serial += count
            return self._serial - count

    def write(self, name: str, lines: Sequence[str]) -> Path:
        """A list for load.lua. All lines are equally long, since all keys of a list are."""
        path = self.folder / f"{self.name}-{name}"
        assert len({len(line) for line in lines}) == 1, "keys of different lengths"
        path.write_text("\n".join(lines) + "\n")
        return path

    def fresh(self, count: int, name: str = "fresh") -> Path:
        """Paths to PUT new keys to."""
        first = self.serial(count)
        keys = [f"/bench-small/new/{self.run}/{number:09}" for number in range(first, first + count)]
        return self.write(name, self.endpoint.paths("PUT", keys))

    def known(self, method: str) -> Path:
        """Paths of the prepared objects in random order."""
        path = self.folder / f"{self.name}-known-{method}"
        if not path.exists():
            bucket = "bench-empty" if method == "HEAD" else "bench-small"
            keys = _keys(bucket, self.run, self.knobs.keys)
            random.Random(1).shuffle(keys)
            self.write(path.name.removeprefix(f"{self.name}-"), self.endpoint.paths(method, keys))
        return path

    def listings(self) -> Path:
        lines = []
        for number in range(PREFIXES):
            query = [("list-type", "2"), ("max-keys", str(LISTED)), ("prefix", f"{self.run}/{number:02}/")]
            lines.append(self.endpoint.path("GET", "/bench-list", query))
        return self.write("listings", lines)

    # --- what has to be there ----------------------------------------------------------------------------------------

    def buckets(self) -> None:
        """Raises Refused."""
        if not self.endpoint.signed:
            return
        client = Client(self.endpoint)
        for bucket in BUCKETS:
            answer = client.call("PUT", f"/{bucket}")
            if answer.status not in (200, 409):
                raise Refused(f"{self.name}: bucket {bucket}: {answer.status} {answer.body[:300]!r}")
        client.close()

    def fill(self, *, small: bool, empty: bool, listed: bool) -> None:
        """Put the objects that are read. Raises Refused: they are not there."""
        if small:
            self._put_all(_keys("bench-small", self.run, self.knobs.keys), SMALL)
        if empty:
            self._put_all(_keys("bench-empty", self.run, self.knobs.keys), 0)
        if listed and self.endpoint.signed:
            pairs = [(prefix, number) for prefix in range(PREFIXES) for number in range(LISTED)]
            self._put_all([f"/bench-list/{self.run}/{p:02}/{number:06}" for p, number in pairs], 0)
        self.settle()

    def _put_all(self, keys: Sequence[str], size: int) -> None:
        clients = min(LOAD_CLIENTS, len(keys))
        options = self.options(puts=self.write("fill", self.endpoint.paths("PUT", keys)), share=10, size=size)
        # wrk asks for one request that it does not send, and drops what is on its way at the end, which may be a slow
        # one from long ago: some go on into a second round.
        options["stop"] = len(keys) + clients * FILL_MARGIN
        found = wrk.fill(self.endpoint.url, clients, options, FILL_PATIENCE)
        if found.errors > len(keys) // 1000:
            raise Refused(f"{self.name}: {found.errors} of {found.answers} objects were not stored")
        client = Client(self.endpoint)
        for key in random.Random(2).sample(keys, min(20, len(keys))):
            answer = client.good("GET", key)
            if len(answer.body) != size:
                raise Refused(f"{self.name}: {key} has {len(answer.body)} bytes, not {size}")
        client.close()

    def options(self, **more: object) -> dict[str, object]:
        return {"host": self.endpoint.host, "pool": self.bodies.pool, "run": f"{self.run}{self.serial():x}", **more}

    def settle(self) -> float:
        """Wait until nothing is left to do in the background; seconds that took."""
        family = self.endpoint.family
        return family.settle(self.knobs.settle) if family else 0.0


def _keys(bucket: str, run: str, count: int) -> list[str]:
    return [f"/{bucket}/old/{run}/{number:09}" for number in range(count)]
