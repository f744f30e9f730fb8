-- The ledger: every event once, and its sums by minute, quarter of an hour, day, and reason of refusal, kept with it.
--
-- Input:      blocks of pkg/clickhouseledger, the only writer. ClickHouse has no transactions, but the table has no partitions, so a
--             block is one part: stored whole or not at all. What must change together therefore lies in one block of one table: the
--             rows of events, the changes of all sums that they mean, and one row that numbers the block (grain 'fold').
-- Exactness:  a writer looks up which events are stored, then inserts the rest as fold n+1 with insert_deduplication_token
--             "<generation>/<n+1>". ClickHouse drops a block whose token it knows, so of all writers that have looked at fold n one gets
--             through, and the others look again: nobody adds to sums what somebody else has added since.
-- Sums:       the columns of SummingMergeTree's list. Rows with equal sorting keys are added up at merges, and removed once all sums are
--             0: that is how an event that gives way to another version of it goes, too. Sums are exact before and after merges.
-- Units:      period is the start of the minute, quarter or day in UTC (refusals: of the hour); tokens and requests are counts.
-- Keys:       event_id is nil in rows of sums; in a fold's its second half is the fold's number. ClickHouse compares the second half of
--             a UUID first. `guess` tells an expired event from the real outcome that may replace it.
-- generation: another one for each table that a rebuild swaps in, so that nobody who has looked at the old one writes to the new one.
-- fresh:      a writer that slept since it looked, for so long that its token may be forgotten, is refused.
--
-- What usage_event_rows holds is brought over, each event once by the rules of 00003, in 16 slices, each one block with a token; then the
-- views change over and the old table goes. Consumers of before this migration must be stopped: what they insert meanwhile is only
-- in the log.

-- +goose NO TRANSACTION
-- +goose Up
CREATE TABLE IF NOT EXISTS usage_ledger
(
    grain               Enum8('fold' = 0, 'event' = 1, 'minute' = 2, 'quarter' = 3, 'day' = 4, 'refusals' = 5),
    event_id            UUID,
    org_id              String,
    period              DateTime('UTC'),
    user_id             String,
    api_key_id          String,
    tier                LowCardinality(String),
    model               LowCardinality(String),
    reason              LowCardinality(String),
    scope               LowCardinality(String),
    guess               Bool,
    -- Sums. events is 1 for an event, -1 for one that gives way.
    events              Int64,
    requests            Int64,
    rejected_requests   Int64,
    input_tokens        Int64,
    output_tokens       Int64,
    cached_input_tokens Int64,
    -- Of events only; a fold has its writer's mark in request_id and the moment of its look in ingested_at.
    schema_version      UInt16,
    request_id          UUID,
    requested_model     LowCardinality(String),
    reserved_tokens     Int64,
    latency_ms          Int64,
    timestamp           DateTime64(3, 'UTC'),
    was_rate_limited    Bool,
    outcome             LowCardinality(String),
    reservation         LowCardinality(String),
    estimated           Bool,
    region              LowCardinality(String),
    instance            LowCardinality(String),
    corrects_event_id   UUID,
    kafka_topic         LowCardinality(String),
    kafka_partition     UInt16,
    kafka_offset        UInt64,
    ingested_at         DateTime64(3, 'UTC'),
    generation          UInt64,
    INDEX events_by_time timestamp TYPE minmax GRANULARITY 1,
    CONSTRAINT generation CHECK generation = 1,
    CONSTRAINT fresh CHECK grain != 'fold' OR ingested_at > nowInBlock64(3) - 60,
    CONSTRAINT rejection_uses_nothing CHECK NOT was_rate_limited OR (input_tokens = 0 AND output_tokens = 0),
    CONSTRAINT usage_is_not_negative CHECK grain != 'event' OR events < 0 OR outcome = 'adjustment'
        OR (input_tokens >= 0 AND output_tokens >= 0 AND cached_input_tokens >= 0)
)
ENGINE = SummingMergeTree((events, requests, rejected_requests, input_tokens, output_tokens, cached_input_tokens))
PRIMARY KEY (grain, event_id, org_id, period)
ORDER BY (grain, event_id, org_id, period, user_id, api_key_id, tier, model, reason, scope, guess)
SETTINGS non_replicated_deduplication_window = 20000;

-- A run that ended between the last statement and the note that this file is applied finds no old table.
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
    precedence          UInt64 MATERIALIZED
        bitOr(if(outcome = 'expired', 0, bitShiftLeft(toUInt64(1), 63)),
          bitAnd(bitNot(bitOr(bitShiftLeft(kafka_offset, 12), toUInt64(kafka_partition))), bitShiftLeft(toUInt64(1), 63) - 1)),
    CONSTRAINT partition_fits_precedence CHECK kafka_partition < 4096,
    CONSTRAINT rejection_uses_nothing CHECK NOT was_rate_limited OR (input_tokens = 0 AND output_tokens = 0),
    CONSTRAINT usage_is_not_negative CHECK outcome = 'adjustment' OR (input_tokens >= 0 AND output_tokens >= 0 AND cached_input_tokens >= 0)
)
ENGINE = ReplacingMergeTree(precedence)
ORDER BY event_id
SETTINGS non_replicated_deduplication_window = 10000;

-- The rows of one slice of the old events, and of their sums; the engine adds up those of one key when they are inserted.
CREATE OR REPLACE VIEW usage_ledger_from_rows AS
SELECT
    row_grain AS grain,
    row_grain = 'event' AS is_event,
    if(is_event, e.event_id, toUUID('00000000-0000-0000-0000-000000000000')) AS event_id,
    if(row_grain = 'refusals', '', e.org_id) AS org_id,
    multiIf(row_grain = 'minute', toStartOfMinute(e.timestamp), row_grain = 'quarter', toStartOfFifteenMinutes(e.timestamp),
        row_grain = 'day', toDateTime(toStartOfDay(e.timestamp), 'UTC'), row_grain = 'refusals', toStartOfHour(e.timestamp),
        toDateTime(0, 'UTC')) AS period,
    if(row_grain = 'refusals', '', e.user_id) AS user_id,
    if(row_grain = 'refusals', '', e.api_key_id) AS api_key_id,
    e.tier AS tier,
    if(row_grain = 'refusals', '', e.model) AS model,
    if(row_grain IN ('event', 'refusals'), e.reason, '') AS reason,
    if(row_grain IN ('event', 'refusals'), e.scope, '') AS scope,
    is_event AND e.outcome = 'expired' AS guess,
    1 AS events,
    if(e.was_rate_limited OR e.outcome = 'adjustment', 0, 1) AS requests,
    if(e.was_rate_limited, 1, 0) AS rejected_requests,
    e.input_tokens AS input_tokens,
    e.output_tokens AS output_tokens,
    e.cached_input_tokens AS cached_input_tokens,
    if(is_event, e.schema_version, 0) AS schema_version,
    if(is_event, e.request_id, toUUID('00000000-0000-0000-0000-000000000000')) AS request_id,
    if(is_event, e.requested_model, '') AS requested_model,
    if(is_event, e.reserved_tokens, 0) AS reserved_tokens,
    if(is_event, e.latency_ms, 0) AS latency_ms,
    if(is_event, e.timestamp, toDateTime64(0, 3, 'UTC')) AS timestamp,
    is_event AND e.was_rate_limited AS was_rate_limited,
    if(is_event, e.outcome, '') AS outcome,
    if(is_event, e.reservation, '') AS reservation,
    is_event AND e.estimated AS estimated,
    if(is_event, e.region, '') AS region,
    if(is_event, e.instance, '') AS instance,
    if(is_event, e.kafka_topic, '') AS kafka_topic,
    if(is_event, e.kafka_partition, 0) AS kafka_partition,
    if(is_event, e.kafka_offset, 0) AS kafka_offset,
    if(is_event, e.ingested_at, toDateTime64(0, 3, 'UTC')) AS ingested_at
FROM
(
    SELECT
        event_id, schema_version, user_id, api_key_id, org_id, tier, request_id, requested_model, model, input_tokens, output_tokens,
        cached_input_tokens, reserved_tokens, latency_ms, timestamp, was_rate_limited, reason, scope, outcome, reservation, estimated,
        region, instance, kafka_topic, kafka_partition, kafka_offset, ingested_at
    FROM usage_event_rows
    WHERE sipHash64(event_id) % 16 = {slice:UInt8}
    ORDER BY event_id, outcome = 'expired', kafka_offset, kafka_partition
    LIMIT 1 BY event_id
) AS e
ARRAY JOIN if(e.was_rate_limited, ['event', 'minute', 'quarter', 'day', 'refusals'], ['event', 'minute', 'quarter', 'day']) AS row_grain;

INSERT INTO usage_ledger
    (grain, event_id, org_id, period, user_id, api_key_id, tier, model, reason, scope, guess, events, requests, rejected_requests, input_tokens,
     output_tokens, cached_input_tokens, schema_version, request_id, requested_model, reserved_tokens, latency_ms, timestamp, was_rate_limited,
     outcome, reservation, estimated, region, instance, kafka_topic, kafka_partition, kafka_offset, ingested_at, generation)
SELECT
     grain, event_id, org_id, period, user_id, api_key_id, tier, model, reason, scope, guess, events, requests, rejected_requests, input_tokens,
     output_tokens, cached_input_tokens, schema_version, request_id, requested_model, reserved_tokens, latency_ms, timestamp, was_rate_limited,
     outcome, reservation, estimated, region, instance, kafka_topic, kafka_partition, kafka_offset, ingested_at, 1
FROM usage_ledger_from_rows(slice = 0)
SETTINGS insert_deduplicate = 1, insert_deduplication_token = 'rows/0', min_insert_block_size_rows = 1000000000, min_insert_block_size_bytes = 1000000000000;

INSERT INTO usage_ledger
    (grain, event_id, org_id, period, user_id, api_key_id, tier, model, reason, scope, guess, events, requests, rejected_requests, input_tokens,
     output_tokens, cached_input_tokens, schema_version, request_id, requested_model, reserved_tokens, latency_ms, timestamp, was_rate_limited,
     outcome, reservation, estimated, region, instance, kafka_topic, kafka_partition, kafka_offset, ingested_at, generation)
SELECT
     grain, event_id, org_id, period, user_id, api_key_id, tier, model, reason, scope, guess, events, requests, rejected_requests, input_tokens,
     output_tokens, cached_input_tokens, schema_version, request_id, requested_model, reserved_tokens, latency_ms, timestamp, was_rate_limited,
     outcome, reservation, estimated, region, instance, kafka_topic, kafka_partition, kafka_offset, ingested_at, 1
FROM usage_ledger_from_rows(slice = 1)
SETTINGS insert_deduplicate = 1, insert_deduplication_token = 'rows/1', min_insert_block_size_rows = 1000000000, min_insert_block_size_bytes = 1000000000000;

INSERT INTO usage_ledger
    (grain, event_id, org_id, period, user_id, api_key_id, tier, model, reason, scope, guess, events, requests, rejected_requests, input_tokens,
     output_tokens, cached_input_tokens, schema_version, request_id, requested_model, reserved_tokens, latency_ms, timestamp, was_rate_limited,
     outcome, reservation, estimated, region, instance, kafka_topic, kafka_partition, kafka_offset, ingested_at, generation)
SELECT
     grain, event_id, org_id, period, user_id, api_key_id, tier, model, reason, scope, guess, events, requests, rejected_requests, input_tokens,
     output_tokens, cached_input_tokens, schema_version, request_id, requested_model, reserved_tokens, latency_ms, timestamp, was_rate_limited,
     outcome, reservation, estimated, region, instance, kafka_topic, kafka_partition, kafka_offset, ingested_at, 1
FROM usage_ledger_from_rows(slice = 2)
SETTINGS insert_deduplicate = 1, insert_deduplication_token = 'rows/2', min_insert_block_size_rows = 1000000000, min_insert_block_size_bytes = 1000000000000;

INSERT INTO usage_ledger
    (grain, event_id, org_id, period, user_id, api_key_id, tier, model, reason, scope, guess, events, requests, rejected_requests, input_tokens,
     output_tokens, cached_input_tokens, schema_version, request_id, requested_model, reserved_tokens, latency_ms, timestamp, was_rate_limited,
     outcome, reservation, estimated, region, instance, kafka_topic, kafka_partition, kafka_offset, ingested_at, generation)
SELECT
     grain, event_id, org_id, period, user_id, api_key_id, tier, model, reason, scope, guess, events, requests, rejected_requests, input_tokens,
     output_tokens, cached_input_tokens, schema_version, request_id, requested_model, reserved_tokens, latency_ms, timestamp, was_rate_limited,
     outcome, reservation, estimated, region, instance, kafka_topic, kafka_partition, kafka_offset, ingested_at, 1
FROM usage_ledger_from_rows(slice = 3)
SETTINGS insert_deduplicate = 1, insert_deduplication_token = 'rows/3', min_insert_block_size_rows = 1000000000, min_insert_block_size_bytes = 1000000000000;

INSERT INTO usage_ledger
    (grain, event_id, org_id, period, user_id, api_key_id, tier, model, reason, scope, guess, events, requests, rejected_requests, input_tokens,
     output_tokens, cached_input_tokens, schema_version, request_id, requested_model, reserved_tokens, latency_ms, timestamp, was_rate_limited,
     outcome, reservation, estimated, region, instance, kafka_topic, kafka_partition, kafka_offset, ingested_at, generation)
SELECT
     grain, event_id, org_id, period, user_id, api_key_id, tier, model, reason, scope, guess, events, requests, rejected_requests, input_tokens,
     output_tokens, cached_input_tokens, schema_version, request_id, requested_model, reserved_tokens, latency_ms, timestamp, was_rate_limited,
     outcome, reservation, estimated, region, instance, kafka_topic, kafka_partition, kafka_offset, ingested_at, 1
FROM usage_ledger_from_rows(slice = 4)
SETTINGS insert_deduplicate = 1, insert_deduplication_token = 'rows/4', min_insert_block_size_rows = 1000000000, min_insert_block_size_bytes = 1000000000000;

INSERT INTO usage_ledger
    (grain, event_id, org_id, period, user_id, api_key_id, tier, model, reason, scope, guess, events, requests, rejected_requests, input_tokens,
     output_tokens, cached_input_tokens, schema_version, request_id, requested_model, reserved_tokens, latency_ms, timestamp, was_rate_limited,
     outcome, reservation, estimated, region, instance, kafka_topic, kafka_partition, kafka_offset, ingested_at, generation)
SELECT
     grain, event_id, org_id, period, user_id, api_key_id, tier, model, reason, scope, guess, events, requests, rejected_requests, input_tokens,
     output_tokens, cached_input_tokens, schema_version, request_id, requested_model, reserved_tokens, latency_ms, timestamp, was_rate_limited,
     outcome, reservation, estimated, region, instance, kafka_topic, kafka_partition, kafka_offset, ingested_at, 1
FROM usage_ledger_from_rows(slice = 5)
SETTINGS insert_deduplicate = 1, insert_deduplication_token = 'rows/5', min_insert_block_size_rows = 1000000000, min_insert_block_size_bytes = 1000000000000;

INSERT INTO usage_ledger
    (grain, event_id, org_id, period, user_id, api_key_id, tier, model, reason, scope, guess, events, requests, rejected_requests, input_tokens,
     output_tokens, cached_input_tokens, schema_version, request_id, requested_model, reserved_tokens, latency_ms, timestamp, was_rate_limited,
     outcome, reservation, estimated, region, instance, kafka_topic, kafka_partition, kafka_offset, ingested_at, generation)
SELECT
     grain, event_id, org_id, period, user_id, api_key_id, tier, model, reason, scope, guess, events, requests, rejected_requests, input_tokens,
     output_tokens, cached_input_tokens, schema_version, request_id, requested_model, reserved_tokens, latency_ms, timestamp, was_rate_limited,
     outcome, reservation, estimated, region, instance, kafka_topic, kafka_partition, kafka_offset, ingested_at, 1
FROM usage_ledger_from_rows(slice = 6)
SETTINGS insert_deduplicate = 1, insert_deduplication_token = 'rows/6', min_insert_block_size_rows = 1000000000, min_insert_block_size_bytes = 1000000000000;

INSERT INTO usage_ledger
    (grain, event_id, org_id, period, user_id, api_key_id, tier, model, reason, scope, guess, events, requests, rejected_requests, input_tokens,
     output_tokens, cached_input_tokens, schema_version, request_id, requested_model, reserved_tokens, latency_ms, timestamp, was_rate_limited,
     outcome, reservation, estimated, region, instance, kafka_topic, kafka_partition, kafka_offset, ingested_at, generation)
SELECT
     grain, event_id, org_id, period, user_id, api_key_id, tier, model, reason, scope, guess, events, requests, rejected_requests, input_tokens,
     output_tokens, cached_input_tokens, schema_version, request_id, requested_model, reserved_tokens, latency_ms, timestamp, was_rate_limited,
     outcome, reservation, estimated, region, instance, kafka_topic, kafka_partition, kafka_offset, ingested_at, 1
FROM usage_ledger_from_rows(slice = 7)
SETTINGS insert_deduplicate = 1, insert_deduplication_token = 'rows/7', min_insert_block_size_rows = 1000000000, min_insert_block_size_bytes = 1000000000000;

INSERT INTO usage_ledger
    (grain, event_id, org_id, period, user_id, api_key_id, tier, model, reason, scope, guess, events, requests, rejected_requests, input_tokens,
     output_tokens, cached_input_tokens, schema_version, request_id, requested_model, reserved_tokens, latency_ms, timestamp, was_rate_limited,
     outcome, reservation, estimated, region, instance, kafka_topic, kafka_partition, kafka_offset, ingested_at, generation)
SELECT
     grain, event_id, org_id, period, user_id, api_key_id, tier, model, reason, scope, guess, events, requests, rejected_requests, input_tokens,
     output_tokens, cached_input_tokens, schema_version, request_id, requested_model, reserved_tokens, latency_ms, timestamp, was_rate_limited,
     outcome, reservation, estimated, region, instance, kafka_topic, kafka_partition, kafka_offset, ingested_at, 1
FROM usage_ledger_from_rows(slice = 8)
SETTINGS insert_deduplicate = 1, insert_deduplication_token = 'rows/8', min_insert_block_size_rows = 1000000000, min_insert_block_size_bytes = 1000000000000;

INSERT INTO usage_ledger
    (grain, event_id, org_id, period, user_id, api_key_id, tier, model, reason, scope, guess, events, requests, rejected_requests, input_tokens,
     output_tokens, cached_input_tokens, schema_version, request_id, requested_model, reserved_tokens, latency_ms, timestamp, was_rate_limited,
     outcome, reservation, estimated, region, instance, kafka_topic, kafka_partition, kafka_offset, ingested_at, generation)
SELECT
     grain, event_id, org_id, period, user_id, api_key_id, tier, model, reason, scope, guess, events, requests, rejected_requests, input_tokens,
     output_tokens, cached_input_tokens, schema_version, request_id, requested_model, reserved_tokens, latency_ms, timestamp, was_rate_limited,
     outcome, reservation, estimated, region, instance, kafka_topic, kafka_partition, kafka_offset, ingested_at, 1
FROM usage_ledger_from_rows(slice = 9)
SETTINGS insert_deduplicate = 1, insert_deduplication_token = 'rows/9', min_insert_block_size_rows = 1000000000, min_insert_block_size_bytes = 1000000000000;

INSERT INTO usage_ledger
    (grain, event_id, org_id, period, user_id, api_key_id, tier, model, reason, scope, guess, events, requests, rejected_requests, input_tokens,
     output_tokens, cached_input_tokens, schema_version, request_id, requested_model, reserved_tokens, latency_ms, timestamp, was_rate_limited,
     outcome, reservation, estimated, region, instance, kafka_topic, kafka_partition, kafka_offset, ingested_at, generation)
SELECT
     grain, event_id, org_id, period, user_id, api_key_id, tier, model, reason, scope, guess, events, requests, rejected_requests, input_tokens,
     output_tokens, cached_input_tokens, schema_version, request_id, requested_model, reserved_tokens, latency_ms, timestamp, was_rate_limited,
     outcome, reservation, estimated, region, instance, kafka_topic, kafka_partition, kafka_offset, ingested_at, 1
FROM usage_ledger_from_rows(slice = 10)
SETTINGS insert_deduplicate = 1, insert_deduplication_token = 'rows/10', min_insert_block_size_rows = 1000000000, min_insert_block_size_bytes = 1000000000000;

INSERT INTO usage_ledger
    (grain, event_id, org_id, period, user_id, api_key_id, tier, model, reason, scope, guess, events, requests, rejected_requests, input_tokens,
     output_tokens, cached_input_tokens, schema_version, request_id, requested_model, reserved_tokens, latency_ms, timestamp, was_rate_limited,
     outcome, reservation, estimated, region, instance, kafka_topic, kafka_partition, kafka_offset, ingested_at, generation)
SELECT
     grain, event_id, org_id, period, user_id, api_key_id, tier, model, reason, scope, guess, events, requests, rejected_requests, input_tokens,
     output_tokens, cached_input_tokens, schema_version, request_id, requested_model, reserved_tokens, latency_ms, timestamp, was_rate_limited,
     outcome, reservation, estimated, region, instance, kafka_topic, kafka_partition, kafka_offset, ingested_at, 1
FROM usage_ledger_from_rows(slice = 11)
SETTINGS insert_deduplicate = 1, insert_deduplication_token = 'rows/11', min_insert_block_size_rows = 1000000000, min_insert_block_size_bytes = 1000000000000;

INSERT INTO usage_ledger
    (grain, event_id, org_id, period, user_id, api_key_id, tier, model, reason, scope, guess, events, requests, rejected_requests, input_tokens,
     output_tokens, cached_input_tokens, schema_version, request_id, requested_model, reserved_tokens, latency_ms, timestamp, was_rate_limited,
     outcome, reservation, estimated, region, instance, kafka_topic, kafka_partition, kafka_offset, ingested_at, generation)
SELECT
     grain, event_id, org_id, period, user_id, api_key_id, tier, model, reason, scope, guess, events, requests, rejected_requests, input_tokens,
     output_tokens, cached_input_tokens, schema_version, request_id, requested_model, reserved_tokens, latency_ms, timestamp, was_rate_limited,
     outcome, reservation, estimated, region, instance, kafka_topic, kafka_partition, kafka_offset, ingested_at, 1
FROM usage_ledger_from_rows(slice = 12)
SETTINGS insert_deduplicate = 1, insert_deduplication_token = 'rows/12', min_insert_block_size_rows = 1000000000, min_insert_block_size_bytes = 1000000000000;

INSERT INTO usage_ledger
    (grain, event_id, org_id, period, user_id, api_key_id, tier, model, reason, scope, guess, events, requests, rejected_requests, input_tokens,
     output_tokens, cached_input_tokens, schema_version, request_id, requested_model, reserved_tokens, latency_ms, timestamp, was_rate_limited,
     outcome, reservation, estimated, region, instance, kafka_topic, kafka_partition, kafka_offset, ingested_at, generation)
SELECT
     grain, event_id, org_id, period, user_id, api_key_id, tier, model, reason, scope, guess, events, requests, rejected_requests, input_tokens,
     output_tokens, cached_input_tokens, schema_version, request_id, requested_model, reserved_tokens, latency_ms, timestamp, was_rate_limited,
     outcome, reservation, estimated, region, instance, kafka_topic, kafka_partition, kafka_offset, ingested_at, 1
FROM usage_ledger_from_rows(slice = 13)
SETTINGS insert_deduplicate = 1, insert_deduplication_token = 'rows/13', min_insert_block_size_rows = 1000000000, min_insert_block_size_bytes = 1000000000000;

INSERT INTO usage_ledger
    (grain, event_id, org_id, period, user_id, api_key_id, tier, model, reason, scope, guess, events, requests, rejected_requests, input_tokens,
     output_tokens, cached_input_tokens, schema_version, request_id, requested_model, reserved_tokens, latency_ms, timestamp, was_rate_limited,
     outcome, reservation, estimated, region, instance, kafka_topic, kafka_partition, kafka_offset, ingested_at, generation)
SELECT
     grain, event_id, org_id, period, user_id, api_key_id, tier, model, reason, scope, guess, events, requests, rejected_requests, input_tokens,
     output_tokens, cached_input_tokens, schema_version, request_id, requested_model, reserved_tokens, latency_ms, timestamp, was_rate_limited,
     outcome, reservation, estimated, region, instance, kafka_topic, kafka_partition, kafka_offset, ingested_at, 1
FROM usage_ledger_from_rows(slice = 14)
SETTINGS insert_deduplicate = 1, insert_deduplication_token = 'rows/14', min_insert_block_size_rows = 1000000000, min_insert_block_size_bytes = 1000000000000;

INSERT INTO usage_ledger
    (grain, event_id, org_id, period, user_id, api_key_id, tier, model, reason, scope, guess, events, requests, rejected_requests, input_tokens,
     output_tokens, cached_input_tokens, schema_version, request_id, requested_model, reserved_tokens, latency_ms, timestamp, was_rate_limited,
     outcome, reservation, estimated, region, instance, kafka_topic, kafka_partition, kafka_offset, ingested_at, generation)
SELECT
     grain, event_id, org_id, period, user_id, api_key_id, tier, model, reason, scope, guess, events, requests, rejected_requests, input_tokens,
     output_tokens, cached_input_tokens, schema_version, request_id, requested_model, reserved_tokens, latency_ms, timestamp, was_rate_limited,
     outcome, reservation, estimated, region, instance, kafka_topic, kafka_partition, kafka_offset, ingested_at, 1
FROM usage_ledger_from_rows(slice = 15)
SETTINGS insert_deduplicate = 1, insert_deduplication_token = 'rows/15', min_insert_block_size_rows = 1000000000, min_insert_block_size_bytes = 1000000000000;

-- Fold 0: from here on there is something to look at, and writers may begin. After a rebuild there is one already.
INSERT INTO usage_ledger (grain, events, request_id, ingested_at, generation)
SELECT 'fold', 1, generateUUIDv4(), now64(3), 1
WHERE (SELECT count() FROM usage_ledger WHERE grain = 'fold') = 0
SETTINGS insert_deduplicate = 1, insert_deduplication_token = '1/0';

-- The condition on events has FINAL read that column: it drops rows whose sums are 0 in all columns that a query reads, so that without
-- it an event that used nothing would not be seen.
CREATE OR REPLACE VIEW usage_events AS
SELECT
    event_id, schema_version, user_id, api_key_id, org_id, tier, request_id, requested_model, model, input_tokens, output_tokens,
    cached_input_tokens, reserved_tokens, latency_ms, timestamp, was_rate_limited, reason, scope, outcome, reservation, estimated,
    region, instance, kafka_topic, kafka_partition, kafka_offset, ingested_at, corrects_event_id
FROM usage_ledger FINAL
WHERE grain = 'event' AND events > 0;

CREATE OR REPLACE VIEW usage_minutely AS
SELECT
    e.period AS period, e.org_id AS org_id, e.user_id AS user_id, e.api_key_id AS api_key_id, e.tier AS tier, e.model AS model,
    toUInt64(sum(e.requests)) AS requests,
    toUInt64(sum(e.rejected_requests)) AS rejected_requests,
    sum(e.input_tokens) AS input_tokens,
    sum(e.output_tokens) AS output_tokens,
    sum(e.cached_input_tokens) AS cached_input_tokens,
    sum(e.input_tokens) + sum(e.output_tokens) AS total_tokens
FROM usage_ledger AS e
WHERE e.grain = 'minute' AND e.event_id = toUUID('00000000-0000-0000-0000-000000000000')
GROUP BY period, org_id, user_id, api_key_id, tier, model
HAVING sum(e.events) > 0;

CREATE OR REPLACE VIEW usage_quarterly AS
SELECT
    e.period AS period, e.org_id AS org_id, e.user_id AS user_id, e.api_key_id AS api_key_id, e.tier AS tier, e.model AS model,
    toUInt64(sum(e.requests)) AS requests,
    toUInt64(sum(e.rejected_requests)) AS rejected_requests,
    sum(e.input_tokens) AS input_tokens,
    sum(e.output_tokens) AS output_tokens,
    sum(e.cached_input_tokens) AS cached_input_tokens,
    sum(e.input_tokens) + sum(e.output_tokens) AS total_tokens
FROM usage_ledger AS e
WHERE e.grain = 'quarter' AND e.event_id = toUUID('00000000-0000-0000-0000-000000000000')
GROUP BY period, org_id, user_id, api_key_id, tier, model
HAVING sum(e.events) > 0;

CREATE OR REPLACE VIEW usage_hourly AS
SELECT
    toStartOfHour(e.period) AS period, e.org_id AS org_id, e.user_id AS user_id, e.api_key_id AS api_key_id, e.tier AS tier, e.model AS model,
    toUInt64(sum(e.requests)) AS requests,
    toUInt64(sum(e.rejected_requests)) AS rejected_requests,
    sum(e.input_tokens) AS input_tokens,
    sum(e.output_tokens) AS output_tokens,
    sum(e.cached_input_tokens) AS cached_input_tokens,
    sum(e.input_tokens) + sum(e.output_tokens) AS total_tokens
FROM usage_ledger AS e
WHERE e.grain = 'quarter' AND e.event_id = toUUID('00000000-0000-0000-0000-000000000000')
GROUP BY period, org_id, user_id, api_key_id, tier, model
HAVING sum(e.events) > 0;

CREATE OR REPLACE VIEW usage_daily AS
SELECT
    e.period AS period, e.org_id AS org_id, e.user_id AS user_id, e.api_key_id AS api_key_id, e.tier AS tier, e.model AS model,
    toUInt64(sum(e.requests)) AS requests,
    toUInt64(sum(e.rejected_requests)) AS rejected_requests,
    sum(e.input_tokens) AS input_tokens,
    sum(e.output_tokens) AS output_tokens,
    sum(e.cached_input_tokens) AS cached_input_tokens,
    sum(e.input_tokens) + sum(e.output_tokens) AS total_tokens
FROM usage_ledger AS e
WHERE e.grain = 'day' AND e.event_id = toUUID('00000000-0000-0000-0000-000000000000')
GROUP BY period, org_id, user_id, api_key_id, tier, model
HAVING sum(e.events) > 0;

CREATE OR REPLACE VIEW rejections_hourly AS
SELECT e.period AS period, e.tier AS tier, e.reason AS reason, e.scope AS scope, toUInt64(sum(e.rejected_requests)) AS requests
FROM usage_ledger AS e
WHERE e.grain = 'refusals' AND e.event_id = toUUID('00000000-0000-0000-0000-000000000000') AND e.org_id = ''
GROUP BY period, tier, reason, scope
HAVING sum(e.events) > 0;

-- As in 00004: whoever may read a view need not be allowed to read what lies below it.
ALTER TABLE usage_events MODIFY SQL SECURITY DEFINER DEFINER = CURRENT_USER;
ALTER TABLE usage_minutely MODIFY SQL SECURITY DEFINER DEFINER = CURRENT_USER;
ALTER TABLE usage_quarterly MODIFY SQL SECURITY DEFINER DEFINER = CURRENT_USER;
ALTER TABLE usage_hourly MODIFY SQL SECURITY DEFINER DEFINER = CURRENT_USER;
ALTER TABLE usage_daily MODIFY SQL SECURITY DEFINER DEFINER = CURRENT_USER;
ALTER TABLE rejections_hourly MODIFY SQL SECURITY DEFINER DEFINER = CURRENT_USER;

DROP VIEW IF EXISTS usage_ledger_from_rows;
DROP TABLE IF EXISTS usage_event_rows SYNC;

-- +goose Down
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
    precedence          UInt64 MATERIALIZED
        bitOr(if(outcome = 'expired', 0, bitShiftLeft(toUInt64(1), 63)),
          bitAnd(bitNot(bitOr(bitShiftLeft(kafka_offset, 12), toUInt64(kafka_partition))), bitShiftLeft(toUInt64(1), 63) - 1)),
    CONSTRAINT partition_fits_precedence CHECK kafka_partition < 4096,
    CONSTRAINT rejection_uses_nothing CHECK NOT was_rate_limited OR (input_tokens = 0 AND output_tokens = 0),
    CONSTRAINT usage_is_not_negative CHECK outcome = 'adjustment' OR (input_tokens >= 0 AND output_tokens >= 0 AND cached_input_tokens >= 0)
)
ENGINE = ReplacingMergeTree(precedence)
ORDER BY event_id
SETTINGS non_replicated_deduplication_window = 10000;

-- Rows of one event_id are one event there, so that this can run twice.
INSERT INTO usage_event_rows
    (event_id, schema_version, user_id, api_key_id, org_id, tier, request_id, requested_model, model, input_tokens, output_tokens,
     cached_input_tokens, reserved_tokens, latency_ms, timestamp, was_rate_limited, reason, scope, outcome, reservation, estimated,
     region, instance, kafka_topic, kafka_partition, kafka_offset, ingested_at)
SELECT
    event_id, schema_version, user_id, api_key_id, org_id, tier, request_id, requested_model, model, input_tokens, output_tokens,
    cached_input_tokens, reserved_tokens, latency_ms, timestamp, was_rate_limited, reason, scope, outcome, reservation, estimated,
    region, instance, kafka_topic, kafka_partition, kafka_offset, ingested_at
FROM usage_events;

CREATE OR REPLACE VIEW usage_events AS
SELECT
    event_id, schema_version, user_id, api_key_id, org_id, tier, request_id, requested_model, model, input_tokens, output_tokens,
    cached_input_tokens, reserved_tokens, latency_ms, timestamp, was_rate_limited, reason, scope, outcome, reservation, estimated,
    region, instance, kafka_topic, kafka_partition, kafka_offset, ingested_at
FROM usage_event_rows FINAL;

CREATE OR REPLACE VIEW usage_minutely AS
SELECT
    toStartOfMinute(timestamp) AS period, org_id, user_id, api_key_id, tier, model,
    countIf(NOT was_rate_limited AND outcome != 'adjustment') AS requests,
    countIf(was_rate_limited) AS rejected_requests,
    sum(e.input_tokens) AS input_tokens,
    sum(e.output_tokens) AS output_tokens,
    sum(e.cached_input_tokens) AS cached_input_tokens,
    sum(e.input_tokens) + sum(e.output_tokens) AS total_tokens
FROM usage_event_rows AS e FINAL
GROUP BY period, org_id, user_id, api_key_id, tier, model;

CREATE OR REPLACE VIEW usage_hourly AS
SELECT
    toStartOfHour(timestamp) AS period, org_id, user_id, api_key_id, tier, model,
    countIf(NOT was_rate_limited AND outcome != 'adjustment') AS requests,
    countIf(was_rate_limited) AS rejected_requests,
    sum(e.input_tokens) AS input_tokens,
    sum(e.output_tokens) AS output_tokens,
    sum(e.cached_input_tokens) AS cached_input_tokens,
    sum(e.input_tokens) + sum(e.output_tokens) AS total_tokens
FROM usage_event_rows AS e FINAL
GROUP BY period, org_id, user_id, api_key_id, tier, model;

CREATE OR REPLACE VIEW usage_daily AS
SELECT
    toDateTime(toStartOfDay(timestamp), 'UTC') AS period, org_id, user_id, api_key_id, tier, model,
    countIf(NOT was_rate_limited AND outcome != 'adjustment') AS requests,
    countIf(was_rate_limited) AS rejected_requests,
    sum(e.input_tokens) AS input_tokens,
    sum(e.output_tokens) AS output_tokens,
    sum(e.cached_input_tokens) AS cached_input_tokens,
    sum(e.input_tokens) + sum(e.output_tokens) AS total_tokens
FROM usage_event_rows AS e FINAL
GROUP BY period, org_id, user_id, api_key_id, tier, model;

CREATE OR REPLACE VIEW rejections_hourly AS
SELECT toStartOfHour(timestamp) AS period, tier, reason, scope, count() AS requests
FROM usage_event_rows FINAL
WHERE was_rate_limited
GROUP BY period, tier, reason, scope;

ALTER TABLE usage_events MODIFY SQL SECURITY DEFINER DEFINER = CURRENT_USER;
ALTER TABLE usage_minutely MODIFY SQL SECURITY DEFINER DEFINER = CURRENT_USER;
ALTER TABLE usage_hourly MODIFY SQL SECURITY DEFINER DEFINER = CURRENT_USER;
ALTER TABLE usage_daily MODIFY SQL SECURITY DEFINER DEFINER = CURRENT_USER;
ALTER TABLE rejections_hourly MODIFY SQL SECURITY DEFINER DEFINER = CURRENT_USER;

DROP VIEW IF EXISTS usage_quarterly;
DROP TABLE IF EXISTS usage_ledger SYNC;
