-- Stored guesses in full. Input: external table ids (id UUID). Output: the columns of block.go, in its order.
SELECT @columns
FROM usage_ledger FINAL
WHERE grain = 'event' AND guess AND event_id IN (SELECT id FROM ids)
