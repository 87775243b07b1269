-- What the hot paths do in one round trip each.

-- After these runs' ends have committed: wake who follows them. Whoever parks on such a key looks, under the same
-- advisory lock, whether its run has ended; the waiting statement's snapshot is younger than the locks.
CREATE FUNCTION engine_end_followers(keys text[]) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    tenants bigint[];
    lanes   text[];
BEGIN
    PERFORM pg_advisory_xact_lock(x.k)
       FROM (SELECT DISTINCT hashtextextended(w, 0) AS k FROM unnest(keys) w ORDER BY 1) x;
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

-- Insert runs, in the caller's transaction. state is null for a key that was known. A run is born claimed (with a token)
-- only while nobody waits anywhere; otherwise it joins its tenant's line.
CREATE FUNCTION engine_enqueue(
    p_run_key text[], p_tenant bigint[], p_lane text[], p_workflow text[], p_pipeline text[], p_definition text[],
    p_bucket_id bigint[], p_key bytea[], p_seq bigint[], p_rnd bigint[], p_input text[], p_delay float8[],
    p_token uuid[], p_worker bigint
) RETURNS TABLE (run_key text, run_id bigint, state smallint) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    calm    boolean := NOT EXISTS (SELECT FROM tenant_q WHERE active);
    keys    text[];
    ids     bigint[];
    states  smallint[];
    tenants bigint[];
    lanes   text[];
BEGIN
    WITH born AS (
        SELECT t.*, CASE WHEN t.delay > 0 THEN 3 WHEN t.token IS NOT NULL AND calm THEN 2 ELSE 1 END::smallint AS state
        FROM unnest(p_run_key, p_tenant, p_lane, p_workflow, p_pipeline, p_definition, p_bucket_id, p_key, p_seq, p_rnd,
                    p_input, p_delay, p_token)
             AS t(run_key, tenant, lane, workflow, pipeline, definition, bucket_id, key, seq, rnd, input, delay, token)
    ), inserted AS (
        INSERT INTO workflow_run AS r (run_key, tenant, lane, workflow, pipeline, definition, bucket_id, key, seq, rnd,
                                       input, state, epoch, lease_token, worker_id, started_at, wake_at, park_deadline,
                                       park_reason)
        SELECT b.run_key, b.tenant, b.lane, b.workflow, b.pipeline, b.definition, b.bucket_id, b.key, b.seq, b.rnd,
               b.input::jsonb, b.state, (b.state = 2)::int, CASE b.state WHEN 2 THEN b.token END,
               CASE b.state WHEN 2 THEN p_worker END, CASE b.state WHEN 2 THEN clock_timestamp() END,
               CASE b.state WHEN 3 THEN clock_timestamp() + b.delay * interval '1 second' END,
               CASE b.state WHEN 3 THEN clock_timestamp() + (b.delay + 604800) * interval '1 second' END,
               CASE b.state WHEN 3 THEN 'delay' END
        FROM born b ORDER BY b.run_key
        ON CONFLICT (run_key) DO NOTHING
        RETURNING r.run_key, r.run_id, r.state, r.tenant, r.lane
    )
    SELECT array_agg(n.run_key), array_agg(n.run_id), array_agg(n.state),
           array_agg(n.tenant) FILTER (WHERE n.state = 1), array_agg(n.lane) FILTER (WHERE n.state = 1)
    INTO keys, ids, states, tenants, lanes FROM inserted n;
    IF tenants IS NOT NULL THEN
        PERFORM engine_activate(tenants, lanes);
    END IF;
    RETURN QUERY SELECT u.* FROM unnest(keys, ids, states) u;
    IF coalesce(cardinality(keys), 0) < cardinality(p_run_key) THEN
        -- A statement of its own: its snapshot sees what was committed while the insert waited.
        RETURN QUERY SELECT r.run_key, r.run_id, NULL::smallint FROM workflow_run r
        WHERE r.run_key = ANY (p_run_key) AND NOT (r.run_key = ANY (coalesce(keys, '{}')));
    END IF;
END $$;

-- Small bodies lie in their blob's row: one row to write, one to read. What fits a page stays in it.
ALTER TABLE blob ADD COLUMN bytes bytea;
ALTER TABLE blob ALTER COLUMN bytes SET STORAGE EXTERNAL;
ALTER TABLE blob SET (toast_tuple_target = 8160);
UPDATE blob b SET bytes = i.bytes FROM blob_bytes i WHERE i.id = b.id;
DROP TABLE blob_bytes;

-- Store new objects whose bytes came with the request (p_bytes) or lie staged (p_blob): blob, head, version and run, or
-- nothing of an object. Plain writes only; the answer's outcome says what became of each:
--   0 stored · 1 its bucket is gone · 2 another transaction holds its head · 3 its staging row is gone
--   4 left to the long way: a verdict is known for its content, or too many versions of its key await theirs
-- Keys are distinct. Locks in the schema's order: bucket, head, blob, run. Existing heads are locked without waiting;
-- new ones are inserted in order, so that two of these calls never wait for each other in a circle.
CREATE FUNCTION store_objects(
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
BEGIN
    WITH b AS MATERIALIZED (
        SELECT id, versioning FROM bucket WHERE id = ANY (p_bucket) ORDER BY id FOR KEY SHARE
    )
    SELECT array_agg(b.versioning ORDER BY u.i) INTO modes
    FROM unnest(p_bucket) WITH ORDINALITY AS u(id, i) LEFT JOIN b ON b.id = u.id;

    SELECT array_agg(v.key IS NOT NULL ORDER BY u.i) INTO lent
    FROM unnest(p_tenant, p_verdict) WITH ORDINALITY AS u(a, k, i)
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

    WITH q AS MATERIALIZED (
        SELECT u.*, 'post:' || lpad(to_hex(u.s), 16, '0') || lpad(to_hex(u.r), 16, '0') || ':' || u.d || ':1' AS name
        FROM unnest(seqs, p_rnd, p_digest, p_tenant, p_lane, p_pipeline, p_definition, p_bucket, p_key, p_token)
             WITH ORDINALITY AS u(s, r, d, tenant, lane, pipeline, definition, b, k, token, i)
        WHERE u.s IS NOT NULL
    ), e AS MATERIALIZED (
        SELECT n.* FROM (
            SELECT array_agg(name) AS names, array_agg(tenant) AS tenants, array_agg(lane) AS lanes,
                   array_agg('post_upload'::text) AS workflows, array_agg(pipeline) AS pipelines,
                   array_agg(definition) AS definitions, array_agg(b) AS buckets, array_agg(k) AS keys,
                   array_agg(s) AS seqs, array_agg(r) AS rnds, array_agg('{"generation":1}'::text) AS inputs,
                   array_agg(0::float8) AS delays, array_agg(token) AS tokens
              FROM q) a,
            engine_enqueue(a.names, a.tenants, a.lanes, a.workflows, a.pipelines, a.definitions, a.buckets, a.keys,
                           a.seqs, a.rnds, a.inputs, a.delays, a.tokens, p_worker) n
        WHERE a.names IS NOT NULL
    )
    SELECT array_agg(e.run_id ORDER BY u.i), array_agg(e.state ORDER BY u.i) INTO runs, states
    FROM generate_series(1, many) AS u(i) LEFT JOIN q ON q.i = u.i LEFT JOIN e ON e.run_key = q.name;

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

-- End runs whose lease holds, with their events and every step row of this lease once more: those with s_again were sent
-- before (and are lost when the server crashed after a commit that nobody awaited). Returns the runs that ended.
CREATE FUNCTION engine_finish(
    p_run bigint[], p_token uuid[], p_state smallint[], p_code text[], p_detail text[], p_output text[], p_failed int[],
    p_gap_run bigint[], p_gap_step text[], p_gap_dependency text[], s_again bool[],
    s_run bigint[], s_step text[], s_attempt int[], s_status smallint[], s_output text[], s_code text[],
    s_started float8[], s_seconds float4[],
    e_run bigint[], e_idx bigint[], e_at float8[], e_kind text[], e_data text[]
) RETURNS SETOF bigint LANGUAGE plpgsql AS $$
DECLARE
    mine    bigint[];
    workers bigint[];
BEGIN
    WITH u AS MATERIALIZED (
        SELECT * FROM unnest(p_run, p_token, p_state, p_code, p_detail, p_output, p_failed)
            AS t(run_id, token, state, code, detail, output, failed)
    ), ended AS (
        UPDATE workflow_run r SET
            state = u.state, lease_token = NULL, finished_at = clock_timestamp(), output = u.output::jsonb,
            error_code = u.code, detail = u.detail, failures = r.failures + u.failed,
            park_deadline = NULL, dependency = NULL, dependency_since = NULL, poll_state = NULL
        FROM u WHERE r.run_id = u.run_id AND r.lease_token = u.token AND r.state = 2
        RETURNING r.run_id, r.worker_id
    )
    SELECT array_agg(run_id), array_agg(worker_id) INTO mine, workers FROM ended;
    IF mine IS NULL THEN
        RETURN;
    END IF;
    -- A row that was never sent is nowhere yet: no look for a conflict.
    INSERT INTO workflow_step (run_id, step_key, attempt, status, output, code, worker_id, started_at, seconds)
    SELECT t.run_id, t.step_key, t.attempt, t.status, t.output::jsonb, t.code, m.worker, to_timestamp(t.started), t.seconds
    FROM unnest(s_run, s_step, s_attempt, s_status, s_output, s_code, s_started, s_seconds, s_again)
         AS t(run_id, step_key, attempt, status, output, code, started, seconds, again)
    JOIN unnest(mine, workers) AS m(run_id, worker) ON m.run_id = t.run_id
    WHERE NOT t.again;
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
    INSERT INTO run_event (run_id, idx, at, kind, data)
    SELECT t.run_id, t.idx, to_timestamp(t.at), t.kind, t.data::jsonb
    FROM unnest(e_run, e_idx, e_at, e_kind, e_data) AS t(run_id, idx, at, kind, data)
    JOIN unnest(mine) AS m(run_id) ON m.run_id = t.run_id;
    IF cardinality(p_gap_run) > 0 THEN
        INSERT INTO gap (run_id, step_key, dependency)
        SELECT t.run_id, t.step_key, t.dependency
        FROM unnest(p_gap_run, p_gap_step, p_gap_dependency) AS t(run_id, step_key, dependency)
        JOIN unnest(mine) AS m(run_id) ON m.run_id = t.run_id
        ON CONFLICT DO NOTHING;
    END IF;
    RETURN QUERY SELECT unnest(mine);
END $$;

-- The end of runs that found nothing wrong with a scanning version: the version becomes ready, the verdict is remembered,
-- the run ends. What needs more than that goes the long way. The answer says what became of each:
--   0 ended · 1 the lease is lost · 2 another transaction holds the head: later · 3 left to the long way
-- Locks in the schema's order: heads, then runs.
CREATE FUNCTION settle_ready(
    p_bucket bigint[], p_key bytea[], p_seq bigint[], p_rnd bigint[], p_extension bytea[], p_processing jsonb[],
    p_lend bool[], p_moving text[],
    p_run bigint[], p_token uuid[], p_state smallint[], p_code text[], p_detail text[], p_output text[], p_failed int[],
    p_gap_run bigint[], p_gap_step text[], p_gap_dependency text[], s_again bool[],
    s_run bigint[], s_step text[], s_attempt int[], s_status smallint[], s_output text[], s_code text[],
    s_started float8[], s_seconds float4[],
    e_run bigint[], e_idx bigint[], e_at float8[], e_kind text[], e_data text[]
) RETURNS TABLE (run_id bigint, outcome smallint) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    fates  smallint[];
    finals bigint[];
BEGIN
    WITH h AS MATERIALIZED (
        SELECT h.bucket_id, h.key FROM head h JOIN unnest(p_bucket, p_key) AS q(b, k) ON h.bucket_id = q.b AND h.key = q.k
        ORDER BY h.bucket_id, h.key FOR UPDATE OF h SKIP LOCKED
    )
    SELECT array_agg(CASE WHEN h.key IS NOT NULL THEN 0
                          WHEN EXISTS (SELECT FROM head x WHERE x.bucket_id = u.b AND x.key = u.k) THEN 2
                          ELSE 3 END ORDER BY u.i)
    INTO fates
    FROM unnest(p_bucket, p_key) WITH ORDINALITY AS u(b, k, i) LEFT JOIN h ON h.bucket_id = u.b AND h.key = u.k;

    WITH r AS MATERIALIZED (
        SELECT r.run_id FROM unnest(p_run, p_token, fates) AS u(run_id, token, fate)
        JOIN workflow_run r ON r.run_id = u.run_id
        WHERE u.fate = 0 AND r.lease_token = u.token AND r.state = 2
        ORDER BY r.run_id FOR UPDATE OF r
    )
    SELECT array_agg(CASE
        WHEN u.fate <> 0 THEN u.fate
        WHEN r.run_id IS NULL THEN 1
        WHEN v.key IS NULL OR v.storage_class = ANY (p_moving) THEN 3
        WHEN v.is_null AND EXISTS (
            SELECT FROM version o
            WHERE o.bucket_id = u.b AND o.key = u.k AND o.seq <> u.s AND o.is_null AND o.state <> 3) THEN 3
        ELSE 0 END::smallint ORDER BY u.i)
    INTO fates
    FROM unnest(p_bucket, p_key, p_seq, p_rnd, p_run, fates) WITH ORDINALITY AS u(b, k, s, r, run, fate, i)
    LEFT JOIN r ON r.run_id = u.run
    LEFT JOIN version v ON v.bucket_id = u.b AND v.key = u.k AND v.seq = u.s AND v.rnd = u.r AND v.state = 1
                       AND v.run_id = u.run;

    WITH swapped AS (
        UPDATE version v SET state = 2, code = NULL, detail = NULL, processing = v.processing || q.p, verdict_of = NULL
        FROM unnest(p_bucket, p_key, p_seq, p_rnd, p_extension, p_processing, p_lend, p_run, fates)
             AS q(b, k, s, r, e, p, lend, run, fate)
        WHERE q.fate = 0 AND v.bucket_id = q.b AND v.key = q.k AND v.seq = q.s AND v.rnd = q.r AND v.state = 1
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

    SELECT array_agg(f) INTO finals FROM engine_finish(
        (SELECT array_agg(CASE WHEN u.fate = 0 THEN u.run END ORDER BY u.i)
           FROM unnest(p_run, fates) WITH ORDINALITY AS u(run, fate, i)),
        p_token, p_state, p_code, p_detail, p_output, p_failed, p_gap_run, p_gap_step, p_gap_dependency,
        s_again, s_run, s_step, s_attempt, s_status, s_output, s_code, s_started, s_seconds,
        e_run, e_idx, e_at, e_kind, e_data) f;
    RETURN QUERY SELECT u.run, u.fate FROM unnest(p_run, fates) AS u(run, fate);
END $$;
