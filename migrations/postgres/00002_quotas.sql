-- CONTROL: who may use how much. quota_events is the truth; quotas is its fold and can be rebuilt from it.
-- A limit that is NULL in quotas is the tier's.

-- +goose Up
CREATE TABLE quotas (
    subject          text COLLATE "C" PRIMARY KEY CHECK (subject ~ '^(user|api_key):[A-Za-z0-9._@/+-]{1,128}$'),
    org_id           text COLLATE "C" NOT NULL CHECK (org_id ~ '^([A-Za-z0-9._@/+-]{1,128})?$'), -- '': in no org
    tier             text COLLATE "C" NOT NULL REFERENCES tiers (tier),
    rpm_limit        bigint           CHECK (rpm_limit BETWEEN 0 AND 9007199254740991),
    tpm_limit        bigint           CHECK (tpm_limit BETWEEN 0 AND 9007199254740991),
    tpd_limit        bigint           CHECK (tpd_limit BETWEEN 0 AND 9007199254740991),
    concurrent_limit bigint           CHECK (concurrent_limit BETWEEN 0 AND 9007199254740991),
    allowed_models   text[],                                              -- empty: all; NULL: the tier's
    max_context      bigint           CHECK (max_context BETWEEN 0 AND 9007199254740991),
    suspended        boolean          NOT NULL,
    version          bigint           NOT NULL CHECK (version >= 1),
    created_at       timestamptz      NOT NULL,
    updated_at       timestamptz      NOT NULL
);

-- Lists go by subject within an org or a tier: a total order for keyset pagination.
CREATE INDEX quotas_by_org ON quotas (org_id, subject) WHERE org_id <> '';
CREATE INDEX quotas_by_tier ON quotas (tier, subject);

CREATE TABLE quota_events (
    subject text COLLATE "C" NOT NULL CHECK (subject ~ '^(user|api_key|org):[A-Za-z0-9._@/+-]{1,128}$'),
    version bigint           NOT NULL CHECK (version >= 1),
    actor   text             NOT NULL CHECK (actor <> ''),
    reason  text             NOT NULL DEFAULT '',
    before  jsonb,                                                        -- what was stored; null: nothing, the tier's defaults held
    after   jsonb,                                                        -- what is stored from here on; null: deleted
    at      timestamptz      NOT NULL,                                    -- never before that of the version before it
    PRIMARY KEY (subject, version),
    CHECK (before IS NOT NULL OR after IS NOT NULL)
);

CREATE TRIGGER quota_events_append_only_rows BEFORE UPDATE OR DELETE ON quota_events
    FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER quota_events_append_only_table BEFORE TRUNCATE ON quota_events
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

-- +goose Down
DROP TABLE quota_events;
DROP TABLE quotas;
