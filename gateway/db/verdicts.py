"""Verdicts that machines reached about content, lent to equal uploads of the same tenant."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.domain.keys import extension
from gateway.domain.objects import State
from processing.ports import Conn


@dataclass(frozen=True, slots=True)
class KnownVerdict:
    state: State  # READY or QUARANTINED
    code: str | None
    detail: str | None
    processing: Mapping[str, Any]


def lendable(code: str | None, processing: Mapping[str, Any]) -> bool:
    """Whether what a run found may be lent to equal content, or go with a copy: only what a machine decided in full.

    Nothing unscannable, degraded, or let through by policy or by a person.
    """
    if code == "unscannable" or "degraded" in processing or "released" in processing:
        return False
    scan = processing.get("scan")
    return not (isinstance(scan, Mapping) and scan.get("allowed"))


def verdict_key(digest: str, fingerprint: str, key: bytes, declared_type: str | None) -> bytes:
    """What has to be equal for a verdict to be lent: typed digest, pipeline, extension, declared type."""
    parts = (digest, fingerprint, extension(key), declared_type or "")
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).digest()


async def lookup(conn: Conn, keys: Sequence[tuple[int, bytes]], ttl: float) -> dict[tuple[int, bytes], KnownVerdict]:
    """The verdicts not older than ttl seconds among (account id, verdict key)."""
    if not keys:
        return {}
    rows = await conn.fetch(
        """SELECT v.account_id, v.key, v.state, v.code, v.detail, v.processing
             FROM verdict v JOIN unnest($1::bigint[], $2::bytea[]) AS q (a, k) ON v.account_id = q.a AND v.key = q.k
            WHERE v.decided_at > now() - $3 * interval '1 second'""",
        [account for account, _ in keys],
        [key for _, key in keys],
        ttl,
    )
    return {
        (row["account_id"], row["key"]): KnownVerdict(
            State(row["state"]), row["code"], row["detail"], row["processing"]
        )
        for row in rows
    }


async def record(
    conn: Conn,
    verdicts: Sequence[tuple[int, bytes, State, str | None, str | None, Mapping[str, Any], int]],
) -> None:
    """Write (account, verdict key, state, code, detail, processing, run) of what was just decided."""
    unique = {(v[0], v[1]): v for v in verdicts}  # one statement may touch a row only once
    ordered = [unique[k] for k in sorted(unique)]
    if not ordered:
        return
    await conn.execute(
        """INSERT INTO verdict (account_id, key, state, code, detail, processing, run_id)
           SELECT * FROM unnest($1::bigint[], $2::bytea[], $3::smallint[], $4::text[], $5::text[], $6::jsonb[],
                                $7::bigint[])
           ON CONFLICT (account_id, key) DO UPDATE
              SET state = excluded.state, code = excluded.code, detail = excluded.detail,
                  processing = excluded.processing, run_id = excluded.run_id, decided_at = now()""",
        [v[0] for v in ordered],
        [v[1] for v in ordered],
        [int(v[2]) for v in ordered],
        [v[3] for v in ordered],
        [v[4] for v in ordered],
        [dict(v[5]) for v in ordered],
        [v[6] for v in ordered],
    )
