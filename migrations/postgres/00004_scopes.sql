-- CONTROL: API keys, org pools, further limits and groups of models, and over how many Redis hash slots a payer is spread.
-- Keys and pools change as quotas do: quota_events is the truth (api_key:<id>, org:<id>), these tables are its fold. Only the hash and
-- the visible beginning of a secret are in no event.

-- +goose Up
ALTER TABLE tiers
    ADD COLUMN limits       jsonb NOT NULL DEFAULT '[]',                  -- [{"counts", "window", "capacity"}], beside rpm, tpm and tpd
    ADD COLUMN model_limits jsonb NOT NULL DEFAULT '[]';                  -- [{"group", "models", "rpm_limit", …, "limits"}]

ALTER TABLE quotas
    ADD COLUMN limits       jsonb,                                        -- NULL: the tier's
    ADD COLUMN model_limits jsonb,                                        -- NULL: the tier's
    ADD COLUMN shards       bigint CHECK (shards BETWEEN 1 AND 64),       -- NULL: 1
    ALTER COLUMN tier DROP NOT NULL,                                      -- a key that a user owns has none: its user's holds
    ADD CONSTRAINT quotas_tier_missing CHECK (tier IS NOT NULL OR subject LIKE 'api\_key:%');

CREATE TABLE api_keys (
    key_id      text COLLATE "C" PRIMARY KEY CHECK (key_id ~ '^[A-Za-z0-9._@/+-]{1,128}$'),
    user_id     text COLLATE "C" NOT NULL CHECK (user_id ~ '^([A-Za-z0-9._@/+-]{1,128})?$'), -- who owns it: a user
    org_id      text COLLATE "C" NOT NULL CHECK (org_id ~ '^([A-Za-z0-9._@/+-]{1,128})?$'),  -- or an org
    name        text             NOT NULL,                                -- for people; '' is none
    secret_hash bytea            NOT NULL UNIQUE CHECK (length(secret_hash) = 32),           -- SHA-256
    prefix      text             NOT NULL,                                -- the visible beginning of the secret
    rotations   bigint           NOT NULL CHECK (rotations >= 0),
    created_at  timestamptz      NOT NULL,
    rotated_at  timestamptz,                                              -- when it got its present secret, if not at its creation
    revoked_at  timestamptz,                                              -- not NULL: refused for good
    CHECK ((user_id = '') <> (org_id = ''))
);

CREATE INDEX api_keys_by_user ON api_keys (user_id, key_id) WHERE user_id <> '';
CREATE INDEX api_keys_by_org ON api_keys (org_id, key_id) WHERE org_id <> '';

-- Where a key's counters lie follows from its owner.
CREATE TRIGGER api_keys_keep_their_owner BEFORE UPDATE OF key_id, user_id, org_id ON api_keys
    FOR EACH ROW WHEN (OLD.key_id <> NEW.key_id OR OLD.user_id <> NEW.user_id OR OLD.org_id <> NEW.org_id)
    EXECUTE FUNCTION refuse_change();

CREATE TABLE org_quotas (
    org_id           text COLLATE "C" PRIMARY KEY CHECK (org_id ~ '^[A-Za-z0-9._@/+-]{1,128}$'),
    rpm_limit        bigint      NOT NULL CHECK (rpm_limit BETWEEN 0 AND 9007199254740991),
    tpm_limit        bigint      NOT NULL CHECK (tpm_limit BETWEEN 0 AND 9007199254740991),
    tpd_limit        bigint      NOT NULL CHECK (tpd_limit BETWEEN 0 AND 9007199254740991),
    concurrent_limit bigint      NOT NULL CHECK (concurrent_limit BETWEEN 0 AND 9007199254740991),
    limits           jsonb       NOT NULL,
    shards           bigint      NOT NULL CHECK (shards BETWEEN 1 AND 64),
    time_zone        text        NOT NULL CHECK (time_zone <> ''),        -- IANA name
    deleted          boolean     NOT NULL,                                -- unlimited again; the row keeps the version, which only grows
    version          bigint      NOT NULL CHECK (version >= 1),
    created_at       timestamptz NOT NULL,
    updated_at       timestamptz NOT NULL
);

-- The events that may have moved a payer's counters to another hash slot: few, and looked at whenever a plan is loaded.
CREATE INDEX quota_events_moves ON quota_events (subject, at)
    WHERE COALESCE(before ->> 'org_id', '') <> COALESCE(after ->> 'org_id', '') OR COALESCE(before ->> 'shards', '1') <> COALESCE(after ->> 'shards', '1');

-- +goose Down
DROP INDEX quota_events_moves;
DROP TABLE org_quotas;
-- Without owners every key is on the api tier; a revoked one must stay refused.
UPDATE quotas SET suspended = true WHERE subject IN (SELECT 'api_key:' || k.key_id FROM api_keys AS k WHERE k.revoked_at IS NOT NULL);
DROP TABLE api_keys;
UPDATE quotas SET tier = 'api' WHERE tier IS NULL;
ALTER TABLE quotas
    DROP CONSTRAINT quotas_tier_missing,
    ALTER COLUMN tier SET NOT NULL,
    DROP COLUMN limits,
    DROP COLUMN model_limits,
    DROP COLUMN shards;
ALTER TABLE tiers
    DROP COLUMN limits,
    DROP COLUMN model_limits;
