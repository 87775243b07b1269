-- A page of LIST as one row of columns. Records cost both ends more than what they hold: the row's header and type
-- checks for every value here, an object and a name lookup for every value there.
--
-- Arguments as in 0003. Keys and common prefixes come apart, each in byte order, which is enough to put them together
-- again; together they are at most p_limit. The other columns go with keys; the last four of them have one element
-- when all keys share it. seconds: of the last change, since 1970. p_owners: whether owner_ids and owners (by id:
-- canonical id and display name) are wanted.

CREATE FUNCTION shared(p_column anyarray) RETURNS anyarray LANGUAGE sql IMMUTABLE
AS $$
SELECT CASE WHEN p_column = array_fill(p_column[1], ARRAY[coalesce(cardinality(p_column), 0)]) THEN p_column[1:1]
            ELSE p_column END
$$;

CREATE FUNCTION list_objects(p_bucket bigint, p_first bytea, p_stop bytea, p_limit integer,
                             p_skip integer, p_delimiter bytea, p_past bytea, p_owners boolean,
                             OUT prefixes bytea[], OUT keys bytea[], OUT seconds bigint[], OUT etags text[],
                             OUT sizes bigint[], OUT classes text[], OUT algorithms text[], OUT types text[],
                             OUT owner_ids bigint[], OUT owners jsonb)
LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_hashjoin = off
SET enable_mergejoin = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    jump boolean := false;
BEGIN
    -- A walk from group to group costs a descent of the index for each entry. Where a page's worth of keys has no
    -- group they are the page, and one scan reads them. This looks no further than the first key that has one.
    IF p_delimiter <> '' THEN
        jump := EXISTS (
            SELECT FROM (
                SELECT h.key FROM head h
                 WHERE h.bucket_id = p_bucket AND h.listable AND h.key >= p_first AND h.key < p_stop
                 ORDER BY h.bucket_id, h.key
                 LIMIT p_limit) k
             WHERE position(p_delimiter IN substring(k.key FROM p_skip + 1)) > 0);
    END IF;
    IF jump THEN
        WITH RECURSIVE walk AS (
            (SELECT h.key, position(p_delimiter IN substring(h.key FROM p_skip + 1)) AS cut, h.modified, h.etag, h.size,
                    h.storage_class, h.checksum_algorithm, h.checksum_type, h.owner_id
               FROM head h
              WHERE h.bucket_id = p_bucket AND h.listable AND h.key >= p_first AND h.key < p_stop
              ORDER BY h.bucket_id, h.key
              LIMIT 1)
            UNION ALL
            SELECT n.*
              FROM walk w
             CROSS JOIN LATERAL (
                SELECT h.key, position(p_delimiter IN substring(h.key FROM p_skip + 1)) AS cut, h.modified, h.etag,
                       h.size, h.storage_class, h.checksum_algorithm, h.checksum_type, h.owner_id
                  FROM head h
                 WHERE h.bucket_id = p_bucket AND h.listable AND h.key < p_stop
                   AND h.key >= CASE WHEN w.cut > 0 THEN substring(w.key FROM 1 FOR p_skip + w.cut - 1) || p_past
                                     ELSE w.key || '\x00'::bytea END
                 ORDER BY h.bucket_id, h.key
                 LIMIT 1) n
        )
        SELECT array_agg(substring(key FROM 1 FOR p_skip + cut - 1 + length(p_delimiter))) FILTER (WHERE cut > 0),
               array_agg(key) FILTER (WHERE cut = 0), array_agg(floor(date_part('epoch', modified))::bigint) FILTER (WHERE cut = 0),
               array_agg(coalesce(etag, '')) FILTER (WHERE cut = 0), array_agg(coalesce(size, 0)) FILTER (WHERE cut = 0),
               array_agg(coalesce(storage_class, 'STANDARD')) FILTER (WHERE cut = 0),
               array_agg(checksum_algorithm) FILTER (WHERE cut = 0), array_agg(checksum_type) FILTER (WHERE cut = 0),
               array_agg(owner_id) FILTER (WHERE cut = 0 AND p_owners)
          INTO prefixes, keys, seconds, etags, sizes, classes, algorithms, types, owner_ids
          FROM (SELECT * FROM walk LIMIT p_limit) w;
    ELSE
        SELECT array_agg(key), array_agg(floor(date_part('epoch', modified))::bigint), array_agg(coalesce(etag, '')), array_agg(coalesce(size, 0)),
               array_agg(coalesce(storage_class, 'STANDARD')), array_agg(checksum_algorithm), array_agg(checksum_type),
               array_agg(owner_id) FILTER (WHERE p_owners)
          INTO keys, seconds, etags, sizes, classes, algorithms, types, owner_ids
          FROM (SELECT h.key, h.modified, h.etag, h.size, h.storage_class, h.checksum_algorithm, h.checksum_type,
                       h.owner_id
                  FROM head h
                 WHERE h.bucket_id = p_bucket AND h.listable AND h.key >= p_first AND h.key < p_stop
                 ORDER BY h.bucket_id, h.key
                 LIMIT p_limit) k;
    END IF;
    classes := shared(classes);
    algorithms := shared(algorithms);
    types := shared(types);
    owner_ids := shared(owner_ids);
    IF owner_ids IS NOT NULL THEN
        SELECT jsonb_object_agg(a.id, jsonb_build_array(a.canonical_id, a.display_name))
          INTO owners
          FROM (SELECT DISTINCT unnest(owner_ids) AS id) o
          JOIN account a ON a.id = o.id;
    END IF;
END $$;

DROP FUNCTION list_heads(bigint, bytea, bytea, integer);
DROP FUNCTION list_heads_grouped(bigint, bytea, bytea, integer, integer, bytea, bytea);
