-- Pages of listings, as walks of an index that cost what they return, whatever the bucket holds.
--
-- With a delimiter the walk jumps: it reads one row, sees which group that row belongs to, and asks the index for
-- the first key past the whole group. A recursive query does that without a round trip per group; Postgres
-- evaluates it only as far as the LIMIT pulls (documented under WITH Queries), so nothing past the page is read.
--
-- Arguments, the same everywhere: keys in [first, stop) are looked at; skip is the length of the prefix; past is
-- the smallest string greater than every string that begins with the delimiter (so that stem || past lies behind
-- the group); an empty delimiter groups nothing. A row with grouped = true is a common prefix, and only its name
-- counts.
--
-- The SET clauses take every plan away but the walk. A plan made while a table was small, or before its first
-- ANALYZE, would otherwise read and sort a whole bucket for one page.

CREATE FUNCTION list_heads(p_bucket bigint, p_first bytea, p_stop bytea, p_limit integer)
RETURNS TABLE (name bytea, grouped boolean, etag text, size bigint, modified timestamptz, storage_class text,
               checksum_algorithm text, checksum_type text, owner_id bigint)
LANGUAGE plpgsql STABLE ROWS 1000
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT h.key, false, h.etag, h.size, h.modified, h.storage_class, h.checksum_algorithm, h.checksum_type, h.owner_id
      FROM head h
     WHERE h.bucket_id = p_bucket AND h.listable AND h.key >= p_first AND h.key < p_stop
     ORDER BY h.bucket_id, h.key
     LIMIT p_limit;
END $$;

CREATE FUNCTION list_heads_grouped(p_bucket bigint, p_first bytea, p_stop bytea, p_limit integer,
                                   p_skip integer, p_delimiter bytea, p_past bytea)
RETURNS TABLE (name bytea, grouped boolean, etag text, size bigint, modified timestamptz, storage_class text,
               checksum_algorithm text, checksum_type text, owner_id bigint)
LANGUAGE plpgsql STABLE ROWS 1000
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH RECURSIVE walk AS (
        (SELECT h.key, position(p_delimiter IN substring(h.key FROM p_skip + 1)) AS cut,
                h.etag, h.size, h.modified, h.storage_class, h.checksum_algorithm, h.checksum_type, h.owner_id
           FROM head h
          WHERE h.bucket_id = p_bucket AND h.listable AND h.key >= p_first AND h.key < p_stop
          ORDER BY h.bucket_id, h.key
          LIMIT 1)
        UNION ALL
        SELECT n.*
          FROM walk w
         CROSS JOIN LATERAL (
            SELECT h.key, position(p_delimiter IN substring(h.key FROM p_skip + 1)) AS cut,
                   h.etag, h.size, h.modified, h.storage_class, h.checksum_algorithm, h.checksum_type, h.owner_id
              FROM head h
             WHERE h.bucket_id = p_bucket AND h.listable AND h.key < p_stop
               AND h.key >= CASE WHEN w.cut > 0 THEN substring(w.key FROM 1 FOR p_skip + w.cut - 1) || p_past
                                 ELSE w.key || '\x00'::bytea END
             ORDER BY h.bucket_id, h.key
             LIMIT 1) n
    )
    SELECT CASE WHEN w.cut > 0 THEN substring(w.key FROM 1 FOR p_skip + w.cut - 1 + length(p_delimiter)) ELSE w.key END,
           w.cut > 0, w.etag, w.size, w.modified, w.storage_class, w.checksum_algorithm, w.checksum_type, w.owner_id
      FROM walk w
     LIMIT p_limit;
END $$;

-- Versions, key ascending and newest first. p_before and p_before_null continue inside the key p_first: versions
-- of it older than that sequence number, or older than the row shown as "null" (all of them when that is gone).
-- Of the rows whose S3 id is "null" one a key is shown, the one a read resolves to: the current version, else the
-- newest that is scanning, ready or a marker, else the newest.
CREATE FUNCTION list_versions(p_bucket bigint, p_first bytea, p_stop bytea, p_limit integer,
                              p_skip integer, p_delimiter bytea, p_past bytea,
                              p_before bigint, p_before_null boolean)
RETURNS TABLE (name bytea, grouped boolean, seq bigint, rnd bigint, is_null boolean, state smallint, is_latest boolean,
               etag text, size bigint, modified timestamptz, storage_class text, checksums jsonb, checksum_type text,
               owner_id bigint)
LANGUAGE plpgsql STABLE ROWS 1000
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_hashjoin = off
SET enable_mergejoin = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    before bigint := p_before;
BEGIN
    IF p_before_null THEN
        SELECT v.seq INTO before
          FROM head h
          JOIN version v ON v.bucket_id = h.bucket_id AND v.key = h.key
         WHERE h.bucket_id = p_bucket AND h.key = p_first AND v.is_null
         ORDER BY v.seq IS NOT DISTINCT FROM h.current_seq DESC, v.state IN (1, 2, 5) DESC, v.seq DESC
         LIMIT 1;
    END IF;
    before := coalesce(before, 9223372036854775807);
    RETURN QUERY
    -- Every key with a version has a head, so heads lead from key to key however many versions lie between.
    WITH RECURSIVE walk AS (
        (SELECT h.key, h.current_seq,
                CASE WHEN p_delimiter = '' THEN 0 ELSE position(p_delimiter IN substring(h.key FROM p_skip + 1)) END AS cut
           FROM head h
          WHERE h.bucket_id = p_bucket AND h.key >= p_first AND h.key < p_stop
          ORDER BY h.bucket_id, h.key
          LIMIT 1)
        UNION ALL
        SELECT n.*
          FROM walk w
         CROSS JOIN LATERAL (
            SELECT h.key, h.current_seq,
                   CASE WHEN p_delimiter = '' THEN 0 ELSE position(p_delimiter IN substring(h.key FROM p_skip + 1)) END AS cut
              FROM head h
             WHERE h.bucket_id = p_bucket AND h.key < p_stop
               AND h.key >= CASE WHEN w.cut > 0 THEN substring(w.key FROM 1 FOR p_skip + w.cut - 1) || p_past
                                 ELSE w.key || '\x00'::bytea END
             ORDER BY h.bucket_id, h.key
             LIMIT 1) n
    )
    -- No ORDER BY: a nested loop (the only join left) keeps the order of walk, and sorting would read all of it.
    SELECT CASE WHEN w.cut > 0 THEN substring(w.key FROM 1 FOR p_skip + w.cut - 1 + length(p_delimiter)) ELSE w.key END,
           w.cut > 0, v.seq, v.rnd, v.is_null, v.state,
           coalesce(v.seq = w.current_seq, NOT EXISTS (
               SELECT FROM version o WHERE o.bucket_id = p_bucket AND o.key = w.key AND o.seq > v.seq)),
           v.etag, v.size, v.modified, v.storage_class, v.checksums, v.checksum_type, v.owner_id
      FROM walk w
      LEFT JOIN LATERAL (
            SELECT r.*
              FROM version r
             WHERE w.cut = 0 AND r.bucket_id = p_bucket AND r.key = w.key
               AND r.seq <= CASE WHEN w.key = p_first THEN before - 1 ELSE 9223372036854775807 END
               AND (NOT r.is_null OR r.seq = w.current_seq OR NOT EXISTS (
                    SELECT FROM version o
                     WHERE o.bucket_id = p_bucket AND o.key = r.key AND o.is_null
                       AND (o.seq IS NOT DISTINCT FROM w.current_seq, o.state IN (1, 2, 5), o.seq)
                         > (false, r.state IN (1, 2, 5), r.seq)))
             ORDER BY r.bucket_id, r.key, r.seq DESC
             LIMIT p_limit) v ON true
     WHERE w.cut > 0 OR v.seq IS NOT NULL
     LIMIT p_limit;
END $$;

-- Open uploads by key and upload id, from behind (p_first, p_after) on. Upload ids begin with the time of
-- initiation, so that is the order of initiation too, and a marker holds when its upload is gone by then.
CREATE FUNCTION list_uploads(p_bucket bigint, p_first bytea, p_after text, p_stop bytea, p_limit integer,
                             p_skip integer, p_delimiter bytea, p_past bytea)
RETURNS TABLE (name bytea, grouped boolean, upload_id text, initiated timestamptz, initiator_id bigint, owner_id bigint,
               storage_class text, checksum_algorithm text, checksum_type text)
LANGUAGE plpgsql STABLE ROWS 1000
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH RECURSIVE walk AS (
        (SELECT u.key, u.upload_id,
                CASE WHEN p_delimiter = '' THEN 0 ELSE position(p_delimiter IN substring(u.key FROM p_skip + 1)) END AS cut,
                u.initiated, u.initiator_id, u.owner_id, u.storage_class, u.checksum_algorithm, u.checksum_type
           FROM upload u
          WHERE u.bucket_id = p_bucket AND (u.key, u.upload_id) > (p_first, p_after) AND u.key < p_stop
          ORDER BY u.bucket_id, u.key, u.upload_id
          LIMIT 1)
        UNION ALL
        SELECT n.*
          FROM walk w
         CROSS JOIN LATERAL (
            SELECT u.key, u.upload_id,
                   CASE WHEN p_delimiter = '' THEN 0 ELSE position(p_delimiter IN substring(u.key FROM p_skip + 1)) END AS cut,
                   u.initiated, u.initiator_id, u.owner_id, u.storage_class, u.checksum_algorithm, u.checksum_type
              FROM upload u
             WHERE u.bucket_id = p_bucket AND u.key < p_stop
               AND (u.key, u.upload_id)
                 > (CASE WHEN w.cut > 0 THEN substring(w.key FROM 1 FOR p_skip + w.cut - 1) || p_past ELSE w.key END,
                    CASE WHEN w.cut > 0 THEN '' ELSE w.upload_id END)
             ORDER BY u.bucket_id, u.key, u.upload_id
             LIMIT 1) n
    )
    SELECT CASE WHEN w.cut > 0 THEN substring(w.key FROM 1 FOR p_skip + w.cut - 1 + length(p_delimiter)) ELSE w.key END,
           w.cut > 0, w.upload_id, w.initiated, w.initiator_id, w.owner_id, w.storage_class, w.checksum_algorithm,
           w.checksum_type
      FROM walk w
     LIMIT p_limit;
END $$;
