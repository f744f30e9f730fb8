-- Input: prefix, the beginning of the user ids. Output: one row of counts (Int64): admitted requests, rejected requests, input tokens,
-- output tokens. usage_hourly counts each event once at every moment, also before background merges.
SELECT
    toInt64(sum(requests)),
    toInt64(sum(rejected_requests)),
    toInt64(sum(input_tokens)),
    toInt64(sum(output_tokens))
FROM usage_hourly
WHERE startsWith(user_id, @prefix)
