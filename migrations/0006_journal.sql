-- A run that ends in its first lease, before anything of it was flushed, leaves its whole journal as one row.
--
-- Steps as [[step, attempt, status, output, code, started, seconds], …], events as [[idx, at, kind, data], …], times in
-- Unix seconds. Whoever reads the journal reads journal_step and journal_event, which know both forms. A run that goes
-- on after such an end (a retry) adds ordinary rows: it has read what is here, and numbers its attempts after it.
CREATE TABLE run_journal (
    run_id    bigint NOT NULL PRIMARY KEY,
    worker_id bigint NOT NULL,
    steps     json NOT NULL,
    events    json NOT NULL
) PARTITION BY RANGE (run_id);
ALTER TABLE run_journal ALTER COLUMN steps SET STORAGE MAIN, ALTER COLUMN events SET STORAGE MAIN;   -- beside the row
CREATE TABLE run_journal_rest PARTITION OF run_journal DEFAULT;
DO $$
DECLARE
    part record;
BEGIN
    FOR part IN SELECT low, high FROM journal_range LOOP
        EXECUTE format('CREATE TABLE run_journal_%s PARTITION OF run_journal FOR VALUES FROM (%s) TO (%s)',
                       part.low, part.low, part.high);
    END LOOP;
END $$;

CREATE VIEW journal_step AS
SELECT run_id, step_key, attempt, status, output, code, worker_id, started_at, seconds FROM workflow_step
UNION ALL
SELECT j.run_id, s ->> 0, (s ->> 1)::integer, (s ->> 2)::smallint, (s ->> 3)::jsonb, s ->> 4, j.worker_id,
       to_timestamp((s ->> 5)::float8), (s ->> 6)::real
FROM run_journal j CROSS JOIN LATERAL jsonb_array_elements(j.steps::jsonb) AS s;

CREATE VIEW journal_event AS
SELECT run_id, idx, at, kind, data FROM run_event
UNION ALL
SELECT j.run_id, (e ->> 0)::bigint, to_timestamp((e ->> 1)::float8), e ->> 2, e -> 3
FROM run_journal j CROSS JOIN LATERAL jsonb_array_elements(j.events::jsonb) AS e;

-- Wake who is parked on these keys. Whoever calls this keeps parkers off them, by the keys' advisory locks or otherwise.
CREATE FUNCTION engine_wake_waiting(keys text[]) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    tenants bigint[];
    lanes   text[];
BEGIN
    IF NOT EXISTS (SELECT FROM workflow_run r WHERE r.state = 3 AND r.wait_key = ANY (keys)) THEN
        RETURN 0;
    END IF;
    WITH due AS (
        SELECT r.run_id FROM workflow_run r WHERE r.state = 3 AND r.wait_key = ANY (keys)
        ORDER BY r.run_id FOR NO KEY UPDATE
    ), woken AS (
        UPDATE workflow_run r SET state = 1, wake_at = NULL, park_deadline = NULL, run_at = clock_timestamp()
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

-- After these runs' ends have committed: wake who follows them. Whoever parks on such a key looks, under the same
-- advisory lock, whether its run has ended; the waiting statement's snapshot is younger than the locks.
CREATE OR REPLACE FUNCTION engine_end_followers(keys text[]) RETURNS integer LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(x.k)
       FROM (SELECT DISTINCT hashtextextended(w, 0) AS k FROM unnest(keys) w ORDER BY 1) x;
    RETURN engine_wake_waiting(keys);
END $$;

DROP FUNCTION settle_ready;
DROP FUNCTION engine_finish;

-- End runs whose lease holds. p_steps and p_events are the whole journal of a run of which nothing was sent before; of
-- the others the s_ and e_ arrays hold the events and every step row of this lease once more: those with s_again were
-- sent before (and are lost when the server crashed after a commit that nobody awaited). Returns the runs that ended.
CREATE FUNCTION engine_finish(
    p_run bigint[], p_token uuid[], p_state smallint[], p_code text[], p_detail text[], p_output text[], p_failed int[],
    p_steps text[], p_events text[],
    p_gap_run bigint[], p_gap_step text[], p_gap_dependency text[], s_again bool[],
    s_run bigint[], s_step text[], s_attempt int[], s_status smallint[], s_output text[], s_code text[],
    s_started float8[], s_seconds float4[],
    e_run bigint[], e_idx bigint[], e_at float8[], e_kind text[], e_data text[]
) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    mine    bigint[];
    workers bigint[];
BEGIN
    WITH ended AS (
        UPDATE workflow_run r SET
            state = u.state, lease_token = NULL, finished_at = clock_timestamp(), output = u.output::jsonb,
            error_code = u.code, detail = u.detail, failures = r.failures + u.failed,
            park_deadline = NULL, dependency = NULL, dependency_since = NULL, poll_state = NULL
        FROM unnest(p_run, p_token, p_state, p_code, p_detail, p_output, p_failed, p_steps, p_events)
             AS u(run_id, token, state, code, detail, output, failed, steps, events)
        WHERE r.run_id = u.run_id AND r.lease_token = u.token AND r.state = 2
        RETURNING r.run_id, r.worker_id, u.steps, u.events
    ), whole AS (
        INSERT INTO run_journal (run_id, worker_id, steps, events)
        SELECT run_id, worker_id, steps::json, events::json FROM ended WHERE steps IS NOT NULL
    )
    SELECT array_agg(run_id), array_agg(worker_id) INTO mine, workers FROM ended;
    IF mine IS NULL THEN
        RETURN '{}';
    END IF;
    -- A row that was never sent is nowhere yet: no look for a conflict.
    IF false = ANY (s_again) THEN
        INSERT INTO workflow_step (run_id, step_key, attempt, status, output, code, worker_id, started_at, seconds)
        SELECT t.run_id, t.step_key, t.attempt, t.status, t.output::jsonb, t.code, m.worker, to_timestamp(t.started),
               t.seconds
        FROM unnest(s_run, s_step, s_attempt, s_status, s_output, s_code, s_started, s_seconds, s_again)
             AS t(run_id, step_key, attempt, status, output, code, started, seconds, again)
        JOIN unnest(mine, workers) AS m(run_id, worker) ON m.run_id = t.run_id
        WHERE NOT t.again;
    END IF;
    IF true = ANY (s_again) THEN
        INSERT INTO workflow_step (run_id, step_key, attempt, status, output, code, worker_id, started_at, seconds)
        SELECT t.run_id, t.step_key, t.attempt, t.status, t.output::jsonb, t.code, m.worker, to_timestamp(t.started),
               t.seconds
        FROM unnest(s_run, s_step, s_attempt, s_status, s_output, s_code, s_started, s_seconds, s_again)
             AS t(run_id, step_key, attempt, status, output, code, started, seconds, again)
        JOIN unnest(mine, workers) AS m(run_id, worker) ON m.run_id = t.run_id
        WHERE t.again
        ON CONFLICT DO NOTHING;
    END IF;
    IF cardinality(e_run) > 0 THEN
        INSERT INTO run_event (run_id, idx, at, kind, data)
        SELECT t.run_id, t.idx, to_timestamp(t.at), t.kind, t.data::jsonb
        FROM unnest(e_run, e_idx, e_at, e_kind, e_data) AS t(run_id, idx, at, kind, data)
        JOIN unnest(mine) AS m(run_id) ON m.run_id = t.run_id;
    END IF;
    IF cardinality(p_gap_run) > 0 THEN
        INSERT INTO gap (run_id, step_key, dependency)
        SELECT t.run_id, t.step_key, t.dependency
        FROM unnest(p_gap_run, p_gap_step, p_gap_dependency) AS t(run_id, step_key, dependency)
        JOIN unnest(mine) AS m(run_id) ON m.run_id = t.run_id
        ON CONFLICT DO NOTHING;
    END IF;
    RETURN mine;
END $$;

-- The end of runs that found nothing wrong with a scanning version: the version becomes ready, the verdict is remembered,
-- the run ends; older null versions of its key go, when all of them were ready. What needs more than that goes the long
-- way. The answer says what became of each:
--   0 ended · 1 the lease is lost · 2 another transaction holds the head: later · 3 left to the long way
-- Locks in the schema's order: heads, then runs. Who holds a head is alone with the states and runs of its versions.
CREATE FUNCTION settle_ready(
    p_bucket bigint[], p_key bytea[], p_seq bigint[], p_rnd bigint[], p_extension bytea[], p_processing jsonb[],
    p_lend bool[], p_moving text[], p_grace float8,
    p_run bigint[], p_token uuid[], p_state smallint[], p_code text[], p_detail text[], p_output text[], p_failed int[],
    p_steps text[], p_events text[],
    p_gap_run bigint[], p_gap_step text[], p_gap_dependency text[], s_again bool[],
    s_run bigint[], s_step text[], s_attempt int[], s_status smallint[], s_output text[], s_code text[],
    s_started float8[], s_seconds float4[],
    e_run bigint[], e_idx bigint[], e_at float8[], e_kind text[], e_data text[]
) RETURNS TABLE (run_id bigint, outcome smallint) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    locked bigint[];     -- places in the arrays
    fates  smallint[];
    over   bool[];       -- whether null versions of the key go that were ready
    ended  bigint[];
BEGIN
    locked := ARRAY(
        SELECT q.i FROM unnest(p_bucket, p_key) WITH ORDINALITY AS q(b, k, i)
        JOIN head h ON h.bucket_id = q.b AND h.key = q.k
        ORDER BY h.bucket_id, h.key FOR UPDATE OF h SKIP LOCKED);

    SELECT array_agg(CASE
        WHEN v.key IS NULL AND NOT EXISTS (
            SELECT FROM workflow_run r WHERE r.run_id = u.run AND r.lease_token = u.token AND r.state = 2) THEN 1
        WHEN v.key IS NULL OR v.storage_class = ANY (p_moving) THEN 3
        WHEN NOT u.i = ANY (locked) THEN 2
        WHEN NOT others.plain THEN 3
        ELSE 0 END::smallint ORDER BY u.i), array_agg(others.plain ORDER BY u.i)
    INTO fates, over
    FROM unnest(p_bucket, p_key, p_seq, p_rnd, p_run, p_token) WITH ORDINALITY AS u(b, k, s, r, run, token, i)
    LEFT JOIN version v ON v.bucket_id = u.b AND v.key = u.k AND v.seq = u.s AND v.rnd = u.r AND v.state = 1
                       AND v.run_id = u.run
    LEFT JOIN LATERAL (
        SELECT bool_and(o.seq < u.s AND o.state = 2 AND NOT EXISTS (
                   SELECT FROM workflow_run r WHERE r.run_id = o.run_id AND r.state IN (1, 2, 3))) AS plain
        FROM version o
        WHERE v.is_null AND o.bucket_id = u.b AND o.key = u.k AND o.seq <> u.s AND o.is_null AND o.state <> 3
    ) others ON true;

    ended := engine_finish(
        ARRAY(SELECT CASE u.fate WHEN 0 THEN u.run END
                FROM unnest(p_run, fates) WITH ORDINALITY AS u(run, fate, i) ORDER BY u.i),
        p_token, p_state, p_code, p_detail, p_output, p_failed, p_steps, p_events,
        p_gap_run, p_gap_step, p_gap_dependency, s_again, s_run, s_step, s_attempt, s_status, s_output, s_code,
        s_started, s_seconds, e_run, e_idx, e_at, e_kind, e_data);

    WITH swapped AS (
        UPDATE version v SET state = 2, code = NULL, detail = NULL, processing = v.processing || q.p, verdict_of = NULL
        FROM unnest(p_bucket, p_key, p_seq, p_rnd, p_extension, p_processing, p_lend, p_run)
             AS q(b, k, s, r, e, p, lend, run)
        WHERE q.run = ANY (ended) AND v.bucket_id = q.b AND v.key = q.k AND v.seq = q.s AND v.rnd = q.r AND v.state = 1
        RETURNING v.bucket_id, v.digest, v.fingerprint, v.content_type, v.processing, q.e, q.lend, q.run
    )
    INSERT INTO verdict (account_id, key, state, processing, run_id)
    SELECT DISTINCT ON (1, 2) u.account_id,
           sha256(convert_to(w.digest, 'UTF8') || '\x00'::bytea || convert_to(w.fingerprint, 'UTF8') || '\x00'::bytea
                  || w.e || '\x00'::bytea || convert_to(coalesce(w.content_type, ''), 'UTF8')),
           2, w.processing, w.run
    FROM swapped w JOIN bucket u ON u.id = w.bucket_id
    WHERE w.lend AND w.fingerprint IS NOT NULL AND w.digest IS NOT NULL
    ORDER BY 1, 2
    ON CONFLICT (account_id, key) DO UPDATE
       SET state = excluded.state, code = excluded.code, detail = excluded.detail, processing = excluded.processing,
           run_id = excluded.run_id, decided_at = now();

    IF true = ANY (over) THEN
        WITH gone AS (
            DELETE FROM version v USING unnest(p_bucket, p_key, p_seq, p_run, over) AS q(b, k, s, run, over)
            WHERE q.over AND q.run = ANY (ended) AND v.bucket_id = q.b AND v.key = q.k AND v.seq < q.s AND v.is_null
              AND v.state = 2
            RETURNING v.bucket_id, v.key, v.seq, v.blob, v.restored_blob
        ), spans AS (
            DELETE FROM extent e USING gone g WHERE e.bucket_id = g.bucket_id AND e.key = g.key AND e.seq = g.seq
            RETURNING e.blob
        ), parts AS (
            DELETE FROM version_part p USING gone g WHERE p.bucket_id = g.bucket_id AND p.key = g.key AND p.seq = g.seq
        ), texts AS (
            DELETE FROM sidecar t USING gone g WHERE t.bucket_id = g.bucket_id AND t.key = g.key AND t.seq = g.seq
            RETURNING t.blob
        ), free AS (
            SELECT blob FROM gone UNION SELECT restored_blob FROM gone
            UNION SELECT blob FROM spans UNION SELECT blob FROM texts
        )
        INSERT INTO blob_queue (blob, due_at)
        SELECT b.id, now() + CASE WHEN b.tier = 'inline' THEN interval '0' ELSE p_grace * interval '1 second' END
        FROM free f JOIN blob b ON b.id = f.blob ORDER BY b.id
        ON CONFLICT DO NOTHING;
    END IF;

    RETURN QUERY SELECT u.run, CASE WHEN u.fate = 0 AND NOT u.run = ANY (ended) THEN 1 ELSE u.fate END::smallint
    FROM unnest(p_run, fates) AS u(run, fate);
END $$;

-- Make sure that these lanes are looked at by claims. The key share lock excludes engine_claim's switching off
-- until the caller's transaction has ended, so that no activation is lost; it does not exclude other activations.
-- Mostly all of them are active, and holding them is all there is to do.
CREATE OR REPLACE FUNCTION engine_activate(tenants bigint[], lanes text[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF (SELECT count(DISTINCT (u.t, u.l)) FROM unnest(tenants, lanes) AS u(t, l)) = (
        SELECT count(*) FROM (
            SELECT q.active FROM tenant_q q
            WHERE (q.tenant, q.lane) IN (SELECT u.t, u.l FROM unnest(tenants, lanes) AS u(t, l))
            ORDER BY q.tenant, q.lane FOR KEY SHARE) held
        WHERE held.active) THEN
        RETURN;
    END IF;

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

-- Store new objects whose bytes came with the request (p_bytes) or lie staged (p_blob): blob, head, version and run, or
-- nothing of an object. Plain writes only; the answer's outcome says what became of each:
--   0 stored · 1 its bucket is gone · 2 another transaction holds its head · 3 its staging row is gone
--   4 left to the long way: a verdict is known for its content, or too many versions of its key await theirs
-- Keys are distinct. Locks in the schema's order: bucket, head, blob, run. Existing heads are locked without waiting;
-- new ones are inserted in order, so that two of these calls never wait for each other in a circle.
CREATE OR REPLACE FUNCTION store_objects(
    p_tenant bigint[], p_bucket bigint[], p_key bytea[], p_rnd bigint[], p_etag text[], p_size bigint[], p_class text[],
    p_type text[], p_headers jsonb[], p_metadata jsonb[], p_tags jsonb[], p_checksums jsonb[], p_checksum_type text[],
    p_algorithm text[], p_digest text[], p_acl text[], p_owner bigint[], p_blob uuid[], p_bytes bytea[],
    p_sha256 bytea[], p_print text[], p_sync bool[], p_verdict bytea[], p_ttl float8, p_most integer,
    p_pipeline text[], p_definition text[], p_lane text[], p_token uuid[], p_worker bigint
) RETURNS TABLE (i integer, outcome smallint, seq bigint, run_id bigint, run_state smallint, versioning smallint,
                 modified timestamptz) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    many    CONSTANT integer := cardinality(p_key);
    modes   smallint[];   -- of the buckets; null: gone
    lent    boolean[];
    seqs    bigint[];     -- given to each; null: not to be stored
    made    boolean[];    -- whose heads are new
    crowded boolean[];
    lost    integer[];
    moment  timestamptz;
    runs    bigint[];
    states  smallint[];
    calm    boolean;
BEGIN
    WITH b AS MATERIALIZED (
        SELECT id, versioning FROM bucket WHERE id = ANY (p_bucket) ORDER BY id FOR KEY SHARE
    )
    SELECT array_agg(b.versioning ORDER BY u.i), array_agg(v.key IS NOT NULL ORDER BY u.i) INTO modes, lent
    FROM unnest(p_bucket, p_tenant, p_verdict) WITH ORDINALITY AS u(id, a, k, i) LEFT JOIN b ON b.id = u.id
    LEFT JOIN verdict v ON v.account_id = u.a AND v.key = u.k AND v.decided_at > now() - p_ttl * interval '1 second';

    WITH h AS MATERIALIZED (
        SELECT h.bucket_id, h.key, h.seq, h.listable FROM head h
        JOIN unnest(p_bucket, p_key) AS q(b, k) ON h.bucket_id = q.b AND h.key = q.k
        ORDER BY h.bucket_id, h.key FOR UPDATE OF h SKIP LOCKED
    )
    SELECT array_agg(h.seq + 1 ORDER BY u.i),
           array_agg(h.listable AND u.mode <> 1 AND EXISTS (
               SELECT FROM version v
               WHERE v.bucket_id = u.b AND v.key = u.k AND v.is_null AND v.state = 1 OFFSET p_most - 1) ORDER BY u.i)
    INTO seqs, crowded
    FROM unnest(p_bucket, p_key, modes) WITH ORDINALITY AS u(b, k, mode, i) LEFT JOIN h ON h.bucket_id = u.b AND h.key = u.k;

    moment := date_trunc('milliseconds', clock_timestamp());
    WITH n AS (
        INSERT INTO head AS h (bucket_id, key, seq, current_seq, listable, etag, size, modified, storage_class,
                               checksum_algorithm, checksum_type, owner_id)
        SELECT q.b, q.k, q.s, q.s, true, q.e, q.z, moment, q.c, q.a, q.t, q.o
        FROM (SELECT u.*, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + 1 AS s
                FROM unnest(p_bucket, p_key, p_etag, p_size, p_class, p_algorithm, p_checksum_type, p_owner, seqs,
                            modes, lent) AS u(b, k, e, z, c, a, t, o, seq, mode, lent)
               WHERE u.seq IS NULL AND u.mode IS NOT NULL AND NOT u.lent) q
        ORDER BY q.b, q.k
        ON CONFLICT DO NOTHING
        RETURNING h.bucket_id, h.key, h.seq
    )
    SELECT array_agg(n.seq IS NOT NULL ORDER BY u.i),
           array_agg(CASE WHEN u.mode IS NOT NULL AND NOT u.lent AND u.crowded IS NOT TRUE THEN coalesce(n.seq, u.seq) END
                     ORDER BY u.i)
    INTO made, seqs
    FROM unnest(p_bucket, p_key, seqs, modes, lent, crowded) WITH ORDINALITY AS u(b, k, seq, mode, lent, crowded, i)
    LEFT JOIN n ON n.bucket_id = u.b AND n.key = u.k;

    -- Blobs: what is staged becomes live, what came along is written.
    IF EXISTS (SELECT FROM unnest(p_blob, p_bytes) AS u(b, d) WHERE u.b IS NOT NULL AND u.d IS NULL) THEN
        WITH q AS (
            SELECT u.* FROM unnest(p_blob, p_bytes, p_size, p_sha256, seqs)
                 WITH ORDINALITY AS u(id, d, size, sha256, s, i)
            WHERE u.id IS NOT NULL AND u.d IS NULL AND u.s IS NOT NULL
        ), live AS (
            UPDATE blob b SET state = 2, owner = NULL, size = q.size, sha256 = q.sha256 FROM q
            WHERE b.id = q.id AND b.state = 1 RETURNING b.id
        )
        SELECT array_agg(q.i::integer) INTO lost FROM q WHERE NOT EXISTS (SELECT FROM live l WHERE l.id = q.id);
        IF lost IS NOT NULL THEN
            DELETE FROM head h USING unnest(p_bucket, p_key, made) WITH ORDINALITY AS u(b, k, m, i)
            WHERE h.bucket_id = u.b AND h.key = u.k AND u.i = ANY (lost) AND u.m;
            SELECT array_agg(CASE WHEN u.i = ANY (lost) THEN NULL ELSE u.s END ORDER BY u.i)
            INTO seqs FROM unnest(seqs) WITH ORDINALITY AS u(s, i);
        END IF;
    END IF;
    INSERT INTO blob (id, state, tier, size, sha256, bytes)
    SELECT u.id, 2, 'inline', length(u.d), u.h, u.d FROM unnest(p_blob, p_bytes, p_sha256, seqs) AS u(id, d, h, s)
    WHERE u.d IS NOT NULL AND u.id IS NOT NULL AND u.s IS NOT NULL;

    -- Runs as engine_enqueue makes them, but for the look whether a key is known: rnd makes these new.
    calm := NOT EXISTS (SELECT FROM tenant_q WHERE active);
    SELECT array_agg(CASE WHEN u.s IS NOT NULL THEN nextval('workflow_run_run_id_seq') END ORDER BY u.i),
           array_agg(CASE WHEN u.s IS NULL THEN NULL WHEN u.token IS NOT NULL AND calm THEN 2 ELSE 1 END ORDER BY u.i)
    INTO runs, states FROM unnest(seqs, p_token) WITH ORDINALITY AS u(s, token, i);
    INSERT INTO workflow_run (run_id, run_key, tenant, lane, workflow, pipeline, definition, bucket_id, key, seq, rnd,
                              input, state, epoch, lease_token, worker_id, started_at) OVERRIDING SYSTEM VALUE
    SELECT u.run, 'post:' || lpad(to_hex(u.s), 16, '0') || lpad(to_hex(u.r), 16, '0') || ':' || u.d || ':1', u.tenant,
           u.lane, 'post_upload', u.pipeline, u.definition, u.b, u.k, u.s, u.r, '{"generation": 1}', u.state,
           (u.state = 2)::int, CASE u.state WHEN 2 THEN u.token END, CASE u.state WHEN 2 THEN p_worker END,
           CASE u.state WHEN 2 THEN clock_timestamp() END
    FROM unnest(runs, states, seqs, p_rnd, p_digest, p_tenant, p_lane, p_pipeline, p_definition, p_bucket, p_key, p_token)
         AS u(run, state, s, r, d, tenant, lane, pipeline, definition, b, k, token)
    WHERE u.run IS NOT NULL;
    IF 1 = ANY (states) THEN
        PERFORM engine_activate(array_agg(u.tenant), array_agg(u.lane))
        FROM unnest(p_tenant, p_lane, states) AS u(tenant, lane, state) WHERE u.state = 1;
    END IF;

    INSERT INTO version (bucket_id, key, seq, rnd, is_null, state, etag, size, modified, storage_class, content_type,
                         headers, metadata, tags, checksums, checksum_type, digest, acl, owner_id, blob, extents,
                         fingerprint, run_id, sync)
    SELECT u.b, u.k, u.s, u.r, u.mode <> 1, 1, u.e, u.z, moment, u.c, u.ct, u.hd, u.md, u.tg, u.cs, u.cy, u.dg, u.ac,
           u.ow, u.bl, (u.bl IS NOT NULL)::int, u.fp, u.run, u.sy
    FROM unnest(seqs, p_bucket, p_key, p_rnd, modes, p_etag, p_size, p_class, p_type, p_headers, p_metadata, p_tags,
                p_checksums, p_checksum_type, p_digest, p_acl, p_owner, p_blob, p_print, runs, p_sync)
         AS u(s, b, k, r, mode, e, z, c, ct, hd, md, tg, cs, cy, dg, ac, ow, bl, fp, run, sy)
    WHERE u.s IS NOT NULL;

    IF false = ANY (made) THEN
        UPDATE head h SET seq = u.s, current_seq = u.s, listable = true, etag = u.e, size = u.z, modified = moment,
               storage_class = u.c, checksum_algorithm = u.a, checksum_type = u.t, owner_id = u.o
        FROM unnest(seqs, made, p_bucket, p_key, p_etag, p_size, p_class, p_algorithm, p_checksum_type, p_owner)
             AS u(s, m, b, k, e, z, c, a, t, o)
        WHERE h.bucket_id = u.b AND h.key = u.k AND u.s IS NOT NULL AND NOT u.m;
    END IF;

    RETURN QUERY SELECT u.i::integer - 1,
        CASE WHEN u.mode IS NULL THEN 1 WHEN u.lent OR u.crowded THEN 4 WHEN u.i = ANY (lost) THEN 3
             WHEN u.s IS NULL THEN 2 ELSE 0 END::smallint,
        u.s, u.run, u.state, u.mode, moment
    FROM unnest(seqs, runs, states, modes, lent, crowded)
         WITH ORDINALITY AS u(s, run, state, mode, lent, crowded, i) ORDER BY u.i;
END $$;
