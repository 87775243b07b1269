-- The engine: runs, their journal and events, workers, and what decides who is served next.
-- Lock order: gateway's rows, then workflow_run (by id), then tenant_q, then advisory locks (sorted).
-- Nothing here depends on session state; PostgreSQL 15 is enough.

CREATE TABLE definition (                 -- the step lists runs were enqueued with
    fingerprint text PRIMARY KEY,
    id          bigint GENERATED ALWAYS AS IDENTITY UNIQUE,   -- order of first appearance
    workflow    text NOT NULL,
    pipeline    text NOT NULL,
    body        jsonb NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE worker (                     -- a process; its row is the lease of all runs it holds
    worker_id   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name        text NOT NULL,
    started_at  timestamptz NOT NULL DEFAULT now(),
    lease_until timestamptz NOT NULL,
    slots       integer NOT NULL          -- 0: enqueues only
) WITH (fillfactor = 50);

CREATE TABLE tenant_q (                   -- who has runs waiting; a lane is a workflow with a cap of its own, '' all others
    tenant      bigint NOT NULL,
    lane        text COLLATE "C" NOT NULL,
    active      boolean NOT NULL DEFAULT false,
    max_running integer,                  -- null: the installation's
    weight      integer NOT NULL DEFAULT 1 CHECK (weight > 0),
    turn        bigint NOT NULL DEFAULT 0,   -- when it was last looked at, in microseconds; never served: first of all
    PRIMARY KEY (tenant, lane)
) WITH (fillfactor = 50);
CREATE INDEX tenant_q_turn ON tenant_q (turn, tenant, lane) WHERE active;

CREATE TABLE workflow_run (
    run_id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    run_key          text COLLATE "C" NOT NULL UNIQUE,
    tenant           bigint NOT NULL,
    lane             text COLLATE "C" NOT NULL,
    workflow         text NOT NULL,
    pipeline         text NOT NULL,
    definition       text NOT NULL,       -- fingerprint
    bucket_id        bigint,              -- the subject, when there is one
    key              bytea,
    seq              bigint,
    rnd              bigint,
    input            jsonb NOT NULL,
    output           jsonb,
    state            smallint NOT NULL,   -- pending, running, parked, completed, failed, cancelled
    epoch            integer NOT NULL DEFAULT 0,   -- how often it was claimed: the high part of event indexes
    failures         integer NOT NULL DEFAULT 0,   -- failed attempts of steps
    recoveries       integer NOT NULL DEFAULT 0,   -- workers lost since the last recorded step
    lease_token      uuid,
    worker_id        bigint,              -- who runs it, or ran it last
    run_at           timestamptz NOT NULL DEFAULT clock_timestamp(),   -- place in its tenant's line
    wake_at          timestamptz,
    wait_key         text COLLATE "C",    -- what it was parked on; kept until the next park, for the event's payload
    park_deadline    timestamptz,
    park_reason      text,
    dependency       text,                -- the breaker it waits for, and since when
    dependency_since timestamptz,
    poll_state       jsonb,               -- {step: what it stored when it parked}
    cursor           text,                -- the step it parked at
    retry_base       jsonb,               -- attempts journaled when a person retried it
    batch_id         bigint,
    cancel_requested boolean NOT NULL DEFAULT false,
    error_code       text,                -- failure code, or block reason of a completed run
    detail           text,                -- never content
    created_at       timestamptz NOT NULL DEFAULT now(),
    started_at       timestamptz,
    finished_at      timestamptz,
    CONSTRAINT run_state CHECK (
        state = 1 AND lease_token IS NULL AND wake_at IS NULL AND finished_at IS NULL
        OR state = 2 AND lease_token IS NOT NULL AND worker_id IS NOT NULL AND wake_at IS NULL AND finished_at IS NULL
        OR state = 3 AND wake_at IS NOT NULL AND park_deadline IS NOT NULL AND lease_token IS NULL AND finished_at IS NULL
        OR state = 4 AND finished_at IS NOT NULL AND lease_token IS NULL AND wake_at IS NULL
        OR state = 5 AND finished_at IS NOT NULL AND error_code IS NOT NULL AND lease_token IS NULL AND wake_at IS NULL
        OR state = 6 AND finished_at IS NOT NULL AND error_code IS NOT NULL AND lease_token IS NULL AND wake_at IS NULL
    )
) WITH (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX run_waiting ON workflow_run (tenant, lane, run_at, run_id) WHERE state = 1;
CREATE INDEX run_running ON workflow_run (tenant, lane) WHERE state = 2;
CREATE INDEX run_of_worker ON workflow_run (worker_id) WHERE state = 2;
CREATE INDEX run_timer ON workflow_run (wake_at) WHERE state = 3;
CREATE INDEX run_event_wait ON workflow_run (wait_key) WHERE state = 3;
CREATE INDEX run_of_subject ON workflow_run (bucket_id, key, seq) WHERE state IN (1, 2, 3);

CREATE TABLE workflow_step (              -- the journal: one row per attempt
    run_id      bigint NOT NULL,
    step_key    text NOT NULL,
    attempt     integer NOT NULL,
    status      smallint NOT NULL CHECK (status IN (1, 2, 3, 4)),   -- completed, failed, degraded, blocked
    output      jsonb,
    code        text,
    worker_id   bigint NOT NULL,
    started_at  timestamptz NOT NULL,
    seconds     real NOT NULL,
    PRIMARY KEY (run_id, step_key, attempt)
) PARTITION BY RANGE (run_id);

CREATE TABLE run_event (                  -- the progress stream; idx is epoch * 2^20 + n
    run_id bigint NOT NULL,
    idx    bigint NOT NULL,
    at     timestamptz NOT NULL,
    kind   text NOT NULL,
    data   jsonb NOT NULL,
    PRIMARY KEY (run_id, idx)
) PARTITION BY RANGE (run_id);

-- What is in no range yet lands here, so no insert ever fails; maintenance makes ranges ahead and moves strays.
CREATE TABLE workflow_step_rest PARTITION OF workflow_step DEFAULT;
CREATE TABLE run_event_rest PARTITION OF run_event DEFAULT;

CREATE TABLE journal_range (              -- the ranges that exist: partitions workflow_step_<low>, run_event_<low>
    low        bigint PRIMARY KEY,
    high       bigint NOT NULL,           -- exclusive
    created_at timestamptz NOT NULL DEFAULT now()
);

DO $$
DECLARE
    width CONSTANT bigint := 131072;
BEGIN
    FOR i IN 0..7 LOOP
        EXECUTE format('CREATE TABLE workflow_step_%s PARTITION OF workflow_step FOR VALUES FROM (%s) TO (%s)',
                       i * width, i * width, (i + 1) * width);
        EXECUTE format('CREATE TABLE run_event_%s PARTITION OF run_event FOR VALUES FROM (%s) TO (%s)',
                       i * width, i * width, (i + 1) * width);
        INSERT INTO journal_range (low, high) VALUES (i * width, (i + 1) * width);
    END LOOP;
END $$;

CREATE TABLE signal (                     -- events from outside; the first write of a key wins
    wait_key text COLLATE "C" PRIMARY KEY,
    payload  jsonb NOT NULL,
    at       timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX signal_age ON signal (at);

CREATE TABLE breaker (                    -- a dependency that did not answer
    name        text COLLATE "C" PRIMARY KEY,
    is_open     boolean NOT NULL,
    failures    integer NOT NULL DEFAULT 0,   -- probes failed in a row
    opened_at   timestamptz,
    closed_at   timestamptz,
    next_probe  timestamptz NOT NULL,     -- nobody tries before
    probe_until timestamptz,              -- somebody is trying
    probe_token uuid,
    woken_at    timestamptz               -- when a parked run was last woken to be the probe
);

CREATE TABLE gap (                        -- optional steps that a dependency's outage left out
    run_id     bigint NOT NULL,
    step_key   text NOT NULL,
    dependency text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (run_id, step_key)
);
CREATE INDEX gap_dependency ON gap (dependency, run_id);

CREATE TABLE sweep (                      -- maintenance that one process of the fleet does at a time
    name   text PRIMARY KEY,
    ran_at timestamptz NOT NULL DEFAULT to_timestamp(0),
    cursor bigint NOT NULL DEFAULT 0      -- how far it came
);

-- Make sure that these lanes are looked at by claims. The key share lock excludes engine_claim's switching off
-- until the caller's transaction has ended, so that no activation is lost; it does not exclude other activations.
CREATE FUNCTION engine_activate(tenants bigint[], lanes text[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO tenant_q (tenant, lane, active)
    SELECT DISTINCT u.t, u.l, true FROM unnest(tenants, lanes) AS u(t, l)
    WHERE NOT EXISTS (SELECT FROM tenant_q q WHERE q.tenant = u.t AND q.lane = u.l)
    ORDER BY 1, 2
    ON CONFLICT DO NOTHING;

    PERFORM FROM tenant_q q
    WHERE (q.tenant, q.lane) IN (SELECT u.t, u.l FROM unnest(tenants, lanes) AS u(t, l))
    ORDER BY q.tenant, q.lane FOR KEY SHARE;

    PERFORM FROM tenant_q q
    WHERE (q.tenant, q.lane) IN (SELECT u.t, u.l FROM unnest(tenants, lanes) AS u(t, l)) AND NOT q.active
    ORDER BY q.tenant, q.lane FOR NO KEY UPDATE;
    IF FOUND THEN
        UPDATE tenant_q q SET active = true
        WHERE (q.tenant, q.lane) IN (SELECT u.t, u.l FROM unnest(tenants, lanes) AS u(t, l)) AND NOT q.active;
    END IF;
END $$;

-- Take up to want waiting runs for a worker, round robin over lanes, never more than its cap of any lane.
--
-- Lanes are locked in one statement and their running runs counted in the next, whose snapshot is younger than the
-- locks: done in one, the count is stale and the cap breaks. A last row of nulls says that a lane locked by another
-- claim was passed over, so that looking again soon is worth it.
CREATE FUNCTION engine_claim(
    worker bigint, want integer, tenant_cap integer, cap_lanes text[], caps integer[]
) RETURNS SETOF workflow_run LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    tenants bigint[];
    lanes   text[];
    taken   bigint[] := '{}';
    empty_t bigint[];
    empty_l text[];
    moment  bigint;
    passed  boolean;
BEGIN
    SELECT array_agg(p.tenant ORDER BY p.turn, p.tenant, p.lane), array_agg(p.lane ORDER BY p.turn, p.tenant, p.lane)
    INTO tenants, lanes
    FROM (
        SELECT q.tenant, q.lane, q.turn FROM tenant_q q WHERE q.active
        ORDER BY q.turn, q.tenant, q.lane LIMIT want FOR NO KEY UPDATE SKIP LOCKED
    ) p;
    passed := (SELECT count(*) FROM (SELECT FROM tenant_q q WHERE q.active LIMIT want) a) > coalesce(cardinality(tenants), 0);

    IF tenants IS NOT NULL THEN
        FOR round IN 1..2 LOOP   -- the second round gives what others left over to those that have more
            WITH room AS (
                SELECT u.t, u.l, u.ord,
                       least(coalesce(q.max_running, c.lane_cap, tenant_cap)
                             - (SELECT count(*) FROM workflow_run r WHERE r.tenant = u.t AND r.lane = u.l AND r.state = 2),
                             CASE round WHEN 1
                                 THEN q.weight * ((want - 1) / cardinality(tenants) + 1)
                                 ELSE want - cardinality(taken) END) AS free
                FROM unnest(tenants, lanes) WITH ORDINALITY AS u(t, l, ord)
                JOIN tenant_q q ON q.tenant = u.t AND q.lane = u.l
                LEFT JOIN unnest(cap_lanes, caps) AS c(lane_name, lane_cap) ON c.lane_name = u.l
            ), chosen AS (
                SELECT w.run_id FROM (SELECT * FROM room WHERE free > 0 ORDER BY ord) f
                CROSS JOIN LATERAL (
                    SELECT r.run_id FROM workflow_run r
                    WHERE r.tenant = f.t AND r.lane = f.l AND r.state = 1
                    ORDER BY r.run_at, r.run_id LIMIT f.free FOR UPDATE SKIP LOCKED
                ) w
                LIMIT want - cardinality(taken)
            ), started AS (
                UPDATE workflow_run r SET
                    state = 2, epoch = r.epoch + 1, lease_token = gen_random_uuid(), worker_id = worker,
                    started_at = coalesce(r.started_at, clock_timestamp())
                WHERE r.run_id = ANY (ARRAY(SELECT run_id FROM chosen)) AND r.state = 1
                RETURNING r.run_id
            )
            SELECT taken || coalesce(array_agg(run_id), '{}') INTO taken FROM started;
            EXIT WHEN cardinality(taken) >= want OR cardinality(tenants) = 1 OR cardinality(taken) = 0;
        END LOOP;

        moment := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
        UPDATE tenant_q q SET turn = moment + u.ord
        FROM unnest(tenants, lanes) WITH ORDINALITY AS u(t, l, ord)
        WHERE q.tenant = u.t AND q.lane = u.l;

        SELECT array_agg(e.tenant), array_agg(e.lane) INTO empty_t, empty_l FROM (
            SELECT q.tenant, q.lane FROM tenant_q q
            WHERE (q.tenant, q.lane) IN (SELECT u.t, u.l FROM unnest(tenants, lanes) AS u(t, l))
              AND NOT EXISTS (SELECT FROM workflow_run r WHERE r.tenant = q.tenant AND r.lane = q.lane AND r.state = 1)
            FOR UPDATE SKIP LOCKED   -- whoever is enqueueing holds a key share lock: not empty, then
        ) e;
        IF empty_t IS NOT NULL THEN
            UPDATE tenant_q q SET active = false
            WHERE (q.tenant, q.lane) IN (SELECT u.t, u.l FROM unnest(empty_t, empty_l) AS u(t, l))
              AND NOT EXISTS (SELECT FROM workflow_run r WHERE r.tenant = q.tenant AND r.lane = q.lane AND r.state = 1);
        END IF;
        IF cardinality(taken) > 0 THEN
            RETURN QUERY SELECT r.* FROM workflow_run r WHERE r.run_id = ANY (taken) ORDER BY r.run_at, r.run_id;
        END IF;
    END IF;
    IF passed THEN
        RETURN NEXT NULL::workflow_run;
    END IF;
END $$;

-- Return parked runs whose time has come to their tenant's line. A park that ran into its deadline keeps it, for the
-- worker to see; the others lose it. Returns how many.
CREATE FUNCTION engine_wake(most integer) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    tenants bigint[];
    lanes   text[];
BEGIN
    WITH due AS (
        SELECT r.run_id FROM workflow_run r
        WHERE r.state = 3 AND r.wake_at <= clock_timestamp()
        ORDER BY r.wake_at LIMIT most FOR UPDATE SKIP LOCKED
    ), woken AS (
        UPDATE workflow_run r SET
            state = 1, wake_at = NULL, run_at = clock_timestamp(),
            park_deadline = CASE WHEN r.park_deadline <= clock_timestamp() THEN r.park_deadline END
        WHERE r.run_id = ANY (ARRAY(SELECT run_id FROM due)) AND r.state = 3
        RETURNING r.tenant, r.lane
    )
    SELECT array_agg(w.tenant), array_agg(w.lane) INTO tenants, lanes FROM woken w;
    IF tenants IS NULL THEN
        RETURN 0;
    END IF;
    PERFORM engine_activate(tenants, lanes);
    RETURN cardinality(tenants);
END $$;
