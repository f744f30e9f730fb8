-- Which share of the requests failed, expired or was cancelled?
-- Input:  from: first day, UTC (default: this month)
--         to: last day, UTC (default: today)
--         org: only of this org; all if '' (default: '')
-- Output: one row a model, most requests first. requests: admitted ones, of which failed (by the upstream), expired (the caller never told what was
--         used, so what was held is billed) and cancelled (the client left); shares 0 to 1. estimated: tokens were counted, not told by the
--         upstream. Reads events, so it takes longer than the others.
SELECT
    model,
    count() AS requests,
    countIf(outcome = 'failed') AS failed,
    countIf(outcome = 'expired') AS expired,
    countIf(outcome = 'cancelled') AS cancelled,
    round(failed / requests, 4) AS failed_share,
    round(expired / requests, 4) AS expired_share,
    countIf(e.estimated) AS estimated
FROM usage_events AS e
WHERE e.timestamp >= toDateTime64({from:Date}, 3, 'UTC') AND e.timestamp < toDateTime64({to:Date} + 1, 3, 'UTC')
  AND NOT was_rate_limited AND outcome != 'adjustment'
  AND ({org:String} = '' OR org_id = {org:String})
GROUP BY model
ORDER BY requests DESC, model
