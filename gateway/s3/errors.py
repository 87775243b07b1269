"""Every error code an S3 client can meet here, and the one exception that carries them.

Codes, statuses and sentences are Amazon S3's (API reference, "Error responses"); the rows of OWN are Sluice's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

AWS: Mapping[str, tuple[int, str]] = {
    "AccessControlListNotSupported": (400, "The bucket does not allow ACLs"),
    "AccessDenied": (403, "Access Denied"),
    "AccessForbidden": (403, "CORSResponse: CORS is not enabled for this bucket."),
    "AuthorizationHeaderMalformed": (400, "The authorization header you provided is invalid."),
    "AuthorizationQueryParametersError": (
        400,
        "Query-string authentication version 4 requires the X-Amz-Algorithm, X-Amz-Credential, X-Amz-Signature, "
        "X-Amz-Date, X-Amz-SignedHeaders, and X-Amz-Expires parameters.",
    ),
    "BadDigest": (400, "The Content-MD5 you specified did not match what we received."),
    "BadRequest": (400, "Bad Request"),
    "BucketAlreadyExists": (
        409,
        "The requested bucket name is not available. The bucket namespace is shared by all users of the system. "
        "Please select a different name and try again.",
    ),
    "BucketAlreadyOwnedByYou": (
        409,
        "Your previous request to create the named bucket succeeded and you already own it.",
    ),
    "BucketNotEmpty": (409, "The bucket you tried to delete is not empty"),
    "ConditionalRequestConflict": (
        409,
        "The conditional request cannot succeed due to a conflicting operation against this resource.",
    ),
    "EntityTooLarge": (400, "Your proposed upload exceeds the maximum allowed size"),
    "EntityTooSmall": (400, "Your proposed upload is smaller than the minimum allowed size"),
    "ExpiredToken": (400, "The provided token has expired."),
    "IllegalLocationConstraintException": (
        400,
        "The specified location constraint is incompatible for the region specific endpoint this request was sent to.",
    ),
    "IncompleteBody": (400, "The request body terminated unexpectedly"),
    "InternalError": (500, "We encountered an internal error. Please try again."),
    "InvalidAccessKeyId": (403, "The AWS Access Key Id you provided does not exist in our records."),
    "InvalidArgument": (400, "Invalid Argument"),
    "InvalidBucketName": (400, "The specified bucket is not valid."),
    "InvalidBucketOwnerAWSAccountID": (
        400,
        "The value of the expected bucket owner parameter must be an AWS account ID.",
    ),
    "InvalidBucketState": (409, "The request is not valid with the current state of the bucket."),
    "InvalidChunkSizeError": (
        400,
        "Only the last chunk is allowed to have a size less than 8192 bytes",
    ),
    "InvalidDigest": (400, "The Content-MD5 you specified was invalid."),
    "InvalidEncryptionAlgorithmError": (
        400,
        "The Encryption request you specified is not valid. Supported value: AES256.",
    ),
    "InvalidLocationConstraint": (400, "The specified location-constraint is not valid"),
    "InvalidObjectState": (403, "The operation is not valid for the object's storage class"),
    "InvalidPart": (
        400,
        "One or more of the specified parts could not be found.  The part may not have been uploaded, or the "
        "specified entity tag may not match the part's entity tag.",
    ),
    "InvalidPartNumber": (416, "The requested partnumber is not satisfiable"),
    "InvalidPartOrder": (
        400,
        "The list of parts was not in ascending order. Parts must be ordered by part number.",
    ),
    "InvalidRange": (416, "The requested range is not satisfiable"),
    "InvalidRedirectLocation": (
        400,
        "The website redirect location must have a prefix of 'http://' or 'https://' or '/'.",
    ),
    "InvalidRequest": (400, "Invalid Request"),
    "InvalidStorageClass": (400, "The storage class you specified is not valid"),
    "InvalidTag": (400, "The tag provided was not a valid tag."),
    "InvalidToken": (400, "The provided token is malformed or otherwise invalid."),
    "InvalidURI": (400, "Couldn't parse the specified URI."),
    "KeyTooLongError": (400, "Your key is too long"),
    "MalformedPOSTRequest": (400, "The body of your POST request is not well-formed multipart/form-data."),
    "MalformedTrailerError": (
        400,
        "The request contained trailing data that was not well-formed or did not conform to our published schema.",
    ),
    "MalformedXML": (
        400,
        "The XML you provided was not well-formed or did not validate against our published schema",
    ),
    "MaxMessageLengthExceeded": (400, "Your request was too big."),
    "MetadataTooLarge": (400, "Your metadata headers exceed the maximum allowed metadata size"),
    "MethodNotAllowed": (405, "The specified method is not allowed against this resource."),
    "MissingContentLength": (411, "You must provide the Content-Length HTTP header."),
    "MissingRequestBodyError": (400, "Request Body is empty"),
    "MissingSecurityHeader": (400, "Your request was missing a required header"),
    "NoSuchBucket": (404, "The specified bucket does not exist"),
    "NoSuchKey": (404, "The specified key does not exist."),
    "NoSuchUpload": (
        404,
        "The specified upload does not exist. The upload ID may be invalid, or the upload may have been aborted or "
        "completed.",
    ),
    "NoSuchVersion": (404, "The specified version does not exist."),
    "NotImplemented": (501, "A header you provided implies functionality that is not implemented"),
    "NotModified": (304, "Not Modified"),
    "ObjectAlreadyInActiveTierError": (403, "This object is already in the active tier"),
    "OperationAborted": (
        409,
        "A conflicting conditional operation is currently in progress against this resource. Please try again.",
    ),
    "PermanentRedirect": (
        301,
        "The bucket you are attempting to access must be addressed using the specified endpoint. Please send all "
        "future requests to this endpoint.",
    ),
    "PreconditionFailed": (412, "At least one of the pre-conditions you specified did not hold"),
    "RequestHeaderSectionTooLarge": (
        400,
        "Your request header section exceeds the maximum allowed size.",
    ),
    "RequestTimeTooSkewed": (
        403,
        "The difference between the request time and the current time is too large.",
    ),
    "RequestTimeout": (
        400,
        "Your socket connection to the server was not read from or written to within the timeout period.",
    ),
    "RestoreAlreadyInProgress": (409, "Object restore is already in progress"),
    "ServiceUnavailable": (503, "Please reduce your request rate."),
    "SignatureDoesNotMatch": (
        403,
        "The request signature we calculated does not match the signature you provided. Check your key and signing "
        "method.",
    ),
    "SlowDown": (503, "Please reduce your request rate."),
    "TooManyBuckets": (400, "You have attempted to create more buckets than allowed."),
    "UnexpectedContent": (400, "This request does not support content"),
    "UnresolvableGrantByEmailAddress": (
        400,
        "The e-mail address you provided does not match any account on record.",
    ),
    "XAmzContentSHA256Mismatch": (
        400,
        "The provided 'x-amz-content-sha256' header does not match what was computed.",
    ),
}

OWN: Mapping[str, tuple[int, str]] = {
    "ObjectQuarantined": (403, "The object was quarantined when it was processed and is not served."),
    "ProcessingFailed": (422, "The object could not be processed and is not served."),
}

ERRORS: Mapping[str, tuple[int, str]] = {**AWS, **OWN}


class S3Error(Exception):
    """The one way a request fails: ``raise S3Error("NoSuchKey", Key=key)``.

    code is a row of ERRORS (anything else is a KeyError: a bug, found by the first test that raises it); message
    replaces the row's sentence; status replaces its HTTP status; headers go on the answer; every further keyword
    becomes an element of the XML document, in order, with ``str(value)`` as its text and left out when None.
    operation is the name of the operation that was refused, where the refusal comes before a handler exists; more
    holds elements whose names are no Python identifiers, and comes first.
    """

    def __init__(
        self,
        code: str,
        message: str | None = None,
        *,
        status: int | None = None,
        headers: Mapping[str, str] | None = None,
        operation: str | None = None,
        more: Mapping[str, Any] | None = None,
        **elements: Any,
    ) -> None:
        row_status, row_message = ERRORS[code]
        self.code = code
        self.message = row_message if message is None else _clean(message)
        self.status = row_status if status is None else status
        self.headers: dict[str, str] = dict(headers or {})
        self.operation = operation
        named = {**(more or {}), **elements}
        self.elements: dict[str, str] = {name: _clean(str(value)) for name, value in named.items() if value is not None}
        super().__init__(code, self.message)

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


def _clean(text: str) -> str:
    """Bytes of a header that are no UTF-8 (surrogates here) become replacement characters: a document is text."""
    return text if text.isascii() else text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def invalid_argument(name: str, value: str | None, message: str | None = None) -> S3Error:
    """InvalidArgument naming the argument, as S3 does."""
    return S3Error("InvalidArgument", message, ArgumentName=name, ArgumentValue=value)
