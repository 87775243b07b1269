"""Tiers to test against: each place opens a tier, and opens it again as a restarted process would."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import boto3
from moto.server import ThreadedMotoServer

from storage_tiers.file import FileTier
from storage_tiers.memory import MemoryTier
from storage_tiers.s3 import S3Tier
from storage_tiers.tier import BlobId, Tier
from storage_tiers.wrappers.faulty import Faulty
from storage_tiers.wrappers.retrying import Retrying
from storage_tiers.wrappers.throttled import Rate, Throttled

MIB = 1 << 20
CREDENTIALS = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}

Opener = Callable[[], AbstractAsyncContextManager[Tier]]


class Clock:
    """Seconds that pass only when told."""

    def __init__(self, now: float = 1_800_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@dataclass
class Place:
    """open() opens the tier; archive says whether it has to be restored. clock moves a file archive's time."""

    open: Opener
    archive: bool = False
    clock: Clock = field(default_factory=Clock)


@contextmanager
def moto_endpoint() -> Iterator[str]:
    """A moto server of one's own; its URL."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
    finally:
        server.stop()


def new_bucket(endpoint: str) -> str:
    """The name of a new, empty bucket."""
    name = f"tier-{uuid.uuid4().hex[:16]}"
    boto3.client("s3", endpoint_url=endpoint, **CREDENTIALS).create_bucket(Bucket=name)
    return name


@asynccontextmanager
async def opened(tier: FileTier | S3Tier, wrap: Callable[[Tier], Tier] = lambda tier: tier) -> AsyncIterator[Tier]:
    await tier.start()
    try:
        yield wrap(tier)
    finally:
        await tier.close()


def file_place(root: Path, wrap: Callable[[Tier], Tier] = lambda tier: tier, durable: bool = True) -> Place:
    return Place(lambda: opened(FileTier("cold", root, durable=durable), wrap))


def file_archive(root: Path) -> Place:
    clock = Clock()

    def again() -> AbstractAsyncContextManager[Tier]:
        return opened(FileTier("cold", root, archive=True, delay=60.0, day=1e6, clock=clock))

    return Place(again, archive=True, clock=clock)


def memory_place(wrap: Callable[[Tier], Tier] = lambda tier: tier) -> Place:
    blobs: dict[BlobId, bytes] = {}

    @asynccontextmanager
    async def again() -> AsyncIterator[Tier]:
        yield wrap(MemoryTier("cold", blobs))

    return Place(again)


def s3_tier(endpoint: str, bucket: str, storage_class: str | None = None, attempts: int = 1) -> S3Tier:
    return S3Tier(
        "cold",
        bucket,
        prefix="blobs/",
        endpoint=endpoint,
        access_key="test",
        secret_key="test",
        storage_class=storage_class,
        part_size=5 * MIB,
        attempts=attempts,
    )


def s3_place(endpoint: str, storage_class: str | None = None) -> Place:
    bucket = new_bucket(endpoint)
    return Place(lambda: opened(s3_tier(endpoint, bucket, storage_class)), archive=storage_class is not None)


def place_named(name: str, root: Path, endpoint: Callable[[], str]) -> Place:
    """The place of a name in PLACES; endpoint is asked for only where it is needed."""
    match name:
        case "file":
            return file_place(root)
        case "file-os":
            return file_place(root, durable=False)
        case "memory":
            return memory_place()
        case "s3":
            return s3_place(endpoint())
        case "file-archive":
            return file_archive(root)
        case "s3-archive":
            return s3_place(endpoint(), "GLACIER")
        case "retrying":
            return memory_place(Retrying)
        case "throttled":
            return file_place(root, lambda tier: Throttled(tier, rate=Rate(1e12), at_once=8))
        case "faulty":
            return file_place(root, Faulty)
        case _:
            raise AssertionError(name)


PLACES = ("file", "file-os", "memory", "s3", "file-archive", "s3-archive", "retrying", "throttled", "faulty")
