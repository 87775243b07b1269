"""Steps that leave a mark outside: three lines of a file for each run, so that a step done twice can be seen."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from processing.context import Context, Item
from processing.registry import activity

VARIABLE = "SLUICETEST_MARKS"
STEPS = ("mark_one", "mark_two", "mark_three")


def _mark(item: Item) -> Mapping[str, Any]:
    fd = os.open(os.environ[VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(fd, f"{item.run_id} {STEPS.index(item.step)} {os.getpid()}\n".encode())
    os.close(fd)
    return {"pid": os.getpid()}


@activity("mark_one")
async def mark_one(item: Item, ctx: Context) -> Mapping[str, Any]:
    return _mark(item)


@activity("mark_two")
async def mark_two(item: Item, ctx: Context) -> Mapping[str, Any]:
    return _mark(item)


@activity("mark_three")
async def mark_three(item: Item, ctx: Context) -> Mapping[str, Any]:
    return _mark(item)


def repeated(marks: Path, stopped: frozenset[int] = frozenset()) -> list[str]:
    """Runs of which a step was done after the next one had begun: it had been journaled by then.

    A process that was stopped may leave one mark before it learns that its lease is over: those do not count.
    """
    reached: dict[int, int] = {}
    found = []
    for line in marks.read_text().splitlines() if marks.exists() else ():
        run, step, pid = map(int, line.split())
        if pid in stopped:
            continue
        if step < reached.get(run, 0):
            found.append(f"run {run} did step {step} in process {pid} after step {reached[run]}")
        reached[run] = max(step, reached.get(run, 0))
    return found
