-- Damaged blobs are few and asked for often; one process at a time reads all blobs, slowly, and compares.
CREATE INDEX blob_corrupt ON blob (id) WHERE corrupt;

CREATE TABLE scrub (                      -- one row: how far the scrubber has come, and who does it
    only_one    boolean PRIMARY KEY DEFAULT true CHECK (only_one),
    owner       uuid,
    lease_until timestamptz NOT NULL DEFAULT '-infinity',
    position    uuid,                     -- the last blob of this round that was read; null: a round begins
    begun       timestamptz,              -- of this round
    ended       timestamptz,              -- of this round; null: it is under way
    verified    timestamptz               -- when the last complete round began: everything older was right since then
);
INSERT INTO scrub DEFAULT VALUES;
