-- The groups of rejections_hourly whose figures are not those of the events.
-- Input:  from, to: Unix seconds, to not in it; limit: rows.
-- Output: one row a group, with the columns of groups.sql; only the refused requests are not 0. at: Unix seconds.
SELECT at, '' AS org_id, '' AS user_id, '' AS api_key_id, tier, '' AS model, reason, scope,
    toInt64(0), sumIf(rejected_requests, NOT shown), toInt64(0), toInt64(0), toInt64(0), toInt64(0), sumIf(rejected_requests, shown), toInt64(0), toInt64(0), toInt64(0)
FROM
(
    SELECT toInt64(toUnixTimestamp(toStartOfHour(timestamp))) AS at, tier, reason, scope, rejected_requests, false AS shown
    FROM usage_ledger
    WHERE grain = 'event' AND was_rate_limited AND timestamp >= fromUnixTimestamp64Milli({from:Int64} * 1000) AND timestamp < fromUnixTimestamp64Milli({to:Int64} * 1000)
    UNION ALL
    SELECT toInt64(toUnixTimestamp(period)) AS at, tier, reason, scope, toInt64(requests), true AS shown
    FROM rejections_hourly
    WHERE period >= toDateTime({from:Int64}, 'UTC') AND period < toDateTime({to:Int64}, 'UTC')
)
GROUP BY at, tier, reason, scope
HAVING sumIf(rejected_requests, NOT shown) != sumIf(rejected_requests, shown)
ORDER BY at, tier, reason, scope
LIMIT {limit:UInt32}
