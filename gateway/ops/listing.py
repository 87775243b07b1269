"""Listings of objects and versions, in byte order of the keys."""

from __future__ import annotations

from gateway.db.listing import VersionEntry
from gateway.domain.objects import Account
from gateway.http.reply import Reply, document
from gateway.ops import access, parameters
from gateway.ops.parameters import Accounts
from gateway.ops.reading import which_version
from gateway.s3 import messages, tokens
from gateway.s3.call import Call
from gateway.s3.errors import invalid_argument
from gateway.services import Services


async def list_objects(call: Call, sv: Services) -> Reply:
    """The older form: pages go on from a key. NextMarker is told only with a delimiter, as S3 does."""
    place = access.place(call)
    prefix, delimiter, marker = (parameters.text(call, name) for name in ("prefix", "delimiter", "marker"))
    limit, url = parameters.count(call, "max-keys"), parameters.url_encoding(call)
    page = await sv.listing.objects(
        place.bucket.id, prefix=prefix, after=marker, delimiter=delimiter, limit=limit, reenter=True
    )
    body = messages.list_objects_v1(
        messages.Page(place.bucket.name, prefix, delimiter, limit, url, page.truncated, page.prefixes),
        page.items,
        marker=marker,
        next_marker=page.last if page.truncated and delimiter else None,
    )
    return document(body)


async def list_objects_v2(call: Call, sv: Services) -> Reply:
    """Pages go on from an opaque token, which names the last entry: no entry is repeated or left out."""
    place = access.place(call)
    prefix, delimiter = parameters.text(call, "prefix"), parameters.text(call, "delimiter")
    limit, url = parameters.count(call, "max-keys"), parameters.url_encoding(call)
    token, start = call.query.get("continuation-token"), call.query.get("start-after")
    owners = call.query.get("fetch-owner") == "true"
    # s3-tests wants an empty token to be an absent one that is echoed.
    after = tokens.decode(token) if token else (start or "").encode()
    page = await sv.listing.objects(
        place.bucket.id, prefix=prefix, after=after, delimiter=delimiter, limit=limit, reenter=not token, owners=owners
    )
    body = messages.list_objects_v2(
        messages.Page(place.bucket.name, prefix, delimiter, limit, url, page.truncated, page.prefixes),
        page.items,
        token=token,
        next_token=tokens.encode(page.last) if page.truncated and page.last is not None else None,
        start_after=None if start is None else start.encode(),
    )
    return document(body)


async def list_object_versions(call: Call, sv: Services) -> Reply:
    """Versions and delete markers of every key, newest first, whatever their state."""
    place = access.place(call)
    prefix, delimiter, marker = (parameters.text(call, name) for name in ("prefix", "delimiter", "key-marker"))
    limit, url = parameters.count(call, "max-keys"), parameters.url_encoding(call)
    version_marker = call.query.get("version-id-marker") or None
    if version_marker is not None and not marker:
        message = "A version-id marker cannot be specified without a key marker."
        raise invalid_argument("version-id-marker", version_marker, message)
    page = await sv.listing.versions(
        place.bucket.id,
        prefix=prefix,
        after=marker,
        after_version=which_version(version_marker, "version-id-marker"),
        delimiter=delimiter,
        limit=limit,
    )
    last = page.last_item if page.truncated else None
    accounts = Accounts()
    body = messages.list_versions(
        messages.Page(place.bucket.name, prefix, delimiter, limit, url, page.truncated, page.prefixes),
        [_version(each, accounts(each.owner)) for each in page.items],
        key_marker=marker,
        version_id_marker=version_marker or "",
        next_key_marker=page.last if page.truncated else None,
        next_version_id_marker=None if last is None else last.version_id,
    )
    return document(body)


def _version(version: VersionEntry, owner: Account | None) -> messages.VersionEntry:
    entry = messages.Entry(
        key=version.ref.key,
        modified=int(version.modified.timestamp()),
        etag=version.etag,
        size=version.size,
        storage_class=version.storage_class,
        owner=owner,
        checksum=version.checksum_algorithms[0].lower() if version.checksum_algorithms else None,
        checksum_type=version.checksum_type,
    )
    return messages.VersionEntry(entry, version.version_id, version.is_latest, version.is_marker)
