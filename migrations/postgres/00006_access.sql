-- CONTROL: who may call the quota admin API beside the tokens of its environment, and who tried without the right.
-- Of a token only the SHA-256 hash is kept. A row says who made it and who revoked it; nothing else of it ever changes, and none is deleted.

-- +goose Up
CREATE TABLE admin_tokens (
    name       text COLLATE "C" PRIMARY KEY CHECK (name ~ '^[A-Za-z0-9._@/+-]{1,128}$'), -- the actor in histories, hence never used again
    role       text             NOT NULL CHECK (role IN ('viewer', 'admin', 'org-admin')),
    org_id     text COLLATE "C" NOT NULL CHECK (org_id ~ '^([A-Za-z0-9._@/+-]{1,128})?$'), -- of an org-admin; else ''
    token_hash bytea            NOT NULL UNIQUE CHECK (length(token_hash) = 32),
    created_by text             NOT NULL CHECK (created_by <> ''),
    created_at timestamptz      NOT NULL,
    expires_at timestamptz,                                               -- NULL: never
    revoked_by text             NOT NULL DEFAULT '',
    revoked_at timestamptz,
    CHECK ((role = 'org-admin') = (org_id <> '')),
    CHECK ((revoked_at IS NULL) = (revoked_by = ''))
);

CREATE TRIGGER admin_tokens_only_get_revoked BEFORE UPDATE ON admin_tokens
    FOR EACH ROW WHEN (OLD.revoked_at IS NOT NULL
                       OR (OLD.name, OLD.role, OLD.org_id, OLD.token_hash, OLD.created_by, OLD.created_at, OLD.expires_at)
                          IS DISTINCT FROM (NEW.name, NEW.role, NEW.org_id, NEW.token_hash, NEW.created_by, NEW.created_at, NEW.expires_at))
    EXECUTE FUNCTION refuse_change();
CREATE TRIGGER admin_tokens_stay_rows BEFORE DELETE ON admin_tokens
    FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER admin_tokens_stay_table BEFORE TRUNCATE ON admin_tokens
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

-- Refused attempts. Those of one kind within a few seconds are one row, so that a flood fills no disk.
CREATE TABLE access_refusals (
    id         bigint           GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    instance   text             NOT NULL,                                 -- which instance of the service refused
    reason     text             NOT NULL CHECK (reason IN ('unauthorized', 'forbidden', 'outside_org', 'too_many_requests', 'several')),
    actor      text             NOT NULL,                                 -- '': nobody knows; else a token's name, or api_key:<id>
    address    text             NOT NULL,                                 -- from where; '' if several
    method     text             NOT NULL,                                 -- of the first attempt, as are path and request_id
    path       text             NOT NULL,
    request_id text             NOT NULL,
    attempts   bigint           NOT NULL CHECK (attempts >= 1),
    first_at   timestamptz      NOT NULL,
    last_at    timestamptz      NOT NULL CHECK (last_at >= first_at)
);

CREATE TRIGGER access_refusals_append_only_rows BEFORE UPDATE OR DELETE ON access_refusals
    FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER access_refusals_append_only_table BEFORE TRUNCATE ON access_refusals
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

-- +goose Down
DROP TABLE access_refusals;
DROP TABLE admin_tokens;
