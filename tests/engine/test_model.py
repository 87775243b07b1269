"""The engine's statements against a small model: claim, park, signal, reap, finish, cancel, in any order.

The model knows for every run its state, who may write it, and what is recorded; every stale write must match nothing.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine
from typing import Any
from uuid import UUID

import asyncpg
import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from processing import queries, store
from processing.machine import TRANSITIONS
from processing.model import Entry, EventRow, Finish, NewRun, Outcome, Parking, RunState, StepRow, StepStatus

State = RunState
KEYS = ("x", "y")
CAP = 2


class Machine(RuleBasedStateMachine):
    dsn = ""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.conn = self.do(asyncpg.connect(self.dsn))
        for table in (
            "workflow_run",
            "workflow_step",
            "run_event",
            "run_journal",
            "tenant_q",
            "signal",
            "worker",
            "gap",
        ):
            self.do(self.conn.execute(f"DELETE FROM {table}"))
        self.states: dict[int, State] = {}
        self.tenants: dict[int, int] = {}
        self.tokens: dict[int, UUID] = {}
        self.waits: dict[int, str | None] = {}
        self.recoveries: dict[int, int] = {}
        self.stale: list[tuple[int, UUID]] = []
        self.recorded: dict[int, set[str]] = {}
        self.signals: set[str] = set()
        self.workers: dict[int, bool] = {}
        self.holder: dict[int, int] = {}
        self.leases: Counter[int] = Counter()
        self.number = 0

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    def in_transaction(self, work: Any) -> Any:
        async def wrapped() -> Any:
            async with self.conn.transaction():
                return await work()

        return self.do(wrapped())

    def teardown(self) -> None:
        self.do(self.conn.close())
        self.loop.close()

    def move(self, run_id: int, to: State) -> None:
        assert (self.states[run_id], to) in TRANSITIONS
        self.states[run_id] = to
        if to is not State.RUNNING and run_id in self.tokens:
            self.stale.append((run_id, self.tokens.pop(run_id)))

    def running(self) -> list[int]:
        return sorted(self.tokens)

    @rule(tenant=st.integers(1, 2), count=st.integers(1, 3))
    def enqueue(self, tenant: int, count: int) -> None:
        runs = [NewRun(f"r{self.number + n}", "w", tenant) for n in range(count)]
        self.number += count
        found = self.in_transaction(
            lambda: store.enqueue(self.conn, runs, [""] * count, ["f"] * count, [None] * count, None)
        )
        for run_id, state in found.values():
            assert state == State.PENDING
            self.states[run_id], self.tenants[run_id] = State.PENDING, tenant
            self.recoveries[run_id], self.recorded[run_id] = 0, set()

    @rule(want=st.integers(1, 4))
    def claim(self, want: int) -> None:
        worker_id = self.do(store.register(self.conn, "w", 3600.0, 4))
        self.workers[worker_id] = True
        leases, passed = self.do(store.claim(self.conn, worker_id, want, CAP, {}))
        assert not passed
        room = {t: CAP - sum(self.tenants[r] == t for r in self.tokens) for t in (1, 2)}
        waiting = {t: sum(self.tenants[r] == t and s is State.PENDING for r, s in self.states.items()) for t in (1, 2)}
        assert len(leases) == min(want, sum(min(max(0, room[t]), waiting[t]) for t in (1, 2)))
        for lease in leases:
            self.move(lease.run_id, State.RUNNING)
            self.tokens[lease.run_id] = lease.token
            self.holder[lease.run_id] = worker_id
            self.leases[lease.run_id] += 1
            assert lease.recoveries == self.recoveries[lease.run_id]

    def entry(self, run_id: int, token: UUID, step: str) -> dict[str, Any]:
        row = StepRow(run_id, step, 1, StepStatus.COMPLETED, "{}", None, 0.0, 0.0)
        return {"run_id": run_id, "token": token, "steps": (row,), "events": ()}

    @rule(data=st.data(), step=st.sampled_from("abc"))
    def record(self, data: st.DataObject, step: str) -> None:
        if self.tokens:
            run_id = data.draw(st.sampled_from(self.running()))
            assert self.do(store.journal(self.conn, [Entry(**self.entry(run_id, self.tokens[run_id], step))])) == {
                run_id
            }
            if step not in self.recorded[run_id]:
                self.recoveries[run_id] = 0
            self.recorded[run_id].add(step)

    @rule(data=st.data(), key=st.sampled_from([None, *KEYS]))
    def park(self, data: st.DataObject, key: str | None) -> None:
        if self.tokens:
            run_id = data.draw(st.sampled_from(self.running()))
            parking = Parking(
                **self.entry(run_id, self.tokens[run_id], "p"), wake=3600.0, deadline=7200.0, reason="t", wait_key=key
            )
            (wake,) = self.in_transaction(lambda: store.park(self.conn, [parking], 1.0)).values()
            self.recorded[run_id].add("p")
            self.waits[run_id] = key
            ready = key in self.signals
            assert (wake is None) == ready
            self.move(run_id, State.PENDING if ready else State.PARKED)

    @rule(data=st.data())
    def hand_back(self, data: st.DataObject) -> None:
        if self.tokens:
            run_id = data.draw(st.sampled_from(self.running()))
            parking = Parking(**self.entry(run_id, self.tokens[run_id], "h"), release=True)
            assert self.do(store.park(self.conn, [parking], 1.0)) == {run_id: None}
            self.recorded[run_id].add("h")
            self.move(run_id, State.PENDING)

    @rule(key=st.sampled_from(KEYS))
    def signal(self, key: str) -> None:
        woken = [r for r, s in self.states.items() if s is State.PARKED and self.waits.get(r) == key]
        assert self.in_transaction(lambda: store.signal(self.conn, key, "{}")) == len(woken)
        self.signals.add(key)
        for run_id in woken:
            self.move(run_id, State.PENDING)

    @rule()
    def timer(self) -> None:
        parked = [r for r, s in self.states.items() if s is State.PARKED]
        self.do(self.conn.execute("UPDATE workflow_run SET wake_at = clock_timestamp() WHERE state = 3"))
        assert self.do(store.wake(self.conn)) == len(parked)
        for run_id in parked:
            self.move(run_id, State.PENDING)

    @rule(data=st.data())
    def worker_dies(self, data: st.DataObject) -> None:
        alive = sorted(w for w, ok in self.workers.items() if ok)
        if alive:
            worker_id = data.draw(st.sampled_from(alive))
            self.workers[worker_id] = False
            self.do(store.resign(self.conn, worker_id))
            lost = [r for r in self.running() if self.holder[r] == worker_id]
            ended = [r for r in lost if self.recoveries[r] >= 2]
            assert self.do(store.worn_out(self.conn, -1e9, 2)) == ended
            assert sorted(self.do(store.reap(self.conn, -1e9, 2))) == sorted(set(lost) - set(ended))
            for run_id in set(lost) - set(ended):
                self.recoveries[run_id] += 1
                self.move(run_id, State.PENDING)
            for run_id in ended:
                self.do(queries.end_now(self.conn, run_id, State.FAILED, "worker-lost"))
                self.move(run_id, State.FAILED)

    @rule(data=st.data(), state=st.sampled_from([State.COMPLETED, State.FAILED]))
    def finish(self, data: st.DataObject, state: State) -> None:
        if self.tokens:
            run_id = data.draw(st.sampled_from(self.running()))
            outcome = Outcome(run_id, "w", None, state, code=None if state is State.COMPLETED else "internal")
            step = f"end{self.leases[run_id]}"
            rows = self.entry(run_id, self.tokens[run_id], step)
            first = self.leases[run_id] == 1 and not self.recorded[run_id]
            rows["events"] = (EventRow(run_id, self.leases[run_id] << 20 | (not first), 0.0, "ended", "{}"),)
            whole = self.do(self.conn.fetchval("SELECT count(*) FROM run_journal"))
            assert self.do(store.finish(self.conn, [Finish(**rows, outcome=outcome, output="{}")])) == {run_id}
            assert self.do(self.conn.fetchval("SELECT count(*) FROM run_journal")) == whole + first
            self.recorded[run_id].add(step)
            self.move(run_id, state)

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        waiting = sorted(r for r, s in self.states.items() if s in (State.PENDING, State.PARKED))
        if waiting:
            run_id = data.draw(st.sampled_from(waiting))
            self.do(queries.end_now(self.conn, run_id, State.CANCELLED, "cancelled"))
            self.move(run_id, State.CANCELLED)

    @rule(data=st.data())
    def retry(self, data: st.DataObject) -> None:
        if self.states:
            run_id = data.draw(st.sampled_from(sorted(self.states)))
            may = self.states[run_id] in (State.FAILED, State.CANCELLED)
            assert self.do(queries.revive(self.conn, run_id)) == may
            if may:
                self.recoveries[run_id] = 0
                self.waits.pop(run_id, None)
                self.move(run_id, State.PENDING)

    @rule(data=st.data(), force=st.booleans())
    def requeue(self, data: st.DataObject, force: bool) -> None:
        if self.states:
            run_id = data.draw(st.sampled_from(sorted(self.states)))
            state = self.states[run_id]
            answer = self.do(queries.requeue(self.conn, run_id, force))
            if state is State.PARKED or (state is State.RUNNING and force):
                assert answer == "moved"
                self.move(run_id, State.PENDING)
            else:
                assert answer != "moved"

    @rule(data=st.data())
    def stale_writes(self, data: st.DataObject) -> None:
        if self.stale:
            run_id, token = data.draw(st.sampled_from(self.stale))
            rows = self.entry(run_id, token, "stale")
            assert self.do(store.journal(self.conn, [Entry(**rows)])) == set()
            assert self.do(store.park(self.conn, [Parking(**rows, wake=1, deadline=1)], 1.0)) == {}
            outcome = Outcome(run_id, "w", None, State.COMPLETED)
            assert self.do(store.finish(self.conn, [Finish(**rows, outcome=outcome, output="{}")])) == set()

    @invariant()
    def the_table_is_the_model(self) -> None:
        rows = self.do(self.conn.fetch("SELECT run_id, state, lease_token, recoveries, tenant FROM workflow_run"))
        assert {row["run_id"]: State(row["state"]) for row in rows} == self.states
        assert {r["run_id"]: UUID(bytes=r["lease_token"].bytes) for r in rows if r["lease_token"]} == self.tokens
        assert {r["run_id"]: r["recoveries"] for r in rows} == self.recoveries
        steps = self.do(self.conn.fetch("SELECT run_id, step_key FROM journal_step"))
        assert len(steps) == sum(map(len, self.recorded.values()))
        assert all(row["step_key"] in self.recorded[row["run_id"]] for row in steps)

    @invariant()
    def whoever_waits_is_looked_at(self) -> None:
        """A tenant with waiting runs is always on."""
        forgotten = self.do(
            self.conn.fetchval(
                "SELECT count(*) FROM workflow_run r JOIN tenant_q q USING (tenant, lane)"
                " WHERE r.state = 1 AND NOT q.active"
            )
        )
        assert forgotten == 0


def test_statements_keep_to_the_model(dsn: str) -> None:
    machine = type("MachineHere", (Machine,), {"dsn": dsn})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=12,
            stateful_step_count=25,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_the_schema_refuses_what_no_state_allows(dsn: str) -> None:
    async def main() -> None:
        conn = await asyncpg.connect(dsn)
        await store.enqueue(conn, [NewRun("a", "w", 1)], [""], ["f"], [None], None)
        for wrong in (
            "state = 2",
            "state = 3",
            "state = 4",
            "state = 5, finished_at = now()",
            "lease_token = gen_random_uuid()",
            "state = 7",
        ):
            with pytest.raises(asyncpg.CheckViolationError):
                await conn.execute(f"UPDATE workflow_run SET {wrong}")
        await conn.close()

    asyncio.run(main())
