-- A price that begins inside a quarter of an hour: the events of that quarter are summed up as they lie, without the merging that usage_events
-- does while it reads, which took seconds over millions of events.
--
-- Input:   usage_quarterly; the events in usage_ledger; prices; org_zones.
-- Output:  priced_daily, as of 00006: the same columns, rows and figures.
-- Exact:   an event that gives way leaves a copy with all its sums negated and events -1, at the same timestamp, in the block of the version that
--          stands (00005). So sums over rows are those over standing events, and a group of which no event stands has events 0.

-- +goose NO TRANSACTION
-- +goose Up
-- Tokens by day in the org's zone and by price, the base of both views below. No price in force: currency '', unpriced, prices 0.
CREATE OR REPLACE VIEW priced_daily AS
WITH
    -- the quarters inside of which a price begins
    split AS (SELECT DISTINCT model, toStartOfFifteenMinutes(valid_from) AS quarter FROM prices WHERE toDateTime64(toStartOfFifteenMinutes(valid_from), 3, 'UTC') != valid_from),
    used AS
    (
        SELECT toDateTime64(period, 3, 'UTC') AS at, org_id, user_id, api_key_id, CAST(model AS String) AS model, input_tokens, cached_input_tokens, output_tokens, 1 AS events
        FROM usage_quarterly
        WHERE (input_tokens != 0 OR cached_input_tokens != 0 OR output_tokens != 0) AND (model, period) NOT IN (SELECT model, quarter FROM split)
        UNION ALL
        -- An event that has given way to another version and its negated copy add up to nothing, before merges and after.
        SELECT timestamp AS at, org_id, user_id, api_key_id, CAST(model AS String) AS model, input_tokens, cached_input_tokens, output_tokens, events
        FROM usage_ledger
        WHERE (SELECT count() FROM split) > 0 AND grain = 'event'
            AND timestamp >= (SELECT min(quarter) FROM split) AND timestamp < (SELECT max(quarter) + INTERVAL 15 MINUTE FROM split)
            AND (model, toStartOfFifteenMinutes(timestamp)) IN (SELECT model, quarter FROM split)
            AND (input_tokens != 0 OR cached_input_tokens != 0 OR output_tokens != 0)
    )
SELECT
    toDate(substring(toString(u.at, if(z.time_zone = '', 'UTC', z.time_zone)), 1, 10)) AS day,
    u.org_id AS org_id, u.user_id AS user_id, u.api_key_id AS api_key_id, u.model AS model,
    p.currency AS currency, currency = '' AS unpriced,
    p.input_per_million AS input_per_million, p.cached_input_per_million AS cached_input_per_million, p.output_per_million AS output_per_million,
    sum(toInt128(u.input_tokens)) AS input_tokens, sum(toInt128(u.cached_input_tokens)) AS cached_input_tokens, sum(toInt128(u.output_tokens)) AS output_tokens
FROM used AS u
ASOF LEFT JOIN prices AS p ON u.model = p.model AND u.at >= p.valid_from
LEFT JOIN org_zones AS z ON u.org_id = z.org_id
GROUP BY day, org_id, user_id, api_key_id, model, currency, input_per_million, cached_input_per_million, output_per_million
HAVING sum(u.events) > 0
SETTINGS join_use_nulls = 0;

-- As 00004: who may read these need not be allowed to read what lies below.
ALTER TABLE priced_daily MODIFY SQL SECURITY DEFINER DEFINER = CURRENT_USER;

-- +goose Down
-- Tokens by day in the org's zone and by price, the base of both views below. No price in force: currency '', unpriced, prices 0.
CREATE OR REPLACE VIEW priced_daily AS
WITH
    -- the quarters inside of which a price begins
    split AS (SELECT DISTINCT model, toStartOfFifteenMinutes(valid_from) AS quarter FROM prices WHERE toDateTime64(toStartOfFifteenMinutes(valid_from), 3, 'UTC') != valid_from),
    used AS
    (
        SELECT toDateTime64(period, 3, 'UTC') AS at, org_id, user_id, api_key_id, CAST(model AS String) AS model, input_tokens, cached_input_tokens, output_tokens
        FROM usage_quarterly
        WHERE (input_tokens != 0 OR cached_input_tokens != 0 OR output_tokens != 0) AND (model, period) NOT IN (SELECT model, quarter FROM split)
        UNION ALL
        SELECT timestamp AS at, org_id, user_id, api_key_id, CAST(model AS String) AS model, input_tokens, cached_input_tokens, output_tokens
        FROM usage_events
        WHERE (SELECT count() FROM split) > 0
            AND event_id IN
            (
                -- Candidates by the index on time, replaced versions of events among them; usage_events tells which stand.
                SELECT event_id FROM usage_ledger
                WHERE grain = 'event' AND timestamp >= (SELECT min(quarter) FROM split) AND timestamp < (SELECT max(quarter) + INTERVAL 15 MINUTE FROM split)
                    AND (model, toStartOfFifteenMinutes(timestamp)) IN (SELECT model, quarter FROM split)
            )
            AND (input_tokens != 0 OR cached_input_tokens != 0 OR output_tokens != 0) AND (model, toStartOfFifteenMinutes(timestamp)) IN (SELECT model, quarter FROM split)
    )
SELECT
    toDate(substring(toString(u.at, if(z.time_zone = '', 'UTC', z.time_zone)), 1, 10)) AS day,
    u.org_id AS org_id, u.user_id AS user_id, u.api_key_id AS api_key_id, u.model AS model,
    p.currency AS currency, currency = '' AS unpriced,
    p.input_per_million AS input_per_million, p.cached_input_per_million AS cached_input_per_million, p.output_per_million AS output_per_million,
    sum(toInt128(u.input_tokens)) AS input_tokens, sum(toInt128(u.cached_input_tokens)) AS cached_input_tokens, sum(toInt128(u.output_tokens)) AS output_tokens
FROM used AS u
ASOF LEFT JOIN prices AS p ON u.model = p.model AND u.at >= p.valid_from
LEFT JOIN org_zones AS z ON u.org_id = z.org_id
GROUP BY day, org_id, user_id, api_key_id, model, currency, input_per_million, cached_input_per_million, output_per_million
SETTINGS join_use_nulls = 0;

ALTER TABLE priced_daily MODIFY SQL SECURITY DEFINER DEFINER = CURRENT_USER;
