"""Which versions still wait for a verdict: what the engine's sweep asks about runs that ended without giving one."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.domain.objects import State
from processing.model import Subject
from processing.ports import Conn


async def undecided(conn: Conn, subjects: Sequence[Subject]) -> set[Subject]:
    rows = await conn.fetch(
        """SELECT v.bucket_id, v.key, v.seq, v.rnd
             FROM version v JOIN unnest($1::bigint[], $2::bytea[], $3::bigint[], $4::bigint[]) AS q (b, k, s, r)
               ON v.bucket_id = q.b AND v.key = q.k AND v.seq = q.s AND v.rnd = q.r
            WHERE v.state = $5""",
        [each.bucket_id for each in subjects],
        [each.key for each in subjects],
        [each.seq for each in subjects],
        [each.rnd for each in subjects],
        int(State.SCANNING),
    )
    return {Subject(*row) for row in rows}
