"""The runs that the gateway enqueues, with their deterministic keys."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from gateway.domain.objects import Bucket, State, VersionRef
from processing.model import NewRun, Subject


def subject(ref: VersionRef) -> Subject:
    """A version as the engine names it."""
    return Subject(ref.bucket_id, ref.key, ref.seq, ref.rnd)


def ref_of(subject: Subject) -> VersionRef:
    return VersionRef(subject.bucket_id, subject.key, subject.seq, subject.rnd)


@dataclass(frozen=True, slots=True)
class Chosen:
    """The pipeline that decides about a version. fingerprint: what its verdicts depend on beside the content, or None
    when they are lent to nobody (not known now, or an activity does not say what it looks at)."""

    pipeline: str
    fingerprint: str | None


Choose = Callable[[Bucket, bytes, str | None], Chosen]  # of bucket, key, declared type


def post_upload(tenant: int, ref: VersionRef, digest: str, pipeline: str, generation: int = 1) -> NewRun:
    """Scan, extract and finalize one version; reprocessing takes the next generation."""
    return NewRun(
        f"post:{ref.version_id}:{digest}:{generation}",
        "post_upload",
        tenant,
        subject(ref),
        {"generation": generation},
        pipeline=pipeline,
    )


def move(tenant: int, ref: VersionRef, storage_class: str) -> NewRun:
    """Move the bytes of a ready version to the tier of its storage class."""
    key = f"move:{ref.version_id}:{storage_class}"
    return NewRun(key, "tier.move", tenant, subject(ref), {"storage_class": storage_class})


def recall(tenant: int, ref: VersionRef, n: int, days: int, speed: str) -> NewRun:
    """Bring an archived version back for some days; n counts the restores of the version."""
    return NewRun(
        f"recall:{ref.version_id}:{n}", "tier.recall", tenant, subject(ref), {"days": days, "speed": speed, "n": n}
    )


def reprocess(run: NewRun, state: State) -> NewRun:
    """A post_upload run over a version that stays what it is until the run decides."""
    return replace(run, input={**run.input, "from": int(state)})
