-- Input: keys, a list of api key ids. Output: for each reason for which requests of theirs were refused, how many (Int64), the most frequent first.
SELECT reason, toInt64(count())
FROM usage_events
WHERE api_key_id IN @keys AND was_rate_limited
GROUP BY reason
ORDER BY count() DESC, reason
