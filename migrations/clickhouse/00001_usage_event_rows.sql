-- The rows of the ledger: every usage event that the consumer stored, repeats included until ClickHouse merges them away.
-- Read it through usage_events, which never shows a repeat.
--
-- Input:      the consumer's inserts, one block a batch. The table has no partitions, so a block is one part: stored whole or not at all.
-- Units:      tokens are counts, latency_ms milliseconds, times UTC.
-- Exactness:  rows of one event_id are one event; the one first in Kafka (least offset, then least partition) stands. event_id alone
--             is the sorting key, so a repeat is recognised whatever else it bears: another timestamp, another batch, another partition.
-- Dedup:      a block that is inserted again with its insert_deduplication_token is dropped at once, while it is among the last 10,000.

-- +goose NO TRANSACTION
-- +goose Up
CREATE TABLE IF NOT EXISTS usage_event_rows
(
    event_id            UUID,
    schema_version      UInt16,
    user_id             String,
    api_key_id          String,
    org_id              String,
    tier                LowCardinality(String),
    request_id          UUID,
    requested_model     LowCardinality(String),
    model               LowCardinality(String),
    input_tokens        Int64,
    output_tokens       Int64,
    cached_input_tokens Int64,
    reserved_tokens     Int64,
    latency_ms          Int64,
    timestamp           DateTime64(3, 'UTC'),
    was_rate_limited    Bool,
    reason              LowCardinality(String),
    scope               LowCardinality(String),
    outcome             LowCardinality(String),
    reservation         LowCardinality(String),
    estimated           Bool,
    region              LowCardinality(String),
    instance            LowCardinality(String),
    kafka_topic         LowCardinality(String),
    kafka_partition     UInt16,
    kafka_offset        UInt64,
    ingested_at         DateTime64(3, 'UTC') DEFAULT now64(3),
    -- The row with the highest precedence stands for its event. 12 bits for the partition leave 52 for the offset.
    precedence          UInt64 MATERIALIZED bitNot(bitOr(bitShiftLeft(kafka_offset, 12), toUInt64(kafka_partition))),
    CONSTRAINT partition_fits_precedence CHECK kafka_partition < 4096,
    CONSTRAINT rejection_uses_nothing CHECK NOT was_rate_limited OR (input_tokens = 0 AND output_tokens = 0),
    CONSTRAINT usage_is_not_negative CHECK outcome = 'adjustment' OR (input_tokens >= 0 AND output_tokens >= 0 AND cached_input_tokens >= 0)
)
ENGINE = ReplacingMergeTree(precedence)
ORDER BY event_id
SETTINGS non_replicated_deduplication_window = 10000;

-- +goose Down
DROP TABLE IF EXISTS usage_event_rows;
