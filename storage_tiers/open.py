"""From configuration to tiers that are ready."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from storage_tiers.file import DAY, FileTier
from storage_tiers.memory import MemoryTier
from storage_tiers.tier import Tier
from storage_tiers.wrappers.retrying import Retrying


@dataclass(frozen=True, slots=True)
class TierConfig:
    """One tier as configured. Which fields matter depends on kind; the defaults are those of the settings.

    kind: "file" (path), "s3" (bucket and connection), "memory" (tests).
    durable: file only; False skips every fsync. delay, day: file archives; seconds until a restore is done, and
    seconds that count as a day of it. part_size, parallel, spool: s3 only; bytes of a first part, parts under way at
    once in the process, the folder for parts that wait (None: the system's temporary folder).
    """

    kind: str
    path: Path | None = None
    archive: bool = False
    durable: bool = True
    delay: float = 10.0
    day: float = DAY
    endpoint: str | None = None
    bucket: str = ""
    prefix: str = ""
    region: str | None = None
    access_key: str | None = None
    secret_key: str | None = None
    storage_class: str | None = None
    path_style: bool = True
    part_size: int = 8 << 20
    parallel: int = 16
    spool: Path | None = None
    poll_every: float | None = None


async def open_tiers(config: Mapping[str, TierConfig]) -> dict[str, Tier]:
    """Open all tiers, by name. Raises ValueError for a configuration that makes no sense, TierUnavailable, TierFull.

    An s3 tier is not contacted: that is probe()'s work, and a store that is down must not keep the service from
    starting. When one fails, those opened before are closed again.
    """
    async with AsyncExitStack() as opened:
        tiers: dict[str, Tier] = {}
        for name, each in config.items():
            tiers[name] = await open_tier(name, each)
            opened.push_async_callback(tiers[name].close)
        opened.pop_all()
        return tiers


async def open_tier(name: str, config: TierConfig) -> Tier:
    """One tier, ready to use. Raises as open_tiers."""
    match config.kind:
        case "file":
            if config.path is None:
                raise ValueError(f"tier {name}: a file tier needs a path")
            file = FileTier(
                name,
                config.path,
                durable=config.durable,
                archive=config.archive,
                delay=config.delay,
                day=config.day,
            )
            await file.start()
            return file
        case "s3":
            from storage_tiers.s3 import ARCHIVE_CLASSES, S3Tier  # takes a second, which most starts can spare

            if not config.bucket:
                raise ValueError(f"tier {name}: an s3 tier needs a bucket")
            if config.archive and config.storage_class not in ARCHIVE_CLASSES:
                raise ValueError(
                    f"tier {name}: an s3 archive needs storage_class {' or '.join(sorted(ARCHIVE_CLASSES))}"
                )
            s3 = S3Tier(
                name,
                config.bucket,
                prefix=config.prefix,
                endpoint=config.endpoint,
                region=config.region,
                access_key=config.access_key,
                secret_key=config.secret_key,
                storage_class=config.storage_class,
                part_size=config.part_size,
                parallel=config.parallel,
                path_style=config.path_style,
                spool=config.spool,
                poll_every=config.poll_every,
            )
            await s3.start()
            return Retrying(s3)
        case "memory":
            return MemoryTier(name)
        case other:
            raise ValueError(f"tier {name}: unknown kind {other!r}; known are file, s3 and memory")
