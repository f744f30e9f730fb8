-- Sums of every view, all in one query so that they are asked at nearly the same moment.
-- Input:  since: Unix seconds (0: all), the start of an hour.
-- Output: one row a view and hour (of usage_daily: a day that begins at since or later). period: Unix seconds. Tokens and requests are counts.
--         rejections_hourly has refusals only, the others are 0. usage_events is summed from its rows as they lie: an event that has given way
--         and its negated copy add up to nothing, so the merging that the view does while it reads (FINAL) is not needed, and takes ten times as long.
SELECT 'usage_events' AS view, toInt64(toUnixTimestamp(toStartOfHour(timestamp))) AS hour,
    toInt64(sum(e.requests)), toInt64(sum(e.rejected_requests)), sum(e.input_tokens), sum(e.output_tokens), sum(e.cached_input_tokens)
FROM usage_ledger AS e
WHERE e.grain = 'event' AND ({since:Int64} = 0 OR timestamp >= fromUnixTimestamp64Milli({since:Int64} * 1000)) GROUP BY hour
UNION ALL
SELECT 'usage_minutely' AS view, toInt64(toUnixTimestamp(toStartOfHour(v.period))) AS hour,
    toInt64(sum(v.requests)), toInt64(sum(v.rejected_requests)), sum(v.input_tokens), sum(v.output_tokens), sum(v.cached_input_tokens)
FROM usage_minutely AS v WHERE {since:Int64} = 0 OR v.period >= toDateTime({since:Int64}, 'UTC') GROUP BY hour
UNION ALL
SELECT 'usage_hourly' AS view, toInt64(toUnixTimestamp(v.period)) AS hour,
    toInt64(sum(v.requests)), toInt64(sum(v.rejected_requests)), sum(v.input_tokens), sum(v.output_tokens), sum(v.cached_input_tokens)
FROM usage_hourly AS v WHERE {since:Int64} = 0 OR v.period >= toDateTime({since:Int64}, 'UTC') GROUP BY hour
UNION ALL
SELECT 'usage_daily' AS view, toInt64(toUnixTimestamp(toDateTime(v.period, 'UTC'))) AS day,
    toInt64(sum(v.requests)), toInt64(sum(v.rejected_requests)), sum(v.input_tokens), sum(v.output_tokens), sum(v.cached_input_tokens)
FROM usage_daily AS v WHERE {since:Int64} = 0 OR v.period >= toDateTime({since:Int64}, 'UTC') GROUP BY day
UNION ALL
SELECT 'rejections_hourly' AS view, toInt64(toUnixTimestamp(v.period)) AS hour,
    toInt64(0), toInt64(sum(v.requests)), toInt64(0), toInt64(0), toInt64(0)
FROM rejections_hourly AS v WHERE {since:Int64} = 0 OR v.period >= toDateTime({since:Int64}, 'UTC') GROUP BY hour
