"""The engine as the rest of a process sees it: enqueue, operate, wait; and the loops around the worker."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import asyncpg
import structlog
from asyncpg import Pool

from processing import queries, store
from processing.births import Births
from processing.breakers import Breakers, wake_probes
from processing.failures import Conflict, retryable
from processing.fills import fill
from processing.journal import jitter
from processing.lease import WorkerLease
from processing.machine import TERMINAL
from processing.maintenance import pruner, sweeps
from processing.maintenance.reaper import Reaper
from processing.maintenance.sweeps import Sweep, Sweeps, Undecided, Wanted
from processing.model import EngineSettings, Enqueued, NewRun, Outcome, RunState, Verdict
from processing.notifier import Notifier
from processing.ports import Conn, Subjects, SubjectSuperseded
from processing.registry import Definition, Registry
from processing.retry import Backoff
from processing.surroundings import Hooks, NoHooks, Surroundings
from processing.worker import Worker

__all__ = ["Engine", "EngineSettings", "Hooks", "NoHooks"]

log = structlog.get_logger("sluice.engine")
THREADS = 8  # plain ``def`` activities at a time
TELL = 0.05  # seconds between two words to the other processes that runs wait
TOKEN_VARIABLE = "SLUICE_RUN_TOKEN"  # noqa: S105 - how a parent hands a lease to the child that isolates its run


class Engine:
    """Durable runs over one pool. start and drain once; enqueue works before start and in processes without claims."""

    def __init__(
        self,
        pool: Pool,
        *,
        settings: EngineSettings,
        registry: Registry,
        subjects: Subjects,
        services: Mapping[str, Any],
        notifier: Notifier,
        dsn: str | None = None,
        hooks: Hooks | None = None,
        app_settings: Any = None,
        undecided: Undecided | None = None,
        wanted: Sequence[Wanted] = (),
    ) -> None:
        """dsn: for the heartbeat's own connection (needed by start). undecided and wanted: what the sweeps ask the
        owner of the subjects (processing.maintenance.sweeps)."""
        self._pool = pool
        self._settings = settings
        self._registry = registry
        self._subjects = subjects
        self._notifier = notifier
        self._dsn = dsn
        self._hooks: Hooks = hooks or NoHooks()
        self._undecided = undecided
        self._wanted = list(wanted)
        self._defined: dict[str, int] = {}  # fingerprint → order of first appearance
        self._stored: dict[str, tuple[Definition, int]] = {}
        self._waiting: dict[int, list[asyncio.Future[RunState]]] = {}
        self._loops: list[asyncio.Task[None]] = []
        self._telling = self._more = False  # others were told of waiting runs a moment ago; and there are more
        self._timer = asyncio.Event()
        self._next_timer = float("inf")  # loop time of the next timer this process knows of
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="activity")
        self._lease = WorkerLease(
            self._connect,
            name=f"{socket.gethostname()}:{os.getpid()}",
            slots=settings.slots if settings.takes else 0,
            ttl=settings.ttl,
            interval=settings.heartbeat,
            on_beat=lambda held, cancelled: self._worker.beat(held, cancelled),
            on_lost=lambda: self._worker.lose_all(),
        )
        self._breakers = Breakers(
            pool,
            backoff=Backoff(settings.backoff_base, settings.backoff_cap, settings.backoff_jitter),
            spread=settings.wake_spread,
        )
        around = Surroundings(
            settings=settings,
            registry=registry,
            subjects=subjects,
            services=services,
            app_settings=app_settings,
            breakers=self._breakers,
            threads=self._threads,
            hooks=self._hooks,
            flush=lambda entry: self._worker.flush(entry),
            definition=self._definition,
            order_of=lambda fingerprint: self._defined.get(fingerprint, 0),
        )
        self._worker = Worker(
            pool,
            around,
            self._lease,
            follow=self.enqueue,
            launch=self.launch,
            abandon=self.abandon,
            on_end=self._ended,
            on_timer=self._expect_timer,
        )
        self.births = Births(self._worker, self._lease, registry, define=self._make_known, tell=self._tell)
        self._reaper = Reaper(
            pool, ttl=settings.ttl, max_recoveries=settings.max_recoveries, hooks=self._hooks, fail=self._fail_lost
        )
        self._sweeps = Sweeps(pool, self._sweep_table())

    @property
    def worker_id(self) -> int:
        """This process's row in ``worker`` (0 before start); a new one after a lost lease."""
        return self._lease.worker_id

    @property
    def in_progress(self) -> int:
        """Runs this process executes now."""
        return len(self._worker.held)

    # --- life ---------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Register this process, make the definitions known, begin to claim. Raises asyncpg's errors and OSError."""
        await self._define_all()
        await self._lease.start()
        self._worker.start()
        self._notifier.subscribe("run", lambda _: self._worker.nudge(), self._worker.nudge)
        loop = asyncio.get_running_loop()
        self._loops = [
            loop.create_task(self._every("timers", self._timers)),
            loop.create_task(self._every("reaper", self._reap)),
            loop.create_task(self._every("sweeps", self._sweep)),
        ]

    async def drain(self) -> None:
        """Let running steps finish for a while, hand back the rest without counting anything, end the lease."""
        for task in self._loops:
            task.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        await self._worker.drain(self._settings.drain)
        await self._lease.stop()
        self._threads.shutdown(wait=False, cancel_futures=True)
        for futures in self._waiting.values():
            for future in futures:
                future.cancel()
        self._notifier.publish("run")

    async def run_only(self, run_id: int, token: UUID | None = None) -> bool:
        """Execute one run in this process, without start: a pending one, or with a token (also from the environment)
        one whose lease is handed over. False when it is not there to take, or was not ended or parked here."""
        given = os.environ.get(TOKEN_VARIABLE)
        token = token or (UUID(given) if given else None)
        await self._define_all()
        await self._lease.start()
        self._worker.start_watch()
        try:
            execution = await self._worker.take(run_id, token)
            if execution is None or execution.task is None:
                return False
            await asyncio.wait({execution.task})
            return execution.task.exception() is None
        finally:
            await self._worker.drain(self._settings.drain)
            await self._lease.stop()

    async def _connect(self) -> asyncpg.Connection:
        if self._dsn is None:
            raise RuntimeError("the engine needs a dsn for its heartbeat")
        return await asyncpg.connect(self._dsn, timeout=self._settings.ttl, statement_cache_size=0)

    # --- enqueue ------------------------------------------------------------------------------------------------

    async def enqueue(self, conn: Conn, runs: Sequence[NewRun]) -> list[Enqueued]:
        """Insert runs in the caller's transaction, one statement. Every answer must be passed to ``launch`` after the
        commit, or to ``abandon`` when there was none. Raises ConfigurationError, store.NotJson."""
        return await self.births.enqueue(conn, runs)

    def launch(self, enqueued: Sequence[Enqueued]) -> None:
        """After the commit: start the runs claimed here, and tell the processes of the others."""
        self.births.launch(enqueued)

    def abandon(self, enqueued: Sequence[Enqueued]) -> None:
        """After a rollback: give reserved slots back."""
        self.births.abandon(enqueued)

    def hurry(self, names: Iterable[tuple[int, int]]) -> None:
        """Somebody waits for the runs about these subjects (bucket id, seq): none of them gives way here any more."""
        self._worker.hurry(names)

    def want(self, run_ids: Iterable[int]) -> None:
        """Somebody waits for these runs, which stand in line: they are claimed past it, if their lanes have room. Asked
        again by who waits on."""
        self._worker.want(run_ids)

    def _tell(self) -> None:
        """Runs wait. Other processes hear it once in a while: under load they look by themselves."""
        self._worker.nudge()
        if not self._telling:
            self._notifier.publish("run")
            self._telling = True
            asyncio.get_running_loop().call_later(TELL, self._told)
        else:
            self._more = True

    def _told(self) -> None:
        self._telling = False
        if self._more:
            self._more = False
            self._tell()

    async def supersede(self, conn: Conn, run_ids: Sequence[int]) -> None:
        """In a transaction that removes their subjects: end these runs, if they live, as cancelled (superseded)."""
        for run_id in await queries.supersede(conn, run_ids):
            self._worker.revoke(run_id)

    # --- waiting and events -------------------------------------------------------------------------------------

    async def wait(self, run_id: int, timeout: float) -> RunState | None:
        """The state a run ended in, or None when timeout seconds pass first (or the run is unknown)."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        future: asyncio.Future[RunState] = loop.create_future()
        self._waiting.setdefault(run_id, []).append(future)
        self._worker.hurry_run(run_id)
        pause = 0.05
        try:
            # The end of a run in this process arrives by the future; of another process's run the table knows.
            while True:
                local = run_id in self._worker.held or run_id in self._worker.reserved
                if not local:
                    async with self._pool.acquire() as conn:
                        state = await queries.state_of(conn, run_id)
                    if state is None or state in TERMINAL:
                        return state
                left = deadline - loop.time()
                if left <= 0:
                    return None
                with contextlib.suppress(TimeoutError):
                    return await asyncio.wait_for(asyncio.shield(future), min(left, 1.0 if local else pause))
                pause = min(1.0, pause * 1.6)
        finally:
            waiting = self._waiting.get(run_id, [])
            with contextlib.suppress(ValueError):
                waiting.remove(future)
            if not waiting:
                self._waiting.pop(run_id, None)

    def _ended(self, outcome: Outcome) -> None:
        for future in self._waiting.pop(outcome.run_id, []):
            if not future.done():
                future.set_result(outcome.state)

    async def signal(self, wait_key: str, payload: Mapping[str, Any] | None = None) -> int:
        """Record an event (the first of a key wins) and wake who is parked on it; how many were woken."""
        async with self._pool.acquire() as conn, conn.transaction():
            woken = await store.signal(conn, wait_key, store.dump(payload or {}))
        if woken:
            self._tell()
        return woken

    # --- operating ----------------------------------------------------------------------------------------------

    async def retry(self, run_id: int) -> None:
        """Return a failed or cancelled run to its tenant's line. Raises Conflict."""
        async with self._pool.acquire() as conn, conn.transaction():
            seen = await queries.peek(conn, run_id)
            if seen is None:
                raise Conflict("no-such-run", f"There is no run {run_id}.")
            _, subject = seen
            if subject is not None:
                await self._subjects.lock(conn, [subject], wait=True)
            run = await queries.lock_run(conn, run_id)
            if run is None or run["state"] not in (RunState.FAILED, RunState.CANCELLED):
                word = "gone" if run is None else run["state"].name.lower()
                raise Conflict("not-ended", f"Only failed and cancelled runs can be retried; this one is {word}.")
            if not retryable(run["error_code"]):
                raise Conflict(str(run["error_code"]), f"A run that failed {run['error_code']} cannot be retried.")
            if subject is not None:
                if await queries.live_runs(conn, subject, run["workflow"]):
                    raise Conflict("run-live", "A newer run about the same subject is in progress.")
                try:
                    await self._subjects.reopen(conn, subject, run["workflow"], run_id)
                except SubjectSuperseded as error:
                    raise Conflict("superseded", "What this run was about is gone or replaced.") from error
            await queries.revive(conn, run_id)
        self._tell()

    async def requeue(self, run_id: int, force: bool = False) -> None:
        """Return a parked run, or a running one whose lease expired (any, by force), to pending. Raises Conflict."""
        async with self._pool.acquire() as conn:
            found = await queries.requeue(conn, run_id, force)
        if found == "moved":
            self._worker.revoke(run_id)
            self._tell()
        elif found == "leased":
            raise Conflict("leased", "A live worker holds this run; only force takes it away.")
        else:
            raise Conflict("not-parked", f"The run is {found or 'unknown'}.")

    async def resume(self, run_id: int) -> None:
        """Return a parked run to pending before its time. Raises Conflict."""
        async with self._pool.acquire() as conn:
            state = await queries.state_of(conn, run_id)
        if state is not RunState.PARKED:
            raise Conflict("not-parked", f"The run is {'unknown' if state is None else state.name.lower()}.")
        await self.requeue(run_id)

    async def cancel(self, run_id: int) -> RunState:
        """Cancel a run: at once when nobody works on it, else asked of its holder (answers RUNNING). Raises Conflict
        when it has ended."""
        async with self._pool.acquire() as conn:
            if await queries.request_cancel(conn, run_id):
                self._worker.cancel(run_id)
                return RunState.RUNNING
        ended = await self._end_unheld(
            run_id, RunState.CANCELLED, "cancelled", lambda run: run["state"] in (RunState.PENDING, RunState.PARKED)
        )
        if ended is None:
            async with self._pool.acquire() as conn:
                if await queries.request_cancel(conn, run_id):  # claimed in between
                    self._worker.cancel(run_id)
                    return RunState.RUNNING
                state = await queries.state_of(conn, run_id)
            word = "unknown" if state is None else state.name.lower()
            raise Conflict("ended", f"The run cannot be cancelled: it is {word}.")
        return RunState.CANCELLED

    async def list_runs(self, **filters: Any) -> list[dict[str, Any]]:
        """As queries.list_runs."""
        async with self._pool.acquire() as conn:
            return await queries.list_runs(conn, **filters)

    async def show(self, run_id: int) -> dict[str, Any] | None:
        """A run with its journal; None when it is unknown."""
        async with self._pool.acquire() as conn:
            return await queries.show(conn, run_id)

    async def events(self, run_id: int, after: int = -1, limit: int = 500) -> list[dict[str, Any]]:
        """Progress events above an index."""
        async with self._pool.acquire() as conn:
            return await queries.events(conn, run_id, after, limit)

    async def why(self, run_id: int) -> list[str]:
        """Why a run does not move, in sentences."""
        async with self._pool.acquire() as conn:
            return await queries.why(conn, run_id, cap=self._settings.tenant_slots, caps=self._registry.caps())

    async def live_runs(self, conn: Conn, subject: Any, workflow: str | None = None) -> list[int]:
        """Runs about a subject that have not ended."""
        return await queries.live_runs(conn, subject, workflow)

    async def sweep(self) -> None:
        """Every maintenance task now, whatever its interval."""
        await self._timers()
        await self._reaper.run()
        await self._sweeps.run(force=True)

    # --- ending runs that nobody holds --------------------------------------------------------------------------

    async def _end_unheld(
        self, run_id: int, state: RunState, code: str, allowed: Callable[[dict[str, Any]], bool | Awaitable[bool]]
    ) -> Outcome | None:
        """Subject first, then the run, then look again: the one order in which a run is ended from outside."""
        enqueued: list[Enqueued] = []
        try:
            async with self._pool.acquire() as conn, conn.transaction():
                seen = await queries.peek(conn, run_id)
                if seen is None:
                    return None
                _, subject = seen
                if subject is not None:
                    await self._subjects.lock(conn, [subject], wait=True)
                run = await queries.lock_run(conn, run_id)
                if run is None:
                    return None
                verdict = allowed(run)
                if not (verdict if isinstance(verdict, bool) else await verdict):
                    return None
                outcome = await self._outcome(run, subject, state, code)
                if subject is not None:
                    new = await self._subjects.settle(conn, [outcome])
                    if new:
                        enqueued = await self.enqueue(conn, new)
                await queries.end_now(conn, run_id, state, code)
        except BaseException:
            self.abandon(enqueued)
            raise
        self.launch(enqueued or ())
        if subject is not None:
            self._subjects.settled([outcome])
        self._ended(outcome)
        async with self._pool.acquire() as conn, conn.transaction():
            await store.end_followers(conn, [f"run:{run_id}"])
        return outcome

    async def _outcome(self, run: dict[str, Any], subject: Any, state: RunState, code: str) -> Outcome:
        found = await self._definition(run["definition"])
        decides = found is not None and found[0].finalize is not None
        return Outcome(
            run_id=run["run_id"],
            workflow=run["workflow"],
            subject=subject,
            state=state,
            verdict=Verdict.FAILED if decides else None,
            code=code,
            input=run["input"],
        )

    async def _fail_lost(self, run_id: int) -> bool:
        async def still_dead(run: dict[str, Any]) -> bool:
            async with self._pool.acquire() as conn:
                return await store.is_dead(conn, run_id, self._settings.ttl)

        return await self._end_unheld(run_id, RunState.FAILED, "worker-lost", still_dead) is not None

    async def _fail_stale(self, conn: Conn, run_id: int) -> None:
        """Settle the subject of an ended run as failed; the run stays as it ended."""
        seen = await queries.peek(conn, run_id)
        if seen is None or seen[1] is None:
            return
        await self._subjects.lock(conn, [seen[1]], wait=True)
        run = await queries.lock_run(conn, run_id)
        if run is None or run["state"] not in TERMINAL:
            return
        outcome = await self._outcome(run, seen[1], RunState.FAILED, "worker-lost")
        if outcome.verdict is not None:
            await self._subjects.settle(conn, [outcome])
            log.error("stale-scan-failed", run=run_id)

    # --- definitions --------------------------------------------------------------------------------------------

    async def _define_all(self) -> None:
        for name in self._registry.workflows:
            self._registry.definition(name)
        for definition in self._registry.definitions():
            await self._define(definition)

    async def _make_known(self, definition: Definition) -> None:
        if definition.fingerprint not in self._defined:
            await self._define(definition)

    async def _define(self, definition: Definition) -> None:
        """In a transaction of its own: a caller's rollback must not take it away."""
        async with self._pool.acquire() as conn:
            order = await store.define(
                conn, definition.fingerprint, definition.workflow, definition.pipeline, definition.dump()
            )
        self._defined[definition.fingerprint] = order
        self._stored[definition.fingerprint] = (definition, order)

    async def _definition(self, fingerprint: str) -> tuple[Definition, int] | None:
        found = self._stored.get(fingerprint)
        if found is None:
            async with self._pool.acquire() as conn:
                row = await store.definition(conn, fingerprint)
            if row is None:
                return None
            found = self._stored[fingerprint] = (Definition.load(row[1], fingerprint), row[0])
        return found

    # --- loops --------------------------------------------------------------------------------------------------

    async def _every(self, name: str, work: Callable[[], Awaitable[float]]) -> None:
        """Call work over and over; it says how many seconds to wait. Errors of the database pause, never end it."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                pause = await work()
            except asyncio.CancelledError:
                raise
            except Exception as error:
                log.warning("maintenance-failed", loop=name, error=type(error).__name__)
                pause = self._settings.database_pause * jitter()
            if name != "timers":
                await asyncio.sleep(pause)
                continue
            self._timer.clear()
            pause = max(0.001, min(pause, self._next_timer - loop.time()))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._timer.wait(), pause)

    def _expect_timer(self, seconds: float) -> None:
        """A run was parked here until then."""
        due = asyncio.get_running_loop().time() + seconds
        if due < self._next_timer:
            self._next_timer = due
            self._timer.set()

    async def _timers(self) -> float:
        loop = asyncio.get_running_loop()
        if self._next_timer > loop.time() and self._timer.is_set():
            return self._settings.poll_most
        self._next_timer = float("inf")
        async with self._pool.acquire() as conn:
            idle = await wake_probes(conn, max(1.0, self._settings.backoff_base * 5))
            woken = await store.wake(conn)
            for dependency in idle:
                woken += await fill(conn, self._insert_filling, dependency, most=1)
        if woken:
            self._worker.nudge()
            if woken > self._worker.free:
                self._notifier.publish("run")
        return 0.0 if woken >= 500 else self._settings.poll_most

    async def _reap(self) -> float:
        if await self._reaper.run():
            self._tell()
        return max(0.05, self._settings.ttl / 3) * jitter()

    async def _sweep(self) -> float:
        await self._sweeps.run()
        return self._settings.sweep * jitter() / 2

    async def _insert_filling(self, conn: Conn, runs: Sequence[NewRun], definitions: Sequence[Definition]) -> None:
        for definition in definitions:
            await self._make_known(definition)
        await store.enqueue(
            conn, runs, [d.lane for d in definitions], [d.fingerprint for d in definitions], [None] * len(runs), None
        )

    async def _enqueue_wanted(self, conn: Conn, runs: Sequence[NewRun]) -> None:
        definitions = [self._registry.definition(run.workflow, run.pipeline) for run in runs]
        await self._insert_filling(conn, runs, definitions)

    def _sweep_table(self) -> list[Sweep]:
        s = self._settings

        async def fills(conn: Conn, cursor: int, ran_at: Any) -> int:
            await fill(conn, self._insert_filling, None, most=500)
            return cursor

        table = [
            Sweep("ranges", pruner.make_ranges, s.sweep),
            Sweep("tenants", sweeps.reactivate, s.sweep),
            Sweep("orphans", sweeps.wake_orphans, s.sweep),
            Sweep("fills", fills, s.sweep),
            Sweep("prune", pruner.prune(s.retention, self._undecided), s.sweep),
            Sweep("drop", pruner.drop_ranges, s.sweep * 10),
        ]
        if self._undecided is not None:
            table.append(Sweep("stale", sweeps.stale_scans(self._undecided, self._fail_stale, s.scan_stale), s.sweep))
        for number, ask in enumerate(self._wanted):
            table.append(Sweep(f"wanted-{number}", sweeps.wanted(ask, self._enqueue_wanted), s.sweep))
        return table
