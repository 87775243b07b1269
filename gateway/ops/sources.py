"""Where a copy reads from: the source header, the right to read it, and its bytes once they may leave."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from gateway.domain import conditions
from gateway.domain.names import MAX_KEY, valid_bucket
from gateway.ops import access, reading
from gateway.ops.reading import Sight
from gateway.s3.call import Call
from gateway.s3.errors import S3Error, invalid_argument
from gateway.s3.headers import Query, decode_path
from gateway.services import Services

HEADER = "x-amz-copy-source"
FORM = "Copy Source must mention the source bucket and key: sourcebucket/sourcekey"


@dataclass(frozen=True, slots=True)
class Source:
    """What the header names."""

    bucket: str
    key: bytes
    version_id: str | None


def parse_source(header: str) -> Source:
    """``[/]bucket/key[?versionId=id]``, percent-encoded; a bare "+" is read as a blank, as S3 does.

    A question mark of the key itself is escaped, so the first one that is not begins the version.
    Raises InvalidArgument.
    """
    path, mark, query = header.partition("?")
    version_id = None
    if mark:
        version_id = Query(query).get("versionId")
        if version_id is None:
            raise invalid_argument(HEADER, header, FORM)
    if path.startswith("arn:"):
        raise S3Error("NotImplemented", "Copy sources named by ARN are not implemented", Header=HEADER)
    try:
        decoded = decode_path(path.replace("+", " "))
    except S3Error:
        raise invalid_argument(HEADER, header, FORM) from None
    name, slash, key = decoded.removeprefix(b"/").partition(b"/")
    if not slash or not key or not name:
        raise invalid_argument(HEADER, header, FORM)
    bucket = name.decode("utf-8")
    if not valid_bucket(bucket):
        raise S3Error("InvalidBucketName", BucketName=bucket)
    if len(key) > MAX_KEY:
        raise S3Error("KeyTooLongError", Size=len(key), MaxSizeAllowed=MAX_KEY)
    return Source(bucket, key, version_id)


def looking(call: Call, sv: Services, source: Source, content: bool = False) -> Callable[[], Awaitable[Sight]]:
    """A look at the source, for reading.servable: rights and preconditions are decided before any state shows."""

    async def look() -> Sight:
        place = await access.enter(
            call, sv, source.bucket, "s3:GetObject", call.headers.get("x-amz-source-expected-bucket-owner")
        )
        try:
            sight = await reading.find(call, sv, place, source.key, source.version_id, content=content)
        except S3Error as error:
            if error.code == "MethodNotAllowed":  # a delete marker by its id: no source at all
                raise S3Error(
                    "InvalidRequest",
                    "The source of a copy request may not specifically refer to a delete marker by version id.",
                ) from None
            raise
        condition = conditions.read_condition(call.headers, conditions.COPY_SOURCE)
        conditions.check_source(condition, sight.version.etag, sight.version.modified)
        return sight

    return look


def id_header(sight: Sight) -> dict[str, str]:
    """Which version of the source was copied."""
    return {"x-amz-copy-source-version-id": sight.version.version_id} if sight.versioned else {}
