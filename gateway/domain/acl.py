"""Canned ACLs: which there are, whom they let do what, and who owns a new object.

Amazon S3 User Guide, "Access control list (ACL) overview" and "Controlling ownership of objects".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from gateway.domain.objects import Account, Bucket
from gateway.s3.errors import S3Error, invalid_argument


class Permission(Enum):
    READ = "READ"
    WRITE = "WRITE"
    READ_ACP = "READ_ACP"
    WRITE_ACP = "WRITE_ACP"
    FULL_CONTROL = "FULL_CONTROL"


class Group(Enum):
    """Whom a canned ACL names besides the owner."""

    ALL_USERS = "http://acs.amazonaws.com/groups/global/AllUsers"
    AUTHENTICATED_USERS = "http://acs.amazonaws.com/groups/global/AuthenticatedUsers"
    LOG_DELIVERY = "http://acs.amazonaws.com/groups/s3/LogDelivery"
    BUCKET_OWNER = "bucket-owner"


PRIVATE = "private"
_READ, _WRITE, _FULL = Permission.READ, Permission.WRITE, Permission.FULL_CONTROL

# What each canned ACL grants besides FULL_CONTROL for the owner. aws-exec-read names Amazon's own image service,
# which does not exist here.
CANNED: Mapping[str, tuple[tuple[Group, Permission], ...]] = {
    PRIVATE: (),
    "public-read": ((Group.ALL_USERS, _READ),),
    "public-read-write": ((Group.ALL_USERS, _READ), (Group.ALL_USERS, _WRITE)),
    "authenticated-read": ((Group.AUTHENTICATED_USERS, _READ),),
    "aws-exec-read": (),
    "bucket-owner-read": ((Group.BUCKET_OWNER, _READ),),
    "bucket-owner-full-control": ((Group.BUCKET_OWNER, _FULL),),
    "log-delivery-write": ((Group.LOG_DELIVERY, _WRITE), (Group.LOG_DELIVERY, Permission.READ_ACP)),
}

OBJECT_ACLS: frozenset[str] = frozenset(CANNED) - {"log-delivery-write"}
# S3 accepts the bucket-owner ACLs on a bucket and ignores them.
BUCKET_ACLS: frozenset[str] = frozenset(CANNED)

OWNERSHIPS: frozenset[str] = frozenset({"ObjectWriter", "BucketOwnerPreferred", "BucketOwnerEnforced"})


@dataclass(frozen=True, slots=True)
class Grant:
    """One line of an access control list; grantee is an account or a group."""

    grantee: Account | Group
    permission: Permission


def canned_for_bucket(value: str | None) -> str:
    """The ACL of a new bucket, from x-amz-acl (None: absent). Raises InvalidArgument for an unknown one."""
    acl = _known(value, BUCKET_ACLS)
    return PRIVATE if acl.startswith("bucket-owner-") else acl


def canned_for_object(value: str | None, ownership: str = "ObjectWriter") -> str:
    """The ACL of a new object, from x-amz-acl (None: absent).

    Raises InvalidArgument for an unknown one, and AccessControlListNotSupported for one that BucketOwnerEnforced
    rules out.
    """
    acl = _known(value, OBJECT_ACLS)
    if ownership == "BucketOwnerEnforced" and acl not in (PRIVATE, "bucket-owner-full-control"):
        raise S3Error("AccessControlListNotSupported")
    return acl


def ownership_of(value: str | None, default: str) -> str:
    """The object ownership of a new bucket, from x-amz-object-ownership. Raises InvalidArgument."""
    if value is None:
        return default
    if value not in OWNERSHIPS:
        raise invalid_argument("x-amz-object-ownership", None, f"Invalid x-amz-object-ownership header: {value}")
    return value


def owner_of_new(bucket: Bucket, acl: str, writer: Account | None) -> Account:
    """Who owns an object that writer puts into a bucket.

    The writer under ObjectWriter; the bucket's owner under the two others when S3 says so, and for anonymous
    uploads: S3 has an anonymous account for these, which could never be asked for anything.
    """
    if writer is None or bucket.ownership == "BucketOwnerEnforced":
        return bucket.owner
    if bucket.ownership == "BucketOwnerPreferred" and acl == "bucket-owner-full-control":
        return bucket.owner
    return writer


def allows(acl: str, permission: Permission, *, caller: Account | None, owner_id: int, bucket_owner_id: int) -> bool:
    """Whether an ACL lets a caller (None: anonymous) do what permission names; the owner may do everything."""
    if caller is not None and caller.id == owner_id:
        return True
    return any(
        granted in (permission, Permission.FULL_CONTROL) and _among(group, caller, bucket_owner_id)
        for group, granted in CANNED.get(acl, ())
    )


def grants(acl: str, owner: Account, bucket_owner: Account) -> Iterable[Grant]:
    """The list an ACL stands for, as GetBucketAcl and GetObjectAcl show it."""
    yield Grant(owner, Permission.FULL_CONTROL)
    for group, permission in CANNED.get(acl, ()):
        if group is not Group.BUCKET_OWNER:
            yield Grant(group, permission)
        elif bucket_owner.id != owner.id:
            yield Grant(bucket_owner, permission)


def _known(value: str | None, known: frozenset[str]) -> str:
    if value is None:
        return PRIVATE
    if value not in known:
        raise invalid_argument("x-amz-acl", value, "")
    return value


def _among(group: Group, caller: Account | None, bucket_owner_id: int) -> bool:
    if group is Group.ALL_USERS:
        return True
    if caller is None:
        return False
    return group is Group.AUTHENTICATED_USERS or (group is Group.BUCKET_OWNER and caller.id == bucket_owner_id)
