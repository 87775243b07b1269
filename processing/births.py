"""How runs come into being: inserted in the transaction of whoever wants them, and, while this process has room, born
leased to it, so that nobody has to claim them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from uuid import UUID, uuid4

from processing import store
from processing.lease import WorkerLease
from processing.model import Enqueued, Lease, NewRun, RunState
from processing.ports import Conn, Content
from processing.registry import Definition, Registry
from processing.worker import Worker


@dataclass(frozen=True, slots=True)
class Wish:
    """A run that is about to be inserted. now: it may start at once."""

    workflow: str
    pipeline: str
    tenant: int
    now: bool = True


@dataclass(frozen=True, slots=True)
class Prepared:
    """What an inserting statement needs for each wish. It ends with ``admit`` or ``release``, whatever happens."""

    definitions: Sequence[Definition]
    tokens: Sequence[UUID | None]  # of those that this process has room for
    worker_id: int | None
    promised: int


class Births:
    """tell: say that runs wait. define: make sure that a definition is stored."""

    def __init__(
        self,
        worker: Worker,
        lease: WorkerLease,
        registry: Registry,
        *,
        define: Callable[[Definition], Awaitable[None]],
        tell: Callable[[], None],
    ) -> None:
        self._worker, self._lease, self._registry = worker, lease, registry
        self._define, self._tell = define, tell

    async def enqueue(self, conn: Conn, runs: Sequence[NewRun]) -> list[Enqueued]:
        """Insert runs in the caller's transaction, one statement. Every answer must be passed to ``launch`` after the
        commit, or to ``abandon`` when there was none. Raises ConfigurationError, store.NotJson."""
        first: dict[str, int] = {}  # a key given twice counts once
        for position, run in enumerate(runs):
            first.setdefault(run.run_key, position)
        kept = [runs[position] for position in first.values()]
        prepared = await self.prepare([Wish(run.workflow, run.pipeline, run.tenant, run.delay <= 0) for run in kept])
        try:
            found = await store.enqueue(
                conn,
                kept,
                [definition.lane for definition in prepared.definitions],
                [definition.fingerprint for definition in prepared.definitions],
                prepared.tokens,
                prepared.worker_id,
            )
        except BaseException:
            self.release(prepared)
            raise
        admitted = self.admit(prepared, kept, [found[run.run_key] for run in kept])
        by_key = {run.run_key: each for run, each in zip(kept, admitted, strict=True)}
        return [
            by_key[run.run_key]
            if first[run.run_key] == position
            else Enqueued(by_key[run.run_key].run_id, created=False, claimed=False)
            for position, run in enumerate(runs)
        ]

    async def prepare(self, wishes: Sequence[Wish]) -> Prepared:
        """Before the insert: definitions are stored, and slots promised. Raises ConfigurationError."""
        definitions = [self._registry.definition(wish.workflow, wish.pipeline) for wish in wishes]
        for definition in {each.fingerprint: each for each in definitions}.values():
            await self._define(definition)
        worker = self._worker
        room = worker.free
        tokens: list[UUID | None] = []
        for wish in wishes:
            claims = room > 0 and wish.now and worker.reserve(wish.tenant)
            room -= claims
            tokens.append(uuid4() if claims else None)
        promised = sum(token is not None for token in tokens)
        worker.promised += promised
        return Prepared(definitions, tokens, self._lease.worker_id if promised else None, promised)

    def release(self, prepared: Prepared) -> None:
        """Nothing was inserted."""
        self._worker.promised -= prepared.promised

    def admit(
        self,
        prepared: Prepared,
        runs: Sequence[NewRun | None],
        found: Sequence[tuple[int, int | None]],
        contents: Sequence[Content | None] | None = None,
    ) -> list[Enqueued]:
        """After the insert: found holds run_id, and the state of what is new. runs: as they were inserted; None for a
        wish that was not. contents: what they are about, where that is known and committed. The answers go to
        ``launch`` or ``abandon``."""
        self._worker.promised -= prepared.promised
        answers = []
        for run, (run_id, state), token, definition in zip(
            runs, found, prepared.tokens, prepared.definitions, strict=True
        ):
            if run is None:
                continue
            claimed = state == RunState.RUNNING and token is not None
            if claimed and token is not None:
                self._worker.expect(_born(run_id, token, run, definition))
            answers.append(Enqueued(run_id, created=state is not None, claimed=claimed))
        if contents is not None:
            self._worker.stored(len(contents))  # uploads, by one statement
        for (run_id, state), content in zip(found, contents or (), strict=False):
            if content is not None and state is not None:
                self._worker.fresh.keep(run_id, content)
        return answers

    def launch(self, enqueued: Sequence[Enqueued]) -> None:
        """After the commit: start the runs claimed here, and tell the processes of the others."""
        claimed = [each.run_id for each in enqueued if each.claimed]
        if claimed:
            self._worker.begin(claimed)
        if not enqueued or any(each.created and not each.claimed for each in enqueued):
            self._tell()

    def abandon(self, enqueued: Sequence[Enqueued]) -> None:
        """After a rollback: give reserved slots back."""
        for each in enqueued:
            if each.claimed:
                self._worker.forget(each.run_id)


def _born(run_id: int, token: UUID, run: NewRun, definition: Definition) -> Lease:
    """The lease of a run inserted already running."""
    return Lease(
        run_id=run_id,
        token=token,
        tenant=run.tenant,
        lane=definition.lane,
        workflow=run.workflow,
        pipeline=run.pipeline,
        definition=definition.fingerprint,
        subject=run.subject,
        input=store.load(store.dump(run.input)),
        epoch=1,
    )
