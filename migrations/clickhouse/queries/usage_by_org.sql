-- What did each org use between two days?
-- Input:  from: first day, UTC (default: this month)
--         to: last day, UTC (default: today)
-- Output: one row an org, '' for subjects without one, most tokens first. requests: admitted ones; rejected_requests: refused ones;
--         tokens are counts; cached_input_tokens are part of input_tokens.
SELECT
    org_id,
    sum(u.requests) AS requests,
    sum(u.rejected_requests) AS rejected_requests,
    sum(u.input_tokens) AS input_tokens,
    sum(u.cached_input_tokens) AS cached_input_tokens,
    sum(u.output_tokens) AS output_tokens,
    sum(u.total_tokens) AS total_tokens
FROM usage_daily AS u
WHERE u.period >= toDateTime({from:Date}, 'UTC') AND u.period < toDateTime({to:Date} + 1, 'UTC')
GROUP BY org_id
ORDER BY total_tokens DESC, org_id
