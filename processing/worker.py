"""Claims runs while slots are free, executes them, and writes how their leases end."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from uuid import UUID

import structlog
from asyncpg import Pool

from processing import store
from processing.courtesy import Courtesy, Crowd
from processing.execution import Execution, Interrupt, LeaseLost
from processing.fresh import Fresh
from processing.journal import OUTAGES, Committer, Later
from processing.lease import WorkerLease
from processing.line import Line
from processing.model import Enqueued, Entry, Finish, Lease, NewRun, Outcome, Parking, Subject
from processing.ports import Conn, Ending
from processing.surroundings import Surroundings

log = structlog.get_logger("sluice.engine")
ISOLATED_AT_ONCE = 2  # children for runs whose workers were lost; each is a whole interpreter

FOLLOW = 0.1  # seconds between looks for the followers of ended runs, all ends in between at once
WATCH = 0.25  # seconds between looks at stalled steps, unwritten events, the lease
EVENTS_EVERY = 4  # looks between writes of progress
UNSEEN = 1.0  # seconds into a lease before its progress is written at all: most runs have ended by then

Follow = Callable[[Conn, Sequence[NewRun]], Awaitable[list[Enqueued]]]


class Worker:
    """The runs of one process. follow enqueues what settling a subject asks for; launch starts those."""

    def __init__(
        self,
        pool: Pool,
        around: Surroundings,
        lease: WorkerLease,
        *,
        follow: Follow,
        launch: Callable[[Sequence[Enqueued]], None],
        abandon: Callable[[Sequence[Enqueued]], None],
        on_end: Callable[[Outcome], None],
        on_timer: Callable[[float], None],
    ) -> None:
        self._pool = pool
        self._around = around
        self._settings = around.settings
        self._lease = lease
        self._follow = follow
        self._launch = launch
        self._abandon = abandon
        self._on_end = on_end
        self._on_timer = on_timer
        s = self._settings
        make = {"flights": s.flights, "most": s.batch, "pause": s.database_pause}
        self._journal: Committer[Entry, bool] = Committer(self._write_journal, **make)  # type: ignore[arg-type]
        self._parks: Committer[Parking, bool] = Committer(self._write_parks, **make)  # type: ignore[arg-type]
        self._ends: Committer[Finish, bool] = Committer(self._write_ends, **make)  # type: ignore[arg-type]
        self.held: dict[int, Execution] = {}
        self.fresh = Fresh(around.monotonic)
        self._courtesy = Courtesy(self._begin, asyncio.get_running_loop, crowd=Crowd(s.crowd))
        self.reserved: dict[int, Lease] = {}  # born claimed, their transactions not known to have committed
        self.promised = 0  # slots asked for by enqueues whose statement is under way
        self._per_tenant: Counter[int] = Counter()
        self._strays: set[int] = set()
        self.line = Line(
            pool, around, lease, self._courtesy, free=lambda: self.free, start=self._open, spawn=self._spawn
        )
        self._stopping = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._loops: list[asyncio.Task[None]] = []
        self._led: list[str] = []  # keys of ended runs whose followers are to be woken
        self._waking = False
        self.isolated: set[int] = set()
        self._children = asyncio.Semaphore(ISOLATED_AT_ONCE)
        self._isolating: set[asyncio.Task[None]] = set()

    # --- slots ---

    @property
    def free(self) -> int:
        taken = len(self.held) + len(self.reserved) + len(self.isolated) + self.promised
        return self._settings.slots - taken

    def reserve(self, tenant: int) -> bool:
        """Whether a run of this tenant may be born claimed here: a slot is free and the tenant below its share."""
        return (
            self._settings.takes
            and not self._stopping
            and not self._courtesy.crowded
            and self.free > 0
            and self._lease.valid
            and self._per_tenant[tenant] < self._settings.tenant_slots
        )

    def expect(self, lease: Lease) -> None:
        """A born-claimed run, before its transaction commits."""
        self.reserved[lease.run_id] = lease
        self._per_tenant[lease.tenant] += 1

    def forget(self, run_id: int) -> None:
        """A born-claimed run whose transaction did not commit, or whose lease was taken away before it began."""
        lease = self.reserved.pop(run_id, None)
        if lease is not None:
            self._count_out(lease)

    def begin(self, run_ids: Sequence[int]) -> None:
        """Born-claimed runs, after the commit: now, or soon."""
        if self._stopping:
            self._begin(run_ids)
        else:
            self._courtesy.arrive(run_ids)

    def hurry(self, names: Iterable[tuple[int, int]]) -> None:
        """Somebody waits for the runs about these subjects (bucket id, seq)."""
        if self._courtesy:
            wanted = set(names)
            about = (lease.subject for lease in self.reserved.values() if lease.subject is not None)
            if any((subject.bucket_id, subject.seq) in wanted for subject in about):
                self._courtesy.hurry()

    def hurry_run(self, run_id: int) -> None:
        if run_id in self.reserved:
            self._courtesy.hurry()

    def want(self, run_ids: Iterable[int]) -> None:
        """Somebody waits for these runs, which stand in line: claim them past it."""
        if self._settings.takes and not self._stopping:
            self.line.want(run_ids)

    def stored(self, uploads: int) -> None:
        """So many uploads share a flight."""
        self._courtesy.stored(uploads)

    def _begin(self, run_ids: Sequence[int]) -> None:
        for run_id in run_ids:
            lease = self.reserved.pop(run_id, None)
            if lease is not None:
                self._count_out(lease)
                self._start(Execution(lease, self._around, facts=self.fresh.take(run_id)))

    def _count_out(self, lease: Lease) -> None:
        self._per_tenant[lease.tenant] -= 1
        if self._per_tenant[lease.tenant] <= 0:
            del self._per_tenant[lease.tenant]
        self.line.room.set()

    # --- life ---

    def start_watch(self) -> None:
        """Only what keeps a lease and its runs honest, no claiming."""
        self._loops.append(asyncio.get_running_loop().create_task(self._watch()))

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self.start_watch()
        if self._settings.takes:
            self._loops.append(loop.create_task(self.line.claims()))

    def nudge(self) -> None:
        """There may be work."""
        self.line.work.set()

    async def drain(self, patience: float) -> None:
        """Stop claiming, let runs finish for so many seconds, hand the others back."""
        self._stopping = True
        self._courtesy.hurry()
        for task in self._loops[1:]:
            task.cancel()
        for task in set(self._isolating):
            task.cancel()  # children drain as we do; who waits for one, goes back at once
        if self._tasks and patience > 0:
            await asyncio.wait(set(self._tasks), timeout=patience)
        for execution in list(self.held.values()):
            execution.interrupt(Interrupt.DRAIN)
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=5.0)
        for committer in (self._journal, self._parks, self._ends):
            committer.open = False
        for task in set(self._tasks):
            task.cancel()
        for task in self._loops:
            task.cancel()
        await asyncio.gather(*self._loops, *self._tasks, return_exceptions=True)
        self._courtesy.close()

    def lose_all(self) -> None:
        """The lease is gone, or cannot be believed in."""
        for execution in list(self.held.values()):
            execution.interrupt(Interrupt.LOST)
        self.reserved.clear()
        self._per_tenant.clear()
        for execution in self.held.values():
            self._per_tenant[execution.lease.tenant] += 1

    def beat(self, held: Sequence[int], cancelled: Sequence[int]) -> None:
        """What the database said with the last renewal: the runs it thinks are here, and those to cancel."""
        for run_id in cancelled:
            self.cancel(run_id)
        known = self.held.keys() | self.reserved.keys() | self.isolated
        strays = set(held) - known
        lasting = strays & self._strays  # seen twice: not one that is just being claimed or ended
        self._strays = strays - lasting
        if lasting:
            self._spawn(self._release(sorted(lasting)))

    def cancel(self, run_id: int) -> bool:
        execution = self.held.get(run_id)
        if execution is not None:
            execution.interrupt(Interrupt.CANCEL)
        return execution is not None

    def revoke(self, run_id: int) -> None:
        """The lease of one run was taken away."""
        execution = self.held.get(run_id)
        if execution is not None:
            execution.interrupt(Interrupt.LOST)
        else:
            self.forget(run_id)

    async def _release(self, run_ids: Sequence[int]) -> None:
        async with self._pool.acquire() as conn:
            freed = await store.release_strays(conn, self._lease.worker_id, run_ids)
        log.warning("strays-handed-back", runs=freed)
        self.nudge()

    # --- claiming ---

    async def _open(self, conn: Conn, leases: Sequence[Lease]) -> None:
        """Start claimed runs, with the journals of those that ran before."""
        again = [lease.run_id for lease in leases if lease.epoch > 1 or "fills" in lease.input]
        waited = [lease.run_id for lease in leases if lease.waited]
        try:
            journals = await store.history(conn, again) if again else {}
            payloads = await store.payloads(conn, waited) if waited else {}
            sources = {
                lease.run_id: int(lease.input["of"])
                for lease in leases
                if "fills" in lease.input and lease.input.get("of")
            }
            earlier = await store.history(conn, list(sources.values())) if sources else {}
        except BaseException:
            # Claimed, but not understood: the heartbeat's answer shows them as strays and they go back.
            raise
        for lease in leases:
            journal = journals.get(lease.run_id, [])
            source = sources.get(lease.run_id)
            if source is not None:
                left_out = set(lease.input["fills"])
                journal = [row for row in earlier[source] if row.step not in left_out and row.output] + journal
            if lease.recoveries > 0 and self._settings.isolate:
                self.isolated.add(lease.run_id)
                task = self._spawn(self._isolate(lease))
                self._isolating.add(task)
                task.add_done_callback(self._isolating.discard)
            else:
                facts = self.fresh.take(lease.run_id) if lease.epoch == 1 else None
                self._start(Execution(lease, self._around, journal, payloads.get(lease.run_id), facts))

    async def take(self, run_id: int, token: UUID | None) -> Execution | None:
        """Claim one run by id and start it."""
        async with self._pool.acquire() as conn:
            lease = await store.take(conn, run_id, self._lease.worker_id, token)
            if lease is None:
                return None
            journals = await store.history(conn, [run_id])
            payloads = await store.payloads(conn, [run_id]) if lease.waited else {}
        execution = Execution(lease, self._around, journals[run_id], payloads.get(run_id))
        self._start(execution)
        return execution

    # --- executing ---

    def _spawn(self, work: Awaitable[None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("engine-task-failed", error=type(error).__name__, exc_info=error)

    def _start(self, execution: Execution) -> None:
        self.held[execution.lease.run_id] = execution
        self._per_tenant[execution.lease.tenant] += 1
        execution.task = self._spawn(self._execute(execution))

    async def _execute(self, execution: Execution) -> None:
        lease = execution.lease
        self._around.hooks.point("started")
        try:
            ending = await self._ending(execution)
            if isinstance(ending, Finish):
                await self._finish(execution, ending)
            else:
                await self._parks.submit(ending)
        except LeaseLost:
            log.warning("lease-lost", run=lease.run_id, workflow=lease.workflow)
        finally:
            if self.held.get(lease.run_id) is execution:
                del self.held[lease.run_id]
            self._count_out(lease)

    async def _ending(self, execution: Execution) -> Finish | Parking:
        try:
            return await execution.run()
        except (LeaseLost, asyncio.CancelledError):
            raise
        except Exception as error:
            # Not the activity's doing (that is caught closer): the journal or the engine. Try again later.
            log.error("execution-failed", run=execution.lease.run_id, error=type(error).__name__, exc_info=True)
            return execution.put_off()

    async def _finish(self, execution: Execution, ending: Finish) -> None:
        outcome = ending.outcome
        try:
            ended = await self._ends.submit(ending)
        except OUTAGES:
            raise LeaseLost from None
        except Exception as error:
            # Settling failed for this run alone. It keeps what it recorded and ends later.
            log.error("finish-failed", run=outcome.run_id, error=type(error).__name__, exc_info=True)
            await self._parks.submit(execution.put_off())
            return
        if ended:
            hooks = self._around.hooks
            state, seconds = outcome.state.name.lower(), execution.lease.age + execution.seconds
            hooks.run(outcome.workflow, state, seconds)
            execution.log.info(
                "run",
                workflow=outcome.workflow,
                state=state,
                verdict=outcome.verdict,
                code=outcome.code,
                seconds=round(seconds, 4),
                steps=execution.told,
            )
            if outcome.verdict is not None:
                hooks.verdict(outcome.verdict, outcome.code or "")

    async def _isolate(self, lease: Lease) -> None:
        """Execute a run whose workers were lost in a child of its own, which takes over the lease by its token."""
        command = [part.replace("{run}", str(lease.run_id)) for part in self._settings.isolate]
        environment = dict(os.environ, SLUICE_RUN_TOKEN=str(lease.token))
        log.info("run-isolated", run=lease.run_id, recoveries=lease.recoveries)
        try:
            async with self._children:  # this process's heartbeat keeps the leases of those that wait
                child = await asyncio.create_subprocess_exec(*command, env=environment)
                try:
                    await child.wait()
                except asyncio.CancelledError:
                    child.terminate()
                    try:
                        await child.wait()
                    except asyncio.CancelledError:
                        child.kill()
                    raise
        except OSError as error:
            log.error("isolation-failed", run=lease.run_id, error=type(error).__name__)
        finally:
            # Nothing to do when the child took the lease; else this hands the run back, a pause later.
            await self._parks.submit(Execution(lease, self._around).put_off())
            self.isolated.discard(lease.run_id)
            self.line.room.set()

    async def flush(self, entry: Entry) -> bool:
        """Through the group committer; False when the lease is lost."""
        return await self._journal.submit(entry)

    # --- writing, by batches ---

    async def _write_journal(self, entries: Sequence[Entry], patient: bool) -> list[bool | Exception]:
        async with self._pool.acquire() as conn:
            mine = await store.journal(conn, entries)
        return [entry.run_id in mine for entry in entries]

    async def _write_parks(self, parkings: Sequence[Parking], patient: bool) -> list[bool | Exception]:
        hooks = self._around.hooks
        hooks.point("parking")
        async with self._pool.acquire() as conn:
            if any(p.wait_key is not None for p in parkings):
                async with conn.transaction():
                    parked = await store.park(conn, parkings, self._settings.wake_spread)
            else:
                parked = await store.park(conn, parkings, self._settings.wake_spread)
        hooks.point("parked")
        for wake in parked.values():
            if wake is None:
                self.nudge()
            else:
                self._on_timer(wake)
        return [p.run_id in parked for p in parkings]

    async def _write_ends(self, finishes: Sequence[Finish], patient: bool) -> list[bool | Exception]:
        """By the short way what the subjects' owner can end so, the rest in one transaction of the engine."""
        hooks, subjects = self._around.hooks, self._around.subjects
        hooks.point("finishing")
        results: dict[int, bool | Exception] = {}
        async with self._pool.acquire() as conn:
            endings = await subjects.end_ready(conn, finishes)
            results |= {run: _result(ending) for run, ending in endings.items() if ending is not Ending.LEFT}
            ended = [f.outcome for f in finishes if results.get(f.run_id) is True]
            rest = [f for f in finishes if f.run_id not in results]
            if ended:
                hooks.point("finished")
                subjects.settled(ended)
                self._over(ended, ())
        if rest:
            results |= await self._end_together(rest, patient)
        return [results[f.run_id] for f in finishes]

    async def _end_together(self, finishes: Sequence[Finish], patient: bool) -> dict[int, bool | Exception]:
        """One transaction: subjects locked, runs locked and looked at again, subjects settled, runs and journals
        written, followers enqueued."""
        hooks, subjects = self._around.hooks, self._around.subjects
        enqueued: list[Enqueued] = []
        results: dict[int, bool | Exception] = {}
        settled: list[Outcome] = []
        about: list[Outcome] = []
        try:
            async with self._pool.acquire() as conn, conn.transaction():
                wanted = _subjects(finishes)
                locked: set[Subject] = set()
                if wanted:
                    locked = await subjects.lock(conn, wanted, wait=patient)
                ready = [f for f in finishes if f.outcome.subject is None or f.outcome.subject in locked]
                for f in finishes:
                    results[f.run_id] = False
                for late in finishes:
                    if late.outcome.subject is not None and late.outcome.subject not in locked:
                        results[late.run_id] = Later()
                mine = await store.held(conn, ready) if ready else set()
                ready = [f for f in ready if f.run_id in mine]
                if ready:
                    about = [f.outcome for f in ready if f.outcome.subject is not None]
                    new = await subjects.settle(conn, about) if about else []
                    hooks.point("settled")
                    ended = await store.finish(conn, ready)
                    # Settling may have superseded some of these very runs: they ended there.
                    settled = [f.outcome for f in ready if f.run_id in ended]
                    for run_id in ended:
                        results[run_id] = True
                    if new:
                        enqueued = await self._follow(conn, new)
                    hooks.point("ending")
        except BaseException:
            self._abandon(enqueued)
            raise
        hooks.point("finished")
        if about:
            subjects.settled(about)
        if settled:
            self._over(settled, enqueued)
        return results

    def _over(self, outcomes: Sequence[Outcome], enqueued: Sequence[Enqueued]) -> None:
        """These runs have ended for good."""
        if enqueued:
            self._launch(enqueued)
        for outcome in outcomes:
            self._on_end(outcome)
        self._led += [run_key(outcome.run_id) for outcome in outcomes]
        if not self._waking:
            self._waking = True
            self._spawn(self._wake_followers())

    async def _wake_followers(self) -> None:
        """Who waits for runs that have ended, in a transaction of its own; a sweep makes up for a crash in between."""
        try:
            while self._led:
                keys, self._led = self._led, []
                async with self._pool.acquire() as conn:
                    woken = await store.end_followers(conn, keys)
                if woken:
                    self._launch(())
                await asyncio.sleep(FOLLOW)
        finally:
            self._waking = False

    # --- watching ---

    async def _watch(self) -> None:
        looks = 0
        while True:
            await asyncio.sleep(WATCH)
            looks += 1
            self._lease.tick()
            self.fresh.expire()
            if self.held and not self._lease.valid:
                log.warning("lease-unconfirmed", runs=len(self.held))
                self.lose_all()
                continue
            for execution in list(self.held.values()):
                if execution.stalled():
                    log.warning("step-idle", run=execution.lease.run_id)
                    execution.interrupt(Interrupt.IDLE)
                elif looks % EVENTS_EVERY == 0 and execution.context is not None and execution.seconds > UNSEEN:
                    entry = execution.unflushed()
                    if entry is not None:
                        self._spawn(self._write_progress(execution, entry))

    async def _write_progress(self, execution: Execution, entry: Entry) -> None:
        if not await self.flush(entry):
            execution.interrupt(Interrupt.LOST)


def _result(ending: Ending) -> bool | Exception:
    return Later() if ending is Ending.LATER else ending is Ending.ENDED


def run_key(run_id: int) -> str:
    """The wait key of a run's end."""
    return f"run:{run_id}"


def _subjects(finishes: Iterable[Finish]) -> list[Subject]:
    return sorted({f.outcome.subject for f in finishes if f.outcome.subject is not None})
