"""A blob has its staging row before its first byte is written: what a crash leaves behind is always known by name."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import asyncpg

from processing.activities.tier_copy import copy_into
from storage_tiers.memory import MemoryTier
from storage_tiers.staging import Staging
from storage_tiers.tier import BlobId, Sink
from tests.operations.house import House


class Watching(MemoryTier):
    """Looks, from a session of its own, what the database knows of a blob that is about to be written."""

    def __init__(self, dsn: str) -> None:
        super().__init__("standard")
        self.dsn = dsn
        self.seen: list[int | None] = []

    async def begin(self, blob: BlobId) -> Sink:
        conn = await asyncpg.connect(self.dsn)
        try:
            self.seen.append(await conn.fetchval("SELECT state FROM blob WHERE id = $1", blob))
        finally:
            await conn.close()
        return await super().begin(blob)


def test_the_row_is_durable_before_the_first_byte(dsn: str) -> None:
    house = House(dsn)
    tier: Any = Watching(dsn)
    house.tiers["standard"] = tier
    house.start()
    try:
        s3 = house.client()
        s3.create_bucket(Bucket="rows")
        s3.put_object(Bucket="rows", Key="k", Body=bytes(100_000))
        upload = s3.create_multipart_upload(Bucket="rows", Key="m")["UploadId"]
        s3.upload_part(Bucket="rows", Key="m", UploadId=upload, PartNumber=1, Body=bytes(100_000))
        assert tier.seen == [1, 1]

        async def states() -> list[int]:
            return [row["state"] for row in await house.pool.fetch("SELECT state FROM blob")]

        assert house.run(states()) == [2, 2]
    finally:
        house.stop()


def test_so_it_is_when_bytes_move_between_tiers() -> None:
    order: list[tuple[str, UUID]] = []

    class Target(MemoryTier):
        async def begin(self, blob: BlobId) -> Sink:
            order.append(("bytes", blob))
            return await super().begin(blob)

    async def stage(conn: Any, blob: UUID, tier: str) -> None:
        order.append(("row", blob))

    async def source(content: Any) -> AsyncIterator[bytes]:
        yield b"data"

    async def main() -> None:
        target: Any = Target("archive")
        staging = Staging({"archive": target}, 1)
        context: Any = SimpleNamespace(
            subjects=SimpleNamespace(stage=stage, open=source),
            services={"staging": staging},
            heartbeat=lambda: None,
            progress=lambda *args, **counts: None,
        )
        digest = "sha256:" + hashlib.sha256(b"data").hexdigest()
        content: Any = SimpleNamespace(digest=digest, part_sizes=(), size=4, pieces=[])
        blob = await copy_into(context, content, target)
        assert order == [("row", blob), ("bytes", blob)]
        staging.close()

    asyncio.run(main())


def test_a_refused_body_leaves_neither_row_nor_bytes(dsn: str) -> None:
    house = House(dsn)
    house.start()
    try:
        s3 = house.client()
        s3.create_bucket(Bucket="rows")
        wrong = "1B2M2Y8AsgTpgAmY7PhCfg=="  # of nothing
        try:
            s3.put_object(Bucket="rows", Key="k", Body=bytes(100_000), ContentMD5=wrong)
        except s3.exceptions.ClientError as error:
            assert error.response["Error"]["Code"] == "BadDigest"
        else:
            raise AssertionError("a wrong digest was taken")
        assert house.run(house.pool.fetchval("SELECT count(*) FROM blob")) == 0
        assert not house.tiers["standard"].blobs and not house.tiers["standard"].staging
    finally:
        house.stop()
