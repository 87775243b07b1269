"""Who may do what. Pure: an operation, a caller and what is known of bucket and object go in, a decision comes out.

Everything is denied that neither ownership nor an ACL allows. The root account is an account like any other here: it
administers the gateway, it does not read other accounts' buckets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import msgspec

from gateway.domain.acl import Permission, allows
from gateway.domain.objects import Account, Bucket
from gateway.s3.errors import S3Error


class Caller(msgspec.Struct, frozen=True):
    """Who sent a request. account and access_key are None when it was not signed."""

    account: Account | None
    access_key: str | None
    signed: bool


ANONYMOUS = Caller(None, None, False)


class Named(Protocol):
    """What a decision needs of an operation; s3.operations.Operation is one."""

    @property
    def name(self) -> str: ...
    @property
    def action(self) -> str: ...


class ObjectAccess(msgspec.Struct, frozen=True):
    """What decides over an object: its owner and its canned ACL."""

    owner_id: int
    acl: str


class Decision(msgspec.Struct, frozen=True):
    """allowed is final unless pending: then the object's own ACL decides (decide_object), once it is known."""

    allowed: bool
    reason: str
    pending: bool = False

    def require(self) -> None:
        """Raises AccessDenied unless allowed or pending."""
        if not self.allowed and not self.pending:
            raise S3Error("AccessDenied")


@dataclass(frozen=True, slots=True)
class Need:
    """What an action takes. where is the ACL that is asked; owner_only: none grants it but ownership."""

    where: str  # "service", "bucket", "object"
    permission: Permission | None = None
    signed: bool = False


_BUCKET_OWNER = Need("bucket")
_READ_BUCKET = Need("bucket", Permission.READ)
_WRITE_BUCKET = Need("bucket", Permission.WRITE)
_READ_OBJECT = Need("object", Permission.READ)

# "Mapping of ACL permissions and access policy permissions", Amazon S3 User Guide. Actions that are not here belong
# to the bucket's owner alone.
NEEDS: Mapping[str, Need] = {
    # S3 redirects an anonymous caller to a product page; s3-tests wants an empty list, which gives as little away.
    "s3:ListAllMyBuckets": Need("service"),
    "s3:CreateBucket": Need("service", signed=True),
    "s3:ListBucket": _READ_BUCKET,
    "s3:ListBucketVersions": _READ_BUCKET,
    "s3:ListBucketMultipartUploads": _READ_BUCKET,
    "s3:PutObject": _WRITE_BUCKET,
    "s3:DeleteObject": _WRITE_BUCKET,
    "s3:AbortMultipartUpload": _WRITE_BUCKET,
    "s3:ListMultipartUploadParts": _WRITE_BUCKET,
    "s3:GetBucketAcl": Need("bucket", Permission.READ_ACP),
    "s3:PutBucketAcl": Need("bucket", Permission.WRITE_ACP),
    "s3:GetObject": _READ_OBJECT,
    "s3:GetObjectAttributes": _READ_OBJECT,
    "s3:GetObjectTorrent": _READ_OBJECT,
    "s3:GetObjectAcl": Need("object", Permission.READ_ACP),
    "s3:PutObjectAcl": Need("object", Permission.WRITE_ACP),
}


def decide(operation: Named, caller: Caller, bucket: Bucket | None, obj: ObjectAccess | None = None) -> Decision:
    """Whether the caller may do the operation. bucket is None only for operations on no existing bucket.

    An operation on an object whose ACL decides is pending while obj is None.
    """
    return decide_action(operation.action, caller, bucket, obj)


def decide_action(action: str, caller: Caller, bucket: Bucket | None, obj: ObjectAccess | None = None) -> Decision:
    """As decide, for an action by name: a copy's source is an s3:GetObject of its own."""
    need = NEEDS.get(action, _BUCKET_OWNER)
    account = caller.account
    if need.where == "service":
        if need.signed and account is None:
            return Decision(False, "anonymous")
        return Decision(True, "service")
    if bucket is None:
        return Decision(False, "no bucket")
    if need.where == "object":
        if obj is None:
            return Decision(False, "object", pending=True)
        return decide_object(caller, bucket, obj, need.permission or Permission.READ)
    if account is not None and account.id == bucket.owner.id:
        return Decision(True, "bucket owner")
    if (
        need.permission is not None
        and bucket.ownership != "BucketOwnerEnforced"
        and allows(
            bucket.acl, need.permission, caller=account, owner_id=bucket.owner.id, bucket_owner_id=bucket.owner.id
        )
    ):
        return Decision(True, "bucket acl")
    return Decision(False, "not granted")


def decide_object(
    caller: Caller, bucket: Bucket, obj: ObjectAccess, permission: Permission = Permission.READ
) -> Decision:
    """Whether the object's owner and ACL let the caller do what permission names.

    Under ObjectWriter the owner of the bucket is a stranger to what others have put there, but for deleting it; with
    BucketOwnerEnforced there are no ACLs and everything is the bucket owner's.
    """
    account = caller.account
    if bucket.ownership == "BucketOwnerEnforced":
        if account is not None and account.id == bucket.owner.id:
            return Decision(True, "bucket owner")
        return Decision(False, "not granted")
    if account is not None and account.id == obj.owner_id:
        return Decision(True, "object owner")
    if allows(obj.acl, permission, caller=account, owner_id=obj.owner_id, bucket_owner_id=bucket.owner.id):
        return Decision(True, "object acl")
    return Decision(False, "not granted")


def may_list(caller: Caller, bucket: Bucket) -> bool:
    """Whether the caller has s3:ListBucket: a missing key is NoSuchKey to those who could list it."""
    return decide_action("s3:ListBucket", caller, bucket).allowed


def missing_key(caller: Caller, bucket: Bucket, key: bytes, version_id: str | None = None) -> S3Error:
    """What a read of a key that is not there answers: 404 with s3:ListBucket, 403 without."""
    if not may_list(caller, bucket):
        return S3Error("AccessDenied")
    name = key.decode("utf-8", "replace")
    if version_id is not None:
        return S3Error("NoSuchVersion", Key=name, VersionId=version_id)
    return S3Error("NoSuchKey", Key=name)


def check_expected_owner(expected: str | None, bucket: Bucket) -> None:
    """x-amz-expected-bucket-owner (or the source's): None when absent. Raises AccessDenied when it is another's.

    An account is named by its canonical id or by its number in AWS's twelve digits.
    """
    if expected is not None and expected not in (bucket.owner.canonical_id, account_number(bucket.owner)):
        raise S3Error("AccessDenied")


def account_number(account: Account) -> str:
    """The account's number, written as AWS writes account ids."""
    return f"{account.id:012d}"
