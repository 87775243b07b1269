"""What a page of a listing with a delimiter costs in buckets of more and more keys.

python -m bench.scale --keys 10000 100000 1000000 10000000

The keys are written into the tables directly, as uploads leave them (ten million uploads would take an hour): half lie
under one prefix, the rest under 999 others, so that a page of the root has 1,000 groups and that of the large prefix
1,000 keys. Pages are asked for over HTTP. The target: the last column is at most 1.5.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import asyncpg

from bench import ours
from bench.endpoint import Client, Endpoint

SIZES = (10_000, 100_000, 1_000_000, 10_000_000)
TIMES = 30
CHUNK = 1_000_000  # keys a statement

# Of number n: the even ones under "big/", the others in 999 groups.
KEY = """convert_to(CASE WHEN n % 2 = 0 THEN 'big/' || lpad(n::text, 9, '0')
                         ELSE 'group' || lpad((n / 2 % 999)::text, 3, '0') || '/' || lpad(n::text, 9, '0') END,
                    'UTF8')"""
FILL = f"""
WITH made AS (
    SELECT {KEY} AS key, n FROM generate_series($2::bigint, $3::bigint) n
), v AS (
    INSERT INTO version (bucket_id, key, seq, rnd, is_null, state, etag, size, modified, owner_id, extents)
    SELECT $1, key, 1000000 + n, n, true, 2, md5(n::text), 4096, now(), $4, 0 FROM made
)
INSERT INTO head (bucket_id, key, seq, current_seq, listable, etag, size, modified, storage_class, owner_id)
SELECT $1, key, 1000000 + n, 1000000 + n, true, md5(n::text), 4096, now(), 'STANDARD', $4 FROM made"""

PAGES = {
    "root, delimiter": [("list-type", "2"), ("delimiter", "/")],
    "prefix, delimiter": [("list-type", "2"), ("delimiter", "/"), ("prefix", "big/")],
    "plain": [("list-type", "2")],
}


@dataclass(frozen=True, slots=True)
class Page:
    """Medians of one page in one bucket, in milliseconds."""

    name: str
    keys: int
    median: float


async def fill(dsn: str, bucket: str, keys: int) -> None:
    conn = await asyncpg.connect(dsn)
    try:
        row = await conn.fetchrow("SELECT id, account_id FROM bucket WHERE name = $1", bucket)
        assert row is not None
        for first in range(0, keys, CHUNK):
            await conn.execute(FILL, row["id"], first, min(first + CHUNK, keys) - 1, row["account_id"], timeout=1800)
        await conn.execute("VACUUM ANALYZE head", timeout=1800)
    finally:
        await conn.close()


def measure(endpoint: Endpoint, sizes: Sequence[int]) -> list[Page]:
    """Rounds over all buckets, one page of each kind in turn: what else the machine does hits all alike."""
    client = Client(endpoint)
    times: dict[tuple[str, int], list[float]] = {}
    for turn in range(TIMES + 3):
        for size in sizes:
            for name, query in PAGES.items():
                began = time.perf_counter()
                body = client.good("GET", f"/{bucket_of(size)}", query).body
                seconds = time.perf_counter() - began
                if body.count(b"<Key>") + body.count(b"<Prefix>") < 1000:
                    raise SystemExit(f"a page of {name} in {size:,} keys is not full")
                if turn >= 3:
                    times.setdefault((name, size), []).append(seconds * 1000)
    client.close()
    return [Page(name, size, statistics.median(each)) for (name, size), each in times.items()]


def bucket_of(keys: int) -> str:
    return f"scale-{keys}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--keys", type=int, nargs="+", default=list(SIZES))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-scale-") as name:
        Path(name).chmod(0o711)
        with ours.running(Path(name)) as endpoint:
            client = Client(endpoint)
            for size in args.keys:
                print(f"filling {size:,}", file=sys.stderr, flush=True)
                client.good("PUT", f"/{bucket_of(size)}")
                asyncio.run(fill(endpoint.dsn, bucket_of(size), size))
            client.close()
            pages = measure(endpoint, args.keys)
    found = {(page.name, page.keys): page.median for page in pages}
    print(f"{'page of 1,000 (ms, median)':28}" + "".join(f"{size:>14,}" for size in args.keys) + f"{'last/first':>12}")
    for name in PAGES:
        medians = [found[name, size] for size in args.keys]
        print(f"{name:28}" + "".join(f"{each:14.2f}" for each in medians) + f"{medians[-1] / medians[0]:12.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
