"""Everything that works on the database and the tiers, with no port open: what serve, worker and commands share."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass

import structlog

from gateway.db.blobs import Blobs
from gateway.db.buckets import Buckets
from gateway.db.collector import Collector
from gateway.db.completion import Completions
from gateway.db.damage import Damage
from gateway.db.deletion import Deletions
from gateway.db.identities import Identities
from gateway.db.listing import Listing
from gateway.db.pool import open_pool
from gateway.db.quarantine import Quarantine
from gateway.db.recalls import Recalls
from gateway.db.review import Review
from gateway.db.runs import Chosen
from gateway.db.scrubber import Scrubber
from gateway.db.subjects import VersionSubjects
from gateway.db.undecided import undecided
from gateway.db.uploads import Uploads
from gateway.db.versions import Versions
from gateway.db.waiting import Waiting
from gateway.domain.objects import Bucket
from gateway.keys.ring import load_ring
from gateway.policy import Policy, engine_settings, policy_of
from gateway.services import Services
from gateway.settings import Settings
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.tiers import Measured
from gateway.telemetry.writable import Writable
from processing.activities.settings import SERVICE as ACTIVITY_SETTINGS
from processing.clamd import Clamd, ClamdTimeouts
from processing.engine import Engine
from processing.notifier import Notifier
from processing.sandbox import Sandbox, SandboxLimits
from processing.scanner import Scanner
from storage_tiers import failpoints
from storage_tiers.open import open_tiers
from storage_tiers.placement import Placement
from storage_tiers.staging import Staging

log = structlog.get_logger("sluice.core")


@dataclass(frozen=True, slots=True)
class Core:
    """Everything that works on the database and the tiers, with no port open: what serve, worker and commands share."""

    services: Services
    engine: Engine
    policy: Policy
    review: Review
    quarantine: Quarantine
    collector: Collector
    scrubber: Scrubber
    damage: Damage
    writable: Writable
    scanner: Scanner | None
    metrics: Metrics
    notifier: Notifier


async def build(settings: Settings, stack: AsyncExitStack, *, claims: bool = True) -> Core:
    """Put the parts together; what they hold is given back by the stack. claims: run workflows in this process.

    Raises PolicyError, KeyRingError, OSError and asyncpg's errors: the process cannot start.
    """
    assert settings.database_url is not None
    if failpoints.armed():
        log.warning("FAIL POINTS ARE ARMED: this is a test, processes will be killed", folder=failpoints.armed())
    policy = policy_of(settings)
    metrics = Metrics(policy.vocabulary)
    stack.callback(metrics.flush)
    ring = load_ring(settings.master_key, settings.blobs / "master.key")
    direct = settings.listen_url or settings.database_url  # for sessions that a pooler would take apart
    pool = await open_pool(
        settings.database_url, settings.pool_size, statement_cache=direct == settings.database_url,
        patience=settings.database_timeout,
    )  # fmt: skip
    stack.push_async_callback(pool.close)
    notifier = Notifier(direct)
    await notifier.start()
    stack.push_async_callback(notifier.close)

    opened = await open_tiers(settings.tier_configs)
    for tier in opened.values():
        stack.push_async_callback(tier.close)
    tiers = {name: Measured(tier, metrics.tier_operation) for name, tier in opened.items()}
    placement = Placement(
        {"STANDARD": "standard", **settings.classes}, frozenset(name for name, tier in tiers.items() if tier.archive)
    )
    staging = Staging(tiers, settings.staging_threads)
    stack.callback(staging.close)
    sandbox = Sandbox(SandboxLimits(children=settings.sandbox_workers, memory=settings.sandbox_memory))
    stack.push_async_callback(sandbox.close)
    scanner = scanner_of(settings, policy, metrics)
    signature = Signature(scanner)
    if scanner is not None:
        stack.push_async_callback(signature.stop)
        await signature.start()

    buckets = Buckets(pool, notifier.publish, blob_grace=settings.blob_grace)
    identities = Identities(pool, ring, notifier.publish)
    waiting = Waiting(pool, cap=settings.max_waiters, publish=notifier.publish)
    notifier.subscribe("decided", waiting.heard)
    notifier.subscribe("wanted", waiting.asked)
    notifier.subscribe("bucket", buckets.invalidate, buckets.invalidate)
    notifier.subscribe("identity", identities.invalidate, identities.invalidate)

    versions = Versions(pool)
    owner: list[Engine] = []
    damage = Damage(pool, metrics.blob_damaged)
    blobs = Blobs(
        pool, tiers, versions, lambda: owner[0].worker_id if owner else None, damage, verify=settings.verify_reads
    )
    subjects = VersionSubjects(
        pool, blobs, placement, waiting, owner=lambda: owner[0].worker_id if owner else None,
        blob_grace=settings.blob_grace, lifecycle_day=settings.lifecycle_day,
    )  # fmt: skip
    engine = Engine(
        pool,
        settings=engine_settings(settings, claims),
        registry=policy.registry,
        subjects=subjects,
        services={
            "scanner": scanner,
            "tiers": tiers,
            "placement": placement,
            "staging": staging,
            "sandbox": sandbox,
            ACTIVITY_SETTINGS: policy.activities,
        },
        notifier=notifier,
        dsn=direct,
        hooks=metrics,
        app_settings=settings,
        undecided=undecided,
    )
    owner.append(engine)
    subjects.engine = engine
    waiting.hurry, waiting.want = engine.hurry, engine.want

    def choose(bucket: Bucket, key: bytes, declared_type: str | None) -> Chosen:
        """Verdicts are lent while the scanner's signatures are known and every activity says what it looks at."""
        definition = policy.pipelines.select(bucket.name, key, declared_type)
        if not policy.registry.lends(definition):
            return Chosen(definition.pipeline, None)
        known = definition.fingerprint if scanner is None else signature.joined(definition.fingerprint)
        return Chosen(definition.pipeline, known)

    grace = settings.blob_grace
    recalls = Recalls(pool, engine, lifecycle_day=settings.lifecycle_day, blob_grace=grace)
    services = Services(
        settings=settings,
        pool=pool,
        identities=identities,
        buckets=buckets,
        versions=versions,
        completions=Completions(
            pool, engine, placement, choose=choose, blob_grace=grace, verdict_ttl=settings.verdict_ttl
        ),
        uploads=Uploads(pool, blob_grace=grace),
        deletions=Deletions(pool, engine, blob_grace=grace),
        recalls=recalls,
        listing=Listing(pool),
        blobs=blobs,
        waiting=waiting,
        tiers=tiers,
        placement=placement,
        staging=staging,
        metrics=metrics,
    )
    review = Review(
        pool, engine, placement, waiting, buckets, choose=choose, blob_grace=grace,
        retention=settings.quarantine_retention,
    )  # fmt: skip
    collector = Collector(
        pool, tiers, blob_grace=grace, log=log, sweeps=(recalls.expire, review.expire, review.rescan),
        interval=settings.collect_interval,
    )  # fmt: skip
    files = {name: tiers[name] for name, config in settings.tier_configs.items() if config.kind == "file"}
    scrubber = Scrubber(
        pool, files, damage, rate=settings.scrub_rate, interval=settings.scrub_interval, report=metrics.scrubbed
    )
    writable = Writable(files, settings.probe_interval)
    return Core(
        services, engine, policy, review, Quarantine(pool), collector, scrubber, damage, writable, scanner, metrics,
        notifier,
    )  # fmt: skip


def scanner_of(settings: Settings, policy: Policy, metrics: Metrics | None = None) -> Scanner | None:
    if policy.scanner is None:
        return None
    timeouts = ClamdTimeouts(scan=settings.scan_timeout)
    return Clamd(policy.scanner, timeouts=timeouts, streams=settings.scan_streams, meter=metrics)


class Signature:
    """The scanner's signature version as last seen, at hand without waiting: it is part of what verdicts depend on."""

    def __init__(self, scanner: Scanner | None, interval: float = 15.0) -> None:
        self._scanner, self._interval = scanner, interval
        self._seen: str | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self._look()
        self._task = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def joined(self, fingerprint: str) -> str | None:
        return None if self._seen is None else f"{fingerprint}:{self._seen}"

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            await self._look()

    async def _look(self) -> None:
        assert self._scanner is not None
        self._seen = await self._scanner.signature_version()
