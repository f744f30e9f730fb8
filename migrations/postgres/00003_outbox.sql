-- CONTROL: changes that have been committed and must still reach Redis (so that the next decision knows) and Kafka (quota.changes.v1).
-- A row is written in the transaction of its change; ids of one name grow with its versions. Rows published to both are pruned after a
-- while: the truth is in the event tables.

-- +goose Up
CREATE TABLE outbox (
    id                 bigint           GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind               text             NOT NULL CHECK (kind IN ('quota', 'tier')),
    name               text COLLATE "C" NOT NULL,                         -- "user:u1", "api_key:k1", "tier:plus": fence name and Kafka key
    version            bigint           NOT NULL CHECK (version >= 1),
    shards             int[]            NOT NULL,                         -- the Redis hash tags that must learn of it; empty: all
    event_id           uuid             NOT NULL UNIQUE,
    payload            json             NOT NULL,                         -- json, not jsonb: the bytes that Kafka gets
    created_at         timestamptz      NOT NULL,
    redis_published_at timestamptz,
    kafka_published_at timestamptz,
    UNIQUE (name, version)
);

CREATE INDEX outbox_redis_pending ON outbox (id) WHERE redis_published_at IS NULL;
CREATE INDEX outbox_redis_pending_by_name ON outbox (name, id) WHERE redis_published_at IS NULL;
CREATE INDEX outbox_kafka_pending ON outbox (id) WHERE kafka_published_at IS NULL;

-- +goose Down
DROP TABLE outbox;
