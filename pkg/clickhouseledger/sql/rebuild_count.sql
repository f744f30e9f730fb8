-- How many events the ledger holds.
SELECT toInt64(sum(events)) AS events
FROM usage_ledger
WHERE grain = 'event'
