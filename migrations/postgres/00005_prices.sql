-- CONTROL: the price book. price_events is the truth; prices is its fold: the latest of each (model, valid_from).
-- Units: amounts of the currency for a million tokens, exact to 12 decimals.

-- +goose Up
CREATE TABLE prices (
    model                    text COLLATE "C" NOT NULL CHECK (model ~ '^[A-Za-z0-9._@/+-]{1,128}$'),
    valid_from               timestamptz      NOT NULL CHECK (valid_from = date_trunc('milliseconds', valid_from)
                                                              AND valid_from >= '2000-01-01 00:00:00Z' AND valid_from < '2101-01-01 00:00:00Z'),
    currency                 text             NOT NULL CHECK (currency ~ '^[A-Z]{3}$'),
    input_per_million        numeric(24, 12)  NOT NULL CHECK (input_per_million >= 0 AND input_per_million < 1000000000000),
    cached_input_per_million numeric(24, 12)  NOT NULL CHECK (cached_input_per_million >= 0 AND cached_input_per_million < 1000000000000),
    output_per_million       numeric(24, 12)  NOT NULL CHECK (output_per_million >= 0 AND output_per_million < 1000000000000),
    version                  bigint           NOT NULL CHECK (version >= 1), -- the model's when this price was last stated
    actor                    text             NOT NULL CHECK (actor <> ''),
    reason                   text             NOT NULL DEFAULT '',
    updated_at               timestamptz      NOT NULL,
    PRIMARY KEY (model, valid_from)
);

CREATE TABLE price_events (
    model      text COLLATE "C" NOT NULL CHECK (model ~ '^[A-Za-z0-9._@/+-]{1,128}$'),
    version    bigint           NOT NULL CHECK (version >= 1),            -- counts the changes of all prices of the model
    valid_from timestamptz      NOT NULL,
    actor      text             NOT NULL CHECK (actor <> ''),
    reason     text             NOT NULL DEFAULT '',
    before     jsonb,                                                     -- null: no price began at that instant
    after      jsonb            NOT NULL,                                 -- {"currency", "input_per_million", …}, decimal strings
    at         timestamptz      NOT NULL,                                 -- never before that of the version before it
    PRIMARY KEY (model, version)
);

CREATE TRIGGER price_events_append_only_rows BEFORE UPDATE OR DELETE ON price_events
    FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER price_events_append_only_table BEFORE TRUNCATE ON price_events
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

ALTER TABLE outbox
    DROP CONSTRAINT outbox_kind_check,
    ADD CONSTRAINT outbox_kind_check CHECK (kind IN ('quota', 'tier', 'price'));

-- +goose Down
DELETE FROM outbox WHERE kind = 'price';
ALTER TABLE outbox
    DROP CONSTRAINT outbox_kind_check,
    ADD CONSTRAINT outbox_kind_check CHECK (kind IN ('quota', 'tier'));
DROP TABLE price_events;
DROP TABLE prices;
