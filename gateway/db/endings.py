"""The short way of a run's end: a scanning version becomes ready, and its run ends, in one statement.

``settle_ready`` (migrations/0006) does what ``VersionSubjects.lock`` and ``settle`` and the engine's ``finish`` do
together, for the ends that are almost all of them. Whatever is not as simple is left to those.
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.db import verdicts
from gateway.domain.keys import extension
from gateway.domain.objects import State
from processing import store
from processing.model import Finish, RunState, Verdict
from processing.ports import Conn, Ending

SETTLE = "SELECT * FROM settle_ready(" + ", ".join(f"${n}" for n in range(1, 36)) + ")"
ENDINGS = (Ending.ENDED, Ending.LOST, Ending.LATER, Ending.LEFT)  # by settle_ready's outcome


def simple(finish: Finish) -> bool:
    """Whether the short way may be tried: an upload's first run, with nothing against it and nothing to be made up."""
    outcome = finish.outcome
    scan = outcome.processing.get("scan")
    return (
        outcome.workflow == "post_upload"
        and outcome.verdict is Verdict.READY
        and outcome.state is RunState.COMPLETED
        and outcome.subject is not None
        and outcome.input.get("from", State.SCANNING) == State.SCANNING
        and not outcome.fills
        and not (isinstance(scan, dict) and scan.get("rescan"))
    )


async def end_ready(conn: Conn, finishes: Sequence[Finish], moving: Sequence[str], grace: float) -> dict[int, Ending]:
    """By run id. moving: storage classes whose versions move to another tier once they are ready. grace: of blobs."""
    chosen = sorted(filter(simple, finishes), key=lambda finish: finish.run_id)  # the order in which runs are locked
    if not chosen:
        return {}
    subjects = [finish.outcome.subject for finish in chosen if finish.outcome.subject is not None]
    rows = await conn.fetch(
        SETTLE,
        [subject.bucket_id for subject in subjects],
        [subject.key for subject in subjects],
        [subject.seq for subject in subjects],
        [subject.rnd for subject in subjects],
        [extension(subject.key).encode("utf-8", "surrogateescape") for subject in subjects],
        [finish.outcome.processing for finish in chosen],
        [verdicts.lendable(finish.outcome.code, finish.outcome.processing) for finish in chosen],
        moving,
        float(grace),
        *store.ending_columns(chosen),
    )
    return {row["run_id"]: ENDINGS[row["outcome"]] for row in rows}
