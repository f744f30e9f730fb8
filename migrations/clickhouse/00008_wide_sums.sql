-- Sums of tokens that do not fit in 64 bits: the columns that are summed get 128, in which they can't overflow (2^74 events of 2^53 - 1 tokens).
-- Int64 would wrap at merges, at inserts and in queries, without an error.
--
-- Input:   usage_ledger as of 00005. No rebuild may run meanwhile: its table would have the old columns. Consumers may: ClickHouse widens what they insert.
-- Output:  usage_ledger with input_tokens, output_tokens, cached_input_tokens as Int128, rewritten part by part; the same views with the same columns
--          and types. A figure of a view that does not fit in Int64 is an error, never a wrong one (accurateCast).
-- Units:   tokens and requests are counts; periods are UTC.

-- +goose NO TRANSACTION
-- +goose Up
ALTER TABLE usage_ledger MODIFY COLUMN input_tokens Int128, MODIFY COLUMN output_tokens Int128, MODIFY COLUMN cached_input_tokens Int128;

-- The condition on events has FINAL read that column: it drops rows whose sums are 0 in all columns that a query reads, so that without
-- it an event that used nothing would not be seen.
CREATE OR REPLACE VIEW usage_events AS
SELECT
    event_id, schema_version, user_id, api_key_id, org_id, tier, request_id, requested_model, model,
    accurateCast(e.input_tokens, 'Int64') AS input_tokens, accurateCast(e.output_tokens, 'Int64') AS output_tokens,
    accurateCast(e.cached_input_tokens, 'Int64') AS cached_input_tokens, reserved_tokens, latency_ms, timestamp, was_rate_limited, reason, scope, outcome, reservation, estimated,
    region, instance, kafka_topic, kafka_partition, kafka_offset, ingested_at, corrects_event_id
FROM usage_ledger AS e FINAL
WHERE e.grain = 'event' AND e.events > 0;

CREATE OR REPLACE VIEW usage_minutely AS
SELECT
    e.period AS period, e.org_id AS org_id, e.user_id AS user_id, e.api_key_id AS api_key_id, e.tier AS tier, e.model AS model,
    toUInt64(sum(e.requests)) AS requests,
    toUInt64(sum(e.rejected_requests)) AS rejected_requests,
    accurateCast(sum(e.input_tokens), 'Int64') AS input_tokens,
    accurateCast(sum(e.output_tokens), 'Int64') AS output_tokens,
    accurateCast(sum(e.cached_input_tokens), 'Int64') AS cached_input_tokens,
    accurateCast(sum(e.input_tokens) + sum(e.output_tokens), 'Int64') AS total_tokens
FROM usage_ledger AS e
WHERE e.grain = 'minute' AND e.event_id = toUUID('00000000-0000-0000-0000-000000000000')
GROUP BY period, org_id, user_id, api_key_id, tier, model
HAVING sum(e.events) > 0;

CREATE OR REPLACE VIEW usage_quarterly AS
SELECT
    e.period AS period, e.org_id AS org_id, e.user_id AS user_id, e.api_key_id AS api_key_id, e.tier AS tier, e.model AS model,
    toUInt64(sum(e.requests)) AS requests,
    toUInt64(sum(e.rejected_requests)) AS rejected_requests,
    accurateCast(sum(e.input_tokens), 'Int64') AS input_tokens,
    accurateCast(sum(e.output_tokens), 'Int64') AS output_tokens,
    accurateCast(sum(e.cached_input_tokens), 'Int64') AS cached_input_tokens,
    accurateCast(sum(e.input_tokens) + sum(e.output_tokens), 'Int64') AS total_tokens
FROM usage_ledger AS e
WHERE e.grain = 'quarter' AND e.event_id = toUUID('00000000-0000-0000-0000-000000000000')
GROUP BY period, org_id, user_id, api_key_id, tier, model
HAVING sum(e.events) > 0;

CREATE OR REPLACE VIEW usage_hourly AS
SELECT
    toStartOfHour(e.period) AS period, e.org_id AS org_id, e.user_id AS user_id, e.api_key_id AS api_key_id, e.tier AS tier, e.model AS model,
    toUInt64(sum(e.requests)) AS requests,
    toUInt64(sum(e.rejected_requests)) AS rejected_requests,
    accurateCast(sum(e.input_tokens), 'Int64') AS input_tokens,
    accurateCast(sum(e.output_tokens), 'Int64') AS output_tokens,
    accurateCast(sum(e.cached_input_tokens), 'Int64') AS cached_input_tokens,
    accurateCast(sum(e.input_tokens) + sum(e.output_tokens), 'Int64') AS total_tokens
FROM usage_ledger AS e
WHERE e.grain = 'quarter' AND e.event_id = toUUID('00000000-0000-0000-0000-000000000000')
GROUP BY period, org_id, user_id, api_key_id, tier, model
HAVING sum(e.events) > 0;

CREATE OR REPLACE VIEW usage_daily AS
SELECT
    e.period AS period, e.org_id AS org_id, e.user_id AS user_id, e.api_key_id AS api_key_id, e.tier AS tier, e.model AS model,
    toUInt64(sum(e.requests)) AS requests,
    toUInt64(sum(e.rejected_requests)) AS rejected_requests,
    accurateCast(sum(e.input_tokens), 'Int64') AS input_tokens,
    accurateCast(sum(e.output_tokens), 'Int64') AS output_tokens,
    accurateCast(sum(e.cached_input_tokens), 'Int64') AS cached_input_tokens,
    accurateCast(sum(e.input_tokens) + sum(e.output_tokens), 'Int64') AS total_tokens
FROM usage_ledger AS e
WHERE e.grain = 'day' AND e.event_id = toUUID('00000000-0000-0000-0000-000000000000')
GROUP BY period, org_id, user_id, api_key_id, tier, model
HAVING sum(e.events) > 0;

-- As in 00004: whoever may read a view need not be allowed to read what lies below it.
ALTER TABLE usage_events MODIFY SQL SECURITY DEFINER DEFINER = CURRENT_USER;
ALTER TABLE usage_minutely MODIFY SQL SECURITY DEFINER DEFINER = CURRENT_USER;
ALTER TABLE usage_quarterly MODIFY SQL SECURITY DEFINER DEFINER = CURRENT_USER;
ALTER TABLE usage_hourly MODIFY SQL SECURITY DEFINER DEFINER = CURRENT_USER;
ALTER TABLE usage_daily MODIFY SQL SECURITY DEFINER DEFINER = CURRENT_USER;

-- +goose Down
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

ALTER TABLE usage_events MODIFY SQL SECURITY DEFINER DEFINER = CURRENT_USER;
ALTER TABLE usage_minutely MODIFY SQL SECURITY DEFINER DEFINER = CURRENT_USER;
ALTER TABLE usage_quarterly MODIFY SQL SECURITY DEFINER DEFINER = CURRENT_USER;
ALTER TABLE usage_hourly MODIFY SQL SECURITY DEFINER DEFINER = CURRENT_USER;
ALTER TABLE usage_daily MODIFY SQL SECURITY DEFINER DEFINER = CURRENT_USER;

-- Sums that do not fit wrap.
ALTER TABLE usage_ledger MODIFY COLUMN input_tokens Int64, MODIFY COLUMN output_tokens Int64, MODIFY COLUMN cached_input_tokens Int64;
