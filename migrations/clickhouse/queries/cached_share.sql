-- How many of the prompts' tokens came from the cache?
-- Input:  from: first day, UTC (default: this month)
--         to: last day, UTC (default: today)
--         org: only of this org; all if '' (default: '')
-- Output: one row a model, most input first. Tokens are counts. cached_share: of input_tokens, 0 to 1.
SELECT
    model,
    accurateCast(sum(toInt128(u.input_tokens)), 'Int64') AS input_tokens,
    accurateCast(sum(toInt128(u.cached_input_tokens)), 'Int64') AS cached_input_tokens,
    round(cached_input_tokens / greatest(input_tokens, 1), 4) AS cached_share
FROM usage_daily AS u
WHERE u.period >= toDateTime({from:Date}, 'UTC') AND u.period < toDateTime({to:Date} + 1, 'UTC')
  AND ({org:String} = '' OR u.org_id = {org:String})
GROUP BY model
HAVING input_tokens != 0
ORDER BY input_tokens DESC, model
