"""Objects: put, get, head, delete."""

from __future__ import annotations

from gateway.db.insertion import Completion
from gateway.domain import checksums, conditions
from gateway.domain.metadata import read_attributes
from gateway.http.reply import Reply
from gateway.ops import access, attributes, deletes, outcome, reading, restore, views, writing
from gateway.ops.reading import Sight
from gateway.s3.call import Call
from gateway.services import Services

delete_object = deletes.delete_object
delete_objects = deletes.delete_objects
get_object_attributes = attributes.get_object_attributes
restore_object = restore.restore_object


async def put_object(call: Call, sv: Services) -> Reply:
    """Store the body as a new version, to be processed; answered once it is durable (in sync mode: decided)."""
    place, key = access.place(call), access.key(call)
    mode = outcome.mode(call, sv, place.bucket)
    described, owner_id = access.owned(call, place.bucket, read_attributes(call.headers))
    condition = conditions.write_condition(call.headers)
    wanted = checksums.requested(call.headers)
    await outcome.forestall(call, sv, place, key, condition)
    received = await writing.receive(sv, call.body, sv.placement.landing(described.storage_class), wanted)
    digests = received.digests
    completion = Completion(
        bucket=place.bucket,
        key=key,
        owner_id=owner_id,
        attributes=described,
        etag=received.etag,
        size=digests.size,
        digest=f"sha256:{digests.sha256.hex()}",
        checksums=digests.checksums,
        checksum_type=checksums.FULL_OBJECT,
        source=received.source,
        condition=condition,
        mode=mode,
    )
    done = await writing.conclude(sv, received, sv.completions.complete(completion))
    headers = await outcome.settle(sv, place.bucket, done, mode)
    return (
        Reply(200, [("ETag", f'"{received.etag}"')], note=outcome.written(done))
        .add(checksums.response_headers(digests.checksums, checksums.FULL_OBJECT))
        .add(headers)
    )


async def get_object(call: Call, sv: Services) -> Reply:
    """The bytes of a version, or of a range or part of it, once it is ready."""
    version_id = call.query.get("versionId")
    wanted = views.asked(call)

    async def look() -> Sight:
        sight = await reading.find(call, sv, access.place(call), access.key(call), version_id, content=True)
        views.check_fresh(call, sight)
        return sight

    for last in (False, True):
        sight = await reading.servable(sv, look, by_id=version_id is not None)
        found = await views.view(sv, sight, wanted)
        content = await reading.open_content(sv, sight, found.span, last=last)
        if content is not None:
            break
    assert content is not None
    reply = Reply(found.status, content=content, note=outcome.note(sight))
    return reply.add(views.headers_of(sight, found, wanted))


async def head_object(call: Call, sv: Services) -> Reply:
    """What GET would say, without bytes and without waiting: scanning and archived versions are answered 200."""
    wanted = views.asked(call)
    sight = await reading.find(call, sv, access.place(call), access.key(call), call.query.get("versionId"))
    views.check_fresh(call, sight)
    reading.check_visible(sv, sight)
    found = await views.view(sv, sight, wanted)
    reply = Reply(found.status, length=found.span.length, note=outcome.note(sight))
    return reply.add(views.headers_of(sight, found, wanted))
