-- Counts what lies below usage_events. Output: rows (Int64); an event that gave way is counted until it is merged away.
SELECT toInt64(count()) FROM usage_ledger WHERE grain = 'event'
