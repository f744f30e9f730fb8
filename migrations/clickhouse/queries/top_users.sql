-- Which users and keys used most?
-- Input:  from: first day, UTC (default: this month)
--         to: last day, UTC (default: today)
--         org: only of this org; all if '' (default: '')
--         limit: rows, from 1 (default: 10)
-- Output: one row a user or key, most tokens first. user_id or api_key_id may be ''. share: of all tokens in question, 0 to 1.
SELECT
    org_id, user_id, api_key_id,
    sum(u.requests) AS requests,
    accurateCast(sum(toInt128(u.total_tokens)), 'Int64') AS total_tokens,
    round(total_tokens / greatest(sum(sum(toInt128(u.total_tokens))) OVER (), 1), 4) AS share
FROM usage_daily AS u
WHERE u.period >= toDateTime({from:Date}, 'UTC') AND u.period < toDateTime({to:Date} + 1, 'UTC')
  AND ({org:String} = '' OR u.org_id = {org:String})
GROUP BY org_id, user_id, api_key_id
ORDER BY total_tokens DESC, org_id, user_id, api_key_id
LIMIT {limit:UInt32}
