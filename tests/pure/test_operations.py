"""The table against botocore's own model of S3, and what a request resolves to."""

from __future__ import annotations

import botocore.session
import pytest

from gateway.s3.errors import S3Error
from gateway.s3.headers import Headers, Query
from gateway.s3.operations import (
    BY_NAME,
    OPERATIONS,
    POST_OBJECT,
    SUBRESOURCES,
    BodyKind,
    Operation,
    Target,
    identify,
    resolve,
)

MODEL = botocore.session.get_session().get_service_model("s3")
HANDLERS = {
    "service": {"list_buckets"},
    "buckets": {
        "create_bucket",
        "head_bucket",
        "delete_bucket",
        "get_bucket_location",
        "put_bucket_versioning",
        "get_bucket_versioning",
    },
    "objects": {
        "put_object",
        "get_object",
        "head_object",
        "delete_object",
        "delete_objects",
        "get_object_attributes",
        "restore_object",
    },
    "copy": {"copy_object", "upload_part_copy"},
    "listing": {"list_objects", "list_objects_v2", "list_object_versions"},
    "multipart": {
        "create_multipart_upload",
        "upload_part",
        "complete_multipart_upload",
        "abort_multipart_upload",
        "list_parts",
        "list_multipart_uploads",
    },
}
# The model gives these no parameter of their own, or names their path once for two operations.
SELECTED_BY_US = {"ListDirectoryBuckets": {"max-directory-buckets"}}


def model_target(uri: str) -> Target:
    path = uri.partition("?")[0]
    return Target.OBJECT if "{Key" in path else Target.SERVICE if path == "/" else Target.BUCKET


def model_selectors(name: str) -> set[str]:
    operation = MODEL.operation_model(name)
    selectors = {pair.partition("=")[0] for pair in operation.http["requestUri"].partition("?")[2].split("&") if pair}
    shape = operation.input_shape
    if shape is not None:
        selectors |= {
            member.serialization["name"]
            for key, member in shape.members.items()
            if member.serialization.get("location") == "querystring" and key in shape.required_members
        }
    return selectors


def test_the_table_names_every_operation_of_the_model_once() -> None:
    names = [row.name for row in OPERATIONS]
    assert len(names) == len(set(names))
    assert set(names) == set(MODEL.operation_names)


@pytest.mark.parametrize("row", OPERATIONS, ids=lambda row: row.name)
def test_a_row_agrees_with_the_model(row: Operation) -> None:
    operation = MODEL.operation_model(row.name)
    assert row.method == operation.http["method"]
    assert row.target is model_target(operation.http["requestUri"])
    assert row.selectors == model_selectors(row.name) | SELECTED_BY_US.get(row.name, set())
    shape = operation.input_shape
    payload = shape.serialization.get("payload") if shape else None
    if operation.has_streaming_input:
        assert row.body is BodyKind.STREAM
    elif payload is not None or row.name == "SelectObjectContent":
        assert row.body is BodyKind.XML
    else:
        assert row.body is BodyKind.NONE
    assert row.action.count(":") == 1


def test_the_implemented_operations_name_their_function() -> None:
    implemented: dict[str, set[str]] = {}
    for row in OPERATIONS:
        if row.handler is not None:
            module, _, function = row.handler.partition(".")
            implemented.setdefault(module, set()).add(function)
            snake = "".join(f"_{c.lower()}" if c.isupper() else c for c in row.name).lstrip("_")
            assert function == snake
    assert implemented == HANDLERS


def example(row: Operation) -> tuple[str, Target, Query, Headers]:
    fixed = dict(row.fixed)
    query = "&".join(f"{name}={fixed.get(name, '1')}" for name in sorted(row.selectors))
    headers = Headers([(row.header, "/b/k")] if row.header else [])
    return row.method, row.target, Query(query), headers


ALIASES = {
    "GetBucketLifecycle": "GetBucketLifecycleConfiguration",
    "PutBucketLifecycle": "PutBucketLifecycleConfiguration",
    "GetBucketNotification": "GetBucketNotificationConfiguration",
    "PutBucketNotification": "PutBucketNotificationConfiguration",
}


@pytest.mark.parametrize("row", OPERATIONS, ids=lambda row: row.name)
def test_each_row_is_reached(row: Operation) -> None:
    assert identify(*example(row)).name == ALIASES.get(row.name, row.name)


@pytest.mark.parametrize("row", [row for row in OPERATIONS if row.handler is None], ids=lambda row: row.name)
def test_what_has_no_handler_is_501_by_name(row: Operation) -> None:
    with pytest.raises(S3Error) as caught:
        resolve(*example(row))
    name = ALIASES.get(row.name, row.name)
    assert (caught.value.code, caught.value.status) == ("NotImplemented", 501)
    assert name in caught.value.message
    assert caught.value.operation == name


def name_of(method: str, target: str, query: str = "", **headers: str) -> str:
    pairs = [(name.replace("_", "-"), value) for name, value in headers.items()]
    return resolve(method, Target[target], Query(query), Headers(pairs)).name


def error_of(method: str, target: str, query: str = "", **headers: str) -> S3Error:
    with pytest.raises(S3Error) as caught:
        name_of(method, target, query, **headers)
    return caught.value


@pytest.mark.parametrize(
    ("method", "target", "query", "headers", "name"),
    [
        ("GET", "SERVICE", "", {}, "ListBuckets"),
        ("GET", "SERVICE", "x-id=ListBuckets&max-buckets=3", {}, "ListBuckets"),
        ("GET", "BUCKET", "", {}, "ListObjects"),
        ("GET", "BUCKET", "list-type=2&prefix=a&delimiter=%2F", {}, "ListObjectsV2"),
        ("GET", "BUCKET", "list-type=1", {}, "ListObjects"),
        ("GET", "BUCKET", "location", {}, "GetBucketLocation"),
        ("GET", "BUCKET", "location=", {}, "GetBucketLocation"),
        ("GET", "BUCKET", "versions&prefix=x", {}, "ListObjectVersions"),
        ("GET", "BUCKET", "uploads", {}, "ListMultipartUploads"),
        ("POST", "BUCKET", "delete", {}, "DeleteObjects"),
        ("PUT", "OBJECT", "x-id=PutObject", {}, "PutObject"),
        ("PUT", "OBJECT", "X-Amz-Algorithm=a&X-Amz-Signature=b&X-Amz-Expires=1", {}, "PutObject"),
        ("PUT", "OBJECT", "", {"x_amz_copy_source": "/b/k"}, "CopyObject"),
        ("PUT", "OBJECT", "partNumber=1&uploadId=u", {}, "UploadPart"),
        ("PUT", "OBJECT", "partNumber=1&uploadId=u", {"x_amz_copy_source": "/b/k"}, "UploadPartCopy"),
        ("GET", "OBJECT", "partNumber=1&versionId=v", {}, "GetObject"),
        ("GET", "OBJECT", "uploadId=u&part-number-marker=3", {}, "ListParts"),
        ("GET", "OBJECT", "attributes&versionId=v", {}, "GetObjectAttributes"),
        ("HEAD", "OBJECT", "versionId=v", {}, "HeadObject"),
        ("HEAD", "BUCKET", "", {}, "HeadBucket"),
        ("POST", "OBJECT", "uploads", {}, "CreateMultipartUpload"),
        ("POST", "OBJECT", "uploadId=u", {}, "CompleteMultipartUpload"),
        ("POST", "OBJECT", "restore&versionId=v", {}, "RestoreObject"),
        ("DELETE", "OBJECT", "uploadId=u", {}, "AbortMultipartUpload"),
        ("DELETE", "OBJECT", "versionId=null", {}, "DeleteObject"),
        ("GET", "OBJECT", "response-content-type=a&foo=bar", {}, "GetObject"),
    ],
)
def test_dispatch(method: str, target: str, query: str, headers: dict[str, str], name: str) -> None:
    assert name_of(method, target, query, **headers) == name


@pytest.mark.parametrize("subresource", sorted(SUBRESOURCES))
@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "POST", "DELETE"])
@pytest.mark.parametrize("target", [Target.BUCKET, Target.OBJECT])
def test_b057_a_subresource_never_falls_through(method: str, target: Target, subresource: str) -> None:
    """PUT ?legal-hold must not overwrite, DELETE ?acl must not delete: whatever answers, it selects by the name."""
    try:
        operation = resolve(method, target, Query(subresource), Headers())
    except S3Error as error:
        assert error.status in (400, 405, 501)
    else:
        assert subresource in operation.selectors


@pytest.mark.parametrize("name", ["torrent", "legal-hold", "tagging", "acl", "retention", "policy", "annotation"])
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "POST"])
def test_b057_subresources_we_lack_are_not_implemented(method: str, name: str) -> None:
    error = error_of(method, "OBJECT", name)
    assert (error.code, error.status) == ("NotImplemented", 501)


@pytest.mark.parametrize(
    ("method", "target", "name", "allow"),
    [
        ("DELETE", "OBJECT", "attributes", "GET"),
        ("PUT", "OBJECT", "uploads", "POST"),
        ("DELETE", "BUCKET", "versioning", "PUT, GET"),
        ("HEAD", "BUCKET", "location", "GET"),
        ("PUT", "OBJECT", "restore", "POST"),
    ],
)
def test_subresources_we_have_name_their_methods(method: str, target: str, name: str, allow: str) -> None:
    error = error_of(method, target, name)
    assert (error.code, error.status, error.headers["Allow"]) == ("MethodNotAllowed", 405, allow)
    assert error.elements == {"Method": method, "ResourceType": name.upper()}


def test_conflicting_subresources() -> None:
    error = error_of("GET", "BUCKET", "versioning&acl")
    assert (error.code, error.status) == ("InvalidArgument", 400)
    assert error.message == "Conflicting query string parameters: acl, versioning"
    assert error.elements == {"ArgumentName": "ResourceType", "ArgumentValue": "acl"}
    assert error_of("POST", "OBJECT", "uploads&uploadId=u").code == "InvalidArgument"


def test_a_part_needs_both_parameters() -> None:
    assert error_of("PUT", "OBJECT", "partNumber=1").elements["ArgumentName"] == "partNumber"
    assert error_of("PUT", "OBJECT", "uploadId=u").elements["ArgumentName"] == "uploadId"
    assert error_of("PUT", "OBJECT", "uploadId=u", x_amz_copy_source="/b/k").elements["ArgumentName"] == "uploadId"


def test_posts_without_a_selector() -> None:
    assert identify("POST", Target.BUCKET, Query(), Headers()) is POST_OBJECT
    assert "PostObject" in error_of("POST", "BUCKET").message
    error = error_of("POST", "OBJECT")
    assert (error.code, error.elements["ResourceType"]) == ("MethodNotAllowed", "OBJECT")


def test_methods_nobody_has() -> None:
    for method, target in (("PATCH", "OBJECT"), ("TRACE", "BUCKET"), ("DELETE", "SERVICE"), ("HEAD", "SERVICE")):
        error = error_of(method, target)
        assert (error.code, error.status) == ("MethodNotAllowed", 405)
        assert error.elements == {"Method": method, "ResourceType": target}
        assert error.headers["Allow"]


def test_appending_is_refused_not_ignored() -> None:
    error = error_of("PUT", "OBJECT", x_amz_write_offset_bytes="5")
    assert (error.status, error.elements["Header"], error.operation) == (501, "x-amz-write-offset-bytes", "PutObject")


def test_encryption_asked_of_a_part_is_refused() -> None:
    error = error_of(
        "PUT", "OBJECT", "partNumber=1&uploadId=u", x_amz_server_side_encryption_customer_algorithm="AES256"
    )
    assert error.status == 501


def test_preflight() -> None:
    assert error_of("OPTIONS", "OBJECT").status == 400
    assert error_of("OPTIONS", "OBJECT", origin="http://a").status == 400
    error = error_of("OPTIONS", "BUCKET", origin="http://a", access_control_request_method="PUT")
    assert (error.status, error.code) == (403, "AccessForbidden")


def test_what_we_lack_is_501_even_when_something_is_missing() -> None:
    for method, target, query in (
        ("PUT", "OBJECT", "renameObject"),
        ("POST", "OBJECT", "select"),
        ("DELETE", "BUCKET", "inventory"),
    ):
        assert error_of(method, target, query).status == 501


def test_limits_of_documents() -> None:
    assert BY_NAME["DeleteObjects"].limit == 2 << 20
    assert BY_NAME["CreateBucket"].limit == 1 << 20
