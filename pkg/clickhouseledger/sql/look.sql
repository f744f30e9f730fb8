-- The last folds. Output: number (second half of fold), the writer's mark, the table's generation, and the server's clock. The least mark is
-- 16 folds back: whoever is further behind looks up its events instead. Read backwards from the end of the primary key's range.
SELECT event_id AS fold, request_id AS mark, generation, now64(3, 'UTC') AS at
FROM usage_ledger
WHERE grain = 'fold'
ORDER BY event_id DESC
LIMIT 16
