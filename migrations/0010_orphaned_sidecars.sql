-- Sidecars whose versions were deleted while they were attached: the removal did not see them. It does now; these are
-- left from before, and go to the collector.
WITH gone AS (
    DELETE FROM sidecar s
    WHERE NOT EXISTS (SELECT FROM version v WHERE v.bucket_id = s.bucket_id AND v.key = s.key AND v.seq = s.seq)
    RETURNING s.blob
)
INSERT INTO blob_queue (blob, due_at) SELECT DISTINCT blob, now() FROM gone ON CONFLICT DO NOTHING;
