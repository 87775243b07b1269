"""Who may do what: ownership, canned ACLs of buckets and objects, expected owners."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from gateway.domain import acl
from gateway.domain.acl import CANNED, Group, Permission
from gateway.domain.objects import Account, Bucket, Versioning
from gateway.domain.policy import (
    ANONYMOUS,
    NEEDS,
    Caller,
    ObjectAccess,
    account_number,
    check_expected_owner,
    decide,
    decide_action,
    decide_object,
    may_list,
    missing_key,
)
from gateway.s3.errors import S3Error
from gateway.s3.operations import BY_NAME, OPERATIONS


def account(number: int, *, root: bool = False) -> Account:
    return Account(number, f"{number:064x}", f"a{number}", f"A{number}", f"a{number}@example.com", root)


OWNER, WRITER, STRANGER, ROOT = account(1), account(2), account(3), account(4, root=True)
BUCKET = Bucket(
    id=7,
    name="bkt",
    owner=OWNER,
    created=datetime(2026, 1, 1, tzinfo=UTC),
    location="",
    versioning=Versioning.OFF,
    acl="private",
    ownership="ObjectWriter",
    object_lock=False,
    config={},
    generation=1,
)


def caller(who: Account | None) -> Caller:
    return ANONYMOUS if who is None else Caller(who, f"AK{who.id}", True)


EVERYBODY = [OWNER, WRITER, STRANGER, ROOT, None]


def allowed(name: str, who: Account | None, bucket: Bucket = BUCKET) -> bool:
    decision = decide(BY_NAME[name], caller(who), bucket)
    assert not decision.pending
    return decision.allowed


def who_may(name: str, bucket: Bucket) -> list[Account | None]:
    return [who for who in EVERYBODY if allowed(name, who, bucket)]


BUCKET_READS = ["ListObjects", "ListObjectsV2", "ListObjectVersions", "ListMultipartUploads", "HeadBucket"]
BUCKET_WRITES = [
    "PutObject",
    "CopyObject",
    "UploadPart",
    "UploadPartCopy",
    "CreateMultipartUpload",
    "CompleteMultipartUpload",
    "AbortMultipartUpload",
    "ListParts",
    "DeleteObject",
    "DeleteObjects",
]
OWNER_ONLY = ["DeleteBucket", "GetBucketLocation", "PutBucketVersioning", "GetBucketVersioning", "RestoreObject"]


@pytest.mark.parametrize("acl_name", sorted(CANNED))
def test_bucket_acls(acl_name: str) -> None:
    bucket = replace(BUCKET, acl=acl_name)
    readers = {"public-read": EVERYBODY, "public-read-write": EVERYBODY, "authenticated-read": EVERYBODY[:-1]}
    for name in BUCKET_READS:
        assert who_may(name, bucket) == readers.get(acl_name, [OWNER]), name
    for name in BUCKET_WRITES:
        assert who_may(name, bucket) == (EVERYBODY if acl_name == "public-read-write" else [OWNER]), name
    for name in OWNER_ONLY:
        assert who_may(name, bucket) == [OWNER], name


def test_root_has_no_way_around() -> None:
    assert not allowed("ListObjects", ROOT) and not allowed("PutObject", ROOT)
    assert not decide_object(caller(ROOT), BUCKET, ObjectAccess(OWNER.id, "private")).allowed


@pytest.mark.parametrize("name", ["GetObject", "HeadObject", "GetObjectAttributes"])
def test_reads_of_objects_wait_for_the_objects_acl(name: str) -> None:
    for who in EVERYBODY:
        decision = decide(BY_NAME[name], caller(who), replace(BUCKET, acl="public-read-write"))
        assert decision.pending and not decision.allowed
        decision.require()
    assert decide(BY_NAME[name], caller(WRITER), BUCKET, ObjectAccess(WRITER.id, "private")).allowed


@pytest.mark.parametrize("acl_name", sorted(acl.OBJECT_ACLS))
def test_object_acls_under_object_writer(acl_name: str) -> None:
    obj = ObjectAccess(WRITER.id, acl_name)
    expected = {
        "public-read": EVERYBODY,
        "public-read-write": EVERYBODY,
        "authenticated-read": EVERYBODY[:-1],
        "bucket-owner-read": [OWNER, WRITER],
        "bucket-owner-full-control": [OWNER, WRITER],
    }.get(acl_name, [WRITER])
    assert [who for who in EVERYBODY if decide_object(caller(who), BUCKET, obj).allowed] == expected
    full = [WRITER] if acl_name != "bucket-owner-full-control" else [OWNER, WRITER]
    assert [who for who in EVERYBODY if decide_object(caller(who), BUCKET, obj, Permission.WRITE_ACP).allowed] == full


def test_the_bucket_owner_enforced_knows_no_acls() -> None:
    bucket = replace(BUCKET, ownership="BucketOwnerEnforced", acl="public-read-write")
    assert who_may("ListObjects", bucket) == [OWNER] == who_may("PutObject", bucket)
    obj = ObjectAccess(WRITER.id, "public-read")
    assert [who for who in EVERYBODY if decide_object(caller(who), bucket, obj).allowed] == [OWNER]


def test_service_operations() -> None:
    for who in EVERYBODY:
        assert decide(BY_NAME["ListBuckets"], caller(who), None).allowed
        assert decide(BY_NAME["CreateBucket"], caller(who), None).allowed is (who is not None)
    with pytest.raises(S3Error) as caught:
        decide(BY_NAME["CreateBucket"], ANONYMOUS, None).require()
    assert (caught.value.code, caught.value.status) == ("AccessDenied", 403)
    assert not decide(BY_NAME["ListObjects"], caller(OWNER), None).allowed


def test_every_action_is_denied_to_strangers_by_default() -> None:
    for row in OPERATIONS:
        if row.action in ("s3:ListAllMyBuckets", "s3:CreateBucket"):
            continue
        decision = decide(row, caller(STRANGER), BUCKET, ObjectAccess(OWNER.id, "private"))
        assert not decision.allowed and not decision.pending, row.name
        owner = decide(row, caller(OWNER), BUCKET, ObjectAccess(OWNER.id, "private"))
        assert owner.allowed, row.name
    assert {row.action for row in OPERATIONS} >= set(NEEDS)


def test_a_copys_source_is_a_read_of_its_own() -> None:
    assert decide_action("s3:GetObject", caller(STRANGER), BUCKET).pending
    assert not decide_action("s3:GetObject", caller(STRANGER), BUCKET, ObjectAccess(OWNER.id, "private")).allowed


def test_a_missing_key_is_shown_to_those_who_could_list_it() -> None:
    assert missing_key(caller(OWNER), BUCKET, b"k").code == "NoSuchKey"
    assert missing_key(caller(OWNER), BUCKET, "ä".encode()).elements == {"Key": "ä"}
    assert missing_key(caller(OWNER), BUCKET, b"k", "v").code == "NoSuchVersion"
    error = missing_key(caller(STRANGER), BUCKET, b"k")
    assert (error.code, error.status) == ("AccessDenied", 403)
    public = replace(BUCKET, acl="public-read")
    assert may_list(ANONYMOUS, public) and missing_key(ANONYMOUS, public, b"k").status == 404


def test_expected_owner() -> None:
    check_expected_owner(None, BUCKET)
    check_expected_owner(OWNER.canonical_id, BUCKET)
    check_expected_owner("000000000001", BUCKET)
    assert account_number(OWNER) == "000000000001"
    for other in ("", "1", WRITER.canonical_id, "000000000002"):
        with pytest.raises(S3Error) as caught:
            check_expected_owner(other, BUCKET)
        assert caught.value.code == "AccessDenied"


# --- canned ACLs of what is new ----------------------------------------------------------------------------------


def test_canned_acls_from_headers() -> None:
    assert acl.canned_for_bucket(None) == "private"
    assert acl.canned_for_bucket("public-read") == "public-read"
    assert acl.canned_for_bucket("bucket-owner-full-control") == "private"
    assert acl.canned_for_object(None) == "private"
    assert acl.canned_for_object("bucket-owner-read") == "bucket-owner-read"
    for wrong in ("public-ready", "PRIVATE", ""):
        for reader in (acl.canned_for_bucket, acl.canned_for_object):
            with pytest.raises(S3Error) as caught:
                reader(wrong)
            assert (caught.value.code, caught.value.status) == ("InvalidArgument", 400)
            assert caught.value.elements == {"ArgumentName": "x-amz-acl", "ArgumentValue": wrong}
    with pytest.raises(S3Error):
        acl.canned_for_object("log-delivery-write")


def test_acls_where_there_are_none() -> None:
    assert acl.canned_for_object("bucket-owner-full-control", "BucketOwnerEnforced")
    assert acl.canned_for_object(None, "BucketOwnerEnforced") == "private"
    with pytest.raises(S3Error) as caught:
        acl.canned_for_object("public-read", "BucketOwnerEnforced")
    assert caught.value.code == "AccessControlListNotSupported"


def test_ownership_from_the_header() -> None:
    assert acl.ownership_of(None, "ObjectWriter") == "ObjectWriter"
    assert acl.ownership_of("BucketOwnerEnforced", "ObjectWriter") == "BucketOwnerEnforced"
    with pytest.raises(S3Error):
        acl.ownership_of("bucketowner", "ObjectWriter")


@pytest.mark.parametrize(
    ("ownership", "name", "writer", "owner"),
    [
        ("ObjectWriter", "private", WRITER, WRITER),
        ("ObjectWriter", "bucket-owner-full-control", WRITER, WRITER),
        ("ObjectWriter", "private", None, OWNER),
        ("BucketOwnerPreferred", "private", WRITER, WRITER),
        ("BucketOwnerPreferred", "bucket-owner-full-control", WRITER, OWNER),
        ("BucketOwnerEnforced", "private", WRITER, OWNER),
    ],
)
def test_who_owns_what_is_new(ownership: str, name: str, writer: Account | None, owner: Account) -> None:
    assert acl.owner_of_new(replace(BUCKET, ownership=ownership), name, writer) == owner


def test_grants() -> None:
    def shown(name: str, owner: Account) -> list[tuple[object, str]]:
        lines = acl.grants(name, owner, OWNER)
        return [(g.grantee if isinstance(g.grantee, Group) else g.grantee.id, g.permission.value) for g in lines]

    assert shown("private", WRITER) == [(2, "FULL_CONTROL")]
    assert shown("public-read-write", WRITER)[1:] == [(Group.ALL_USERS, "READ"), (Group.ALL_USERS, "WRITE")]
    assert shown("bucket-owner-read", WRITER) == [(2, "FULL_CONTROL"), (1, "READ")]
    assert shown("bucket-owner-read", OWNER) == [(1, "FULL_CONTROL")]
