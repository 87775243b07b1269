-- Take these runs for a worker past the line, as far as they wait in it and their lanes have room: somebody waits for what
-- they decide. The lanes keep their turns. As in engine_claim they are locked in one statement and their running runs
-- counted in the next; here in order, and waiting, since a claim holds them for a moment only. "state + 0" keeps the looks
-- at the wanted runs out of the index of the line, which may be long.
CREATE FUNCTION engine_claim_wanted(
    worker bigint, wanted bigint[], want integer, tenant_cap integer, cap_lanes text[], caps integer[]
) RETURNS SETOF workflow_run LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    tenants bigint[];
    lanes   text[];
BEGIN
    SELECT array_agg(p.tenant), array_agg(p.lane) INTO tenants, lanes
    FROM (
        SELECT q.tenant, q.lane FROM tenant_q q
        WHERE (q.tenant, q.lane) IN (
            SELECT r.tenant, r.lane FROM workflow_run r WHERE r.run_id = ANY (wanted) AND r.state + 0 = 1)
        ORDER BY q.tenant, q.lane FOR NO KEY UPDATE
    ) p;
    IF tenants IS NULL THEN
        RETURN;
    END IF;
    RETURN QUERY
        WITH room AS (
            SELECT u.t, u.l,
                   coalesce(q.max_running, c.lane_cap, tenant_cap)
                   - (SELECT count(*) FROM workflow_run r WHERE r.tenant = u.t AND r.lane = u.l AND r.state = 2) AS free
            FROM unnest(tenants, lanes) AS u(t, l)
            JOIN tenant_q q ON q.tenant = u.t AND q.lane = u.l
            LEFT JOIN unnest(cap_lanes, caps) AS c(lane_name, lane_cap) ON c.lane_name = u.l
        ), chosen AS (
            SELECT w.run_id FROM (SELECT * FROM room WHERE free > 0) f
            CROSS JOIN LATERAL (
                SELECT r.run_id FROM workflow_run r
                WHERE r.run_id = ANY (wanted) AND r.tenant = f.t AND r.lane = f.l AND r.state + 0 = 1
                ORDER BY r.run_at, r.run_id LIMIT f.free FOR UPDATE SKIP LOCKED
            ) w
            LIMIT want
        )
        UPDATE workflow_run r SET
            state = 2, epoch = r.epoch + 1, lease_token = gen_random_uuid(), worker_id = worker,
            started_at = coalesce(r.started_at, clock_timestamp())
        WHERE r.run_id = ANY (ARRAY(SELECT run_id FROM chosen)) AND r.state + 0 = 1
        RETURNING r.*;
END $$;

-- A lease's token says by itself that its run is running (run_state), and an end that there was none. Spoken of by their
-- states, runs that are looked up by id may be sought in the indexes of those states instead, which a planner takes for
-- small: they are full of entries that are dead until the next vacuum (a settle of 33 overwrites: 9 ms, or 76).
DO $$
DECLARE
    name text;
    body text;
BEGIN
    FOREACH name IN ARRAY ARRAY['engine_finish', 'settle_ready'] LOOP
        body := pg_get_functiondef(name::regproc);
        IF strpos(body, 'u.token AND r.state = 2') = 0 THEN
            RAISE EXCEPTION '% is not as 0006 made it', name;
        END IF;
        EXECUTE replace(replace(body, 'u.token AND r.state = 2', 'u.token'),
                        'r.run_id = o.run_id AND r.state IN (1, 2, 3)', 'r.run_id = o.run_id AND r.finished_at IS NULL');
    END LOOP;
END $$;
