-- Input: keys, a list of api key ids. Output: how many admitted and refused requests of theirs the ledger counts (Int64).
SELECT toInt64(sum(requests) + sum(rejected_requests))
FROM usage_hourly
WHERE api_key_id IN @keys
