"""The metrics: one table, which also makes docs/metrics.md, and what the parts of a process report through.

With several processes each writes its own files (prometheus_client's multiprocess mode; the supervisor sets the
folder, ``data_dir/run/metrics``, before this module is imported); whichever is scraped adds them up. What the database
knows (runs, recalls, bytes) is asked at the scrape. Labels come from closed sets: whatever a client or an activity can
make up is folded into ``other``, so the number of series does not grow with traffic.
"""

from __future__ import annotations

import asyncio
import os
import threading
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest, multiprocess
from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from processing.scanner import SCANNER_REASONS
from storage_tiers import failpoints

Kind = Literal["counter", "gauge", "histogram", "scraped"]
OTHER = "other"
FLUSH = 0.25  # seconds
UPLOADED = "post_upload"  # the workflow whose end is the verdict on an upload

REQUEST_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
RUN_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 3600, 21600, 86400)


@dataclass(frozen=True, slots=True)
class Row:
    """One metric. kind scraped: a gauge that is asked of the database (or the scanner) when Prometheus asks us."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    doc: str
    buckets: Sequence[float] = ()


TABLE: tuple[Row, ...] = (
    Row("sluice_s3_requests_total", "counter", ("operation", "code"), "Requests answered, by operation and status."),
    Row("sluice_s3_request_seconds", "histogram", ("operation",), "Time from head to last byte.", REQUEST_BUCKETS),
    Row("sluice_s3_ttfb_seconds", "histogram", ("operation",), "Time from head to first byte.", REQUEST_BUCKETS),
    Row("sluice_s3_bytes_total", "counter", ("direction",), "Body bytes: in, out."),
    Row("sluice_s3_in_flight", "gauge", (), "Requests being served now."),
    Row("sluice_s3_errors_total", "counter", ("operation", "s3_code"), "Requests refused, by S3 error code."),
    Row("sluice_auth_failures_total", "counter", ("reason",), "Requests whose signature was refused."),
    Row("sluice_runs", "scraped", ("workflow", "state"), "Runs that have not ended, by state."),
    Row("sluice_run_oldest_seconds", "scraped", ("workflow",), "Age of the oldest run that waits for a worker."),
    Row("sluice_run_seconds", "histogram", ("workflow", "outcome"), "Time from enqueue to end.", RUN_BUCKETS),
    Row("sluice_ready_seconds", "histogram", (), "Time from upload to verdict.", RUN_BUCKETS),
    Row("sluice_step_seconds", "histogram", ("step", "outcome"), "Time one attempt of a step took.", RUN_BUCKETS),
    Row("sluice_step_retries_total", "counter", ("step",), "Attempts after the first."),
    Row("sluice_verdicts_total", "counter", ("verdict", "reason"), "Versions decided, by verdict and code."),
    Row("sluice_recoveries_total", "counter", ("kind",), "Repairs: what the reaper and the sweeps put right."),
    Row("sluice_tier_ops_total", "counter", ("tier", "op", "outcome"), "Operations on storage tiers."),
    Row("sluice_tier_seconds", "histogram", ("tier", "op"), "Time of operations on storage tiers.", REQUEST_BUCKETS),
    Row("sluice_tier_bytes", "scraped", ("tier",), "Bytes of live blobs in a tier."),
    Row("sluice_tier_free_ratio", "scraped", ("tier", "resource"), "Free share of a file tier's disk."),
    Row("sluice_tier_writable", "scraped", ("tier",), "1 when the last try to write to a file tier succeeded."),
    Row("sluice_blobs_damaged", "scraped", (), "Blobs marked as missing or damaged; reads of them are refused."),
    Row("sluice_blob_damage_total", "counter", ("tier", "kind"), "Blobs found missing, differing or unreadable."),
    Row("sluice_scrub_bytes_total", "counter", (), "Bytes the scrubber has read and compared."),
    Row("sluice_scrub_age_seconds", "scraped", (), "Time since the last complete round of the scrubber began."),
    Row("sluice_quarantined", "scraped", (), "Versions in quarantine."),
    Row("sluice_recalls", "scraped", ("state",), "Archived versions: being restored, restored."),
    Row("sluice_scan_seconds", "histogram", ("outcome",), "Time of one scan.", RUN_BUCKETS),
    Row("sluice_scan_bytes_total", "counter", (), "Bytes sent to the scanner."),
    Row("sluice_scanner_errors_total", "counter", ("reason",), "Scans and pings that ended without an answer."),
    Row("sluice_scanner_up", "scraped", (), "1 when the scanner answers; absent when none is configured."),
    Row("sluice_scanner_signature_age_seconds", "scraped", (), "Age of the scanner's signatures."),
    Row("sluice_workers", "scraped", (), "Processes whose lease is valid."),
    Row("sluice_listening", "gauge", (), "Processes that hear the hints of others; the rest poll."),
    Row("sluice_db_pool", "gauge", ("state",), "Database connections of the pools: idle, used."),
    Row("sluice_s3_connections", "gauge", (), "Open connections of clients to the S3 port."),
    Row("sluice_tasks", "gauge", (), "Asyncio tasks; at rest they are always as many."),
    Row("sluice_build_info", "scraped", ("version",), "1, with the version as label."),
)
ROWS: Mapping[str, Row] = {row.name: row for row in TABLE}


Series = tuple[str, ...]  # a metric's name and its labels


IN_FLIGHT: Series = ("sluice_s3_in_flight",)
BYTES_IN: Series = ("sluice_s3_bytes_total", "in")
BYTES_OUT: Series = ("sluice_s3_bytes_total", "out")


@dataclass(frozen=True, slots=True)
class Answer:
    """The series in which requests of one operation, status and error code count."""

    requests: Series
    seconds: Series
    first_byte: Series
    errors: Series | None


class Fold:
    """Maps a label's value to itself when it is known, else to ``other``."""

    def __init__(self, known: Iterable[str]) -> None:
        self._known = frozenset(known)

    def __call__(self, value: str | None) -> str:
        return value if value in self._known else OTHER if value else "none"


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The closed sets that labels are folded into."""

    operations: Fold
    codes: Fold
    workflows: Fold
    steps: Fold
    reasons: Fold


class Metrics:
    """What one process reports. Safe to call from any thread.

    What is counted is kept in plain dicts and handed to prometheus_client every FLUSH seconds (and at a scrape): its
    values are locked, checked and written to a mapped file one by one, dozens of times a request.
    """

    def __init__(self, vocabulary: Vocabulary, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        self._fold = vocabulary
        self._made: dict[str, Any] = {row.name: _make(row, self.registry) for row in TABLE if row.kind != "scraped"}
        self._children: dict[Series, Any] = {}
        self._lock = threading.Lock()
        self._sums: dict[Series, float] = {}
        self._seen: dict[Series, list[float]] = {}  # observations by bucket, their sum last
        self._due = False
        self._answers: dict[tuple[str, int, str | None], Answer] = {}

    def flush(self) -> None:
        """Hand over what was counted since the last time."""
        with self._lock:
            sums, self._sums, seen, self._seen, self._due = self._sums, {}, self._seen, {}, False
        for series, amount in sums.items():
            if amount:
                self._at(*series).inc(amount)
        for series, (*counts, total) in seen.items():
            child = self._at(*series)
            child._sum.inc(total)
            for bucket, count in zip(child._buckets, counts, strict=True):
                if count:
                    bucket.inc(count)

    def _count(self, amount: float, *series: str) -> None:
        with self._lock:
            self._sums[series] = self._sums.get(series, 0.0) + amount
        if not self._due:
            self._flush_soon()

    def _observe(self, value: float, *series: str) -> None:
        with self._lock:
            self._see(value, series)
        if not self._due:
            self._flush_soon()

    def _see(self, value: float, series: Series) -> None:
        """Under the lock."""
        buckets = ROWS[series[0]].buckets
        seen = self._seen.get(series)
        if seen is None:
            seen = self._seen[series] = [0.0] * (len(buckets) + 2)
        seen[bisect_left(buckets, value)] += 1
        seen[-1] += value

    def _flush_soon(self) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # no loop in this thread: nothing would come back to it
            self.flush()
        else:
            self._due = True
            loop.call_later(FLUSH, self.flush)

    def _at(self, name: str, *labels: str) -> Any:
        """The child of a metric for its labels; prometheus_client looks it up under a lock, we once."""
        child = self._children.get((name, *labels))
        if child is None:
            metric = self._made[name]
            child = self._children[(name, *labels)] = metric.labels(*labels) if labels else metric
        return child

    # --- requests ----------------------------------------------------------------------------------------------

    def request_started(self) -> None:
        self._count(1, "sluice_s3_in_flight")

    def request_ended(
        self,
        operation: str,
        status: int,
        code: str | None,
        seconds: float,
        first_byte: float | None,
        received: int,
        sent: int,
    ) -> None:
        """seconds and first_byte count from the request's head; received and sent are body bytes."""
        series = self._answers.get((operation, status, code)) or self._answer(operation, status, code)
        with self._lock:
            sums = self._sums
            sums[IN_FLIGHT] = sums.get(IN_FLIGHT, 0.0) - 1
            sums[series.requests] = sums.get(series.requests, 0.0) + 1
            if received:
                sums[BYTES_IN] = sums.get(BYTES_IN, 0.0) + received
            if sent:
                sums[BYTES_OUT] = sums.get(BYTES_OUT, 0.0) + sent
            if series.errors is not None:
                sums[series.errors] = sums.get(series.errors, 0.0) + 1
            self._see(seconds, series.seconds)
            if first_byte is not None:
                self._see(first_byte, series.first_byte)
        if not self._due:
            self._flush_soon()

    def _answer(self, operation: str, status: int, code: str | None) -> Answer:
        """The series that such an answer counts in; remembered: operations, statuses and codes stand in tables."""
        name, number = self._fold.operations(operation), str(status) if 100 <= status < 600 else OTHER
        made = Answer(
            ("sluice_s3_requests_total", name, number),
            ("sluice_s3_request_seconds", name),
            ("sluice_s3_ttfb_seconds", name),
            None if code is None else ("sluice_s3_errors_total", name, self._fold.codes(code)),
        )
        self._answers[(operation, status, code)] = made
        return made

    def auth_failed(self, reason: str) -> None:
        self._count(1, "sluice_auth_failures_total", self._fold.codes(reason))

    # --- runs (processing.execution.Hooks) -----------------------------------------------------------------------

    def run(self, workflow: str, outcome: str, seconds: float) -> None:
        """outcome: completed, failed or cancelled. seconds since the run was enqueued."""
        self._observe(max(0.0, seconds), "sluice_run_seconds", self._fold.workflows(workflow), outcome)
        if workflow == UPLOADED:
            self._observe(max(0.0, seconds), "sluice_ready_seconds")

    def verdict(self, verdict: str, reason: str) -> None:
        self._count(1, "sluice_verdicts_total", verdict, self._fold.reasons(reason))

    def step(self, step: str, outcome: str, seconds: float) -> None:
        self._observe(seconds, "sluice_step_seconds", self._fold.steps(step), outcome)

    def retry(self, step: str) -> None:
        self._count(1, "sluice_step_retries_total", self._fold.steps(step))

    def recovery(self, kind: str, count: int) -> None:
        self._count(count, "sluice_recoveries_total", kind)

    def point(self, name: str) -> None:
        """Borders are for crash tests; nothing is counted."""
        failpoints.point("run." + name)

    # --- the scanner (processing.scanner.ScannerMeter) -----------------------------------------------------------

    def error(self, reason: str) -> None:
        self._count(1, "sluice_scanner_errors_total", reason if reason in SCANNER_REASONS else OTHER)

    def scanned(self, outcome: str, seconds: float, size: int) -> None:
        self._observe(seconds, "sluice_scan_seconds", outcome)
        self._count(size, "sluice_scan_bytes_total")

    def up(self, answers: bool) -> None:
        """Asked at the scrape instead: what one process saw last says little about now."""

    def signatures(self, built: datetime | None) -> None:
        """Asked at the scrape instead."""

    # --- tiers and database ------------------------------------------------------------------------------------

    def tier_operation(self, tier: str, op: str, outcome: str, seconds: float) -> None:
        self._count(1, "sluice_tier_ops_total", tier, op, outcome)
        self._observe(seconds, "sluice_tier_seconds", tier, op)

    def blob_damaged(self, tier: str, kind: str) -> None:
        self._count(1, "sluice_blob_damage_total", tier, kind)

    def scrubbed(self, size: int) -> None:
        self._count(size, "sluice_scrub_bytes_total")

    def listening(self, connected: bool) -> None:
        self._at("sluice_listening").set(int(connected))

    def held(self, connections: int, tasks: int) -> None:
        self._at("sluice_s3_connections").set(connections)
        self._at("sluice_tasks").set(tasks)

    def pool(self, idle: int, used: int) -> None:
        self._at("sluice_db_pool", "idle").set(idle)
        self._at("sluice_db_pool", "used").set(used)


def _make(row: Row, registry: CollectorRegistry) -> Any:
    if row.kind == "counter":
        return Counter(row.name, row.doc, row.labels, registry=registry)
    if row.kind == "histogram":
        return Histogram(row.name, row.doc, row.labels, buckets=row.buckets, registry=registry)
    return Gauge(row.name, row.doc, row.labels, registry=registry, multiprocess_mode="livesum")


Sample = tuple[tuple[str, ...], float]


class _Asked:
    """A collector of values that were fetched just before."""

    def __init__(self, values: Mapping[str, Sequence[Sample]]) -> None:
        self._values = values

    def collect(self) -> Iterable[Metric]:
        for name, samples in self._values.items():
            row = ROWS[name]
            family = GaugeMetricFamily(row.name, row.doc, labels=row.labels)
            for labels, value in samples:
                family.add_metric(list(labels), value)
            yield family


def exposition(metrics: Metrics, asked: Mapping[str, Sequence[Sample]]) -> bytes:
    """The page Prometheus reads: all processes' own metrics, and the values asked for this scrape."""
    metrics.flush()
    registry = metrics.registry
    if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
        registry = CollectorRegistry()
        multiprocess.MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return generate_latest(registry) + generate_latest(_only(_Asked(asked)))


def _only(collector: Any) -> CollectorRegistry:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return registry


def forget_process(pid: int) -> None:
    """Called by the supervisor when a child has died: its gauges count no more, its counters stay."""
    multiprocess.mark_process_dead(pid)  # type: ignore[no-untyped-call]
