"""Request documents, read strictly: whatever the schema does not know is MalformedXML."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import NamedTuple
from xml.etree.ElementTree import Element

from gateway.domain import etags
from gateway.domain.checksums import ALGORITHMS
from gateway.domain.conditions import DeleteCondition
from gateway.domain.dates import parse_date
from gateway.domain.objects import Versioning
from gateway.s3.errors import S3Error
from gateway.s3.xml import MAX_BODY, children, leaf, malformed, read, to_int, truth, whole_number

MAX_DELETE = 2 << 20  # bytes: 1,000 keys of 1,024 bytes, some of them escaped
MAX_COMPLETE = 4 << 20  # bytes: 10,000 parts with an etag and a SHA-512 each
MAX_KEYS = 1000
MAX_PARTS = 10_000


# --- DeleteObjects -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DeleteItem:
    """One object to delete. key: UTF-8 bytes, exactly as written."""

    key: bytes
    version_id: str | None = None
    condition: DeleteCondition | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    items: tuple[DeleteItem, ...]
    quiet: bool = False


_DELETE_ONCE, _DELETE_MANY = frozenset({"Quiet"}), frozenset({"Object"})
_OBJECT = frozenset({"Key", "VersionId", "ETag", "LastModifiedTime", "Size"})


def parse_delete(body: bytes) -> Delete:
    """DeleteObjects: 1 to 1,000 objects. Raises MalformedXML."""
    items: list[DeleteItem] = []
    quiet = False
    for name, child in children(read(body, "Delete", MAX_DELETE), _DELETE_ONCE, _DELETE_MANY):
        if name == "Quiet":
            quiet = truth(child)
        else:
            items.append(_delete_item(child))
    if not 0 < len(items) <= MAX_KEYS:
        raise malformed()
    return Delete(tuple(items), quiet)


def _delete_item(element: Element) -> DeleteItem:
    given = dict(children(element, _OBJECT))
    key = leaf(given["Key"]) if "Key" in given else ""
    if not key:
        raise malformed()
    version = leaf(given["VersionId"]) if "VersionId" in given else ""
    return DeleteItem(key.encode(), version or None, _delete_condition(given))


def _delete_condition(given: Mapping[str, Element]) -> DeleteCondition | None:
    tag, time, size = given.get("ETag"), given.get("LastModifiedTime"), given.get("Size")
    if tag is None and time is None and size is None:
        return None
    return DeleteCondition(
        None if tag is None else (etags.unquote(leaf(tag)),),
        None if time is None else _time(leaf(time)),
        None if size is None else whole_number(size),
    )


def _time(text: str) -> datetime:
    moment = parse_date(text)
    if moment is None:
        raise malformed()
    return moment


# --- CompleteMultipartUpload ---------------------------------------------------------------------------------


_NONE: Mapping[str, str] = MappingProxyType({})


class CompletePart(NamedTuple):
    """A part as the client lists it. etag without quotes; checksums: base64 by algorithm name.

    A tuple, because a request has up to 10,000 of them.
    """

    number: int
    etag: str
    checksums: Mapping[str, str] = _NONE


_PART_FIELDS = {"PartNumber": "PartNumber", "ETag": "ETag"} | {row.element: row.name for row in ALGORITHMS}


def parse_complete(body: bytes) -> tuple[CompletePart, ...]:
    """CompleteMultipartUpload: 1 to 10,000 parts in the order given, which is the operation's to judge.

    Raises MalformedXML. This is the longest request document there is, hence no generic walk: names are looked up
    with their namespace.
    """
    root = read(body, "CompleteMultipartUpload", MAX_COMPLETE, depth=None)
    if not 0 < len(root) <= MAX_PARTS or (root.text and not root.text.isspace()):
        raise malformed()
    namespace: str = root.tag[: -len("CompleteMultipartUpload")]
    fields = {namespace + element: name for element, name in _PART_FIELDS.items()}
    part_tag = namespace + "Part"
    parts: list[CompletePart] = []
    for part in root:
        if part.tag != part_tag or (part.tail and not part.tail.isspace()):
            raise malformed()
        given: dict[str, str] = {}
        for child in part:
            name, text = fields.get(child.tag), child.text
            if name is None or name in given or text is None or len(child):
                raise malformed()
            given[name] = text
        number, etag = given.pop("PartNumber", None), given.pop("ETag", None)
        if number is None or etag is None:
            raise malformed()
        parts.append(CompletePart(to_int(number), etags.unquote(etag), given or _NONE))
    return tuple(parts)


# --- buckets -------------------------------------------------------------------------------------------------

_CREATE = frozenset({"LocationConstraint", "Location", "Bucket", "Tags"})


def parse_create_bucket(body: bytes) -> str | None:
    """CreateBucket's location constraint, or None without one (an empty body too).

    Raises MalformedXML; NotImplemented for directory buckets and for tags at creation.
    """
    if not body.strip():
        return None
    given = dict(children(read(body, "CreateBucketConfiguration"), _CREATE))
    for name in ("Location", "Bucket", "Tags"):
        if name in given and len(given[name]):
            raise S3Error("NotImplemented", f"CreateBucketConfiguration/{name} is not implemented")
    if "LocationConstraint" not in given:
        return None
    return leaf(given["LocationConstraint"])


_VERSIONING = frozenset({"Status", "MfaDelete"})
_STATUS = {"Enabled": Versioning.ENABLED, "Suspended": Versioning.SUSPENDED}


def parse_versioning(body: bytes) -> Versioning | None:
    """PutBucketVersioning: the status asked for; None when the document names none, which changes nothing.

    Raises MalformedXML; NotImplemented for MFA delete.
    """
    given = dict(children(read(body, "VersioningConfiguration"), _VERSIONING))
    if "MfaDelete" in given:
        mode = leaf(given["MfaDelete"])
        if mode == "Enabled":
            raise S3Error("NotImplemented", "MFA delete is not implemented")
        if mode != "Disabled":
            raise malformed()
    if "Status" not in given:
        return None
    try:
        return _STATUS[leaf(given["Status"])]
    except KeyError:
        raise malformed() from None


# --- RestoreObject -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Restore:
    """How long the temporary copy stays, in days, and how urgent it is: Expedited, Standard or Bulk."""

    days: int
    tier: str = "Standard"


_RESTORE = frozenset(
    {"Days", "GlacierJobParameters", "Type", "Tier", "Description", "SelectParameters", "OutputLocation"}
)
_TIERS = ("Expedited", "Standard", "Bulk")


def parse_restore(body: bytes) -> Restore:
    """RestoreObject. Raises MalformedXML, InvalidArgument for days below 1, NotImplemented for S3 Select."""
    given = dict(children(read(body, "RestoreRequest", MAX_BODY), _RESTORE))
    for name in ("Type", "SelectParameters", "OutputLocation"):
        if name in given:
            raise S3Error("NotImplemented", f"RestoreRequest/{name} is not implemented")
    if "Days" not in given:
        raise malformed()
    days = whole_number(given["Days"])
    if not 0 < days <= 36_500:
        raise S3Error(
            "InvalidArgument",
            "restoration days should be at least 1" if days < 1 else "restoration days should be at most 36500",
            ArgumentName="Days",
            ArgumentValue=days,
        )
    tier = leaf(given["Tier"]) if "Tier" in given else None
    if "GlacierJobParameters" in given:
        job = dict(children(given["GlacierJobParameters"], frozenset({"Tier"})))
        if "Tier" not in job:
            raise malformed()
        tier = leaf(job["Tier"])
    if tier is not None and tier not in _TIERS:
        raise malformed()
    return Restore(days, tier or "Standard")
