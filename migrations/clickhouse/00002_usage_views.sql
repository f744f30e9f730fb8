-- What people and programs read: each event once, at every moment, before and after merges.
--
-- Input:   usage_event_rows. FINAL picks one row an event_id while reading.
-- Output:  usage_events, one row an event; usage_minutely, usage_hourly and usage_daily, sums by period; rejections_hourly.
-- Units:   period is the start of the minute, hour or day in UTC, of the event's own timestamp; tokens and requests are counts.
-- Names:   columns are a contract (README.md beside this file). Later versions keep them and may replace what lies below.

-- +goose NO TRANSACTION
-- +goose Up
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

-- +goose Down
DROP VIEW IF EXISTS rejections_hourly;
DROP VIEW IF EXISTS usage_daily;
DROP VIEW IF EXISTS usage_hourly;
DROP VIEW IF EXISTS usage_minutely;
DROP VIEW IF EXISTS usage_events;
