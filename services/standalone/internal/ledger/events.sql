-- Input: users, a list of user ids. Output: how many admitted and refused requests of theirs the ledger counts (Int64).
SELECT toInt64(sum(requests) + sum(rejected_requests))
FROM usage_hourly
WHERE user_id IN @users
