"""A bucket of any S3-compatible store as a tier, through aiobotocore.

Small blobs are one PutObject; larger ones a multipart upload whose parts are spooled to a temporary file each, so
that memory stays bounded whatever the size and however slow the store. With an archive class (GLACIER,
DEEP_ARCHIVE) reading needs RestoreObject.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from aiobotocore.config import AioConfig
from aiobotocore.session import get_session

from storage_tiers.s3_errors import FAILURES, code_of, status_of, translate
from storage_tiers.s3_reader import S3Reader
from storage_tiers.s3_sink import S3Sink
from storage_tiers.tier import (
    WHOLE,
    BlobCorrupt,
    BlobId,
    BlobNotFound,
    ByteSpan,
    Readable,
    Reader,
    RestoreState,
    Sink,
    Speed,
    Stored,
    TierError,
    TierMissing,
)

# Seconds between polls of a pending restore: 600 polls cover what the class may take (12 h, 72 h).
POLL_EVERY: Mapping[str, float] = {"GLACIER": 72.0, "DEEP_ARCHIVE": 432.0}
ARCHIVE_CLASSES = frozenset(POLL_EVERY)
NAME = re.compile(r"[0-9a-f]{32}")
RESTORE = re.compile(r'ongoing-request="(true|false)"(?:,\s*expiry-date="([^"]+)")?')


class S3Tier:
    """Blobs as objects ``prefix + id`` of one bucket.

    parallel bounds the part uploads of the whole tier, part_size the first thousand parts of a blob (see S3Sink).
    poll_every overrides the seconds between polls of a pending restore.
    """

    def __init__(
        self,
        name: str,
        bucket: str,
        *,
        prefix: str = "",
        endpoint: str | None = None,
        region: str | None = None,
        access_key: str | None = None,
        secret_key: str | None = None,
        storage_class: str | None = None,
        part_size: int = 8 << 20,
        parallel: int = 16,
        path_style: bool = True,
        spool: Path | None = None,
        poll_every: float | None = None,
        attempts: int = 4,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.name = name
        self.bucket = bucket
        self.storage_class = storage_class
        self.archive = storage_class in ARCHIVE_CLASSES
        self.poll_every = poll_every or POLL_EVERY.get(storage_class or "", 15.0)
        self.part_size = part_size
        self.spool = spool
        self.uploads = asyncio.Semaphore(parallel)
        self.client: Any = None
        self._prefix = prefix
        self._clock = clock
        self._stack = AsyncExitStack()
        self._connection = {
            "endpoint_url": endpoint,
            "region_name": region or "us-east-1",
            "aws_access_key_id": access_key,
            "aws_secret_access_key": secret_key,
        }
        self._config = AioConfig(
            connect_timeout=5,
            read_timeout=60,
            max_pool_connections=4 * parallel,
            retries={"mode": "standard", "max_attempts": attempts},
            # Content-MD5, made while the bytes are spooled, guards the body: signing its SHA-256 would read it again,
            # on the event loop. No flexible checksums: they would wrap the body in aws-chunked, which not every
            # store takes off again.
            s3={"addressing_style": "path" if path_style else "auto", "payload_signing_enabled": False},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )

    async def start(self) -> None:
        """Make the client; nothing is sent yet."""
        context = get_session().create_client("s3", config=self._config, **self._connection)
        self.client = await self._stack.enter_async_context(context)

    async def begin(self, blob: BlobId) -> Sink:
        return S3Sink(self, blob, self.key(blob))

    async def open(self, blob: BlobId, span: ByteSpan = WHOLE) -> Reader:
        if span.length == 0:
            return await self._open_nothing(blob, span)
        asked: dict[str, Any] = {"Bucket": self.bucket, "Key": self.key(blob)}
        if span != WHOLE:
            last = "" if span.length is None else str(span.offset + span.length - 1)
            asked["Range"] = f"bytes={span.offset}-{last}"
        try:
            answer = await self.client.get_object(**asked)
        except FAILURES as error:
            if status_of(error) == 416 and span.length is None:
                return await self._open_nothing(blob, span)
            raise translate(error, self.name, "open") from error
        length = int(answer["ContentLength"])
        if (span.length is not None and length != span.length) or (span.offset and "ContentRange" not in answer):
            answer["Body"].close()
            raise BlobCorrupt(f"tier {self.name}: blob {blob} gave {length} bytes, {span} was asked for")
        return S3Reader(self.name, answer["Body"], length)

    async def _open_nothing(self, blob: BlobId, span: ByteSpan) -> Reader:
        """A span without bytes: HTTP has no such range (RFC 9110, 14.1.1)."""
        size = int((await self._head(blob))["ContentLength"])
        if span.offset > size or (span.length is None and span.offset < size):
            raise BlobCorrupt(f"tier {self.name}: blob {blob} has {size} bytes, {span} was asked for")
        return S3Reader(self.name, None, 0)

    async def delete(self, blob: BlobId) -> None:
        key = self.key(blob)
        try:
            uploads = await self.client.list_multipart_uploads(Bucket=self.bucket, Prefix=key)
            for upload in uploads.get("Uploads", ()):
                await self.abort_upload(upload["Key"], upload["UploadId"])
            await self.client.delete_object(Bucket=self.bucket, Key=key)
        except FAILURES as error:
            failure = translate(error, self.name, "delete")
            if not isinstance(failure, BlobNotFound):
                raise failure from error

    async def abort_upload(self, key: str, upload_id: str) -> None:
        """Idempotent. Raises what the client raises."""
        try:
            await self.client.abort_multipart_upload(Bucket=self.bucket, Key=key, UploadId=upload_id)
        except FAILURES as error:
            if code_of(error) != "NoSuchUpload":
                raise

    async def stat(self, blob: BlobId) -> Stored:
        return Stored(blob, int((await self._head(blob))["ContentLength"]))

    async def restore(self, blob: BlobId, days: int, speed: Speed) -> None:
        if not self.archive:
            await self._head(blob)
            return
        if self.storage_class == "DEEP_ARCHIVE" and speed is Speed.EXPEDITED:
            speed = Speed.STANDARD  # the class has no expedited retrieval
        wanted = {"Days": max(1, days), "GlacierJobParameters": {"Tier": str(speed)}}
        try:
            await self.client.restore_object(Bucket=self.bucket, Key=self.key(blob), RestoreRequest=wanted)
        except FAILURES as error:
            code = code_of(error)
            if code == "RestoreAlreadyInProgress":
                return
            if code == "InvalidObjectState":  # not archived after all
                return
            raise translate(error, self.name, "restore") from error

    async def readable(self, blob: BlobId) -> RestoreState:
        answer = await self._head(blob)
        archived = answer.get("StorageClass") in ARCHIVE_CLASSES or "ArchiveStatus" in answer
        return restore_state(answer.get("Restore"), self._clock()) if archived else RestoreState(Readable.HOME)

    async def names(self, older: float = 0.0) -> AsyncIterator[BlobId]:
        listings = (
            ("list_objects_v2", "Contents", "LastModified"),
            ("list_multipart_uploads", "Uploads", "Initiated"),
        )
        now = self._clock()
        for operation, field, written in listings:
            pages = self.client.get_paginator(operation).paginate(Bucket=self.bucket, Prefix=self._prefix)
            try:
                async for page in pages:
                    for entry in page.get(field, ()):
                        name = entry["Key"][len(self._prefix) :]
                        if NAME.fullmatch(name) and (now - entry[written]).total_seconds() >= older:
                            yield UUID(name)
            except FAILURES as error:
                raise translate(error, self.name, "list") from error

    async def probe(self) -> None:
        try:
            await self.client.head_bucket(Bucket=self.bucket)
        except FAILURES as error:
            failure = translate(error, self.name, "probe")
            raise TierMissing(str(failure)) if isinstance(failure, BlobNotFound) else failure from error

    async def close(self) -> None:
        await self._stack.aclose()

    def key(self, blob: BlobId) -> str:
        """The key of a blob's object. Ids are random, so keys spread over the store's partitions."""
        return self._prefix + blob.hex

    async def _head(self, blob: BlobId) -> Mapping[str, Any]:
        try:
            answer: Mapping[str, Any] = await self.client.head_object(Bucket=self.bucket, Key=self.key(blob))
            return answer
        except FAILURES as error:
            failure: TierError = translate(error, self.name, "head")
            if isinstance(failure, BlobNotFound):
                await self.probe()  # a HEAD has no body to say whether the key or its bucket is missing
            raise failure from error


def restore_state(header: str | None, now: datetime) -> RestoreState:
    """What ``x-amz-restore`` says of an archived object (S3 API: HeadObject). now has a time zone."""
    found = RESTORE.search(header or "")
    if found is None:
        return RestoreState(Readable.ARCHIVED)
    if found[1] == "true":
        return RestoreState(Readable.PENDING)
    until = parsedate_to_datetime(found[2]) if found[2] else None
    if until is not None and until <= now:
        return RestoreState(Readable.ARCHIVED)
    return RestoreState(Readable.READABLE, until)
