"""The engine's births as stand-ins for the engine have them: runs are rows that no worker takes."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from processing.births import Prepared, Wish
from processing.model import Enqueued, NewRun
from processing.ports import Content


class Births:
    """engine remembers the runs. claimed: what the answers say of each."""

    def __init__(self, engine: Any, claimed: bool) -> None:
        self._engine, self._claimed = engine, claimed
        self.contents: dict[int, Content] = {}  # handed to runs

    async def prepare(self, wishes: Sequence[Wish]) -> Prepared:
        definition: Any = SimpleNamespace(lane="", fingerprint="definition")
        return Prepared([definition] * len(wishes), [None] * len(wishes), None, 0)

    def release(self, prepared: Prepared) -> None:
        pass

    def admit(
        self,
        prepared: Prepared,
        runs: Sequence[NewRun | None],
        found: Sequence[tuple[int, int | None]],
        contents: Sequence[Content | None] | None = None,
    ) -> list[Enqueued]:
        made = [(number, run) for run, (number, _) in zip(runs, found, strict=True) if run is not None]
        self._engine.runs |= dict(made)
        self.contents |= {
            number: content for (number, _), content in zip(found, contents or (), strict=False) if content is not None
        }
        return [Enqueued(number, True, self._claimed) for number, _ in made]
