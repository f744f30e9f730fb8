-- What did each org use between two days?
-- Input:  from: first day, UTC (default: this month)
--         to: last day, UTC (default: today)
-- Output: one row an org, '' for subjects without one, most tokens first. requests: admitted ones; rejected_requests: refused ones;
--         tokens are counts; cached_input_tokens are part of input_tokens. Days are UTC for every org: month_to_date and invoice have the
--         days of the org's own time zone.
SELECT
    org_id,
    sum(u.requests) AS requests,
    sum(u.rejected_requests) AS rejected_requests,
    accurateCast(sum(toInt128(u.input_tokens)), 'Int64') AS input_tokens,
    accurateCast(sum(toInt128(u.cached_input_tokens)), 'Int64') AS cached_input_tokens,
    accurateCast(sum(toInt128(u.output_tokens)), 'Int64') AS output_tokens,
    accurateCast(sum(toInt128(u.total_tokens)), 'Int64') AS total_tokens
FROM usage_daily AS u
WHERE u.period >= toDateTime({from:Date}, 'UTC') AND u.period < toDateTime({to:Date} + 1, 'UTC')
GROUP BY org_id
ORDER BY total_tokens DESC, org_id
