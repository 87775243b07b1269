"""A blob on its way into a bucket: spooled part by part, the parts uploaded side by side."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Protocol

from storage_tiers import medium
from storage_tiers.s3_errors import FAILURES, code_of, status_of, translate
from storage_tiers.tier import BlobId, Stored, TierError

IN_MEMORY = 256 << 10  # a part up to this size never touches the spool's disk
AHEAD = 3  # sealed parts a sink may have waiting before its writer waits
GROW_EVERY = 1_000  # parts: 10,000 of them have to hold 5 TiB, and small blobs must not wait for large parts


class Bucket(Protocol):
    """What a sink needs of its tier."""

    name: str
    bucket: str
    client: Any
    storage_class: str | None
    part_size: int
    spool: Path | None
    uploads: asyncio.Semaphore

    async def abort_upload(self, key: str, upload_id: str) -> None: ...


class Part:
    """One spooled part and its MD5."""

    def __init__(self, number: int, spool: Path | None) -> None:
        self.number = number
        self.size = 0
        self.file: IO[bytes] = tempfile.SpooledTemporaryFile(IN_MEMORY, dir=None if spool is None else str(spool))  # noqa: SIM115
        self._md5 = hashlib.md5(usedforsecurity=False)

    def write(self, data: memoryview) -> None:
        self.file.write(data)
        self._md5.update(data)
        self.size += len(data)

    @property
    def content_md5(self) -> str:
        return base64.b64encode(self._md5.digest()).decode()


class S3Sink:
    """Part sizes: part_size for the first 1,000 parts, twice that for the next 1,000, and so on."""

    fd = None

    def __init__(self, tier: Bucket, blob: BlobId, key: str) -> None:
        self._tier = tier
        self._blob = blob
        self._target = {"Bucket": tier.bucket, "Key": key}
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._part: Part | None = None
        self._sealed = 0  # parts so far
        self._size = 0
        self._upload: asyncio.Task[str] | None = None
        self._parts: dict[int, asyncio.Task[str]] = {}
        self._changed = threading.Condition()
        self._waiting = 0  # sealed parts not yet uploaded; under _changed
        self._failure: TierError | None = None  # under _changed
        self._room = asyncio.Event()
        self._room.set()
        self._committing: asyncio.Task[None] | None = None
        self._clearing: asyncio.Task[None] | None = None
        self._ended = False  # no more writes
        self._aborted = False  # no more parts either
        self._done = False

    # --- writing (any one thread) ------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        with memoryview(data) as view:
            done = 0
            while done < len(view):
                self._check()
                part = self._part
                if part is None:
                    part = self._part = Part(self._sealed + 1, self._tier.spool)
                piece = view[done : done + self._limit(part.number) - part.size]
                try:
                    part.write(piece)
                except OSError as error:
                    raise medium.translate(error, self._tier.name, "spool") from error
                done += len(piece)
                self._size += len(piece)
                if part.size == self._limit(part.number):
                    self._seal(part)

    def _limit(self, number: int) -> int:
        return self._tier.part_size << (number - 1) // GROW_EVERY

    def _check(self) -> None:
        if self._ended:
            raise TierError(f"tier {self._tier.name}: write after the end")
        if self._failure is not None:
            raise type(self._failure)(*self._failure.args)

    def _seal(self, part: Part) -> None:
        """Hand a full part over to the event loop; wait for room, unless this is the loop's own thread."""
        self._part = None
        self._sealed += 1
        with self._changed:
            self._waiting += 1
        self._loop.call_soon_threadsafe(self._launch, part)
        if threading.get_ident() == self._loop_thread:
            return  # whoever writes there awaits room()
        with self._changed:
            while self._waiting > AHEAD and self._failure is None and not self._ended:
                self._changed.wait(timeout=1.0)

    # --- uploading (the event loop) ----------------------------------------------------------------------------

    async def room(self) -> None:
        await self._room.wait()

    def _launch(self, part: Part) -> None:
        if self._aborted:
            part.file.close()
            return
        if self._upload is None:
            self._upload = self._loop.create_task(self._create())
        task = self._parts[part.number] = self._loop.create_task(self._send(part))
        task.add_done_callback(self._sent)
        if self._waiting >= AHEAD:
            self._room.clear()

    def _sent(self, task: asyncio.Task[str]) -> None:
        with self._changed:
            self._waiting -= 1
            if not task.cancelled() and (error := task.exception()) is not None and self._failure is None:
                self._failure = error if isinstance(error, TierError) else TierError(type(error).__name__)
            self._changed.notify_all()
        if self._waiting < AHEAD or self._failure is not None:
            self._room.set()

    def _class(self) -> Mapping[str, str]:
        return {"StorageClass": self._tier.storage_class} if self._tier.storage_class else {}

    async def _create(self) -> str:
        try:
            answer = await self._tier.client.create_multipart_upload(**self._target, **self._class())
        except FAILURES as error:
            raise translate(error, self._tier.name, "create upload") from error
        return str(answer["UploadId"])

    async def _send(self, part: Part) -> str:
        """Upload one part; its ETag."""
        try:
            assert self._upload is not None
            upload_id = await asyncio.shield(self._upload)
            async with self._tier.uploads:
                part.file.seek(0)
                answer = await self._tier.client.upload_part(
                    **self._target,
                    UploadId=upload_id,
                    PartNumber=part.number,
                    Body=part.file,
                    ContentLength=part.size,
                    ContentMD5=part.content_md5,
                )
        except FAILURES as error:
            raise translate(error, self._tier.name, "upload part") from error
        finally:
            part.file.close()
        return str(answer["ETag"])

    # --- the end -----------------------------------------------------------------------------------------------

    async def commit(self) -> Stored:
        try:
            self._check()
            self._ended = True
            self._committing = asyncio.create_task(self._commit())
            await asyncio.shield(self._committing)
        except TierError:
            await self.abort()
            raise
        self._done = True
        return Stored(self._blob, self._size)

    async def _commit(self) -> None:
        last, self._part = self._part, None
        if self._sealed == 0:
            await self._put(last)
            return
        if last is not None:
            self._sealed += 1
            with self._changed:
                self._waiting += 1
            self._launch(last)
        # All parts are launched by now: a writer's hand-overs stand in the loop's queue before this task.
        await asyncio.wait(self._parts.values())
        etags = {number: await task for number, task in sorted(self._parts.items())}
        assert self._upload is not None
        parts = [{"PartNumber": number, "ETag": etag} for number, etag in etags.items()]
        try:
            await self._tier.client.complete_multipart_upload(
                **self._target, UploadId=self._upload.result(), MultipartUpload={"Parts": parts}
            )
        except FAILURES as error:
            # A repeated request finds no upload when its first answer was lost: then the object is there.
            if code_of(error) != "NoSuchUpload" or not await self._arrived():
                raise translate(error, self._tier.name, "complete upload") from error

    async def _put(self, part: Part | None) -> None:
        part = part or Part(1, self._tier.spool)
        try:
            part.file.seek(0)
            async with self._tier.uploads:
                await self._tier.client.put_object(
                    **self._target,
                    **self._class(),
                    Body=part.file,
                    ContentLength=part.size,
                    ContentMD5=part.content_md5,
                )
        except FAILURES as error:
            raise translate(error, self._tier.name, "put") from error
        finally:
            part.file.close()

    async def _arrived(self) -> bool:
        try:
            answer = await self._tier.client.head_object(**self._target)
        except FAILURES as error:
            if status_of(error) == 404:
                return False
            raise translate(error, self._tier.name, "head") from error
        return bool(answer["ContentLength"] == self._size)

    async def abort(self) -> None:
        if self._done:
            return
        self._done = self._ended = self._aborted = True
        self._clearing = asyncio.create_task(self._clear())
        await asyncio.shield(self._clearing)

    async def _clear(self) -> None:
        with self._changed:
            self._changed.notify_all()
        self._room.set()
        tasks = [task for task in (self._committing, *self._parts.values(), self._upload) if task is not None]
        for task in tasks[:-1] if self._upload is not None else tasks:
            task.cancel()  # but not the creation: without its id nobody could abort the upload
        if tasks:
            await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled():
                task.exception()  # seen
        if self._part is not None:
            self._part.file.close()
        with suppress(*FAILURES, TierError):  # what is left then is the reconciler's
            if self._upload is not None and not self._upload.cancelled() and self._upload.exception() is None:
                await self._tier.abort_upload(self._target["Key"], self._upload.result())
            if self._committing is not None:
                await self._tier.client.delete_object(**self._target)  # a commit whose answer nobody heard
