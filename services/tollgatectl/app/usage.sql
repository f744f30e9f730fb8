-- What was used, summed up by one thing. For tollgatectl usage and top.
-- Input:  view: usage_minutely, usage_hourly or usage_daily; by: hour, day, org, user, key, tier or model; from, to: UTC, to not in it;
--         org, user, key, model: only of this one, all if ''; limit: rows.
-- Output: one row a name. Hours and days ascend; the others go by tokens, most first. Tokens and requests are counts.
SELECT
    multiIf({by:String} = 'hour', formatDateTime(u.period, '%Y-%m-%d %H:%i', 'UTC'), {by:String} = 'day', formatDateTime(u.period, '%Y-%m-%d', 'UTC'),
        {by:String} = 'org', u.org_id, {by:String} = 'user', u.user_id, {by:String} = 'key', u.api_key_id, {by:String} = 'tier', toString(u.tier), toString(u.model)) AS name,
    sum(u.requests) AS requests,
    sum(u.rejected_requests) AS rejected_requests,
    sum(u.input_tokens) AS input_tokens,
    sum(u.cached_input_tokens) AS cached_input_tokens,
    sum(u.output_tokens) AS output_tokens,
    sum(u.total_tokens) AS total_tokens
FROM {view:Identifier} AS u
WHERE u.period >= {from:DateTime('UTC')} AND u.period < {to:DateTime('UTC')}
  AND ({org:String} = '' OR u.org_id = {org:String}) AND ({user:String} = '' OR u.user_id = {user:String})
  AND ({key:String} = '' OR u.api_key_id = {key:String}) AND ({model:String} = '' OR u.model = {model:String})
GROUP BY name
ORDER BY if({by:String} IN ('hour', 'day'), name, ''), total_tokens DESC, requests DESC, name
LIMIT {limit:UInt32}
