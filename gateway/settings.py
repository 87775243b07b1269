"""Every setting, once: its name, default, meaning. docs/settings.md is made from this file.

gateway/sources.py reads them from a TOML file, ``SLUICE_*`` variables and flags, and remembers where each came from.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_type_hints

from storage_tiers.open import TierConfig

PREFIX = "SLUICE_"
# Names that scripts know and that do not follow the rule SLUICE_<NAME>.
ALIASES: Mapping[str, str] = MappingProxyType({"DATABASE_URL": "database_url"})


class SettingsError(Exception):
    """A setting cannot be used; the text names it, where it came from, and what would be right."""


def setting(
    default: Any,
    doc: str,
    *,
    secret: bool = False,
    choices: Sequence[str] = (),
    least: float | None = None,
    group: str = "",
) -> Any:
    """A field of the settings with its documentation. choices and least are checked at load."""
    shown = not secret  # not in repr, so in no traceback and no log line
    meta = {"doc": doc, "secret": secret, "choices": tuple(choices), "least": least, "group": group}
    if callable(default):
        return field(default_factory=default, metadata=meta, repr=shown)
    return field(default=default, metadata=meta, repr=shown)


def default_data_dir() -> Path:
    """/var/lib/sluice for root (where the database's own user can reach it), else below the home folder."""
    if os.geteuid() == 0:
        return Path("/var/lib/sluice")
    base = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")  # noqa: PTH111 - may have no home
    return Path(base) / "sluice"


def default_classes() -> Mapping[str, str]:
    return MappingProxyType({"GLACIER": "archive", "DEEP_ARCHIVE": "archive"})


@dataclass(frozen=True, slots=True)
class EngineSection:
    """How runs are executed; names and meaning are those of processing.model.EngineSettings. Times are in seconds."""

    slots: int = setting(128, "Runs one process has in progress at a time.", least=1)
    tenant_slots: int = setting(192, "Runs of one account in progress at a time, over all processes.", least=1)
    ttl: float = setting(15.0, "How long a process's lease on its runs is valid without a heartbeat.", least=0.1)
    heartbeat: float = setting(3.0, "Time between heartbeats; at most a third of ttl.", least=0.01)
    max_recoveries: int = setting(5, "How many processes a run may cost before it fails as worker-lost.", least=1)
    dependency_deadline: float = setting(86400.0, "How long a run waits for a dependency that is down.", least=1)
    park_deadline: float = setting(604800.0, "Deadline of a park that names none.", least=1)
    step_idle: float = setting(1800.0, "A step without a sign of life for so long is cancelled and fails.", least=0.1)
    backoff_base: float = setting(1.0, "First pause before a step is tried again; doubles each time.", least=0)
    backoff_cap: float = setting(30.0, "Longest pause before a step is tried again.", least=0)
    wake_spread: float = setting(10.0, "Over how long the runs waiting for a dependency wake when it is back.", least=0)
    poll_least: float = setting(0.05, "Shortest pause between two looks for waiting runs.", least=0.001)
    poll_most: float = setting(1.0, "Longest pause between two looks for waiting runs.", least=0.001)
    patience: float = setting(
        5.0, "How long runs that nobody waits for stand back while uploads crowd a process.", least=0
    )
    drain: float = setting(10.0, "How long steps may go on after SIGTERM before they are handed back.", least=0)
    sweep: float = setting(60.0, "Time between two passes of the maintenance sweeps.", least=0.05)
    scan_stale: float = setting(600.0, "Age at which a version whose run has ended is failed by the sweep.", least=1)
    retention: float = setting(604800.0, "How long ended runs and their journals are kept.", least=60)


@dataclass(frozen=True, slots=True)
class Settings:
    """The whole configuration, complete and checked. Times are in seconds, sizes in bytes."""

    data_dir: Path = setting(
        default_data_dir, "Everything this instance keeps: database, blobs, credentials, run files."
    )
    blob_dir: Path | None = setting(
        None, "Folder of the built-in file tiers. Default: blobs in data_dir. Instances that share a database share it."
    )
    database_url: str | None = setting(
        None, "PostgreSQL to use instead of the embedded one (variable: DATABASE_URL).", secret=True
    )
    listen_url: str | None = setting(
        None,
        "Address for LISTEN when database_url is a pooler in transaction mode. Default: database_url.",
        secret=True,
    )
    pool_size: int = setting(20, "Database connections per process.", least=2)
    database_timeout: float = setting(
        10.0,
        "How long a request waits for a free database connection, and for the answer to a statement, before it is "
        "answered ServiceUnavailable.",
        least=0.1,
    )

    host: str = setting("0.0.0.0", "Address of the S3 port.")  # noqa: S104 - a server is meant to be reached
    s3_port: int = setting(9000, "S3 port; 0 takes a free one.", least=0)
    admin_host: str = setting("127.0.0.1", "Address of the admin port.")
    admin_port: int = setting(9001, "Port of health, metrics and admin API; 0 takes a free one.", least=0)
    domain: str | None = setting(None, "Domain of virtual-host style requests (bucket.domain). None: path style only.")
    trusted_proxies: tuple[str, ...] = setting(
        (), "Addresses or networks (CIDR) of proxies whose X-Forwarded-* headers say what host a client signed."
    )
    tls_cert: Path | None = setting(None, "Certificate chain (PEM) of the S3 port; read again on SIGHUP.")
    tls_key: Path | None = setting(None, "Private key (PEM) of tls_cert.")
    workers: int = setting(0, "Serving processes; 0: one per core.", least=0)
    drain_timeout: float = setting(30.0, "How long requests may finish after SIGTERM.", least=0)
    backlog: int = setting(2048, "Connections the kernel holds until they are accepted.", least=1)

    root_access_key: str | None = setting(
        None, "Access key of the root account. Default: made at the first start, kept in data_dir/credentials."
    )
    root_secret_key: str | None = setting(None, "Secret of root_access_key.", secret=True)
    admin_token: str | None = setting(
        None, "Bearer token of the admin API, beside the root account's access keys.", secret=True
    )
    master_key: str | None = setting(
        None,
        "Key that seals stored secrets: 32 bytes in hex or base64. Default: made at the first start, kept in "
        "blob_dir/master.key.",
        secret=True,
    )

    region: str = setting("us-east-1", "Region that requests are signed for; those on a bucket also for its location.")
    regions: tuple[str, ...] = setting(
        (), "Further regions to sign for, and the only locations of new buckets beside region; empty: any location."
    )
    default_ownership: str = setting(
        "ObjectWriter",
        "Object ownership of new buckets.",
        choices=("ObjectWriter", "BucketOwnerPreferred", "BucketOwnerEnforced"),
    )
    header_timeout: float = setting(30.0, "How long a client may take to send the request's headers.", least=0.1)
    body_timeout: float = setting(
        30.0, "How long a body may stand still before it is refused (RequestTimeout).", least=0.1
    )
    min_rate: int = setting(1024, "Least bytes per second of a body, measured after min_rate_grace.", least=0)
    min_rate_grace: float = setting(30.0, "Time before min_rate is applied.", least=0)
    max_in_flight: int = setting(1024, "Requests served by one process at a time; more are answered SlowDown.", least=1)
    max_waiters: int = setting(256, "Reads of one account in one process that wait for a verdict at a time.", least=1)
    clock_skew: float = setting(900.0, "Difference between a request's date and our clock that is accepted.", least=0)

    read_wait: float = setting(20.0, "How long a read waits for the verdict before it is answered SlowDown.", least=0)
    sync_timeout: float = setting(20.0, "How long a synchronous write waits for its verdict.", least=0)
    processing: str = setting(
        "async", "When a write is answered: once durable, or once processed.", choices=("async", "sync")
    )
    pipelines: Mapping[str, Mapping[str, Any]] = setting(
        lambda: MappingProxyType({}),
        "Pipelines by name: steps, and the bucket, prefix, extension or type they apply to. Default: all steps.",
    )
    activities: tuple[str, ...] = setting((), "Python modules with activities and workflows of your own.")
    clamd: str | None = setting(
        None, "Virus scanner: tcp://host:port or unix:/path. None: content is recorded as not scanned."
    )
    scan_timeout: float = setting(300.0, "Longest scan of one object.", least=0.1)
    unscannable: str = setting(
        "quarantine", "What becomes of content the scanner cannot judge.", choices=("quarantine", "allow")
    )
    unreachable: str = setting(
        "wait",
        "What becomes of content while the scanner is away; allow marks it as not scanned.",
        choices=("wait", "allow"),
    )
    enforce_type_match: bool = setting(False, "Quarantine content whose type contradicts its name or declared type.")
    blocked_extensions: tuple[str, ...] = setting(
        ("builtin",), "Extensions that are quarantined; builtin stands for the built-in list of programs."
    )
    verdict_ttl: float = setting(86400.0, "How long a verdict is lent to equal uploads; 0: never.", least=0)
    scan_streams: int = setting(8, "Objects one process has scanned at the same time.", least=1)
    sandbox_workers: int = setting(1, "Child processes per serving process that parse untrusted content.", least=1)
    sandbox_memory: int = setting(512 << 20, "Address space of such a child.", least=1 << 26)
    extract_max_bytes: int = setting(32 << 20, "Content larger than this is not opened for its text.", least=0)
    extract_timeout: float = setting(60.0, "Time to extract the text of one document.", least=0.1)

    durability: str = setting(
        "full",
        "full: an acknowledged write survives a power cut. os: no fsync, for scratch use.",
        choices=("full", "os"),
    )
    inline_threshold: int = setting(16384, "Objects up to this size lie in the database.", least=0)
    blob_grace: float = setting(86400.0, "How long bytes stay after the last reference to them is gone.", least=0)
    collect_interval: float = setting(30.0, "Time between two passes of the blob collector.", least=0.05)
    verify_reads: int = setting(
        256 << 10,
        "Whole reads of objects smaller than this are compared with their digest before the last piece leaves. Above "
        "1 MiB it costs such reads sendfile; 0: none.",
        least=0,
    )
    scrub_rate: int = setting(
        8 << 20,
        "Bytes per second at which all blobs in file tiers are read again and compared with their digests, by one "
        "process at a time; 0: never.",
        least=0,
    )
    scrub_interval: float = setting(604800.0, "Least time between the beginnings of two such rounds.", least=0.05)
    probe_interval: float = setting(10.0, "Time between two tries to write to each file tier.", least=0.05)
    staging_threads: int = setting(4, "Threads per process that hash and write large bodies.", least=1)
    quarantine_retention: float = setting(2592000.0, "How long quarantined content is kept.", least=0)
    lifecycle_day: float = setting(
        86400.0, "Length of a day in restore and lifecycle times; shorter for tests.", least=0.01
    )

    tiers: Mapping[str, TierConfig] = setting(
        lambda: MappingProxyType({}), "Storage tiers by name. Default: file tiers standard and archive in blob_dir."
    )
    classes: Mapping[str, str] = setting(
        default_classes, "Tier of each storage class; the others lie where STANDARD lies."
    )
    archive_delay: float = setting(30.0, "How long the built-in archive takes to restore.", least=0)
    recall_poll: float = setting(15.0, "Time between two looks at an archived blob being restored.", least=0.05)
    recall_window: float = setting(9000.0, "How long a restore may take before it fails.", least=1)

    log_level: str = setting("info", "Least severity that is logged.", choices=("debug", "info", "warning", "error"))
    log_format: str = setting("auto", "auto: pretty on a terminal, JSON elsewhere.", choices=("auto", "json", "pretty"))
    engine: EngineSection = setting(EngineSection, "How runs are executed.")
    origin: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), repr=False, compare=False)

    @property
    def blobs(self) -> Path:
        return self.blob_dir or self.data_dir / "blobs"

    @property
    def run_dir(self) -> Path:
        return self.data_dir / "run"

    @property
    def tier_configs(self) -> Mapping[str, TierConfig]:
        """The tiers to open: those configured, with the built-in ones for the names that are not."""
        archive = TierConfig("file", self.blobs / "archive", archive=True, delay=self.archive_delay)
        configs = {"standard": TierConfig("file", self.blobs / "standard"), "archive": archive, **self.tiers}
        return {
            name: dataclasses.replace(
                config, day=self.lifecycle_day, durable=config.durable and self.durability == "full"
            )
            for name, config in configs.items()
        }

    def replace(self, **values: Any) -> Settings:
        return dataclasses.replace(self, **values)


@dataclass(frozen=True, slots=True)
class Item:
    """One setting as the loader, the flags and the documentation see it. key is dotted: engine.slots."""

    key: str
    kind: Any
    default: Any
    doc: str
    secret: bool
    choices: tuple[str, ...]
    least: float | None

    @property
    def variable(self) -> str:
        for name, key in ALIASES.items():
            if key == self.key:
                return name
        return PREFIX + self.key.replace(".", "_").upper()


def catalogue() -> dict[str, Item]:
    """Every setting by key."""
    items: dict[str, Item] = {}
    for owner, prefix in ((Settings, ""), (EngineSection, "engine.")):
        hints = get_type_hints(owner)
        for each in fields(owner):
            if "doc" not in each.metadata or hints[each.name] is EngineSection:
                continue
            default = each.default_factory() if callable(each.default_factory) else each.default
            meta = each.metadata
            items[prefix + each.name] = Item(
                prefix + each.name,
                hints[each.name],
                default,
                meta["doc"],
                meta["secret"],
                meta["choices"],
                meta["least"],
            )
    return items
