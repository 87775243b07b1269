"""What a client says about an object in headers, and how it is said back (S3 reference, "Object metadata")."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gateway.domain import tags
from gateway.domain.dates import http_date
from gateway.domain.etags import quote
from gateway.domain.fields import Fields
from gateway.domain.objects import Attributes, Version
from gateway.domain.words import encode_words
from gateway.s3.errors import S3Error
from storage_tiers.placement import STORAGE_CLASSES

USER_PREFIX = "x-amz-meta-"
REDIRECT = "x-amz-website-redirect-location"
MAX_USER_METADATA = 2048  # bytes: names without the prefix, and values, in UTF-8
DEFAULT_TYPE = "binary/octet-stream"
STANDARD = "STANDARD"

BUCKET_ACLS = frozenset({"private", "public-read", "public-read-write", "authenticated-read"})
OBJECT_ACLS = BUCKET_ACLS | {"aws-exec-read", "bucket-owner-read", "bucket-owner-full-control"}

# Kept as given and returned as given: header by lower-case name -> as answers spell it.
SYSTEM_HEADERS: Mapping[str, str] = {
    "cache-control": "Cache-Control",
    "content-disposition": "Content-Disposition",
    "content-encoding": "Content-Encoding",
    "content-language": "Content-Language",
    "expires": "Expires",
    REDIRECT: REDIRECT,
}

# Headers that ask for what is not there: ignoring one would store an object without the protection its sender
# counts on. Ends with "*": every header that begins so.
REFUSED = (
    "x-amz-server-side-encryption*",
    "x-amz-copy-source-server-side-encryption*",
    "x-amz-object-lock-*",
    "x-amz-bucket-object-lock-enabled",
    "x-amz-grant-*",
    "x-amz-write-offset-bytes",
    "x-amz-object-annotation-directive",
    "x-amz-mfa",
    "x-amz-rename-source*",
)
_REFUSED_NAMES = frozenset(name for name in REFUSED if not name.endswith("*"))
_REFUSED_PREFIXES = tuple(name[:-1] for name in REFUSED if name.endswith("*"))


def refuse_unsupported(headers: Fields) -> None:
    """Raises NotImplemented (501) that names the first header whose feature is not there."""
    for name, value in headers.lines:
        if name in _REFUSED_NAMES or name.startswith(_REFUSED_PREFIXES):
            if name == "x-amz-bucket-object-lock-enabled" and value.lower() == "false":
                continue
            raise S3Error("NotImplemented", Header=name)


# --- reading -------------------------------------------------------------------------------------------------


def read_attributes(headers: Fields) -> Attributes:
    """Attributes from the headers of PutObject, CreateMultipartUpload or CopyObject with REPLACE.

    content_type is None when the client named none. Raises MetadataTooLarge, InvalidStorageClass, InvalidArgument,
    InvalidTag, BadRequest, InvalidRedirectLocation, NotImplemented.
    """
    refuse_unsupported(headers)
    system: dict[str, str] = {}
    for name in SYSTEM_HEADERS:
        value = headers.get(name)
        if value is not None and (value := _SYSTEM_READERS.get(name, text)(value)):
            system[name] = value
    declared = headers.get("content-type")
    return Attributes(
        content_type=text(declared) if declared else None,
        headers=system,
        metadata=user_metadata(headers),
        tags=tags.parse_header(headers.get("x-amz-tagging")),
        storage_class=storage_class(headers),
        acl=canned_acl(headers, OBJECT_ACLS),
    )


def user_metadata(headers: Fields) -> dict[str, str]:
    """x-amz-meta-* by lower-case name without the prefix; repeated lines joined by commas. Raises MetadataTooLarge."""
    metadata: dict[str, str] = {}
    for name, value in headers.lines:
        if name.startswith(USER_PREFIX):
            short = name[len(USER_PREFIX) :]
            metadata[short] = f"{metadata[short]},{text(value)}" if short in metadata else text(value)
    size = sum(len(name.encode()) + len(value.encode()) for name, value in metadata.items())
    if size > MAX_USER_METADATA:
        raise S3Error("MetadataTooLarge", MaxSizeAllowed=MAX_USER_METADATA, Size=size)
    return metadata


def text(value: str) -> str:
    """A header value as text: UTF-8 where its bytes are that, else ISO 8859-1 (RFC 9110, 5.5).

    value carries bytes that are not UTF-8 as surrogates; the answer has none, so that it can be stored.
    """
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        return value.encode("utf-8", "surrogateescape").decode("latin-1")
    return value


def storage_class(headers: Fields) -> str:
    """x-amz-storage-class, STANDARD without one. Raises InvalidStorageClass."""
    name = headers.get("x-amz-storage-class")
    if not name:
        return STANDARD
    if name not in STORAGE_CLASSES:
        raise S3Error("InvalidStorageClass", StorageClassRequested=name)
    return name


def canned_acl(headers: Fields, allowed: frozenset[str]) -> str:
    """x-amz-acl, private without one. allowed: OBJECT_ACLS or BUCKET_ACLS. Raises InvalidArgument."""
    name = headers.get("x-amz-acl")
    if not name:
        return "private"
    if name not in allowed:
        raise S3Error("InvalidArgument", ArgumentName="x-amz-acl", ArgumentValue=name)
    return name


def _content_encoding(value: str) -> str:
    """Without aws-chunked, which is how the bytes travelled and no property of the object."""
    codings = [coding.strip() for coding in value.split(",")]
    kept = [coding for coding in codings if coding and coding.lower() != "aws-chunked"]
    return text(value if len(kept) == len(codings) else ", ".join(kept))


def _redirect(value: str) -> str:
    if not value.startswith(("/", "http://", "https://")):
        raise S3Error("InvalidRedirectLocation")
    return text(value)


_SYSTEM_READERS = {"content-encoding": _content_encoding, REDIRECT: _redirect}


# --- copies --------------------------------------------------------------------------------------------------

_SELF_COPY = (
    "This copy request is illegal because it is trying to copy an object to itself without changing the object's "
    "metadata, storage class, website redirect location or encryption attributes."
)


def copy_attributes(headers: Fields, source: Version, *, onto_itself: bool = False) -> Attributes:
    """What a CopyObject's result is said to be.

    By default metadata and tags are the source's (the request's are ignored), while class, ACL and redirect are
    the request's alone; the directives REPLACE take metadata or tags from the request, whole. onto_itself: source
    and target are one key and the source its current version. Raises InvalidRequest for a copy onto itself that
    changes nothing, InvalidArgument for an unknown directive, and as read_attributes does.
    """
    metadata = _directive(headers, "metadata")
    tagging = _directive(headers, "tagging")
    if metadata == "REPLACE":
        attributes = read_attributes(headers)
    else:
        refuse_unsupported(headers)
        kept = {name: value for name, value in source.headers.items() if name != REDIRECT}
        if location := headers.get(REDIRECT):
            kept[REDIRECT] = _redirect(location)
        attributes = Attributes(
            source.content_type, kept, source.metadata, {}, storage_class(headers), canned_acl(headers, OBJECT_ACLS)
        )
        changed = REDIRECT in headers or attributes.storage_class != source.storage_class
        if onto_itself and not changed:
            raise S3Error("InvalidRequest", _SELF_COPY)
    replaced = tags.parse_header(headers.get("x-amz-tagging")) if tagging == "REPLACE" else source.tags
    return replace(attributes, tags=replaced)


def _directive(headers: Fields, what: str) -> str:
    value = headers.get(f"x-amz-{what}-directive", "COPY")
    if value not in ("COPY", "REPLACE"):
        name = f"x-amz-{what}-directive"
        raise S3Error("InvalidArgument", f"Unknown {what} directive.", ArgumentName=name, ArgumentValue=value)
    return value


# --- answering -----------------------------------------------------------------------------------------------


_OVERRIDES: Mapping[str, str] = {
    "response-content-type": "Content-Type",
    "response-content-language": "Content-Language",
    "response-expires": "Expires",
    "response-cache-control": "Cache-Control",
    "response-content-disposition": "Content-Disposition",
    "response-content-encoding": "Content-Encoding",
}


def overrides(query: Mapping[str, str], *, signed: bool) -> dict[str, str]:
    """Answer headers that ``response-*`` parameters ask for.

    Raises InvalidRequest when the request is anonymous, InvalidArgument for a value no header can hold.
    """
    headers: dict[str, str] = {}
    if _OVERRIDES.keys().isdisjoint(query):
        return headers
    for parameter, name in _OVERRIDES.items():
        value = query.get(parameter)
        if not value:
            continue
        if any(c < " " or c == "\x7f" or c > "\xff" for c in value):
            raise S3Error(
                "InvalidArgument",
                "Header value cannot be represented using ISO-8859-1.",
                ArgumentName=parameter,
                ArgumentValue=value,
            )
        headers[name] = value
    if headers and not signed:
        raise S3Error("InvalidRequest", "Request specific response headers cannot be used for anonymous GET requests.")
    return headers


def object_headers(version: Version, *, versioned: bool) -> dict[str, str]:
    """The headers of a GET or HEAD that describe the object; not those of its length, range, checksums or state.

    versioned: versioning was ever enabled on the bucket, so that a version id is shown.
    """
    headers = {
        "Last-Modified": http_date(version.modified),
        "ETag": quote(version.etag),
        "Accept-Ranges": "bytes",
        "Content-Type": encode_words(version.content_type or DEFAULT_TYPE),
    }
    for name, value in version.headers.items():
        headers[SYSTEM_HEADERS.get(name, name)] = encode_words(value)
    for name, value in version.metadata.items():
        headers[USER_PREFIX + name] = encode_words(value)
    if version.storage_class != STANDARD:
        headers["x-amz-storage-class"] = version.storage_class
    if version.tags:
        headers["x-amz-tagging-count"] = str(len(version.tags))
    if versioned:
        headers["x-amz-version-id"] = version.version_id
    return headers


_VALIDATORS = ("Last-Modified", "ETag", "Cache-Control", "Expires", "x-amz-version-id")


def not_modified_headers(version: Version, *, versioned: bool) -> dict[str, str]:
    """The headers of a 304 (RFC 9110, 15.4.5): those that would help a cache, and the version's id."""
    headers = object_headers(version, versioned=versioned)
    return {name: headers[name] for name in _VALIDATORS if name in headers}
