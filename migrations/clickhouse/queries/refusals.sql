-- How many requests were refused, and why, tier by tier?
-- Input:  from: first day, UTC (default: this month)
--         to: last day, UTC (default: today)
-- Output: one row a tier, reason and scope (which limit refused: key, user, model, org), most first. requests: refused ones; under a flood they
--         may be sampled. share: of the tier's refusals, 0 to 1.
SELECT
    tier, reason, scope,
    sum(r.requests) AS requests,
    round(requests / sum(sum(r.requests)) OVER (PARTITION BY tier), 4) AS share
FROM rejections_hourly AS r
WHERE r.period >= toDateTime({from:Date}, 'UTC') AND r.period < toDateTime({to:Date} + 1, 'UTC')
GROUP BY tier, reason, scope
ORDER BY requests DESC, tier, reason, scope
