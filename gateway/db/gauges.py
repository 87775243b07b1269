"""What only the database knows, for a scrape: waiting runs, held content, recalls, bytes by tier."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import asyncpg

from processing import queries

Sample = tuple[tuple[str, ...], float]
RECALL = "tier.recall"
LIVE = ("pending", "running", "parked")
BYTES_FRESH = 60.0  # seconds; adding up every blob is the one expensive question here
SLOW = 60.0  # seconds such a question may take, whatever requests are allowed

REST = """
SELECT (SELECT count(*) FROM version WHERE state = 3) AS quarantined,
       (SELECT count(*) FROM version WHERE restored_blob IS NOT NULL AND restored_until > now()) AS restored,
       (SELECT count(*) FROM blob WHERE corrupt AND state = 2) AS damaged,
       (SELECT extract(epoch FROM now() - verified)::float8 FROM scrub) AS scrub_age
"""
BYTES = "SELECT tier, sum(size)::bigint AS bytes FROM blob WHERE state = 2 GROUP BY tier"


class Gauges:
    def __init__(self, pool: asyncpg.Pool, clock: Callable[[], float]) -> None:
        self._pool, self._clock = pool, clock
        self._bytes: tuple[float, list[Sample]] = (float("-inf"), [])

    async def ask(self, fold: Callable[[str], str], workflows: Collection[str]) -> Mapping[str, Sequence[Sample]]:
        """Samples by metric. fold maps a workflow to the label it is shown under. Raises as the pool does.

        Every workflow of ours has every series, at 0: a series that comes and goes is no ground for an alert.
        """
        counts: dict[tuple[str, ...], float] = {(w, state): 0 for w in workflows for state in LIVE}
        recalls = 0
        ages: dict[tuple[str, ...], float] = dict.fromkeys(((w,) for w in workflows), 0.0)
        async with self._pool.acquire() as conn:
            for name, state, number, age in await queries.counts(conn):
                workflow = fold(name)
                recalls += number if name == RECALL else 0
                labels = (workflow, state)
                counts[labels] = counts.get(labels, 0) + number
                if state == "pending":
                    ages[(workflow,)] = max(ages.get((workflow,), 0.0), age)
            health = await queries.worker_health(conn)
            rest = await conn.fetchrow(REST, timeout=SLOW)
            assert rest is not None
            if self._bytes[0] + BYTES_FRESH < self._clock():
                rows = await conn.fetch(BYTES, timeout=SLOW)
                self._bytes = self._clock(), [((row["tier"],), float(row["bytes"] or 0)) for row in rows]
        return {
            "sluice_runs": list(counts.items()),
            "sluice_run_oldest_seconds": list(ages.items()),
            "sluice_quarantined": [((), rest["quarantined"])],
            "sluice_recalls": [(("restoring",), recalls), (("restored",), rest["restored"])],
            "sluice_blobs_damaged": [((), rest["damaged"])],
            "sluice_scrub_age_seconds": [] if rest["scrub_age"] is None else [((), rest["scrub_age"])],
            "sluice_workers": [((), health["workers"])],
            "sluice_tier_bytes": self._bytes[1],
        }
