"""Being let into a bucket, and to an object in it: domain/policy applied to what the database says."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import msgspec

from gateway.domain import acl, policy
from gateway.domain.objects import Attributes, Bucket, Version
from gateway.domain.policy import ObjectAccess
from gateway.s3.call import Call
from gateway.s3.errors import S3Error
from gateway.services import Services


class Place(msgspec.Struct, frozen=True):
    """A bucket the caller was let into, for one action. pending: the object's own ACL has yet to be asked."""

    bucket: Bucket
    action: str
    pending: bool
    expected_owner: str | None


async def enter(
    call: Call, sv: Services, name: str, action: str, expected_owner: str | None, fresh: bool = False
) -> Place:
    """Look a bucket up and decide. Raises NoSuchBucket, AccessDenied.

    An empty action lets everyone in: the operation decides about each key on its own (DeleteObjects).
    """
    bucket = await sv.buckets.get(name, fresh=fresh)
    if bucket is None:
        raise S3Error("NoSuchBucket", BucketName=name)
    try:
        policy.check_expected_owner(expected_owner, bucket)
        pending = False
        if action:
            decision = policy.decide_action(action, call.caller, bucket)
            decision.require()
            pending = decision.pending
    except S3Error as error:
        error.headers.setdefault("x-amz-bucket-region", bucket.region(sv.settings.region))
        raise
    return Place(bucket, action, pending, expected_owner)


async def again(call: Call, sv: Services, place: Place) -> Place:
    """The same bucket read anew and decided about again: its generation moved since it was cached."""
    new = await enter(call, sv, place.bucket.name, place.action, place.expected_owner, fresh=True)
    if new.bucket.id != place.bucket.id:  # deleted and made again: what was resolved belongs to the old one
        raise S3Error("NoSuchBucket", BucketName=place.bucket.name)
    if call.place is place:
        call.place = new
    return new


def place(call: Call) -> Place:
    """The bucket of this request."""
    return cast(Place, call.place)


def key(call: Call) -> bytes:
    """The key of this request."""
    assert call.key is not None
    return call.key


def check_object(call: Call, where: Place, version: Version) -> None:
    """Ask the object's ACL, where it decides. Raises AccessDenied."""
    if where.pending:
        policy.decide_object(call.caller, where.bucket, ObjectAccess(version.owner_id, version.acl)).require()


def absent(call: Call, where: Place, name: bytes, version_id: str | None) -> S3Error:
    """What a read of nothing is answered: 404 to those who could list it, 403 to others."""
    return policy.missing_key(call.caller, where.bucket, name, version_id)


def owned(call: Call, bucket: Bucket, attributes: Attributes) -> tuple[Attributes, int]:
    """A new object's attributes with the ACL it may have in this bucket, and its owner.

    Raises AccessControlListNotSupported.
    """
    allowed = acl.canned_for_object(call.headers.get("x-amz-acl"), bucket.ownership)
    owner = acl.owner_of_new(bucket, allowed, call.caller.account)
    return attributes if attributes.acl == allowed else replace(attributes, acl=allowed), owner.id
