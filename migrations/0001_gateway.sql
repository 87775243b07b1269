-- What the gateway stores: accounts, buckets, heads, versions, blobs, uploads.
-- Keys are bytea, in byte order; every table about a key starts with bucket_id, so that
-- hash partitioning stays possible. Lock order: bucket, upload, head, version, blob, run, tenant.

CREATE TABLE installation (               -- one row: which blob folder and key ring belong to this database
    only_one        boolean PRIMARY KEY DEFAULT true CHECK (only_one),
    id              uuid NOT NULL,
    key_fingerprint text
);

CREATE TABLE account (                    -- S3's owner; the tenant of the engine
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    canonical_id text NOT NULL UNIQUE,
    name         text NOT NULL UNIQUE,
    display_name text NOT NULL,
    email        text NOT NULL DEFAULT '',
    is_root      boolean NOT NULL DEFAULT false,
    generation   bigint NOT NULL DEFAULT 1,
    created_at   timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE access_key (
    access_key text PRIMARY KEY,
    account_id bigint NOT NULL REFERENCES account,
    secret     bytea NOT NULL,            -- sealed by the key ring
    enabled    boolean NOT NULL DEFAULT true,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX access_key_account ON access_key (account_id);

CREATE TABLE bucket (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,   -- never reused
    name        text COLLATE "C" NOT NULL UNIQUE,
    account_id  bigint NOT NULL REFERENCES account,
    location    text NOT NULL DEFAULT '',          -- as given at creation; '' is us-east-1
    versioning  smallint NOT NULL DEFAULT 0 CHECK (versioning IN (0, 1, 2)),   -- off, enabled, suspended
    acl         text NOT NULL DEFAULT 'private',   -- canned
    ownership   text NOT NULL DEFAULT 'ObjectWriter',
    object_lock boolean NOT NULL DEFAULT false,
    config      jsonb NOT NULL DEFAULT '{}',       -- processing mode, when_failed, while_scanning, pipeline
    generation  bigint NOT NULL DEFAULT 1,         -- moves with every change; caches compare it
    created_at  timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX bucket_account ON bucket (account_id, name);

CREATE TABLE head (                       -- what a key is now: the lock, what conditions read, what LIST shows
    bucket_id     bigint NOT NULL,
    key           bytea  NOT NULL,
    seq           bigint NOT NULL,        -- the newest sequence given out
    current_seq   bigint,                 -- the version that decides reads; null: only skipped ones
    listable      boolean NOT NULL DEFAULT false,   -- current exists and is no delete marker: what "exists" means to conditions
    etag          text,
    size          bigint,
    modified      timestamptz,
    storage_class text,
    checksum_algorithm text,
    checksum_type text,
    owner_id      bigint,
    PRIMARY KEY (bucket_id, key)
) WITH (fillfactor = 85);
CREATE INDEX head_listable ON head (bucket_id, key) WHERE listable;

CREATE TABLE version (
    bucket_id     bigint NOT NULL,
    key           bytea  NOT NULL,
    seq           bigint NOT NULL,
    rnd           bigint NOT NULL,        -- 64 random bits: with seq the S3 version id, and the guard of every guarded write
    is_null       boolean NOT NULL,       -- S3's id is "null"
    state         smallint NOT NULL CHECK (state IN (1, 2, 3, 4, 5)),   -- scanning, ready, quarantined, failed, marker
    etag          text,
    size          bigint NOT NULL DEFAULT 0,
    modified      timestamptz NOT NULL,
    storage_class text NOT NULL DEFAULT 'STANDARD',
    content_type  text,
    headers       jsonb NOT NULL DEFAULT '{}',   -- system metadata by lower-case header name
    metadata      jsonb NOT NULL DEFAULT '{}',   -- user metadata, names without x-amz-meta-
    tags          jsonb NOT NULL DEFAULT '{}',
    checksums     jsonb NOT NULL DEFAULT '{}',   -- {"crc32": "base64", …}
    checksum_type text,                          -- FULL_OBJECT | COMPOSITE
    digest        text,                          -- typed: sha256:hex, sha256-tree:hex
    acl           text NOT NULL DEFAULT 'private',
    owner_id      bigint NOT NULL,
    blob          uuid,                          -- the one extent of most versions; null: none, or many (table extent)
    blob_offset   bigint NOT NULL DEFAULT 0,
    extents       integer NOT NULL DEFAULT 1,    -- how many rows lie in table extent when not inline; 0: empty object
    parts         integer NOT NULL DEFAULT 0,    -- parts of a multipart object, 0 for a plain one
    fingerprint   text,                          -- of the pipeline that decided or decides
    processing    jsonb NOT NULL DEFAULT '{}',   -- what processing found
    code          text,                          -- block reason or failure code
    detail        text,                          -- signature name, offending step …: never content
    generation    integer NOT NULL DEFAULT 1,
    run_id        bigint,                        -- the live or latest run
    verdict_of    text,                          -- null: own run; "reused", "released", "copied"
    restore_n     integer NOT NULL DEFAULT 0,    -- restores asked for so far
    restoring     boolean NOT NULL DEFAULT false,
    restored_blob uuid,                          -- the temporary copy of an archived version
    restored_until timestamptz,
    expires_at    timestamptz,
    sync          boolean NOT NULL DEFAULT false,
    PRIMARY KEY (bucket_id, key, seq)
) WITH (fillfactor = 85);
CREATE INDEX version_held ON version (bucket_id, key, seq) WHERE state IN (3, 4);
CREATE INDEX version_restored ON version (restored_until) WHERE restored_blob IS NOT NULL;

CREATE TABLE extent (                     -- of versions with several
    bucket_id bigint NOT NULL,
    key       bytea  NOT NULL,
    seq       bigint NOT NULL,
    idx       integer NOT NULL,
    start     bigint NOT NULL,            -- where this extent begins in the object
    blob      uuid NOT NULL,
    blob_offset bigint NOT NULL,
    length    bigint NOT NULL,
    PRIMARY KEY (bucket_id, key, seq, idx)
);
CREATE INDEX extent_blob ON extent (blob);
CREATE INDEX version_blob ON version (blob) WHERE blob IS NOT NULL;
CREATE INDEX version_restored_blob ON version (restored_blob) WHERE restored_blob IS NOT NULL;

CREATE TABLE version_part (               -- parts of a multipart version: a copy carries them, a move leaves them
    bucket_id bigint NOT NULL,
    key       bytea  NOT NULL,
    seq       bigint NOT NULL,
    number    integer NOT NULL,
    start     bigint NOT NULL,
    size      bigint NOT NULL,
    etag      text NOT NULL,
    checksums jsonb NOT NULL DEFAULT '{}',
    PRIMARY KEY (bucket_id, key, seq, number)
);

CREATE TABLE blob (
    id         uuid PRIMARY KEY,
    state      smallint NOT NULL CHECK (state IN (1, 2, 3)),   -- staging, live, deleting
    tier       text NOT NULL,             -- "inline": the bytes lie in blob_bytes
    size       bigint,
    sha256     bytea,
    owner      bigint,                    -- the worker whose heartbeat is the lease of a staging row
    corrupt    boolean NOT NULL DEFAULT false,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX blob_staging ON blob (owner) WHERE state = 1;
CREATE INDEX blob_deleting ON blob (id) WHERE state = 3;

CREATE TABLE blob_bytes (
    id    uuid PRIMARY KEY REFERENCES blob ON DELETE CASCADE,
    bytes bytea NOT NULL
);
ALTER TABLE blob_bytes ALTER COLUMN bytes SET STORAGE EXTERNAL;

CREATE TABLE blob_queue (                 -- candidates for the collector, written by whoever drops a reference
    blob   uuid NOT NULL,
    due_at timestamptz NOT NULL,
    PRIMARY KEY (due_at, blob)
);

CREATE TABLE sidecar (                    -- what extraction produced of a version; shared by reused verdicts
    bucket_id bigint NOT NULL,
    key       bytea  NOT NULL,
    seq       bigint NOT NULL,
    kind      text   NOT NULL,            -- "text"
    blob      uuid   NOT NULL,
    size      bigint NOT NULL,
    PRIMARY KEY (bucket_id, key, seq, kind)
);
CREATE INDEX sidecar_blob ON sidecar (blob);

CREATE TABLE upload (
    bucket_id     bigint NOT NULL,
    key           bytea  NOT NULL,
    upload_id     text COLLATE "C" NOT NULL,
    initiated     timestamptz NOT NULL,
    initiator_id  bigint NOT NULL,
    owner_id      bigint NOT NULL,
    storage_class text NOT NULL,
    content_type  text,
    headers       jsonb NOT NULL DEFAULT '{}',
    metadata      jsonb NOT NULL DEFAULT '{}',
    tags          jsonb NOT NULL DEFAULT '{}',
    acl           text NOT NULL DEFAULT 'private',
    checksum_algorithm text,
    checksum_type text,
    mode          text,                   -- sync | async, as asked at creation
    PRIMARY KEY (bucket_id, key, upload_id)
);

CREATE TABLE part (
    bucket_id  bigint NOT NULL,
    key        bytea  NOT NULL,
    upload_id  text COLLATE "C" NOT NULL,
    number     integer NOT NULL CHECK (number BETWEEN 1 AND 10000),
    size       bigint NOT NULL,
    etag       text NOT NULL,             -- MD5 in hex
    sha256     bytea NOT NULL,
    checksums  jsonb NOT NULL DEFAULT '{}',
    modified   timestamptz NOT NULL,
    blob       uuid,                      -- one extent; null: none (empty part) or many (table part_extent)
    blob_offset bigint NOT NULL DEFAULT 0,
    extents    integer NOT NULL DEFAULT 1,
    PRIMARY KEY (bucket_id, key, upload_id, number)
);
CREATE INDEX part_blob ON part (blob) WHERE blob IS NOT NULL;

CREATE TABLE part_extent (
    bucket_id bigint NOT NULL,
    key       bytea  NOT NULL,
    upload_id text COLLATE "C" NOT NULL,
    number    integer NOT NULL,
    idx       integer NOT NULL,
    blob      uuid NOT NULL,
    blob_offset bigint NOT NULL,
    length    bigint NOT NULL,
    PRIMARY KEY (bucket_id, key, upload_id, number, idx)
);
CREATE INDEX part_extent_blob ON part_extent (blob);

CREATE TABLE completed_upload (           -- a repeated Complete answers from here for 7 days
    bucket_id    bigint NOT NULL,
    key          bytea  NOT NULL,
    upload_id    text COLLATE "C" NOT NULL,
    seq          bigint NOT NULL,
    rnd          bigint NOT NULL,
    request      bytea NOT NULL,          -- SHA-256 of the list of parts that was completed
    document     text NOT NULL,
    headers      jsonb NOT NULL DEFAULT '{}',
    completed_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (bucket_id, key, upload_id)
);
CREATE INDEX completed_upload_age ON completed_upload (completed_at);

CREATE TABLE verdict (                    -- what a machine decided about content, lent to equal uploads
    account_id bigint NOT NULL,
    key        bytea NOT NULL,            -- SHA-256 over digest, fingerprint, extension, declared type
    state      smallint NOT NULL CHECK (state IN (2, 3)),
    code       text,
    detail     text,
    processing jsonb NOT NULL,
    sidecar    uuid,
    sidecar_size bigint,
    run_id     bigint,
    decided_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (account_id, key)
);
CREATE INDEX verdict_age ON verdict (decided_at);

CREATE TABLE allowed_digest (             -- released with --allow-digest: passes the scan of that tenant
    account_id bigint NOT NULL,
    digest     text NOT NULL,
    who        text NOT NULL,
    why        text NOT NULL,
    at         timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (account_id, digest)
);

CREATE TABLE rescan (                     -- content that policy let through while the scanner was away
    bucket_id bigint NOT NULL,
    key       bytea  NOT NULL,
    seq       bigint NOT NULL,
    rnd       bigint NOT NULL,
    due_at    timestamptz NOT NULL,
    PRIMARY KEY (bucket_id, key, seq)
);
CREATE INDEX rescan_due ON rescan (due_at);

CREATE TABLE audit (
    id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at     timestamptz NOT NULL DEFAULT now(),
    who    text NOT NULL,
    what   text NOT NULL,
    target jsonb NOT NULL,
    why    text NOT NULL DEFAULT ''
);
