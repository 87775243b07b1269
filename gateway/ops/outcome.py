"""What a write answers about the processing of what it wrote."""

from __future__ import annotations

from typing import Any, Literal

from gateway.db.errors import TooManyWaiters
from gateway.db.insertion import Completed
from gateway.domain.conditions import check_write
from gateway.domain.objects import NULL_ID, Bucket, State, WriteCondition
from gateway.domain.serving import ascii_only, state_headers
from gateway.http.body import Body
from gateway.ops.access import Place
from gateway.ops.reading import Sight
from gateway.s3.call import Call
from gateway.s3.errors import S3Error, invalid_argument
from gateway.services import Services
from processing.failures import sentence

Mode = Literal["sync", "async"]
HEADER = "x-sluice-processing"
REFUSALS = {State.QUARANTINED: "ObjectQuarantined", State.FAILED: "ProcessingFailed"}


def mode(call: Call, sv: Services, bucket: Bucket) -> Mode:
    """When this write is answered: by its own header, else by the bucket, else by configuration."""
    given = call.headers.get(HEADER)
    if given is not None and given not in ("sync", "async"):
        raise invalid_argument(HEADER, given, f"{HEADER} must be sync or async")
    chosen = given or bucket.config.get("processing") or sv.settings.processing
    return "sync" if chosen == "sync" else "async"


async def forestall(call: Call, sv: Services, place: Place, key: bytes, condition: WriteCondition | None) -> None:
    """Refuse a conditional write that cannot succeed before its body is taken in, where that saves something.

    No promise: the transaction decides. Raises PreconditionFailed, NoSuchKey.
    """
    body: Body = call.body
    small = body.length is not None and body.length <= sv.settings.inline_threshold
    if condition is None or (small and not body.withheld):
        return
    version = (await sv.versions.resolve(place.bucket, key, content=False)).version
    there = version is not None and version.state in (State.SCANNING, State.READY)
    check_write(condition, version.etag if version is not None and there else None)


async def settle(sv: Services, bucket: Bucket, done: Completed, how: Mode) -> dict[str, str]:
    """The headers that tell what became of a durable write; in sync mode after its verdict, or at sync_timeout.

    Raises ObjectQuarantined and ProcessingFailed: a verdict against the content is an error even where it was known
    before (a reused verdict), so that the client learns it at once.
    """
    # A write into a suspended bucket names no version, though reads of it say "null" (as s3-tests has it).
    headers = {} if done.version_id in (None, NULL_ID) else {"x-amz-version-id": done.version_id}
    state, code, detail, run_id = done.state, done.code, done.detail, done.run_id
    if state is State.SCANNING and how == "sync" and await _decided(sv, bucket, done):
        resolved = await sv.versions.again(done.ref, content=False)
        version = resolved.version
        if version is not None:
            state, code, detail, run_id = version.state, version.code, version.detail, version.run_id
    headers["x-sluice-state"] = state.word
    if run_id is not None and state is State.SCANNING:
        headers["x-sluice-run"] = str(run_id)
    if state in REFUSALS:
        headers["x-sluice-code"] = code or ""
        headers["x-sluice-reason"] = ascii_only(detail or code or "")
        raise S3Error(REFUSALS[state], sentence(code), headers=headers, Reason=code)
    return headers


async def _decided(sv: Services, bucket: Bucket, done: Completed) -> bool:
    try:
        return await sv.waiting.decided(done.ref, bucket.owner.id, sv.settings.sync_timeout)
    except TooManyWaiters:
        return False  # the write is durable: it is answered like one whose verdict takes long


def note(sight: Sight) -> dict[str, Any]:
    """What the log line says of a read's version."""
    found: dict[str, Any] = {"state": sight.version.state.word}
    if run := state_headers(sight.resolved).get("x-sluice-run"):
        found["run"] = run
    return found


def written(done: Completed) -> dict[str, Any]:
    """What the log line says of a write."""
    found: dict[str, Any] = {"state": done.state.word}
    if done.run_id is not None:
        found["run"] = done.run_id
    return found
