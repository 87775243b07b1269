"""The shared read path: find a version, decide who may read it, wait for its verdict, open its bytes.

GET, HEAD, GetObjectAttributes and the sources of copies all come through here, so that bytes that are not ready leave
through no door at all.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from gateway.db.blobs import ContentReader
from gateway.db.versions import Which
from gateway.domain.dates import http_date
from gateway.domain.objects import NULL_ID, Bucket, Resolved, State, Version, Versioning, parse_version_id
from gateway.domain.serving import Refuse, Serve, Wait, may_serve, restore_header, state_headers
from gateway.ops import access
from gateway.ops.access import Place
from gateway.s3.call import Call
from gateway.s3.errors import S3Error, invalid_argument
from gateway.services import Services
from processing.failures import sentence
from storage_tiers.tier import BlobNotFound, ByteSpan

BUSY_SECONDS = 5  # what Retry-After says of a version whose verdict is still awaited


class Sight(msgspec.Struct, frozen=True):
    """What a read looks at: a version that exists, is no delete marker, and may be seen by the caller."""

    place: Place
    resolved: Resolved
    version: Version

    @property
    def versioned(self) -> bool:
        """Whether answers show version ids."""
        return self.place.bucket.versioning is not Versioning.OFF

    @property
    def id_header(self) -> dict[str, str]:
        return {"x-amz-version-id": self.version.version_id} if self.versioned else {}


def which_version(text: str | None, argument: str = "versionId") -> Which:
    """The version a request names. Raises InvalidArgument for what cannot be a version id."""
    if text is None:
        return None
    if text == NULL_ID:
        return "null"
    if not text:
        raise invalid_argument(argument, "", "Version id cannot be the empty string")
    parsed = parse_version_id(text)
    if parsed is None:
        raise invalid_argument(argument, text, "Invalid version id specified")
    return parsed


async def find(
    call: Call, sv: Services, place: Place, key: bytes, version_id: str | None, *, content: bool = False
) -> Sight:
    """The version that a read of (bucket, key, version id) means, in one round trip.

    A bucket that changed since it was looked up is read anew and decided about again, before anything is answered.
    content: bring the bytes of a small object along. Raises NoSuchKey, NoSuchVersion, MethodNotAllowed (a delete
    marker by its id), AccessDenied, NoSuchBucket.
    """
    which = which_version(version_id)
    prefer_ready = place.bucket.config.get("while_scanning") == "previous"
    resolved = await sv.versions.resolve(place.bucket, key, which, prefer_ready, content)
    if resolved.generation != place.bucket.generation:
        place = await access.again(call, sv, place)
    version = resolved.version
    if version is None:
        raise access.absent(call, place, key, version_id)
    if version.state is State.MARKER:
        raise _marker(access.absent(call, place, key, None), place.bucket, version, version_id)
    access.check_object(call, place, version)
    return Sight(place, resolved, version)


async def servable(
    sv: Services, look: Callable[[], Awaitable[Sight]], *, by_id: bool, wait: float | None = None
) -> Sight:
    """What look finds, once its bytes may leave. Waits for a verdict up to wait seconds (default: read_wait).

    The read is pinned to the version that look found first; it looks anew only when that version went away, or was
    decided against although the request named none (then whatever is current now decides). Raises S3Error: SlowDown
    when the verdict does not come, ObjectQuarantined, ProcessingFailed, InvalidObjectState, and what look raises.
    """
    end = time.monotonic() + (sv.settings.read_wait if wait is None else wait)
    sight = await look()
    while True:
        decision = decide(sv, sight)
        if isinstance(decision, Serve):
            return sight
        if isinstance(decision, Refuse):
            raise refused(sight, decision.code)
        left = end - time.monotonic()
        tenant = sight.place.bucket.owner.id
        if left <= 0 or not await sv.waiting.decided(sight.version.ref, tenant, left):
            raise awaited(sight)
        resolved = await sv.versions.again(sight.version.ref)
        version = resolved.version
        if version is None or (version.state in (State.QUARANTINED, State.FAILED) and not by_id):
            sight = await look()
        else:
            sight = Sight(sight.place, resolved, version)


def decide(sv: Services, sight: Sight) -> Serve | Wait | Refuse:
    """may_serve for what was found, by the database's clock."""
    now = sight.resolved.now or sv.clock()
    return may_serve(sight.version, sv.placement.archived(sight.version.storage_class), now)


def check_visible(sv: Services, sight: Sight) -> None:
    """For reads that show no bytes (HEAD, attributes): raises what GET would, except that nothing is waited for and
    an archived object is described."""
    decision = decide(sv, sight)
    if isinstance(decision, Refuse) and decision.code != "InvalidObjectState":
        raise refused(sight, decision.code)


async def open_content(sv: Services, sight: Sight, span: ByteSpan, *, last: bool) -> ContentReader | None:
    """The bytes of a servable version; None when they moved since it was found and it should be looked up once more
    (a move between tiers swaps the blob). last: no more retries, BlobNotFound is raised."""
    try:
        return await sv.blobs.open(sight.resolved, span)
    except BlobNotFound:
        if last:
            raise
        return None


def refused(sight: Sight, code: str) -> S3Error:
    """The error of a version that is not served, with everything its owner needs to find out why."""
    version = sight.version
    headers = {**state_headers(sight.resolved), **sight.id_header}
    if code == "InvalidObjectState":
        if header := restore_header(version, sight.resolved.now or version.modified):
            headers["x-amz-restore"] = header
        headers["x-amz-storage-class"] = version.storage_class
        return S3Error(code, headers=headers, StorageClass=version.storage_class)
    if code in ("ObjectQuarantined", "ProcessingFailed"):
        run = None if version.run_id is None else str(version.run_id)
        return S3Error(code, sentence(version.code), headers=headers, Reason=version.code, Run=run)
    return S3Error(code, headers=headers, Key=shown(version.ref.key))


def awaited(sight: Sight) -> S3Error:
    """503 for a verdict that did not come in time: in seconds for everyone, in milliseconds for botocore."""
    headers = {
        **state_headers(sight.resolved),
        **sight.id_header,
        "Retry-After": str(BUSY_SECONDS),
        "x-amz-retry-after": str(BUSY_SECONDS * 1000),
    }
    return S3Error("SlowDown", "The object is still being processed. Please try again.", headers=headers)


def restore_headers(sight: Sight) -> Mapping[str, str]:
    """x-amz-restore, when there is something to say."""
    header = restore_header(sight.version, sight.resolved.now or sight.version.modified)
    return {"x-amz-restore": header} if header else {}


def shown(key: bytes) -> str:
    """A key as an error document shows it."""
    return key.decode("utf-8", "replace")


def _marker(absent: S3Error, bucket: Bucket, version: Version, version_id: str | None) -> S3Error:
    """404 for a marker that is current, 405 for one that was named (S3 user guide, "Working with delete markers")."""
    if absent.code != "NoSuchKey":
        return absent
    headers = {"x-amz-delete-marker": "true"}
    if bucket.versioning is not Versioning.OFF:
        headers["x-amz-version-id"] = version.version_id
    if version_id is None:
        absent.headers.update(headers)
        return absent
    headers["Allow"] = "DELETE"
    headers["Last-Modified"] = http_date(version.modified)
    return S3Error("MethodNotAllowed", headers=headers, Method="GET", ResourceType="DeleteMarker")
