-- What usage costs: the price book and the time zones of orgs as the consumer copies them from quota.changes.v1, and the views that join
-- them with usage: cost_daily and invoice_lines.
--
-- Input:   price_rows and org_zone_rows, one row a change, in any order and as often as Kafka delivers it; usage_quarterly; usage_events.
-- Output:  prices and org_zones, the latest version of each; cost_daily; invoice_lines. Their columns are a contract (README.md beside this file).
-- Units:   prices are amounts of the currency for a million tokens, with 12 decimals; costs have 18, so that tokens * price / 10^6 is exact;
--          an invoice line's amount has 2. Days and months are dates in the org's time zone.
-- Exact:   Tokens are summed as Int128 and multiplied once, as Decimal256 (76 digits, 18 of them after the point). A row's tokens are shown as Int64
--          (19 digits) and a price has at most 24 digits: 43 of 76. What did not fit, be it tokens or money, would be an error, not a wrong
--          sum (accurateCast, decimal_check_overflow).
-- Days:    every time zone's day has begun on a quarter of an hour of UTC since 1972, so a row of usage_quarterly lies in one day of any zone.
-- Prices:  a price that begins on a quarter of an hour holds for whole rows of usage_quarterly. One that begins inside a quarter splits it:
--          the events of that model and quarter are read one by one, each at the price of its own timestamp.

-- +goose NO TRANSACTION
-- +goose Up
CREATE TABLE IF NOT EXISTS price_rows
(
    model                    String,
    valid_from               DateTime64(3, 'UTC'),
    currency                 String,
    input_per_million        Decimal(38, 12),
    cached_input_per_million Decimal(38, 12),
    output_per_million       Decimal(38, 12),
    version                  UInt64,
    changed_at               DateTime64(3, 'UTC'),
    actor                    String
)
ENGINE = ReplacingMergeTree(version)
ORDER BY (model, valid_from);

CREATE TABLE IF NOT EXISTS org_zone_rows
(
    org_id     String,
    time_zone  String,
    version    UInt64,
    changed_at DateTime64(3, 'UTC')
)
ENGINE = ReplacingMergeTree(version)
ORDER BY org_id;

CREATE OR REPLACE VIEW prices AS
SELECT model, valid_from, currency, input_per_million, cached_input_per_million, output_per_million, version, changed_at, actor
FROM price_rows FINAL;

CREATE OR REPLACE VIEW org_zones AS
SELECT org_id, time_zone, version, changed_at
FROM org_zone_rows FINAL;

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

CREATE OR REPLACE VIEW cost_daily AS
SELECT
    day, org_id, user_id, api_key_id, model,
    accurateCast(sum(d.input_tokens), 'Int64') AS input_tokens,
    accurateCast(sum(d.cached_input_tokens), 'Int64') AS cached_input_tokens,
    accurateCast(sum(d.output_tokens), 'Int64') AS output_tokens,
    if(unpriced, NULL, toDecimal256('0.000001', 6) * sum(
        toDecimal256(d.input_tokens - d.cached_input_tokens, 0) * d.input_per_million
        + toDecimal256(d.cached_input_tokens, 0) * d.cached_input_per_million
        + toDecimal256(d.output_tokens, 0) * d.output_per_million)) AS cost,
    currency, unpriced
FROM priced_daily AS d
GROUP BY day, org_id, user_id, api_key_id, model, currency, unpriced;

CREATE OR REPLACE VIEW invoice_lines AS
SELECT
    toStartOfMonth(day) AS month, org_id, model,
    accurateCast(sum(d.input_tokens), 'Int64') AS input_tokens,
    accurateCast(sum(d.cached_input_tokens), 'Int64') AS cached_input_tokens,
    accurateCast(sum(d.output_tokens), 'Int64') AS output_tokens,
    if(unpriced, NULL, d.input_per_million) AS input_per_million,
    if(unpriced, NULL, d.cached_input_per_million) AS cached_input_per_million,
    if(unpriced, NULL, d.output_per_million) AS output_per_million,
    if(unpriced, NULL, toDecimal128(roundBankers(toDecimal256('0.000001', 6) * (
        toDecimal256(input_tokens - cached_input_tokens, 0) * d.input_per_million
        + toDecimal256(cached_input_tokens, 0) * d.cached_input_per_million
        + toDecimal256(output_tokens, 0) * d.output_per_million), 2), 2)) AS amount,
    currency, unpriced
FROM priced_daily AS d
GROUP BY month, org_id, model, currency, unpriced, d.input_per_million, d.cached_input_per_million, d.output_per_million;

-- As 00004: who may read these need not be allowed to read what lies below.
ALTER TABLE prices MODIFY SQL SECURITY DEFINER DEFINER = CURRENT_USER;
ALTER TABLE org_zones MODIFY SQL SECURITY DEFINER DEFINER = CURRENT_USER;
ALTER TABLE priced_daily MODIFY SQL SECURITY DEFINER DEFINER = CURRENT_USER;
ALTER TABLE cost_daily MODIFY SQL SECURITY DEFINER DEFINER = CURRENT_USER;
ALTER TABLE invoice_lines MODIFY SQL SECURITY DEFINER DEFINER = CURRENT_USER;

-- +goose Down
DROP VIEW IF EXISTS invoice_lines;
DROP VIEW IF EXISTS cost_daily;
DROP VIEW IF EXISTS priced_daily;
DROP VIEW IF EXISTS org_zones;
DROP VIEW IF EXISTS prices;
DROP TABLE IF EXISTS org_zone_rows;
DROP TABLE IF EXISTS price_rows;
