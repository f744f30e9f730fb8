-- How many users, keys and orgs have used something since @from, Unix ms. Output: one row of three counts.
SELECT toInt64(uniqExactIf(user_id, user_id != '')), toInt64(uniqExactIf(api_key_id, api_key_id != '')), toInt64(uniqExactIf(org_id, org_id != ''))
FROM usage_events
WHERE timestamp >= fromUnixTimestamp64Milli(toInt64(@from), 'UTC') AND NOT was_rate_limited AND outcome != 'adjustment'
