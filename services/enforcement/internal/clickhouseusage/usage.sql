-- What each user, key or org has used, in the order of time: input of what a bucket would hold.
--
-- Input:   @by: user, key or org; @from, @recent, @minutes, @now: Unix ms, by Redis's clock. Reads the view usage_events only.
-- Output:  id; the model that served and the one that was asked for ('' by org, which limits no models); at_ms, Unix ms, of the latest event of
--          the slice, at most @now; requests; input and output tokens, each at most 2^53-1. Ordered by id, then at_ms.
-- Slices:  an hour before @minutes, a minute before @recent, then a second. All that a slice holds counts as used at its latest event: too late
--          by less than the slice, never too early.
-- Left out: refusals, which use nothing, and adjustments, which correct a bill and give no room back.
SELECT
    multiIf(@by = 'key', api_key_id, @by = 'org', org_id, user_id) AS id,
    if(@by = 'org', '', toString(model)) AS served,
    if(@by = 'org', '', toString(requested_model)) AS asked,
    max(least(toUnixTimestamp64Milli(timestamp), toInt64(@now))) AS at_ms,
    toInt64(count()) AS requests,
    toInt64(least(sum(toInt128(input_tokens)), toInt128(9007199254740991))) AS input,
    toInt64(least(sum(toInt128(output_tokens)), toInt128(9007199254740991))) AS output
FROM usage_events
WHERE timestamp >= fromUnixTimestamp64Milli(toInt64(@from), 'UTC') AND NOT was_rate_limited AND outcome != 'adjustment' AND id != ''
GROUP BY id, served, asked,
    intDiv(toUnixTimestamp64Milli(timestamp),
        multiIf(toUnixTimestamp64Milli(timestamp) >= @recent, 1000, toUnixTimestamp64Milli(timestamp) >= @minutes, 60000, 3600000)) AS slice,
    toUnixTimestamp64Milli(timestamp) >= @recent AS by_second,
    toUnixTimestamp64Milli(timestamp) >= @minutes AS by_minute
ORDER BY id, at_ms
