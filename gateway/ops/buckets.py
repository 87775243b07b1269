"""Buckets: create, look at, remove, and their versioning."""

from __future__ import annotations

import re

from gateway.db.buckets import BucketNotEmpty, VersioningFixed
from gateway.domain import acl
from gateway.domain.names import check_bucket
from gateway.http.reply import Reply, document
from gateway.ops import access
from gateway.ops.writing import read_document
from gateway.s3 import messages
from gateway.s3.call import Call
from gateway.s3.errors import S3Error
from gateway.services import Services

REGION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,62}")  # what may be the name of one
HOME = "us-east-1"  # the region whose constraint is the empty one


async def create_bucket(call: Call, sv: Services) -> Reply:
    """Make a bucket. One's own bucket is answered 200 and stays as it is, as S3's oldest region does."""
    assert call.bucket is not None and call.caller.account is not None
    name = check_bucket(call.bucket)
    constraint = messages.parse_create_bucket(await read_document(call, sv))
    bucket, made = await sv.buckets.create(
        name,
        call.caller.account,
        location=_location(sv, constraint),
        acl=acl.canned_for_bucket(call.headers.get("x-amz-acl")),
        ownership=acl.ownership_of(call.headers.get("x-amz-object-ownership"), sv.settings.default_ownership),
        object_lock=_locked(call),
    )
    if not made and bucket.owner.id != call.caller.account.id:
        raise S3Error("BucketAlreadyExists", BucketName=name)
    return Reply(200, [("Location", f"/{name}")])


async def head_bucket(call: Call, sv: Services) -> Reply:
    """Whether the bucket is there and the caller may list it."""
    region = access.place(call).bucket.region(sv.settings.region)
    return Reply(200, [("x-amz-bucket-region", region), ("Content-Type", "application/xml")])


async def delete_bucket(call: Call, sv: Services) -> Reply:
    """Remove an empty bucket; open uploads go with it. Versions that LIST does not show hold it too."""
    bucket = access.place(call).bucket
    try:
        await sv.buckets.delete(bucket)
    except BucketNotEmpty as error:
        if not error.hidden:
            raise S3Error("BucketNotEmpty", BucketName=bucket.name) from None
        raise S3Error(
            "BucketNotEmpty",
            f"The bucket holds {error.hidden} versions that are not listed because they were quarantined or could not "
            f"be processed. To see them: sluice quarantine list --bucket {bucket.name}",
            BucketName=bucket.name,
            HiddenVersions=error.hidden,
        ) from None
    return Reply(204)


async def get_bucket_location(call: Call, sv: Services) -> Reply:
    """The location constraint the bucket was created with; none for us-east-1."""
    return document(messages.location(access.place(call).bucket.location))


async def put_bucket_versioning(call: Call, sv: Services) -> Reply:
    """Enable or suspend versioning."""
    if "x-amz-mfa" in call.headers:
        raise S3Error("NotImplemented", "MFA delete is not implemented", Header="x-amz-mfa")
    wanted = messages.parse_versioning(await read_document(call, sv))
    if wanted is None:
        raise S3Error("MalformedXML")
    try:
        await sv.buckets.set_versioning(access.place(call).bucket, wanted)
    except VersioningFixed:
        message = "An Object Lock configuration is present on this bucket, so the versioning state cannot be changed."
        raise S3Error("InvalidBucketState", message) from None
    return Reply(200)


async def get_bucket_versioning(call: Call, sv: Services) -> Reply:
    """Enabled, Suspended, or nothing when it never was either."""
    name = access.place(call).bucket.name
    bucket = await sv.buckets.get(name, fresh=True)
    if bucket is None:
        raise S3Error("NoSuchBucket", BucketName=name)
    return document(messages.versioning_status(bucket.versioning))


def _location(sv: Services, constraint: str | None) -> str:
    """The location to keep. Raises InvalidLocationConstraint."""
    if not constraint:
        return ""
    accepted = sv.settings.regions
    known = not accepted or constraint in (*accepted, sv.settings.region)
    if constraint == HOME or not known or not REGION.fullmatch(constraint):
        raise S3Error("InvalidLocationConstraint", LocationConstraint=constraint)
    return constraint


def _locked(call: Call) -> bool:
    """Buckets with object lock are refused: nothing would keep what the lock promises."""
    given = call.headers.get("x-amz-bucket-object-lock-enabled")
    if given is not None and given.lower() == "true":
        raise S3Error("NotImplemented", Header="x-amz-bucket-object-lock-enabled")
    return False
