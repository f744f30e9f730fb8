-- Counts what lies below the views. Output: rows (Int64), repeats that are not merged away included.
SELECT toInt64(count()) FROM usage_ledger WHERE grain = 'event'
