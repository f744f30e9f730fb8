-- CONTROL: the catalogue of what is sold, and the history of its changes.
-- tiers is a projection of tier_events. Limits: 0 is unlimited, at most 2^53-1 (exact in JSON and in Redis's Lua).

-- +goose Up

-- +goose StatementBegin
-- Histories are the truth: nobody changes what has happened, not even by mistake.
CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is append-only: % refused', TG_TABLE_NAME, TG_OP USING ERRCODE = 'restrict_violation';
END
$$;
-- +goose StatementEnd

CREATE TABLE tiers (
    tier             text COLLATE "C" PRIMARY KEY CHECK (tier ~ '^[A-Za-z0-9._@/+-]{1,128}$'),
    rpm_limit        bigint      NOT NULL CHECK (rpm_limit BETWEEN 0 AND 9007199254740991),
    tpm_limit        bigint      NOT NULL CHECK (tpm_limit BETWEEN 0 AND 9007199254740991),
    tpd_limit        bigint      NOT NULL CHECK (tpd_limit BETWEEN 0 AND 9007199254740991),
    concurrent_limit bigint      NOT NULL CHECK (concurrent_limit BETWEEN 0 AND 9007199254740991),
    priority         bigint      NOT NULL CHECK (priority BETWEEN 0 AND 100),
    allowed_models   text[]      NOT NULL,                                -- empty: all
    max_context      bigint      NOT NULL CHECK (max_context BETWEEN 0 AND 9007199254740991),
    redis_away       text        NOT NULL CHECK (redis_away IN ('local', 'open', 'closed')),
    version          bigint      NOT NULL CHECK (version >= 1),
    created_at       timestamptz NOT NULL,
    updated_at       timestamptz NOT NULL
);

CREATE TABLE tier_events (
    tier    text COLLATE "C" NOT NULL,
    version bigint           NOT NULL CHECK (version >= 1),
    actor   text             NOT NULL CHECK (actor <> ''),
    reason  text             NOT NULL DEFAULT '',
    before  jsonb,                                                        -- null: there was none
    after   jsonb            NOT NULL,
    at      timestamptz      NOT NULL,
    PRIMARY KEY (tier, version)
);

CREATE TRIGGER tier_events_append_only_rows BEFORE UPDATE OR DELETE ON tier_events
    FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER tier_events_append_only_table BEFORE TRUNCATE ON tier_events
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

-- The shipped tiers, as pkg/tier lists them (a test compares). From here on they are data: an admin's edit stays.
INSERT INTO tiers (tier, rpm_limit, tpm_limit, tpd_limit, concurrent_limit, priority, allowed_models, max_context, redis_away, version, created_at, updated_at)
SELECT v.tier, v.rpm, v.tpm, v.tpd, v.slots, v.priority, v.models, v.context, 'local', 1, date_trunc('milliseconds', now()), date_trunc('milliseconds', now())
FROM (VALUES
    ('free',          10,   10000,   100000,   1,  20, ARRAY['grok-2', 'grok-2-mini'],   8192),
    ('plus',          40,   40000,   500000,   3,  60, ARRAY[]::text[],                 32768),
    ('api',          600,  300000, 20000000,  50,  80, ARRAY[]::text[],                131072),
    ('enterprise', 10000, 5000000,        0, 500, 100, ARRAY[]::text[],               1048576)
) AS v (tier, rpm, tpm, tpd, slots, priority, models, context);

INSERT INTO tier_events (tier, version, actor, reason, before, after, at)
SELECT t.tier, 1, 'tollgate', 'shipped', NULL,
       jsonb_build_object('tier', t.tier, 'rpm_limit', t.rpm_limit, 'tpm_limit', t.tpm_limit, 'tpd_limit', t.tpd_limit,
                          'concurrent_limit', t.concurrent_limit, 'priority', t.priority, 'allowed_models', t.allowed_models,
                          'max_context', t.max_context, 'redis_away', t.redis_away),
       t.updated_at
FROM tiers AS t;

-- +goose Down
DROP TABLE tier_events;
DROP TABLE tiers;
DROP FUNCTION refuse_change();
