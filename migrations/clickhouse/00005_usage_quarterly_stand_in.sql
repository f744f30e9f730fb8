-- STAND-IN for the ledger's own migration, which keeps the sums of quarters of an hour: delete this file when that one is here.
--
-- Input:   usage_event_rows.
-- Output:  usage_quarterly, columns as usage_daily; period is the start of a quarter of an hour in UTC.

-- +goose NO TRANSACTION
-- +goose Up
CREATE OR REPLACE VIEW usage_quarterly AS
SELECT
    toStartOfFifteenMinutes(timestamp) AS period, org_id, user_id, api_key_id, tier, model,
    countIf(NOT was_rate_limited AND outcome != 'adjustment') AS requests,
    countIf(was_rate_limited) AS rejected_requests,
    sum(e.input_tokens) AS input_tokens,
    sum(e.output_tokens) AS output_tokens,
    sum(e.cached_input_tokens) AS cached_input_tokens,
    sum(e.input_tokens) + sum(e.output_tokens) AS total_tokens
FROM usage_event_rows AS e FINAL
GROUP BY period, org_id, user_id, api_key_id, tier, model;
ALTER TABLE usage_quarterly MODIFY SQL SECURITY DEFINER DEFINER = CURRENT_USER;

-- +goose Down
DROP VIEW IF EXISTS usage_quarterly;
