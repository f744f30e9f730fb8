-- The groups of a view whose figures are not those of the events.
-- Input:  view: usage_minutely, usage_quarterly, usage_hourly or usage_daily; unit: seconds of its period; from, to: Unix seconds, to not in it; limit: rows.
-- Output: one row a group. at: when its period begins, Unix seconds. First the figures of the events, then those of the view. Tokens and requests are counts.
SELECT at, org_id, user_id, api_key_id, tier, model, '' AS reason, '' AS scope,
    sumIf(requests, NOT shown), sumIf(rejected_requests, NOT shown), accurateCast(sumIf(toInt128(input_tokens), NOT shown), 'Int64'), accurateCast(sumIf(toInt128(output_tokens), NOT shown), 'Int64'), accurateCast(sumIf(toInt128(cached_input_tokens), NOT shown), 'Int64'),
    sumIf(requests, shown), sumIf(rejected_requests, shown), accurateCast(sumIf(toInt128(input_tokens), shown), 'Int64'), accurateCast(sumIf(toInt128(output_tokens), shown), 'Int64'), accurateCast(sumIf(toInt128(cached_input_tokens), shown), 'Int64')
FROM
(
    SELECT toInt64(intDiv(toUnixTimestamp(timestamp), {unit:UInt32}) * {unit:UInt32}) AS at, org_id, user_id, api_key_id, tier, model,
        requests, rejected_requests, input_tokens, output_tokens, cached_input_tokens, false AS shown
    FROM usage_ledger
    WHERE grain = 'event' AND timestamp >= fromUnixTimestamp64Milli({from:Int64} * 1000) AND timestamp < fromUnixTimestamp64Milli({to:Int64} * 1000)
    UNION ALL
    SELECT toInt64(toUnixTimestamp(period)) AS at, org_id, user_id, api_key_id, tier, model,
        toInt64(requests), toInt64(rejected_requests), input_tokens, output_tokens, cached_input_tokens, true AS shown
    FROM {view:Identifier}
    WHERE period >= toDateTime({from:Int64}, 'UTC') AND period < toDateTime({to:Int64}, 'UTC')
)
GROUP BY at, org_id, user_id, api_key_id, tier, model
HAVING sumIf(requests, NOT shown) != sumIf(requests, shown) OR sumIf(rejected_requests, NOT shown) != sumIf(rejected_requests, shown)
    OR sumIf(input_tokens, NOT shown) != sumIf(input_tokens, shown) OR sumIf(output_tokens, NOT shown) != sumIf(output_tokens, shown)
    OR sumIf(cached_input_tokens, NOT shown) != sumIf(cached_input_tokens, shown)
ORDER BY at, org_id, user_id, api_key_id, tier, model
LIMIT {limit:UInt32}
