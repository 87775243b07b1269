"""Listings of multipart uploads and of their parts."""

from __future__ import annotations

from gateway.db.listing import UploadEntry
from gateway.domain.objects import Account
from gateway.http.reply import Reply, document
from gateway.ops import access, parameters
from gateway.ops.parameters import Accounts
from gateway.ops.parts import shown_checksums, upload_id
from gateway.s3 import messages
from gateway.s3.call import Call
from gateway.s3.errors import invalid_argument
from gateway.services import Services


async def list_multipart_uploads(call: Call, sv: Services) -> Reply:
    """Open uploads by key, those of one key by age."""
    place = access.place(call)
    prefix, delimiter, marker = (parameters.text(call, name) for name in ("prefix", "delimiter", "key-marker"))
    upload_marker = call.query.get("upload-id-marker") or ""
    if upload_marker and not (upload_marker.isascii() and upload_marker.isprintable()):
        raise invalid_argument("upload-id-marker", upload_marker, "Invalid uploadId marker")
    limit, url = parameters.count(call, "max-uploads"), parameters.url_encoding(call)
    page = await sv.listing.uploads(
        place.bucket.id,
        prefix=prefix,
        after=marker,
        after_upload=upload_marker if marker else "",
        delimiter=delimiter,
        limit=limit,
    )
    last = page.last_item if page.truncated else None
    accounts = Accounts()
    body = messages.list_uploads(
        messages.Page(place.bucket.name, prefix, delimiter, limit, url, page.truncated, page.prefixes),
        [_upload(each, accounts, place.bucket.owner) for each in page.items],
        key_marker=marker,
        upload_id_marker=upload_marker,
        next_key_marker=page.last if page.truncated else None,
        next_upload_id_marker=None if last is None else last.upload_id,
    )
    return document(body)


async def list_parts(call: Call, sv: Services) -> Reply:
    """The parts of an open upload by number."""
    place, key = access.place(call), access.key(call)
    limit, marker = parameters.count(call, "max-parts"), parameters.number(call, "part-number-marker", 0)
    upload = await sv.uploads.get(place.bucket, key, upload_id(call))
    page = await sv.listing.parts(place.bucket.id, key, upload.upload_id, after=marker, limit=limit)
    owner = await sv.identities.account(upload.owner_id) or place.bucket.owner
    initiator = await sv.identities.account(upload.initiator_id) or place.bucket.owner
    body = messages.list_parts(
        place.bucket.name,
        messages.UploadEntry(
            key,
            upload.upload_id,
            upload.initiated,
            owner,
            initiator,
            upload.attributes.storage_class,
            upload.checksum_algorithm,
            upload.checksum_type,
        ),
        [
            messages.PartEntry(
                each.number, each.modified, each.etag, each.size, shown_checksums(upload, each.checksums)
            )
            for each in page.entries
        ],
        marker=marker,
        next_marker=page.last or 0,
        limit=limit,
        truncated=page.truncated,
    )
    return document(body)


def _upload(entry: UploadEntry, accounts: Accounts, fallback: Account) -> messages.UploadEntry:
    return messages.UploadEntry(
        key=entry.key,
        upload_id=entry.upload_id,
        initiated=entry.initiated,
        owner=accounts(entry.owner) or fallback,
        initiator=accounts(entry.initiator) or fallback,
        storage_class=entry.storage_class,
        checksum=entry.checksum_algorithm.lower() if entry.checksum_algorithm else None,
        checksum_type=entry.checksum_type,
    )
