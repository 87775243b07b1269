"""THE table: every S3 operation, how a request names it, which IAM action it needs, and who handles it.

Dispatch, authorization, metric labels and the documented list of operations are read from here. The names, methods
and parameters are those of Amazon's service model; a row without a handler is answered 501 by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from enum import Enum

from gateway.domain.metadata import refuse_unsupported
from gateway.s3.errors import S3Error, invalid_argument
from gateway.s3.headers import Headers, Query


class Target(Enum):
    SERVICE = "SERVICE"
    BUCKET = "BUCKET"
    OBJECT = "OBJECT"


class BodyKind(Enum):
    """What a request's body is: nothing, a document small enough to be held, or bytes to be streamed."""

    NONE = "none"
    XML = "xml"
    STREAM = "stream"


SERVICE, BUCKET, OBJECT = Target.SERVICE, Target.BUCKET, Target.OBJECT
NONE, XML, STREAM = BodyKind.NONE, BodyKind.XML, BodyKind.STREAM

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Operation:
    """One row. A request is this operation when method and target agree, it has every parameter of query and every
    pair of fixed, and the header, when one is named, is present.
    """

    name: str
    method: str
    target: Target
    query: tuple[str, ...] = ()
    header: str | None = None
    action: str = ""
    body: BodyKind = NONE
    handler: str | None = None
    fixed: tuple[tuple[str, str], ...] = ()

    @property
    def limit(self) -> int:
        """The largest XML body accepted, in bytes."""
        return _LIMITS.get(self.name, MIB)

    @property
    def selectors(self) -> frozenset[str]:
        """Names of the query parameters that a request needs to be this operation."""
        return frozenset(self.query) | {name for name, _ in self.fixed}


# 1,000 keys of 1,024 bytes, each byte an entity, stay under 2 MiB only when most are short; 10,000 parts with an
# SHA-512 each need more than one.
_LIMITS: Mapping[str, int] = {"DeleteObjects": 2 * MIB, "CompleteMultipartUpload": 4 * MIB}

_COPY = "x-amz-copy-source"


def _row(
    name: str,
    method: str,
    target: Target,
    *query: str,
    action: str = "",
    body: BodyKind = NONE,
    handler: str | None = None,
    header: str | None = None,
    fixed: tuple[tuple[str, str], ...] = (),
) -> Operation:
    """A row; the IAM action is s3:Name unless AWS calls it differently."""
    return Operation(name, method, target, query, header, action or f"s3:{name}", body, handler, fixed)


OPERATIONS: tuple[Operation, ...] = (
    # --- service -------------------------------------------------------------------------------------------------
    _row("ListDirectoryBuckets", "GET", SERVICE, "max-directory-buckets", action="s3express:ListAllMyDirectoryBuckets"),
    _row("ListBuckets", "GET", SERVICE, action="s3:ListAllMyBuckets", handler="service.list_buckets"),
    # --- buckets -------------------------------------------------------------------------------------------------
    _row("CreateBucket", "PUT", BUCKET, body=XML, handler="buckets.create_bucket"),
    _row("HeadBucket", "HEAD", BUCKET, action="s3:ListBucket", handler="buckets.head_bucket"),
    _row("DeleteBucket", "DELETE", BUCKET, handler="buckets.delete_bucket"),
    _row("GetBucketLocation", "GET", BUCKET, "location", handler="buckets.get_bucket_location"),
    _row("PutBucketVersioning", "PUT", BUCKET, "versioning", body=XML, handler="buckets.put_bucket_versioning"),
    _row("GetBucketVersioning", "GET", BUCKET, "versioning", handler="buckets.get_bucket_versioning"),
    _row(
        "DeleteObjects", "POST", BUCKET, "delete", action="s3:DeleteObject", body=XML, handler="objects.delete_objects"
    ),
    _row(
        "ListObjectVersions",
        "GET",
        BUCKET,
        "versions",
        action="s3:ListBucketVersions",
        handler="listing.list_object_versions",
    ),
    _row(
        "ListMultipartUploads",
        "GET",
        BUCKET,
        "uploads",
        action="s3:ListBucketMultipartUploads",
        handler="multipart.list_multipart_uploads",
    ),
    _row(
        "ListObjectsV2",
        "GET",
        BUCKET,
        action="s3:ListBucket",
        handler="listing.list_objects_v2",
        fixed=(("list-type", "2"),),
    ),
    _row("ListObjects", "GET", BUCKET, action="s3:ListBucket", handler="listing.list_objects"),
    # --- bucket configuration ------------------------------------------------------------------------------------
    _row(
        "CreateBucketMetadataConfiguration",
        "POST",
        BUCKET,
        "metadataConfiguration",
        body=XML,
        action="s3:CreateBucketMetadataTableConfiguration",
    ),
    _row("CreateBucketMetadataTableConfiguration", "POST", BUCKET, "metadataTable", body=XML),
    _row("CreateSession", "GET", BUCKET, "session", action="s3express:CreateSession"),
    _row(
        "DeleteBucketAnalyticsConfiguration", "DELETE", BUCKET, "analytics", "id", action="s3:PutAnalyticsConfiguration"
    ),
    _row("DeleteBucketCors", "DELETE", BUCKET, "cors", action="s3:PutBucketCORS"),
    _row("DeleteBucketEncryption", "DELETE", BUCKET, "encryption", action="s3:PutEncryptionConfiguration"),
    _row(
        "DeleteBucketIntelligentTieringConfiguration",
        "DELETE",
        BUCKET,
        "intelligent-tiering",
        "id",
        action="s3:PutIntelligentTieringConfiguration",
    ),
    _row(
        "DeleteBucketInventoryConfiguration", "DELETE", BUCKET, "inventory", "id", action="s3:PutInventoryConfiguration"
    ),
    _row("DeleteBucketLifecycle", "DELETE", BUCKET, "lifecycle", action="s3:PutLifecycleConfiguration"),
    _row(
        "DeleteBucketMetadataConfiguration",
        "DELETE",
        BUCKET,
        "metadataConfiguration",
        action="s3:DeleteBucketMetadataTableConfiguration",
    ),
    _row("DeleteBucketMetadataTableConfiguration", "DELETE", BUCKET, "metadataTable"),
    _row("DeleteBucketMetricsConfiguration", "DELETE", BUCKET, "metrics", "id", action="s3:PutMetricsConfiguration"),
    _row(
        "DeleteBucketOwnershipControls", "DELETE", BUCKET, "ownershipControls", action="s3:PutBucketOwnershipControls"
    ),
    _row("DeleteBucketPolicy", "DELETE", BUCKET, "policy"),
    _row("DeleteBucketReplication", "DELETE", BUCKET, "replication", action="s3:PutReplicationConfiguration"),
    _row("DeleteBucketTagging", "DELETE", BUCKET, "tagging", action="s3:PutBucketTagging"),
    _row("DeleteBucketWebsite", "DELETE", BUCKET, "website"),
    _row("DeletePublicAccessBlock", "DELETE", BUCKET, "publicAccessBlock", action="s3:PutBucketPublicAccessBlock"),
    _row("GetBucketAbac", "GET", BUCKET, "abac"),
    _row("GetBucketAccelerateConfiguration", "GET", BUCKET, "accelerate", action="s3:GetAccelerateConfiguration"),
    _row("GetBucketAcl", "GET", BUCKET, "acl"),
    _row("GetBucketAnalyticsConfiguration", "GET", BUCKET, "analytics", "id", action="s3:GetAnalyticsConfiguration"),
    _row("GetBucketCors", "GET", BUCKET, "cors", action="s3:GetBucketCORS"),
    _row("GetBucketEncryption", "GET", BUCKET, "encryption", action="s3:GetEncryptionConfiguration"),
    _row(
        "GetBucketIntelligentTieringConfiguration",
        "GET",
        BUCKET,
        "intelligent-tiering",
        "id",
        action="s3:GetIntelligentTieringConfiguration",
    ),
    _row("GetBucketInventoryConfiguration", "GET", BUCKET, "inventory", "id", action="s3:GetInventoryConfiguration"),
    _row("GetBucketLifecycleConfiguration", "GET", BUCKET, "lifecycle", action="s3:GetLifecycleConfiguration"),
    _row("GetBucketLifecycle", "GET", BUCKET, "lifecycle", action="s3:GetLifecycleConfiguration"),  # the older name
    _row("GetBucketLogging", "GET", BUCKET, "logging"),
    _row(
        "GetBucketMetadataConfiguration",
        "GET",
        BUCKET,
        "metadataConfiguration",
        action="s3:GetBucketMetadataTableConfiguration",
    ),
    _row("GetBucketMetadataTableConfiguration", "GET", BUCKET, "metadataTable"),
    _row("GetBucketMetricsConfiguration", "GET", BUCKET, "metrics", "id", action="s3:GetMetricsConfiguration"),
    _row("GetBucketNotificationConfiguration", "GET", BUCKET, "notification", action="s3:GetBucketNotification"),
    _row("GetBucketNotification", "GET", BUCKET, "notification"),  # the older name
    _row("GetBucketOwnershipControls", "GET", BUCKET, "ownershipControls"),
    _row("GetBucketPolicy", "GET", BUCKET, "policy"),
    _row("GetBucketPolicyStatus", "GET", BUCKET, "policyStatus"),
    _row("GetBucketReplication", "GET", BUCKET, "replication", action="s3:GetReplicationConfiguration"),
    _row("GetBucketRequestPayment", "GET", BUCKET, "requestPayment"),
    _row("GetBucketTagging", "GET", BUCKET, "tagging"),
    _row("GetBucketWebsite", "GET", BUCKET, "website"),
    _row("GetObjectLockConfiguration", "GET", BUCKET, "object-lock", action="s3:GetBucketObjectLockConfiguration"),
    _row("GetPublicAccessBlock", "GET", BUCKET, "publicAccessBlock", action="s3:GetBucketPublicAccessBlock"),
    _row("ListBucketAnalyticsConfigurations", "GET", BUCKET, "analytics", action="s3:GetAnalyticsConfiguration"),
    _row(
        "ListBucketIntelligentTieringConfigurations",
        "GET",
        BUCKET,
        "intelligent-tiering",
        action="s3:GetIntelligentTieringConfiguration",
    ),
    _row("ListBucketInventoryConfigurations", "GET", BUCKET, "inventory", action="s3:GetInventoryConfiguration"),
    _row("ListBucketMetricsConfigurations", "GET", BUCKET, "metrics", action="s3:GetMetricsConfiguration"),
    _row("PutBucketAbac", "PUT", BUCKET, "abac", body=XML),
    _row(
        "PutBucketAccelerateConfiguration",
        "PUT",
        BUCKET,
        "accelerate",
        body=XML,
        action="s3:PutAccelerateConfiguration",
    ),
    _row("PutBucketAcl", "PUT", BUCKET, "acl", body=XML),
    _row(
        "PutBucketAnalyticsConfiguration",
        "PUT",
        BUCKET,
        "analytics",
        "id",
        body=XML,
        action="s3:PutAnalyticsConfiguration",
    ),
    _row("PutBucketCors", "PUT", BUCKET, "cors", body=XML, action="s3:PutBucketCORS"),
    _row("PutBucketEncryption", "PUT", BUCKET, "encryption", body=XML, action="s3:PutEncryptionConfiguration"),
    _row(
        "PutBucketIntelligentTieringConfiguration",
        "PUT",
        BUCKET,
        "intelligent-tiering",
        "id",
        body=XML,
        action="s3:PutIntelligentTieringConfiguration",
    ),
    _row(
        "PutBucketInventoryConfiguration",
        "PUT",
        BUCKET,
        "inventory",
        "id",
        body=XML,
        action="s3:PutInventoryConfiguration",
    ),
    _row(
        "PutBucketLifecycleConfiguration", "PUT", BUCKET, "lifecycle", body=XML, action="s3:PutLifecycleConfiguration"
    ),
    _row("PutBucketLifecycle", "PUT", BUCKET, "lifecycle", body=XML, action="s3:PutLifecycleConfiguration"),
    _row("PutBucketLogging", "PUT", BUCKET, "logging", body=XML),
    _row(
        "PutBucketMetricsConfiguration", "PUT", BUCKET, "metrics", "id", body=XML, action="s3:PutMetricsConfiguration"
    ),
    _row(
        "PutBucketNotificationConfiguration", "PUT", BUCKET, "notification", body=XML, action="s3:PutBucketNotification"
    ),
    _row("PutBucketNotification", "PUT", BUCKET, "notification", body=XML),
    _row("PutBucketOwnershipControls", "PUT", BUCKET, "ownershipControls", body=XML),
    _row("PutBucketPolicy", "PUT", BUCKET, "policy", body=XML),
    _row("PutBucketReplication", "PUT", BUCKET, "replication", body=XML, action="s3:PutReplicationConfiguration"),
    _row("PutBucketRequestPayment", "PUT", BUCKET, "requestPayment", body=XML),
    _row("PutBucketTagging", "PUT", BUCKET, "tagging", body=XML),
    _row("PutBucketWebsite", "PUT", BUCKET, "website", body=XML),
    _row(
        "PutObjectLockConfiguration",
        "PUT",
        BUCKET,
        "object-lock",
        body=XML,
        action="s3:PutBucketObjectLockConfiguration",
    ),
    _row("PutPublicAccessBlock", "PUT", BUCKET, "publicAccessBlock", body=XML, action="s3:PutBucketPublicAccessBlock"),
    _row("UpdateBucketMetadataAnnotationTableConfiguration", "PUT", BUCKET, "metadataAnnotationTable", body=XML),
    _row("UpdateBucketMetadataInventoryTableConfiguration", "PUT", BUCKET, "metadataInventoryTable", body=XML),
    _row("UpdateBucketMetadataJournalTableConfiguration", "PUT", BUCKET, "metadataJournalTable", body=XML),
    _row(
        "WriteGetObjectResponse",
        "POST",
        BUCKET,
        header="x-amz-request-route",
        body=STREAM,
        action="s3-object-lambda:WriteGetObjectResponse",
    ),
    # --- objects -------------------------------------------------------------------------------------------------
    _row(
        "UploadPartCopy",
        "PUT",
        OBJECT,
        "partNumber",
        "uploadId",
        header=_COPY,
        action="s3:PutObject",
        handler="copy.upload_part_copy",
    ),
    _row(
        "UploadPart",
        "PUT",
        OBJECT,
        "partNumber",
        "uploadId",
        action="s3:PutObject",
        body=STREAM,
        handler="multipart.upload_part",
    ),
    _row("CopyObject", "PUT", OBJECT, header=_COPY, action="s3:PutObject", handler="copy.copy_object"),
    _row("PutObject", "PUT", OBJECT, body=STREAM, handler="objects.put_object"),
    _row("GetObject", "GET", OBJECT, handler="objects.get_object"),
    _row("HeadObject", "HEAD", OBJECT, action="s3:GetObject", handler="objects.head_object"),
    _row("DeleteObject", "DELETE", OBJECT, handler="objects.delete_object"),
    _row("GetObjectAttributes", "GET", OBJECT, "attributes", handler="objects.get_object_attributes"),
    _row("RestoreObject", "POST", OBJECT, "restore", body=XML, handler="objects.restore_object"),
    _row(
        "CreateMultipartUpload",
        "POST",
        OBJECT,
        "uploads",
        action="s3:PutObject",
        handler="multipart.create_multipart_upload",
    ),
    _row(
        "CompleteMultipartUpload",
        "POST",
        OBJECT,
        "uploadId",
        action="s3:PutObject",
        body=XML,
        handler="multipart.complete_multipart_upload",
    ),
    _row("AbortMultipartUpload", "DELETE", OBJECT, "uploadId", handler="multipart.abort_multipart_upload"),
    _row("ListParts", "GET", OBJECT, "uploadId", action="s3:ListMultipartUploadParts", handler="multipart.list_parts"),
    # --- object configuration ------------------------------------------------------------------------------------
    _row("DeleteObjectAnnotation", "DELETE", OBJECT, "annotation", "annotationName"),
    _row("DeleteObjectTagging", "DELETE", OBJECT, "tagging"),
    _row("GetObjectAcl", "GET", OBJECT, "acl"),
    _row("GetObjectAnnotation", "GET", OBJECT, "annotation", "annotationName"),
    _row("GetObjectLegalHold", "GET", OBJECT, "legal-hold"),
    _row("GetObjectRetention", "GET", OBJECT, "retention"),
    _row("GetObjectTagging", "GET", OBJECT, "tagging"),
    _row("GetObjectTorrent", "GET", OBJECT, "torrent"),
    _row("ListObjectAnnotations", "GET", OBJECT, "annotation"),
    _row("PutObjectAcl", "PUT", OBJECT, "acl", body=XML),
    _row("PutObjectAnnotation", "PUT", OBJECT, "annotation", "annotationName", body=STREAM),
    _row("PutObjectLegalHold", "PUT", OBJECT, "legal-hold", body=XML),
    _row("PutObjectRetention", "PUT", OBJECT, "retention", body=XML),
    _row("PutObjectTagging", "PUT", OBJECT, "tagging", body=XML),
    _row("RenameObject", "PUT", OBJECT, "renameObject", header="x-amz-rename-source"),
    _row(
        "SelectObjectContent", "POST", OBJECT, "select", action="s3:GetObject", body=XML, fixed=(("select-type", "2"),)
    ),
    _row("UpdateObjectEncryption", "PUT", OBJECT, "encryption", body=XML),
)

# Requests S3 answers that its service model does not name.
POST_OBJECT = _row("PostObject", "POST", BUCKET, action="s3:PutObject", body=STREAM)
PREFLIGHT = _row("OptionsObject", "OPTIONS", OBJECT, action="")

BY_NAME: Mapping[str, Operation] = {row.name: row for row in (*OPERATIONS, POST_OBJECT, PREFLIGHT)}

# Parameters that qualify an operation without choosing it, although some rows need them.
_QUALIFIERS = frozenset({"id", "annotationName", "list-type", "select-type", "partNumber", "max-directory-buckets"})
# Sub-resources S3 knows or knew, and its kin, that no row of the model selects by.
_UNMODELLED = frozenset({"append", "requestPayment", "select", "tier", "torrent", "versions", "website"})

SUBRESOURCES: frozenset[str] = _UNMODELLED | {
    name for row in OPERATIONS for name in row.query if name not in _QUALIFIERS
}

_SPECIFIC: Mapping[tuple[str, Target], tuple[Operation, ...]] = {
    key: tuple(
        sorted(
            (row for row in OPERATIONS if (row.method, row.target) == key),
            key=lambda row: -(2 * len(row.selectors) + (row.header is not None)),
        )
    )
    for key in {(row.method, row.target) for row in OPERATIONS}
}

# Most requests select by nothing: what may select at all, and the row that is meant then.
_SELECTING: frozenset[str] = SUBRESOURCES.union(*(row.selectors for row in OPERATIONS))
_HEADERS: frozenset[str] = frozenset(row.header for row in OPERATIONS if row.header is not None)
_PLAIN: Mapping[tuple[str, Target], Operation] = {
    (row.method, row.target): row for row in OPERATIONS if not row.selectors and row.header is None
}

_METHODS: Mapping[Target, tuple[str, ...]] = {
    target: tuple(dict.fromkeys(row.method for row in OPERATIONS if row.target is target)) for target in Target
}

# What these ask for in headers and is not there is refused before anything else happens.
_WRITES = frozenset(
    {"PutObject", "CopyObject", "CreateMultipartUpload", "UploadPart", "UploadPartCopy", "CreateBucket"}
)


def resolve(method: str, target: Target, query: Query, headers: Headers) -> Operation:
    """The operation a request names; its handler is never None.

    Raises NotImplemented (carrying the operation's name) for one without a handler, MethodNotAllowed where S3 has
    none, InvalidArgument for conflicting or missing selectors, and what S3 answers a preflight request.
    """
    operation = identify(method, target, query, headers)
    if operation.handler is None:
        raise not_implemented(operation.name)
    if operation.name in _WRITES:
        try:
            refuse_unsupported(headers)
        except S3Error as error:
            error.operation = operation.name
            raise
    return operation


def identify(method: str, target: Target, query: Query, headers: Headers) -> Operation:
    """As resolve, but rows without a handler are returned: for labels and the log."""
    if method == "OPTIONS":
        raise _preflight(headers)
    if _SELECTING.isdisjoint(query) and _HEADERS.isdisjoint(headers) and (row := _PLAIN.get((method, target))):
        return row
    names = query.keys()
    asked = names & SUBRESOURCES
    row = next((row for row in _SPECIFIC.get((method, target), ()) if _matches(row, query, headers)), None)
    if row is not None and (not asked or asked <= row.selectors):
        _check_upload(row, names)
        return row
    if not asked:
        if method == "POST" and target is BUCKET:
            return POST_OBJECT
        raise _method_not_allowed(method, target, _METHODS[target])
    if len(asked) > 1 and not _torn(asked):
        listed = sorted(asked)
        raise invalid_argument("ResourceType", listed[0], f"Conflicting query string parameters: {', '.join(listed)}")
    # A sub-resource never falls through to the plain operation: DELETE ?acl must not delete the object.
    (subresource, *_) = sorted(asked)
    rows = [row for row in OPERATIONS if row.target is target and subresource in row.query]
    same_method = [row for row in rows if row.method == method]
    if same_method:
        likely = next((row for row in same_method if row.header is None or row.header in headers), same_method[0])
        raise not_implemented(likely.name) if likely.handler is None else _missing_parameter(likely, query)
    if any(row.handler is not None for row in rows):
        raise _method_not_allowed(method, target, tuple(dict.fromkeys(row.method for row in rows)), subresource)
    raise not_implemented(f"{method} ?{subresource}")


def not_implemented(name: str) -> S3Error:
    """501 that says which operation is meant."""
    return S3Error("NotImplemented", f"{name} is not implemented", Operation=name, operation=name)


def _matches(row: Operation, query: Query, headers: Headers) -> bool:
    return (
        all(name in query for name in row.query)
        and all(query.get(name) == value for name, value in row.fixed)
        and (row.header is None or row.header in headers)
    )


def _torn(asked: Set[str]) -> bool:
    """Whether several selectors belong together in some row."""
    return any(asked <= row.selectors for row in OPERATIONS)


def _check_upload(row: Operation, names: Set[str]) -> None:
    """A part number without an upload (PUT) would overwrite the whole object with one part."""
    if row.method == "PUT" and "partNumber" in names and "uploadId" not in names:
        raise invalid_argument("partNumber", None, "This operation does not accept partNumber without uploadId")


def _missing_parameter(row: Operation, query: Query) -> S3Error:
    """The sub-resource is right, a parameter the operation also needs is not there."""
    missing = next((name for name in row.query if name not in query), row.query[-1])
    if missing == "partNumber":
        message = "This operation does not accept uploadId without partNumber"
        return invalid_argument("uploadId", query.get("uploadId"), message)
    return S3Error("InvalidRequest", f"Missing required parameter for this request: {missing}")


def _method_not_allowed(
    method: str, target: Target, allowed: tuple[str, ...], subresource: str | None = None
) -> S3Error:
    resource = target.value if subresource is None else subresource.upper().replace("-", "_")
    return S3Error("MethodNotAllowed", Method=method, ResourceType=resource, headers={"Allow": ", ".join(allowed)})


def _preflight(headers: Headers) -> S3Error:
    """OPTIONS: no bucket has a CORS configuration yet, so each preflight is refused as S3 refuses it then."""
    if "origin" not in headers:
        return _bad_preflight("Insufficient information. Origin request header needed.")
    method = headers.get("access-control-request-method")
    if method not in {"GET", "PUT", "HEAD", "POST", "DELETE"}:
        return _bad_preflight(f"Invalid Access-Control-Request-Method: {method or 'null'}")
    return S3Error("AccessForbidden", Method=method, ResourceType="BUCKET", operation=PREFLIGHT.name)


def _bad_preflight(message: str) -> S3Error:
    return S3Error("BadRequest", message, operation=PREFLIGHT.name)
