"""Waiting for verdicts: woken by this process, by a notification of another, and by one poll a second as a net.

Hardly anybody waits for a verdict, so a process says what it decided only to those who asked: ``wanted`` names what is
waited for, and who decides it, or has just done so, answers ``decided``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import asyncpg

from gateway.db.errors import TooManyWaiters
from gateway.domain.objects import State, VersionRef
from processing.model import RunState

Name = tuple[int, int]  # bucket id, seq: hardly ever ambiguous, and a needless wake-up does no harm
POLL = 1.0  # seconds
MEMORY = 4096  # names that were decided here, and names that others want, remembered at most: the latest


class Waiting:
    """cap: how many reads of one tenant may wait at once. publish sends a kind (wanted or decided) and a text to the
    other processes."""

    def __init__(self, pool: asyncpg.Pool, *, cap: int, publish: Callable[[str, str], None] | None = None) -> None:
        self._pool, self._cap, self._publish = pool, cap, publish
        self._waiters: dict[Name, set[asyncio.Event]] = {}
        self._refs: dict[Name, VersionRef] = {}
        self._tenants: Counter[int] = Counter()
        self._poller: asyncio.Task[None] | None = None
        self.hurry: Callable[[Iterable[Name]], None] = lambda _: None  # whoever decides these may be in less of a hurry
        self.want: Callable[[Iterable[int]], None] = lambda _: None  # these runs stand in line
        self._me = secrets.token_hex(4)
        self._recent: dict[Name, None] = {}  # decided here
        self._wanted: dict[Name, None] = {}  # waited for elsewhere

    def __len__(self) -> int:
        return sum(self._tenants.values())

    async def decided(self, ref: VersionRef, tenant: int, timeout: float) -> bool:
        """True once the version is not scanning any more (or gone), False after timeout seconds.

        Raises TooManyWaiters.
        """
        if self._tenants[tenant] >= self._cap:
            raise TooManyWaiters(str(tenant))
        name, event = (ref.bucket_id, ref.seq), asyncio.Event()
        self._tenants[tenant] += 1
        self._waiters.setdefault(name, set()).add(event)
        self._refs[name] = ref
        if self._poller is None or self._poller.done():
            self._poller = asyncio.create_task(self._poll())
        self.hurry([name])
        self._say("wanted", [name])
        try:
            # The verdict may have fallen between the caller's look and the line above.
            scanning = await self._scanning([ref])
            if ref not in scanning:
                return True
            self._ask(scanning)
            async with asyncio.timeout(timeout):
                await event.wait()
            return True
        except TimeoutError:
            return False
        finally:
            self._tenants[tenant] -= 1
            if not self._tenants[tenant]:
                del self._tenants[tenant]
            waiters = self._waiters[name]
            waiters.discard(event)
            if not waiters:
                del self._waiters[name], self._refs[name]

    def decide(self, refs: Iterable[VersionRef]) -> None:
        """Wake whoever waits for these, here and in other processes. Never raises."""
        names = [(ref.bucket_id, ref.seq) for ref in refs]
        self._wake(names)
        asked = _forget(self._wanted, names)
        self._say("decided", asked)
        _remember(self._recent, [name for name in names if name not in asked])  # others' word may be under way

    def heard(self, payload: str) -> None:
        """Another process has decided."""
        for _, names in _read(payload):
            self._wake(names)
            _forget(self._wanted, names)

    def asked(self, payload: str) -> None:
        """Another process waits."""
        for whose, names in _read(payload):
            if whose != self._me:
                self.hurry(names)
                _remember(self._wanted, names)
                # Once: all who looked before that decision hear it, and the version may be held anew since.
                self._say("decided", _forget(self._recent, names))

    def _say(self, kind: str, names: Sequence[Name]) -> None:
        if self._publish is None:
            return
        for start in range(0, len(names), 100):  # a notification holds 8,000 bytes
            self._publish(kind, json.dumps([self._me, names[start : start + 100]], separators=(",", ":")))

    def _wake(self, names: Iterable[Name]) -> None:
        for name in names:
            for event in self._waiters.get(name, ()):
                event.set()

    async def _poll(self) -> None:
        while self._waiters:
            await asyncio.sleep(POLL)
            refs = dict(self._refs)
            with contextlib.suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                scanning = await self._scanning(list(refs.values()))
                self._wake([name for name, ref in refs.items() if ref not in scanning])
                # Again: their word, or the answer, may have been lost, or there was no room.
                self._say("wanted", [name for name, ref in refs.items() if ref in scanning])
                self._ask(scanning)

    def _ask(self, scanning: Mapping[VersionRef, int | None]) -> None:
        if waiting := [run_id for run_id in scanning.values() if run_id is not None]:
            self.want(waiting)

    async def _scanning(self, refs: list[VersionRef]) -> dict[VersionRef, int | None]:
        """Those of them that await their verdict, with their runs where these stand in line."""
        rows = await self._pool.fetch(
            """SELECT v.bucket_id, v.key, v.seq, v.rnd, CASE r.state WHEN $5 THEN r.run_id END
                 FROM version v JOIN unnest($1::bigint[], $2::bytea[], $3::bigint[]) AS q (b, k, s)
                   ON v.bucket_id = q.b AND v.key = q.k AND v.seq = q.s
                 LEFT JOIN workflow_run r ON r.run_id = v.run_id
                WHERE v.state = $4""",
            [ref.bucket_id for ref in refs],
            [ref.key for ref in refs],
            [ref.seq for ref in refs],
            int(State.SCANNING),
            int(RunState.PENDING),
        )
        return {VersionRef(*row[:4]): row[4] for row in rows}


def _remember(memory: dict[Name, None], names: Iterable[Name]) -> None:
    for name in names:
        memory.pop(name, None)
        memory[name] = None
    while len(memory) > MEMORY:
        del memory[next(iter(memory))]


def _forget(memory: dict[Name, None], names: Iterable[Name]) -> list[Name]:
    """Those that were there."""
    found = [name for name in names if name in memory]
    for name in found:
        memory.pop(name, None)
    return found


def _read(payload: str) -> list[tuple[str, list[Name]]]:
    """Whose word it is, and its names; nothing when it is not understood."""
    with contextlib.suppress(ValueError, TypeError):
        whose, names = json.loads(payload)
        return [(str(whose), [(int(bucket), int(seq)) for bucket, seq in names])]
    return []
