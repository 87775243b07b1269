"""The pool of sandboxed children: what they may not do, and what happens when they do it."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest
import uvloop

from processing import sandbox
from processing.sandbox import Sandbox, SandboxError, SandboxLimits

LIMITS = SandboxLimits(table="tests.activities.hostile_table", children=2, cpu=1, wall=20.0)
Run = Callable[[Callable[[], Coroutine[Any, Any, None]]], None]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop

    def runner(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        before = children()
        with asyncio.Runner(loop_factory=factory) as loop:
            loop.run(asyncio.wait_for(main(), 120))
        assert children() <= before, "a child outlived its pool"

    return runner


def children() -> set[int]:
    return {p.pid for p in psutil.Process().children() if "sandbox_child" in " ".join(p.cmdline())}


async def code_of(call: Coroutine[Any, Any, Any]) -> str:
    with pytest.raises(SandboxError) as failure:
        await call
    assert "secret" not in str(failure.value)
    return failure.value.code


def test_no_process_before_the_first_call_and_one_for_many(run: Run) -> None:
    async def main() -> None:
        pool = Sandbox(LIMITS)
        assert not children()
        pids = set()
        for _ in range(20):
            pids.add((await pool.call("do", data=b"echo")).value["pid"])
        assert len(pids) == 1
        assert pool.counts.started == 1
        await pool.close()

    run(main)


def test_concurrent_small_calls_share_frames_and_keep_their_order(run: Run) -> None:
    async def main() -> None:
        pool = Sandbox(LIMITS)
        datas = [b"echo      " + str(n).encode() for n in range(500)]
        results = await asyncio.gather(*(pool.call("do", data=data) for data in datas))
        assert [result.payload for result in results] == datas
        assert pool.counts.started <= 2
        await pool.close()

    run(main)


def test_small_calls_of_one_turn_share_a_frame_and_a_busy_one_is_waited_for(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "GATHER", 30.0)
    frames: list[int] = []
    exchange = sandbox._Child.exchange

    async def counted(self: Any, batch: Any, most: int) -> Any:
        frames.append(len(batch))
        return await exchange(self, batch, most)

    monkeypatch.setattr(sandbox._Child, "exchange", counted)

    async def main() -> None:
        pool = Sandbox(LIMITS)
        await pool.call("do", data=b"echo")
        first = [asyncio.ensure_future(pool.call("do", data=b"echo")) for _ in range(5)]
        while len(frames) < 2:
            await asyncio.sleep(0)
        second = [asyncio.ensure_future(pool.call("do", data=b"echo")) for _ in range(3)]
        await asyncio.gather(*first, *second)
        assert frames == [1, 5, 3] and pool.counts.started == 1
        await pool.close()

    run(main)


def test_a_frame_that_takes_long_is_not_waited_for(run: Run) -> None:
    async def main() -> None:
        pool = Sandbox(LIMITS)
        await pool.call("do", data=b"echo")
        slow = asyncio.ensure_future(code_of(pool.call("do", data=b"hang", wall=10.0)))
        while not any(job.data == b"hang" for batch in pool._busy.values() for job in batch):
            await asyncio.sleep(0)
        async with asyncio.timeout(8.0):
            assert (await pool.call("do", data=b"echo")).payload == b"echo"
        assert not slow.done()
        await pool.close()
        assert await slow == "killed"

    run(main)


def test_a_hanging_content_holds_up_its_neighbours_for_a_moment_only(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "SHARED", 0.3)

    async def main() -> None:
        pool = Sandbox(LIMITS)
        await pool.call("do", data=b"echo")
        slow = asyncio.ensure_future(code_of(pool.call("do", data=b"hang", wall=3600.0)))
        good = [asyncio.ensure_future(pool.call("do", data=b"echo", wall=3600.0)) for _ in range(5)]
        assert all(result.payload == b"echo" for result in await asyncio.gather(*good))
        assert not slow.done()
        await pool.close()
        assert await slow == "killed"

    run(main)


CONTENT_FAULTS = {
    b"die": "killed",
    b"spin": "killed",  # by the limit of CPU time
    b"memory": "memory",
    b"recurse": "too-complex",
    b"raise": "failed",
    b"word": "too-complex",
    b"fork": "failed",
    b"thread": "failed",
}


@pytest.mark.parametrize("data", CONTENT_FAULTS)
def test_a_bad_content_fails_alone(run: Run, data: bytes) -> None:
    async def main() -> None:
        pool = Sandbox(LIMITS)
        bad = [asyncio.ensure_future(code_of(pool.call("do", data=data)))]
        good = [asyncio.ensure_future(pool.call("do", data=b"echo")) for _ in range(20)]
        assert await bad[0] == CONTENT_FAULTS[data]
        assert all(result.payload == b"echo" for result in await asyncio.gather(*good))
        assert (await pool.call("do", data=b"echo")).payload == b"echo"
        await pool.close()

    run(main)


def test_a_hanging_content_is_killed_in_time(run: Run) -> None:
    async def main() -> None:
        pool = Sandbox(replace(LIMITS, children=1))
        await pool.call("do", data=b"echo")
        assert await code_of(pool.call("do", data=b"hang", wall=0.3)) == "timeout"
        assert (await pool.call("do", data=b"echo")).payload == b"echo"
        assert pool.counts.started >= 2
        await pool.close()

    run(main)


def test_a_child_killed_from_outside_costs_nobody_a_call(run: Run) -> None:
    async def main() -> None:
        pool = Sandbox(LIMITS)
        for _ in range(3):
            os.kill((await pool.call("do", data=b"echo")).value["pid"], 9)
        assert (await pool.call("do", data=b"echo")).payload == b"echo"
        await pool.close()

    run(main)


def test_heavy_calls_leave_a_child_free(run: Run) -> None:
    async def main() -> None:
        pool = Sandbox(LIMITS)
        slow = [asyncio.ensure_future(pool.call("do", data=b"hang      " + bytes(1 << 17))) for _ in range(4)]
        assert (await pool.call("do", data=b"echo")).payload == b"echo"
        for task in slow:
            task.cancel()
        await asyncio.gather(*slow, return_exceptions=True)
        assert (await pool.call("do", data=b"echo      " + bytes(1 << 17))).payload[:4] == b"echo"
        await pool.close()

    run(main)


async def chunks(*parts: bytes, error: Exception | None = None) -> AsyncIterator[bytes]:
    for part in parts:
        yield part
    if error is not None:
        raise error


def test_streamed_input(run: Run) -> None:
    async def main() -> None:
        pool = Sandbox(LIMITS)
        result = await pool.call("do", data=chunks(b"echo      ", bytes(1 << 20), b"end"), length=10 + (1 << 20) + 3)
        assert result.payload == b"echo      " + bytes(1 << 20) + b"end"
        assert await code_of(pool.call("do", data=chunks(b"echo"), length=9)) == "corrupt-source"
        assert await code_of(pool.call("do", data=chunks(b"echo" * 9), length=9)) == "corrupt-source"
        with pytest.raises(TimeoutError, match="mine"):
            await pool.call("do", data=chunks(b"ec", error=TimeoutError("mine")), length=4)
        assert (await pool.call("do", data=b"echo")).payload == b"echo"
        await pool.close()

    run(main)


def test_an_answer_over_the_limit_counts_as_a_takeover(run: Run) -> None:
    async def main() -> None:
        pool = Sandbox(replace(LIMITS, reply=1000))
        assert await code_of(pool.call("do", data=b"big")) == "killed"
        await pool.close()

    run(main)


def test_children_are_replaced_after_a_while(run: Run) -> None:
    async def main() -> None:
        pool = Sandbox(replace(LIMITS, children=1, jobs=3))
        pids = {(await pool.call("do", data=b"echo")).value["pid"] for _ in range(9)}
        assert len(pids) == 3
        await pool.close()

    run(main)


def test_what_a_child_cannot_reach(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        pool = Sandbox(LIMITS)
        seen = (await pool.call("do", data=b"environ")).value
        assert not [name for name in seen["names"] if "SLUICE" in name or "DATABASE" in name]
        assert seen["uid"] != 0
        assert seen["files"] < 10
        if pool.counts.network == "none":
            with socket.socket() as listener:
                listener.bind(("127.0.0.1", 0))
                listener.listen()
                port = listener.getsockname()[1]
                assert await code_of(pool.call("do", {"port": port}, b"connect")) == "failed"
        target = tmp_path / "file"
        tmp_path.chmod(0o777)
        with suppress(SandboxError):
            await pool.call("do", {"path": str(target)}, b"write")
        assert not target.exists() or target.stat().st_size == 0
        await pool.close()

    monkeypatch.setenv("SLUICE_ROOT_SECRET_KEY", "secret")
    monkeypatch.setenv("DATABASE_URL", "secret")
    run(main)


def test_a_closed_pool_says_so(run: Run) -> None:
    async def main() -> None:
        pool = Sandbox(LIMITS)
        waiting = asyncio.ensure_future(pool.call("do", data=b"hang"))
        await asyncio.sleep(0)
        await pool.close()
        with pytest.raises(SandboxError):
            await waiting
        assert await code_of(pool.call("do", data=b"echo")) == "start"

    run(main)


def test_a_child_that_does_not_start(run: Run) -> None:
    async def main() -> None:
        pool = Sandbox(replace(LIMITS, table="no.such.module"))
        with pytest.raises(SandboxError, match=r"does not start: ModuleNotFoundError"):
            await pool.call("do", data=b"echo")
        await pool.close()

    run(main)
