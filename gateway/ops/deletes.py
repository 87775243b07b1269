"""Deletes: of one key or version, and of many."""

from __future__ import annotations

import structlog

from gateway.db.deletion import DeleteCondition, Deleted, DeleteItem
from gateway.domain import conditions, policy
from gateway.domain.names import check_key
from gateway.http.reply import Reply, document
from gateway.ops import access
from gateway.ops.access import Place
from gateway.ops.failures import translate
from gateway.ops.reading import which_version
from gateway.ops.writing import read_document
from gateway.s3 import messages
from gateway.s3.call import Call
from gateway.s3.errors import S3Error
from gateway.services import Services

log = structlog.get_logger()

NO_CHECKSUM = "Missing required header for this request: Content-MD5"


async def delete_object(call: Call, sv: Services) -> Reply:
    """Delete a key (in a versioned bucket: put a marker on it) or one version of it. What is not there is 204 too."""
    bucket, key = access.place(call).bucket, access.key(call)
    condition = _condition(conditions.delete_condition(call.headers))
    _allow(call, access.place(call), call.query.get("versionId"))
    item = DeleteItem(key, which_version(call.query.get("versionId")), condition)
    (result,) = await sv.deletions.delete(bucket, [item], _owner(call))
    if isinstance(result, Exception):
        raise result
    reply = Reply(204)
    version_id = result.marker_id or result.version_id
    if version_id is not None:
        reply.add({"x-amz-version-id": version_id})
    if result.is_marker:
        reply.add({"x-amz-delete-marker": "true"})
    return reply


async def delete_objects(call: Call, sv: Services) -> Reply:
    """Delete up to 1,000 keys or versions; each is decided and reported on its own.

    The body must be covered by Content-MD5 or by a checksum: clients of every age send one of the two.
    """
    if "content-md5" not in call.headers and not _has_checksum(call):
        raise S3Error("InvalidRequest", NO_CHECKSUM)
    place = access.place(call)
    wanted = messages.parse_delete(await read_document(call, sv))
    results: list[messages.Deleted | messages.NotDeleted | None] = [None] * len(wanted.items)
    items: list[DeleteItem] = []
    indexes: list[int] = []
    for index, each in enumerate(wanted.items):
        try:
            check_key(each.key)
            _allow(call, place, each.version_id)
            item = DeleteItem(each.key, which_version(each.version_id, "VersionId"), _condition(each.condition))
        except S3Error as error:
            results[index] = _refused(each.key, each.version_id, error)
        else:
            items.append(item)
            indexes.append(index)
    done = await sv.deletions.delete(place.bucket, items, _owner(call)) if items else []
    for index, outcome in zip(indexes, done, strict=True):
        each = wanted.items[index]
        if isinstance(outcome, Deleted):
            results[index] = _reported(each.key, outcome)
            continue
        translated = translate(outcome)
        if translated is None:
            log.error("delete failed", exc_info=outcome, request=call.request_id)
        results[index] = _refused(each.key, each.version_id, translated or S3Error("InternalError"))
    return document(messages.delete_result([each for each in results if each is not None], quiet=wanted.quiet))


def _allow(call: Call, place: Place, version_id: str | None) -> None:
    """Whether the caller may delete a key, or one version for good, which the bucket's WRITE permission gives to its
    owner alone ("Mapping of ACL permissions and access policy permissions", Amazon S3 User Guide). Raises AccessDenied.
    """
    action = "s3:DeleteObject" if version_id is None else "s3:DeleteObjectVersion"
    policy.decide_action(action, call.caller, place.bucket).require()


def _reported(key: bytes, outcome: Deleted) -> messages.Deleted:
    """A marker that was removed by its id is named twice, as S3 does."""
    marker = outcome.marker_id
    if marker is None and outcome.is_marker:
        marker = outcome.version_id
    return messages.Deleted(key, outcome.version_id, marker)


def _refused(key: bytes, version_id: str | None, error: S3Error) -> messages.NotDeleted:
    return messages.NotDeleted(key, version_id, error.code, error.message)


def _condition(given: conditions.DeleteCondition | None) -> DeleteCondition | None:
    if given is None:
        return None
    return DeleteCondition(given.if_match[0] if given.if_match else None, given.modified, given.size)


def _owner(call: Call) -> int:
    """Who owns the markers that are made."""
    return call.caller.account.id if call.caller.account is not None else access.place(call).bucket.owner.id


def _has_checksum(call: Call) -> bool:
    return "x-amz-trailer" in call.headers or any(
        name.startswith("x-amz-checksum-") and name not in ("x-amz-checksum-mode", "x-amz-checksum-algorithm")
        for name in call.headers
    )
