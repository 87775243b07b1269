"""RestoreObject: ask for a readable copy of an archived version."""

from __future__ import annotations

from gateway.domain.serving import Refuse, state_headers
from gateway.http.reply import Reply
from gateway.ops import access, outcome, reading
from gateway.ops.writing import read_document
from gateway.s3 import messages
from gateway.s3.call import Call
from gateway.s3.errors import S3Error
from gateway.services import Services
from storage_tiers.tier import Speed


async def restore_object(call: Call, sv: Services) -> Reply:
    """202 when a restore was started, 200 when a restored copy is kept longer.

    A version that is still being processed is accepted too: its run waits for the verdict.
    Raises InvalidObjectState for what is not archived, RestoreAlreadyInProgress.
    """
    wanted = messages.parse_restore(await read_document(call, sv))
    place = access.place(call)
    sight = await reading.find(call, sv, place, access.key(call), call.query.get("versionId"))
    version = sight.version
    decision = reading.decide(sv, sight)
    if isinstance(decision, Refuse) and decision.code != "InvalidObjectState":
        raise reading.refused(sight, decision.code)
    if not sv.placement.archived(version.storage_class):
        raise S3Error(
            "InvalidObjectState",
            "Restore is not allowed for the object's current storage class",
            StorageClass=version.storage_class,
        )
    answer = await sv.recalls.request(sight.place.bucket, version, wanted.days, Speed(wanted.tier))
    reply = Reply(202 if answer == "accepted" else 200, note=outcome.note(sight))
    return reply.add({**sight.id_header, **state_headers(sight.resolved)})
