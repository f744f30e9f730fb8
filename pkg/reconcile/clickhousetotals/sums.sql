-- Sums of every view, all in one query so that they are asked at nearly the same moment.
-- Input:  since: Unix seconds (0: all), the start of an hour.
-- Output: one row a view and hour (of usage_daily: a day that begins at since or later). period: Unix seconds. Tokens and requests are counts.
--         rejections_hourly has refusals only, the others are 0. usage_events is summed from its rows as they lie: an event that has given way
--         and its negated copy add up to nothing, so the merging that the view does while it reads (FINAL) is not needed, and takes ten times as long.
--         payers, minutes, quarters, refusals: checksums that tell whose the figures are: the sum, modulo 2^64, over rows of (hash of the row's
--         group) * (its figures, each times a constant of its own). They are linear in the figures, so that single events and kept sums of one
--         group give the same. Groups: org, user, key, tier and model; these and the minute; these and the quarter of an hour; tier, reason and
--         scope. usage_events has all four, a view the one of its own groups, the others are 0.
WITH
    (r, x, i, o, c) -> toUInt64(r) * 0x9e3779b97f4a7c15 + toUInt64(x) * 0xbf58476d1ce4e5b9 + toUInt64(i) * 0x94d049bb133111eb + toUInt64(o) * 0xd6e8feb86659fd93 + toUInt64(c) * 0xa0761d6478bd642f AS figures,
    (org, user, key, t, m) -> cityHash64(org, user, key, t, m) AS payer
SELECT view, hour, toInt64(sum(requests)), toInt64(sum(rejected_requests)), accurateCast(sum(input_tokens), 'Int64'), accurateCast(sum(output_tokens), 'Int64'), accurateCast(sum(cached_input_tokens), 'Int64'),
    sum(intHash64(who) * f) AS payers, sum(intHash64(who + minute) * f) AS minutes, sum(intHash64(who + quarter) * f) AS quarters,
    sum(intHash64(why) * toUInt64(rejected_requests)) AS refusals
FROM
(
    SELECT 'usage_events' AS view, toInt64(toUnixTimestamp(toStartOfHour(timestamp))) AS hour, requests, rejected_requests, input_tokens, output_tokens, cached_input_tokens,
        payer(org_id, user_id, api_key_id, tier, model) AS who, figures(requests, rejected_requests, input_tokens, output_tokens, cached_input_tokens) AS f,
        toUnixTimestamp(toStartOfMinute(timestamp)) AS minute, toUnixTimestamp(toStartOfFifteenMinutes(timestamp)) AS quarter,
        if(rejected_requests = 0, 0, cityHash64(tier, reason, scope)) AS why
    FROM usage_ledger
    WHERE grain = 'event' AND ({since:Int64} = 0 OR timestamp >= fromUnixTimestamp64Milli({since:Int64} * 1000))
)
GROUP BY view, hour
UNION ALL
SELECT 'usage_minutely', toInt64(toUnixTimestamp(toStartOfHour(v.period))) AS hour,
    toInt64(sum(v.requests)), toInt64(sum(v.rejected_requests)), accurateCast(sum(toInt128(v.input_tokens)), 'Int64'), accurateCast(sum(toInt128(v.output_tokens)), 'Int64'), accurateCast(sum(toInt128(v.cached_input_tokens)), 'Int64'), 0,
    sum(intHash64(payer(v.org_id, v.user_id, v.api_key_id, v.tier, v.model) + toUnixTimestamp(v.period)) * figures(v.requests, v.rejected_requests, v.input_tokens, v.output_tokens, v.cached_input_tokens)), 0, 0
FROM usage_minutely AS v WHERE {since:Int64} = 0 OR v.period >= toDateTime({since:Int64}, 'UTC') GROUP BY hour
UNION ALL
SELECT 'usage_quarterly', toInt64(toUnixTimestamp(toStartOfHour(v.period))) AS hour,
    toInt64(sum(v.requests)), toInt64(sum(v.rejected_requests)), accurateCast(sum(toInt128(v.input_tokens)), 'Int64'), accurateCast(sum(toInt128(v.output_tokens)), 'Int64'), accurateCast(sum(toInt128(v.cached_input_tokens)), 'Int64'), 0, 0,
    sum(intHash64(payer(v.org_id, v.user_id, v.api_key_id, v.tier, v.model) + toUnixTimestamp(v.period)) * figures(v.requests, v.rejected_requests, v.input_tokens, v.output_tokens, v.cached_input_tokens)), 0
FROM usage_quarterly AS v WHERE {since:Int64} = 0 OR v.period >= toDateTime({since:Int64}, 'UTC') GROUP BY hour
UNION ALL
SELECT 'usage_hourly', toInt64(toUnixTimestamp(v.period)) AS hour,
    toInt64(sum(v.requests)), toInt64(sum(v.rejected_requests)), accurateCast(sum(toInt128(v.input_tokens)), 'Int64'), accurateCast(sum(toInt128(v.output_tokens)), 'Int64'), accurateCast(sum(toInt128(v.cached_input_tokens)), 'Int64'),
    sum(intHash64(payer(v.org_id, v.user_id, v.api_key_id, v.tier, v.model)) * figures(v.requests, v.rejected_requests, v.input_tokens, v.output_tokens, v.cached_input_tokens)), 0, 0, 0
FROM usage_hourly AS v WHERE {since:Int64} = 0 OR v.period >= toDateTime({since:Int64}, 'UTC') GROUP BY hour
UNION ALL
SELECT 'usage_daily', toInt64(toUnixTimestamp(toDateTime(v.period, 'UTC'))) AS day,
    toInt64(sum(v.requests)), toInt64(sum(v.rejected_requests)), accurateCast(sum(toInt128(v.input_tokens)), 'Int64'), accurateCast(sum(toInt128(v.output_tokens)), 'Int64'), accurateCast(sum(toInt128(v.cached_input_tokens)), 'Int64'),
    sum(intHash64(payer(v.org_id, v.user_id, v.api_key_id, v.tier, v.model)) * figures(v.requests, v.rejected_requests, v.input_tokens, v.output_tokens, v.cached_input_tokens)), 0, 0, 0
FROM usage_daily AS v WHERE {since:Int64} = 0 OR v.period >= toDateTime({since:Int64}, 'UTC') GROUP BY day
UNION ALL
SELECT 'rejections_hourly', toInt64(toUnixTimestamp(v.period)) AS hour,
    toInt64(0), toInt64(sum(v.requests)), toInt64(0), toInt64(0), toInt64(0), 0, 0, 0, sum(intHash64(cityHash64(v.tier, v.reason, v.scope)) * v.requests)
FROM rejections_hourly AS v WHERE {since:Int64} = 0 OR v.period >= toDateTime({since:Int64}, 'UTC') GROUP BY hour
